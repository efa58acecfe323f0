"""The value a key had before a change: carried by the command when it knew, else read.

Reading later is as good as reading at once: while the prewrite's lock is there nobody else commits on the
key, and a commit of its own transaction is above the ts asked for.
"""

from __future__ import annotations

from tidegate.tikv.mvcc import Lock, Reader, View


class OldValues:
    """Old values of one command's keys."""

    __slots__ = ("_carried", "_reader", "_view")

    def __init__(self, view: View, carried: dict[bytes, bytes | None]) -> None:
        self._view = view
        self._carried = carried
        self._reader: Reader | None = None

    def before(self, key: bytes, lock: Lock) -> bytes:
        """What a reader at the lock's start (or for_update_ts) saw in the encoded key; empty for nothing."""
        if key in self._carried:
            return self._carried[key] or b""
        if self._reader is None:
            self._reader = Reader(self._view)
        return self._reader.value_at(key, max(lock.start_ts, lock.for_update_ts)) or b""
