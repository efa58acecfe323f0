"""Decodes batches of messages: learns templates from the plain decoder, and cuts out values with kernels.

The first row of a table (and column set) goes through the plain decoder. From its result a template of the
table's messages is made. Then `codec.kernels.match_kernels` and `codec.kernels.decode_kernels` match and cut
every further row of the same form. Messages that match no template are decoded plainly, one by one, so that
results never depend on the templates.

Tables with the same columns are cut together, into one record batch; each table gets a slice of it: so a
batch of messages costs little for each table in it, and the cost per column arises once per set of columns.

Templates: one decoder keeps at most MAX_TEMPLATES tables and TEMPLATE_BYTES of text, and drops the ones
learned first. Memory: 12 bytes per cell, in addition to the messages and the result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.codec.base import Batch, BinaryColumn, CodecOptions, Decoded, DecodedTable, Decoder, WireColumn
from tidegate.codec.decoding import sums
from tidegate.codec.decoding.assemble import RowKey
from tidegate.codec.decoding.compiled import CompiledTemplate, Routes, compiled
from tidegate.codec.decoding.joined import join, key_of
from tidegate.codec.decoding.opening import opening
from tidegate.codec.decoding.template import CellForm, DecodeForm
from tidegate.codec.entry import ReadCodec
from tidegate.codec.formats.compression import NONE
from tidegate.codec.kernels import batch_kernels, match_kernels, template_kernels
from tidegate.codec.kernels import decode_kernels as kernels
from tidegate.codec.kernels.layout_kernels import MESSAGE_KEY, MESSAGE_VALUE
from tidegate.codec.large import LargeOptions
from tidegate.codec.registry import reader_of
from tidegate.kernel import PAD, address
from tidegate.model.cells import DELETE, INSERT

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
MAX_TEMPLATES: Final = 4096
TEMPLATE_BYTES: Final = 64 << 20
SAMPLE: Final = 64
"""Messages of unknown form that are decoded plainly at a time, to learn their tables."""
MOST_BYTES: Final = 1 << 30
"""Bytes of values that are decoded at a time, because the offsets of a column's texts have 32 bits."""


class _Shape:
    """A set of columns, and everything that its record batches have in common."""

    def __init__(self, columns: tuple[WireColumn, ...], form: DecodeForm) -> None:
        self.columns = columns
        self.cells = [form.cells(column) for column in columns]
        self.schema = pa.schema([(column.name, column.type) for column in columns])
        self.taken_as = [_taken_as(column, cells) for column, cells in zip(columns, self.cells, strict=True)]
        """The type of the array that the kernel fills; `_converted` makes the column of it."""
        self.as_words = np.array([of_type in (pa.int64(), pa.uint64()) for of_type in self.taken_as] * 2)
        n = len(columns)
        self.head = np.zeros((2 * n, kernels.COLUMN_WORDS), dtype=np.int64)
        for i, (of_type, cells) in enumerate(zip(self.taken_as * 2, self.cells * 2, strict=True)):
            mode = cells.mode
            if self.as_words[i]:
                mode = kernels.UNSIGNED if of_type == pa.uint64() else kernels.SIGNED
            self.head[i, :4] = mode, cells.quoted, i, i >= n
        self.plain = all(
            cells.convert is None and of_type == column.type
            for column, cells, of_type in zip(columns, self.cells, self.taken_as, strict=True)
        )


def _taken_as(column: WireColumn, cells: CellForm) -> pa.DataType:
    of_type = column.type if cells.decoded_as is None else cells.decoded_as
    return pa.string() if pa.types.is_floating(of_type) else of_type


@dataclass(slots=True)
class _TemplatedTable:
    """A table whose messages have templates."""

    key: RowKey
    shape: _Shape
    templates: list[CompiledTemplate]
    size: int


class _Tables:
    """The known tables in the form that the kernels use: by the number of a template, and by rank.

    A rank is a table's place in an order in which tables of one shape are next to each other.
    """

    def __init__(self, known: Sequence[_TemplatedTable], route: Routes) -> None:
        by_shape: dict[int, list[_TemplatedTable]] = {}
        for one in known:
            by_shape.setdefault(id(one.shape), []).append(one)
        self.ranked = [one for group in by_shape.values() for one in group]
        templates = [template for one in self.ranked for template in one.templates]
        self.lists = np.concatenate([template.lists for template in templates])
        self.strides = np.array(
            [2 * len(one.key.columns) + 2 * t.summed for one in self.ranked for t in one.templates],
            dtype=np.int64,
        )
        self.summed = np.array([template.summed for template in templates], dtype=np.bool_)
        self.widest = int(self.strides.max())
        self.ranks = np.repeat(
            np.arange(len(self.ranked), dtype=np.int64), [len(one.templates) for one in self.ranked]
        )
        self.route = route
        self.following, self.routes = route.table(templates)
        ends = np.cumsum([len(group) for group in by_shape.values()])
        self.shapes = [
            (int(end) - len(group), int(end)) for end, group in zip(ends, by_shape.values(), strict=True)
        ]
        """(first rank, end) of each shape."""


