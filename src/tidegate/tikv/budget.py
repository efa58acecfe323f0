"""How many bytes several holders may hold together."""

from __future__ import annotations

import threading


class Budget:
    """Counts; who finds no room refuses or waits. Thread-safe."""

    def __init__(self, limit: int) -> None:
        """limit: bytes. Who asks and adds beside others may pass it by one piece each."""
        self._limit, self._used = limit, 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count bytes that came, or went if `size` is negative."""
        with self._lock:
            self._used += size

    def has_room(self, size: int = 0) -> bool:
        """Whether so much more would fit."""
        return self._used + size <= self._limit
