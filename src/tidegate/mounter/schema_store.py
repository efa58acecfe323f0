"""Every version of every table, to decode rows of any ts.

A version is valid from the FinishedTS of the job that made it. A row committed at c is decoded with the
version at c - 1, because a row at a job's own ts still has the schema before the job
(docs/formats/ddl.md#where-jobs-are-found). The store is built from the meta keys at one ts or from a saved
image, and advanced by DDL jobs. It keeps versions until `forget` is called with a later ts. Definitions stay
packed until rows of the table have to be decoded (`table_version`), so a catalogue of a hundred thousand
tables is loaded in seconds.

Not thread-safe.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson

from tidegate.errors import Undecodable
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.mounter import ddl, ddl_early, ddl_transition, schema_image
from tidegate.mounter.ddl_jobs import UnreadableJob
from tidegate.mounter.ddl_transition import EmittedDdl, Refusal
from tidegate.mounter.schema_image import Image
from tidegate.mounter.schemas import Schemas
from tidegate.mounter.table_version import Packed, Parsed, TableVersion
from tidegate.mounter.timelines import Timelines
from tidegate.tidb import ddl_job_table, keys, table_info
from tidegate.tidb.ddl_job import DdlJob
from tidegate.tidb.table_filter import is_system_schema

JOBS_REMEMBERED: Final = 256
"""How many ids of jobs are kept: TiDB may write a finished job again before it moves it into the history."""

_MYSQL_SCHEMA_ID: Final = 1
_META_COLUMNS: Final = {keys.DDL_JOB_TABLE_ID: 5, keys.DDL_HISTORY_TABLE_ID: 2}
"""The ids of column `job_meta` since TiDB 6.2. DDL is read from these two system tables, so the store keeps
them.
"""


@dataclass(frozen=True, slots=True)
class Applied:
    """The changes of a job in the catalogue, and the events that may be sent."""

    finished_ts: int
    emitted: tuple[EmittedDdl, ...] = ()
    changed_ids: frozenset[int] = frozenset()
    """Physical ids that have a new version of a table, or none any more."""
    refusal: Refusal | None = None
    charset: str = ""
    sql_mode: int = 0
    """With `charset`: the session's settings by which the job's query is parsed."""

    @property
    def events(self) -> list[DdlEvent]:
        """All events, in order."""
        return [emitted.event for emitted in self.emitted]


Follows = Callable[[TableVersion], bool]
"""Whether a changefeed follows the rows of a table in this version."""


class SchemaStore:
    """The catalogue over time; see the module docstring."""

    def __init__(self, resolved_ts: int = 0) -> None:
        self.cache = Parsed()
        """The cache of parsed versions."""
        self.ignored: Counter[str] = Counter()
        """The number of jobs without an event, by reason."""
        self._resolved_ts = self._settled_ts = resolved_ts
        self._done: deque[tuple[int, int]] = deque()
        self._schemas = Schemas()
        self._tables: dict[int, TableVersion] = {}
        self._timelines = Timelines()

    @property
    def resolved_ts(self) -> int:
        """Every job that took effect at or before it has been applied."""
        return self._resolved_ts

    def versions_held(self) -> Iterator[TableVersion]:
        """Every version that is kept. A version of a partitioned table occurs once for each partition."""
        return self._timelines.versions()

    def advance(self, ts: int) -> None:
        """The caller promises that every job that took effect at or before `ts` has been applied."""
        self._resolved_ts = self._settled_ts = max(self._resolved_ts, ts)

    # --- built from meta keys ------------------------------------------------------------------------

    @classmethod
    def from_meta(cls, pairs: Iterable[tuple[bytes, bytes]], ts: int) -> SchemaStore:
        """The catalogue from the keys in `keys.catalogue_span` at `ts`. Other keys are skipped.

        If there is no such key, TiDB was never set up there. The catalogue then contains only the DDL job
        table, which every TiDB has.
        """
        store = cls(ts)
        tables: list[TableVersion] = []
        empty = True
        for key, value in pairs:
            if key[:1] != keys.META_PREFIX or not value:
                continue
            empty = False
            meta = keys.parse_meta(key)
            if meta.kind != keys.HASH_DATA or meta.field is None:
                continue
            if meta.name == b"DBs" and meta.field.startswith(b"DB:"):
                store._add_schema(value, ts)
            elif meta.name.startswith(b"DB:") and meta.field.startswith(b"Table:"):
                tables += store._read(_number(meta.name[3:]), value, ts)
        # Only now: `DB:` sorts before `DBs`, so the tables came before the schemas that they belong to.
        for table in tables:
            store._add(table)
        if empty:
            info = ddl_job_table.TABLE_INFO
            store._put(ts, TableVersion.of(_MYSQL_SCHEMA_ID, "mysql", info, ts, store.cache))
        return store

    def _add_schema(self, value: bytes, ts: int) -> None:
        try:
            info = orjson.loads(value)
            self._schemas.add(int(info["id"]), str(info["db_name"]["O"]), ts)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise Undecodable("a schema definition is not as TiDB writes it", why=str(error)) from None

    def _read(self, schema_id: int, value: bytes, ts: int) -> Iterator[TableVersion]:
        """A table or view, without the name of its schema, which comes later in the order of keys."""
        info = table_info.parse(value, f"schema id {schema_id}")
        # A sequence has keys like a table, and no rows that a changefeed could send.
        if not info.get("sequence"):
            yield TableVersion.of(schema_id, "", info, ts, self.cache, value)

    def _add(self, table: TableVersion) -> None:
        name = self.schema_name(table.schema_id)
        # System tables are never sent. The two that hold DDL jobs are needed to read these.
        if name is None or (is_system_schema(name) and table.id not in _META_COLUMNS):
            return
        table.schema = name
        self._put(table.valid_from, table)

    # --- saved and loaded ----------------------------------------------------------------------------

    def image(self, ts: int) -> Image:
        """The catalogue at `ts`, which must not be below a forgotten ts. Fast, since it only takes
        references.
        """
        # A version with several partitions is on the timeline of each, and is saved once.
        seen = {id(table): table for table in self._timelines.all_at(ts)}
        # With the schemas of the tables: that of the job table was never read if upstream has not been set up
        # yet.
        named = {table.schema_id: table.schema for table in seen.values()}
        named |= self._schemas.names_at(ts)
        return Image(
            ts,
            list(named.items()),
            list(seen.values()),
            self._schemas.dropped_at(ts),
            [(done, job) for done, job in self._done if done <= ts][-JOBS_REMEMBERED:],
            dict(self.ignored),
        )

    def dump(self, ts: int | None = None) -> bytes:
        """The catalogue at `ts` (default: the resolved ts) as the bytes of a file."""
        return b"".join(schema_image.chunks(self.image(self._resolved_ts if ts is None else ts)))

    @classmethod
    def load(cls, data: Packed) -> SchemaStore:
        """From a saved image, usually a mapped file. Raises Undecodable if it is damaged or
        another format.
        """
        store = cls()
        image = schema_image.parse(data, store.cache)
        store._resolved_ts = store._settled_ts = image.ts
        for number, name in image.schemas:
            store._schemas.add(number, name, 0)
        for number, entry in image.dropped.items():
            store._schemas.add_dropped(number, entry)
        store._done = deque(image.done)
        store.ignored = Counter(image.ignored)
        for table in image.tables:
            store._put(table.valid_from, table)
        return store

    # --- queries -------------------------------------------------------------------------------------

    def version_at(self, physical_id: int, ts: int) -> TableVersion | None:
        """The version of a table (or the partition's table) that is valid at `ts`. None if there is none."""
        return self._timelines.at(physical_id, ts)

    def table(self, physical_id: int, ts: int) -> TableSchema | None:
        """The TableSchema of `version_at`. For a row, call it with its commit_ts - 1. O(log versions)."""
        version = self.version_at(physical_id, ts)
        return version.parsed() if version else None

    def versions(
        self, physical_id: int, after: int, upto: int, follows: Follows | None = None
    ) -> list[tuple[int, TableSchema | None]]:
        """The versions that are valid at some ts of [after, upto]: (valid from, schema), in order.

        The first one may begin before `after`. None: from this ts on the table does not exist or is not
        followed.
        """
        return [
            (start, version.parsed() if version and (follows is None or follows(version)) else None)
            for start, version in self._timelines.in_force(physical_id, after, upto)
        ]

    def among(self, ids: Iterable[int], after: int, upto: int, follows: Follows) -> tuple[list[int], bool]:
        """Which of some physical ids belong to followed tables at some ts of [after, upto], and whether no
        table that is not followed has any of them.
        """
        found, alone = [], True
        for physical_id in ids:
            versions = [
                one for _, one in self._timelines.in_force(physical_id, after, upto) if one is not None
            ]
            followed = [follows(one) for one in versions]
            found += [physical_id] if any(followed) else []
            # Then no row has to be judged by itself, and a reader can take all rows as they are.
            alone = alone and all(followed)
        return found, alone

    def entries(self, ts: int) -> list[TableVersion]:
        """All tables of user schemas that exist at `ts`, without views, by logical id. Parses nothing."""
        found = {
            table.id: table
            for table in self._timelines.all_at(ts)
            if not table.is_view and not is_system_schema(table.schema)
        }
        return [found[table_id] for table_id in sorted(found)]

    def tables(self, ts: int) -> list[TableSchema]:
        """The TableSchemas of `entries`. Parses each one, which is slow for many tables."""
        return [table.parsed() for table in self.entries(ts)]

    def schema_name(self, schema_id: int) -> str | None:
        """The newest name of a schema."""
        return self._schemas.name(schema_id)

    def schema_names(self) -> list[str]:
        """The user schemas that exist after the last job, sorted."""
        return self._schemas.of_users()

    def current(self, table_id: int) -> TableVersion | None:
        """The newest version of a table or view by its logical id."""
        return self._tables.get(table_id)

    def tables_of(self, schema_id: int) -> list[TableVersion]:
        """The newest versions of all tables and views of a schema."""
        return [table for table in self._tables.values() if table.schema_id == schema_id]

    def dropped_with(self, schema_id: int) -> tuple[TableVersion, ...] | None:
        """The tables of a schema when it was last dropped. None if they are not known."""
        return self._schemas.dropped_with(schema_id)

    def job_meta_columns(self) -> dict[int, int]:
        """The id of column `job_meta`, by table id, for the two tables from which DDL jobs are read."""
        found = {}
        for table_id, usual in _META_COLUMNS.items():
            table = self._tables.get(table_id)
            named = [c.id for c in table.parsed().columns if c.name == "job_meta"] if table else [usual]
            if named:
                found[table_id] = named[0]
        return found

    # --- changes -------------------------------------------------------------------------------------

    def apply(self, job: DdlJob | UnreadableJob) -> Applied:
        """Apply a job. Jobs come in order of FinishedTS.

        A job has no effect if it is at or below the settled ts, has no schema version, or was applied before.
        A job that is refused or malformed leaves the tables as they are, so a changefeed that follows them
        must stop at that job.
        """
        if isinstance(job, UnreadableJob):
            return Applied(job.finished_ts, refusal=ddl_transition.unreadable(job.error))
        reason = self._skip(job)
        if reason:
            self.ignored[reason] += 1
            return Applied(job.finished_ts)
        try:
            # Computed as a whole before anything changes, so a job that is not understood leaves the
            # catalogue as it was.
            change = ddl.transition(job, self)
        except Undecodable as error:
            return Applied(job.finished_ts, refusal=ddl_transition.unreadable(error, job))
        if change.ignored:
            self.ignored[change.ignored] += 1
        # Before the tables change: a dropped schema remembers the tables that it has now.
        self._change_schemas(job, change.schemas)
        changed: set[int] = set()
        for table_id, after in change.tables:
            # The old version ends first, because the new one may have the same physical ids.
            changed |= self._end(job.finished_ts, table_id)
            if after is not None:
                changed |= self._put(job.finished_ts, after)
        self._resolved_ts = job.finished_ts
        # A job that took effect early comes again when it is done, and must then bring its indexes.
        if job.is_done:
            self._done.append((job.finished_ts, job.id))
        emitted = tuple(change.emitted)
        return Applied(
            job.finished_ts, emitted, frozenset(changed), change.refusal, job.charset, job.sql_mode
        )

    def _skip(self, job: DdlJob) -> str:
        if not ddl_early.takes_effect(job):
            return "the job is not done"
        last = islice(reversed(self._done), JOBS_REMEMBERED)
        if job.finished_ts <= self._settled_ts or any(job.id == known for _, known in last):
            return "the job has been applied before"
        # New tables are usually made by the job table's row, and the history only repeats them.
        if job.from_history and self._knows(job):
            return "the job has been applied before"
        return "" if job.schema_version or not job.is_done else "the job has no schema version"

    def _knows(self, job: DdlJob) -> bool:
        """Whether the tables made by a job from the history exist here, or existed."""
        infos: tuple[dict[str, Any], ...] = job.table_infos or ((job.table_info,) if job.table_info else ())
        ids = [info.get("id") for info in infos]
        return all(table_id in self._tables or table_id in self._timelines for table_id in ids)

    def _change_schemas(self, job: DdlJob, schemas: dict[int, str | None]) -> None:
        for schema_id, name in schemas.items():
            tables = self.tables_of(schema_id) if name is None else ()
            self._schemas.change(job.finished_ts, schema_id, name, tables)

    def _put(self, ts: int, version: TableVersion) -> set[int]:
        """Begin a version; the table's previous one must have ended. Returns the physical ids of
        the version.
        """
        self._tables[version.id] = version
        self._timelines.begin(ts, version)
        return set(version.physical_ids)

    def _end(self, ts: int, table_id: int) -> set[int]:
        """End a table's newest version. Returns the physical ids that belong to no table then."""
        before = self._tables.pop(table_id, None)
        return self._timelines.end(ts, before) if before is not None else set()

    def forget(self, ts: int) -> None:
        """Drop what no row committed after `ts` needs: versions that ended at or before `ts`."""
        self._timelines.forget(ts)
        self._schemas.forget(ts)
        # Keep the last jobs before `ts`, because a catalogue saved at `ts` or later needs their ids.
        while len(self._done) > JOBS_REMEMBERED and self._done[JOBS_REMEMBERED][0] <= ts:
            self._done.popleft()


def _number(digits: bytes) -> int:
    try:
        return int(digits)
    except ValueError:
        raise Undecodable("a meta key names no schema", why=digits[:40].hex()) from None
