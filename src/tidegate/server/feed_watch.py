"""Notices when a feed's pipeline or the owner's sink has work and stands still, and says who.

    pipeline   rows that may be delivered, or a start that is not over    reports: messages, beats
    sink       a call under way in the owner's thread                     reports: answers

The feed asks on every tick; what is found is the incarnation's failure: the feed shows it, its processes are
killed, and the next incarnation fences whatever they still do. The counting is `control.watchdog`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidegate.clock import Clock
from tidegate.control.watchdog import Hung, Watchdog
from tidegate.errors import Retryable
from tidegate.pipeline.beats import read_beats
from tidegate.server.processes import described
from tidegate.server.processor import SinkThread

LOOK_S: Final = 0.5


class FeedWatch:
    """Looks after one incarnation; make a new one for the next."""

    def __init__(self, clock: Clock, beats: Path, stall_s: float, start_s: float) -> None:
        """`stall_s`: patience with work under way. `start_s`: until the first thing is done."""
        self._clock, self._beats = clock, beats
        self._stall_s, self._start_s = stall_s, start_s
        self._pipeline, self._sink = Watchdog(), Watchdog()
        self._messages = 0
        self._delivers = False
        self._looked_at = float("-inf")

    def heard(self) -> None:
        """The pipeline process has sent a message."""
        self._messages += 1

    def look(self, work: Callable[[], str], session: int, thread: SinkThread) -> Retryable | None:
        """What stands still, or None. Looks every `LOOK_S`, however often it is called.

        `work`: what the pipeline has to do, in words; empty: nothing. `session`: of its processes; 0: there
        are none yet, and the sink that is being opened has the patience of a start.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return None
        self._looked_at = now
        beats = read_beats(self._beats)
        # Python workers and kernels start with the first batch.
        self._delivers = self._delivers or bool(beats)
        reports = (self._messages, tuple(sorted(beats.items())))
        patience = self._stall_s if self._delivers else self._start_s
        if (hung := self._pipeline.step(now, work(), reports, patience)) is not None:
            return self._pipeline_hung(hung, session)
        patience = self._stall_s if session else self._start_s
        if (hung := self._sink.step(now, thread.at, thread.answers, patience)) is not None:
            return self._sink_hung(hung)
        return None

    def _pipeline_hung(self, hung: Hung, session: int) -> Retryable:
        return Retryable(
            f"[CDC:ErrPipelineHung]the pipeline has work and has done nothing {self._since(hung)}.",
            where=f"waiting: {hung.work}",
            why=f"its processes: {described(session)}",
            fix="nothing: they are killed and started again, and nothing is lost; on a machine that is only "
            "too slow raise stall-timeout, or start-timeout, in [tidegate]",
        )

    def _sink_hung(self, hung: Hung) -> Retryable:
        return Retryable(
            f"[CDC:ErrSinkHung]the sink has not answered {self._since(hung)}.",
            where=f"waiting: {hung.work}",
            fix="see whether the sink works; the feed opens it again by itself. If it is only too slow raise "
            "stall-timeout in [tidegate]",
        )

    def _since(self, hung: Hung) -> str:
        began = datetime.fromtimestamp(self._clock.now_ms() / 1000 - hung.silent_s, UTC)
        return f"since {began.isoformat(timespec='seconds')} ({hung.silent_s:.0f} s)"
