"""The encode plan of a table for canal-json; the plain twin is `plain.CanalJsonEncoder`."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.codec.decoding.assemble import HANDLE_KEY_FLAG
from tidegate.codec.formats.json_text import easy_string
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.kernels import piece_kernels
from tidegate.codec.large import REFUSE, placed_text, planned_location, without_key
from tidegate.codec.plan import NEW, NUMBERS, OLD, OPERATIONS, EncodePlan, Shape, Writer, quoted, text_shape
from tidegate.codec.protocols.canal_json.plain import (
    PROMOTED,
    ROW_KEY,
    CanalJsonEncoder,
    CanalOptions,
    head,
    java_type,
    reduced_mark,
)
from tidegate.model.cells import DELETE, UPDATE
from tidegate.model.schema import Column, Kind, TableSchema


def plan(table: TableSchema, options: CanalOptions, digits: int) -> EncodePlan:
    """The plan of a table version, with space for a build time of `digits` digits; keys are null."""
    made = _Pieces(table, options, digits)
    made.writer.end()
    for op in OPERATIONS:
        made.operation(op)
    is_lost = options.reduced != REFUSE and not table.handle_key
    refused = dict.fromkeys(OPERATIONS, without_key(table, options)) if is_lost else None
    return made.writer.plan(table, made.shapes, refused=refused)


def _shape(column: Column) -> Shape:
    """How canal-json writes a column (docs/formats/canal-json.md#values)."""
    if column.kind in NUMBERS:
        return quoted(NUMBERS[column.kind])
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        return quoted(piece_kernels.FLOAT_FIXED if column.kind is Kind.FLOAT else piece_kernels.DOUBLE_FIXED)
    return text_shape(column, std=0) or quoted(
        piece_kernels.LATIN1 if is_binary(column) else piece_kernels.TEXT
    )


class _Pieces:
    """Writes one operation after another."""

    def __init__(self, table: TableSchema, options: CanalOptions, digits: int) -> None:
        self.writer, self._table, self._options, self._digits = Writer(), table, options, digits
        self.shapes = [_shape(column) for column in table.columns]

    def operation(self, op: int) -> None:
        """Write the value of one operation."""
        write, options = self.writer, self._options
        image = OLD if op == DELETE else NEW
        reduced = options.reduced != REFUSE
        only_key = reduced or (op == DELETE and options.delete_only_output_handle_key_columns)
        flags = self._table.ticdc_flags
        shown = [i for i, flag in enumerate(flags) if not only_key or flag & HANDLE_KEY_FLAG]
        write.text(head(self._table) + (b"", b"INSERT", b"UPDATE", b"DELETE")[op] + b'","es":')
        write.number(piece_kernels.MILLISECONDS)
        write.text(b',"ts":')
        write.stamp(self._digits)
        write.text(b',"sql":"","sqlType":')
        self._java_types(shown, image)
        types = CanalJsonEncoder(options).mysql_types(self._table, shown)
        write.text(b',"mysqlType":' + types + b',"old":')
        self._old(op, shown if reduced else range(len(flags)))
        write.text(b',"data":[{')
        self._image(shown, image)
        write.text(b"}]")
        if options.enable_tidb_extension:
            write.text(b',"_tidb":{"commitTs":')
            write.number(piece_kernels.COMMIT_TS)
            write.text(placed_text(reduced_mark(planned_location(options))))
            if options.has_row_keys:
                write.text(ROW_KEY)
                write.number(piece_kernels.ROW_KEY)
                write.text(b'"')
            write.text(b"}")
        write.text(b"}")
        write.end()

    def _old(self, op: int, shown: Sequence[int]) -> None:
        write = self.writer
        if op != UPDATE:
            write.text(b"null")
            return
        write.text(b"[{")
        if self._options.only_output_updated_columns or self._options.content_compatible:
            write.flush()
            for i in shown:
                write.text(b",")
                self._cell(i, OLD)
                write.only_changed(b"")
            write.end_group()
        else:
            self._image(shown, OLD)
        write.text(b"}]")

    def _image(self, shown: Sequence[int], image: int) -> None:
        for number, i in enumerate(shown):
            self.writer.text(b"," if number else b"")
            self._cell(i, image)

    def _cell(self, i: int, image: int) -> None:
        self.writer.text(easy_string(self._table.columns[i].name.encode()) + b":")
        self.writer.cell(self.shapes[i], i, image)

    def _java_types(self, shown: Sequence[int], image: int) -> None:
        write = self.writer
        if not shown:
            write.text(b"null")
            return
        opening = b"{"
        for i in shown:
            column = self._table.columns[i]
            write.text(opening + easy_string(column.name.encode()) + b":")
            plain = java_type(column, None)
            if column.unsigned and column.mysql_type in PROMOTED:
                limit, promoted = PROMOTED[column.mysql_type]
                write.promoted(piece_kernels.promotion(limit, b"%d" % plain, b"%d" % promoted), i, image)
            else:
                write.text(b"%d" % plain)
            opening = b","
        write.text(b"}")
