"""Ordered keys in column families on disk: snapshots, atomic write batches, a synced log. RocksDB.

Durability: `write` is atomic over all column families and reaches the operating system before it returns,
so a killed process loses nothing; `sync` writes everything to the disk, and other threads run meanwhile. The
raftstore writes a group of commands, syncs once, and only then informs observers and clients (group commit).
A plain read may see a write that is not synced yet, which matters only if the machine itself fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rocksdict import DBCompressionType, Options, Rdict, ReadOptions, WriteBatch

from tidegate.errors import Fatal
from tidegate.tikv.mvcc import Change
from tidegate.tikv.reader import Cursor

Range = tuple[int, bytes, bytes]
"""Column family, first key, end (exclusive; empty: no end)."""
META: Final = 3
"""The column family of PD's data: cluster id, regions, TSO bound, safepoints."""
_FAMILIES: Final = ("default", "lock", "write", "meta")
CURSORS_PER_FAMILY: Final = 2
_DATA_FAMILIES: Final = 3
_WRITE_BUFFER: Final = 64 << 20


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    # All column families share one log. One that is seldom written, such as META, would keep old parts of it,
    # so RocksDB writes that family out at this size.
    options.set_max_total_wal_size(4 * _WRITE_BUFFER)
    options.set_keep_log_file_num(2)
    return options


class EngineSnapshot:
    """All column families of data as they were at one moment, for one thread.

    It consists of cursors, each fixed when it was made. It does not use a RocksDB snapshot, because this
    binding's iterator of a snapshot reads the current state instead (rocksdict 0.3.29). `entries` iterates
    over the range `scan` as (key, value), at half the cost of a cursor.
    """

    __slots__ = ("_cursors", "_points", "_upper", "entries")

    def __init__(self, families: Sequence[Any], scan: Range | None = None) -> None:
        self.entries: Iterator[tuple[bytes, bytes]] = iter(())
        if scan is not None:
            cf, start, end = scan
            self._upper = end  # kept alive, because the iterator reads these bytes in place
            options = ReadOptions()
            if end:
                options.set_iterate_upper_bound(end)
            self.entries = families[cf].items(from_key=start, read_opt=options)
        data = families[:_DATA_FAMILIES]  # not META: each cursor has a cost even if it is never used
        self._points = [_cursor(family, b"") for family in data]
        self._cursors = [[_cursor(family, b"") for _ in range(CURSORS_PER_FAMILY)] for family in data]

    def get(self, cf: int, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        cursor = self._points[cf]
        cursor.seek(key)
        return cursor.value() if cursor.valid() and cursor.key() == key else None

    def getter(self, cf: int) -> Callable[[bytes], bytes | None]:
        """`get` of one column family."""
        return partial(self.get, cf)

    def cursor(self, cf: int) -> Cursor:
        """An iterator of one column family, not yet positioned; at most `CURSORS_PER_FAMILY` of each."""
        return self._cursors[cf].pop()


class Engine:
    """The store of one data directory, which one process can open at a time. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        families = {name: _options() for name in _FAMILIES[1:]}
        try:
            self._db = Rdict(str(directory), _options(), column_families=families)
        except Exception as error:
            raise Fatal(
                "the upstream's store cannot be opened",
                where=str(directory),
                why=str(error),
                fix="end the other process that uses this data directory, or give another one",
            ) from error
        self._families = [self._db, *(self._db.get_column_family(name) for name in _FAMILIES[1:])]
        self._handles = [self._db.get_column_family_handle(name) for name in _FAMILIES]
        self._mutex = threading.Lock()

    def get(self, cf: int, key: bytes) -> bytes | None:
        """The current value of a key, or None."""
        value: bytes | None = self._families[cf].get(key)
        return value

    def getter(self, cf: int) -> Callable[[bytes], bytes | None]:
        """`get` of one column family."""
        found: Callable[[bytes], bytes | None] = self._families[cf].get
        return found

    def cursor(self, cf: int, upper: bytes = b"") -> Cursor:
        """An iterator fixed at this moment, ending before `upper` (empty: no end); not yet positioned."""
        return _cursor(self._families[cf], upper)

    def snapshot(self, scan: Range | None = None) -> EngineSnapshot:
        """All column families at the same moment: no write falls between them."""
        with self._mutex:
            return EngineSnapshot(self._families, scan)

    @property
    def sequence(self) -> int:
        """A number that rises with every change, also across restarts."""
        return int(self._db.latest_sequence_number())

    def write(self, changes: Iterable[Change], ranges: Iterable[Range] = ()) -> None:
        """Empty the ranges and then apply the changes, in order and atomically.

        When this returns, the write survives a kill of the process.
        """
        batch = WriteBatch(raw_mode=True)
        handles = self._handles
        for cf, start, end in ranges:
            self._empty(batch, cf, start, end)
        put, delete = batch.put, batch.delete
        for cf, key, value in changes:
            if value is None:
                delete(key, handles[cf])
            else:
                put(key, value, handles[cf])
        with self._mutex:
            # Under the mutex, so that `snapshot` finds no write between two column families.
            self._db.write(batch)

    def _empty(self, batch: WriteBatch, cf: int, start: bytes, end: bytes) -> None:
        # A range deletion of RocksDB needs an end, so the last key that exists gives one.
        if not end:
            cursor = self.cursor(cf)
            cursor.seek_to_last()
            if not cursor.valid():
                return
            end = cursor.key() + b"\0"
        if start < end:
            batch.delete_range(start, end, self._handles[cf])

    def sync(self) -> None:
        """Sync everything written so far to the disk."""
        self._db.flush_wal(True)

    def close(self) -> None:
        """Close; no call may follow. The directory is free once the last cursor is gone, too."""
        self._handles.clear()
        for family in self._families[1:]:
            family.close()
        self._families.clear()
        self._db.close()


class _Bounded:
    """A cursor that keeps the bytes of its upper bound alive: RocksDB reads them in place, and this binding
    does not hold a reference (rocksdict 0.3.29).
    """

    __slots__ = ("_upper", "key", "next", "prev", "seek", "seek_for_prev", "seek_to_last", "valid", "value")

    def __init__(self, cursor: Any, upper: bytes) -> None:
        self._upper = upper
        self.seek, self.seek_for_prev = cursor.seek, cursor.seek_for_prev
        self.seek_to_last, self.valid = cursor.seek_to_last, cursor.valid
        self.key, self.value, self.next, self.prev = cursor.key, cursor.value, cursor.next, cursor.prev


def _cursor(source: Any, upper: bytes) -> Cursor:
    options = ReadOptions()
    if not upper:
        plain: Cursor = source.iter(options)
        return plain
    options.set_iterate_upper_bound(upper)
    return _Bounded(source.iter(options), upper)
