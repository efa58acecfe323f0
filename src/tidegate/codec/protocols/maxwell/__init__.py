"""Maxwell's JSON as TiCDC's classic architecture writes it, read only: docs/formats/maxwell.md."""

from typing import Final

from tidegate.codec.entry import DdlTo, Loss, ReadCodec, Unmarked
from tidegate.codec.protocols.maxwell.plain import MaxwellDecoder, MaxwellOptions

CODEC: Final[ReadCodec[MaxwellOptions]] = ReadCodec(
    name=MaxwellOptions.protocol,
    options=MaxwellOptions,
    ddl_to=DdlTo.ALL,
    unmarked=Unmarked(
        option="",
        without=lambda options: True,
        shown=lambda values, decoded: bool(decoded.rows or decoded.ddls),
        why="maxwell has no watermarks, so it is not known when a transaction is complete",
    ),
    decoder=lambda options: MaxwellDecoder(),
    form=None,
    losses=lambda options: frozenset({Loss.BAD_TEXT, Loss.PARTITION, Loss.SECONDS, Loss.UNTYPED}),
    unwritten="it has no watermarks and no types, and a commit has only its second; TiCDC's own encoder "
    "panics at binary columns and many DDLs, and TiCDC's new architecture has dropped it",
)
