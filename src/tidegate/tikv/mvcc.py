"""Lock and write records, in exactly TiKV's stored form.

| column family | key | value |
|---|---|---|
| lock | encoded key | `Lock` |
| write | encoded key, ~commit_ts (a rollback: ~start_ts) | `Write` |
| default | encoded key, ~start_ts | a value over 255 bytes; a shorter one is in the lock, then in the write |

(TiKV: txn_types/src/lock.rs, write.rs.)
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from tidegate.errors import Undecodable

DEFAULT: Final = 0
LOCK: Final = 1
WRITE: Final = 2

KIND_PUT: Final = ord("P")
KIND_DELETE: Final = ord("D")
KIND_LOCK: Final = ord("L")
KIND_PESSIMISTIC: Final = ord("S")
KIND_ROLLBACK: Final = ord("R")

SHORT_VALUE_MAX: Final = 255
SHORT_VALUE_TAG: Final = ord("v")
PROTECTED: Final = b"p"
"""The short value of a rollback record that must never be collapsed."""

Change = tuple[int, bytes, bytes | None]
"""One change of a write batch: column family, key, value (None deletes)."""

_U64: Final = Struct(">Q")


class Lock(NamedTuple):
    """A transaction's lock on a key. `ttl`: milliseconds from the physical part of `start_ts`."""

    kind: int
    primary: bytes
    start_ts: int
    ttl: int
    short_value: bytes | None = None
    for_update_ts: int = 0
    txn_size: int = 0
    min_commit_ts: int = 0
    secondaries: tuple[bytes, ...] | None = None
    """Not None: an async-commit lock."""
    rollback_ts: tuple[int, ...] = ()
    last_change_ts: int = 0
    last_change_versions: int = 0
    txn_source: int = 0
    locked_with_conflict: bool = False
    generation: int = 0

    def is_data(self) -> bool:
        """Whether the transaction will change the value of the key."""
        return self.kind in (KIND_PUT, KIND_DELETE)


class Write(NamedTuple):
    """The record of a transaction's commit or rollback on a key."""

    kind: int
    start_ts: int
    short_value: bytes | None = None
    overlapped_rollback: bool = False
    gc_fence: int | None = None
    last_change_ts: int = 0
    last_change_versions: int = 0
    txn_source: int = 0

    def is_data(self) -> bool:
        """Whether this version is a value or its deletion."""
        return self.kind in (KIND_PUT, KIND_DELETE)

    def is_protected(self) -> bool:
        """Whether this is a rollback that must stay."""
        return self.kind == KIND_ROLLBACK and self.short_value == PROTECTED


_VARINT: Final = re.compile(rb"[\x80-\xff]*[\x00-\x7f]", re.DOTALL)
CACHED: Final = 4096
"""The number of decoded integers and record tails that are cached; the keys of a transaction share them."""
_TAIL_CACHED_MAX: Final = 64


@lru_cache(CACHED)
def var_u64(value: int) -> bytes:
    """LEB128 of an unsigned integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(CACHED)
def _number(varint: bytes) -> int:
    result = 0
    for byte in reversed(varint):
        result = result << 7 | byte & 0x7F
    return result


def read_var_u64(data: bytes, at: int) -> tuple[int, int]:
    """The integer at `at` and the position after it; IndexError past the end."""
    found = _VARINT.match(data, at)
    if found is None:
        raise IndexError("a number runs past the end")
    return _number(found[0]), found.end()


def compact_bytes(data: bytes) -> bytes:
    """A signed (zigzag) length and the bytes."""
    return var_u64(len(data) << 1) + data


def read_compact_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes at `at` and the position after them."""
    doubled, at = read_var_u64(data, at)
    end = at + (doubled >> 1)
    if end > len(data):
        raise IndexError("compact bytes run past the end")
    return data[at:end], end


def read_short_value(data: bytes, at: int) -> tuple[bytes, int]:
    """The short value whose tag is at `at`, and the position after it."""
    end = at + 2 + data[at + 1]
    if end > len(data):
        raise IndexError("a short value runs past the end")
    return data[at + 2 : end], end


def lock_head(kind: int, primary: bytes, start_ts: int, ttl: int) -> bytes:
    """The mandatory part of a lock: the same for all keys of one request and kind."""
    return bytes([kind]) + compact_bytes(primary) + var_u64(start_ts) + var_u64(ttl)


