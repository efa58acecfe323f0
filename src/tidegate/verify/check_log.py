"""Replays a recorded log through the whole product, and checks its snapshots (`tidegate upstream check-log`).

It starts an upstream with a manual TSO and a capture as child processes, and loads the log. The consumer, in
this process, applies the topic up to each snapshot line. Then the target's tables are compared with what SQL
read from the real TiDB. It needs a Kafka broker; everything else is in a temporary folder that is removed at
the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidegate.codec import registry
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.job import run
from tidegate.consumer.reading.fetch_spark import DAEMON
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.settings import Settings
from tidegate.consumer.snapshots import open_snapshot, target_directory
from tidegate.consumer.sql_text import sql_rows
from tidegate.errors import Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.launcher import bound
from tidegate.mounter.schema_store import SchemaStore
from tidegate.spark.session import open_session
from tidegate.tidb import keys
from tidegate.workload.changelog import SnapshotLine, SnapshotTable, Txn, read_log, snapshot_diff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_S: Final = 10
CONSUMER_S: Final = 600


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one table at one snapshot line; without findings they are equal."""

    ts: int
    table: str
    rows: int
    findings: tuple[str, ...]
    virtual: tuple[str, ...] = ()
    """Virtual generated columns, which TiDB does not store and TiCDC does not send: not compared."""
    zero_dates: int = 0
    """How many zero and impossible dates there are: Delta cannot hold them, so they are NULL at the
    target."""


def check_log(
    file: Path,
    target: str,
    kafka: str,
    *,
    protocol: str,
    until: int | None,
    every: int,
    ids_per_stripe: int = 0,
    spark: SparkSession | None = None,
) -> Iterator[Verdict]:
    """Run the log through the product. Yields a verdict for each table of every `every`-th snapshot, and of
    the last.

    Tables without a primary or not-null unique key are included, under `force-replicate`, if the protocol can
    carry them. `ids_per_stripe`: the changefeed's setting. `spark`: a session to use; None starts one and
    ends it. Raises Retryable when a child process ends or does not become ready, or the target does not reach
    a snapshot in CONSUMER_S.
    """
    lines = list(read_log(file, until=until))
    base_ts = next(line.commit_ts for line in lines if isinstance(line, Txn))
    snapshots = [line for line in lines if isinstance(line, SnapshotLine)]
    # Counted from the end, so that the last snapshot is always compared.
    chosen = snapshots[::-1][::every][::-1]
    # Some protocols have watermarks only with an option, and without watermarks nothing is applied.
    codec = registry.codec_of(registry.codec_options({"protocol": protocol}))
    unmarked = codec.unmarked
    extension = f"&{unmarked.option}" if unmarked is not None else ""
    name = f"check-{file.name.split('.')[0]}-{os.urandom(4).hex()}"
    topic = f"kafka://{kafka}/{name}?protocol={protocol}{extension}"
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-check-")))
        run = ["upstream", "run", "--data-dir", str(work / "upstream"), "--pd", "127.0.0.1:0"]
        pd = stack.enter_context(_serving(work, [*run, "--tso", "manual", "--json"]))["pd"]
        _finish(work, ["upstream", "load", "--pd", pd, str(file), "--until", str(base_ts)])
        serve = ["server", "--pd", pd, "--data-dir", str(work / "capture"), "--addr", "127.0.0.1:0", "--json"]
        server = stack.enter_context(_serving(work, serve))["addr"]
        settings = work / "changefeed.toml"
        # Rows of tables without a key need the old values of updates; otherwise these tables are left out.
        whole = not codec.lacks_old(codec.options())
        keyless = "force-replicate" if whole else "ignore-ineligible-table"
        settings.write_text(f"{keyless} = true\n[tidegate]\nids-per-stripe = {ids_per_stripe}\n")
        create = ["changefeed", "create", "--server", server, "-c", "check", "--sink-uri", topic]
        _finish(work, [*create, "--start-ts", str(base_ts), "--config", str(settings)])
        limit = ["--until", str(until)] if until is not None else []
        _finish(work, ["upstream", "load", "--pd", pd, str(file), *limit])
        session = spark or stack.enter_context(_session(work))
        for snapshot in chosen:
            _consume(topic, target, snapshot.ts, session, work)
            yield from judge(target, snapshot, virtual_columns(pd, snapshot.ts))


def _consume(topic: str, target: str, until: int, spark: SparkSession, work: Path) -> None:
    deadline = time.monotonic() + CONSUMER_S
    settings = Settings(topic, target_directory(target), Mode.TRANSACTION, until)
    end = run(settings, lambda: time.monotonic() > deadline, Listener(), spark)
    if end.ts < until:
        raise Retryable(
            f"the target did not reach the snapshot at {until} in {CONSUMER_S} s",
            where=f"{topic}, applied up to {end.ts}",
            why=_tail(work / "server.log"),
        )


