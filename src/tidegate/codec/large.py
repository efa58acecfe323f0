"""Rows whose messages do not fit: what is sent instead, and what the reader makes of it. Pure.

    none               the row is refused, and the changefeed stops
    handle-key-only    a message with the handle key's columns; the row itself is read from TiDB
    claim-check        the whole message lies in a storage; a message with the handle key tells where

Facts: TiCDC's `pkg/config/large_message.go` and `pkg/sink/kafka/claimcheck`; docs/formats/large-messages.md
has the bytes. Who has the storage is the edge's business (`tidegate.claim_check`); here it is a `Claims`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from tidegate.codec.base import CodecOptions, one_of, too_large
from tidegate.codec.compression import LZ4, NONE, SNAPPY
from tidegate.errors import InvalidInput
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema

REFUSE: Final = "none"
HANDLE_KEY_ONLY: Final = "handle-key-only"
CLAIM_CHECK: Final = "claim-check"
PLACE: Final = "\x01"
"""Stands in reduced messages of the kernels for the location: no JSON text has this byte."""
UNBOUNDED: Final = 1 << 62


class Claims(Protocol):
    """Where messages lie that did not fit."""

    def location(self) -> str:
        """A new place, as messages name it; nothing is there yet."""
        ...

    def store(self, location: str, content: bytes) -> None:
        """Put a message there, durable on return. Raises Retryable while the storage fails."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeOptions(CodecOptions):
    """Options of the protocols that compress their messages and reduce those that do not fit."""

    large_message_handle_compression: str = one_of(NONE, SNAPPY, LZ4)
    """Of every message, whether it is large or not."""
    large_message_handle_option: str = one_of(REFUSE, HANDLE_KEY_ONLY, CLAIM_CHECK)
    """What becomes of a row that does not fit."""
    claim_check_raw_value: bool = False
    """The storage holds the value alone, not a JSON object of key and value."""
    claims: Claims | None = field(default=None, compare=False, repr=False, metadata={"placed": True})
    """Where claim-check puts messages; the pipeline places it."""
    reduced: str = field(default=REFUSE, metadata={"placed": True})
    """Of a plan: it writes rows in this form, with PLACE for a location."""

    @property
    def reduces(self) -> bool:
        """Whether a row that does not fit is sent all the same."""
        return self.large_message_handle_option != REFUSE

    @property
    def is_plain(self) -> bool:
        """Whether messages are what the kernels write."""
        return not self.reduces and self.large_message_handle_compression == NONE


Options = TypeVar("Options", bound=LargeOptions)


def bare(options: Options) -> Options:
    """The options under which the kernels write a row's message, whatever its size."""
    return replace(
        options,
        max_message_bytes=UNBOUNDED,
        large_message_handle_compression=NONE,
        large_message_handle_option=REFUSE,
        claims=None,
    )


def planned_location(options: LargeOptions) -> str | None:
    """The location in a plan's messages: none in whole ones, an empty one for the handle key only."""
    return {REFUSE: None, HANDLE_KEY_ONLY: "", CLAIM_CHECK: PLACE}[options.reduced]


def placed_text(text: bytes) -> bytes:
    """A plan's constant with PLACE itself in it, not its escape, which a row's text may also hold."""
    return text.replace(b"\\u0001", PLACE.encode())


def key_words(row: RowChange) -> str:
    """The key of a row, for people."""
    image = row.old if row.new is None else row.new
    assert image is not None, "a row has an image"
    return in_words((row.table.columns[i].name, image[i]) for i in row.table.handle_key)


def in_words(cells: Iterable[tuple[str, Value]]) -> str:
    """Names and values, for people; at most as much as fits a line."""
    return ", ".join(f"{name} = {value!r}" for name, value in cells)[:200]


class Sent(NamedTuple):
    """The message, or batch item, of one row."""

    key: bytes
    """Empty where messages have none."""
    value: bytes


