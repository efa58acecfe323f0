"""Changes of one table that do not fit into memory: split by key into parts on disk, applied one by one.

    staged rows, converted        one piece after the other, in memory for a moment
        |  split by a hash of the key
        v
    a file with all parts         as large as the rows
        |  one part at a time, read each time it is requested
        v
    net effect of a part

All changes of a key are in one part, so the parts' effects together are the effect of the whole. An update
that changes the key becomes a delete in the part of the old key and an insert in that of the new one, which
is also how `net_effect` treats it. Parts must be the same after a restart, in every process and release,
because a target that has written some of them continues with the next.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.consumer.applying.change_rows import logged
from tidegate.consumer.applying.net_effect import Changes, key_changed, net_effect
from tidegate.consumer.applying.target import Name, TableChanges
from tidegate.consumer.table.definition import Definition
from tidegate.model.cells import DELETE, INSERT

PARTS_MAX: Final = 1024
"""A table is split into at most this many parts; a larger table gets larger parts."""
_META: Final = ("op", "commit_ts", "partition", "offset", "seq")
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]


class PartedTable:
    """One table's changes in one step; the `Parted` of targets. Any thread may call its methods."""

    def __init__(
        self,
        name: Name,
        parts: int,
        size: int,
        read: Callable[[], Iterable[tuple[Definition, Changes]]],
        file: Path,
        trust_inserts: bool,
        by_kind: bool = True,
        *,
        every_change: bool = False,
    ) -> None:
        """`read`: the converted changes, piece by piece; called once. `size`: of the staged rows, in bytes.

        `file`: holds the parts until `close`. `trust_inserts`, `by_kind`: as in `net_effect`. `every_change`:
        as in `Target`; a part's effect is then its rows in the change log.
        """
        self.name, self.parts, self.size = name, parts, size
        self._read, self._file, self._trust, self._by_kind = read, file, trust_inserts, by_kind
        self._every_change = every_change
        self._lock = threading.Lock()
        self._known: Definition | None = None
        self._at: list[list[tuple[int, int]]] | None = None
        """(start, length) of each part's batches in the file."""
        self._takes: list[bool] = []

    def prepare(self) -> None:
        """Split the rows into parts. Errors in the rows are raised here."""
        self._cut_once()

    def net_changes(self, part: int) -> TableChanges | None:
        """The net effect of one part; None when it changes nothing."""
        at = self._cut_once()
        if not at[part]:
            return None
        assert self._known is not None
        changes = _joined([self._batch(*place) for place in at[part]])
        if self._every_change:
            return TableChanges(self._known, logged(changes, self._known.keys, knows_old=self._trust))
        kept = bool(self._known.soft_delete)
        effect = net_effect(changes, self._known.keys, self._trusts, self._by_kind, kept)
        return TableChanges(self._known, effect)

    @property
    def _trusts(self) -> bool:
        # An adopted table may already hold a row that the topic inserts. So may a table that keeps deleted
        # rows.
        known = self._known
        return self._trust and known is not None and not known.uniques and not known.soft_delete

    def _cut_once(self) -> list[list[tuple[int, int]]]:
        with self._lock:
            if self._at is None:
                self._at = self._cut()
            return self._at

    def may_delete(self, part: int) -> bool:
        """Whether the part may remove or overwrite a row; False if it only adds new rows."""
        self._cut_once()
        return self._takes[part]

    def close(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)

    def _cut(self) -> list[list[tuple[int, int]]]:
        """Write the changes of each part to the file. Returns the places of each part's batches."""
        places: list[list[tuple[int, int]]] = [[] for _ in range(self.parts)]
        self._takes = [False] * self.parts
        with self._file.open("wb") as sink:
            for known, changes in self._read():
                self._known = known
                for part, cut in enumerate(split(changes, known.keys, self.parts)):
                    if len(cut):
                        batch, start = _batch_of(cut), sink.tell()
                        with pa.ipc.new_stream(sink, batch.schema) as writer:
                            writer.write_batch(batch)
                        places[part].append((start, sink.tell() - start))
                        # An insert that is not trusted may find its row at the target, and then overwrites
                        # it.
                        self._takes[part] |= not self._trusts or bool((cut.op != INSERT).any())
        return places

    def _batch(self, start: int, length: int) -> pa.RecordBatch:
        # A handle for each read: several threads read parts at once, and a handle has one place.
        with self._file.open("rb") as file:
            file.seek(start)
            return pa.ipc.open_stream(pa.py_buffer(file.read(length))).read_next_batch()


