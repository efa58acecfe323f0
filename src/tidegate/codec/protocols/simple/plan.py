"""The encode plan of a table for simple; the plain twin is `plain.SimpleEncoder`."""

from __future__ import annotations

from tidegate.codec.formats.json_text import std_string
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.kernels import piece_kernels
from tidegate.codec.large import REFUSE, placed_text, planned_location, without_key
from tidegate.codec.plan import NEW, NUMBERS, OLD, OPERATIONS, EncodePlan, Shape, Writer, quoted, text_shape
from tidegate.codec.protocols.simple.avro_plan import avro_plan
from tidegate.codec.protocols.simple.avro_write import bits_of
from tidegate.codec.protocols.simple.definition import version_of
from tidegate.codec.protocols.simple.message import SimpleOptions, timestamp_head
from tidegate.codec.protocols.simple.plain_write import by_name, head, reduced_mark
from tidegate.model.cells import DELETE, INSERT
from tidegate.model.schema import Column, Kind, TableSchema

_WORDS = (b"", b"INSERT", b"UPDATE", b"DELETE")


def plan(table: TableSchema, options: SimpleOptions, digits: int) -> EncodePlan:
    """The plan of a table version, with space for a build time of `digits` digits; keys are null."""
    if options.in_avro:
        version, zone = version_of(table.info, table.version), options.time_zone
        bits = bits_of(options.flavour)
        return avro_plan(table, version, by_name(table), zone, summed=options.has_checksums, bits=bits)
    write, shapes = Writer(), [_shape(column, options.time_zone) for column in table.columns]
    order = by_name(table, only_key=options.reduced != REFUSE)
    mark = placed_text(reduced_mark(planned_location(options)))
    write.end()
    for op in OPERATIONS:
        write.text(head(table))
        write.number(piece_kernels.PHYSICAL_ID)
        write.text(b',"type":"%s","commitTs":' % _WORDS[op])
        write.number(piece_kernels.COMMIT_TS)
        write.text(b',"buildTs":')
        write.stamp(digits)
        write.text(b',"schemaVersion":%d' % version_of(table.info, table.version) + mark)
        if options.has_checksums:
            _put_checksum(write)
        for name, image, shown in ((b"data", NEW, op != DELETE), (b"old", OLD, op != INSERT)):
            if shown:
                write.text(b',"%s":{' % name)
                for number, i in enumerate(order):
                    write.text((b"," if number else b"") + std_string(table.columns[i].name.encode()) + b":")
                    write.cell(shapes[i], i, image)
                write.text(b"}")
        write.text(b"}")
        write.end()
    is_lost = options.reduced != REFUSE and not table.handle_key
    refused = dict.fromkeys(OPERATIONS, without_key(table, options)) if is_lost else None
    return write.plan(table, shapes, refused=refused)


def _put_checksum(write: Writer) -> None:
    """The member `checksum`. A row without a checksum lacks all of it, so first flush the text before it."""
    write.flush()
    for before, part in (
        (b',"checksum":{"version":', piece_kernels.SUM_VERSION),
        (b',"corrupted":', piece_kernels.SUM_CORRUPTED),
        (b',"current":', piece_kernels.SUM_CURRENT),
        (b',"previous":', piece_kernels.SUM_PREVIOUS),
        (b"}", piece_kernels.SUM_END),
    ):
        write.text(before)
        write.checksum(part)


def _shape(column: Column, zone: str) -> Shape:
    """All values are texts; bytes are in Base64, and a TIMESTAMP is an object with its time zone."""
    if column.kind in NUMBERS:
        return quoted(NUMBERS[column.kind])
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        return quoted(piece_kernels.FLOAT_FIXED if column.kind is Kind.FLOAT else piece_kernels.DOUBLE_FIXED)
    if column.kind is Kind.TIMESTAMP:
        return Shape(piece_kernels.DATETIME, max(column.decimal, 0), timestamp_head(zone) + b'"', b'"}')
    return text_shape(column, std=1) or quoted(
        piece_kernels.BASE64 if is_binary(column) else piece_kernels.TEXT, 1
    )
