"""How long a call to a capture is tried again, and with which pauses."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.errors import Retryable

PATIENCE_S: Final = 300.0
"""How long a call is tried again while no server answers: a restart and a change of owner fit well within."""
FIRST_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0

T = TypeVar("T")


class Patience:
    """Pauses that grow, until PATIENCE_S are over since the last success."""

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        """Begin again."""
        self._until, self._pause = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S

    def failed(self, error: Retryable) -> None:
        """Wait before the next attempt. Raises the error when there shall be none."""
        if time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_MAX_S)


def patiently(attempt: Callable[[], T]) -> T:
    """The result of an attempt that does not raise Retryable."""
    patience = Patience()
    while True:
        try:
            return attempt()
        except Retryable as error:
            patience.failed(error)
