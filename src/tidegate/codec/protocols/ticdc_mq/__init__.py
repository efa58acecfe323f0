"""Ticdc-mq, the protocol of TiCDC's first design document for messages: docs/formats/ticdc-mq.md."""

from typing import Final

from tidegate.codec.decoding.template import DecodeForm
from tidegate.codec.entry import DdlTo, Loss, RowCodec
from tidegate.codec.protocols.ticdc_mq.plain import MqOptions, TicdcMqDecoder, TicdcMqEncoder, admin
from tidegate.codec.protocols.ticdc_mq.plan import plan
from tidegate.codec.protocols.ticdc_mq.templates import ROUTE, cells, templates

CODEC: Final[RowCodec[MqOptions]] = RowCodec(
    name=MqOptions.protocol,
    aliases=("ticdc_mq",),
    options=MqOptions,
    ddl_to=DdlTo.ALL,
    admin=admin,
    encoder=TicdcMqEncoder,
    decoder=lambda options: TicdcMqDecoder(),
    plan=plan,
    form=DecodeForm(framed=False, templates=templates, cells=cells, route=ROUTE),
    lacks_old=lambda options: f"protocol = {MqOptions.protocol}",
    splits_updates=lambda options: True,
    losses=lambda options: frozenset({Loss.BAD_TEXT, Loss.PARTITION, Loss.OLD_IMAGE, Loss.DELETED_CELLS}),
)
