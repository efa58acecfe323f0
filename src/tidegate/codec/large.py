"""Rows whose messages do not fit: what is sent instead, and how a reader restores the row. Pure.

    none               the row is refused, and the changefeed stops
    handle-key-only    a message has only the handle key's columns; the row itself is read from TiDB
    claim-check        the whole message is in a storage; a message with the handle key says where

Sources: TiCDC's `pkg/config/large_message.go` and `pkg/sink/kafka/claimcheck`; docs/formats/large-messages.md
has the bytes. `tidegate.claim_check` accesses the storage; this module knows it as a `Claims`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from tidegate.codec.base import CodecOptions, one_of, too_large
from tidegate.codec.formats.compression import LZ4, NONE, SNAPPY
from tidegate.errors import InvalidInput
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema

REFUSE: Final = "none"
HANDLE_KEY_ONLY: Final = "handle-key-only"
CLAIM_CHECK: Final = "claim-check"
PLACE: Final = "\x01"
"""In reduced messages of the kernels, the placeholder for the location: no JSON text contains this byte."""
UNBOUNDED: Final = 1 << 62


class Claims(Protocol):
    """The storage of messages that did not fit."""

    def location(self) -> str:
        """A new location, as messages name it; nothing is stored there yet."""
        ...

    def store(self, location: str, content: bytes) -> None:
        """Store a message there, durable on return. Raises Retryable if the storage fails."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeOptions(CodecOptions):
    """Options of the protocols that can compress messages and reduce those that do not fit."""

    large_message_handle_compression: str = one_of(NONE, SNAPPY, LZ4)
    """The compression of every message, whether it is large or not."""
    large_message_handle_option: str = one_of(REFUSE, HANDLE_KEY_ONLY, CLAIM_CHECK)
    """How a row that does not fit is sent."""
    claim_check_raw_value: bool = False
    """Whether the storage holds only the value, not a JSON object of key and value."""
    claims: Claims | None = field(default=None, compare=False, repr=False, metadata={"placed": True})
    """The storage in which claim-check puts messages; the pipeline sets it."""
    reduced: str = field(default=REFUSE, metadata={"placed": True})
    """In the options of a plan: it writes rows in this form, with PLACE instead of a location."""

    @property
    def reduces(self) -> bool:
        """Whether a row that does not fit is sent in another form."""
        return self.large_message_handle_option != REFUSE

    @property
    def is_plain(self) -> bool:
        """Whether messages are exactly what the kernels write."""
        return not self.reduces and self.large_message_handle_compression == NONE


Options = TypeVar("Options", bound=LargeOptions)


def bare(options: Options) -> Options:
    """Options under which the kernels write a row's message in full, whatever its size."""
    return replace(
        options,
        max_message_bytes=UNBOUNDED,
        large_message_handle_compression=NONE,
        large_message_handle_option=REFUSE,
        claims=None,
    )


def planned_location(options: LargeOptions) -> str | None:
    """The location in a plan's messages: None if they are whole, empty if they have only the handle key."""
    return {REFUSE: None, HANDLE_KEY_ONLY: "", CLAIM_CHECK: PLACE}[options.reduced]


def placed_text(text: bytes) -> bytes:
    """A plan's constant with PLACE as a raw byte. Its JSON escape could also occur in the text of a row."""
    return text.replace(b"\\u0001", PLACE.encode())


def key_words(row: RowChange) -> str:
    """The key of a row as text for people."""
    image = row.old if row.new is None else row.new
    assert image is not None, "a row has an image"
    return in_words((row.table.columns[i].name, image[i]) for i in row.table.handle_key)


def in_words(cells: Iterable[tuple[str, Value]]) -> str:
    """Names and values as text for people, cut to the length of a line."""
    return ", ".join(f"{name} = {value!r}" for name, value in cells)[:200]


class Sent(NamedTuple):
    """The message, or the item of a batch, of one row."""

    key: bytes
    """Empty if messages have no key."""
    value: bytes


def fitted(
    options: LargeOptions,
    whole: Sent,
    size: Callable[[Sent], int],
    reduced: Callable[[str], Sent],
    stored: Callable[[Sent], tuple[bytes | None, bytes]],
    described: Callable[[], tuple[str, str]],
) -> tuple[Sent, bool]:
    """The message to send for a row, and whether the whole row is in the storage; InvalidInput if none fits.

    `size` counts as TiCDC does. `reduced` makes the form with only the handle key and, unless it is empty, a
    location. `stored` makes key and value in the form of the storage. `described` returns table and key as
    text.
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
    # Only when the reduced form fits, and before it is sent: so no message names a place without content,
    # and no refused row leaves content behind.
    if location:
        assert options.claims is not None
        options.claims.store(location, claim(options, *stored(whole)))
    return found, bool(location)


def claim(options: LargeOptions, key: bytes | None, value: bytes) -> bytes:
    """The content of the storage for a message."""
    if options.claim_check_raw_value:
        return value
    stated = b"null" if key is None else b'"' + base64.b64encode(key) + b'"'
    return b'{"key":%s,"value":"%s"}' % (stated, base64.b64encode(value))


def unclaimed(options: LargeOptions, content: bytes) -> tuple[bytes | None, bytes]:
    """Key and value of a message, from its content in the storage. ValueError if it is not valid."""
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
    """The error for a row that does not fit, in a table without a handle key.

    TiCDC: ErrOpenProtocolCodecInvalidData with open-protocol; its other protocols send no column at all.
    """
    return InvalidInput(
        "a row is larger than one message may be, and has no handle key that could be sent instead",
        where=f"table {table.name}",
        why=f"max-message-bytes is {options.max_message_bytes}, large-message-handle-option is "
        f"{options.large_message_handle_option}, and the table has no primary or not-null unique key",
        fix="raise max-message-bytes in the sink URI and max.message.bytes of the topic, give the table a "
        "key, or leave it out by [filter] rules",
    )


# --- the reader's side


class Reduced(NamedTuple):
    """The information in a message about a row that it does not contain."""

    schema: str
    table: str
    commit_ts: int
    claim: str
    """The location of the row's message; empty: it is not stored (handle key only)."""


class Part(NamedTuple):
    """One row of a message, as a message of its own."""

    key: bytes | None
    value: bytes | None
    reduced: Reduced | None
    """Set if the row is reduced: then `key` and `value` contain only its handle key, in the form of a whole
    message. `value` is None if the protocol cannot express that."""


class Large(NamedTuple):
    """How a protocol sends rows that do not fit: `entry.RowCodec.large`."""

    framed: bool
    """Whether a message is a batch of items, each compressed separately."""
    size: Callable[[Sent], int]
    """Bytes of a row's message, as TiCDC counts them against max-message-bytes."""
    parts: Callable[[bytes | None, bytes | None], list[Part]]
    """The rows of an expanded message that has reduced ones. ValueError or DecodeError if it is not valid."""
    refuses: Callable[[Any], str] = lambda options: ""
    """Why rows are not reduced under these options; empty: they are."""


def location_name(location: str) -> str:
    """The name at the end of a location: the only part that a reader uses."""
    return location.rpartition("/")[2]


def without(found: dict[str, Any], *names: str) -> bytes:
    """A JSON object written again without these members."""
    return orjson.dumps({name: value for name, value in found.items() if name not in names})
