"""One changefeed from event store to sink: start reading here.

    python -m tidegate.pipeline.job SPEC_JSON

A loop of Spark jobs. Spark schedules descriptors of key ranges; the tasks open the segments, decode,
dispatch, encode and deliver. Nothing here handles a single row.

    Backlog (span, after, upto)  ->  deliver: read > mount > split > dispatch > encode > sink
                                                               -> reports -> control process

A streaming query would cost three times the CPU a batch and give nothing that is missing here: offsets,
admission and restart are ours, and progress lies in the sink. A feed that begins with an initial load
delivers that first, in the same way (`pipeline.load`).

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
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from pyspark.sql import SparkSession

from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.ipc import ControlClient
from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.progress import outlived, span_key, span_progress
from tidegate.model.reports import Durable, Failed, PipelineHello, Started
from tidegate.pipeline.ahead import Ahead
from tidegate.pipeline.backlog import Backlog
from tidegate.pipeline.deliver import Report, deliver
from tidegate.pipeline.feed import Barrier, DurableBefore, FeedSpec
from tidegate.pipeline.load import InitialLoad
from tidegate.pipeline.ranges import Range
from tidegate.pipeline.reached import herald
from tidegate.spark.session import open_session

Deliver = Callable[[str, list[Range]], list[Report]]
"""(path of the spec, ranges) -> what became of each: what a task does."""


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
    task: Deliver = deliver,
) -> NoReturn:
    """Deliver batch after batch from `starts` on, until something fails."""
    context = spark.sparkContext
    backlog = Backlog(spec, starts, tasks(spark))
    work = partial(task, str(path))
    while True:
        shares = backlog.take()
        began = time.monotonic()
        reports: list[Report] = context.parallelize(shares, len(shares)).flatMap(work).collect()
        control.send(durable(spec, reports, time.monotonic() - began))


def tasks(spark: SparkSession) -> int:
    """Tasks per batch: one a core; more only cost scheduling."""
    return max(1, int(spark.sparkContext.defaultParallelism))


def durable(spec: FeedSpec, reports: list[Report], batch_s: float) -> Durable:
    """What a batch tells the control process: what has become durable, and what it did."""
    names = ("rows", "messages", "bytes", "quarantined", *INTEGRITY_OUTCOMES, "misencoded")
    stats = {name: sum(getattr(one, name) for one in reports) for name in names}
    times = {"batch_ms": round(batch_s * 1000), "lag_ms": max(one.lag_ms for one in reports)}
    return Durable(spec.token, {one.span: one.ts for one in reports}, stats | times)


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
        # In the midst of a task, which counts what it did at its end.
        herald(spec.reached_dir, lambda spans: control.send(Durable(spec.token, spans)))
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
