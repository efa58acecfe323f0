"""Canal-JSON, the format of Alibaba's canal as TiCDC writes it: docs/formats/canal-json.md."""

from typing import Final

from tidegate.codec.decoding.opening import opening
from tidegate.codec.decoding.template import DecodeForm
from tidegate.codec.entry import DdlTo, Loss, RowCodec, Unmarked
from tidegate.codec.large import Large
from tidegate.codec.protocols.canal_json.plain import (
    CanalJsonDecoder,
    CanalJsonEncoder,
    CanalOptions,
    parts,
    size,
    without_extension,
)
from tidegate.codec.protocols.canal_json.plan import plan
from tidegate.codec.protocols.canal_json.templates import ROUTE, cells, templates


def _losses(options: CanalOptions) -> frozenset[Loss]:
    lost = {Loss.BAD_TEXT, Loss.PARTITION}
    lost |= set() if options.enable_tidb_extension else {Loss.LOGICAL_TS}
    lost |= {Loss.DELETED_CELLS} if options.delete_only_output_handle_key_columns else set()
    return frozenset(lost)


LARGE: Final = Large(framed=False, size=size, parts=parts)

CODEC: Final[RowCodec[CanalOptions]] = RowCodec(
    name=CanalOptions.protocol,
    aliases=("canal_json",),
    options=CanalOptions,
    ddl_to=DdlTo.FIRST,
    unmarked=Unmarked(
        option="enable-tidb-extension=true",
        without=lambda options: not options.enable_tidb_extension,
        shown=without_extension,
        why="its canal-json was written without TiDB's extension, which carries commit ts and watermarks",
    ),
    flavours=("classic", "new"),
    encoder=CanalJsonEncoder,
    decoder=lambda options: opening(CanalJsonDecoder(), options, LARGE),
    plan=plan,
    form=DecodeForm(framed=False, templates=templates, cells=cells, route=ROUTE),
    large=LARGE,
    row_keys=lambda options: bool(options.has_row_keys),
    losses=_losses,
)
