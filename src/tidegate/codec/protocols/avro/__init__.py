"""Avro in Confluent's wire format, with a schema registry, as TiCDC writes it: docs/formats/avro.md."""

from dataclasses import replace
from typing import Final

from tidegate.codec.base import NEW
from tidegate.codec.entry import DdlTo, Loss, RowCodec, Schemas, Unmarked
from tidegate.codec.protocols.avro.bulk import AvroBulkDecoder
from tidegate.codec.protocols.avro.plain import AvroDecoder, AvroEncoder, named_ids
from tidegate.codec.protocols.avro.plan import plan
from tidegate.codec.protocols.avro.schema import AvroOptions, needs_of_checksums, sanitized, subjects


def _losses(options: AvroOptions) -> frozenset[Loss]:
    lost = {Loss.BAD_TEXT, Loss.PARTITION, Loss.NAMES}
    if not options.avro_include_before_value:
        lost |= {Loss.OLD_IMAGE, Loss.DELETED_CELLS}
    if not options.enable_tidb_extension:
        lost |= {Loss.COMMIT_TS}
    if not (options.has_marks or (options.enable_tidb_extension and options.avro_include_before_value)):
        lost |= {Loss.DELETED_TS}
    if options.flavour == NEW:
        lost |= {Loss.VIRTUAL}
    return frozenset(lost)


def _lacks_old(options: AvroOptions) -> str:
    without = f"protocol = {AvroOptions.protocol} without avro-include-before-value = true"
    return "" if options.avro_include_before_value else without


CODEC: Final[RowCodec[AvroOptions]] = RowCodec(
    name=AvroOptions.protocol,
    options=AvroOptions,
    ddl_to=DdlTo.ALL,
    unmarked=Unmarked(
        option="enable-tidb-extension=true&avro-enable-watermark=true",
        without=lambda options: not options.has_marks,
        shown=lambda values, decoded: any((table.commit_ts == 0).any() for table in decoded.rows),
        why="its rows do not say when they were committed, or there are no watermarks between them",
    ),
    flavours=("classic", "new"),
    encoder=AvroEncoder,
    decoder=AvroDecoder,
    plan=plan,
    form=None,
    binary=AvroBulkDecoder,
    schemas=Schemas(
        placed=lambda options, topic, namespace, book: replace(
            options, topic=topic, namespace=namespace, book=book
        ),
        needed=lambda table, options: [one for one in subjects(table, options) if one is not None],
        named=lambda batch: list(named_ids(batch)),
    ),
    named=sanitized,
    lacks_old=_lacks_old,
    no_checksums=needs_of_checksums,
    checksums=lambda options: bool(options.has_checksums),
    splits_updates=lambda options: not options.avro_include_before_value,
    losses=_losses,
    plain_ddls=False,
)
