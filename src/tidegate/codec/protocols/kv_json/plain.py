"""Messages of pure key-value feeds, as TiKV-CDC writes them (tikv/migration): docs/formats/key-value.md.

One change per message. A feed of keys has no tables and no DDL. These are the plain encoder and decoder,
change by change; `codec.keys` is the compiled encoder for blocks of entries.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson

from tidegate.codec.base import CodecOptions
from tidegate.errors import Undecodable
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message

VERSION: Final = (1).to_bytes(8, "big")
ROW: Final = 4
RESOLVED: Final = 3
TEXTS: Final = (b'{"ts":', b',"k":"', b'","t":4}', b'{"op":1,"v":"', b'{"op":2', b'"', b',"ex":')
"""For `codec.keys`: before the ts, before the key, after it; before a value; a delete; after a value; before
an expiry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvOptions(CodecOptions):
    """This protocol has no options of its own."""

    protocol: ClassVar[str] = "kv-json"


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One change of one key. `expires`: unix seconds, 0 for never; `value` is empty for DELETE."""

    commit_ts: int
    op: int
    key: bytes
    value: bytes = b""
    expires: int = 0


@dataclass(frozen=True, slots=True)
class KeyResolved:
    """Every change up to `ts` was sent before this message."""

    ts: int


def encode(change: KeyChange) -> Message:
    """The message of one change: the plain twin of `codec.keys.encode_keys`."""
    key = b'{"ts":%d,"k":"%s","t":%d}' % (change.commit_ts, base64.b64encode(change.key), ROW)
    if change.op == OP_DELETE:
        value = b'{"op":2}'
    else:
        expiry = b',"ex":%d' % change.expires if change.expires else b""
        value = b'{"op":1,"v":"%s"%s}' % (base64.b64encode(change.value), expiry)
    return Message(VERSION + _framed(key), _framed(value))


def partition_of(key: bytes, partitions: int) -> int:
    """FNV-1a of 64 bits over the key, modulo the partitions."""
    found = 0xCBF29CE484222325
    for byte in key:
        found = (found ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return found % partitions


def decode(key: bytes | None, value: bytes | None) -> list[KeyChange | KeyResolved]:
    """The content of a message, which may have several changes. Raises Undecodable."""
    try:
        if key is None or value is None or key[:8] != VERSION:
            raise ValueError("it does not begin with version 1")
        heads, bodies = _parts(key[8:]), _parts(value)
        return [_item(orjson.loads(head), body) for head, body in zip(heads, bodies, strict=True)]
    except (ValueError, KeyError, TypeError) as error:
        raise Undecodable(
            "a key-value message cannot be read", where=(key or b"")[:80].hex(), why=str(error)
        ) from None


def _item(head: dict[str, Any], body: bytes) -> KeyChange | KeyResolved:
    if head["t"] == RESOLVED:
        return KeyResolved(head["ts"])
    if head["t"] != ROW:
        raise ValueError(f"unknown type {head['t']}")
    found = orjson.loads(body)
    if found["op"] not in (OP_PUT, OP_DELETE):
        raise ValueError(f"unknown operation {found['op']}")
    data = base64.b64decode(found.get("v", ""), validate=True)
    name = base64.b64decode(head["k"], validate=True)
    return KeyChange(head["ts"], found["op"], name, data, found.get("ex", 0))


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def _parts(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        # This also refuses a length that is cut off, for which the right side is negative.
        if size > len(data) - at - 8:
            raise ValueError("a part is longer than the message")
        found.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return found


class KvMarks:
    """The owner's messages of a key-value feed."""

    def __init__(self, options: KvOptions) -> None:
        """The options do not affect these messages."""

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """Must not be called: a feed of keys has no DDL."""
        raise AssertionError("a key-value feed has no DDL")

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message:
        """The message that every change up to `ts` was sent."""
        return Message(VERSION + _framed(b'{"ts":%d,"t":%d}' % (ts, RESOLVED)), _framed(b""))
