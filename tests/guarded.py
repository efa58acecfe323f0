"""Bytes at the very end of readable memory: a kernel that reads beyond them crashes."""

from __future__ import annotations

import ctypes
import mmap

PAGE = mmap.PAGESIZE


class Guarded:
    """A copy of bytes whose end is the end of readable memory."""

    def __init__(self, data: bytes) -> None:
        size = -(-max(len(data), 1) // PAGE) * PAGE
        self._map = mmap.mmap(-1, size + PAGE)
        anchor = ctypes.c_char.from_buffer(self._map)
        base = ctypes.addressof(anchor)
        del anchor
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(base + size, PAGE, 0) == 0
        self.address = base + size - len(data)
        ctypes.memmove(self.address, data, len(data))

    def close(self) -> None:
        self._map.close()
