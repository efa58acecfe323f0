"""Failed attempts: which are reported, how long they pause, and when an error ends the run.

    Retryable     reported once, then retried with growing pauses until an attempt succeeds
    other         ends the run after `GIVE_UP_S`
    at the start  a Retryable ends the run too, after `START_S`

Called only by the driver's loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.consumer.running.progress import Listener
from tidegate.errors import InvalidInput, Retryable, TidegateError

T = TypeVar("T")

POLL_S: Final = 0.05
"""How often a pause looks whether the run is to stop, in seconds."""
BACK_OFF_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts while something fails; the last one repeats."""
GIVE_UP_S: Final = 15.0
"""Seconds for which an error that is not Retryable is retried before it ends the run."""
START_S: Final = 30.0
"""Seconds for which the broker is asked at the start before its error ends the run."""


class Attempts:
    """Counts the failed attempts of one run."""

    def __init__(
        self, topic: str, stop: Callable[[], bool], listener: Listener, meanwhile: Callable[[], None]
    ) -> None:
        """`meanwhile` is called every `POLL_S` during a pause."""
        self._topic, self._stop, self._listener, self._meanwhile = topic, stop, listener, meanwhile
        self.trouble = ""
        """The failure that is being retried, in words; empty when there is none."""
        self._failures, self._since = 0, 0.0
        self._reported = False
        self._doubtful_since: float | None = None

    def failed(self, error: TidegateError) -> None:
        """Report a failed attempt once, and pause. Raises the error if it has lasted `GIVE_UP_S`.

        An error that is not Retryable is reported only when it is raised, because it may pass: right after
        its start a broker may say that a topic is missing, or shorter than it is.
        """
        now = time.monotonic()
        # From the first of several failures on, so that the note of recovery names the whole outage.
        self._since = self._since if self._failures else now
        if isinstance(error, Retryable) and not self._reported:
            self._reported = True
            self._listener.warn(error)
        self._failures += 1
        self.trouble = error.what
        # A broker that does not answer at all proves nothing about the doubtful error, so that time begins
        # again.
        if isinstance(error, Retryable):
            self._doubtful_since = None
        else:
            self._doubtful_since = now if self._doubtful_since is None else self._doubtful_since
            if now - self._doubtful_since >= GIVE_UP_S:
                raise error
        until = now + BACK_OFF_S[min(self._failures, len(BACK_OFF_S)) - 1]
        while time.monotonic() < until and not self._stop():
            time.sleep(POLL_S)
            self._meanwhile()

    def recovered(self) -> None:
        """An attempt succeeded: report that, if the failure was reported."""
        if self._reported:
            seconds = time.monotonic() - self._since
            self._listener.note(f"topic {self._topic} is read again after {seconds:.0f} s")
        self._failures, self.trouble, self._reported, self._doubtful_since = 0, "", False, None

    def patiently(self, ask: Callable[[], T]) -> T:
        """Ask the broker at the start, for at most `START_S`; then raise its error.

        A missing topic is retried too, because its changefeed may have been created only a moment ago.
        """
        began = time.monotonic()
        while True:
            try:
                answer = ask()
            except Retryable as error:
                if self._stop() or time.monotonic() - began > START_S:
                    raise
                self.failed(error)
            except InvalidInput as error:
                if self._stop():
                    raise
                if not self._failures:
                    self._listener.note(f"{error.what}; asking again for {GIVE_UP_S:.0f} s")
                self.failed(error)
            else:
                self.recovered()
                return answer
