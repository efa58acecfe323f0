"""Reads records of one key: its lock, its versions, and what became of a transaction on it.

Pure: the engine, or a snapshot of it, is behind `View`. (TiKV: storage/mvcc/reader.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from tidegate.tikv.keys import TS_BYTES, TS_MAX, version_of, versioned
from tidegate.tikv.mvcc import (
    DEFAULT,
    KIND_PUT,
    KIND_ROLLBACK,
    LOCK,
    WRITE,
    Lock,
    Write,
    decode_lock,
    decode_write,
)


class Cursor(Protocol):
    """An ordered iterator of one column family, fixed at the moment it was made."""

    def seek(self, key: bytes, /) -> None: ...
    def valid(self) -> bool: ...
    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def next(self) -> None: ...
    def prev(self) -> None: ...
    def seek_for_prev(self, key: bytes, /) -> None: ...
    def seek_to_last(self) -> None: ...


class View(Protocol):
    """What the reader needs of an engine or a snapshot of it."""

    def get(self, cf: int, key: bytes) -> bytes | None: ...
    def getter(self, cf: int) -> Callable[[bytes], bytes | None]: ...
    def cursor(self, cf: int) -> Cursor: ...


class Record(NamedTuple):
    """What the write column family says of one transaction on a key.

    `write` is None when it has no record of its own; then `overlap` is the record at commit_ts ==
    start_ts of another transaction, if there is one. `next_data_ts` is the commit_ts of the Put or Delete
    next above start_ts (a later gc_fence), 0 when there is none.
    """

    commit_ts: int
    write: Write | None
    overlap: Write | None
    next_data_ts: int

    def is_rolled_back(self) -> bool:
        """Whether a rollback of this transaction is on record, of its own or flagged on another's."""
        if self.write is not None:
            return self.write.kind == KIND_ROLLBACK
        return self.overlap is not None and self.overlap.overlapped_rollback

    def is_committed(self) -> bool:
        """Whether a commit of this transaction is on record."""
        return self.write is not None and self.write.kind != KIND_ROLLBACK


class Reader:
    """Reads records of encoded keys through one cursor per column family."""

    __slots__ = ("_view", "_writes", "stored_lock")

    def __init__(self, view: View) -> None:
        self._view = view
        self._writes: Cursor | None = None
        self.stored_lock = view.getter(LOCK)
        """The stored form of the lock on an encoded key."""

    def _cursor(self) -> Cursor:
        if self._writes is None:
            self._writes = self._view.cursor(WRITE)
        return self._writes

    def lock(self, key: bytes) -> Lock | None:
        """The lock on an encoded key."""
        data = self.stored_lock(key)
        return None if data is None else decode_lock(data)

    def newest_ts(self, key: bytes) -> int:
        """The commit_ts of the newest record of any kind; 0 when there is none."""
        cursor = self._cursor()
        cursor.seek(key)
        if not cursor.valid():
            return 0
        found = cursor.key()
        return version_of(found) if found.startswith(key) else 0

    def newest_write(self, key: bytes, ts: int = TS_MAX) -> tuple[int, Write] | None:
        """The newest record with commit_ts <= ts of any kind."""
        cursor = self._cursor()
        cursor.seek(versioned(key, ts))
        if not cursor.valid():
            return None
        found = cursor.key()
        if found[:-TS_BYTES] != key:
            return None
        return version_of(found), decode_write(cursor.value())

    def writes(self, key: bytes, ts: int = TS_MAX) -> Iterator[tuple[int, Write]]:
        """Records with commit_ts <= ts, newest first. The cursor is shared: do not interleave."""
        cursor = self._cursor()
        cursor.seek(versioned(key, ts))
        while cursor.valid():
            found = cursor.key()
            if found[:-TS_BYTES] != key:
                return
            yield version_of(found), decode_write(cursor.value())
            cursor.next()

    def newest_data(self, key: bytes, ts: int) -> tuple[int, Write] | None:
        """The newest Put or Delete with commit_ts <= ts that a reader at `ts` may see."""
        for commit_ts, write in self.writes(key, ts):
            if write.is_data():
                return (commit_ts, write) if self.is_valid(key, write, ts) else None
        return None

    def is_valid(self, key: bytes, write: Write, ts: int) -> bool:
        fence = write.gc_fence
        if not fence or fence > ts:
            return True
        return self._view.get(WRITE, versioned(key, fence)) is not None

    def value_of(self, key: bytes, write: Write) -> bytes | None:
        """The value a Put record stands for; None for a Delete."""
        if write.kind != KIND_PUT:
            return None
        if write.short_value is not None:
            return write.short_value
        return self.long_value(key, write.start_ts)

    def long_value(self, key: bytes, start_ts: int) -> bytes:
        """The value in the default column family; empty when a Put of an empty value has none."""
        return self._view.get(DEFAULT, versioned(key, start_ts)) or b""

    def value_at(self, key: bytes, ts: int) -> bytes | None:
        """The committed value a reader at `ts` sees; locks are not looked at."""
        found = self.newest_data(key, ts)
        return None if found is None else self.value_of(key, found[1])

    def record_of(self, key: bytes, start_ts: int) -> Record:
        """What became of the transaction `start_ts` on this key."""
        next_data_ts = 0
        for commit_ts, write in self.writes(key):
            if commit_ts < start_ts:
                break
            if write.start_ts == start_ts:
                return Record(commit_ts, write, None, next_data_ts)
            if commit_ts == start_ts:
                return Record(0, None, write, next_data_ts)
            if write.is_data():
                next_data_ts = commit_ts
        return Record(0, None, None, next_data_ts)
