"""How long calls to a capture are retried, and with which pauses."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.errors import Retryable

PATIENCE_S: Final = 300.0
"""Seconds for which a call is retried while no server answers. A restart or a change of owner takes less."""
FIRST_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0

T = TypeVar("T")


class Patience:
    """Pauses that grow, until PATIENCE_S have passed since the last success."""

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        """Start the time and the pauses again."""
        self._until, self._pause = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S

    def failed(self, error: Retryable) -> None:
        """Wait before the next attempt. Raises the error when the time is up."""
        # Before the pause: an attempt after it would come too late.
        if time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_MAX_S)


def patiently(attempt: Callable[[], T]) -> T:
    """Call `attempt` until it does not raise Retryable, and return its result."""
    patience = Patience()
    while True:
        try:
            return attempt()
        except Retryable as error:
            patience.failed(error)
