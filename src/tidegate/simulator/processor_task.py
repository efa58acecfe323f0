"""The loop around the machine `control.processor` in virtual time. It follows `server.processor.processor`.

messages, reports, resolved ts --> Processor --> messages to the owner, the bounds file, a worker
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import orjson

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.grants import Grant
from tidegate.control.messages import FROM_OWNER, Dispatch, Header, ProcessorStatus, Wish, parse
from tidegate.control.metadata import grant_key
from tidegate.control.processor import Goal, Processor
from tidegate.errors import Retryable, TidegateError
from tidegate.model.reports import Durable, Failed, Started
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.server.captures.message_router import Box
from tidegate.simulator.virtual_time import Signal, Steps, Task
from tidegate.simulator.worker import BoundsFile, Report, Worker
from tidegate.simulator.world import CLUSTER, FEED, INSTANCE

if TYPE_CHECKING:
    from tidegate.simulator.control_process import Control

REST_S: Final = 1.0
"""How long it waits if nothing happens. The machine repeats its messages every few seconds."""
WEIGH_S: Final = 10.0
"""How often loads are measured."""
KNOWN_S: Final = 0.2
"""How often a start checks whether the catalogue has reached the checkpoint."""
FILE_S: Final = 0.01
"""How long the bounds file takes to be written. Nothing waits for it, as in `server.processor.reader_bounds`.
"""
REPORT_S: Final = (0.0002, 0.003)
"""How long a worker's report takes to its control process, at least and at most."""


