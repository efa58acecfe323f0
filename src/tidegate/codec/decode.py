"""Decode batches of messages: templates learned from the plain decoder, values cut out by kernels.

The first row of a table (and column set) goes through the plain decoder. What it says about the table
gives a template; every further row of the same shape is matched and cut by `codec.decode_kernels`. All
that no template matches is decoded plainly, message by message, so that results never depend on it.

Templates: at most MAX_TEMPLATES are kept by one decoder, least recently learned dropped. Memory: 12
bytes per cell beside the messages themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.codec import decode_kernels as kernels
from tidegate.codec.assemble import BLOB_TYPES, RowKey, count
from tidegate.codec.base import BinaryColumn, Decoded, DecodedTable, Decoder, Headers, WireColumn
from tidegate.codec.json_text import easy_string, std_string
from tidegate.kernel import PAD, address
from tidegate.model.slots import DELETE, INSERT, UPDATE

Int64s = npt.NDArray[np.int64]
MAX_TEMPLATES: Final = 256
SAMPLE: Final = 64
"""Messages of unknown shape that are decoded plainly at a time, to learn their tables."""
Pieces = list[tuple[bytes, int, int]]
"""(constant, form, slot)."""


@dataclass(frozen=True, slots=True)
class Template:
    """A table's messages: the list of pieces of the key, and alternatives for the value."""

    key: RowKey
    lists: tuple[Pieces, ...]


def open_templates(key: RowKey) -> list[Template]:
    """Open-protocol's classic layout: columns in the order they came in, `u` then maybe `p`, or `d`."""
    head = b',"scm":' + std_string(key.schema.encode()) if key.schema else b""
    head += b',"tbl":' + std_string(key.table.encode()) if key.table else b""
    meta: Pieces = [(b'{"ts":', kernels.TIMESTAMP, 0), (head + b',"rid":', kernels.OPTIONAL, 0)]
    if key.physical_id is not None:
        partition = b',"ptn":%d' % key.physical_id
        meta = [
            *meta,
            (partition + b',"t":1}', kernels.END, 0),
            (head + partition + b',"t":1}', kernels.END, 0),
        ]
    else:
        meta = [*meta, (b',"t":1}', kernels.END, 0), (head + b',"t":1}', kernels.END, 0)]
    n = len(key.columns)

    def image(opening: bytes, base: int) -> Pieces:
        found: Pieces = []
        for i, column in enumerate(key.columns):
            mark = b',"h":true' if column.key else b""
            name = std_string(column.name.encode())
            text = b'%s:{"t":%d%s,"f":%d,"v":' % (name, column.mysql_type, mark, column.flag or 0)
            found.append((opening + text, kernels.CELL, base + i))
            opening = b"},"
        return found

    end = b"}}}"
    upserts = [
        *image(b'{"u":{', 0),
        (end, kernels.END, INSERT),
        *image(b'}},"p":{', n),
        (end, kernels.END, UPDATE),
    ]
    deletes = [*image(b'{"d":{', n), (end, kernels.END, DELETE)]
    return [Template(key, (meta, upserts, deletes, []))]


def canal_templates(key: RowKey) -> list[Template]:
    """Canal-JSON's layout, `mysqlType` in column order, with and without the TiDB extension."""
    return [
        Template(key, ([], *(_canal_list(key, op, extended) for op in (1, 2, 3))))
        for extended in (True, False)
    ]


def _canal_list(key: RowKey, op: int, extended: bool) -> Pieces:
    names = [easy_string(column.name.encode()) for column in key.columns]
    n = len(names)
    keys = b",".join(name for name, column in zip(names, key.columns, strict=True) if column.key)
    database, table = easy_string(key.schema.encode()), easy_string(key.table.encode())
    text = b'{"id":0,"database":%s,"table":%s,"pkNames":[%s],"isDdl":false,"type":"%s","es":' % (
        database,
        table,
        keys,
        (b"", b"INSERT", b"UPDATE", b"DELETE")[op],
    )
    found: Pieces = [
        (text, kernels.NUMBER if extended else kernels.MILLISECONDS, 0),
        (b',"ts":', kernels.NUMBER, 0),
    ]
    opening = b',"sql":"","sqlType":{'
    for name in names:
        found.append((opening + name + b":", kernels.NUMBER, 0))
        opening = b","
    types = (easy_string(column.type_name.encode()) for column in key.columns)
    opening = (
        b'},"mysqlType":{' + b",".join(n + b":" + t for n, t in zip(names, types, strict=True)) + b'},"old":'
    )
    opening += b"[{" if op == UPDATE else b'null,"data":[{'
    images = [n, 0] if op == UPDATE else [0 if op == INSERT else n]
    for base in images:
        for i, name in enumerate(names):
            found.append((opening + name + b":", kernels.CELL, base + i))
            opening = b","
        opening = b'}],"data":[{'
    if extended:
        found.append((b'}],"_tidb":{"commitTs":', kernels.TIMESTAMP, 0))
    return [*found, (b"}}" if extended else b"}]}", kernels.END, op)]


