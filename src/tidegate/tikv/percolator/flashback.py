"""Flashback: the records that restore a range to its state at a version. Pure.

First the locks of the range are removed, and the flashback locks the first key. Then every other key whose
value differs from the one at `version` gets that value, or a Delete, as one record at `commit_ts`. Last the
first key is committed. Its lock therefore holds the resolved ts back until all records are written, and a
repeated run detects what the first one did. (TiKV: storage/txn/actions/flashback_to_version.rs.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Change, Lock, Write
from tidegate.tikv.reader import MvccReader, View

BATCH_KEYS: Final = 256
"""The most keys of one command."""


def after(key: bytes) -> bytes:
    """The key where the records of all keys above an encoded key begin."""
    return keys.versioned(key, 0) + b"\0"


def written_keys(view: View, start: bytes, end: bytes) -> Iterator[bytes]:
    """The encoded keys of [start, end) with any write record, ascending."""
    cursor = view.cursor(mvcc.WRITE)
    cursor.seek(start)
    while cursor.valid():
        key = cursor.key()[: -keys.TS_BYTES]
        if end and key >= end:
            return
        yield key
        cursor.seek(after(key))


def lock_first(reader: MvccReader, key: bytes, version: int, start_ts: int) -> list[Change]:
    """The lock on the first key, with its value at `version`."""
    value = reader.value_at(key, version)
    raw = keys.decode(key)
    if value is None:
        return [(mvcc.LOCK, key, mvcc.encode_lock(Lock(mvcc.KIND_DELETE, raw, start_ts, 0)))]
    if len(value) <= mvcc.SHORT_VALUE_MAX:
        lock = Lock(mvcc.KIND_PUT, raw, start_ts, 0, short_value=value)
        return [(mvcc.LOCK, key, mvcc.encode_lock(lock))]
    lock = Lock(mvcc.KIND_PUT, raw, start_ts, 0)
    return [
        (mvcc.DEFAULT, keys.versioned(key, start_ts), value),
        (mvcc.LOCK, key, mvcc.encode_lock(lock)),
    ]


def rewrite(reader: MvccReader, key: bytes, version: int, start_ts: int, commit_ts: int) -> list[Change]:
    """The record that restores a key's value at `version`; none if the value has not changed."""
    newest = reader.newest_data(key, keys.TS_MAX)
    # A key that an earlier attempt has rewritten has this start_ts already.
    if newest is None or newest[0] <= version or newest[1].start_ts == start_ts:
        return []
    value = reader.value_at(key, version)
    if value is None:
        if newest[1].kind == mvcc.KIND_DELETE:
            return []
        write = Write(mvcc.KIND_DELETE, start_ts)
    elif len(value) <= mvcc.SHORT_VALUE_MAX:
        write = Write(mvcc.KIND_PUT, start_ts, value)
    else:
        write = Write(mvcc.KIND_PUT, start_ts)
    changes: list[Change] = []
    if value is not None and write.short_value is None:
        changes.append((mvcc.DEFAULT, keys.versioned(key, start_ts), value))
    changes.append((mvcc.WRITE, keys.versioned(key, commit_ts), mvcc.encode_write(write)))
    return changes
