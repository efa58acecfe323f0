"""Spark's worker daemon with a package's modules and compiled kernels loaded before it forks.

A forked worker then starts warm: without it each one imports numpy, Arrow and numba anew, which costs over a
second. Nothing here starts a thread: threads do not survive a fork.
"""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from tidegate.launcher import bind_forks

M_TRIM_THRESHOLD: Final = -1
M_MMAP_MAX: Final = -4
KEPT_BYTES: Final = 256 << 20


def keep_freed_memory() -> None:
    """Have glibc use the memory of freed blocks again instead of giving it back to the kernel each time.

    A block's buffers are tens of MB, and a fresh page costs more than what is written into it: encoding took
    0.2 us a row with memory used again and 0.3 to 0.9 us with fresh pages. At most `KEPT_BYTES` lie unused.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def serve(preload: Sequence[str]) -> None:
    """Load `preload` for the general worker only, freeze the heap, and hand over to Spark's own daemon."""
    if "pyspark.worker" in sys.argv[1:]:
        # Arrow imports pandas, where there is one, at the first Python list it is given.
        for name in ("pyspark.worker", "pandas", *preload):
            import_module(name)
        import_module("tidegate.kernel").load_compiled()
        gc.collect()
        gc.freeze()
        keep_freed_memory()
        # Spark asks its workers to end. A stopped one never sees that and would keep its memory for ever.
        bind_forks(signal.SIGKILL)
    import_module("pyspark.daemon").manager()
