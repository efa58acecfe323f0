"""Notices when a feed's pipeline or the owner's sink has work and stands still, and says who.

    pipeline   rows that may be delivered, or a start that is not over    reports: messages, beats
    sink       a call under way in the owner's thread                     reports: answers

Processor and owner ask on every tick; what is found is the incarnation's failure: the feed shows it, its
processes are killed, and the next incarnation fences whatever they still do. The counting is
`control.watchdog`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidegate.clock import Clock
from tidegate.control.watchdog import Hung, Watchdog
from tidegate.errors import Retryable
from tidegate.pipeline.beats import read_beats
from tidegate.server.owner_sink import SinkThread
from tidegate.server.processes import described

LOOK_S: Final = 0.5


class _Watch:
    """Looks every `LOOK_S`, however often it is asked to."""

    def __init__(self, clock: Clock, stall_s: float, start_s: float) -> None:
        """`stall_s`: patience with work under way. `start_s`: until the first thing is done."""
        self.clock, self.stall_s, self.start_s = clock, stall_s, start_s
        self.dog = Watchdog()
        self._looked_at = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time to look; then it is not for a while."""
        now = self.clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        return True

    def since(self, hung: Hung) -> str:
        """Since when it stands still."""
        began = datetime.fromtimestamp(self.clock.now_ms() / 1000 - hung.silent_s, UTC)
        return f"since {began.isoformat(timespec='seconds')} ({hung.silent_s:.0f} s)"


class PipelineWatch(_Watch):
    """Looks after the pipeline of one incarnation; make a new one for the next."""

    def __init__(self, clock: Clock, beats: Path, stall_s: float, start_s: float) -> None:
        super().__init__(clock, stall_s, start_s)
        self._beats = beats
        self._messages = 0
        self._delivers = False
        self.beats: Mapping[str, int] = {}
        """As read last, when there was work: with each piece that the sink has acknowledged they change."""

    def received(self) -> None:
        """The pipeline has said something."""
        self._messages += 1

    def look(self, work: Callable[[], str], session: int) -> Retryable | None:
        """What stands still, or None.

        `work`: what the pipeline has to do, in words; empty: nothing. `session`: of its processes.
        """
        if not self.is_due():
            return None
        now, to_do = self.clock.monotonic(), work()
        if not to_do:
            self.dog.step(now, to_do, None, self.stall_s)
            return None
        beats = self.beats = read_beats(self._beats)
        # Python workers and kernels start with the first batch.
        self._delivers = self._delivers or bool(beats)
        reports = (self._messages, tuple(sorted(beats.items())))
        patience = self.stall_s if self._delivers else self.start_s
        hung = self.dog.step(now, to_do, reports, patience)
        if hung is None:
            return None
        return Retryable(
            f"[CDC:ErrPipelineHung]the pipeline has work and has done nothing {self.since(hung)}.",
            where=f"waiting: {hung.work}",
            why=f"its processes: {described(session)}",
            fix="nothing: they are killed and started again, and nothing is lost; on a machine that is only "
            "too slow raise stall-timeout, or start-timeout, in [tidegate]",
        )


class SinkWatch(_Watch):
    """Looks after the owner's sink of one incarnation; make a new one for the next."""

    def look(self, thread: SinkThread, *, opened: bool) -> Retryable | None:
        """What stands still, or None. A sink that is being opened has the patience of a start."""
        if not self.is_due():
            return None
        patience = self.stall_s if opened else self.start_s
        hung = self.dog.step(self.clock.monotonic(), thread.at, thread.answers, patience)
        if hung is None:
            return None
        return Retryable(
            f"[CDC:ErrSinkHung]the sink has not answered {self.since(hung)}.",
            where=f"waiting: {hung.work}",
            fix="see whether the sink works; the feed opens it again by itself. If it is only too slow raise "
            "stall-timeout in [tidegate]",
        )
