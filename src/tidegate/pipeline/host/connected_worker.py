"""One worker as the host sees it: its line, its process, its piece of work, and its signs of life.

A worker does one piece at a time, so asking it to give up, or killing its process, affects only the
changefeed of that piece. The promise that no process works for an incarnation that is over depends on this:
`give` is never called while the worker has a piece.

There are three degrees of silence, each longer than the one before it:

    stuck   it delivers, and has been silent for STUCK_S, or in its first piece for STUCK_FIRST_S, if its
            address is in doubt: a spare worker is started, and it continues
    slow    it has been silent for SLOW_S or more: it is killed if work waits, no worker is free, and few move
    hung    it has been silent for the changefeed's `stall-timeout`: it is killed in any case

A sign of life is a message on its line, or a beat that it writes to a file (`beats`). `look` compares them
without the host's lock, because reading the beats may wait for the disk. So `note` must check that the worker
still has the same piece. Otherwise the silence of one piece would count for the next.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tidegate.control.watchdog import Watchdog
from tidegate.errors import Retryable, TidegateError
from tidegate.pipeline.exchange.lines import Line
from tidegate.pipeline.exchange.work import (
    FROM_WORKER,
    Alive,
    FromWorker,
    GiveUp,
    LoadReport,
    Piece,
    Reached,
    parse,
    to_json,
)
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.jobs import WorkerProcess
from tidegate.pipeline.host.timetable import WorkKind

STUCK_S: Final = 1.5
"""After this time without a sign of life from a worker that delivers, a spare worker is started. Beats and
looks come at most twice a second, so less than a second of silence means nothing.
"""
STUCK_FIRST_S: Final = 3.0
"""The same for its first piece of an incarnation, where it opens schemas and sink; only if its address is in
doubt by now. Otherwise the opening takes long, and a spare worker would only take its cores.
"""
SIGN_S: Final = 1.0
"""A sign of life shows that a sink accepts rows only if the piece is older than this: the first signs come
from the encoding of the rows, before the sink gets them.
"""
SLOW_S: Final = 5.0
"""A worker may be silent for this time while other work waits. The time doubles with each consecutive failure
of the changefeed, `SLOWER_MAX` times at most, so that a sink that is only slow is not killed forever.
"""
SLOWER_MAX: Final = 5
SLOW_FIRST_S: Final = 20.0
"""The same for its first piece of an incarnation, where it opens schemas and sink, and for begins and
loads."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A piece of work, and the incarnation it belongs to."""

    of: Incarnation
    piece: Piece
    kind: WorkKind
    words: str
    """A description for people."""
    bytes: int = 0
    """About how many bytes of entries it has."""
    answer: Future[Sequence[LoadReport]] | None = None
    """Gets the result, if a thread waits for it."""
    in_doubt: bool = False
    """Whether it is a delivery whose address was not proven when it was given out."""

    @property
    def shown(self) -> str:
        return f"deliver {self.words}" if self.kind is WorkKind.DELIVER else self.words

    def answered(self, found: Sequence[LoadReport] | TidegateError) -> None:
        """Give the result, or the error, to the thread that waits for it. A second call does nothing."""
        if self.answer is None or self.answer.done():
            return
        if isinstance(found, TidegateError):
            self.answer.set_exception(found)
        else:
            self.answer.set_result(found)


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a worker has given no sign of life, and for how long that is accepted. Seconds."""

    silent_s: float
    slow_s: float
    """After this time it is slow."""
    patience_s: float
    """After this time it hangs."""
    stuck_s: float
    """After this time it is stuck. Infinite if it does not deliver, or opens a sink that is not in doubt."""
    is_moving: bool = False
    """Whether it delivers, and has given a sign of life since the last look, after `SIGN_S`."""

    @property
    def is_hung(self) -> bool:
        """Whether it has to be killed even if no work waits for a worker."""
        return self.silent_s >= self.patience_s


class Dead(Exception):
    """A worker's connection has ended or cannot be used any more."""


