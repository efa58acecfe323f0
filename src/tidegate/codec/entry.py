"""The entry of a protocol, frozen: all that the rest of the program knows of it. `codec.registry` holds all.

Code that depends on a protocol reads its entry and never compares its name. A new protocol is a folder in
`codec.protocols` with such an entry, and a line in the registry. `tests/contracts/test_codecs.py` checks
every entry against the same contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tidegate.codec.base import Batch, CodecOptions, Decoded, Decoder, Encoder
from tidegate.codec.decoding.template import DecodeForm
from tidegate.codec.large import Large
from tidegate.codec.plan import EncodePlan
from tidegate.codec.schema_book import SchemaBook, Subject
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.schema import TableSchema

Options = TypeVar("Options", bound=CodecOptions)
"""The options of the protocol whose entry it is."""


class DdlTo(StrEnum):
    """The partitions to which a DDL message is sent."""

    ALL = "all partitions"
    FIRST = "partition 0"
    NONE = "nowhere"
    """The protocol has no DDL messages."""


class Loss(StrEnum):
    """A part of a row change that a protocol does not carry; the text says what readers get instead."""

    BAD_TEXT = "a text that is not UTF-8 has U+FFFD in it, or its message is refused"
    PARTITION = "a partitioned table's rows do not name their partition"
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
    COMMIT_TS = "a row does not have its commit ts"
    DELETED_TS = "a delete does not have its commit ts"
    VIRTUAL = "a virtual generated column is there, and NULL"
    NAMES = "a name has `_` for each character that Avro's names do not allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemas(Generic[Options]):
    """How a protocol uses a schema registry. Pure: `codec.schema_book` describes who calls what, and when."""

    placed: Callable[[Options, str, str, SchemaBook], Options]
    """Options completed by the topic, the changefeed's namespace, and the book with its schemas."""
    needed: Callable[[TableSchema, Options], Sequence[Subject]]
    """The subjects to register before rows of a table version are encoded."""
    named: Callable[[Batch], Sequence[int]]
    """The schema ids in messages, which must be looked up before the messages are decoded."""


class MarkEncoder(Protocol):
    """How the owner encodes its messages, for feeds of tables or of keys."""

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None:
        """The DDL message, with the event itself in the header `tidegate-ddl`; None if there is none."""
        ...

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """The resolved mark; None if the options leave it out."""
        ...


@dataclass(frozen=True, slots=True)
class Unmarked(Generic[Options]):
    """For a protocol that has resolved marks only under an option: how to detect that, and why it matters."""

    option: str
    """The part of a sink URI that turns marks on, as `name=value`; empty: no option does."""
    without: Callable[[Options], bool]
    """Whether messages written with these options have no marks."""
    shown: Callable[[Sequence[bytes | None], Decoded], bool]
    """Whether these values, and what was decoded from them, show that they were written without marks."""
    why: str
    """The reason, in words."""


@dataclass(frozen=True, slots=True)
class Definitions(Generic[Options]):
    """For a protocol whose rows do not contain their columns' types: other messages do, per table version."""

    encode: Callable[[TableSchema, Options, int], Message]
    """The message that defines a table version, from options and the build time in ms. The pipeline sends it
    before that version's rows, to each of their partitions, in the same transaction."""
    may_define: Callable[[bytes], bool]
    """Whether a value may define a table version. Cheap; a wrong True only costs time."""
    versions: Callable[[bytes], list[tuple[str, str, int]]]
    """The table versions (schema, table, version) that a value defines; empty if the value is not sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec(Generic[Options]):
    """The part of an entry that protocols of rows and protocols of keys share."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names that a user may write; an empty one means that the protocol may be left out."""
    options: type[Options]
    ddl_to: DdlTo
    unmarked: Unmarked[Options] | None = None
    """None: messages always include resolved marks."""
    admin: Callable[[int], Message] | None = None
    """The message that from here on rows go to so many partitions; None: only Resolved's headers say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCodec(Codec[Options]):
    """A protocol of rows of tables, as readers use it; one that can also be written is a `RowCodec`."""

    decoder: Callable[[Options], Decoder]
    """Makes the plain decoder from the options. It alone decides which messages are bad: the oracle of
    `form`."""
    form: DecodeForm | None
    """None: messages of this protocol have no templates."""
    binary: Callable[[Any, Decoder], Decoder] | None = None
    """For messages in a binary form: makes the compiled decoder, from the plain decoder and the decoder of
    messages that it leaves out. None: there is none."""
    schemas: Schemas[Options] | None = None
    """None: messages contain no schema ids."""
    named: Callable[[str], str] = str
    """How messages write the name of a schema, table or column."""
    plain_ddls: bool = True
    """Whether there may be DDL messages even if there are no watermarks."""
    utc: bool = False
    """Whether TIMESTAMPs are in UTC, whatever the feed's time zone is."""
    states_zone: bool = False
    """Whether messages contain the zone of their TIMESTAMPs; one with another zone than the options is
    bad."""
    unread: Callable[[Options], str] = lambda options: ""
    """The setting, in the user's words, that makes messages unreadable for our decoder; empty: there is
    none."""
    lacks_old: Callable[[Options], str] = lambda options: ""
    """The setting, in the user's words, because of which updates lack the old image; empty: they have it."""
    definitions: Definitions[Options] | None = None
    """None: a row contains everything that is needed to read it."""
    large: Large | None = None
    """How rows that do not fit are sent, under `LargeOptions`; None: they are refused."""
    losses: Callable[[Options], frozenset[Loss]]
    """The losses of decoding under these options; it restores everything else."""
    unwritten: str = ""
    """Why the protocol can only be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCodec(ReadCodec[Options]):
    """A protocol of rows of tables that can be read and written."""

    encoder: Callable[[Options], Encoder]
    """Makes the plain encoder from the options: the oracle of `plan`, and the encoder of the owner."""
    plan: Callable[[TableSchema, Options, int], EncodePlan]
    """The encode plan of a table version under options, for build times of so many digits."""
    flavours: tuple[str, ...] = ("classic",)
    """The flavours that it can write."""
    classic_only: Callable[[Options], str] = lambda options: ""
    """Why these options require the classic flavour; empty: they work with all flavours."""
    no_checksums: Callable[[Options], str] = lambda options: ""
    """Why rows cannot be compared with their checksums under these options; empty: they can."""
    checksums: Callable[[Options], bool] = lambda options: False
    """Whether messages contain the rows' checksums under these options."""
    row_keys: Callable[[Options], bool] = lambda options: False
    """Whether messages contain the rows' keys in TiKV under these options."""
    splits_updates: Callable[[Options], bool] = lambda options: False
    """Whether updates that change a unique key must be split into delete and insert under these options,
    because one message cannot express both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCodec(Codec[Options]):
    """A protocol of keys without tables."""

    marks: Callable[[Options], MarkEncoder]
    """Makes the encoder of the owner's messages from the options."""
    texts: tuple[bytes, ...]
    """The constants between numbers, keys and values: see `codec.keys`."""


AnyCodec: TypeAlias = ReadCodec[Any] | KeyCodec[Any]
"""A protocol by its name, for callers that do not know its options."""
