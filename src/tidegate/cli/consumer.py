"""`tidegate consumer`: writes a topic into Delta or Iceberg tables, or into a database.

`status` is in `consumer_status`, `snapshot` in `consumer_snapshot`, `take-back` in `consumer_take_back`.

This module only reads the options, calls `tidegate.consumer.job.run` and prints. Heavy imports happen in the
command.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli import consistency, consumer_snapshot, consumer_status, consumer_take_back
from tidegate.errors import TidegateError
from tidegate.program import loaded

if TYPE_CHECKING:
    from tidegate.consumer.running.progress import Progress
    from tidegate.dispatcher.consistency import Setting

app = typer.Typer(help="Read a topic back into a transactionally consistent target.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Read a topic back into a transactionally consistent target."""


@app.command()
def run(
    source: Annotated[
        str,
        typer.Option(
            help="Topic, or topics of one changefeed, to read: "
            "'kafka://127.0.0.1:9092/topic,other?protocol=open-protocol'."
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            help="Where the tables go: delta:///absolute/directory, iceberg:///absolute/directory, "
            "parquet:///absolute/directory for a log of every change (docs/change-log.md); in a bucket "
            "delta+s3://bucket/prefix?endpoint=URL&region=NAME, iceberg+s3:// or parquet+s3:// (with "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment); or mysql://user@host:port/ of "
            "a MySQL, MariaDB or TiDB server (the password in TIDEGATE_TARGET_PASSWORD, or "
            "?password-file=FILE)."
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            help="For a database or a bucket: the name by which the consumer finds its position there again."
        ),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="For a database or a bucket: a folder for rows that wait, Spark's log and the "
            "quarantine; default: ./tidegate-consumer-NAME."
        ),
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="For a database: how many connections write in parallel (default 4); 1 is atomicity global.",
            show_default=False,
        ),
    ] = None,
    atomicity: Annotated[
        str,
        typer.Option(
            help="For a database: global is one lane, and readers see whole transactions over all tables; "
            "table, the default, is one lane for each table; none spreads the rows of a table whose key is "
            "of integers and its only unique index (docs/databases.md#what-readers-of-the-database-see).",
            show_default=False,
        ),
    ] = "",
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="For a database: also write to tables that exist already. They must hold the source's "
            "rows as of the changefeed's start-ts or later.",
        ),
    ] = False,
    transaction_max_bytes: Annotated[
        int | None,
        typer.Option(
            min=1 << 20,
            help="For a database: a transaction with more row data than this is split, and readers "
            "see some of it before the rest (default 1 GiB). With --atomicity global it is refused instead; "
            "there the default is no limit.",
        ),
    ] = None,
    skip_ddl: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="For a database: the ts of a DDL that you have run there in another form; may be repeated.",
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            help="Tables to apply, as a table filter rule: 'shop.*'; may be repeated, and the last rule that "
            "matches a table wins. Without it: all.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Tables to leave out, as a table filter rule: 'shop.tmp_*'; may be repeated."),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            help="New names for tables: 'shop.*=copy.*'; may be repeated, and the first that matches a "
            "table counts."
        ),
    ] = None,
    drop_column: Annotated[
        list[str] | None,
        typer.Option(help="Columns to leave out: 'shop.users.phone', '*.*.secret_*'; may be repeated."),
    ] = None,
    soft_delete: Annotated[
        list[str] | None,
        typer.Option(
            help="Tables that keep deleted rows, and the new column that gets the time of the deletion: "
            "'shop.orders.deleted_at', '*.*.deleted_at'; may be repeated, and the first that matches a table "
            "counts."
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            help="For files: the columns by which new tables are partitioned, 'shop.orders:region' or, for "
            "Iceberg, 'shop.*:day(created_at),bucket(16, id)'; may be repeated, and the first that matches a "
            "table counts (docs/selection.md#partitioned-tables)."
        ),
    ] = None,
    schema_changes: Annotated[
        str,
        typer.Option(
            help="How to react when columns change upstream: evolve changes the target's columns, too; "
            "ignore lets the target's tables keep their columns; stop ends the consumer before the DDL "
            "(docs/schema-changes.md)."
        ),
    ] = "evolve",
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside",
            help="If changes of a table cannot be applied, leave the table as it is and continue with the "
            "others; `consumer status` lists it. Refused with --atomicity global. Without it, the consumer "
            "stops (docs/set-aside.md).",
        ),
    ] = False,
    mode: Annotated[
        str,
        typer.Option(
            help="transaction applies whole transactions over all partitions of all topics; table does so "
            "for each topic, so that a partition that lags delays only the tables of its topic "
            "(docs/dispatchers.md#consistency-levels); row applies each partition as it comes, even on a "
            "topic without watermarks (docs/row-mode.md)."
        ),
    ] = "transaction",
    until: Annotated[
        int | None,
        typer.Option(
            min=1, help="Apply everything up to this ts and nothing above it, make that a snapshot, and end."
        ),
    ] = None,
    commit_interval: Annotated[
        float, typer.Option(min=0.0, help="The least number of seconds between two commits.")
    ] = 2.0,
    commit_rows: Annotated[
        int, typer.Option(min=1, help="The most row changes in one commit, approximately.")
    ] = 500_000,
    time_zone: Annotated[
        str,
        typer.Option(
            help="Time zone of TIMESTAMP texts in the topic, which is the changefeed's. Needed if "
            "neither messages nor DDL headers name it, as on topics of TiCDC.",
            show_default=False,
        ),
    ] = "",
    pd: Annotated[
        str,
        typer.Option(
            help="Address of upstream's PD: rows too large for their messages are read there by their keys."
        ),
    ] = "",
    old_values: Annotated[
        bool, typer.Option(help="Use --no-old-values if the topic's updates carry no old values.")
    ] = True,
    retention_hours: Annotated[
        int,
        typer.Option(
            min=0, help="Files: hours for which snapshots stay readable, fewer of them as they grow older."
        ),
    ] = 24,
    keep_all_hours: Annotated[
        float, typer.Option(min=0.0, help="Files: hours for which every snapshot is kept.")
    ] = 1.0,
    keep_minutes_hours: Annotated[
        float,
        typer.Option(min=0.0, help="Files: up to this age, one snapshot a minute is kept, then one an hour."),
    ] = 6.0,
    keep_changes_hours: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Change log: hours for which changes are kept, by their commit ts; default: forever.",
            show_default=False,
        ),
    ] = None,
    write_mode: Annotated[
        str,
        typer.Option(
            help="Delta, Iceberg: copy-on-write (Delta's default) rewrites each data file in which a row "
            "changes; merge-on-read (Iceberg's default) records which rows are deleted, if they are few. "
            "It is for tables of more than about a million rows in which rows anywhere change.",
            show_default=False,
        ),
    ] = "",
    master: Annotated[
        str, typer.Option(help="Spark master; or workers[N]: N processes on this machine, without Spark.")
    ] = "local[2]",
    worker_python: Annotated[
        str,
        typer.Option(
            help="For a Spark cluster: path of a Python with Tidegate on its machines; default: the path "
            "of this one."
        ),
    ] = "",
    driver_host: Annotated[
        str, typer.Option(help="For a Spark cluster: an address of this machine that its machines reach.")
    ] = "127.0.0.1",
    group: Annotated[
        str,
        typer.Option(
            help="A Kafka consumer group that gets the offsets up to which everything is applied, for tools "
            "that show lag. The consumer itself never reads them."
        ),
    ] = "",
    metrics: Annotated[
        str,
        typer.Option(
            help="HOST:PORT that serves metrics for Prometheus at /metrics; port 0 takes a free one."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Apply a topic's rows and DDLs to a target, exactly once.

    It runs until Ctrl-C, SIGTERM or --until. It prints one line when it is ready and one at its end; on a
    terminal a live line in between, with --json one line per second. Warnings and errors go to standard
    error.
    """
    from tidegate.consumer.ddl.schema_changes import SchemaChanges
    from tidegate.consumer.engine.watermark import Mode
    from tidegate.consumer.job import run
    from tidegate.consumer.lakehouse.upkeep import Upkeep
    from tidegate.consumer.lakehouse.write_mode import WriteMode
    from tidegate.consumer.reading.fetch_spark import ClusterSettings
    from tidegate.consumer.running.progress import Listener
    from tidegate.consumer.selecting.rules import Rules
    from tidegate.consumer.settings import Settings, topic_of
    from tidegate.consumer.targets import DatabaseSettings, address_of

    loaded()
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only noted: the job looks between two steps, so that no write is cut off.
        signal.signal(number, lambda number, _frame: stopping.append(number))
    if mode not in set(Mode):
        raise typer.BadParameter(f"'{mode}' is not one of {', '.join(Mode)}", param_hint="--mode")
    if schema_changes not in set(SchemaChanges):
        names = ", ".join(SchemaChanges)
        raise typer.BadParameter(f"'{schema_changes}' is not one of {names}", param_hint="--schema-changes")
    if write_mode and write_mode not in set(WriteMode):
        names = ", ".join(WriteMode)
        raise typer.BadParameter(f"'{write_mode}' is not one of {names}", param_hint="--write-mode")
    show = _JsonLines() if as_json else _Lines()
    try:
        settings = Settings(
            source=source,
            target=target,
            database=DatabaseSettings(
                *(name, folder, lanes, adopt, frozenset(skip_ddl or ()), transaction_max_bytes, atomicity)
            ),
            rules=Rules(
                include=tuple(include or ()),
                exclude=tuple(exclude or ()),
                route=tuple(route or ()),
                drop_column=tuple(drop_column or ()),
                soft_delete=tuple(soft_delete or ()),
                schema_changes=SchemaChanges(schema_changes),
                partition_by=tuple(partition_by or ()),
            ),
            set_aside=set_aside,
            mode=Mode(mode),
            until=until,
            time_zone=time_zone,
            pd=pd,
            commit_s=commit_interval,
            commit_rows=commit_rows,
            trust_inserts=old_values,
            group=group,
            master=master,
            cluster=ClusterSettings(worker_python, driver_host),
            upkeep=Upkeep(
                retention_hours,
                all_hours=keep_all_hours,
                minute_hours=keep_minutes_hours,
                keep_changes_hours=keep_changes_hours,
            ),
            write_mode=WriteMode(write_mode) if write_mode else None,
        )
        topic = topic_of(settings)
        by_offset = topic.by_offset
        address = address_of(
            *(target, settings.upkeep, settings.database),
            by_offset=by_offset,
            write_mode=settings.write_mode,
        )
        show.place = str(address)
        with _measured(metrics) as (show.metrics, measure):

            def ready(progress: Progress) -> None:
                measure(progress)
                show.ready(progress, consistency.of_consumer(topic, address), mode)

            def report(progress: Progress) -> None:
                measure(progress)
                show.report(progress)

            listener = Listener(ready=ready, report=report, warn=show.warn, note=show.note)
            end = run(settings, lambda: bool(stopping), listener)
        show.stopped(end)
    except TidegateError as error:
        show.clear()
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error


# After `run`: the help lists commands in this order.
app.command("status")(consumer_status.show_status)
app.command("snapshot")(consumer_snapshot.show_snapshot)
app.command("take-back")(consumer_take_back.take_back)


@contextmanager
def _measured(address: str) -> Iterator[tuple[str, Callable[[Progress], None]]]:
    """The address of the metrics, and the function that takes each report; without an address neither."""
    if not address:
        yield "", lambda progress: None
        return
    from tidegate.access import AccessToken
    from tidegate.api.listening import address_of, listen
    from tidegate.api.metrics_page import serving
    from tidegate.consumer.running.gauges import Gauges

    gauges = Gauges(_now_ms)
    listener = listen(address, "--metrics")
    with serving(listener, gauges.render, AccessToken.from_environment()):
        yield f"http://{address_of(listener)}/metrics", gauges.update


class _Lines:
    """Output for people: a line at the start and the end, a live line in between, warnings as they come."""

    def __init__(self) -> None:
        self.place = self.metrics = ""
        self._live = sys.stderr.isatty()

    def ready(self, progress: Progress, setting: Setting, mode: str) -> None:
        at = f"resumes at snapshot {_moment(progress.ts)}" if progress.ts else "the target is new"
        metrics = f", metrics at {self.metrics}" if self.metrics else ""
        print(f"consumer ready: {self.place}, {at}{metrics}", flush=True)
        self.level(setting, mode)

    def level(self, setting: Setting, mode: str) -> None:
        """Print what the chosen mode guarantees and gives up: a table on a terminal, otherwise one line."""
        if self._live:
            consistency.print_table(setting, mode)
        else:
            self.note(consistency.line(setting, mode))

    def report(self, progress: Progress) -> None:
        if self._live:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            print(
                f"\r{status(progress, _now_ms())[: width - 1]}\033[K",
                end="",
                file=sys.stderr,
            )
            sys.stderr.flush()

    def warn(self, error: TidegateError) -> None:
        self.note(f"warning: {error.render()}")

    def note(self, text: str) -> None:
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def stopped(self, progress: Progress) -> None:
        self.clear()
        at = f"at snapshot {_moment(progress.ts)}" if progress.ts else "before any snapshot"
        print(f"consumer stopped {at}: {_counts(progress)}", flush=True)

    def clear(self) -> None:
        """Remove the live line."""
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class _JsonLines(_Lines):
    """Output for programs: each event is a JSON object on standard output; warnings go to standard error."""

    def __init__(self) -> None:
        super().__init__()
        self._live = False

    def ready(self, progress: Progress, setting: Setting, mode: str) -> None:
        keeps = {"mode": mode, "keeps": consistency.as_dict(setting).get(mode, {})}
        metrics = {"metrics": self.metrics} if self.metrics else {}
        self._say("ready", progress, consistency=keeps, **metrics)

    def report(self, progress: Progress) -> None:
        self._say("progress", progress)

    def stopped(self, progress: Progress) -> None:
        self._say("stopped", progress)

    def _say(self, event: str, progress: Progress, **more: object) -> None:
        # Thousands of partitions would make a long line every second. `consumer status --json` shows them.
        counts = dataclasses.asdict(dataclasses.replace(progress, partitions=()))
        del counts["partitions"]
        print(json.dumps({"event": event, **counts, **more}), flush=True)


def status(progress: Progress, now_ms: int) -> str:
    """The live line."""
    from tidegate.consumer.running.lag import held_back_briefly, messages_behind
    from tidegate.model.timestamp import physical_ms

    parts = ["no snapshot yet"]
    if progress.ts:
        behind = f"{max(0, now_ms - physical_ms(progress.ts)) / 1000:.1f} s"
        if any(not one.marked for one in progress.partitions):  # without watermarks a ts says nothing of lag
            messages = messages_behind(progress.partitions)
            behind = f"{messages:,} messages" if messages is not None else "an unknown number of messages"
        parts = [f"snapshot {progress.ts}", f"{behind} behind"]
    parts += [held] if (held := held_back_briefly(progress.partitions, now_ms)) else []
    parts.append(_counts(progress))
    parts += [f"{progress.waiting_rows:,} rows wait"] if progress.waiting_rows else []
    return (f"{progress.trouble} | " if progress.trouble else "") + ", ".join(parts)


def _counts(progress: Progress) -> str:
    text = f"{progress.rows:,} row changes and {progress.ddls:,} DDLs in {progress.snapshots:,} snapshots"
    return ", ".join([text, *(f"{count:,} {what}" for count, what in _inexact(progress) if count)])


def _inexact(progress: Progress) -> list[tuple[int, str]]:
    """The counts of rows that differ, or may differ, from the source."""
    return [
        (progress.quarantined, "messages or rows set aside"),
        (progress.bad_dates, "dates of no calendar made NULL"),
        (progress.bad_texts, "texts that are not UTF-8"),
        (progress.missing_deletes, "deletes that found no row"),
        (progress.guessed, "tables guessed from their rows"),
        (progress.set_aside, "tables set aside"),
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _moment(ts: int) -> str:
    from tidegate.model.timestamp import physical_ms, readable

    # If messages contain no commit ts, snapshots only have numbers.
    return f"{ts} ({readable(ts)})" if physical_ms(ts) else str(ts)
