"""The pipeline's task without a broker: everything up to encoded messages, which are counted and dropped.

`encode_and_count` has the signature of `tidegate.pipeline.worker.kept.deliver` and runs in the same jobs. It
handles a block with `deliver`'s own code. CPU seconds per stage are written to a file in the folder of the
feed's spec.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.stage_clock import StageClock

from tidegate.eventstore import reader
from tidegate.model.span import Span
from tidegate.pipeline.exchange.feed import Bounds
from tidegate.pipeline.exchange.work import NO_LEASE, Begin, Begun, Deliver, OnDurable, Report
from tidegate.pipeline.worker import deliver, kept, stages
from tidegate.pipeline.worker.access import Access
from tidegate.sink.base import Content
from tidegate.sink.kafka.slot import SlotWriter

PARTITIONS: Final = 3
CLOCK: Final = StageClock()


class NoBroker:
    """A writer whose transactions end at once."""

    lease = NO_LEASE
    is_due = False
    room = deliver.PIECE_BYTES * 64
    granted = (Span(b"", b""),)

    def write(self, contents: Sequence[Content]) -> None:
        """Take the messages and drop them."""

    def commit(self, progress: Mapping[str, bytes]) -> None:
        """Does nothing: nothing waits."""

    def abort(self) -> None:
        """Does nothing: no transaction is open."""

    def close(self) -> None:
        """Does nothing: nothing is open."""

    @contextmanager
    def writer(self) -> Iterator[NoBroker]:
        """Lend this writer."""
        yield self


def install() -> None:
    """Wrap the stages, once in each process."""
    if not CLOCK.seconds:
        CLOCK.seconds["tasks"] = 0.0
        modules: tuple[Any, Any] = (stages, reader)
        CLOCK.wrap_iterator(modules[1], "read", "read")
        CLOCK.wrap_iterator(modules[0], "mount_tiles", "mount")
        CLOCK.wrap(modules[0], "part_of", "dispatch")
        CLOCK.wrap(modules[0], "partition_block", "dispatch")
        CLOCK.wrap(modules[0], "encode_block", "encode")


def stages_file(spec: Path) -> Path:
    """The file where this worker process writes its seconds."""
    return spec.parent / f"stages-{os.getpid()}.json"


def encode_and_count(piece: Deliver, on_durable: OnDurable) -> list[Report]:
    """The task: takes ranges and returns reports, but delivers nothing."""
    install()

    def work(worker: deliver.Worker) -> list[Report]:
        reports: list[Report] = CLOCK.run("tasks", worker.deliver, list(piece.ranges), on_durable)
        return reports

    reports = kept.with_worker(piece, work, _without_broker)
    CLOCK.write(stages_file(Path(piece.spec)))
    return reports


def begin_without_broker(piece: Begin) -> Begun:
    """The begin of an incarnation: fences nothing, and finds nothing durable."""
    return Begun(Bounds.load(Path(piece.spec).parent / "bounds.json").spans)


def deliver_timed(piece: Deliver, on_durable: OnDurable) -> list[Report]:
    """`deliver` itself with a clock around its stages. `send` is the producer's part in this thread."""
    if not CLOCK.seconds:
        writer: Any = SlotWriter
        CLOCK.wrap(writer, "write", "send")
        CLOCK.wrap(writer, "commit", "send")
    install()
    reports: list[Report] = CLOCK.run("tasks", kept.deliver, piece, on_durable)
    CLOCK.write(stages_file(Path(piece.spec)))
    return reports


def _without_broker(access: Access) -> deliver.Worker:
    return deliver.Worker(access, lambda _: PARTITIONS, NoBroker())
