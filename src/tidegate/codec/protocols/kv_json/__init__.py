"""Kv-json: pure keys in TiKV-CDC's messages, docs/formats/key-value.md."""

from typing import Final

from tidegate.codec.entry import DdlTo, KeyCodec
from tidegate.codec.protocols.kv_json.plain import TEXTS, KvMarks, KvOptions

CODEC: Final[KeyCodec[KvOptions]] = KeyCodec(
    name=KvOptions.protocol,
    # TiKV-CDC has only this protocol, and calls it open-protocol or gives it no name.
    aliases=("", "default", "open", "open-protocol"),
    options=KvOptions,
    ddl_to=DdlTo.NONE,
    marks=KvMarks,
    texts=TEXTS,
)
