"""Simple, TiCDC's JSON or Avro, with separate messages for tables' definitions: docs/formats/simple.md."""

from typing import Final

from tidegate.codec.decoding.opening import opening
from tidegate.codec.decoding.template import DecodeForm
from tidegate.codec.entry import DdlTo, Definitions, Loss, RowCodec
from tidegate.codec.large import Large
from tidegate.codec.protocols.simple.bulk import SimpleBulkDecoder
from tidegate.codec.protocols.simple.message import SimpleOptions
from tidegate.codec.protocols.simple.plain import SimpleDecoder, may_define, parts, versions
from tidegate.codec.protocols.simple.plain_write import SimpleEncoder, size
from tidegate.codec.protocols.simple.plan import plan
from tidegate.codec.protocols.simple.templates import ROUTE, cells, templates

LARGE: Final = Large(
    framed=False,
    size=size,
    parts=parts,
    refuses=lambda options: "its Avro messages are written of whole rows only" if options.in_avro else "",
)

CODEC: Final[RowCodec[SimpleOptions]] = RowCodec(
    name=SimpleOptions.protocol,
    options=SimpleOptions,
    ddl_to=DdlTo.ALL,
    flavours=("classic", "new"),
    encoder=SimpleEncoder,
    decoder=lambda options: opening(SimpleDecoder(options), options, LARGE),
    plan=plan,
    form=DecodeForm(
        framed=False, templates=templates, cells=cells, redefined=lambda plain: plain.redefined, route=ROUTE
    ),
    binary=SimpleBulkDecoder,
    definitions=Definitions(
        encode=lambda table, options, build_ms: SimpleEncoder(options).encode_definition(table, build_ms),
        may_define=may_define,
        versions=versions,
    ),
    checksums=lambda options: bool(options.has_checksums),
    large=LARGE,
    states_zone=True,
    losses=lambda options: frozenset({Loss.BAD_TEXT}),
)
