"""Spark's worker daemon, which loads a package's modules and compiled kernels before it forks.

So a forked worker starts with everything loaded. Otherwise each worker would import numpy, Arrow and numba
itself, which takes over a second. Nothing here starts a thread, because threads do not survive a fork.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from tidegate.heap import keep_freed
from tidegate.launcher import bind_forks
from tidegate.program import loaded, starting

KEPT_BYTES: Final = 256 << 20


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the kernel each time.

    A block's buffers are tens of MB, and a fresh page costs more than the write into it: encoding took 0.2 us
    a row with reused memory, and 0.3 to 0.9 us with fresh pages. At most `KEPT_BYTES` stay unused.
    """
    keep_freed(KEPT_BYTES)


def serve(preload: Sequence[str]) -> None:
    """Load `preload` (only for the general worker), freeze the heap, and run Spark's own daemon."""
    if "pyspark.worker" in sys.argv[1:]:
        starting()
        # Arrow imports pandas, if it is installed, when it gets its first Python list.
        for name in ("pyspark.worker", "pandas", *preload):
            import_module(name)
        import_module("tidegate.kernel").load_compiled()
        # Forked workers share these pages until they write to them, and a collection writes to each object
        # that is not frozen.
        loaded()
        keep_freed_memory()
        # Spark asks its workers to end. A stopped worker never handles that and would keep its memory
        # forever, so the kernel kills workers when the daemon ends.
        bind_forks(signal.SIGKILL)
    import_module("pyspark.daemon").manager()
