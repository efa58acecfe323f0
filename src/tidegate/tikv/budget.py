"""A limit for the bytes that several holders keep together."""

from __future__ import annotations

import threading


class Budget:
    """Counts bytes. A caller that finds no room refuses or waits. Thread-safe."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes. Callers check and add in two steps, so each may exceed it by one piece."""
        self._limit, self._used = limit, 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Add bytes, or remove them if `size` is negative."""
        with self._lock:
            self._used += size

    def has_room(self, size: int = 0) -> bool:
        """Whether `size` more bytes fit."""
        return self._used + size <= self._limit
