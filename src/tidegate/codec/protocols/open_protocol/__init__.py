"""Open-protocol, TiCDC's own format: docs/formats/open-protocol.md."""

from typing import Final

from tidegate.codec.decoding.opening import opening
from tidegate.codec.decoding.template import DecodeForm
from tidegate.codec.entry import DdlTo, Loss, RowCodec
from tidegate.codec.large import Large
from tidegate.codec.protocols.open_protocol.plain import (
    OpenOptions,
    OpenProtocolDecoder,
    OpenProtocolEncoder,
    parts,
    size,
)
from tidegate.codec.protocols.open_protocol.plan import plan
from tidegate.codec.protocols.open_protocol.templates import ROUTE, cells, templates


def _lacks_old(options: OpenOptions) -> str:
    return "" if options.output_old_value else "[sink.open] output-old-value = false"


def _losses(options: OpenOptions) -> frozenset[Loss]:
    lost = {Loss.BAD_TEXT}
    lost |= set() if options.output_old_value else {Loss.OLD_IMAGE}
    lost |= {Loss.IDLE_UPDATE} if options.only_output_updated_columns else set()
    lost |= {Loss.DELETED_CELLS} if options.delete_only_output_handle_key_columns else set()
    return frozenset(lost)


LARGE: Final = Large(framed=True, size=size, parts=parts)

CODEC: Final[RowCodec[OpenOptions]] = RowCodec(
    name=OpenOptions.protocol,
    aliases=("default", "open", "open_protocol"),
    options=OpenOptions,
    ddl_to=DdlTo.ALL,
    flavours=("classic", "new"),
    encoder=OpenProtocolEncoder,
    decoder=lambda options: opening(OpenProtocolDecoder(), options, LARGE),
    plan=plan,
    form=DecodeForm(framed=True, templates=templates, cells=cells, route=ROUTE),
    lacks_old=_lacks_old,
    large=LARGE,
    losses=_losses,
)