class _Compiled:
    """Templates in the memory layout of `match_items`."""

    def __init__(self, templates: Sequence[Template]) -> None:
        lists = [pieces for template in templates for pieces in template.lists]
        constants = b"".join(constant for pieces in lists for constant, _, _ in pieces)
        self.data = np.frombuffer(constants + bytes(PAD), dtype=np.uint8).copy()
        self.pieces = np.zeros((sum(map(len, lists)) + 1, 4), dtype=np.int64)
        self.lists = np.zeros((len(lists), 2), dtype=np.int64)
        at, offset = 0, address(self.data)
        for number, pieces in enumerate(lists):
            self.lists[number] = address(self.pieces) + kernels.PIECE_BYTES * at, len(pieces)
            for constant, form, slot in pieces:
                self.pieces[at] = offset, len(constant), form, slot
                offset, at = offset + len(constant), at + 1
        self.count = len(templates)
        self.stride = 2 * max((len(template.key.columns) for template in templates), default=0) + 1


class _UnfitError(Exception):
    """These messages matched a template but hold values that do not fit: decode them plainly."""

    def __init__(self, messages: Int64s) -> None:
        super().__init__()
        self.messages = messages


class BatchDecoder:
    """A `Decoder` over a plain one: the same result, in bulk."""

    def __init__(self, plain: Decoder, framed: bool) -> None:
        self._plain, self._framed = plain, framed
        self._templates: OrderedDict[RowKey, list[Template]] = OrderedDict()

    def decode(
        self,
        keys: BinaryColumn,
        values: BinaryColumn,
        headers: Sequence[Headers] | None,
        offsets: Sequence[int] | npt.NDArray[np.int64],
    ) -> Decoded:
        """As `Decoder.decode`; tables may come in another order than by first appearance."""
        batch = _Batch(keys, values, headers, np.asarray(offsets, dtype=np.int64), self._framed)
        left, parts = np.arange(count(keys, values, offsets)), []
        if self._templates:
            left, tables = self._matched(batch, left)
            parts.append(Decoded(rows=tables))
        while len(left) > SAMPLE:
            learned = batch.plain(self._plain, left[:SAMPLE])
            parts.append(learned)
            left = left[SAMPLE:]
            if self._learn(table for table in learned.rows):
                left, tables = self._matched(batch, left)
                parts.append(Decoded(rows=tables))
        if len(left):
            rest = batch.plain(self._plain, left)
            parts.append(rest)
            self._learn(table for table in rest.rows)
        return _join(parts)

    def _learn(self, tables: Iterable[DecodedTable]) -> bool:
        """Make templates of tables not seen before; whether there were any."""
        found = False
        for table in tables:
            key = RowKey(table.schema, table.table, table.physical_id, table.columns)
            if key not in self._templates:
                found = True
                self._templates[key] = open_templates(key) if self._framed else canal_templates(key)
                if len(self._templates) > MAX_TEMPLATES:
                    self._templates.popitem(last=False)
        return found

    def _matched(self, batch: _Batch, messages: Int64s) -> tuple[Int64s, list[DecodedTable]]:
        """What no template matched of these messages, and the tables of the others."""
        templates = [template for group in self._templates.values() for template in group]
        compiled, refused = _Compiled(templates), np.zeros(len(batch.offsets), dtype=np.bool_)
        while True:
            todo = messages[~refused[messages]]
            cut = _Cut(batch, todo, templates, compiled)
            try:
                return np.setdiff1d(messages, cut.whole, assume_unique=True), cut.tables()
            except _UnfitError as failed:
                refused[failed.messages] = True


class _Batch:
    """The messages of one call, with addresses."""

    def __init__(
        self,
        keys: BinaryColumn,
        values: BinaryColumn,
        headers: Sequence[Headers] | None,
        offsets: Int64s,
        framed: bool,
    ) -> None:
        self.keys, self.values = _large(keys), _large(values)
        self.headers, self.offsets, self.framed = headers, offsets, framed
        key_at, key_size = _spans(self.keys)
        value_at, value_size = _spans(self.values)
        self.spans = np.ascontiguousarray(np.stack([key_at, key_size, value_at, value_size], axis=1))

    def plain(self, decoder: Decoder, messages: Int64s) -> Decoded:
        """These messages through the plain decoder."""
        chosen = pa.array(messages)
        headers = None if self.headers is None else [self.headers[i] for i in messages.tolist()]
        return decoder.decode(
            self.keys.take(chosen).to_pylist(),
            self.values.take(chosen).to_pylist(),
            headers,
            self.offsets[messages],
        )


