"""Limits the bytes per second that all incremental scans of a store send together.

(TiKV: `incremental-fetch-speed-limit`. Its other limit, on bytes read from disk, is missing, because our
binding of RocksDB does not report them.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

SCAN_BYTES_S: Final = float(512 << 20)
"""TiKV's default."""
BURST_S: Final = 0.1
"""Unused capacity can be saved up for this long."""


class Limiter:
    """Computes pauses for senders; it never waits itself. Thread-safe."""

    def __init__(
        self, bytes_s: float = SCAN_BYTES_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        assert bytes_s > 0
        self._bytes_s = bytes_s
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self._paid_until = 0.0

    def charge(self, size: int) -> float:
        """Count `size` bytes that were sent; returns the seconds that their sender must pause."""
        with self._mutex:
            now = self._monotonic()
            self._paid_until = max(self._paid_until, now - BURST_S) + size / self._bytes_s
            return max(0.0, self._paid_until - now)