def fitted(
    options: LargeOptions,
    whole: Sent,
    size: Callable[[Sent], int],
    reduced: Callable[[str], Sent],
    stored: Callable[[Sent], tuple[bytes | None, bytes]],
    described: Callable[[], tuple[str, str]],
) -> tuple[Sent, bool]:
    """What is sent of a row, and whether it lies in the storage; InvalidInput when nothing fits.

    `size` counts as TiCDC does, `reduced` gives the form with the handle key and, unless it is empty, a
    location; `stored` gives key and value as the storage holds them; `described` names table and key.
    """
    needed, most = size(whole), options.max_message_bytes
    if needed <= most:
        return whole, False
    if not options.reduces:
        table, row = described()
        raise too_large(table, needed, options, row)
    location = ""
    if options.large_message_handle_option == CLAIM_CHECK:
        assert options.claims is not None, "who encodes with claim-check places the storage"
        location = options.claims.location()
    found = reduced(location)
    if size(found) > most:
        table, row = described()
        raise too_large(table, needed, options, row, reduced=size(found))
    if location:
        assert options.claims is not None
        options.claims.store(location, claim(options, *stored(whole)))
    return found, bool(location)


def claim(options: LargeOptions, key: bytes | None, value: bytes) -> bytes:
    """What the storage holds of a message."""
    if options.claim_check_raw_value:
        return value
    stated = b"null" if key is None else b'"' + base64.b64encode(key) + b'"'
    return b'{"key":%s,"value":"%s"}' % (stated, base64.b64encode(value))


def unclaimed(options: LargeOptions, content: bytes) -> tuple[bytes | None, bytes]:
    """Key and value of a message in the storage. ValueError when it is none."""
    if options.claim_check_raw_value:
        return None, content
    found = orjson.loads(content)
    if not isinstance(found, dict) or not isinstance(found.get("value"), str):
        raise ValueError("it is not a JSON object with key and value")
    key = found.get("key")
    try:
        stated = None if key is None else base64.b64decode(key, validate=True)
        return stated, base64.b64decode(found["value"], validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError("its key or value is not Base64") from error


def without_key(table: TableSchema, options: LargeOptions) -> InvalidInput:
    """A row that does not fit, of a table without a handle key.

    TiCDC: ErrOpenProtocolCodecInvalidData with open-protocol; its other protocols send no column at all.
    """
    return InvalidInput(
        "a row is larger than one message may be, and there is no handle key to send of it",
        where=f"table {table.name}",
        why=f"max-message-bytes is {options.max_message_bytes}, large-message-handle-option is "
        f"{options.large_message_handle_option}, and the table has no primary or not-null unique key",
        fix="raise max-message-bytes in the sink URI and max.message.bytes of the topic, give the table a "
        "key, or leave it out by [filter] rules",
    )


# --- what the reader makes of it


class Reduced(NamedTuple):
    """What a message says of a row that is not in it."""

    schema: str
    table: str
    commit_ts: int
    claim: str
    """Where the row's message lies; empty: nowhere (handle key only)."""


class Part(NamedTuple):
    """One row of a message as a message of its own."""

    key: bytes | None
    value: bytes | None
    reduced: Reduced | None
    """The row is not in it: `key` and `value` hold its handle key only, as if that were all there is; no
    value where they cannot."""


class Large(NamedTuple):
    """A protocol's way with rows that do not fit: `entry.RowCodec.large`."""

    framed: bool
    """A message is a batch of items, each compressed for itself."""
    size: Callable[[Sent], int]
    """Bytes of a row's message as TiCDC counts them against max-message-bytes."""
    parts: Callable[[bytes | None, bytes | None], list[Part]]
    """The rows of a message that holds reduced ones, expanded. ValueError or DecodeError when it is not
    whole."""
    refuses: Callable[[Any], str] = lambda options: ""
    """Why rows are not reduced under these options; empty: they are."""


def location_name(location: str) -> str:
    """The name at the end of a location: all that a reader takes of it."""
    return location.rpartition("/")[2]


def without(found: dict[str, Any], *names: str) -> bytes:
    """A JSON object again, without these members."""
    return orjson.dumps({name: value for name, value in found.items() if name not in names})