def decoder(options: CodecOptions) -> Decoder:
    """The decoder of a protocol. It learns tables while it decodes, so keep one per topic."""
    codec = reader_of(options)
    if codec.large is not None and isinstance(options, LargeOptions):
        inner = replace(options, large_message_handle_compression=NONE)
        return opening(_decoder(codec, inner), options, codec.large)
    return _decoder(codec, options)


def _decoder(codec: ReadCodec[Any], options: CodecOptions) -> Decoder:
    plain = codec.decoder(options)
    reader = plain if codec.form is None else BatchDecoder(plain, codec.form)
    return reader if codec.binary is None else codec.binary(plain, reader)


class BatchDecoder:
    """A `Decoder` on top of a plain one: the same results, but decoded in bulk."""

    def __init__(self, plain: Decoder, form: DecodeForm) -> None:
        self._plain, self._form = plain, form
        self._known: OrderedDict[RowKey, _TemplatedTable] = OrderedDict()
        self._shapes: WeakValueDictionary[tuple[WireColumn, ...], _Shape] = WeakValueDictionary()
        self._size = 0
        self._route = Routes(form.route)
        self._tables: _Tables | None = None

    def decode(self, batch: Batch) -> Decoded:
        """As `Decoder.decode`, but tables may be in another order than that of first appearance."""
        messages = _Messages(batch, self._form)
        if len(batch) > 1 and int(messages.spans[:, 3].sum()) > MOST_BYTES:
            return join([self.decode(half) for half in _halves(batch, messages)])
        before = self._form.redefined(self._plain)
        left, tables, parts = np.arange(len(batch)), list[tuple[RowKey, DecodedTable]](), list[Decoded]()
        if self._known:
            left, tables = self._matched(messages, left)
        while len(left) > SAMPLE:
            # One message of a table is enough to make its templates, so the rest waits until a sample is
            # learned.
            learned = messages.plain(self._plain, left[:SAMPLE])
            parts.append(learned)
            left = left[SAMPLE:]
            if self._learn(learned.rows):
                left, more = self._matched(messages, left)
                tables += more
        if len(left):
            rest = messages.plain(self._plain, left)
            parts.append(rest)
            self._learn(rest.rows)
        if self._form.redefined(self._plain) != before:
            # The plain decoder reads the definitions of a batch before its rows. These definitions may change
            # the meaning of rows decoded by templates, so everything is decoded again, plainly.
            self._known.clear()
            self._size, self._tables = 0, None
            tables, parts = [], [messages.plain(self._plain, np.arange(len(batch)))]
        return join(self._again(messages, parts), tables)

    def _again(self, messages: _Messages, parts: list[Decoded]) -> list[Decoded]:
        """Decode messages again that needed a definition which came later in the same batch."""
        waiting = [bad.offset for part in parts for bad in part.bad if bad.unknown is not None]
        if not waiting:
            return parts
        kept = [replace(part, bad=[bad for bad in part.bad if bad.unknown is None]) for part in parts]
        left = np.searchsorted(messages.offsets, np.array(waiting, dtype=np.int64))
        return [*kept, messages.plain(self._plain, left)]

    def _learn(self, tables: Iterable[DecodedTable]) -> bool:
        """Make templates of tables that are not known yet; returns whether there were any."""
        found = False
        for table in tables:
            key = key_of(table)
            if key in self._known:
                continue
            found = True
            shape = self._shapes.get(key.columns)
            if shape is None:
                shape = self._shapes[key.columns] = _Shape(key.columns, self._form)
            templates = compiled(self._form.templates(key))
            one = _TemplatedTable(key, shape, templates, sum(template.size for template in templates))
            self._known[key] = one
            self._size += one.size
            # The newest stays, however large: without templates each of its rows would be decoded plainly.
            while len(self._known) > MAX_TEMPLATES or (self._size > TEMPLATE_BYTES and len(self._known) > 1):
                self._size -= self._known.popitem(last=False)[1].size
        if found:
            self._tables = None
        return found

    def _matched(
        self, batch: _Messages, messages: Int64s
    ) -> tuple[Int64s, list[tuple[RowKey, DecodedTable]]]:
        """The messages that matched no template, and the tables of the others."""
        if self._tables is None:
            known = [one for one in self._known.values() if one.templates]
            if not known:
                return messages, []
            self._tables = _Tables(known, self._route)
        cut = _Cut(batch, messages, self._tables)
        found = cut.tables()
        return cut.left(), found


