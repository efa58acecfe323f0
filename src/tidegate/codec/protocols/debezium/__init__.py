"""Debezium, the format of Debezium's MySQL connector as TiCDC writes it: docs/formats/debezium.md."""

from collections.abc import Sequence
from typing import Final

from tidegate.codec.base import Decoded
from tidegate.codec.decoding.template import DecodeForm
from tidegate.codec.entry import DdlTo, Loss, RowCodec, Unmarked
from tidegate.codec.protocols.debezium.plain import DebeziumDecoder, DebeziumEncoder, DebeziumOptions
from tidegate.codec.protocols.debezium.plan import plan
from tidegate.codec.protocols.debezium.templates import ROUTE, cells, templates


def _losses(options: DebeziumOptions) -> frozenset[Loss]:
    lost = {
        Loss.BAD_TEXT,
        Loss.PARTITION,
        Loss.DECIMAL,
        Loss.CALENDAR,
        Loss.FRACTION,
        Loss.DEFAULT,
        Loss.ELEMENT,
    }
    lost |= set() if options.enable_tidb_extension else {Loss.TYPES}
    lost |= set() if options.debezium_output_old_value else {Loss.OLD_IMAGE}
    return frozenset(lost)


def _lacks_old(options: DebeziumOptions) -> str:
    return "" if options.debezium_output_old_value else "[sink.debezium] output-old-value = false"


def _unread(options: DebeziumOptions) -> str:
    return "debezium-disable-schema = true" if options.debezium_disable_schema else ""


def _shown(values: Sequence[bytes | None], decoded: Decoded) -> bool:
    """Whether a row's fields lack TiDB's types. A DDL does not show it."""
    if decoded.resolved or not decoded.rows:
        return False
    return not any('"tidb_type":' in column.type_name for column in decoded.rows[0].columns)


CODEC: Final[RowCodec[DebeziumOptions]] = RowCodec(
    name=DebeziumOptions.protocol,
    options=DebeziumOptions,
    ddl_to=DdlTo.ALL,
    unmarked=Unmarked(
        option="enable-tidb-extension=true",
        without=lambda options: not options.enable_tidb_extension,
        shown=_shown,
        why="its debezium was written without TiDB's extension, which carries types and watermarks",
    ),
    flavours=("classic", "new"),
    encoder=DebeziumEncoder,
    decoder=lambda options: DebeziumDecoder(),
    plan=plan,
    form=DecodeForm(framed=False, templates=templates, cells=cells, route=ROUTE),
    lacks_old=_lacks_old,
    losses=_losses,
    utc=True,
    unread=_unread,
)
