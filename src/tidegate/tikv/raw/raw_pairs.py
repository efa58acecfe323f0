"""The stored form of raw keys and values, and how they are read.

API V2 keeps the versions of a key; the newest one counts.

    default CF: memcomparable(key) ++ BE(~ts) -> value ++ [BE expire, unix seconds, if flag 01] ++ flags

flag 01: has an expiry; 02: deleted (a tombstone). API V1: the key itself -> the value itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidegate.clock import Clock
from tidegate.errors import Undecodable
from tidegate.tikv import keys, mvcc
from tidegate.tikv.engine import Engine
from tidegate.tikv.raft.region import Region
from tidegate.tikv.reader import View

HAS_EXPIRY: Final = 0x01
DELETED: Final = 0x02
_PLAIN: Final = b"\0"


class RawValue(NamedTuple):
    """A stored value of API V2. `expires`: unix seconds; 0: never."""

    value: bytes
    expires: int = 0
    deleted: bool = False

    def is_seen(self, now_s: int) -> bool:
        """Whether a reader at this time sees the value."""
        return not self.deleted and (not self.expires or self.expires > now_s)


def encode_value(value: bytes, expires: int = 0) -> bytes:
    """The stored form of a value under API V2."""
    if not expires:
        return value + _PLAIN
    return value + expires.to_bytes(8, "big") + bytes([HAS_EXPIRY])


def decode_value(stored: bytes) -> RawValue:
    """A value from its stored form. Raises `Undecodable`."""
    flags = stored[-1] if stored else 0xFF
    if flags > HAS_EXPIRY | DELETED or (flags & HAS_EXPIRY and len(stored) < 9):
        raise Undecodable("a value is not a raw value of API V2", where=stored.hex())
    if not flags & HAS_EXPIRY:
        return RawValue(stored[:-1], 0, bool(flags & DELETED))
    return RawValue(stored[:-9], int.from_bytes(stored[-9:-1], "big"), bool(flags & DELETED))


class RawPairs:
    """The raw pairs of a store as a reader sees them now. Thread-safe."""

    def __init__(self, engine: Engine, api_version: int, clock: Clock) -> None:
        self._engine, self._api_version, self._clock = engine, api_version, clock

    def physical(self, raw: bytes) -> bytes:
        """The form of a key that is compared with region bounds."""
        # V2 encodes keys so that a timestamp behind them keeps their order; V1 stores them as they are.
        return raw if self._api_version == 1 else keys.encode(raw)

    def now_s(self) -> int:
        """The time by which values expire, in unix seconds."""
        return self._clock.now_ms() // 1000

    def find(self, view: View, key: bytes) -> RawValue | None:
        """The current value of a stored key; None if there is none, or a tombstone or an expired value."""
        if self._api_version == 1:
            stored = view.get(mvcc.DEFAULT, key)
            return None if stored is None else RawValue(stored)
        cursor = view.cursor(mvcc.DEFAULT)
        cursor.seek(key)
        # The newest version comes first, so the cursor is at it, or at another key.
        if not cursor.valid() or cursor.key()[: -keys.TS_BYTES] != key:
            return None
        found = decode_value(cursor.value())
        return found if found.is_seen(self.now_s()) else None

    def clipped(self, region: Region, low: bytes, high: bytes) -> tuple[bytes, bytes]:
        """The stored form of [low, high) inside the region; an empty `high` is infinity."""
        start = max(region.start, self.physical(low)) if low else region.start
        end = min(self.physical(high), region.end or self.physical(high)) if high else region.end
        return start, end

    def ascending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The pairs of [start, end), both in stored form, from the first key upwards."""
        now_s = self.now_s()
        cursor = self._engine.cursor(mvcc.DEFAULT)
        cursor.seek(start)
        done = None
        while cursor.valid():
            key = cursor.key()
            if end and key >= end:
                return
            if self._api_version == 1:
                yield key, cursor.value()
            # The newest version of a key comes first, and the older ones are passed over.
            elif (user := key[: -keys.TS_BYTES]) != done:
                done = user
                found = decode_value(cursor.value())
                if found.is_seen(now_s):
                    yield keys.decode(user), found.value
            cursor.next()

    def descending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The pairs from the last key below `end` downwards; the last version seen of a key is its newest."""
        now_s = self.now_s()
        cursor = self._engine.cursor(mvcc.DEFAULT)
        if end:
            # `end` itself is not in the range, and the cursor may stop right at it.
            cursor.seek_for_prev(end)
            if cursor.valid() and cursor.key() >= end:
                cursor.prev()
        else:
            cursor.seek_to_last()
        newest: tuple[bytes, bytes] | None = None
        while cursor.valid() and cursor.key() >= start:
            key = cursor.key()
            if self._api_version == 1:
                yield key, cursor.value()
            else:
                user = key[: -keys.TS_BYTES]
                if newest is not None and newest[0] != user:
                    yield from _seen(newest, now_s)
                newest = (user, cursor.value())
            cursor.prev()
        if newest is not None:
            yield from _seen(newest, now_s)


def _seen(version: tuple[bytes, bytes], now_s: int) -> Iterator[tuple[bytes, bytes]]:
    found = decode_value(version[1])
    if found.is_seen(now_s):
        yield keys.decode(version[0]), found.value
