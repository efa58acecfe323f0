"""All incarnations in the application, from `begin` until it is certain that no process works for them.

    begin --> started --> [load] --> delivers --> end or fail --> its workers are asked to give up
              --> last pieces end, or their workers are killed --> on_over

An error in a piece ends the incarnation of that piece and no other. When an incarnation ends, its workers
are asked to give up their pieces, so that they do not wait for a sink any longer, and have `GRACE_S` to
report that. Those that do not are killed, and the host waits for their processes to end. Only then is
`on_over` called. The control process relies on it: no process writes for this incarnation any more, so the
next one may begin.

A worker that is killed costs more than its piece: Spark starts another process, and all changefeeds whose
writers it had open must open them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from tidegate.errors import Fatal, Fenced, TidegateError
from tidegate.model.reports import Durable, Failed, Loaded, Started
from tidegate.pipeline.exchange.work import Begun, Lease
from tidegate.pipeline.host.backlog import Backlog
from tidegate.pipeline.host.connected_worker import ConnectedWorker
from tidegate.pipeline.host.failures import failure, known
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.load import InitialLoad
from tidegate.pipeline.host.load_requests import LoadRequests
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.timetable import Timetable
from tidegate.pipeline.host.workforce import Workforce
from tidegate.sink.base import Description

GRACE_S: Final = 0.5
"""How long a worker may continue a piece of an incarnation that is over. One that waits for its sink
notices after 0.1 s that it is to give up, and waits for an abort for 0.1 s; the rest is for a machine on
which it has to wait for a core."""
FENCE_S: Final = 8.0
"""How long the end of an incarnation waits until an abandoned worker on another machine is fenced."""
FAILED_MAX: Final = 10_000
"""Changefeeds whose failures are counted. Beyond that the counts start again at 0."""

Over: TypeAlias = Callable[[Incarnation], None]


class Incarnations:
    """The incarnations that have begun and have not ended completely. Iterate under the host's lock.

    An incarnation ends with its first error. After `end` or `fail`, only that error is reported to the
    control process.
    """

    def __init__(
        self,
        threads: Threads,
        timetable: Timetable[Key],
        workforce: Workforce,
        requests: LoadRequests,
        cores: int,
        on_over: Over,
        *,
        elsewhere: bool,
    ) -> None:
        """`on_over`: called for each incarnation that has ended, once no process works for it. `elsewhere`:
        whether the workers are on other machines.
        """
        self._threads, self._changed = threads, threads.changed
        self._timetable, self._workforce, self._requests = timetable, workforce, requests
        self._cores, self._on_over, self._elsewhere = cores, on_over, elsewhere
        self._there: dict[Key, Incarnation] = {}
        self._failed: dict[str, int] = {}
        """The number of consecutive failures of each changefeed."""

    def __len__(self) -> int:
        return len(self._there)

    def __iter__(self) -> Iterator[Incarnation]:
        return iter(self._there.values())

    def get(self, key: Key) -> Incarnation | None:
        """The incarnation with this key, also while it ends."""
        return self._there.get(key)

    def resize(self, cores: int) -> None:
        """The number of the cluster's cores has changed."""
        with self._changed:
            self._cores = cores
            self._timetable.resize(cores)
            for one in self._there.values():
                one.limit_writers(cores)

    # --- its life

    def begin(self, one: Incarnation) -> None:
        """Have a worker fence earlier incarnations and read the progress, then deliver until it is over."""
        with self._changed:
            one.failures = self._failed.get(one.spec.changefeed, 0)
            one.limit_writers(self._cores)
            self._there[one.key] = one
            self._timetable.ask_begin(one.key, one.address, one.failures)
            self._changed.notify_all()
            # The incarnation is already known here, so a refusal goes through `_end` like any other
            # failure, and `on_over` is called for it.
            described = one.spec.sink.describe()
            if self._elsewhere and (described.here or not described.fenced_by):
                self.fail(one, _not_elsewhere(one, described))

    def started(self, one: Incarnation, begun: Begun) -> None:
        """A worker has fenced earlier writers and read their progress: start the load, or deliver."""
        # It ended while its worker began, and nothing may start for it any more.
        if one.over:
            return
        self._report(one, Started(begun.spans, begun.outlived))
        if one.spec.loads:
            one.loading = self._threads.start(
                f"load of {one.spec.changefeed}", partial(self._load, one, begun)
            )
        else:
            self._stream(one, begun)

    def durable(self, one: Incarnation, report: Durable) -> None:
        """Rows of it are durable. This resets the count of its changefeed's consecutive failures."""
        if not one.over:
            self._failed.pop(one.spec.changefeed, None)
            self._report(one, report)

    def end(self, key: Key) -> None:
        """End an incarnation; `on_over` is called when that is done. An unknown key has ended already."""
        with self._changed:
            one = self._there.get(key)
        if one is not None:
            self._end(one)

    def fail(self, one: Incarnation, error: TidegateError) -> None:
        """An incarnation has failed. Its later errors are ignored."""
        with self._changed:
            if one.over:
                return
            one.error = error
            name = one.spec.changefeed
            # The counts only order the next starts, so nothing is lost but that order.
            if len(self._failed) >= FAILED_MAX:
                self._failed.clear()
            self._failed[name] = self._failed.get(name, 0) + 1
        one.log(error.render())
        self._end(one)

    # --- for workers

    def with_secret(self, secret: str) -> Incarnation:
        """The incarnation with this secret, for a worker elsewhere. Raises Fenced when it is over."""
        with self._changed:
            for one in self._there.values():
                if one.secret == secret and not one.over:
                    return one
        raise Fenced("this incarnation of the changefeed is over")

    def holds(self, one: Incarnation, lease: Lease) -> bool:
        """Whether a worker still has this lease."""
        with self._changed:
            return one.leases.is_held(lease)

    def end_leases(self, worker: ConnectedWorker) -> None:
        """A worker is gone: free its slots. Under the lock."""
        for one in self._there.values():
            one.leases.end(worker)

    # --- the load, then the stream

    def _load(self, one: Incarnation, begun: Begun) -> None:
        """Run the load, in a thread of its own, and then deliver the stream."""
        try:
            ask, send = partial(self._requests.ask, one), partial(self._loaded, one)
            InitialLoad(one.spec, self._cores, ask, send).run(begun.loaded)
            self._stream(one, begun)
        except Exception as error:
            self.fail(one, known(error, "the initial load failed", one.spec.changefeed))

    def _loaded(self, one: Incarnation, report: Loaded) -> None:
        slowed = int(self._requests.throttle.share < 1.0)
        one.send(replace(report, state=replace(report.state, slowed=slowed)))

    def _stream(self, one: Incarnation, begun: Begun) -> None:
        with self._changed:
            one.backlog = Backlog(one.spec, begun.spans)
            self._changed.notify_all()

    # --- its end

    def _end(self, one: Incarnation) -> None:
        with self._changed:
            if one.over:
                return
            # Under one lock with the timetable, so that no piece is given out for it from here on.
            one.over, one.may_be_due = True, False
            self._timetable.over(one.key)
            self._changed.notify_all()
        # After `over` is set, so that no share is added behind it.
        self._requests.drop(one)
        if one.error is not None:
            self._report(one, failure(one.error))
        self._threads.start(f"end of {one.spec.changefeed}", partial(self._wait_and_end, one))

    def _wait_and_end(self, one: Incarnation) -> None:
        """Ask the workers that have a piece of it to give up, wait until none has one, and kill those that
        do not end by themselves.

        `on_over` comes last. Killing is enough for a process on this machine. A worker on another machine may
        still commit, so its writer is also fenced at the sink.
        """
        with self._changed:
            for each in self._workforce.busy_with(one):
                each.ask_to_give_up()
            self._changed.wait_for(lambda: not self._timetable.has_out(one.key), GRACE_S)
            # docs/guarantees.md#trouble-of-one-changefeed-does-not-spread-to-others: only workers with a
            # piece of this incarnation are killed.
            for each in self._workforce.busy_with(one):
                each.kill()
            # Without a limit: `on_over` promises that no process works for it, and a killed process ends.
            self._changed.wait_for(lambda: not self._timetable.has_out(one.key))
        if one.loading is not None:
            # It ends, because its waiting shares were dropped, and those that were out have come back.
            one.loading.join()
        if one.given_up:
            self._fence(one)
        with self._changed:
            self._timetable.forget(one.key)
            self._there.pop(one.key, None)
            # This one was ended on purpose. The next one is no retry, so it need not wait behind others
            # when it begins.
            if one.error is None:
                self._failed.pop(one.spec.changefeed, None)
            self._workforce.forget(one.key)
        self._on_over(one)

    def _fence(self, one: Incarnation) -> None:
        """Fence an abandoned worker at the sink: there may be no later incarnation that would fence it."""

        # docs/guarantees.md#a-worker-on-another-machine-that-was-given-up-writes-nothing-that-counts
        def fence() -> None:
            try:
                one.spec.sink.fence({one.spec.capture: one.spec.slots}, lambda: None)
            except Exception as error:
                why = known(error, "the sink cannot be fenced", one.spec.changefeed).render()
                one.log(f"a worker that was given up could not be fenced: {why}")

        thread = self._threads.start(f"fence of {one.spec.changefeed}", fence)
        # With a limit: `on_over` waits for it, and the sink may not answer for long.
        thread.join(FENCE_S)
        if thread.is_alive():
            one.log(f"a worker that was given up could not be fenced within {FENCE_S:.0f} s")

    def _report(self, one: Incarnation, report: Durable | Started | Failed) -> None:
        """Send a report to the control process. If that is gone, this process will end in a moment, too."""
        try:
            one.send(report)
        except (TidegateError, ValueError) as error:  # ValueError: too long a message
            if not isinstance(report, Failed):
                self.fail(
                    one, known(error, "the outcome of a piece of work is not known", one.spec.changefeed)
                )


def _not_elsewhere(one: Incarnation, sink: Description) -> Fatal:
    return Fatal(
        "this changefeed cannot be delivered by a Spark cluster",
        where=one.spec.changefeed,
        why="it writes to the capture's own disk" if sink.here else "nothing stops a writer of its sink",
        fix="run it on a capture with --spark-master local[*]",
    )
