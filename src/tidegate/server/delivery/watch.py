"""Notices when a feed's pipeline or the owner's sink has work but makes no progress, and says which part
hangs.

    pipeline   rows that may be delivered, or a start that is not over    progress: messages, beats
    sink       a call under way in the owner's thread                     progress: answers

Processor and owner ask on every tick. A finding is the failure of the incarnation: the feed shows it, its
processes are killed, and the next incarnation fences anything they still do. `control.watchdog` counts the
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidegate.clock import Clock
from tidegate.control.watchdog import Hung, Watchdog
from tidegate.errors import Retryable
from tidegate.pipeline.exchange.beats import read_beats
from tidegate.server.delivery.sink_thread import SinkThread
from tidegate.server.supervision.processes import described

LOOK_S: Final = 0.5


class _Watch:
    """Looks at most every `LOOK_S`, however often it is asked."""

    def __init__(self, clock: Clock, stall_s: float, start_s: float) -> None:
        """`stall_s`: how long work may take. `start_s`: how long the first work may take."""
        self.clock, self.stall_s, self.start_s = clock, stall_s, start_s
        self.watchdog = Watchdog()
        self._looked_at = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time to look; if so, the next time is `LOOK_S` later."""
        now = self.clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        return True

    def since(self, hung: Hung) -> str:
        """Since when it has hung, in words."""
        began = datetime.fromtimestamp(self.clock.now_ms() / 1000 - hung.silent_s, UTC)
        return f"since {began.isoformat(timespec='seconds')} ({hung.silent_s:.0f} s)"


class PipelineWatch(_Watch):
    """Watches the pipeline of one incarnation; the next incarnation needs a new one."""

    def __init__(self, clock: Clock, beats: Path, stall_s: float, start_s: float) -> None:
        super().__init__(clock, stall_s, start_s)
        self._beats = beats
        self._messages = 0
        self._delivers = False
        self.beats: Mapping[str, int] = {}
        """The last counts read while there was work; each acknowledgement of the sink changes them."""

    def received(self) -> None:
        """Count a message of the pipeline."""
        self._messages += 1

    def look(self, work: Callable[[], str], session: int) -> Retryable | None:
        """The failure if the pipeline hangs, or None.

        `work`: what the pipeline has to do, in words; empty: nothing. `session`: that of its processes.
        """
        if not self.is_due():
            return None
        now, to_do = self.clock.monotonic(), work()
        if not to_do:
            self.watchdog.step(now, to_do, None, self.stall_s)
            return None
        beats = self.beats = read_beats(self._beats)
        # The first batch takes longer, because it starts Python workers and loads kernels.
        self._delivers = self._delivers or bool(beats)
        reports = (self._messages, tuple(sorted(beats.items())))
        patience = self.stall_s if self._delivers else self.start_s
        hung = self.watchdog.step(now, to_do, reports, patience)
        if hung is None:
            return None
        return Retryable(
            f"[CDC:ErrPipelineHung]the pipeline has work and has done nothing {self.since(hung)}",
            where=f"waiting: {hung.work}",
            why=f"its processes: {described(session)}",
            fix="nothing: they are killed and started again, and nothing is lost; on a machine that is only "
            "too slow raise stall-timeout, or start-timeout, in [tidegate]",
        )


class SinkWatch(_Watch):
    """Watches the owner's sink of one incarnation; the next incarnation needs a new one."""

    def look(self, thread: SinkThread, *, opened: bool) -> Retryable | None:
        """The failure if the sink hangs, or None. Opening it may take as long as a start."""
        if not self.is_due():
            return None
        patience = self.stall_s if opened else self.start_s
        hung = self.watchdog.step(self.clock.monotonic(), thread.at, thread.answers, patience)
        if hung is None:
            return None
        return Retryable(
            f"[CDC:ErrSinkHung]the sink has not answered {self.since(hung)}",
            where=f"waiting: {hung.work}",
            fix="see whether the sink works; the feed opens it again by itself; if it is only too slow, "
            "raise stall-timeout in [tidegate]",
        )