def split(changes: Changes, keys: Sequence[str], parts: int) -> Iterator[Changes]:
    """Split changes by the hash of their key."""
    new = parts_of(changes.new.select(keys), parts)
    old = parts_of(changes.old.select(keys), parts)
    moves = key_changed(changes, keys) & (new != old)
    where = np.where(changes.op == DELETE, old, new)
    # Stable, because a repeated step must write each part with the same rows in the same order.
    order = np.argsort(where, kind="stable")
    ends = np.searchsorted(where[order], np.arange(parts + 1))
    moved = np.flatnonzero(moves)
    for part in range(parts):
        rows = order[ends[part] : ends[part + 1]]
        # An update that moves a row to another part is written twice: as an insert where its new key is, and
        # as a delete where its old key was.
        come, left = moves[rows], moved[old[moved] == part]
        op = np.concatenate([np.where(come, INSERT, changes.op[rows]), np.full(len(left), DELETE)])
        taken = np.concatenate([rows, left])
        yield Changes(
            op=op.astype(np.uint8),
            commit_ts=changes.commit_ts[taken],
            partition=changes.partition[taken],
            offset=changes.offset[taken],
            seq=changes.seq[taken],
            new=changes.new.take(taken),
            old=changes.old.take(taken),
        )


def parts_of(keys: pa.Table, parts: int) -> npt.NDArray[np.int64]:
    """The part of each key, 0 to parts - 1. Equal keys get the same part in every process and release."""
    code: Hashes = np.zeros(keys.num_rows, np.uint64)
    for column in keys.columns:
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        # Mixed after each column, so that keys with exchanged values, such as (1, 2) and (2, 1), get other
        # numbers.
        code = _mixed(code + _STEP + _numbers(array))
    return (code % np.uint64(parts)).astype(np.int64)


def _numbers(values: pa.Array) -> Hashes:
    """A number for each value, equal for equal values: an integer itself, or a checksum of the text."""
    if pa.types.is_integer(values.type):
        filled = values.fill_null(0).to_numpy(zero_copy_only=False)
        wide: Hashes = filled.astype(np.uint64)  # a negative number as its two's complement
        return wide
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.string()).cast(pa.binary())
    # A checksum and not `hash`, which gives another number in each process.
    return np.fromiter((zlib.crc32(value or b"") for value in values.to_pylist()), np.uint64, len(values))


def _mixed(code: Hashes) -> Hashes:
    """Mix the bits, with the finalizer of splitmix64.

    Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014.
    """
    code = (code ^ (code >> np.uint64(30))) * _MIX[0]
    code = (code ^ (code >> np.uint64(27))) * _MIX[1]
    mixed: Hashes = code ^ (code >> np.uint64(31))
    return mixed


def _batch_of(changes: Changes) -> pa.RecordBatch:
    numbers = (changes.op, changes.commit_ts, changes.partition, changes.offset, changes.seq)
    arrays = [pa.array(column) for column in numbers]
    names = list(_META)
    for prefix, table in (("n.", changes.new), ("o.", changes.old)):
        for name, column in zip(table.column_names, table.columns, strict=True):
            arrays.append(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type))
            names.append(prefix + name)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _joined(batches: Sequence[pa.RecordBatch]) -> Changes:
    table = pa.Table.from_batches(batches).combine_chunks()
    op, commit_ts, partition, offset, seq = (table[name].to_numpy() for name in _META)
    return Changes(op, commit_ts, partition, offset, seq, new=_image(table, "n."), old=_image(table, "o."))


def _image(table: pa.Table, prefix: str) -> pa.Table:
    names = [name for name in table.column_names if name.startswith(prefix)]
    return table.select(names).rename_columns([name[len(prefix) :] for name in names])
