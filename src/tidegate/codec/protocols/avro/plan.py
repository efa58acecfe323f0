"""The encode plan of a table for avro; the plain twin is `plain.AvroEncoder`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidegate.codec.formats.avro_binary import sized, varint
from tidegate.codec.kernels import avro_kernels as kernels
from tidegate.codec.plan import NEW, OLD, OPERATIONS, EncodePlan, Shape, Writer
from tidegate.codec.protocols.avro import plain
from tidegate.codec.protocols.avro.plain import absent, least_bytes, schema_header
from tidegate.codec.protocols.avro.schema import (
    PRECISE,
    AvroOptions,
    avro_type,
    is_null_first,
    key_columns,
    refused_delete,
    subjects,
    value_members,
)
from tidegate.model.cells import DELETE, INSERT
from tidegate.model.schema import Column, Kind, TableSchema

_TIMES = {
    Kind.DATETIME: kernels.DATETIME,
    Kind.TIMESTAMP: kernels.DATETIME,
    Kind.TIME: kernels.TIME,
}
_FORMS = {
    Kind.FLOAT: kernels.FLOAT, Kind.DOUBLE: kernels.DOUBLE, Kind.DATE: kernels.DATE,
    Kind.JSON: kernels.JSON, Kind.VECTOR: kernels.VECTOR, Kind.STRING: kernels.BYTES,
    Kind.BYTES: kernels.BYTES, Kind.ENUM: kernels.ENUM, Kind.SET: kernels.SET,
}  # fmt: skip


def plan(table: TableSchema, options: AvroOptions, digits: int) -> EncodePlan:
    """The plan of a table version, whose schemas are in the options' book. It has no build time."""
    made = _Pieces(table, options)
    of_key, of_value = subjects(table, options)
    keys, has_before = key_columns(table, options), options.avro_include_before_value
    write, members = made.writer, value_members(table, options)
    if of_key is not None:
        write.text(schema_header(of_key, options))
        made.cells(keys)
    write.end()
    for op in OPERATIONS:
        if op != DELETE or has_before:
            write.text(schema_header(of_value, options))
            made.cells(members)
            if has_before:
                write.text(plain.HAS_NONE if op == INSERT else plain.HAS_BEFORE)
                made.cells(members if op != INSERT else (), OLD)
            if options.extension:
                write.text(sized(plain.OPERATIONS[op]))
            if options.enable_tidb_extension:
                write.number(kernels.COMMIT_TS)
                write.number(kernels.PHYSICAL_MS)
            if options.has_checksums:
                write.number(kernels.CHECKSUM_MEMBERS)
        elif options.has_marks:
            write.text(b"\x03")
            write.number(kernels.STAMP)
        write.end()
    forms = [shape.form for shape in made.shapes]
    growing = [
        # A key column is written a second time, and each column of a delete's old row, too.
        (i, kernels.FACTORS[form] * (1 + (i in keys) + has_before))
        for i, form in enumerate(forms)
        if form in kernels.FACTORS
    ]
    return write.plan(
        table,
        made.shapes,
        refused={} if keys or has_before else {DELETE: refused_delete(table, options)},
        encode=kernels.encode_avro,
        sizes=kernels.SIZES,
        growing=growing,
    )


class _Pieces:
    """Writes the columns of one table."""

    def __init__(self, table: TableSchema, options: AvroOptions) -> None:
        self.writer, self._table, self._options = Writer(), table, options
        self.shapes = [self._shape(column) for column in table.columns]
        self._names = {
            i: self.writer.names(_names(column.elems))
            for i, column in enumerate(table.columns)
            if column.kind in (Kind.ENUM, Kind.SET)
        }

    def cells(self, shown: Sequence[int | Column], image: int = NEW) -> None:
        """The values of these columns in an image; for a delete, `avro_kernels` uses the old image as new."""
        for i in shown:
            if isinstance(i, Column):
                self.writer.text(absent(i, self._options))
            elif i in self._names:
                most = sum(len(elem.encode()) + 1 for elem in self._table.columns[i].elems)
                self.writer.named(self.shapes[i], i, self._names[i], most, image)
            else:
                self.writer.cell(self.shapes[i], i, image)

    def _shape(self, column: Column) -> Shape:
        """How a column's values are written, after the branch of its union."""
        form, param = self._form(column)
        if not column.nullable:
            return Shape(form, param, null=b"")
        null = 0 if is_null_first(column, self._options) else 1
        return Shape(form, param, behind=varint(1 - null), null=varint(null))

    def _form(self, column: Column) -> tuple[int, int]:
        of_type, _ = avro_type(column, self._options)
        if of_type in ("int", "long"):
            return kernels.VARINT, 0
        if column.kind is Kind.UINT:
            return kernels.UINT_TEXT, 0
        if column.kind is Kind.DECIMAL:
            precise = self._options.avro_decimal_handling_mode == PRECISE
            return kernels.DECIMAL_BYTES if precise else kernels.DECIMAL_TEXT, max(column.decimal, 0)
        if column.kind in _TIMES:
            return _TIMES[column.kind], max(column.decimal, 0)
        if column.kind is Kind.BIT:
            return kernels.BIT, least_bytes(column, self._options)
        return _FORMS[column.kind], len(column.elems)


def _names(elems: Sequence[str]) -> bytes:
    """A table of names in the form that the kernel reads: offset and length of each, then the names."""
    names = [elem.encode() for elem in elems]
    entries, at = b"", 8 * len(names)
    for name in names:
        entries += struct.pack("<II", at, len(name))
        at += len(name)
    return entries + b"".join(names)
