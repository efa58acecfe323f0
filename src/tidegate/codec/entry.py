"""What the program knows of one protocol: a frozen entry, all of which `codec.registry` holds.

Whoever needs to know something about a protocol asks its entry; nobody compares its name. A new protocol is a
folder in `codec.protocols` with such an entry, and a line in the registry. `tests/contracts/test_codecs.py`
holds every entry to the same contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from tidegate.codec.base import Batch, CodecOptions, Decoded, Decoder, Encoder
from tidegate.codec.large import Large
from tidegate.codec.plan import EncodePlan
from tidegate.codec.schema_book import SchemaBook, Subject
from tidegate.codec.template import DecodeForm
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.schema import TableSchema


class DdlTo(StrEnum):
    """Where the message of a DDL goes."""

    ALL = "all partitions"
    FIRST = "partition 0"
    NONE = "nowhere"
    """There is no DDL."""


class Loss(StrEnum):
    """What of a row change a protocol does not carry; the text says what comes out instead."""

    BAD_TEXT = "a text that is not UTF-8 has U+FFFD in it, or its message is refused"
    PARTITION = "a partitioned table's rows do not tell their partition"
    LOGICAL_TS = "the commit ts has milliseconds only"
    SECONDS = "the commit ts has seconds only"
    OLD_IMAGE = "an update is an insert of its new values"
    IDLE_UPDATE = "an update that changes nothing is an insert"
    DELETED_CELLS = "a delete has the columns of the handle key only"
    DECIMAL = "a decimal is the nearest double: from 16 digits on, others than before"
    TYPES = (
        "types are missing: bytes are Base64 text, decimals doubles, unsigned numbers from 2^63 on negative"
    )
    UNTYPED = "no types at all: bytes are Base64 text, a float is the number that its shortest digits give"
    CALENDAR = (
        "a date that is on no calendar is NULL, or 1970-01-01 where there is no NULL, a timestamp of zero is "
        "1970-01-01; years below 70 are 2000 and more, years to 99 are 1970 and more"
    )
    FRACTION = (
        "a datetime or time has no fraction when it is zero, else 3 or 6 digits, whatever the column has"
    )
    DEFAULT = "NULL in a column with a default is the default"
    ELEMENT = "the number 0 of an enum, and sets of an element with an empty name, are taken for one another"
    COMMIT_TS = "a row does not tell its commit ts"
    DELETED_TS = "a delete does not tell its commit ts"
    VIRTUAL = "a virtual generated column is there, and NULL"
    NAMES = "a name has `_` for each character that Avro's names do not allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemas:
    """How a protocol uses a schema registry. Pure: `codec.schema_book` says who calls what, and when."""

    placed: Callable[[Any, str, str, SchemaBook], Any]
    """Options with the topic and the changefeed's namespace, whose schemas are in this book."""
    needed: Callable[[TableSchema, Any], Sequence[Subject]]
    """What must be registered before rows of a table version are encoded."""
    named: Callable[[Batch], Sequence[int]]
    """The ids that messages name: to be looked up before they are decoded."""


class MarkEncoder(Protocol):
    """How the owner's messages are written, of tables or of keys."""

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None:
        """The DDL message, with the event itself in the header `tidegate-ddl`; None where there is none."""
        ...

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """The resolved mark; None where the options leave it out."""
        ...


