"""Reads the records of one key: its lock, its versions, and the record of a transaction on it.

Pure: `View` hides the engine or a snapshot of it. (TiKV: storage/mvcc/reader.)
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
    """An ordered iterator over one column family, fixed at the moment when it was made."""

    def seek(self, key: bytes, /) -> None: ...
    def valid(self) -> bool: ...
    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def next(self) -> None: ...
    def prev(self) -> None: ...
    def seek_for_prev(self, key: bytes, /) -> None: ...
    def seek_to_last(self) -> None: ...


class View(Protocol):
    """The methods that the reader needs of an engine or of its snapshot."""

    def get(self, cf: int, key: bytes) -> bytes | None: ...
    def getter(self, cf: int) -> Callable[[bytes], bytes | None]: ...
    def cursor(self, cf: int) -> Cursor: ...


class Record(NamedTuple):
    """The state of one transaction on a key, from the write column family.

    `write` is None if the transaction has no record of its own; then `overlap` is the record of another
    transaction whose commit_ts equals this start_ts, if there is one. `next_data_ts` is the commit_ts of the
    next Put or Delete above start_ts (a later gc_fence); 0 if there is none.
    """

    commit_ts: int
    write: Write | None
    overlap: Write | None
    next_data_ts: int

    def is_rolled_back(self) -> bool:
        """Whether the transaction has a rollback record, or another's record is flagged with its rollback."""
        if self.write is not None:
            return self.write.kind == KIND_ROLLBACK
        return self.overlap is not None and self.overlap.overlapped_rollback

    def is_committed(self) -> bool:
        """Whether the transaction has a commit record."""
        return self.write is not None and self.write.kind != KIND_ROLLBACK


class MvccReader:
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
        """The commit_ts of the newest record of any kind; 0 if there is none."""
        cursor = self._cursor()
        cursor.seek(key)
        if not cursor.valid():
            return 0
        found = cursor.key()
        # No encoded key is a prefix of another one, so this compares the whole key.
        return version_of(found) if found.startswith(key) else 0

    def newest_write(self, key: bytes, ts: int = TS_MAX) -> tuple[int, Write] | None:
        """The newest record of any kind with commit_ts <= ts."""
        cursor = self._cursor()
        cursor.seek(versioned(key, ts))
        if not cursor.valid():
            return None
        found = cursor.key()
        if found[:-TS_BYTES] != key:
            return None
        return version_of(found), decode_write(cursor.value())

    def writes(self, key: bytes, ts: int = TS_MAX) -> Iterator[tuple[int, Write]]:
        """Records with commit_ts <= ts, newest first. The cursor is shared: do not interleave calls."""
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
        # 0 is a fence with no later version. Otherwise the version at the fence must exist: if GC has removed
        # it, it was a deletion that hides this one (tikv `components/txn_types/src/write.rs`).
        if not fence or fence > ts:
            return True
        return self._view.get(WRITE, versioned(key, fence)) is not None

    def value_of(self, key: bytes, write: Write) -> bytes | None:
        """The value of a Put record; None for other records."""
        if write.kind != KIND_PUT:
            return None
        if write.short_value is not None:
            return write.short_value
        return self.long_value(key, write.start_ts)

    def long_value(self, key: bytes, start_ts: int) -> bytes:
        """The value in the default column family; empty if there is none, because an empty value was put."""
        return self._view.get(DEFAULT, versioned(key, start_ts)) or b""

    def value_at(self, key: bytes, ts: int) -> bytes | None:
        """The committed value that a reader at `ts` sees; locks are ignored."""
        found = self.newest_data(key, ts)
        return None if found is None else self.value_of(key, found[1])

    def record_of(self, key: bytes, start_ts: int) -> Record:
        """The state of the transaction `start_ts` on this key."""
        next_data_ts = 0
        for commit_ts, write in self.writes(key):
            # A transaction commits above its start_ts, and its rollback is at it. So none of its records is
            # lower.
            if commit_ts < start_ts:
                break
            if write.start_ts == start_ts:
                return Record(commit_ts, write, None, next_data_ts)
            # Another transaction committed at this ts. A rollback of ours could only be a flag in that
            # record.
            if commit_ts == start_ts:
                return Record(0, None, write, next_data_ts)
            if write.is_data():
                next_data_ts = commit_ts
        return Record(0, None, None, next_data_ts)
