"""One version of one table. Its definition stays compressed until it is needed.

A catalogue has one of these for each table, sometimes more than a hundred thousand. Therefore only names, ids
and whether there is a key are attributes, and the TableInfo JSON is compressed. A TableSchema is made when
rows of the table have to be decoded, and forgotten after PARSED_MAX others were made.

    packed   CRC32C of the rest u32 | size of the JSON u32 | the JSON, zstd          little-endian
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
from crc32c import crc32c

from tidegate.errors import Undecodable
from tidegate.model.schema import TableSchema
from tidegate.tidb import table_info

PARSED_MAX: Final = 4096
"""How many versions of a catalogue are kept parsed. Each takes some ten kilobytes."""
INFO_BYTES_MAX: Final = 64 << 20
"""The greatest size of an unpacked definition: above TiKV's largest entry."""

_CODEC: Final = pa.Codec("zstd", 1)
_HEAD: Final = 8

Packed: TypeAlias = bytes | memoryview


def pack(json: bytes) -> bytes:
    """Compress a definition's JSON to the form in memory and in files."""
    compressed: bytes = _CODEC.compress(json, asbytes=True)
    rest = len(json).to_bytes(4, "little") + compressed
    checksum: int = crc32c(rest)
    return checksum.to_bytes(4, "little") + rest


def unpack(packed: Packed) -> bytes:
    """The JSON of a packed definition. Raises Undecodable if it is damaged."""
    # The checksum first, because the size is read from the same bytes, and that much memory is allocated.
    if len(packed) < _HEAD or crc32c(packed[4:]) != int.from_bytes(packed[:4], "little"):
        raise Undecodable("a stored table definition is damaged", why="its checksum does not match")
    size = int.from_bytes(packed[4:_HEAD], "little")
    if size > INFO_BYTES_MAX:
        raise Undecodable("a stored table definition is damaged", why=f"{size} bytes are promised")
    try:
        found: bytes = _CODEC.decompress(pa.py_buffer(packed[_HEAD:]), size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Undecodable("a stored table definition is damaged", why=str(error)) from None
    return found


class Parsed:
    """The versions that have a TableSchema now. Beyond the limit, the oldest TableSchema is dropped."""

    def __init__(self, limit: int = PARSED_MAX) -> None:
        self._limit = limit
        self._held: deque[TableVersion] = deque()

    def add(self, version: TableVersion) -> None:
        """Note that a version was parsed."""
        # In the order of parsing and not of use, so a reader of a parsed version changes nothing here.
        self._held.append(version)
        if len(self._held) > self._limit:
            self._held.popleft().forget_parsed()


class TableVersion:
    """A table (or view) as it is from `valid_from` on. Immutable, except for its caches."""

    __slots__ = (
        "_cache",
        "_parsed",
        "eligible",
        "id",
        "is_view",
        "packed",
        "physical_ids",
        "schema",
        "schema_id",
        "table",
        "valid_from",
        "verdicts",
    )

    def __init__(
        self,
        table_id: int,
        schema_id: int,
        schema: str,
        table: str,
        valid_from: int,
        physical_ids: tuple[int, ...],
        packed: Packed,
        *,
        eligible: bool,
        is_view: bool,
        cache: Parsed,
    ) -> None:
        self.id = table_id
        """Logical table id."""
        self.schema_id = schema_id
        self.schema = schema
        self.table = table
        self.valid_from = valid_from
        """FinishedTS of the job that made it, or the ts of the snapshot that first contained it."""
        self.physical_ids = physical_ids
        """The table ids in its record keys. A view has its own id here, though it has no records."""
        self.packed = packed
        self.eligible = eligible
        """Whether it has a handle key. Always True for a view."""
        self.is_view = is_view
        self.verdicts = 0
        """The verdicts of filters about it, two bits each (`filter.verdicts`)."""
        self._cache = cache
        self._parsed: TableSchema | None = None

    @classmethod
    def of(
        cls, schema_id: int, schema: str, info: dict[str, Any], ts: int, cache: Parsed, json: bytes = b""
    ) -> TableVersion:
        """From a TableInfo. `json`: its text, if the caller has it. Raises Undecodable if it is malformed."""
        try:
            is_view = bool(info.get("view"))
            return cls(
                info["id"],
                schema_id,
                schema,
                table_info.name_of(info),
                ts,
                table_info.physical_ids(info),
                # Packed at once, because a catalogue may have 100,000 tables, most of which no row needs.
                pack(json or orjson.dumps(info)),
                eligible=is_view or table_info.has_handle_key(info),
                is_view=is_view,
                cache=cache,
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise Undecodable(
                "a table definition is not as TiDB writes it",
                where=f"{schema}, table id {info.get('id')}",
                why=f"{type(error).__name__}: {error}",
            ) from None

    @property
    def is_partitioned(self) -> bool:
        """Whether its record keys have the ids of partitions."""
        return self.physical_ids != (self.id,)

    @property
    def name(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.table}"

    @property
    def full_name(self) -> tuple[str, str]:
        """Schema and table."""
        return self.schema, self.table

    def info(self) -> dict[str, Any]:
        """The TableInfo."""
        return table_info.parse(unpack(self.packed), self.name)

    def parsed(self) -> TableSchema:
        """The TableSchema for decoders, cached for a while. Callable from any thread."""
        parsed = self._parsed  # read once: another thread may set it to None at any moment
        if parsed is None:
            parsed = self._parsed = table_info.table_schema(self.schema, self.info(), self.valid_from)
            self._cache.add(self)
        return parsed

    def forget_parsed(self) -> None:
        """Drop the cached TableSchema. `parsed` makes it again."""
        self._parsed = None