@dataclass(frozen=True, slots=True)
class Unmarked:
    """A protocol that has resolved marks only under an option: how to tell, and what to say."""

    option: str
    """What a sink URI must have so that there are marks, as `name=value`; empty: nothing brings them."""
    without: Callable[[Any], bool]
    """Whether messages written with these options have no marks."""
    shown: Callable[[Sequence[bytes | None], Decoded], bool]
    """Whether these values, and what was decoded of them, were written without."""
    why: str
    """In words."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """A protocol whose rows do not tell their columns' types: other messages do, by table version."""

    encode: Callable[[TableSchema, Any, int], Message]
    """The message that tells a table version, under options, built at a time in ms. The pipeline sends it
    ahead of that version's rows, to each of their partitions, in the same transaction."""
    tells: Callable[[bytes], bool]
    """Whether a value may tell a table version. Cheap; true too often costs time only."""
    versions: Callable[[bytes], list[tuple[str, str, int]]]
    """The table versions (schema, table, version) that a value tells; none if it is not sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """What protocols of rows and of keys have in common."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names that a user may write; an empty one means that the name may be left out."""
    options: type[CodecOptions]
    ddl_to: DdlTo
    unmarked: Unmarked | None = None
    """None: there are always resolved marks."""
    admin: Callable[[int], Message] | None = None
    """The message that rows go to so many partitions from here on; None: Resolved's headers alone say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCodec(Codec):
    """A protocol of rows of tables, as its readers know it; one that is also written is a `RowCodec`."""

    decoder: Callable[[Any], Decoder]
    """The plain decoder, from the options; it alone decides what is a bad message: the oracle of `form`."""
    form: DecodeForm | None
    """None: there are no templates for messages."""
    binary: Callable[[Any, Decoder], Decoder] | None = None
    """For messages in a binary form: the compiled decoder over the plain one, and the one for all that it
    leaves. None: there is none."""
    schemas: Schemas | None = None
    """None: messages name no schemas."""
    named: Callable[[str], str] = str
    """How messages name a schema, table or column of that name."""
    plain_ddls: bool = True
    """Whether there may be DDL messages also where there are no watermarks."""
    utc: bool = False
    """TIMESTAMPs are in UTC, whatever the feed's time zone."""
    tells_zone: bool = False
    """Messages tell the zone of their TIMESTAMPs, and are bad ones in another zone than the options say."""
    unread: Callable[[Any], str] = lambda options: ""
    """The setting that keeps messages from being read back, as the user would name it; empty: they can be."""
    lacks_old: Callable[[Any], str] = lambda options: ""
    """What keeps the old image of an update from being sent, as the user would name it; empty: it is sent."""
    definitions: Definitions | None = None
    """None: a row tells all that is needed to read it."""
    large: Large | None = None
    """How rows that do not fit are sent, under `LargeOptions`; None: they are refused."""
    losses: Callable[[Any], frozenset[Loss]]
    """What decoding does not give back as it was encoded, under these options; all else it does."""
    unwritten: str = ""
    """Why it is read only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCodec(ReadCodec):
    """A protocol of rows of tables that is read and written."""

    encoder: Callable[[Any], Encoder]
    """The plain encoder, from the options: the oracle of `plan`, and how the owner writes."""
    plan: Callable[[TableSchema, Any, int], EncodePlan]
    """The encode plan of a table version under options, for build times of so many digits."""
    flavours: tuple[str, ...] = ("classic",)
    """Whose bytes it can write."""
    classic_only: Callable[[Any], str] = lambda options: ""
    """Why these options go with the classic flavour alone; empty: they go with each."""
    no_checksums: Callable[[Any], str] = lambda options: ""
    """Why rows cannot be compared with their checksums under these options; empty: they can."""
    checksums: Callable[[Any], bool] = lambda options: False
    """Whether messages tell the rows' checksums under these options."""
    row_keys: Callable[[Any], bool] = lambda options: False
    """Whether messages tell the rows' keys in TiKV under these options."""
    splits_updates: Callable[[Any], bool] = lambda options: False
    """Whether updates that change a unique key must be split into delete and insert under these options: one
    message cannot say them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCodec(Codec):
    """A protocol of keys without tables."""

    marks: Callable[[Any], MarkEncoder]
    """How the owner writes, from the options."""
    texts: tuple[bytes, ...]
    """The constants between numbers, keys and values: see `codec.keys`."""


AnyCodec: TypeAlias = ReadCodec | KeyCodec
