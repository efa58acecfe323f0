"""One changefeed from event store to sink: start reading here.

    python -m tidegate.pipeline.job SPEC_JSON

Spark starts the workers, a job of one task each, and keeps them. They ask the driver for work
(`pipeline.host`), which is descriptors of key ranges, open the segments, decode, dispatch, encode and
deliver. Nothing here handles a single row.

    Backlog (span, after, upto)  ->  deliver: read > mount > split > dispatch > encode > sink
                                                               -> reports -> control process

A streaming query, or a job for each batch, would cost tens of milliseconds a batch and give nothing that is
missing here: offsets, admission and restart are ours, and progress lies in the sink. A feed that begins with
an initial load delivers that first, in jobs (`pipeline.load`).

Exactly-once: a new incarnation first fences every writer that any incarnation has had, then reads the
progress that was committed with the rows, and starts there. Any failure ends the process; the supervisor
starts the next.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from pyspark.sql import SparkSession

from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.ipc import ControlClient
from tidegate.model.progress import outlived, span_key, span_progress
from tidegate.model.reports import Failed, PipelineHello, Started
from tidegate.pipeline.ahead import Ahead
from tidegate.pipeline.deliver import deliver
from tidegate.pipeline.feed import Barrier, DurableBefore, FeedSpec
from tidegate.pipeline.host import Host
from tidegate.pipeline.load import InitialLoad
from tidegate.pipeline.work import Task
from tidegate.spark.session import open_session

DAEMON: Final = "tidegate.pipeline.daemon"


@dataclass(frozen=True, slots=True)
class Begin:
    """What an incarnation found durable when it had fenced those before it."""

    starts: dict[str, int]
    """Up to where each span is durable."""
    records: Mapping[str, bytes]
    """All that the sink keeps, by key (`model.progress`)."""


def begin(spec: FeedSpec) -> Begin:
    """Fence every older writer, then read what is durable: it cannot grow any more."""
    return resume(spec, spec.sink.fence(spec.writers, spec.prove))


def resume(spec: FeedSpec, records: Mapping[str, bytes]) -> Begin:
    """Where to go on, by what is durable; what of it lies beyond is noted for the workers
    (`FeedSpec.durable_file`).
    """
    starts = dict(Barrier.load(spec.feed_dir / "barrier.json").spans)
    own = {span_key(span, spec.rules) for span in starts}
    ahead = Ahead.of(records, spec.instance, own, min(starts.values(), default=0))
    ours = span_progress(records, spec.instance, spec.rules)
    for span, progress in ours.items():
        starts[span] = max(starts.get(span, 0), progress.ts)
    begun = {span: p.position for span, p in ours.items() if p.position and p.ts == starts[span]}
    spec.durable_file.write_text(json.dumps(DurableBefore(begun, ahead).to_json()))
    return Begin(starts, records)


def stream(
    spark: SparkSession,
    spec: FeedSpec,
    path: Path,
    starts: Mapping[str, int],
    control: ControlClient,
    task: Task = deliver,
) -> NoReturn:
    """Deliver whatever comes, from `starts` on, until something fails."""
    workers = spec.sink.describe().at_once(tasks(spark))
    Host(spec, starts, control.send).run(spark.sparkContext, workers, str(path), task)


def tasks(spark: SparkSession) -> int:
    """How many work at once: one a core; more only cost scheduling."""
    return max(1, int(spark.sparkContext.defaultParallelism))


def run(path: Path, spark_master: str = "local[*]") -> None:
    """Run until the process is told to end or something fails."""
    spec = FeedSpec.load(path)
    control = ControlClient(spec.socket_path, PipelineHello(spec.changefeed, spec.incarnation, os.getpid()))
    try:
        # The JVM takes seconds to start: fence meanwhile.
        found: list[Begin | TidegateError] = []
        fencing = threading.Thread(target=_note, args=(found, spec))
        fencing.start()
        spark = open_session(f"tidegate {spec.changefeed}", spark_master, spec.work_dir, DAEMON)
        fencing.join()
        begun = found[0]
        if isinstance(begun, TidegateError):
            raise begun
        signal.signal(signal.SIGTERM, _stop)
        control.send(Started(begun.starts, outlived(begun.records, spec.instance, spec.rules)))
        if spec.loads:
            InitialLoad(spark, spec, str(path), control).run(begun.records)
        stream(spark, spec, path, begun.starts, control)
    except Exception as error:
        control.send(failure(error))
        raise


def _note(found: list[Begin | TidegateError], spec: FeedSpec) -> None:
    try:
        found.append(begin(spec))
    except TidegateError as error:
        found.append(error)


def _stop(number: int, frame: FrameType | None) -> None:
    # Leave the interpreter at once: stopping Spark in order takes seconds, and nothing needs it. What was
    # not committed is written again by the next incarnation.
    os._exit(0)


def rendered(text: str) -> dict[str, str]:
    """The parts of the error that a task raised, from the trace that Spark made of it; else its end."""
    found = re.search(
        r"tidegate(?:\.\w+)+: (?P<what>.+)(?:\n  where: (?P<where>.+))?(?:\n  why:   (?P<why>.+))?"
        r"(?:\n  to do: (?P<fix>.+))?",
        text,
    )
    if found is not None:
        return {name: part or "" for name, part in found.groupdict().items()}
    return {"what": "A task of the pipeline failed.", "where": "", "why": text[-4000:], "fix": ""}


KINDS = {kind.__name__: kind for kind in (Fatal, Fenced, Retryable)}


def failure(error: Exception) -> Failed:
    """The error as the control process wants it; a task's error comes as text through Spark."""
    if isinstance(error, TidegateError):
        return replace(Failed.of(error), retry=isinstance(error, Retryable | Fenced), kind="")
    text = str(error)
    named = next((name for name in KINDS if f"tidegate.errors.{name}" in text), None)
    return Failed(**rendered(text), retry=named != "Fatal")


if __name__ == "__main__":
    run(Path(sys.argv[1]), *sys.argv[2:])
