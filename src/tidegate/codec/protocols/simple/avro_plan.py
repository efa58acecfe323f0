"""The encode plan of a table for simple in Avro; the plain twin is `avro_write.row`."""

from __future__ import annotations

from typing import Final

from tidegate.codec.formats.avro_binary import sized, varint
from tidegate.codec.kernels import avro_kernels as kernels
from tidegate.codec.plan import NEW, OLD, OPERATIONS, EncodePlan, Shape, Writer
from tidegate.codec.protocols.simple import avro_write
from tidegate.model.cells import DELETE, INSERT
from tidegate.model.schema import Column, Kind, TableSchema

_FORMS: Final = {
    Kind.DECIMAL: kernels.DECIMAL_TEXT, Kind.STRING: kernels.BYTES, Kind.BYTES: kernels.BYTES,
    Kind.DATE: kernels.DATE, Kind.JSON: kernels.JSON, Kind.VECTOR: kernels.VECTOR,
    Kind.DATETIME: kernels.DATETIME, Kind.TIMESTAMP: kernels.DATETIME, Kind.TIME: kernels.TIME,
    Kind.FLOAT: kernels.FLOAT, Kind.DOUBLE: kernels.DOUBLE,
}  # fmt: skip
"""Forms of the kinds that are not integers."""


def avro_plan(
    table: TableSchema, version: int, order: list[int], zone: str, *, summed: bool, bits: bytes
) -> EncodePlan:
    """The plan of a table version with its columns in `order`; keys are null. Other arguments: see `row`."""
    write, shapes = Writer(), [_shape(column, zone, bits) for column in table.columns]
    write.end()
    for op in OPERATIONS:
        write.text(avro_write.row_head(table))
        write.number(kernels.PHYSICAL_ID)
        write.text(varint(op - INSERT))
        write.number(kernels.COMMIT_TS)
        write.number(kernels.BUILD_MS)
        write.text(varint(version) + avro_write.NULL + avro_write.NULL)
        if summed:
            write.number(kernels.CHECKSUM_RECORD)
        else:
            write.text(avro_write.NULL)
        for image, shown in ((NEW, op != DELETE), (OLD, op != INSERT)):
            if not shown:
                write.text(avro_write.NULL)
                continue
            write.text(avro_write.PRESENT + varint(len(order)))
            for i in order:
                write.text(sized(table.columns[i].name.encode()))
                write.cell(shapes[i], i, image)
            write.text(varint(0))
        write.end()
    forms = [shape.form for shape in shapes]
    growing = [(i, kernels.FACTORS[form]) for i, form in enumerate(forms) if form in kernels.FACTORS]
    return write.plan(table, shapes, encode=kernels.encode_avro, sizes=kernels.SIZES, growing=growing)


def _shape(column: Column, zone: str, bits: bytes) -> Shape:
    """The branch of a value's union is written before the value; for a TIMESTAMP its time zone as well."""
    branch = avro_write.branch_of(column, bits)
    form = _FORMS.get(column.kind, kernels.VARINT)
    if column.kind is Kind.BIT and branch == avro_write.STRING:
        form = kernels.UINT_TEXT
    if branch == avro_write.TIMESTAMP:
        before = branch + sized(zone.encode())
        return Shape(form, max(column.decimal, 0), before=before, null=avro_write.NULL)
    return Shape(form, max(column.decimal, 0), behind=branch, null=avro_write.NULL)
