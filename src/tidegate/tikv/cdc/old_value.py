"""The value a key had before a change: carried by the command when it knew, else read.

Reading later is as good as reading at once: while the prewrite's lock is there nobody else commits on the
key, and a commit of its own transaction is above the ts asked for. What a command carries is TiKV's old value
cache, without a memory of its own: it comes with the change and goes with it, and a command carries nothing
when nobody observes its region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.tikv import keys, mvcc
from tidegate.tikv.reader import Cursor, Reader, View


@dataclass(slots=True)
class Counts:
    """Old values that were carried (`hits`), and read (`misses`)."""

    hits: int = 0
    misses: int = 0


class OldValues:
    """Old values of one command's keys."""

    __slots__ = ("_carried", "_counts", "_reader", "_view")

    def __init__(
        self, view: View, carried: Mapping[bytes, bytes | None], counts: Counts | None = None
    ) -> None:
        self._view = view
        self._carried = carried
        self._counts = counts or Counts()
        self._reader: Reader | None = None

    def before(self, key: bytes, ts: int) -> bytes:
        """What a reader at `ts` sees in the encoded key; empty for nothing."""
        if key in self._carried:
            self._counts.hits += 1
            return self._carried[key] or b""
        self._counts.misses += 1
        if self._reader is None:
            self._reader = Reader(self._view)
        return self._reader.value_at(key, ts) or b""


class ScannedOldValues:
    """Old values of the locks of a scan, asked for in ascending order of keys.

    Where a key has no record it is known how far there is none, so that a run of inserts costs one look.
    (TiKV: old_value.rs, the missing range cache.)
    """

    def __init__(self, view: View) -> None:
        self._reader = Reader(view)
        self._cursor: Cursor = view.cursor(mvcc.WRITE)
        self._next: bytes | None = b""
        """The next key with a record; None: there is none."""
        self.looks = 0
        """How often records were looked for."""

    def before(self, key: bytes, ts: int) -> bytes:
        """What a reader at `ts` sees in the encoded key; empty for nothing."""
        if self._next is None or key < self._next:
            return b""
        self.looks += 1
        self._cursor.seek(key)
        self._next = self._cursor.key()[: -keys.TS_BYTES] if self._cursor.valid() else None
        return (self._reader.value_at(key, ts) or b"") if self._next == key else b""
