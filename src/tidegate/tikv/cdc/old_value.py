"""The value a key had before a change: carried by the command when it knew, else read.

Reading later is as good as reading at once: while the prewrite's lock is there nobody else commits on the
key, and a commit of its own transaction is above the ts asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.tikv.reader import Reader, View


class OldValues:
    """Old values of one command's keys."""

    __slots__ = ("_carried", "_reader", "_view")

    def __init__(self, view: View, carried: Mapping[bytes, bytes | None]) -> None:
        self._view = view
        self._carried = carried
        self._reader: Reader | None = None

    def before(self, key: bytes, ts: int) -> bytes:
        """What a reader at `ts` sees in the encoded key; empty for nothing."""
        if key in self._carried:
            return self._carried[key] or b""
        if self._reader is None:
            self._reader = Reader(self._view)
        return self._reader.value_at(key, ts) or b""