def lock_tail(lock: Lock) -> bytes:
    """The optional fields of a lock except its short value, in TiKV's order."""
    out = b""
    if lock.for_update_ts:
        out += b"f" + _U64.pack(lock.for_update_ts)
    if lock.txn_size:
        out += b"t" + _U64.pack(lock.txn_size)
    if lock.min_commit_ts:
        out += b"c" + _U64.pack(lock.min_commit_ts)
    if lock.secondaries is not None:
        out += (
            b"a" + var_u64(len(lock.secondaries)) + b"".join(compact_bytes(key) for key in lock.secondaries)
        )
    if lock.rollback_ts:
        out += b"r" + var_u64(len(lock.rollback_ts)) + b"".join(_U64.pack(ts) for ts in lock.rollback_ts)
    if lock.last_change_versions:
        out += b"l" + _U64.pack(lock.last_change_ts) + var_u64(lock.last_change_versions)
    if lock.txn_source:
        out += b"s" + var_u64(lock.txn_source)
    if lock.locked_with_conflict:
        out += b"F"
    if lock.generation:
        out += b"g" + _U64.pack(lock.generation)
    return out


def encode_lock(lock: Lock) -> bytes:
    """The stored form of a lock."""
    short = b"" if lock.short_value is None else b"v" + bytes([len(lock.short_value)]) + lock.short_value
    return lock_head(lock.kind, lock.primary, lock.start_ts, lock.ttl) + short + lock_tail(lock)


def decode_lock(data: bytes) -> Lock:
    """A lock from its stored form; an unknown tag ends the parsing."""
    try:
        return _decode_lock(data)
    except (IndexError, ValueError) as error:
        raise Undecodable("a value is not a lock record", where=data.hex(), why=str(error)) from error


def _decode_lock(data: bytes) -> Lock:
    primary, at = read_compact_bytes(data, 1)
    start_ts, at = read_var_u64(data, at)
    ttl, at = read_var_u64(data, at)
    end = len(data)
    if at == end:
        return Lock(data[0], primary, start_ts, ttl)
    short: bytes | None = None
    if data[at] == SHORT_VALUE_TAG:
        short, at = read_short_value(data, at)
        if at == end:
            return Lock(data[0], primary, start_ts, ttl, short)
    tail = data[at:]
    # A long tail names the secondaries of an async commit. Only one lock of the transaction has it, so a
    # cache would keep it in vain.
    fields = _cached_lock_fields(tail) if len(tail) <= _TAIL_CACHED_MAX else _lock_fields(tail)
    return Lock(data[0], primary, start_ts, ttl, short, *fields)


_LockFields = tuple[int, int, int, tuple[bytes, ...] | None, tuple[int, ...], int, int, int, bool, int]


def _lock_fields(data: bytes) -> _LockFields:
    at = 0
    for_update_ts = txn_size = min_commit_ts = last_ts = last_versions = source = generation = 0
    secondaries: list[bytes] | None = None
    rollbacks: tuple[int, ...] = ()
    conflict = False
    # Fields are in TiKV's order, so a release that does not know a tag can end here with all that it knows.
    while at < len(data):
        tag = data[at : at + 1]
        at += 1
        if tag in (b"f", b"t", b"c", b"g"):
            number = u64_at(data, at)
            at += 8
            if tag == b"f":
                for_update_ts = number
            elif tag == b"t":
                txn_size = number
            elif tag == b"c":
                min_commit_ts = number
            else:
                generation = number
        elif tag == b"a":
            count, at = read_var_u64(data, at)
            secondaries = []
            for _ in range(count):
                key, at = read_compact_bytes(data, at)
                secondaries.append(key)
        elif tag == b"r":
            count, at = read_var_u64(data, at)
            rollbacks = tuple(u64_at(data, at + 8 * i) for i in range(count))
            at += 8 * count
        elif tag == b"l":
            last_ts = u64_at(data, at)
            last_versions, at = read_var_u64(data, at + 8)
        elif tag == b"s":
            source, at = read_var_u64(data, at)
        elif tag == b"F":
            conflict = True
        else:
            # As in TiKV (`components/txn_types/src/lock.rs`): fields are in a fixed order, and an unknown one
            # ends the parsing.
            break
    keys = None if secondaries is None else tuple(secondaries)
    return (
        for_update_ts,
        txn_size,
        min_commit_ts,
        keys,
        rollbacks,
        last_ts,
        last_versions,
        source,
        conflict,
        generation,
    )


_cached_lock_fields = lru_cache(CACHED)(_lock_fields)