@dataclass(slots=True, eq=False)
class ConnectedWorker:
    """The host's view of one worker. Fields change only under the host's lock, except those that `received`
    sets.
    """

    line: Line
    process: WorkerProcess
    pieces: queue.SimpleQueue[Work | None] = field(default_factory=queue.SimpleQueue)
    """Pieces for its thread. None ends the thread, because the worker is gone."""
    work: Work | None = None
    given_at: float = 0.0
    """When `work` was given to it (monotonic)."""
    served: dict[Key, int] = field(default_factory=dict)
    """The incarnations for which it has worked without error, each with the value of `done` at that time."""
    done: int = 0
    received_count: int = 0
    """The number of messages it has sent."""
    has_answered: bool = False
    """Whether the result of its last piece has come. It is passed on before `work` becomes None."""
    silent_s: float = 0.0
    """How long it has given no sign of life, if it is slow; otherwise 0. Seconds."""
    is_stuck: bool = False
    """Whether it delivers, and has given no sign of life for `Silence.stuck_s`."""
    killed: bool = False
    killed_for: TidegateError | None = None
    """Why it was killed. None if its incarnation was over."""
    machine: str = ""
    """The machine on which it runs; empty for this one."""
    _watchdog: Watchdog = field(default_factory=Watchdog)
    _seen: tuple[int, int | None] | None = None
    """The signs of life at the last look at its piece."""

    @property
    def who(self) -> str:
        """A name for people."""
        where = f" on {self.machine}" if self.machine else ""
        return f"a worker ({self.process.pid}{where})"

    def give(self, work: Work, now: float) -> None:
        """Give it a piece. `now`: monotonic. The watchdog is new: earlier silence belongs to
        another piece.
        """
        self.work, self.silent_s, self.is_stuck, self._watchdog = work, 0.0, False, Watchdog()
        self._seen = None
        self.has_answered = False
        self.given_at = now
        self.pieces.put(work)

    def finished(self, one: Incarnation, *, well: bool) -> None:
        """Its piece has ended. `well`: its open schemas and writer of the incarnation can be used again."""
        self.done += 1
        if well:
            self.served[one.key] = self.done
        else:
            # Its writer may be broken or fenced, so it suits the next piece no better than another worker.
            self.served.pop(one.key, None)

    def ask_to_give_up(self) -> None:
        """Ask it to give up its piece, whose incarnation is over. Under the host's lock, so that it still has
        that piece, and the message comes before the next one. Never blocks: a worker that has been stopped
        does not read its line, and is killed instead.
        """
        if not self.has_answered:
            with suppress(OSError):  # it is dead, which its thread notices
                self.line.offer_message(to_json(GiveUp()))

    def kill(self, why: TidegateError | None = None) -> None:
        """Kill its process. Under the host's lock, so that it still has the piece for which it is killed."""
        # The first reason counts. Later ones are consequences.
        self.killed, self.killed_for = True, self.killed_for or why
        self.process.kill()

    # --- its line, by its own thread

    def send(self, piece: Piece) -> None:
        """Send it a piece. Raises Dead."""
        try:
            self.line.send_message(to_json(piece))
        except OSError as error:
            raise Dead(str(error)) from error

    def received(self) -> FromWorker:
        """Its next message. Raises Dead."""
        try:
            found = self.line.receive()
            message = None if found is None else parse(found, FROM_WORKER)
        except ValueError as error:
            raise Dead(f"it sent what is no message: {error}") from error
        if message is None:
            raise Dead("its connection has ended")
        self.received_count += 1
        self.has_answered = not isinstance(message, Reached | Alive)
        return message

    # --- its signs of life, by the thread that watches

    def look(self, work: Work, beats: int | None, now: float, *, in_doubt: bool) -> Silence:
        """How long it has been silent with this piece. `beats`: its count, if any; `now`: monotonic.
        `in_doubt`: whether the address of its sink is not proven.
        """
        own, knows = work.of.spec.config.tidegate, work.of.key in self.served
        delivers = knows and work.kind is WorkKind.DELIVER
        patience_s = own.stall_timeout if knows else own.start_timeout
        slow_s = SLOW_S if delivers else SLOW_FIRST_S
        # A worker that hangs is killed in any case, so more time than that changes nothing.
        slow_s = min(patience_s, slow_s * 2 ** min(work.of.failures, SLOWER_MAX))
        # It reports from the lowest limit on. The caller compares the silence with the others.
        signs = (self.received_count, beats)
        found = self._watchdog.step(now, work.words, signs, min(STUCK_S, slow_s))
        is_delivery = work.kind is WorkKind.DELIVER
        stuck_s = STUCK_S if delivers else STUCK_FIRST_S if is_delivery and in_doubt else float("inf")
        has_moved = self._seen is not None and signs != self._seen
        self._seen = signs
        is_moving = is_delivery and has_moved and now - self.given_at >= SIGN_S
        return Silence(0.0 if found is None else found.silent_s, slow_s, patience_s, stuck_s, is_moving)

    def note(self, work: Work, silence: Silence) -> bool:
        """Keep the result of `look`. Returns False, and keeps nothing, if it has another piece by now."""
        if self.work is not work:
            return False
        self.silent_s = silence.silent_s if silence.silent_s >= silence.slow_s else 0.0
        self.is_stuck = silence.silent_s >= silence.stuck_s
        return True


def hung(who: str, words: str, silent_s: float) -> Retryable:
    """Why a worker that hangs is killed."""
    return Retryable(
        f"[CDC:ErrPipelineHung]a worker of the pipeline has work and has done nothing for {silent_s:.0f} s",
        where=who,
        why=f"it has to deliver {words}",
        fix="nothing: it is killed, the changefeed is started again, and nothing is lost; on a machine that "
        "is only too slow raise stall-timeout, or start-timeout, in [tidegate]",
    )


def stopped_by_signal(who: str, words: str, stopped_s: float) -> Retryable:
    """Why a worker that a signal has stopped is killed."""
    return Retryable(
        f"[CDC:ErrPipelineHung]a worker of the pipeline has work and was stopped {stopped_s:.0f} s ago",
        where=f"{who}, with {words}",
        why="a signal such as SIGSTOP has stopped it",
        fix="nothing: it is killed, the changefeed is started again, and nothing is lost",
    )


def too_slow(who: str, words: str, silent_s: float) -> Retryable:
    """Why a slow worker is killed."""
    return Retryable(
        f"[CDC:ErrSinkSlow]nothing was done for {silent_s:.0f} s while other changefeeds waited for a worker",
        where=f"{who}, with {words}",
        fix="see whether the sink works; the changefeed is started again by itself, and nothing is lost",
    )
