"""The host's threads: the lock that they share, and the error of the first that fails.

The host's parts (`host`) share one lock, `changed`, because a decision in one part reads the others: a piece
is given only to a free worker, for an incarnation that is not over, in a slot that is leased. The lock is
reentrant. No thread waits for a sink, a worker or the event store while it holds the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate.errors import TidegateError
from tidegate.pipeline.host.failures import known


class Threads:
    """The threads of one host. Callable from any of them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """The host's lock. It is notified when work may be due, or when a worker has become free."""
        self._failure: TidegateError | None = None

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Start a daemon thread. An error that it raises ends the host: no other thread would do its part."""

        def guarded() -> None:
            try:
                target()
            except Exception as error:
                self.fail(known(error, "a thread of the application failed", name))

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def fail(self, error: TidegateError) -> None:
        """Note the error of a thread; `check` raises the first one."""
        with self.changed:
            self._failure = self._failure or error
            self.changed.notify_all()

    def check(self) -> None:
        """Raise the error of the first thread that has failed, if one has."""
        if self._failure is not None:
            raise self._failure
