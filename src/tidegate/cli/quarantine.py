"""`tidegate quarantine`: what a changefeed or a consumer has set aside, and whether it can be decoded now.

    list    one line for each entry; the file is read as a stream, because it may have a GiB
    show    one entry in full: where, why, its bytes
    replay  decodes entries again with this release

An entry is named by its line number, which never changes. All output is escaped, because anybody can write
the messages. `quarantine_place` finds the file, `quarantine_words` shows entries, `quarantine_replay` decodes
them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.client import JsonOption, reported
from tidegate.cli.escaped import escaped
from tidegate.cli.peek import plain
from tidegate.cli.quarantine_place import Wanted, place_of
from tidegate.cli.quarantine_replay import of_capture, of_consumer, statements
from tidegate.cli.quarantine_words import (
    as_json_line,
    brief,
    described,
    in_words,
    print_table,
    summary,
    table_of,
)
from tidegate.errors import InvalidInput

if TYPE_CHECKING:
    from tidegate.sink.quarantine import QuarantineLine

app = typer.Typer(help="Inspect changes and messages that could not be decoded.", no_args_is_help=True)

JSON_LINES: Final = "Print JSON lines, one for each entry."

DataDirOption = Annotated[
    Path | None, typer.Option(help="For a changefeed: the --data-dir of its capture's server.")
]
FeedOption = Annotated[str, typer.Option("--changefeed-id", "-c", help="The changefeed.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="The changefeed's namespace.")]
TargetOption = Annotated[str, typer.Option(help="For a consumer: its --target.")]
NameOption = Annotated[str, typer.Option(help="For a consumer of a database: its --name.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(help="For a consumer of a database: its --folder, if it has one."),
]
TableOption = Annotated[str, typer.Option(help="Only entries of this table, SCHEMA.TABLE.")]
TopicOption = Annotated[str, typer.Option(help="Only entries of this topic.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Entries shown at most; the others are counted.")]


@app.callback()
def group() -> None:
    """Look into what could not be decoded: the quarantine of a changefeed or of a consumer."""


@contextmanager
def _reported() -> Iterator[None]:
    """As `reported`, for file errors as well; a closed pipe ends the command quietly."""
    with reported():
        try:
            yield
        # Closed, because Python would print an error there when it flushes its output at the end.
        except BrokenPipeError:
            sys.stderr.close()
        except OSError as error:
            raise InvalidInput(
                "the quarantine cannot be read",
                where=str(error.filename or ""),
                why=error.strerror or str(error),
                fix="run it as the user of the server or of the consumer, on its machine",
            ) from error


@app.command("list")
def show_all(
    data_dir: DataDirOption = None,
    changefeed_id: FeedOption = "",
    namespace: NamespaceOption = "default",
    target: TargetOption = "",
    name: NameOption = "",
    folder: FolderOption = None,
    table: TableOption = "",
    topic: TopicOption = "",
    limit: LimitOption = 50,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_LINES)] = False,
) -> None:
    """List the quarantined entries: position, time, size and reason."""
    from tidegate.sink import quarantine

    with _reported():
        place = place_of(data_dir, changefeed_id, namespace, target, name, folder)
        found = filter(Wanted(table, topic), quarantine.entries(place.file))
        if as_json:
            _each(found, limit, lambda kept: print(json.dumps(brief(kept), default=plain)))
            return
        rows: list[dict[str, Any]] = []
        more = _each(found, limit, lambda kept: rows.append(brief(kept)))
        if not rows:
            print(f"nothing is in quarantine: {escaped(str(place.file))}")
            return
        print_table(table_of(rows))
        if more:
            print(f"and {more:,} more; see --limit, --table and --topic")


def _each(found: Iterable[QuarantineLine], limit: int, do: Callable[[QuarantineLine], object]) -> int:
    """Call `do` with the first `limit` entries; returns how many more there are."""
    more = 0
    for at, kept in enumerate(found):
        if at < limit:
            do(kept)
        else:
            more += 1
    return more


@app.command()
def show(
    entry: Annotated[int, typer.Argument(min=1, help="Its number, as `list` shows it.")],
    data_dir: DataDirOption = None,
    changefeed_id: FeedOption = "",
    namespace: NamespaceOption = "default",
    target: TargetOption = "",
    name: NameOption = "",
    folder: FolderOption = None,
    most: Annotated[
        int, typer.Option("--bytes", min=16, help="The most bytes of each image that are shown.")
    ] = 1024,
    as_json: JsonOption = False,
) -> None:
    """Show one entry: its position, the reason, its bytes or its row.

    --json has all of its bytes, in Base64.
    """
    from tidegate.sink import quarantine

    with _reported():
        place = place_of(data_dir, changefeed_id, namespace, target, name, folder)
        kept = next((one for one in quarantine.entries(place.file) if one.number == entry), None)
        if kept is None or kept.entry is None:
            raise InvalidInput(
                f"there is no entry {entry}",
                where=str(place.file),
                why=f"the line is torn: {kept.why}" if kept is not None else "the file has fewer lines",
                fix="choose one of `tidegate quarantine list`",
            )
        if as_json:
            print(json.dumps({**kept.entry, **brief(kept)}, default=plain))
        else:
            print("\n".join(described(kept, kept.entry, most)))


@app.command()
def replay(
    entries: Annotated[
        list[int] | None, typer.Argument(help="Their numbers, as `list` shows them; none: all.")
    ] = None,
    data_dir: DataDirOption = None,
    changefeed_id: FeedOption = "",
    namespace: NamespaceOption = "default",
    target: TargetOption = "",
    name: NameOption = "",
    folder: FolderOption = None,
    source: Annotated[
        str, typer.Option(help="For a consumer: its --source, which says how messages are written.")
    ] = "",
    time_zone: Annotated[str, typer.Option(help="For a consumer: its --time-zone.", show_default=False)] = "",
    table: TableOption = "",
    topic: TopicOption = "",
    limit: LimitOption = 50,
    sql: Annotated[
        Path | None,
        typer.Option(
            help="For a consumer of a database: a new file for SQL that writes the good rows by hand."
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", hidden=True)] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_LINES)] = False,
) -> None:
    """Decode entries again with this release, and show what they are.

    An entry that is still bad is shown with the reason. A changefeed's rows are decoded with the tables that
    its capture knows. A consumer's messages are decoded as --source says, and rows with the target's tables
    as they are now. Nothing is written to the target.
    """
    from tidegate.sink import quarantine

    with _reported():
        if apply:
            raise _unsafe()
        place = place_of(data_dir, changefeed_id, namespace, target, name, folder)
        wanted = Wanted(table, topic, frozenset(entries or ()))
        found = filter(wanted, quarantine.entries(place.file))
        replayed = of_capture(place.data_dir) if place.data_dir else of_consumer(place, source, time_zone)
        counts, missing = {True: 0, False: 0}, set(wanted.numbers)
        with statements(sql, place) as write:

            def one(kept: QuarantineLine) -> None:
                outcome = replayed(kept)
                missing.discard(kept.number)
                counts[outcome.outcome.good] += 1
                write(kept, outcome)
                print(as_json_line(kept, outcome.outcome) if as_json else in_words(kept, outcome.outcome))

            more = _each(found, limit, one)
        if missing and not more:
            raise InvalidInput(
                f"there is no entry {', '.join(map(str, sorted(missing)))}",
                where=str(place.file),
                fix="choose some of `tidegate quarantine list`",
            )
        if not as_json:
            print("\n".join(summary(counts, more, place, sql)))


def _unsafe() -> InvalidInput:
    return InvalidInput(
        "--apply is refused: it might undo a newer change",
        why="a target does not keep the commit ts of its rows, and a later change of the same row may have "
        "been applied since, or be in quarantine, too",
        fix="leave --apply out; for a database, `--sql FILE` writes the statements for you to run after a "
        "look at the rows; Delta tables are made equal to the source by `tidegate verify --repair apply`",
    )


if __name__ == "__main__":
    app()
