"""Bytes at the very end of readable memory: a kernel that reads beyond them crashes."""

from __future__ import annotations

import ctypes
import mmap

PAGE = mmap.PAGESIZE


class GuardedRoom:
    """Room for up to `capacity` bytes, again and again; whatever is put there ends where memory ends."""

    def __init__(self, capacity: int) -> None:
        size = -(-max(capacity, 1) // PAGE) * PAGE
        self._map = mmap.mmap(-1, size + PAGE)
        anchor = ctypes.c_char.from_buffer(self._map)
        base = ctypes.addressof(anchor)
        del anchor
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(base + size, PAGE, 0) == 0
        self.capacity, self._end = size, base + size

    def put(self, data: bytes) -> int:
        """Copy bytes there and return their address. Earlier contents are lost."""
        assert len(data) <= self.capacity
        address = self._end - len(data)
        ctypes.memmove(address, data, len(data))
        return address

    def close(self) -> None:
        self._map.close()


class Guarded(GuardedRoom):
    """A copy of bytes whose end is the end of readable memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data))
        self.address = self.put(data)
