"""Record, index and meta keys: build, parse, ranges of a table. All keys are raw, not region-encoded.

    record   't' table id, 8 comparable bytes, '_r' handle
    index    't' table id '_i' index id, flagged datums [, handle]
    meta     'm' memcomparable name, type u64 BE [, memcomparable field | , list index]

An int handle is 8 comparable bytes (the whole key has 19 bytes). A common handle consists of the key datums
of the clustered primary key, padded with zeros to 9 bytes if shorter. Source: TiDB `pkg/tablecodec`,
`pkg/structure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from tidegate.errors import Undecodable
from tidegate.model.span import Span
from tidegate.tidb import memcomparable

DDL_JOB_TABLE_ID: Final = 281474976710654
"""mysql.tidb_ddl_job: 2**48 - 2."""
DDL_HISTORY_TABLE_ID: Final = 281474976710652
"""mysql.tidb_ddl_history."""

META_PREFIX: Final = b"m"
STRING_DATA: Final = ord("s")
HASH_DATA: Final = ord("h")

INT_KEY_SIZE: Final = 19
_TABLE_SIZE: Final = 9
_RECORD: Final = b"_r"
_INDEX: Final = b"_i"
_MIN_COMMON_HANDLE: Final = 9


@dataclass(frozen=True, slots=True)
class RecordKey:
    """A parsed record key; `handle` is encoded as in the key."""

    table_id: int
    handle: bytes

    @property
    def is_int(self) -> bool:
        """Whether the handle is an integer: exactly 8 bytes (docs/formats/keys.md#rows)."""
        return len(self.handle) == 8

    @property
    def int_handle(self) -> int:
        """The integer handle or _tidb_rowid, signed; 0 for a common handle."""
        return memcomparable.decode_int(self.handle) if self.is_int else 0


@dataclass(frozen=True, slots=True)
class MetaKey:
    """A parsed meta key; `field` is None for plain strings."""

    name: bytes
    kind: int
    field: bytes | None


def table_prefix(table_id: int) -> bytes:
    """`t{id}`."""
    return b"t" + memcomparable.encode_int(table_id)


def record_prefix(table_id: int) -> bytes:
    """`t{id}_r`."""
    return table_prefix(table_id) + _RECORD


def record_span(table_id: int) -> Span:
    """All record keys of a physical table: [`t{id}_r`, `t{id}_s`)."""
    return Span(record_prefix(table_id), table_prefix(table_id) + b"_s")


def stripe_span(table_id: int, ids: int) -> Span:
    """All keys of `ids` neighbouring table ids, including `table_id`; the edges are multiples of `ids`."""
    first = table_id - table_id % ids
    return Span(table_prefix(first), table_prefix(first + ids))


@lru_cache(maxsize=1 << 12)  # asked for each span of a feed at each tick
def stripe_ids(span: Span) -> range:
    """The table ids that have keys in a `stripe_span`, or in a piece of one.

    Empty for other spans, and for a piece of one table's records: its readers need all of it.
    """
    start, end = span.start, span.end
    if min(len(start), len(end)) < _TABLE_SIZE or start[:1] != b"t" or end[:1] != b"t":
        return range(0)
    # An end with more than a table id is inside that table, whose first keys then belong to the span.
    whole = len(end) == _TABLE_SIZE
    ids = range(memcomparable.decode_int(start, 1), memcomparable.decode_int(end, 1) + (not whole))
    one = ids.stop - ids.start == 1 and len(start) > _TABLE_SIZE and not whole
    return range(0) if one or span == ddl_span() else ids


def ids_touched(start: bytes, end: bytes, within: range) -> range:
    """The table ids of a stripe that may have keys in [start, end), which is a part of the stripe."""
    first, stop = within.start, within.stop
    if len(start) >= _TABLE_SIZE:
        first = max(first, memcomparable.decode_int(start, 1))
    if len(end) >= _TABLE_SIZE:
        last = memcomparable.decode_int(end, 1)
        stop = min(stop, last if len(end) == _TABLE_SIZE else last + 1)
    return range(first, max(first, stop))


@cache
def ddl_span() -> Span:
    """Where DDL jobs are written: from `mysql.tidb_ddl_history` to `mysql.tidb_ddl_job`, whose ids are close.

    It is a single span, so that one resolved ts covers all DDL (docs/formats/ddl.md#where-jobs-are-found).
    """
    return Span(record_prefix(DDL_HISTORY_TABLE_ID), record_span(DDL_JOB_TABLE_ID).end)


def meta_span() -> Span:
    """All keys under `m`: schemas, tables, ids, and every DDL job ever run."""
    return Span(META_PREFIX, b"n")


def catalogue_span() -> Span:
    """The part of `meta_span` with the hashes `DBs` and `DB:<id>`: schemas and tables, without the jobs.

    The first eight bytes of a name are in the key unchanged, so the names from `DB:` to `DBs` are one range.
    """
    return Span(META_PREFIX + b"DB:", META_PREFIX + b"DBt")


def int_record(table_id: int, handle: int) -> bytes:
    """The key of a row with an integer handle; unsigned handles from 2**63 on wrap to negative."""
    signed = handle - (1 << 64) if handle >= 1 << 63 else handle
    return record_prefix(table_id) + memcomparable.encode_int(signed)


def common_record(table_id: int, datums: bytes) -> bytes:
    """The key of a row of a clustered table; `datums` as `tidegate.tidb.datum.encode_key` makes them."""
    return record_prefix(table_id) + datums.ljust(_MIN_COMMON_HANDLE, b"\0")


def index_prefix(table_id: int, index_id: int, datums: bytes = b"") -> bytes:
    """The key of an index entry without its handle."""
    return table_prefix(table_id) + _INDEX + memcomparable.encode_int(index_id) + datums


def is_record(key: bytes) -> bool:
    """Whether a key has the form of a record key."""
    return len(key) > 11 and key[:1] == b"t" and key[9:11] == _RECORD


def parse_record(key: bytes) -> RecordKey:
    """A record key's table id and handle."""
    if not is_record(key) or len(key) < INT_KEY_SIZE:
        raise Undecodable(
            "a key is not a record key",
            where=key[:64].hex(),
            why="it lacks t..._r and a handle",
        )
    return RecordKey(memcomparable.decode_int(key, 1), key[11:])


def meta_string(name: bytes) -> bytes:
    """The key of a plain string such as `SchemaVersionKey`."""
    return META_PREFIX + memcomparable.encode_bytes(name) + memcomparable.encode_uint(STRING_DATA)


def meta_hash_prefix(name: bytes) -> bytes:
    """The prefix of all fields of a hash such as `DBs`."""
    return META_PREFIX + memcomparable.encode_bytes(name) + memcomparable.encode_uint(HASH_DATA)


def meta_hash(name: bytes, field: bytes) -> bytes:
    """The key of one field of a hash: `DBs` `DB:1`, `DB:1` `Table:5`."""
    return meta_hash_prefix(name) + memcomparable.encode_bytes(field)


def parse_meta(key: bytes) -> MetaKey:
    """A meta key's name, type and field (for lists, the 8 bytes of the index)."""
    if key[:1] != META_PREFIX:
        raise Undecodable("a key is not a meta key", where=key[:64].hex())
    name, at = memcomparable.decode_bytes(key, 1)
    kind = memcomparable.decode_uint(key, at)
    at += 8
    if at == len(key):
        return MetaKey(name, kind, None)
    if kind in (ord("L"), ord("l")):
        return MetaKey(name, kind, key[at:])
    field, end = memcomparable.decode_bytes(key, at)
    if end != len(key):
        raise Undecodable("a meta key has bytes after its end", where=key[:64].hex())
    return MetaKey(name, kind, field)
