"""Changes of one table that do not fit into memory: split into parts on disk, applied one by one.

    staged rows, converted        some pieces after the others, in memory for a moment
        |  gathered to about 16 MB, then split by a hash of the key, or of the whole row if there is no key
        v
    a file with all parts         as large as the rows
        |  one part at a time, read each time it is requested
        v
    net effect of a part

All changes of a key are in one part, so the parts' effects together are the effect of the whole. An update
that changes the key becomes a delete in the part of the old key and an insert in that of the new one, which
is also how `net_effect` treats it. Without a key every update is treated so: equal rows are in one part,
where they are counted. Parts must be the same after a restart, in every process and release, because a target
that has written some of them continues with the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.applying.change_rows import logged
from tidegate.consumer.applying.net_effect import Changes, Ints, key_changed, net_bag, net_effect
from tidegate.consumer.applying.part_file import ROW_BYTES, PartFile, gathered
from tidegate.consumer.applying.row_codes import Codes, codes_of, parts_of
from tidegate.consumer.applying.target import Name, TableChanges, blaming
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE, INSERT

PARTS_MAX: Final = 1024
"""A table is split into at most this many parts; a larger table gets larger parts."""
BAG_PART_MAX: Final = 256 << 20
"""The most bytes of rows in one part of a table without a key, with `ROW_BYTES` for each: equal rows are in
one part, however many.
"""
_META: Final = ("op", "commit_ts", "partition", "offset", "seq")
_RUN: Final = "run"


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
        self._cut, self._is_cut = PartFile(file, parts), False
        self._sifted = PartFile(file.with_name(f"{file.name}-held"), parts)
        self._takes: list[bool] = []
        self._gone: Codes = np.zeros(0, np.uint64)

    def prepare(self) -> None:
        """Split the rows into parts. Errors in the rows are raised here, and DiskFull."""
        self._cut_once()

    def net_changes(self, part: int) -> TableChanges | None:
        """The net effect of one part; None when it changes nothing."""
        cut = self._cut_once()
        if not cut.has(part):
            return None
        assert self._known is not None
        changes, keys = _joined(list(cut.read(part))), self._known.keys
        if self._every_change:
            return TableChanges(self._known, logged(changes, keys, knows_old=self._trust))
        if not keys:
            return TableChanges(self._known, net_bag(changes))
        kept = bool(self._known.soft_delete)
        effect = net_effect(changes, keys, self._trusts, self._by_kind, kept)
        return TableChanges(self._known, effect)

    @property
    def _trusts(self) -> bool:
        # An adopted table may already hold a row that the topic inserts. So may a table that keeps deleted
        # rows.
        known = self._known
        return self._trust and known is not None and not known.uniques and not known.soft_delete

    def _cut_once(self) -> PartFile:
        with self._lock:
            if not self._is_cut:
                try:
                    self._split()
                except BaseException:
                    # Another attempt begins another file, and this one may have filled the disk.
                    self._cut.close()
                    raise
                self._is_cut = True
            return self._cut

    def may_delete(self, part: int) -> bool:
        """Whether the part may remove or overwrite a row; False if it only adds new rows."""
        self._cut_once()
        return self._takes[part]

    def sift(self, rows: Iterable[pa.RecordBatch]) -> Callable[[int], Iterator[pa.RecordBatch]]:
        """By part, those of a target's `rows` that may equal a row to delete; `rows` are read at most once.

        Only for a table without a key. Memory holds a batch, the rows that are gathered for a cut, and
        8 bytes for each distinct row to delete. Raises DiskFull.
        """
        self._cut_once()
        if len(self._gone):
            for found in gathered(self._may_equal(rows), lambda one: one[0].nbytes + ROW_BYTES * len(one[1])):
                held = pa.Table.from_batches([batch for batch, _ in found]).combine_chunks()
                parts = parts_of(np.concatenate([codes for _, codes in found]), self.parts)
                for part, mine in _by_part(parts, self.parts):
                    for batch in held.take(mine).to_batches():
                        self._sifted.add(part, batch)
            self._sifted.end()
        return self._sifted.read

    def _may_equal(self, rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Codes]]:
        """The rows of each batch that may equal one to delete, with their numbers; no empty batches."""
        assert self._known is not None
        names = [column.name for column in self._known.columns]
        for batch in rows:
            codes = codes_of(pa.Table.from_batches([batch]).select(names))
            at = np.searchsorted(self._gone, codes)
            wanted = np.flatnonzero(self._gone[np.minimum(at, len(self._gone) - 1)] == codes)
            if len(wanted):
                yield batch.take(pa.array(wanted)), codes[wanted]

    def close(self) -> None:
        """Remove the files."""
        try:
            self._cut.close()
        finally:
            self._sifted.close()

    def _split(self) -> None:
        """Write the changes of each part to the file."""
        # Empty again, if an attempt has failed in the midst.
        self._cut, gone = PartFile(self._file, self.parts), list[Codes]()
        self._takes, sizes = [False] * self.parts, [0] * self.parts
        for pieces in gathered(self._read(), lambda piece: _bytes_of(piece[1])):
            self._known = pieces[-1][0]
            self._cut_together(_together([changes for _, changes in pieces]), self._known, gone, sizes)
        if self._known is not None and not self._known.keys and not self._every_change:
            self._gone = np.unique(np.concatenate(gone))
        self._cut.end()
        self._check_bag(sizes)

    def _cut_together(self, changes: Changes, known: Definition, gone: list[Codes], sizes: list[int]) -> None:
        """Write some changes to their parts, and add to `gone` and `sizes` for a table without a key."""
        if known.keys:
            cuts = split(changes, known.keys, self.parts)
        else:
            changes = updates_apart(changes)
            codes = bag_codes(changes)
            gone.append(np.unique(codes[changes.op == DELETE]))
            cuts = _taken(changes, parts_of(codes, self.parts), self.parts)
        for part, cut in cuts:
            self._cut.add(part, _batch_of(cut))
            sizes[part] += 0 if known.keys else bag_rows(cut).nbytes + ROW_BYTES * len(cut)
            # An insert that is not trusted may find its row at the target, and then overwrites it.
            trusted = self._trusts or not known.keys
            self._takes[part] |= not trusted or bool((cut.op != INSERT).any())

    def _check_bag(self, sizes: Sequence[int]) -> None:
        """Fatal when a part of a table without a key is too large; `sizes`: the bytes of each part's rows."""
        part = max(range(self.parts), key=sizes.__getitem__)
        if sizes[part] <= BAG_PART_MAX:
            return
        rows, size = _most_equal(self._cut.read(part))
        what, why = "a transaction is too large for a table without a key", "a part is processed in memory"
        if 2 * size > sizes[part]:
            what = "a transaction changes too many equal rows of a table without a key"
            why = "equal rows are counted together, in memory"
        with blaming(self.name):
            raise Fatal(
                what,
                where=f"table {'.'.join(self.name)}, part {part + 1} of {self.parts}",
                why=f"{why}: this part takes {sizes[part]:,} bytes, and the limit is {BAG_PART_MAX:,}; "
                f"{rows:,} equal rows are {size:,} bytes of it",
                fix="give the table a primary key upstream before such a transaction; to go past this "
                "one, leave the table out with --exclude",
            )