class LockShapes:
    """Decodes locks quickly if most belong to one transaction: such locks differ only in their short value.

    `split` returns the lock without its short value (the same object as long as nothing else changes) and
    that value. Equal heads mean equal fields, because every field has a determined end.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, bytes, Lock]] = {}

    def split(self, data: bytes) -> tuple[Lock, bytes | None]:
        """Raises `Undecodable` as `decode_lock` does."""
        known = self._known.get(data[0]) if data else None
        if known is not None:
            head, tail, lock = known
            if data.startswith(head):
                at = len(head)
                if data[at : at + 1] == b"v" and at + 1 < len(data):
                    end = at + 2 + data[at + 1]
                    # A slice past the end is empty, as a tail may be. So the end is compared as well.
                    if data[end:] == tail and end <= len(data):
                        return lock, data[at + 2 : end]
                elif data[at:] == tail:
                    return lock, None
        return self._learn(data)

    def _learn(self, data: bytes) -> tuple[Lock, bytes | None]:
        lock = decode_lock(data)
        short = lock.short_value
        head = lock_head(lock.kind, lock.primary, lock.start_ts, lock.ttl)
        if data.startswith(head):  # otherwise its integers were not written in the shortest form
            tail = data[len(head) + (0 if short is None else 2 + len(short)) :]
            bare = lock._replace(short_value=None)
            self._known[lock.kind] = (head, tail, bare)
            return bare, short
        return lock._replace(short_value=None), short


def u64_at(data: bytes, at: int) -> int:
    """The big-endian integer at `at`; ValueError past the end."""
    if at + 8 > len(data):
        raise ValueError("a number runs past the end")
    return int.from_bytes(data[at : at + 8], "big")


class WriteShapes:
    """Decodes write records as `LockShapes` does locks: the record without its value, and the value."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, int, Write]] = {}

    def split(self, data: bytes) -> tuple[Write, bytes | None]:
        """Raises `Undecodable` as `decode_write` does."""
        known = self._known.get(data[:1])
        if known is not None:
            head, at, write = known
            if data.startswith(head):
                size = len(data)
                if size == at:
                    return write, None
                if data[at] == SHORT_VALUE_TAG and size > at + 1 and size == at + 2 + data[at + 1]:
                    return write, data[at + 2 :]
        write = decode_write(data)
        short = write.short_value
        bare = write if short is None else write._replace(short_value=None)
        # Only records without optional fields, so that nothing follows the value.
        if bare == Write(write.kind, write.start_ts):
            head = write_head(write.kind, write.start_ts)
            self._known[data[:1]] = (head, len(head), bare)
        return bare, short


def write_head(kind: int, start_ts: int) -> bytes:
    """The mandatory part of a write record."""
    return bytes([kind]) + var_u64(start_ts)


def encode_write(write: Write) -> bytes:
    """The stored form of a write record."""
    short = b"" if write.short_value is None else b"v" + bytes([len(write.short_value)]) + write.short_value
    return write_head(write.kind, write.start_ts) + short + write_tail(write)


def write_tail(write: Write) -> bytes:
    """The optional fields of a write record except its short value, in TiKV's order."""
    out = b""
    if write.overlapped_rollback:
        out += b"R"
    if write.gc_fence is not None:
        out += b"F" + _U64.pack(write.gc_fence)
    if write.last_change_versions:
        out += b"l" + _U64.pack(write.last_change_ts) + var_u64(write.last_change_versions)
    if write.txn_source:
        out += b"S" + var_u64(write.txn_source)
    return out


def decode_write(data: bytes) -> Write:
    """A write record from its stored form; an unknown tag ends the parsing."""
    try:
        start_ts, at = read_var_u64(data, 1)
        end = len(data)
        if at == end:
            return Write(data[0], start_ts)
        short: bytes | None = None
        if data[at] == SHORT_VALUE_TAG:
            short, at = read_short_value(data, at)
            if at == end:
                return Write(data[0], start_ts, short)
        return Write(data[0], start_ts, short, *_write_fields(data, at))
    except (IndexError, ValueError) as error:
        raise Undecodable("a value is not a write record", where=data.hex(), why=str(error)) from error


def _write_fields(data: bytes, at: int) -> tuple[bool, int | None, int, int, int]:
    overlapped = False
    fence: int | None = None
    last_ts = last_versions = source = 0
    while at < len(data):
        tag = data[at : at + 1]
        at += 1
        if tag == b"R":
            overlapped = True
        elif tag == b"F":
            fence = u64_at(data, at)
            at += 8
        elif tag == b"l":
            last_ts = u64_at(data, at)
            last_versions, at = read_var_u64(data, at + 8)
        elif tag == b"S":
            source, at = read_var_u64(data, at)
        else:
            # As in TiKV (`components/txn_types/src/write.rs`): fields are in a fixed order, and an unknown
            # one ends the parsing.
            break
    return overlapped, fence, last_ts, last_versions, source
