"""Every version of every table, for rows of any ts.

A version is valid from the FinishedTS of the job that made it; a row committed at c is decoded with the
version of c - 1, since a row at a job's own ts still has the schema before (facts 6.5). Versions are kept
until `forget`. Built from the meta keys at one ts, advanced by DDL jobs, saved as one checksummed blob.
Definitions stay JSON text until a version is first asked for, so that loading costs little.

Not thread-safe: one owner a process.

    blob   "TGSS" | format version u8 | CRC32C u32 of what follows | zlib of the body      little-endian
    body   length of the index u32 | index JSON | the definitions, one after the other
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import orjson
from crc32c import crc32c

from tidegate.errors import Undecodable
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.mounter import ddl
from tidegate.mounter.filter import is_system_schema
from tidegate.tidb import ddl_job_table, keys, table_info
from tidegate.tidb.ddl_job import DdlJob

MAGIC: Final = b"TGSS"
FORMAT: Final = 1
MAX_BLOB_BYTES: Final = 4 << 30
"""What `load` will unpack at most."""

_ALWAYS: Final = frozenset({keys.DDL_JOB_TABLE_ID})
_MYSQL_SCHEMA_ID: Final = 1
"""System tables that are kept all the same: the DDL puller decodes them."""


class _Version:
    """One version of one table; the TableSchema is made when first asked for."""

    __slots__ = ("_schema", "physical_ids", "raw", "schema_id", "schema_name", "table_id", "valid_from")

    def __init__(
        self,
        table_id: int,
        schema_id: int,
        schema_name: str,
        valid_from: int,
        physical_ids: tuple[int, ...],
        raw: bytes,
    ) -> None:
        self.table_id = table_id
        self.schema_id = schema_id
        self.schema_name = schema_name
        self.valid_from = valid_from
        self.physical_ids = physical_ids
        self.raw = raw
        self._schema: TableSchema | None = None

    @property
    def schema(self) -> TableSchema:
        if self._schema is None:
            info = table_info.parse(self.raw, f"table id {self.table_id}")
            self._schema = table_info.table_schema(self.schema_name, info, self.valid_from)
        return self._schema


class _Timeline:
    """The versions of one physical id in order of ts; None where it ends."""

    __slots__ = ("starts", "versions")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.versions: list[_Version | None] = []

    def at(self, ts: int) -> _Version | None:
        found = bisect_right(self.starts, ts)
        return self.versions[found - 1] if found else None

    def append(self, ts: int, version: _Version | None) -> None:
        if self.starts and self.starts[-1] == ts:
            self.versions[-1] = version
            return
        assert not self.starts or self.starts[-1] < ts, "a version is older than the newest one"
        self.starts.append(ts)
        self.versions.append(version)


class SchemaStore:
    """The catalogue over time; see the module's first lines."""

    def __init__(self, resolved_ts: int = 0) -> None:
        self._resolved_ts = resolved_ts
        self._last_job_id = 0
        self._schemas: dict[int, str] = {}
        self._tables: dict[int, _Version] = {}
        self._timelines: dict[int, _Timeline] = {}
        self.ignored: Counter[str] = Counter()
        """How many jobs had nothing for targets, by reason."""

    @property
    def resolved_ts(self) -> int:
        """Every job finished at or before it has been applied."""
        return self._resolved_ts

    def advance(self, ts: int) -> None:
        """Promise that every job finished at or before `ts` has been applied."""
        self._resolved_ts = max(self._resolved_ts, ts)

    @classmethod
    def from_meta(cls, pairs: Iterable[tuple[bytes, bytes]], ts: int) -> SchemaStore:
        """The catalogue as the keys under `m` have it at `ts`; other keys are passed over.

        Without any such key TiDB was never set up there: the catalogue then holds only the DDL job table,
        which every TiDB has.
        """
        store = cls(ts)
        tables: list[tuple[int, bytes]] = []
        empty = True
        for key, value in pairs:
            if key[:1] != keys.META_PREFIX or not value:
                continue
            empty = False
            meta = keys.parse_meta(key)
            if meta.kind != keys.HASH_DATA or meta.field is None:
                continue
            if meta.name == b"DBs" and meta.field.startswith(b"DB:"):
                store._add_schema(value)
            elif meta.name.startswith(b"DB:") and meta.field.startswith(b"Table:"):
                tables.append((_number(meta.name[3:]), value))
        for schema_id, value in tables:
            store._add_base_table(schema_id, value, ts)
        if empty:
            info = orjson.dumps(ddl_job_table.TABLE_INFO)
            store._put(ts, _MYSQL_SCHEMA_ID, "mysql", ddl_job_table.TABLE_INFO, info)
        return store

    def _add_schema(self, value: bytes) -> None:
        try:
            info = orjson.loads(value)
            self._schemas[int(info["id"])] = str(info["db_name"]["O"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise Undecodable("a schema definition is not as TiDB writes it", why=str(error)) from None

    def _add_base_table(self, schema_id: int, value: bytes, ts: int) -> None:
        name = self._schemas.get(schema_id)
        info = table_info.parse(value, f"schema id {schema_id}")
        if name is None or not table_info.is_base_table(info):
            return
        if is_system_schema(name) and info["id"] not in _ALWAYS:
            return
        self._put(ts, schema_id, name, info, value)

    def table(self, physical_id: int, ts: int) -> TableSchema | None:
        """The version of a table (or the partition's table) that is valid at `ts`; None if there is none.

        For a row call it with its commit_ts - 1. O(log versions).
        """
        timeline = self._timelines.get(physical_id)
        version = timeline.at(ts) if timeline else None
        return version.schema if version else None

    def versions(self, physical_id: int, after: int, upto: int) -> list[tuple[int, TableSchema | None]]:
        """The versions in force at some ts of [after, upto]: (valid from, schema), in order.

        The first may begin before `after`; None means that the table does not exist from then on.
        """
        timeline = self._timelines.get(physical_id)
        if timeline is None:
            return []
        first = max(bisect_right(timeline.starts, after) - 1, 0)
        last = bisect_right(timeline.starts, upto)
        return [
            (timeline.starts[i], version.schema if (version := timeline.versions[i]) else None)
            for i in range(first, last)
        ]

    def tables(self, ts: int) -> list[TableSchema]:
        """All tables of user schemas that exist at `ts`, by logical id."""
        found: dict[int, _Version] = {}
        for timeline in self._timelines.values():
            version = timeline.at(ts)
            if version is not None and not is_system_schema(version.schema_name):
                found[version.table_id] = version
        return [found[table_id].schema for table_id in sorted(found)]

    def schema_name(self, schema_id: int) -> str | None:
        """The newest name of a schema."""
        return self._schemas.get(schema_id)

    def schema_names(self) -> list[str]:
        """The user schemas that exist after the last job, sorted."""
        return sorted(name for name in self._schemas.values() if not is_system_schema(name))

    def current(self, table_id: int) -> TableSchema | None:
        """The newest version of a table by its logical id."""
        version = self._tables.get(table_id)
        return version.schema if version else None

    def tables_of(self, schema_id: int) -> list[TableSchema]:
        """The newest versions of all tables of a schema."""
        return [version.schema for version in self._tables.values() if version.schema_id == schema_id]

    def apply(self, job: DdlJob) -> list[DdlEvent]:
        """Take a finished job in; jobs come in order of FinishedTS. What targets must be told.

        A job at or before `resolved_ts`, without a schema version, or seen twice does nothing. Fatal for
        jobs that cannot be replicated; the store is then unchanged.
        """
        reason = self._skip(job)
        if reason:
            self.ignored[reason] += 1
            return []
        change = ddl.transition(job, self)
        if change.ignored:
            self.ignored[change.ignored] += 1
        for schema_id, name in change.schemas.items():
            if name is None:
                self._schemas.pop(schema_id, None)
            else:
                self._schemas[schema_id] = name
        for table_id, after in change.tables:
            if after is None:
                self._end(job.finished_ts, table_id)
            else:
                self._put(job.finished_ts, *after)
        self._resolved_ts, self._last_job_id = job.finished_ts, job.id
        return change.events

    def _skip(self, job: DdlJob) -> str:
        if not job.is_done:
            return "the job is not done"
        if job.finished_ts <= self._resolved_ts or job.id == self._last_job_id:
            return "the job has been applied before"
        return "" if job.schema_version else "the job has no schema version"

    def _put(
        self, ts: int, schema_id: int, schema_name: str, info: dict[str, Any], raw: bytes | None = None
    ) -> None:
        self._end(ts, info["id"])
        physical_ids = table_info.physical_ids(info)
        raw = orjson.dumps(info) if raw is None else raw
        version = _Version(info["id"], schema_id, schema_name, ts, physical_ids, raw)
        self._tables[version.table_id] = version
        for physical_id in physical_ids:
            self._timelines.setdefault(physical_id, _Timeline()).append(ts, version)

    def _end(self, ts: int, table_id: int) -> None:
        before = self._tables.pop(table_id, None)
        for physical_id in before.physical_ids if before else ():
            timeline = self._timelines[physical_id]
            if timeline.versions[-1] is before:
                timeline.append(ts, None)

    def forget(self, ts: int) -> None:
        """Drop what no row committed after `ts` needs: versions that ended at or before it."""
        for physical_id in list(self._timelines):
            timeline = self._timelines[physical_id]
            first = max(bisect_right(timeline.starts, ts) - 1, 0)
            del timeline.starts[:first], timeline.versions[:first]
            if timeline.starts[0] <= ts and timeline.versions[0] is None:
                del timeline.starts[0], timeline.versions[0]
            if not timeline.starts:
                del self._timelines[physical_id]

    def dump(self) -> bytes:
        """The whole store as bytes; see the module's first lines."""
        raws: list[bytes] = []
        rows: list[list[Any]] = []
        numbers: dict[int, int] = {}
        for timeline in self._timelines.values():
            for version in timeline.versions:
                if version is not None and id(version) not in numbers:
                    numbers[id(version)] = len(rows)
                    raws.append(version.raw)
                    rows.append(
                        [
                            version.table_id,
                            version.schema_id,
                            version.schema_name,
                            version.valid_from,
                            version.physical_ids,
                            len(version.raw),
                        ]
                    )
        index = {
            "resolved_ts": self._resolved_ts,
            "last_job_id": self._last_job_id,
            "schemas": list(self._schemas.items()),
            "versions": rows,
            "current": [numbers[id(version)] for version in self._tables.values()],
            "timelines": [
                [physical_id, line.starts, [-1 if v is None else numbers[id(v)] for v in line.versions]]
                for physical_id, line in self._timelines.items()
            ],
            "ignored": dict(self.ignored),
        }
        head = orjson.dumps(index)
        body = zlib.compress(len(head).to_bytes(4, "little") + head + b"".join(raws), 1)
        checksum: int = crc32c(body)
        return MAGIC + bytes([FORMAT]) + checksum.to_bytes(4, "little") + body

    @classmethod
    def load(cls, blob: bytes) -> SchemaStore:
        """A store from `dump`'s bytes; Undecodable if they are damaged or of a newer format."""
        if blob[:4] != MAGIC or len(blob) < 9:
            raise Undecodable("a schema snapshot is damaged", why="it does not begin as one")
        if blob[4] != FORMAT:
            raise Undecodable("a schema snapshot has an unknown format", why=f"version {blob[4]}")
        if crc32c(blob[9:]) != int.from_bytes(blob[5:9], "little"):
            raise Undecodable("a schema snapshot is damaged", why="its checksum does not match")
        try:
            unpacker = zlib.decompressobj()
            body = unpacker.decompress(blob[9:], MAX_BLOB_BYTES)
            if not unpacker.eof:
                raise ValueError(f"it is cut, or larger than {MAX_BLOB_BYTES} bytes")
            size = int.from_bytes(body[:4], "little")
            return cls._restore(orjson.loads(body[4 : 4 + size]), body[4 + size :])
        except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise Undecodable(
                "a schema snapshot is damaged", why=f"{type(error).__name__}: {error}"
            ) from None

    @classmethod
    def _restore(cls, index: dict[str, Any], raws: bytes) -> SchemaStore:
        store = cls(index["resolved_ts"])
        store._last_job_id = index["last_job_id"]
        store._schemas = dict(index["schemas"])
        versions: list[_Version | None] = []
        at = 0
        for table_id, schema_id, name, valid_from, physical_ids, size in index["versions"]:
            raw = raws[at : at + size]
            at += size
            versions.append(_Version(table_id, schema_id, name, valid_from, tuple(physical_ids), raw))
        if at != len(raws):
            raise ValueError(f"{len(raws)} bytes of definitions, {at} were promised")
        versions.append(None)
        for number in index["current"]:
            version = versions[number]
            assert version is not None
            store._tables[version.table_id] = version
        for physical_id, starts, numbers in index["timelines"]:
            line = store._timelines[physical_id] = _Timeline()
            line.starts, line.versions = starts, [versions[number] for number in numbers]
        store.ignored = Counter(index["ignored"])
        return store


def _number(digits: bytes) -> int:
    try:
        return int(digits)
    except ValueError:
        raise Undecodable("a meta key names no schema", why=digits[:40].hex()) from None