def _bytes_of(changes: Changes) -> int:
    values: int = changes.new.nbytes + changes.old.nbytes
    return values + ROW_BYTES * len(changes)


def split(changes: Changes, keys: Sequence[str], parts: int) -> Iterator[tuple[int, Changes]]:
    """Split changes by the hash of their key. Yields the parts that have changes."""
    new = parts_of(codes_of(changes.new.select(keys)), parts)
    old = parts_of(codes_of(changes.old.select(keys)), parts)
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
        if len(op):
            taken = np.concatenate([rows, left])
            yield part, _at(changes, taken, op, changes.new.take(taken), changes.old.take(taken))


def updates_apart(changes: Changes) -> Changes:
    """The changes with a delete and an insert for each update, and without values that say nothing."""
    puts, gone = np.flatnonzero(changes.op != DELETE), np.flatnonzero(changes.op != INSERT)
    op = np.concatenate([np.full(len(puts), INSERT), np.full(len(gone), DELETE)])
    # Null, so that each row is written to the disk once.
    new = pa.concat_tables([changes.new.take(puts), _nulls(changes.new.schema, len(gone))])
    old = pa.concat_tables([_nulls(changes.old.schema, len(puts)), changes.old.take(gone)])
    return _at(changes, np.concatenate([puts, gone]), op, new, old)


def bag_rows(changes: Changes) -> pa.Table:
    """Each change's whole row; there are no updates, and the inserts come first."""
    inserts = int(np.count_nonzero(changes.op == INSERT))
    deleted = changes.old.select(changes.new.column_names).slice(inserts)
    return pa.concat_tables([changes.new.slice(0, inserts), deleted])


def bag_codes(changes: Changes) -> Codes:
    """The number of each change's whole row, of changes as for `bag_rows`."""
    return codes_of(bag_rows(changes))


