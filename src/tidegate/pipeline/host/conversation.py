"""The host's side of the conversation with a worker, in one thread for each worker.

    a free worker <-- its piece, and GiveUp if its incarnation ends meanwhile
                  --> Reached, Alive ...      passed on, or counted as signs of life
                  --> Begun | Delivered | LoadDone | Failed, or its connection ends
                      the result of the piece is passed on; then the worker is free again, or gone

The messages are those of `work`; `worker` is the other side.
"""

from __future__ import annotations

import time

from tidegate.errors import Fenced, Retryable, TidegateError
from tidegate.model.reports import Durable, Failed
from tidegate.pipeline.exchange.work import Alive, Begin, Begun, Deliver, Delivered, Load, LoadDone, Reached
from tidegate.pipeline.host.connected_worker import ConnectedWorker, Dead, Work
from tidegate.pipeline.host.failures import known
from tidegate.pipeline.host.incarnation import Key
from tidegate.pipeline.host.incarnations import Incarnations
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.timetable import Timetable
from tidegate.pipeline.host.workforce import Workforce


class Conversation:
    """Handles each worker's pieces and passes on their results. Many threads call `serve_worker`."""

    def __init__(
        self,
        threads: Threads,
        timetable: Timetable[Key],
        workforce: Workforce,
        incarnations: Incarnations,
    ) -> None:
        self._changed, self._timetable = threads.changed, timetable
        self._workforce, self._incarnations = workforce, incarnations

    def serve_worker(self, worker: ConnectedWorker) -> None:
        """Send one worker its pieces, one after another, until its connection has ended or it was killed."""
        with self._changed:
            self._workforce.join(worker, time.monotonic())
        try:
            while True:
                with self._changed:
                    self._workforce.release(worker)
                    self._changed.notify_all()
                work = worker.pieces.get()
                if work is None or not self._run_piece(worker, work):
                    return
        finally:
            with self._changed:
                self._workforce.leave(worker)
                # Only here, where the process has ended or its line is closed: until then it may still write
                # in its slot.
                self._incarnations.end_leases(worker)
            worker.line.close()
            worker.process.close()

    def _run_piece(self, worker: ConnectedWorker, work: Work) -> bool:
        """Handle one piece from start to end. Returns whether the worker still lives.

        The order matters. The failure is reported first, so that no more work of the incarnation is given
        out. Then a killed process is waited for, because it may write until it has ended. `back` comes last,
        because after it the incarnation may end (`Incarnations`), which promises that no process works for
        it.
        """
        one = work.of
        error: TidegateError | None = None
        try:
            self._exchange(worker, work)
        except Dead as dead:
            with self._changed:
                worker.kill()
            error = worker.killed_for or Retryable(
                "a worker of the pipeline has ended", where=f"{worker.who}, with {work.words}", why=str(dead)
            )
        except Exception as raised:
            error = known(raised, "a piece of work failed", one.spec.changefeed)
        with self._changed:
            killed = worker.killed
            # A process on another machine may live on after its line is closed, so its writer is fenced
            # later.
            one.given_up |= killed and bool(worker.machine)
            # A worker that gives up has waited for its sink as one that is killed has, so its address is
            # neither proven nor in doubt for it.
            gave_up = one.over and isinstance(error, Fenced)
            if not killed and not gave_up:
                # After any other error the sink is not in doubt: it has answered, or was not needed.
                self._timetable.answered(one.key, well=not isinstance(error, Retryable))
            # Before `fail`, which kills the workers that still have a piece of this incarnation.
            worker.work = None
        if error is not None:
            work.answered(error)
            self._incarnations.fail(one, error)
        if killed:
            worker.process.wait()
        with self._changed:
            worker.finished(one, well=error is None and not one.over)
            # Rows may have arrived while the piece was out.
            if error is None and one.backlog is not None:
                one.may_be_due = not one.over
            self._timetable.back(one.key, work.kind)
            self._changed.notify_all()
        return not killed

    def _exchange(self, worker: ConnectedWorker, work: Work) -> None:
        """Send the piece, and pass on the worker's messages until its result.

        Raises the error that the worker reported, and Dead if the connection ended without a result.
        """
        one, began = work.of, time.monotonic()
        worker.send(work.piece)
        with self._changed:
            # It may have ended before the piece was sent. A message to give up that came before the piece
            # was ignored, and one that comes after the result will be.
            if one.over:
                worker.ask_to_give_up()
        while True:
            match (work.piece, worker.received()):
                case (Deliver(), Reached(spans)):
                    with self._changed:
                        # The sink has acknowledged rows. If the worker was killed, its address counts as
                        # silent, and an earlier report must not change that.
                        if not worker.killed:
                            self._timetable.answered(one.key, well=True)
                    self._incarnations.durable(one, Durable(one.spec.token, spans))
                case (Deliver(_, ranges), Delivered(spans, stats)):
                    assert one.backlog is not None
                    seconds = time.monotonic() - began
                    took = {"batch_ms": round(seconds * 1000)}
                    one.record_pace(work.bytes, seconds)
                    # The result says that the rows are durable. Only now may the next rows of these spans be
                    # given out, so no two workers have rows of one span.
                    one.backlog.done(ranges)
                    self._incarnations.durable(one, Durable(one.spec.token, spans, {**stats, **took}))
                    return
                case (Begin(), Begun() as begun):
                    self._incarnations.started(one, begun)
                    return
                case (Load(), LoadDone(reports)):
                    work.answered(reports)
                    return
                case (_, Alive()):
                    one.beats.beat()
                case (_, Failed() as failed):
                    raise failed.error()
                # A worker that breaks the protocol may have delivered anything, so it is killed as if it had
                # died.
                case (_, message):
                    raise Dead(f"it said what it must not: {message!r:.200}")
