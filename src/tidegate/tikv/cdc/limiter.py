"""How many bytes a second all incremental scans of a store may send together.

(TiKV: `incremental-fetch-speed-limit`. Its other limit is of bytes read from the disk, which RocksDB does not
tell us of.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

SCAN_BYTES_S: Final = float(512 << 20)
"""TiKV's default."""
BURST_S: Final = 0.1
"""What was not used lasts for so long."""


class Limiter:
    """Thread-safe; waits for nobody itself."""

    def __init__(
        self, bytes_s: float = SCAN_BYTES_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        assert bytes_s > 0
        self._bytes_s = bytes_s
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self._paid_until = 0.0

    def charge(self, size: int) -> float:
        """Take note of `size` bytes that were sent; how many seconds their sender shall pause."""
        with self._mutex:
            now = self._monotonic()
            self._paid_until = max(self._paid_until, now - BURST_S) + size / self._bytes_s
            return max(0.0, self._paid_until - now)
