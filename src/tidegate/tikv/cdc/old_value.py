"""The value that a key had before a change: carried by the command if it had read it, otherwise read here.

Reading it later gives the same result: while the prewrite's lock exists, no other transaction commits on the
key, and a commit of its own transaction is above the requested ts. The carried values correspond to TiKV's
old value cache, but use no separate memory: they live as long as the command. A command carries nothing if no
downstream observes its region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.tikv import keys, mvcc
from tidegate.tikv.reader import Cursor, MvccReader, View


@dataclass(slots=True)
class Counts:
    """The numbers of old values that were carried (`hits`) and read (`misses`)."""

    hits: int = 0
    misses: int = 0


class OldValues:
    """The old values of one command's keys."""

    __slots__ = ("_carried", "_counts", "_reader", "_view")

    def __init__(
        self, view: View, carried: Mapping[bytes, bytes | None], counts: Counts | None = None
    ) -> None:
        self._view = view
        self._carried = carried
        self._counts = counts or Counts()
        self._reader: MvccReader | None = None

    def before(self, key: bytes, ts: int) -> bytes:
        """The value that a reader at `ts` sees for the encoded key; empty if there is none."""
        if key in self._carried:
            self._counts.hits += 1
            return self._carried[key] or b""
        self._counts.misses += 1
        if self._reader is None:
            self._reader = MvccReader(self._view)
        return self._reader.value_at(key, ts) or b""


class ScannedOldValues:
    """The old values of a scan's locks, requested in ascending order of keys.

    It remembers the next key that has a record, so a run of inserts, which have none, costs one look.
    (TiKV: old_value.rs, the missing range cache.)
    """

    def __init__(self, view: View) -> None:
        self._reader = MvccReader(view)
        self._cursor: Cursor = view.cursor(mvcc.WRITE)
        self._next: bytes | None = b""
        """The next key with a record; None: there is none."""
        self.looks = 0
        """The number of look-ups of records."""

    def before(self, key: bytes, ts: int) -> bytes:
        """The value that a reader at `ts` sees for the encoded key; empty if there is none."""
        # Between the last key and the one on which the cursor is, there is none.
        if self._next is None or key < self._next:
            return b""
        self.looks += 1
        self._cursor.seek(key)
        self._next = self._cursor.key()[: -keys.TS_BYTES] if self._cursor.valid() else None
        return (self._reader.value_at(key, ts) or b"") if self._next == key else b""