@contextmanager
def _session(work: Path) -> Iterator[SparkSession]:
    spark = open_session("tidegate check-log", "local[2]", work / "spark", DAEMON, log=work / "spark.log")
    try:
        yield spark
    finally:
        spark.stop()


def virtual_columns(address: str, ts: int) -> dict[str, frozenset[str]]:
    """By table, the generated columns that are computed at each read, in the source's schema at `ts`."""
    with PdClient(address) as pd:
        store = SchemaStore.from_meta(Snapshot(pd, ts).scan(keys.catalogue_span()), ts)
    found = {}
    for table in store.entries(ts):
        columns = [c for c in table.info()["cols"] or () if c.get("generated_expr_string")]
        found[table.name] = frozenset(c["name"]["O"] for c in columns if not c.get("generated_stored"))
    return found


def judge(target: str, snapshot: SnapshotLine, virtual: Mapping[str, frozenset[str]]) -> Iterator[Verdict]:
    """Compare every table of the snapshot line with the target's snapshot at exactly its ts."""
    held = open_snapshot(target, snapshot.ts)
    for name in sorted(snapshot.tables.keys() | held.tables.keys()):
        expected = snapshot.tables.get(name)
        findings: Sequence[str]
        unsent, zeros = virtual.get(name, frozenset()), 0
        if expected is None:
            findings = ["the target has a table that the source has not"]
        elif name not in held.tables:
            findings = ["the target lacks this table"]
        elif held.ts != snapshot.ts:
            findings = [f"the target's snapshot is at {held.ts}"]
        else:
            rows = held.tables[name].to_arrow()
            # A text column holds any date as it is written, also one that is no day.
            exact = frozenset(field.name for field in rows.schema if pa.types.is_string(field.type))
            expected, zeros = as_delta_holds(expected, unsent, exact)
            findings = _differences(expected, rows)
        count = expected.count if expected else 0
        yield Verdict(snapshot.ts, name, count, tuple(findings), tuple(sorted(unsent)), zeros)


def as_delta_holds(
    expected: SnapshotTable, virtual: frozenset[str], exact: frozenset[str] = frozenset()
) -> tuple[SnapshotTable, int]:
    """The rows that SQL saw, as a Delta table can hold them: no virtual columns, and NULL for dates that are
    no days; and how many such dates there were.

    `exact`: columns that are text at the target, dates of its key included. A big table, of which the
    snapshot has only sums, stays as it is.
    """
    if expected.rows is None:
        return expected, 0
    kept = [i for i, name in enumerate(expected.columns) if name not in virtual]
    dates = [
        expected.types[i].partition("(")[0] in ("date", "datetime", "timestamp")
        and expected.columns[i] not in exact
        for i in kept
    ]
    rows, zeros = [], 0
    for row in expected.rows:
        cells = [row[i] for i in kept]
        for at, cell in enumerate(cells):
            if dates[at] and isinstance(cell, str) and not _is_date(cell):
                cells[at], zeros = None, zeros + 1
        rows.append(tuple(cells))
    columns, types = tuple(expected.columns[i] for i in kept), tuple(expected.types[i] for i in kept)
    return replace(expected, columns=columns, types=types, rows=tuple(rows)), zeros


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _differences(expected: SnapshotTable, rows: Any) -> list[str]:
    own = [name for name in rows.column_names if not name.startswith("_tidegate_")]
    if tuple(own) != expected.columns:
        return [f"columns are {', '.join(own)}; expected {', '.join(expected.columns)}"]
    return snapshot_diff(expected, sql_rows(rows.select(own), expected.types))


def _command(arguments: list[str]) -> list[str]:
    return bound([sys.executable, "-m", "tidegate", *arguments], signal.SIGTERM)


@contextmanager
def _serving(work: Path, arguments: list[str]) -> Iterator[dict[str, Any]]:
    """Run a child that serves until the end of the block; yields the members of its ready line."""
    log = work / f"{arguments[0]}.log"
    with log.open("ab") as errors:
        child = subprocess.Popen(_command(arguments), stdout=subprocess.PIPE, stderr=errors)
    try:
        assert child.stdout is not None
        yield _ready(child.stdout, arguments, log)
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _ready(lines: IO[bytes], arguments: list[str], log: Path) -> dict[str, Any]:
    for line in lines:
        members = json.loads(line)
        if isinstance(members, dict) and ("pd" in members or "addr" in members):
            return members
    raise Retryable(f"`tidegate {arguments[0]}` ended before it was ready", why=_tail(log))


def _finish(work: Path, arguments: list[str]) -> None:
    """Run a command to its end; Retryable with the end of its output when it fails."""
    log = work / "commands.log"
    with log.open("ab") as output:
        ended = subprocess.run(
            _command(arguments),
            stdout=output,
            stderr=output,
            timeout=CONSUMER_S,
            check=False,
        )
    if ended.returncode:
        what = f"`tidegate {' '.join(arguments[:2])}` failed with exit code {ended.returncode}"
        raise Retryable(what, why=_tail(log))


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