def _halves(batch: Batch, messages: _Messages) -> list[Batch]:
    middle, end = len(batch) // 2, len(batch)
    return [
        Batch(
            messages.keys[first:last],
            messages.values[first:last],
            messages.offsets[first:last],
            None if batch.headers is None else batch.headers[first:last],
        )
        for first, last in ((0, middle), (middle, end))
    ]


class _Messages:
    """The messages of one call, with their addresses."""

    def __init__(self, batch: Batch, form: DecodeForm) -> None:
        self.keys, self.values, self.form = _large(batch.keys), _large(batch.values), form
        self.headers, self.offsets = batch.headers, np.asarray(batch.offsets, dtype=np.int64)
        key_at, key_size = _spans(self.keys)
        value_at, value_size = _spans(self.values)
        self.spans = np.ascontiguousarray(np.stack([key_at, key_size, value_at, value_size], axis=1))

    def plain(self, decoder: Decoder, messages: Int64s) -> Decoded:
        """Decode these messages with the plain decoder."""
        chosen = pa.array(messages)
        headers = None if self.headers is None else [self.headers[i] for i in messages.tolist()]
        keys, values = self.keys.take(chosen).to_pylist(), self.values.take(chosen).to_pylist()
        return decoder.decode(Batch(keys, values, self.offsets[messages], headers))


def _large(column: BinaryColumn) -> pa.Array:
    if isinstance(column, pa.Array):
        return column.cast(pa.large_binary())
    return pa.array(column, type=pa.large_binary())


