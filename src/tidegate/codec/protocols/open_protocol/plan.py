"""The encode plan of a table for open-protocol; the plain twin is `plain.OpenProtocolEncoder`."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.codec.decoding.assemble import BINARY_FLAG, BLOB_TYPES, HANDLE_KEY_FLAG
from tidegate.codec.kernels import connect_kernels as connect
from tidegate.codec.kernels import piece_kernels
from tidegate.codec.large import REFUSE, placed_text, planned_location, without_key
from tidegate.codec.plan import (
    NEW,
    NUMBERS,
    OLD,
    OPERATIONS,
    EncodePlan,
    Shape,
    Writer,
    bare,
    quoted,
    text_shape,
)
from tidegate.codec.protocols.open_protocol.plain import (
    NEW as NEW_FLAVOUR,
)
from tidegate.codec.protocols.open_protocol.plain import (
    OpenOptions,
    reduced_mark,
    shown_columns,
    string_json,
    why_no_delete,
)
from tidegate.model.cells import DELETE, UPDATE
from tidegate.model.schema import Column, Kind, TableSchema


def plan(table: TableSchema, options: OpenOptions, digits: int) -> EncodePlan:
    """The plan of a table version; the build time is not sent."""
    made = _Pieces(table, options)
    made.key()
    for op in OPERATIONS:
        made.operation(op)
    if options.reduced != REFUSE and not table.handle_key:
        return made.writer.plan(
            table, made.shapes, framed=True, refused=dict.fromkeys(OPERATIONS, without_key(table, options))
        )
    refused = why_no_delete(table, options)
    return made.writer.plan(
        table,
        made.shapes,
        framed=True,
        max_rows=options.max_batch_size,
        refused={} if refused is None else {DELETE: refused},
    )


def _shape(column: Column, flag: int, flavour: str) -> Shape:
    """How open-protocol writes a column (docs/formats/open-protocol.md#values)."""
    if flavour == NEW_FLAVOUR:
        return _new_shape(column, flag)
    if column.kind in NUMBERS:
        return bare(NUMBERS[column.kind])
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        return bare(piece_kernels.FLOAT_JSON if column.kind is Kind.FLOAT else piece_kernels.DOUBLE_JSON)
    if column.mysql_type in BLOB_TYPES:
        return quoted(piece_kernels.BASE64)
    return text_shape(column, std=1) or quoted(
        piece_kernels.QUOTED if flag & BINARY_FLAG else piece_kernels.TEXT, 1
    )


def _new_shape(column: Column, flag: int) -> Shape:
    """As json-iterator writes it, without HTML escapes."""
    if column.kind in NUMBERS:
        return bare(NUMBERS[column.kind])
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        return bare(connect.FLOAT_ITERATOR if column.kind is Kind.FLOAT else connect.DOUBLE_ITERATOR)
    if column.mysql_type in BLOB_TYPES:
        return quoted(piece_kernels.BASE64)
    if column.kind is Kind.JSON:
        return quoted(connect.RAW_JSON)
    return text_shape(column, std=0) or quoted(
        piece_kernels.QUOTED if flag & BINARY_FLAG else connect.RAW_TEXT
    )


class _Pieces:
    """Writes the key, then one operation after another."""

    def __init__(self, table: TableSchema, options: OpenOptions) -> None:
        self.writer, self._table, self._options = Writer(), table, options
        pairs = zip(table.columns, table.ticdc_flags, strict=True)
        self.shapes = [_shape(column, flag, options.flavour) for column, flag in pairs]
        self._order = shown_columns(table, options.flavour, only_key=options.reduced != REFUSE)
        self._string = string_json(options.flavour)

    def key(self) -> None:
        """Write the key JSON."""
        write, table = self.writer, self._table
        if self._options.flavour == NEW_FLAVOUR:
            self._new_key()
            return
        write.text(b'{"ts":')
        write.number(piece_kernels.COMMIT_TS)
        write.text(b',"scm":' + self._string(table.schema.encode()) if table.schema else b"")
        write.text(b',"tbl":' + self._string(table.table.encode()) if table.table else b"")
        write.flush()
        write.text(b',"rid":')
        write.number(piece_kernels.ROW_ID)
        if table.partitions:
            write.text(b',"ptn":')
            write.number(piece_kernels.PHYSICAL_ID)
        write.text(b',"t":1' + placed_text(reduced_mark(planned_location(self._options))) + b"}")
        write.end()

    def _new_key(self) -> None:
        write, names = self.writer, (self._table.schema.encode(), self._table.table.encode())
        write.text(b'{"ts":')
        write.number(piece_kernels.COMMIT_TS)
        mark = placed_text(reduced_mark(planned_location(self._options)))
        write.text(b',"scm":%s,"tbl":%s,"t":1' % tuple(map(self._string, names)) + mark)
        if self._table.partitions:
            write.text(b',"ptn":')
            write.number(piece_kernels.PHYSICAL_ID)
        write.text(b"}")
        write.end()

    def operation(self, op: int) -> None:
        """The value JSON of one operation."""
        if op == DELETE:
            only_key = self._options.delete_only_output_handle_key_columns
            flags = self._table.ticdc_flags
            shown = [i for i in self._order if not only_key or flags[i] & HANDLE_KEY_FLAG]
            self._image(b'{"d":{', shown, OLD)
            self.writer.text(b"}}}")
        else:
            self._image(b'{"u":{', self._order, NEW)
            if op == UPDATE and self._options.output_old_value:
                self._before()
            else:
                self.writer.text(b"}}}")
        self.writer.end()

    def _before(self) -> None:
        write = self.writer
        if not self._options.only_output_updated_columns:
            self._image(b'}},"p":{', self._order, OLD)
            write.text(b"}}}")
            return
        if self._options.flavour == NEW_FLAVOUR:
            # `p` is there even if nothing changed.
            write.text(b'}},"p":{')
            write.flush()
            for i in self._order:
                self._cell(b",", i, OLD, end=b"}")
                write.only_changed(b"")
            write.end_group()
            write.text(b"}}")
            return
        write.text(b"}}")
        write.flush()
        for i in self._order:
            self._cell(b",", i, OLD, end=b"}")
            write.only_changed(b',"p":{')
        write.text(b"}")
        write.end_group()
        write.text(b"}")

    def _image(self, opening: bytes, shown: Sequence[int], image: int) -> None:
        for i in shown:
            self._cell(opening, i, image)
            opening = b"},"

    def _cell(self, before: bytes, i: int, image: int, end: bytes = b"") -> None:
        column, flag = self._table.columns[i], self._table.ticdc_flags[i]
        mark = b',"h":true' if flag & HANDLE_KEY_FLAG else b""
        head = b'%s:{"t":%d%s,"f":%d,"v":' % (
            self._string(column.name.encode()),
            column.mysql_type,
            mark,
            flag,
        )
        self.writer.text(before + head)
        self.writer.cell(self.shapes[i], i, image, end)