def _most_equal(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """The rows with most bytes of those that are equal by their codes: how many they are, and their bytes.

    Memory holds a batch, and some numbers for each distinct row.
    """
    codes: Codes = np.zeros(0, np.uint64)
    counts: npt.NDArray[Any] = np.zeros(0)
    sizes: npt.NDArray[Any] = np.zeros(0)
    for batch in batches:
        rows = bag_rows(_joined([batch]))
        codes, of = np.unique(np.concatenate([codes, codes_of(rows)]), return_inverse=True)
        counts = np.bincount(of, np.concatenate([counts, np.ones(rows.num_rows)]))
        sizes = np.bincount(of, np.concatenate([sizes, row_bytes(rows) + ROW_BYTES]))
    most = int(np.argmax(sizes))
    return int(counts[most]), int(sizes[most])


def row_bytes(rows: pa.Table) -> npt.NDArray[np.float64]:
    """The bytes of each row in memory, without its marks of nulls."""
    size = np.zeros(rows.num_rows)
    for column in rows.columns:
        kind = column.type
        if pa.types.is_list(kind):
            lengths = pc.multiply(pc.list_value_length(column), kind.value_type.bit_width // 8)
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            lengths = pc.binary_length(column)
        else:
            size += kind.bit_width / 8
            continue
        # Each value has an offset of 4 bytes, too.
        size += pc.fill_null(lengths, 0).to_numpy() + 4
    return size


def _nulls(schema: pa.Schema, count: int) -> pa.Table:
    return pa.table([pa.nulls(count, kind) for kind in schema.types], schema=schema)


def _taken(changes: Changes, where: Ints, parts: int) -> Iterator[tuple[int, Changes]]:
    for part, rows in _by_part(where, parts):
        yield part, _at(changes, rows, changes.op[rows], changes.new.take(rows), changes.old.take(rows))


def _by_part(where: Ints, parts: int) -> Iterator[tuple[int, Ints]]:
    """The places of each part that has some, in their order."""
    order = np.argsort(where, kind="stable")
    ends = np.searchsorted(where[order], np.arange(parts + 1))
    for part in np.flatnonzero(np.diff(ends)).tolist():
        yield part, order[ends[part] : ends[part + 1]]


def _at(changes: Changes, rows: Ints, op: npt.NDArray[Any], new: pa.Table, old: pa.Table) -> Changes:
    """The changes at these places, as these operations and with these images."""
    return Changes(
        op=op.astype(np.uint8),
        commit_ts=changes.commit_ts[rows],
        partition=changes.partition[rows],
        offset=changes.offset[rows],
        seq=changes.seq[rows],
        new=new,
        old=old,
        run=changes.run[rows] if changes.run is not None else None,
    )


def _together(pieces: Sequence[Changes]) -> Changes:
    """The changes of all pieces, in their order. Either all pieces have runs, or none has."""
    if len(pieces) == 1:
        return pieces[0]
    runs = [piece.run for piece in pieces if piece.run is not None]
    return Changes(
        op=np.concatenate([piece.op for piece in pieces]),
        commit_ts=np.concatenate([piece.commit_ts for piece in pieces]),
        partition=np.concatenate([piece.partition for piece in pieces]),
        offset=np.concatenate([piece.offset for piece in pieces]),
        seq=np.concatenate([piece.seq for piece in pieces]),
        # One chunk for each column: rows are taken from them for every part.
        new=pa.concat_tables([piece.new for piece in pieces]).combine_chunks(),
        old=pa.concat_tables([piece.old for piece in pieces]).combine_chunks(),
        run=np.concatenate(runs) if runs else None,
    )


def _batch_of(changes: Changes) -> pa.RecordBatch:
    numbers = (changes.op, changes.commit_ts, changes.partition, changes.offset, changes.seq)
    arrays = [pa.array(column) for column in numbers]
    names = list(_META)
    if changes.run is not None:
        arrays.append(pa.array(changes.run))
        names.append(_RUN)
    for prefix, table in (("n.", changes.new), ("o.", changes.old)):
        for name, column in zip(table.column_names, table.columns, strict=True):
            arrays.append(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type))
            names.append(prefix + name)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _joined(batches: Sequence[pa.RecordBatch]) -> Changes:
    table = pa.Table.from_batches(batches).combine_chunks()
    op, commit_ts, partition, offset, seq = (table[name].to_numpy() for name in _META)
    new, old = _image(table, "n."), _image(table, "o.")
    run = table[_RUN].to_numpy() if _RUN in table.column_names else None
    return Changes(op, commit_ts, partition, offset, seq, new, old, run)


def _image(table: pa.Table, prefix: str) -> pa.Table:
    names = [name for name in table.column_names if name.startswith(prefix)]
    return table.select(names).rename_columns([name[len(prefix) :] for name in names])