class ProcessorTask:
    """The changefeed on one capture, from the owner's first message on."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._world, self._view = control.world, control.machine.view
        self._time = control.world.time
        header = Header(CLUSTER, str(FEED), "", 0, control.capture, control.epoch, 0)
        self.machine = Processor(header, "", 4)
        self.wake = Signal(self._time)
        self.box = Box(self.wake.set)
        self._goal: Goal | None = None
        self._work: Task | None = None
        self._failure: TidegateError | None = None
        self._over = self._ready = False
        self._ranges: tuple[Span, ...] = ()
        self._coming: tuple[Span, ...] = ()
        self._worker: Worker | None = None
        self._bounds = BoundsFile()
        self._weighed_at = float("-inf")
        self._rows = 0

    def run(self) -> Steps[None]:
        """Run as long as the control process lives."""
        while True:
            self._step()
            yield self.wake.wait(REST_S)
            self.wake.clear()

    # --- what the owner wants ------------------------------------------------------------------------

    def _step(self) -> None:
        machine = self.machine
        for data in self.box.take():
            machine.receive(parse(orjson.loads(data), FROM_OWNER))
        dispatch = machine.dispatch
        if dispatch is not None and (goal := Goal.of(dispatch)) != self._goal:
            if self._work is not None:
                # The work for the earlier goal is abandoned wherever it is, because `_reach` starts from any
                # state.
                self._work.cancel()
            self._goal, self._failure, self._over, self._ready = goal, None, False, False
            self._work = self._time.spawn(self._control.process, self._reach(dispatch))
        if self._ready and self._failure is None:
            self._tick()
        if self._failure is not None and not self._over:
            if self._work is not None:
                self._work.cancel()
            self._end_worker()
            machine.failed(Failed.of(self._failure))
            self._over = True
        machine.ready = self._control.machine.application_at <= self._time.now
        self._measure_loads()
        for said in machine.tick(self._control.clock.monotonic()):
            self._control.router.to_owner(said)

    def _reach(self, dispatch: Dispatch) -> Steps[None]:
        """Bring the processor to the state that the Dispatch asks for, from any earlier state."""
        try:
            self._end_worker()
            if dispatch.wish is Wish.RUN:
                yield from self._open(dispatch)
                yield from self._start(dispatch)
            else:
                # Only after the worker has ended, because the owner may then give its ranges to others.
                self.machine.given_up()
                if dispatch.wish is Wish.PREPARE:
                    self.wake.set()
                    yield from self._open(dispatch)
                else:
                    self._close()
        except TidegateError as error:
            self._fail(error)
        self.wake.set()

    def _open(self, dispatch: Dispatch) -> Steps[None]:
        """Open tables and DDL at the stored checkpoint, unless they are open for the same ranges."""
        machine, ranges = self.machine, tuple(one.id for one in dispatch.ranges)
        # If DDL below the new checkpoint is not known yet, tables that it adds or removes would be missed.
        same = machine.spans.is_open and ranges == self._ranges
        if same and machine.ddl.known >= dispatch.checkpoint:
            machine.passed()
            machine.raise_to(dispatch.checkpoint)
            machine.confirm()
            self._ready = True
            return
        machine.close()
        self._ranges = ranges
        while self._view.resolved_ts < dispatch.checkpoint:
            yield KNOWN_S
        known, upstream = self._view.resolved_ts, self._world.upstream
        tasks = upstream.tasks_at(dispatch.checkpoint)
        machine.open(dispatch.checkpoint, tasks, self._ddl(dispatch.checkpoint, known), known)
        self._ready = True

    def _ddl(self, after: Timestamp, upto: Timestamp) -> list[DdlBatch]:
        """The DDL in (after, upto] that this capture's catalogue has."""
        found = self._world.upstream.ddl(after, upto)
        lost_after, lost_upto = self._control.machine.lost_ddl
        return [batch for batch in found if not lost_after < batch.finished_ts <= lost_upto]

    def _start(self, dispatch: Dispatch) -> Steps[None]:
        """Read the grant, then begin a worker."""
        control, world = self._control, self._world
        key = grant_key(CLUSTER, FEED, control.capture)
        found = yield from control.client.read(world.etcd.get, key)
        grant = Grant.from_bytes(found.value) if found is not None else None
        # The Dispatch is late, because other grants were stored meanwhile. Their own Dispatch follows.
        if grant is None or (grant.instance, grant.incarnation) != (INSTANCE, dispatch.incarnation):
            raise Retryable("the changefeed's grant is not the dispatched one", where=control.capture)
        # A new object. The earlier worker may be stopped and continue later, and must not see the bounds of
        # this incarnation.
        self._bounds = BoundsFile(self.machine.reach, self.machine.spans.tasks)
        machine = control.machine
        self._worker = Worker(
            world,
            control.capture,
            self._view,
            grant,
            self._bounds,
            machine.reported(control),
            machine.in_transaction,
        )
        control.machine.begin_worker(self._worker)

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._control.machine.end_worker(worker)

    def _close(self) -> None:
        self.machine.close()
        self._ranges = ()
        self._hold({})

    def _fail(self, error: TidegateError) -> None:
        if self._failure is None:
            self._failure = error
        self.wake.set()

    # --- what the worker says ------------------------------------------------------------------------

    def receive(self, incarnation: int, report: Report) -> None:
        """Take a worker's report. A report of an old incarnation is ignored."""
        if self._worker is None or incarnation != self._worker.grant.incarnation:
            return
        match report:
            case Started(spans):
                self.machine.started(incarnation, spans)
            case Durable(token, spans, stats):
                self.machine.report(token, incarnation, spans)
                self._rows += stats.get("rows", 0)
                self.machine.status = ProcessorStatus(rows=self._rows, last_synced_ts=max(spans.values()))
            case Failed():
                self._fail(report.error())
        self.wake.set()

    def lost_worker(self, worker: Worker) -> None:
        """A worker's process is gone."""
        if worker is self._worker:
            self._fail(Retryable("the pipeline has ended", where=self._control.capture))

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        machine, view, upstream = self.machine, self._view, self._world.upstream
        if not machine.spans.is_open:
            return
        assert machine.dispatch is not None
        if view.resolved_ts > machine.ddl.known:
            machine.learn(self._ddl(machine.ddl.known, view.resolved_ts), view.resolved_ts)
        machine.passed()
        coming = self._prepare_coming(machine.dispatch)
        self._hold(coming)
        frontier = view.frontier(self._time.now)
        moved = machine.spans.beyond(frontier, machine.bound)
        firsts = [(upstream.tables[name].first_after(after), upto) for name, after, upto in moved]
        has_rows = np.array([0 < first <= upto for first, upto in firsts], bool)
        undelivered = bool(has_rows.any())
        # No row is between, so the progress needs no transaction.
        machine.idle(moved.only(~has_rows))
        machine.resolve(frontier, machine.spans.ids - frontier.keys())
        if self._coming:
            machine.received = min((frontier.get(name, 0) for name in coming), default=machine.ddl.known)
        change = self._bounds, machine.reach, machine.spans.tasks
        self._time.within(self._control.process, FILE_S, self._write_bounds, *change, undelivered)

    def _prepare_coming(self, dispatch: Dispatch) -> dict[str, None]:
        """The tables of the ranges that the processor may get next."""
        if (ranges := tuple(dispatch.coming)) != self._coming:
            self._coming, self.machine.received, self.machine.coming = ranges, 0, ranges
        tasks = self._world.upstream.tasks_at(dispatch.checkpoint) if ranges else []
        found = (task for task in tasks if any(one.covers(task.span) for one in ranges))
        return {task.id: None for task in found if not self.machine.holds(task)}

    def _hold(self, coming: dict[str, None]) -> None:
        waiting = (task.id for batch in self._waiting for task in batch.added if self.machine.holds(task))
        self._view.hold([*self.machine.spans.ids, *waiting, *coming], self._time.now, self._time.rng)

    @property
    def _waiting(self) -> list[DdlBatch]:
        dispatch = self.machine.dispatch
        if not self.machine.ddl.waiting or dispatch is None:
            return []
        return self._ddl(dispatch.checkpoint, self.machine.ddl.known)

    def _write_bounds(
        self, file: BoundsFile, bound: Timestamp, spans: dict[str, SpanTask], undelivered: bool
    ) -> None:
        """Let the worker go further, unless its incarnation has ended."""
        if file is self._bounds:
            file.bound, file.spans = bound, spans
            if undelivered and self._worker is not None:
                self._worker.wake.set()

    def _measure_loads(self) -> None:
        now = self._time.now
        if now - self._weighed_at >= WEIGH_S and self.machine.spans.is_open:
            self._weighed_at = now
            tables, spans = self._world.upstream.tables, sorted(self.machine.spans.ids)
            self.machine.loads = {name: tables[name].load for name in spans if tables[name].load}
