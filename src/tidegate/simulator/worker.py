"""A worker: the process that delivers for one incarnation, as in `pipeline.worker.begin` and
`pipeline.worker.deliver`.

    fence earlier writers -> prove -> read progress -> take the slot -> prove -> [deliver, commit, report] ...
                                                          ^-- fenced before a commit, and proven again --+

A worker reads from the bounds file of its incarnation up to which ts it may deliver. If its capture's control
process dies, it may continue up to that bound until it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.control.barrier import SpanTask
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.metadata import grant_key
from tidegate.errors import Fenced, Retryable, TidegateError
from tidegate.model.reports import Durable, Failed, Started
from tidegate.model.timestamp import Timestamp
from tidegate.simulator.checks import Writer
from tidegate.simulator.etcd import EtcdClient
from tidegate.simulator.network import SINK
from tidegate.simulator.sink import Record, RecordKind
from tidegate.simulator.upstream import View
from tidegate.simulator.virtual_time import Process, Signal, Steps
from tidegate.simulator.world import CLUSTER, FEED, World

CALL_S: Final = 15.0
"""How long a worker waits for one answer of the sink."""
IDLE_S: Final = 1.0
"""How often a worker without work looks for work if it is not woken."""
BATCH_ROWS: Final = 40
"""The most rows of one transaction."""
PRODUCE_S: Final = (0.002, 0.04)
"""How long it takes to decode and send them, at least and at most."""

Report = Started | Durable | Failed


@dataclass(slots=True)
class BoundsFile:
    """The bounds of an incarnation, as its control process last wrote them."""

    bound: Timestamp = 0
    spans: Mapping[str, SpanTask] = field(default_factory=dict)
    """The tables to deliver. `start_ts` of each is the ts up to which it is durable."""


class Worker:
    """One incarnation on one capture."""

    def __init__(
        self,
        world: World,
        capture: str,
        view: View,
        grant: Grant,
        bounds: BoundsFile,
        say: Callable[[int, Report], None],
        in_transaction: Callable[[], None],
    ) -> None:
        """`say`: reports to the control process, if it lives. `in_transaction`: called between the rows of a
        transaction and its commit.
        """
        self.capture, self.grant, self.bounds = capture, grant, bounds
        self.process = Process(f"{capture}'s worker")
        self.epoch = 0
        """The epoch of its writer at the sink."""
        self.writes: Writer | None = None
        """Its writer. None while it may not write."""
        self._world, self._view, self._say = world, view, say
        self._in_transaction = in_transaction
        self.wake = Signal(world.time)
        self._client = EtcdClient(world.etcd, world.network, self.process, capture)
        self._ranges: tuple[GrantedRange, ...] = grant.ranges
        self._at: dict[str, Timestamp] = {}
        """The commit ts up to which each table's rows are downstream."""

    def start(self, after_s: float) -> None:
        """Begin after `after_s` seconds, when the application has started."""
        self._world.time.after(after_s, self._world.time.spawn, self.process, self._run())

    def _run(self) -> Steps[None]:
        try:
            yield from self._begin()
            while True:
                yield from self._deliver()
        except TidegateError as error:
            self._world.note(
                self.capture, f"worker of incarnation {self.grant.incarnation} ends: {error.what}"
            )
            self.writes = None
            self._report(Failed.of(error))

    def _report(self, report: Report) -> None:
        self._say(self.grant.incarnation, report)

    # --- the beginning -------------------------------------------------------------------------------

    def _begin(self) -> Steps[None]:
        world, sink, off = self._world, self._world.sink, self._world.off
        others = [*self.grant.givers, *([self.capture] if "own_fence" not in off else [])]
        # Before the progress is read: while an earlier writer can still commit, the progress may rise after
        # it was read, and the rows between would be written twice.
        for writer in others:
            yield from self._call(sink.initialise, writer)
        # The fences took time. If the grant has changed meanwhile, this worker may have fenced later writers,
        # which take their slot again, and must not write itself.
        yield from self._prove()
        # After all fences, because an open transaction of a giver would hide committed progress behind it.
        progress: dict[str, Timestamp] = yield from self._call(sink.progress)
        yield from self._take_slot()
        if "records" in off:
            progress = {}
        world.checks.starts_at(str(self.writes), progress.items())
        self._at = progress
        self._report(Started(progress))
        world.note(self.capture, f"worker of incarnation {self.grant.incarnation} delivers")

    def _take_slot(self) -> Steps[None]:
        """Initialise the writer, and check the grant after that: `sink.base` says why in this order."""
        # Until the grant is proven again: the checks count a writer with `writes` as one that may write.
        self.writes = None
        self.epoch = yield from self._call(self._world.sink.initialise, self.capture)
        yield from self._prove()
        writer = Writer(self.capture, self.grant.incarnation, self.grant.token, self._ranges)
        # Another writer may have taken the id while etcd answered. Then this one begins only to be fenced.
        if self._world.sink.accepts(self.capture, self.epoch):
            self._world.checks.begins(writer, self._world.live_writers())
        self.writes = writer

    def _prove(self) -> Steps[None]:
        key = grant_key(CLUSTER, FEED, self.capture)
        found = yield from self._client.read(self._world.etcd.get, key)
        stored = Grant.from_bytes(found.value) if found is not None else None
        if not self.grant.is_proven_by(stored):
            raise Fenced("another incarnation writes now", where=self.capture)
        self._ranges = stored.ranges if stored is not None else ()

    def _call(self, work: Callable[..., Any], *args: Any) -> Steps[Any]:
        network = self._world.network
        found = yield from network.call(self.process, self.capture, SINK, lambda: work(*args), CALL_S)
        return found

    # --- delivery ------------------------------------------------------------------------------------

    def _deliver(self) -> Steps[None]:
        records = self._due()
        if not records:
            self.wake.clear()
            yield self.wake.wait(IDLE_S)
            return
        sink, writer = self._world.sink, self.capture
        try:
            yield from self._call(sink.produce, writer, self.epoch, records)
        # Rows that are not committed are due again, so nothing is lost. The fence may have been the sink's
        # timeout, or it was meant for an earlier writer with this id. If it was meant for this one, its grant
        # was replaced, and `_prove` ends it.
        except Fenced:
            yield from self._prove()
            yield from self._take_slot()
            return
        self._in_transaction()
        yield self._world.time.rng.uniform(*PRODUCE_S) * self._world.network.slow.get(SINK, 1.0)
        try:
            yield from self._call(sink.commit, writer, self.epoch, self.writes)
        except Fenced as error:
            yield from self._prove()
            raise Retryable("the slot was taken while its transaction was being committed") from error
        reached = {record.table: record.ts for record in records}
        # Only after the commit: rows of an aborted transaction are due again.
        self._at |= reached
        self._world.timeline.counts["transactions"] += 1
        self._report(Durable(self.grant.token, reached, {"rows": len(records)}))

    def _due(self) -> list[Record]:
        """The next rows of all tables that the worker may write, up to BATCH_ROWS."""
        upstream, view, found = self._world.upstream, self._view, list[Record]()
        stored = "stored" not in self._world.off
        for name, task in self.bounds.spans.items():
            if not any(one.id.covers(task.span) for one in self._ranges):
                continue
            # The record of progress may be missing, or may be older than the stored checkpoint.
            after = max(self._at.get(name, 0), task.start_ts if stored else 0)
            upto = min(self.bounds.bound, view.reach(name)) if name in view.ready_at else 0
            rows = upstream.tables[name].between(after, upto)[: BATCH_ROWS - len(found)]
            found += (Record(RecordKind.ROW, name, ts) for ts in rows)
        return found
