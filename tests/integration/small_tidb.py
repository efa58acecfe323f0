"""A TiDB in small: sessions that write rows while partitions are exchanged, truncated and reorganised.

The DDL executor writes a job as TiDB does: TableInfo, `SchemaVersionKey` and the job's row in one transaction
a step, every step of TiDB's (`pkg/ddl/partition.go`). Sessions use the newest schema version they know when
their transaction begins, and the executor takes the next step only when no session is behind the last one:
TiDB's rule, by which two versions of a schema are in use at a time, and by which a session may commit after
the job's end what it began before.

Truth is physical: `owners` says which table's rows every physical id holds from which ts on, `commits` what
was written.
"""

from __future__ import annotations

import copy
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import orjson

from tests.small_tables import SmallTables, create_table
from tidegate.errors import Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import Transaction
from tidegate.model.schema import Kind
from tidegate.tidb import keys, record, row
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, table_info

SCHEMA: Final = "parted"
PARTED: Final = f"{SCHEMA}.r"
PLAIN: Final = f"{SCHEMA}.ex"
START: Final = (("p0", 0), ("p1", 100), ("p2", 200))
"""The partitions at first: name, and the least id of 100."""
FIRST_JOBS: Final = 10
"""Ids from the counter that the jobs take by which the tables are made, and more."""
COLUMNS: Final = [ColumnSpec("id", 3, 11, flag=NOT_NULL | PRIMARY), ColumnSpec("v", 3, 11)]
DELETE_ONLY, WRITE_ONLY, WRITE_REORG, DELETE_REORG, PUBLIC = 1, 2, 3, 4, 5
RUNNING, DONE, QUEUEING = 1, 4, 8


@dataclass(frozen=True)
class Part:
    """One partition: rows with low <= id < limit."""

    name: str
    id: int
    low: int
    limit: int

    def holds(self, row_id: int) -> bool:
        """Whether a row belongs here."""
        return self.low <= row_id < self.limit


@dataclass(frozen=True)
class Version:
    """The schema that sessions know: where rows of both tables are read, and where else they are written."""

    parts: tuple[Part, ...]
    plain_id: int
    doubles: tuple[Part, ...] = ()
    """Partitions of the other side of a reorganisation."""

    def targets(self, table: str, row_id: int) -> list[int]:
        """The physical ids of a row: the one it is read from first."""
        if table == PLAIN:
            return [self.plain_id]
        return [part.id for part in (*self.parts, *self.doubles) if part.holds(row_id)]


@dataclass(frozen=True)
class Commit:
    """A committed write of a session; value None: a delete."""

    ts: int
    row_id: int
    value: int | None
    physical_ids: tuple[int, ...]


@dataclass(frozen=True)
class Effect:
    """A DDL and what it does to the rows of a partition at a target: truncate, exchange, or nothing."""

    ts: int
    query: str
    kind: str
    part: Part | None = None