def _large(column: BinaryColumn) -> pa.Array:
    if isinstance(column, pa.Array):
        return column.cast(pa.large_binary())
    return pa.array(column, type=pa.large_binary())


def _spans(column: pa.Array) -> tuple[Int64s, Int64s]:
    """Addresses and sizes; a null has size 0, which no template matches."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(ends)
    if column.null_count:
        sizes = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, sizes)
    return ends[:-1] + (data.address if data is not None else 0), sizes


class _Cut:
    """Items of some messages matched against templates."""

    def __init__(
        self, batch: _Batch, messages: Int64s, templates: Sequence[Template], compiled: _Compiled
    ) -> None:
        self._batch, self._templates = batch, templates
        spans = np.ascontiguousarray(batch.spans[messages])
        if batch.framed:
            items, owner, self._seq = _framed_items(spans)
        else:
            items, owner, self._seq = spans, np.arange(len(messages)), np.zeros(len(messages), dtype=np.int32)
        self._owner = messages[owner]
        self._stride = compiled.stride
        self._starts = np.empty((len(items) + 1, compiled.stride), dtype=np.int64)
        self._lengths = np.empty((len(items) + 1, compiled.stride), dtype=np.int32)
        self._results = np.zeros((len(items) + 1, 3), dtype=np.int64)
        kernels.match_items(
            len(items), address(items), address(compiled.lists), compiled.count, compiled.stride,
            address(self._starts), address(self._lengths), address(self._results),
        )  # fmt: skip
        self._results = self._results[: len(items)]
        missed = np.zeros(len(batch.offsets), dtype=np.bool_)
        missed[self._owner[self._results[:, 2] < 0]] = True
        present = np.zeros(len(batch.offsets), dtype=np.bool_)
        present[self._owner] = True
        self.whole = messages[present[messages] & ~missed[messages]]
        """Messages all of whose items matched."""
        self._usable = ~missed[self._owner]

    def tables(self) -> list[DecodedTable]:
        """The rows of the whole messages by template; raises _UnfitError when some hold unfit values."""
        found, failed = [], []
        for number in np.unique(self._results[self._usable, 2]).tolist():
            rows = np.flatnonzero(self._usable & (self._results[:, 2] == number))
            bad = np.zeros(len(rows), dtype=np.uint8)
            found.append(self._table(self._templates[number].key, rows, bad))
            failed.append(self._owner[rows[bad != 0]])
        unfit = np.concatenate(failed) if failed else np.zeros(0, dtype=np.int64)
        if len(unfit):
            raise _UnfitError(unfit)
        return found

    def _table(self, key: RowKey, rows: Int64s, bad: npt.NDArray[np.uint8]) -> DecodedTable:
        op = self._results[rows, 0].astype(np.uint8)
        return DecodedTable(
            schema=key.schema,
            table=key.table,
            physical_id=key.physical_id,
            columns=key.columns,
            op=op,
            commit_ts=self._results[rows, 1].view(np.uint64),
            offset=self._batch.offsets[self._owner[rows]],
            seq=self._seq[rows].astype(np.int32),
            new=self._image(key, rows, op != DELETE, 0, bad),
            old=self._image(key, rows, op != INSERT, len(key.columns), bad),
        )

    def _image(
        self, key: RowKey, rows: Int64s, has: npt.NDArray[np.bool_], base: int, bad: npt.NDArray[np.uint8]
    ) -> pa.RecordBatch | None:
        if not has.any():
            return None
        chosen = np.flatnonzero(has)
        unfit = np.zeros(len(chosen), dtype=np.uint8)
        arrays = []
        for i, column in enumerate(key.columns):
            spans = rows[chosen] * self._stride + base + i
            arrays.append(self._column(column, spans, unfit))
        bad[chosen] |= unfit
        if len(chosen) < len(rows):
            at = np.cumsum(has) - 1
            places = pa.array(at, mask=~has)
            arrays = [array.take(places) for array in arrays]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in key.columns])

    def _column(self, column: WireColumn, spans: Int64s, unfit: npt.NDArray[np.uint8]) -> pa.Array:
        n, valid = len(spans), np.empty(len(spans), dtype=np.uint8)
        if column.type in (pa.int64(), pa.uint64()):
            out = np.empty(n, dtype=np.int64)
            kernels.take_integers(
                n, address(spans), address(self._starts), address(self._lengths),
                int(column.type == pa.uint64()), int(not self._batch.framed), address(out), address(valid),
                address(unfit),
            )  # fmt: skip
            return pa.array(
                out.view(np.dtype(column.type.to_pandas_dtype())), mask=valid == 0, type=column.type
            )
        sizes = np.maximum(self._lengths.reshape(-1)[spans].astype(np.int64), 0)
        data, ends = np.empty(int(sizes.sum()) + PAD, dtype=np.uint8), np.zeros(n + 1, dtype=np.int32)
        is_number = pa.types.is_floating(column.type)
        kernels.take_strings(
            n, address(spans), address(self._starts), address(self._lengths), self._mode(column),
            int(is_number and self._batch.framed), address(data), address(ends) + 4, address(valid),
            address(unfit),
        )  # fmt: skip
        mask = pa.array(valid == 1).buffers()[1] if not valid.all() else None
        texts = pa.Array.from_buffers(
            pa.string() if is_number else column.type, n, [mask, pa.py_buffer(ends), pa.py_buffer(data)]
        )
        return self._floats(texts, column, unfit) if is_number else texts

    def _floats(self, texts: pa.Array, column: WireColumn, unfit: npt.NDArray[np.uint8]) -> pa.Array:
        try:
            return pc.cast(texts, column.type)
        except pa.ArrowInvalid:
            unfit[:] = 1
            return pa.nulls(len(texts), column.type)

    def _mode(self, column: WireColumn) -> int:
        if column.type != pa.binary():
            blob = self._batch.framed and column.mysql_type in BLOB_TYPES
            return kernels.BASE64_TEXT if blob else kernels.TEXT
        if not self._batch.framed:
            return kernels.LATIN1
        return kernels.BASE64 if column.mysql_type in BLOB_TYPES else kernels.QUOTED


def _framed_items(spans: Int64s) -> tuple[Int64s, Int64s, npt.NDArray[np.int32]]:
    """Items of open-protocol messages: their spans, message numbers, numbers within the message."""
    total = kernels.split_batches(len(spans), address(spans), 0, 0, 0)
    items = np.empty((total + 1, 4), dtype=np.int64)
    owner = np.empty(2 * total + 2, dtype=np.int32)
    total = kernels.split_batches(len(spans), address(spans), address(items), address(owner), total + 1)
    return items[:total], owner[:total].astype(np.int64), owner[len(owner) // 2 :][:total]


def _join(parts: list[Decoded]) -> Decoded:
    """One result; rows of one table and column set become one table again, in order."""
    groups: dict[RowKey, list[DecodedTable]] = {}
    for part in parts:
        for table in part.rows:
            key = RowKey(table.schema, table.table, table.physical_id, table.columns)
            groups.setdefault(key, []).append(table)
    rows = [_merge(tables) for tables in groups.values()]
    rows.sort(key=lambda table: (int(table.offset[0]), int(table.seq[0])))
    return Decoded(
        rows,
        sorted((mark for part in parts for mark in part.resolved), key=lambda mark: mark[1]),
        sorted((ddl for part in parts for ddl in part.ddls), key=lambda ddl: ddl.offset),
        sorted((bad for part in parts for bad in part.bad), key=lambda bad: bad.offset),
    )


def _merge(tables: list[DecodedTable]) -> DecodedTable:
    if len(tables) == 1:
        return tables[0]
    offset = np.concatenate([table.offset for table in tables])
    seq = np.concatenate([table.seq for table in tables])
    order = np.lexsort((seq, offset))
    first = tables[0]
    return DecodedTable(
        schema=first.schema,
        table=first.table,
        physical_id=first.physical_id,
        columns=first.columns,
        op=np.concatenate([table.op for table in tables])[order],
        commit_ts=np.concatenate([table.commit_ts for table in tables])[order],
        offset=offset[order],
        seq=seq[order],
        new=_images([table.new for table in tables], tables, order),
        old=_images([table.old for table in tables], tables, order),
    )


def _images(
    images: list[pa.RecordBatch | None], tables: list[DecodedTable], order: Int64s
) -> pa.RecordBatch | None:
    present = next((image for image in images if image is not None), None)
    if present is None:
        return None
    whole = [
        image
        if image is not None
        else pa.RecordBatch.from_arrays(
            [pa.nulls(len(table), field.type) for field in present.schema], schema=present.schema
        )
        for image, table in zip(images, tables, strict=True)
    ]
    return pa.concat_batches(whole).take(pa.array(order))
