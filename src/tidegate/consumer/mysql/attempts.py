"""Retries what a database target does: take the target over from ourselves, then do it again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tidegate.consumer.mysql.lanes import Lanes
from tidegate.consumer.mysql.progress import Progress, TargetRecord
from tidegate.errors import Retryable

PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses between attempts to write after an error that may pass; after the last attempt the error is
raised."""


class Attempts:
    """The attempts of one target. One thread calls; while threads read tables, these call `run_in_turn`."""

    def __init__(self, progress: Progress, lanes: Lanes) -> None:
        self._progress, self._lanes = progress, lanes
        self.held = TargetRecord(None, None, None, {})
        """The record that the last takeover found."""
        self._asking = threading.Lock()

    def take_again(self) -> None:
        """Take the target over from our own earlier connections, and read which lanes are committed.

        Fenced when another consumer has it.
        """
        # First, because the takeover waits for the locks of the lanes, which these connections hold.
        self._lanes.disconnect()
        self.held = self._progress.take_again()

    def run(self, attempt_of: Callable[[int], None]) -> None:
        """Retry something that may be done twice, until it succeeds or fails for good; see `PAUSES_S`.

        If the answer to a COMMIT was lost, a new connection reads whether it took effect.
        """
        for attempt in range(len(PAUSES_S) + 1):
            try:
                if attempt:
                    self.take_again()
                attempt_of(attempt)
                return
            except Retryable:
                if attempt == len(PAUSES_S):
                    raise
                time.sleep(PAUSES_S[attempt])

    def run_in_turn(self, attempt_of: Callable[[int], None]) -> None:
        """As `run`, one thread after the other, because the control connection serves one at a time."""
        with self._asking:
            self.run(attempt_of)