@dataclass
class SmallTidb:
    """One schema with a partitioned table `r` and a plain table `ex` of the same columns."""

    pd: PdClient
    version: Version = field(init=False)
    commits: list[Commit] = field(default_factory=list)
    owners: list[tuple[int, dict[int, str]]] = field(default_factory=list)
    """(from which ts on, physical id to table)."""
    reported: list[Effect] = field(default_factory=list)
    """Every DDL, at the ts it takes effect for rows."""

    def __post_init__(self) -> None:
        self._lock = threading.Condition()
        self._using: Counter[int] = Counter()
        self._number = 0
        self._values = 0
        made = SmallTables(self.pd, SCHEMA, {}, by_jobs=True)
        made.ddl(partial(create_table, info=_info(0, "ex")))
        self._next_id = made.catalog.global_id + FIRST_JOBS
        parts = tuple(Part(name, self._fresh_id(), low, low + 100) for name, low in START)
        made.ddl(partial(create_table, info=_parted(0, parts)))
        self._schema_id, self._schema_version = made.catalog.schema_id, made.catalog.version
        self._r_id = made.tables["r"].id
        self._table = made.tables["ex"]
        self.version = Version(parts, self._table.id)
        self._infos = {PARTED: _parted(self._r_id, parts), PLAIN: _info(self._table.id, "ex")}
        self.owners.append((self.pd.tso(), self._owned()))

    # --- sessions ------------------------------------------------------------------------------------

    def session(self, chance: random.Random, stop: Callable[[], bool]) -> None:
        """Write rows until stopped; several threads may do so at once."""
        while not stop():
            table = chance.choice((PARTED, PARTED, PLAIN))
            row_id = chance.randrange(100, 200) if table == PLAIN else chance.randrange(300)
            number, version = self._enter()
            try:
                self._change(chance, version, table, row_id)
            except Retryable:
                continue  # somebody else wrote the row
            finally:
                self._leave(number)

    def _change(self, chance: random.Random, version: Version, table: str, row_id: int) -> None:
        """A transaction with one row; at times it lasts until the schema is one step further."""
        targets = version.targets(table, row_id)
        transaction = Transaction(self.pd)
        exists = transaction.get(keys.int_record(targets[0], row_id)) is not None
        value = None if exists and chance.random() < 0.3 else self._value()
        for physical_id in targets:
            key = keys.int_record(physical_id, row_id)
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, record.encode(self._table, (row_id, value))[1])
        if chance.random() < 0.1:
            self.pd.pause(0.02)
        commit_ts = transaction.commit()
        with self._lock:
            self.commits.append(Commit(commit_ts, row_id, value, tuple(targets)))

    def _value(self) -> int:
        with self._lock:
            self._values += 1
            return self._values

    def _enter(self) -> tuple[int, Version]:
        with self._lock:
            self._using[self._number] += 1
            return self._number, self.version

    def _leave(self, number: int) -> None:
        with self._lock:
            self._using[number] -= 1
            self._lock.notify_all()

    # --- DDL -----------------------------------------------------------------------------------------

    def truncate(self, name: str) -> None:
        """ALTER TABLE r TRUNCATE PARTITION."""
        old = self._part(name)
        new = replace(old, id=self._fresh_id())
        parts = tuple(new if part == old else part for part in self.version.parts)
        query = f"alter table r truncate partition {name}"
        args = {"old_partition_ids": [old.id], "new_partition_ids": [new.id]}
        job = self._job(23, query, self._r_id, args)
        self._step(job, WRITE_ONLY, self.version)
        ts = self._step(job, DELETE_ONLY, Version(parts, self.version.plain_id))
        self._took_effect(Effect(ts, query, "truncate", old))
        self._step(job, DELETE_REORG, self.version)
        self._step(job, 0, self.version, done=True)

    def exchange(self, name: str) -> None:
        """ALTER TABLE r EXCHANGE PARTITION name WITH TABLE ex."""
        old = self._part(name)
        parts = tuple(
            replace(old, id=self.version.plain_id) if part == old else part for part in self.version.parts
        )
        args = {
            "partition_id": old.id,
            "pt_schema_id": self._schema_id,
            "pt_table_id": self._r_id,
            "partition_name": name,
            "with_validation": True,
        }
        written = f"alter table r exchange partition {name} with table ex"
        job = self._job(42, written, self.version.plain_id, args)
        self._step(job, WRITE_ONLY, self.version)
        plain = _info(old.id, "ex")
        ts = self._step(job, 0, Version(parts, old.id), done=True, plain=plain)
        query = f"ALTER TABLE `{SCHEMA}`.`r` EXCHANGE PARTITION `{name}` WITH TABLE `{SCHEMA}`.`ex`"
        self._took_effect(Effect(ts, query, "exchange", old))

    def reorganize(self, names: tuple[str, ...], into: tuple[tuple[str, int], ...]) -> None:
        """ALTER TABLE r REORGANIZE PARTITION: rows are copied while sessions write to both sides."""
        old = tuple(part for part in self.version.parts if part.name in names)
        lows = (old[0].low, *(limit for _, limit in into))
        new = tuple(
            Part(name, self._fresh_id(), low, limit) for (name, limit), low in zip(into, lows, strict=False)
        )
        before, plain = self.version.parts, self.version.plain_id
        at = before.index(old[0])
        after = (*before[:at], *new, *before[at + len(old) :])
        query = f"alter table r reorganize partition {', '.join(names)} into {', '.join(n for n, _ in into)}"
        args = {"part_names": list(names), "part_info": {"type": 1, "definitions": _definitions(new)}}
        job = self._job(64, query, self._r_id, args)
        # Delete only is left out: deletes go to both sides, inserts do not; write only does more.
        self._step(job, WRITE_ONLY, Version(before, plain, new))
        self._step(job, WRITE_REORG, self.version)
        for part in old:
            self._copy(part, new)
        self._step(job, DELETE_REORG, Version(after, plain, old))
        ts = self._step(job, PUBLIC, Version(after, plain))
        self._took_effect(Effect(ts, query, "reorganize"))
        self._step(job, 0, self.version, done=True)

    def _took_effect(self, effect: Effect) -> None:
        self.reported.append(effect)
        self.owners.append((effect.ts, self._owned()))

    def _copy(self, part: Part, new: tuple[Part, ...]) -> None:
        for key, _ in Snapshot(self.pd, self.pd.tso()).scan(keys.record_span(part.id)):
            row_id = keys.parse_record(key).int_handle
            target = keys.int_record(next(p.id for p in new if p.holds(row_id)), row_id)
            while not self._copied(key, target):
                pass

    def _copied(self, key: bytes, target: bytes) -> bool:
        """Copy a row that is not there yet; False: somebody wrote it meanwhile."""
        transaction = Transaction(self.pd, pessimistic=True)
        try:
            now = transaction.lock_keys([key, target])
            if key in now and target not in now:
                transaction.put(target, now[key])
                transaction.commit()
            else:
                transaction.rollback()
        except Retryable:
            transaction.rollback()
            return False
        return True

    def _step(
        self,
        job: dict[str, Any],
        state: int,
        version: Version,
        *,
        done: bool = False,
        plain: dict[str, Any] | None = None,
    ) -> int:
        """One transaction of the executor; then wait until every session uses the new version."""
        self._schema_version += 1
        job |= {"state": DONE if done else RUNNING, "schema_state": state}
        job["last_schema_version"] = self._schema_version
        self._infos[PARTED] = _parted(self._r_id, version.parts)
        gone = []
        if plain is not None:
            gone = [self._table_key(self._infos[PLAIN]["id"])]
            self._infos[PLAIN] = plain
        if done:
            job["binlog"] = {"SchemaVersion": self._schema_version, "TableInfo": self._infos[PARTED]}
        ts = self._write([*self._meta_of_all(), self._job_row(job)], gone)
        with self._lock:
            self.version, self._number = version, self._number + 1
            self._lock.wait_for(lambda: not any(self._using[n] for n in range(self._number)))
        return ts

    def _write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes] | None = None) -> int:
        transaction = Transaction(self.pd)
        for key in deletes or []:
            transaction.delete(key)
        for key, value in puts:
            transaction.put(key, value)
        return transaction.commit()

    def _job(self, action: int, query: str, table_id: int, args: dict[str, Any]) -> dict[str, Any]:
        job = {
            "id": self._fresh_id(),
            "type": action,
            "schema_id": self._schema_id,
            "table_id": table_id,
            "schema_name": SCHEMA,
            "table_name": "r",
            "state": QUEUEING,
            "schema_state": 0,
            "query": query,
            "start_ts": self.pd.tso(),
            "raw_args": args,
            "binlog": {"SchemaVersion": 0},
            "version": 2,
        }
        self._write([self._job_row(job)])
        return job

    def _job_row(self, job: dict[str, Any]) -> tuple[bytes, bytes]:
        cells: list[tuple[int, Kind, row.Stored]] = [(5, Kind.BYTES, orjson.dumps(job))]
        return keys.int_record(keys.DDL_JOB_TABLE_ID, job["id"]), row.encode_v1(cells)

    def _meta_of_all(self) -> list[tuple[bytes, bytes]]:
        version = (keys.meta_string(b"SchemaVersionKey"), b"%d" % self._schema_version)
        tables = [(self._table_key(info["id"]), orjson.dumps(info)) for info in self._infos.values()]
        return [version, *tables]

    def _table_key(self, table_id: int) -> bytes:
        return keys.meta_hash(b"DB:%d" % self._schema_id, b"Table:%d" % table_id)

    def _owned(self) -> dict[int, str]:
        return {part.id: PARTED for part in self.version.parts} | {self.version.plain_id: PLAIN}

    def _part(self, name: str) -> Part:
        return next(part for part in self.version.parts if part.name == name)

    def _fresh_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # --- truth ---------------------------------------------------------------------------------------

    def expected(self) -> Counter[tuple[int, str, int, int | None]]:
        """(commit ts, table, id, value) of every change that belongs to a table at its time."""
        found: Counter[tuple[int, str, int, int | None]] = Counter()
        for commit in self.commits:
            owned = next(tables for since, tables in reversed(self.owners) if since < commit.ts)
            tables = {owned[i] for i in commit.physical_ids if i in owned}
            found.update((commit.ts, table, commit.row_id, commit.value) for table in tables)
        return found

    def contents(self) -> dict[tuple[str, int], Any]:
        """(table, id) to value, read from the ids that belong to the tables now."""
        snapshot = Snapshot(self.pd, self.pd.tso())
        found = {}
        for physical_id, table in self.owners[-1][1].items():
            for key, value in snapshot.scan(keys.record_span(physical_id)):
                row_id = keys.parse_record(key).int_handle
                found[table, row_id] = record.decode(self._table, keys.parse_record(key), value)[1]
        return found


def _definitions(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    return [{"id": p.id, "name": {"O": p.name, "L": p.name}, "less_than": [str(p.limit)]} for p in parts]


def _info(table_id: int, name: str) -> dict[str, Any]:
    return copy.deepcopy(table_info(table_id, name, COLUMNS, ["id"]))


def _parted(table_id: int, parts: tuple[Part, ...]) -> dict[str, Any]:
    partition = {"type": 1, "expr": "`id`", "enable": True, "definitions": _definitions(parts)}
    partition["num"] = len(parts)
    return _info(table_id, "r") | {"partition": partition}
