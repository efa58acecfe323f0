"""How much freed memory the C library keeps for later, instead of returning it to the kernel.

The kernel fills each page that it gives out with zeros, which costs more than the write into it, and several
times more on a virtual machine whose host must find the page first. Memory of Arrow's allocator is not
concerned.
"""

from __future__ import annotations

import ctypes
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_MMAP_MAX: Final = -4


def keep_freed(most: int, mapped_from: int = 0) -> None:
    """From now on keep freed memory: at most `most` bytes, unused, at the end of each of the library's heaps.

    `mapped_from`: an allocation of at least so many bytes (at most 32 MiB) still gets memory of its own,
    which goes back to the kernel when it is freed; 0: none does. Does nothing if the library is not glibc.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    if mapped_from:
        # Setting it also ends glibc's own adjustment, which follows the largest freed allocation.
        libc.mallopt(M_MMAP_THRESHOLD, mapped_from)
    else:
        libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, most)