def _spans(column: pa.Array) -> tuple[Int64s, Int64s]:
    """Addresses and sizes; a null has size 0, which matches no template."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(ends)
    if column.null_count:
        sizes = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, sizes)
    return ends[:-1] + (data.address if data is not None else 0), sizes


class _Cut:
    """The items of some messages, matched against templates."""

    def __init__(self, batch: _Messages, messages: Int64s, tables: _Tables) -> None:
        self._batch, self._messages, self._known = batch, messages, tables
        spans = batch.spans if len(messages) == len(batch.offsets) else batch.spans[messages]
        if batch.form.framed:
            self._items, self._owner, self._seq = _framed_items(spans)
        else:
            self._items = spans
            self._owner = np.arange(len(messages), dtype=np.int32)
            self._seq = np.zeros(len(messages), dtype=np.int32)
        n, route = len(self._items), tables.route
        # Memory that is not written is never touched: an item uses as many spans as its table has cells.
        self._starts = np.empty(n * tables.widest + 1, dtype=np.int64)
        self._lengths = np.empty(n * tables.widest + 1, dtype=np.int32)
        self._results = np.empty((n + 1, template_kernels.RESULT_BYTES // 8), dtype=np.int64)
        templates = template_kernels.Templates(
            lists=address(tables.lists),
            strides=address(tables.strides),
            following=address(tables.following),
            routes=address(tables.routes),
            mask=len(tables.routes) - 1,
            head=address(route.pieces),
            head_pieces=len(route.pieces),
            head_at=MESSAGE_KEY if route.in_key else MESSAGE_VALUE,
        )
        match_kernels.match_items(n, address(self._items), templates, self._spans())
        self._results = self._results[:n]
        self._missed = np.ones(len(messages) + 1, dtype=np.uint8)
        """Which of these messages are left over; the extra entry at the end belongs to no message."""
        self._missed[self._owner] = 0
        self._missed[self._owner[self._results[:, template_kernels.RESULT_TEMPLATE // 8] < 0]] = 1
        self._bad = np.zeros(n + 1, dtype=np.uint8)

    def _spans(self) -> template_kernels.Spans:
        return template_kernels.Spans(address(self._results), address(self._starts), address(self._lengths))

    def left(self) -> Int64s:
        """The messages that have an item that did not match or did not fit its columns."""
        left: Int64s = self._messages[self._missed[:-1] != 0]
        return left

    def tables(self) -> list[tuple[RowKey, DecodedTable]]:
        """The rows of all other messages, table by table."""
        while True:
            found = self._gathered()
            if not self._bad.any():
                return found
            # A message is decoded as a whole or not at all: leave out those with bad items, and gather again.
            self._missed[self._owner[np.flatnonzero(self._bad[:-1])]] = 1
            self._bad[:] = 0

    def _gathered(self) -> list[tuple[RowKey, DecodedTable]]:
        known, n = self._known, len(self._items)
        counts = np.zeros(len(known.ranked) + 1, dtype=np.int64)
        ops, order = np.zeros(len(known.ranked), dtype=np.uint8), np.empty(n + 1, dtype=np.int64)
        by = match_kernels.Ranks(address(known.ranks), len(known.ranked), address(counts), address(ops))
        owners = address(self._owner), address(self._missed)
        total = match_kernels.order_items(n, address(self._results), *owners, by, address(order))
        if total == 0:
            return []
        found: list[tuple[RowKey, DecodedTable]] = []
        for first, end in known.shapes:
            start, stop = int(counts[first]), int(counts[end])
            if start < stop:
                found += self._of_shape(counts[first : end + 1], ops[first:end], order[start:stop], first)
        return found

    def _of_shape(
        self, counts: Int64s, ops: npt.NDArray[np.uint8], order: Int64s, first_rank: int
    ) -> list[tuple[RowKey, DecodedTable]]:
        """The tables of one shape. `counts`: where the rows of each begin; `ops`: its operations, as bits."""
        ranked, some = self._known.ranked, int(np.bitwise_or.reduce(ops))
        shape = ranked[first_rank].shape
        has_new, has_old = some & ~(1 << DELETE) != 0, some & ~(1 << INSERT) != 0
        new, old = self._images(shape, order, has_new=has_new, has_old=has_old)
        results, owner = self._results[order], self._owner[order]
        op, commit_ts = results[:, 0].astype(np.uint8), results[:, 1].view(np.uint64)
        offset, seq = self._batch.offsets[self._messages[owner]], self._seq[order]
        stated = self._stated(shape, order, self._known.summed[results[:, 2]])
        found: list[tuple[RowKey, DecodedTable]] = []
        for number in np.flatnonzero(ops).tolist():
            key, here = ranked[first_rank + number].key, int(ops[number])
            start, stop = int(counts[number] - counts[0]), int(counts[number + 1] - counts[0])
            part, whole = slice(start, stop), stop - start == len(order)
            images = [
                image if whole or image is None else image.slice(start, stop - start)
                for image in (
                    new if here & ~(1 << DELETE) else None,
                    old if here & ~(1 << INSERT) else None,
                )
            ]
            table = DecodedTable(
                key.schema, key.table, key.physical_id, key.columns, op[part], commit_ts[part],
                offset[part], seq[part], images[0], images[1], key.version,
            )  # fmt: skip
            if stated is not None:
                zone = next((column.zone for column in key.columns if column.zone), "UTC")
                sound = sums.matching(table, stated[0][part], stated[1][part], zone)
                self._bad[order[part][~sound]] = 1
            found.append((key, table))
        return found

    def _stated(
        self, shape: _Shape, order: Int64s, summed: npt.NDArray[np.bool_]
    ) -> tuple[Int64s, Int64s] | None:
        """The checksums in the messages for both images of these items, -1 if an image has none. None if no
        item has one, or if some item is bad anyway: then the remaining items are gathered again.
        """
        chosen = order[summed]
        n, count = len(chosen), len(shape.columns)
        if not n or self._bad.any():
            return None
        # There are four columns, one per checksum and side: the kernel fills those of the first side for all
        # rows but deletes, and those of the second side for all rows but inserts.
        bits, out = np.zeros((4, (n + 63) // 64 * 8), dtype=np.uint8), np.zeros((4, n), dtype=np.uint64)
        columns = np.zeros((4, kernels.COLUMN_WORDS), dtype=np.int64)
        for number, (side, image) in enumerate(product((0, 1), (0, 1))):
            columns[number, :4] = kernels.UNSIGNED, 0, 2 * count + image, side
            columns[number, kernels.C_VALID // 8] = address(bits[number])
            columns[number, kernels.C_OUT // 8] = address(out[number])
        scratch = np.empty(2 * kernels.CHUNK, dtype=np.int64)
        kernels.gather(
            *(n, address(chosen), self._spans()),
            *(address(columns), len(columns), address(scratch), address(self._bad)),
        )
        valid = np.unpackbits(bits, axis=1, bitorder="little")[:, :n] != 0
        found = np.where(valid, out, np.uint64(0))
        found = np.where(valid[:2], found[:2], found[2:])
        self._bad[chosen[(found >> np.uint64(32) != 0).any(axis=0)]] = 1
        stated = np.full((2, len(order)), -1, dtype=np.int64)
        stated[:, summed] = np.where(found != 0, found.astype(np.int64), -1)
        ops = self._results[order, 0]
        stated[0, ops == DELETE] = stated[1, ops == INSERT] = -1
        return stated[0], stated[1]

    def _images(
        self, shape: _Shape, order: Int64s, *, has_new: bool, has_old: bool
    ) -> list[pa.RecordBatch | None]:
        """The new and the old images of these items, each with one row per item."""
        n, count = len(order), len(shape.columns)
        shown = slice(0 if has_new else count, 2 * count if has_old else count)
        sums = np.zeros(2 * count, dtype=np.int64)
        kernels.measure(
            n, address(order), address(self._results), address(self._lengths), count, address(sums)
        )
        as_words, sums = shape.as_words[shown], sums[shown]
        bits, ends = _aligned((n + 63) // 64 * 8), _aligned(4 * n + 4)
        sizes = np.where(as_words, bits + _aligned(8 * n), bits + ends + _aligned(sums + PAD))
        starts = np.cumsum(sizes) - sizes
        arena = np.empty(int(sizes.sum()) + PAD, dtype=np.uint8)
        base = address(arena)
        columns = shape.head[shown].copy()
        columns[:, kernels.C_VALID // 8] = base + starts
        columns[:, kernels.C_ENDS // 8] = base + starts + bits
        data = starts + np.where(as_words, bits, bits + ends)
        columns[:, kernels.C_OUT // 8] = base + data
        # The first offset is always 0, and `gather` writes only the ends.
        for at in (starts[~as_words] + bits).tolist():
            arena[at : at + 4] = 0
        scratch = np.empty(2 * kernels.CHUNK, dtype=np.int64)
        kernels.gather(
            *(n, address(order), self._spans()),
            *(address(columns), len(columns), address(scratch), address(self._bad)),
        )
        memory, arrays = pa.py_buffer(arena), []
        nulls = columns[:, kernels.C_NULLS // 8].tolist()
        for number, (start, at, size, null) in enumerate(
            zip(starts.tolist(), data.tolist(), sums.tolist(), nulls, strict=True)
        ):
            buffers = [memory.slice(start, bits) if null else None]
            if as_words[number]:
                buffers.append(memory.slice(at, 8 * n))
            else:
                buffers += [memory.slice(start + bits, 4 * n + 4), memory.slice(at, size)]
            of_type = shape.taken_as[(number + shown.start) % count]
            arrays.append(pa.Array.from_buffers(of_type, n, buffers, null))
        images: list[pa.RecordBatch | None] = [None, None]
        for side in (0, 1) if has_new and has_old else (0,) if has_new else (1,):
            some = arrays[:count] if side == 0 or not has_new else arrays[count:]
            if not shape.plain:
                some = [self._converted(shape, i, array, order) for i, array in enumerate(some)]
            images[side] = pa.RecordBatch.from_arrays(some, schema=shape.schema)
        return images

    def _converted(self, shape: _Shape, number: int, found: pa.Array, order: Int64s) -> pa.Array:
        """The column made from an array of the texts in the messages; marks items that do not fit as bad."""
        column, cells = shape.columns[number], shape.cells[number]
        of_type = column.type if cells.decoded_as is None else cells.decoded_as
        if pa.types.is_floating(of_type):
            found, wrong = _floats(found, of_type)
            self._bad[order[wrong]] = 1
        if cells.convert is None:
            return found
        made, flags = cells.convert(found, column)
        self._bad[order[flags != 0]] = 1
        return made


def _aligned(size: Any) -> Any:
    return (size + 63) // 64 * 64


def _floats(texts: pa.Array, of_type: pa.DataType) -> tuple[pa.Array, Int64s]:
    """Numbers parsed from texts, and the rows whose text is not a number."""
    try:
        return pc.cast(texts, of_type), np.zeros(0, dtype=np.int64)
    except pa.ArrowInvalid:
        wrong = [i for i, text in enumerate(texts) if not _is_float(text, of_type)]
        return pa.nulls(len(texts), of_type), np.array(wrong, dtype=np.int64)


def _is_float(text: pa.Scalar, of_type: pa.DataType) -> bool:
    try:
        pc.cast(text, of_type)
    except pa.ArrowInvalid:
        return False
    return True


def _framed_items(spans: Int64s) -> tuple[Int64s, Int32s, Int32s]:
    """The items of messages that are batches: their spans, message numbers, numbers within the message."""
    total = batch_kernels.split_batches(len(spans), address(spans), 0, 0, 0)
    items = np.empty((total + 1, 4), dtype=np.int64)
    owner = np.empty(2 * total + 2, dtype=np.int32)
    total = batch_kernels.split_batches(len(spans), address(spans), address(items), address(owner), total + 1)
    return items[:total], owner[:total], owner[len(owner) // 2 :][:total]
