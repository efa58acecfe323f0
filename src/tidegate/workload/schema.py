"""DDL as TiDB stores it: table definitions, meta keys, jobs. Pure.

A finished DDL leaves three transactions, which `Catalog` describes and the workload commits:

1. *queue*: `NextGlobalID`, and the job into mysql.tidb_ddl_job with state queueing (8);
2. *done*: DBInfo and TableInfo under the meta keys, `SchemaVersionKey`, `Diff:<version>`, and the job with
   state done (4) and the binlog's TableInfo. Its commit_ts is the DDL's FinishedTS;
3. *history*: the job with state synced (6) under `DDLJobHistory` and into mysql.tidb_ddl_history; the job's
   row in tidb_ddl_job deleted.

Rows of the two job tables are in row format v1, as DDL sessions write them. Unlike TiDB, a column change
takes one step: the intermediate states (delete-only, write-only, reorganisation) are left out.
Members and their order are those of TiDB's TableInfo version 5 and job version 2 (golden change logs).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final

import orjson

from tidegate.errors import InvalidInput
from tidegate.kvclient.transaction import DEL, PUT, Mutation
from tidegate.model import timestamp
from tidegate.model.schema import Kind, TableSchema
from tidegate.tidb import keys, row
from tidegate.tidb.table_info import table_schema
from tidegate.tidb.types import temporal

JOB_TABLE_SCHEMA_ID: Final = 1
"""Schema id of `mysql`."""
FIRST_USER_ID: Final = 116
"""Ids below belong to the system schemas."""

NOT_NULL: Final = 1
PRIMARY: Final = 2
AUTO_INCREMENT: Final = 512
NO_DEFAULT: Final = 4096
BINARY: Final = 128


class Action(IntEnum):
    """TiDB's DDL action codes."""

    CREATE_SCHEMA = 1
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    TRUNCATE_TABLE = 11
    RENAME_TABLE = 14


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column as `create table` gives it; `tp` is MySQL's type code.

    `default` is as TiDB stores it; "CURRENT_TIMESTAMP" takes the job's start_ts for rows that exist already.
    """

    name: str
    tp: int
    flen: int
    decimal: int = 0
    flag: int = 0
    text: bool = False
    """Has a charset (utf8mb4_bin); other columns are `binary`."""
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Ddl:
    """One DDL, ready to be written: what its three transactions hold, given their start timestamps."""

    job_id: int
    action: Action
    query: str
    schema_id: int
    schema: str
    table_id: int
    table: str
    version: int
    last_global_id: int
    raw_args: dict[str, Any]
    meta: tuple[Mutation, ...]
    """Meta writes of the done transaction, except TableInfo."""
    info: dict[str, Any] | None = None
    """The table after the DDL (for drop table: before it)."""
    info_key: bytes | None = None
    """Where `info` is put; None for drop table."""
    db_info: dict[str, Any] | None = None
    table_ids: str = ""
    new_schema_id: int = 0
    diff: dict[str, Any] = field(default_factory=dict)
    added_column: str | None = None

    def queue(self, start_ts: int) -> list[Mutation]:
        """The transaction that queues the job; its start_ts is the job's."""
        job = self._job(start_ts, 0, state=8, schema_state=0)
        return [_put_text(keys.meta_string(b"NextGlobalID"), str(self.last_global_id)), self._job_row(job)]

    def done(self, job_start_ts: int, start_ts: int) -> list[Mutation]:
        """The transaction that makes the schema change; its commit_ts is FinishedTS."""
        info = self.info_at(job_start_ts, start_ts)
        writes = list(self.meta)
        if self.info_key is not None:
            assert info is not None
            writes.append(_put_json(self.info_key, info))
        writes.append(_put_text(keys.meta_string(b"SchemaVersionKey"), str(self.version)))
        writes.append(_put_json(keys.meta_string(b"Diff:%d" % self.version), self._diff()))
        job = self._job(job_start_ts, start_ts, state=4, schema_state=5)
        job["binlog"] |= {"SchemaVersion": self.version, "DBInfo": self.db_info, "TableInfo": info}
        writes.append(self._job_row(job))
        return writes

    def history(self, job_start_ts: int, done_start_ts: int, start_ts: int) -> list[Mutation]:
        """The transaction that moves the job into the history."""
        job = self._job(job_start_ts, done_start_ts, state=6, schema_state=5)
        info = self.info_at(job_start_ts, done_start_ts)
        job["binlog"] |= {
            "SchemaVersion": self.version,
            "DBInfo": self.db_info,
            "TableInfo": info,
            "FinishedTS": start_ts,
        }
        job["raw_args"] = None
        meta = orjson.dumps(job)
        created = temporal.pack(temporal.parse(_time_text(job_start_ts, 0)))
        cells: list[tuple[int, Kind, row.Stored]] = [
            (2, Kind.BYTES, meta),
            (3, Kind.STRING, self.schema.encode()),
            (4, Kind.STRING, self.table.encode()),
            (5, Kind.STRING, str(self.schema_id).encode()),
            (6, Kind.STRING, (self.table_ids or str(self.table_id)).encode()),
            (7, Kind.DATETIME, created),
        ]
        history_row = keys.int_record(keys.DDL_HISTORY_TABLE_ID, self.job_id)
        return [
            Mutation(PUT, keys.meta_hash(b"DDLJobHistory", self.job_id.to_bytes(8, "big")), meta),
            Mutation(PUT, history_row, row.encode_v1(cells)),
            Mutation(DEL, self._job_key()),
        ]

    def info_at(self, job_start_ts: int, start_ts: int) -> dict[str, Any] | None:
        """The table's definition with the timestamps of this run in it."""
        if self.info is None or self.action is Action.DROP_TABLE:
            return self.info
        info = copy.deepcopy(self.info)
        info["update_timestamp"] = start_ts
        for column in info["cols"]:
            if column["name"]["O"] == self.added_column and column["default"] == "CURRENT_TIMESTAMP":
                column["origin_default"] = _time_text(job_start_ts, column["type"]["Decimal"])
        return info

    def _job(self, job_start_ts: int, real_start_ts: int, *, state: int, schema_state: int) -> dict[str, Any]:
        return {
            "id": self.job_id,
            "type": int(self.action),
            "schema_id": self.schema_id,
            "table_id": self.table_id,
            "schema_name": self.schema,
            "table_name": self.table,
            "state": state,
            "warning": None,
            "err": None,
            "err_count": 0,
            "row_count": 0,
            "raw_args": self.raw_args,
            "schema_state": schema_state,
            "snapshot_ver": 0,
            "real_start_ts": real_start_ts,
            "start_ts": job_start_ts,
            "dependency_id": 0,
            "query": self.query,
            "binlog": {
                "SchemaVersion": 0,
                "DBInfo": None,
                "TableInfo": None,
                "FinishedTS": 0,
                "MultipleTableInfos": None,
            },
            "version": 2,
            "reorg_meta": None,
            "multi_schema_info": None,
            "priority": 0,
            "seq_num": 0,
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "admin_operator": 0,
            "trace_info": None,
            "bdr_role": "",
            "cdc_write_source": 0,
            "local_mode": False,
            "sql_mode": 1436549152,
            "last_schema_version": self.version if state != 8 else 0,
        }

    def _job_key(self) -> bytes:
        return keys.int_record(keys.DDL_JOB_TABLE_ID, self.job_id)

    def _job_row(self, job: dict[str, Any]) -> Mutation:
        cells: list[tuple[int, Kind, row.Stored]] = [
            (2, Kind.INT, 0),
            (3, Kind.STRING, str(self.schema_id).encode()),
            (4, Kind.STRING, (self.table_ids or str(self.table_id)).encode()),
            (5, Kind.BYTES, orjson.dumps(job)),
            (6, Kind.INT, int(self.action)),
            (7, Kind.INT, 0),
        ]
        return Mutation(PUT, self._job_key(), row.encode_v1(cells))

    def _diff(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "type": int(self.action),
            "schema_id": self.schema_id,
            "table_id": self.table_id,
            "old_table_id": 0,
            "old_schema_id": 0,
            "regenerate_schema_map": False,
            "affected_options": None,
        } | self.diff


@dataclass(frozen=True, slots=True)
class Catalog:
    """One schema's tables and the counters of ids and versions; methods give a DDL and the catalog after it.

    `tables` maps names to TableInfo; `schema_id` 0: the schema does not exist yet.
    """

    schema: str
    schema_id: int = 0
    global_id: int = FIRST_USER_ID - 1
    version: int = 57
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def table(self, name: str) -> TableSchema:
        """The table as encoders take it."""
        info = self._info(name)
        return table_schema(self.schema, info, info["update_timestamp"])

    def create_schema(self) -> tuple[Ddl, Catalog]:
        """`create database`."""
        schema_id, job_id = self.global_id + 1, self.global_id + 2
        info = db_info(schema_id, self.schema)
        after = replace(self, schema_id=schema_id, global_id=job_id, version=self.version + 1)
        put = _put_json(keys.meta_hash(b"DBs", b"DB:%d" % schema_id), info)
        query = f"create database {self.schema}"
        args = {"db_info": info}
        return after._ddl(job_id, Action.CREATE_SCHEMA, query, 0, "", args, (put,), db_info=info), after

    def create_table(
        self, name: str, query: str, columns: list[ColumnSpec], primary: list[str]
    ) -> tuple[Ddl, Catalog]:
        """`create table` with a clustered primary key."""
        table_id, job_id = self.global_id + 1, self.global_id + 2
        info = table_info(table_id, name, columns, primary)
        after = self._with(name, info, job_id)
        args = {"table_info": info, "fk_check": True}
        return after._table_ddl(job_id, Action.CREATE_TABLE, query, name, info, args), after

    def add_column(self, table: str, query: str, column: ColumnSpec) -> tuple[Ddl, Catalog]:
        """`alter table ... add column`, at the end."""
        info = copy.deepcopy(self._info(table))
        info["max_col_id"] += 1
        added = column_info(info["max_col_id"], len(info["cols"]), column)
        added["origin_default"] = column.default
        info["cols"].append(added)
        info["revision"] += 4
        after = self._with(table, info, self.global_id + 1)
        args = {"column_info": added, "position": {"Tp": 0, "RelativeColumn": None}}
        ddl = after._table_ddl(after.global_id, Action.ADD_COLUMN, query, table, info, args)
        return replace(ddl, added_column=column.name), after

    def drop_column(self, table: str, query: str, column: str) -> tuple[Ddl, Catalog]:
        """`alter table ... drop column`."""
        info = copy.deepcopy(self._info(table))
        info["cols"] = [c for c in info["cols"] if c["name"]["O"] != column]
        for offset, kept in enumerate(info["cols"]):
            kept["offset"] = offset
        info["revision"] += 4
        after = self._with(table, info, self.global_id + 1)
        args = {"column_info": {"name": _name(column)}}
        return after._table_ddl(after.global_id, Action.DROP_COLUMN, query, table, info, args), after

    def rename_table(self, old: str, new: str, query: str) -> tuple[Ddl, Catalog]:
        """`rename table` within the schema."""
        info = copy.deepcopy(self._info(old))
        info["name"] = _name(new)
        tables = {k: v for k, v in self.tables.items() if k != old} | {new: info}
        after = replace(self, tables=tables, global_id=self.global_id + 1, version=self.version + 1)
        args = {
            "old_schema_id": self.schema_id,
            "old_schema_name": _name(self.schema),
            "new_table_name": _name(new),
            "old_table_name": _name(old),
            "new_schema_id": self.schema_id,
        }
        ddl = after._table_ddl(after.global_id, Action.RENAME_TABLE, query, old, info, args)
        return replace(ddl, diff={"old_schema_id": self.schema_id}), after

    def truncate_table(self, table: str, query: str) -> tuple[Ddl, Catalog]:
        """`truncate table`: a new table id; the old id's rows are left behind."""
        old = self._info(table)
        new_id, job_id = self.global_id + 1, self.global_id + 2
        info = copy.deepcopy(old) | {"id": new_id}
        after = self._with(table, info, job_id)
        gone = Mutation(DEL, self._table_key(old["id"]))
        args = {"fk_check": True, "new_table_id": new_id}
        ddl = after._table_ddl(job_id, Action.TRUNCATE_TABLE, query, table, info, args, (gone,))
        ids = f"{old['id']},{new_id}"
        diff = {"table_id": new_id, "old_table_id": old["id"]}
        return replace(ddl, table_id=old["id"], table_ids=ids, diff=diff), after

    def drop_table(self, table: str, query: str) -> tuple[Ddl, Catalog]:
        """`drop table`: the rows are left behind."""
        info = self._info(table)
        tables = {k: v for k, v in self.tables.items() if k != table}
        after = replace(self, tables=tables, global_id=self.global_id + 1, version=self.version + 1)
        gone = Mutation(DEL, self._table_key(info["id"]))
        identifier = {"Schema": _name(self.schema), "Name": _name(table)}
        args = {"identifiers": [identifier], "fk_check": True}
        ddl = after._table_ddl(after.global_id, Action.DROP_TABLE, query, table, info, args, (gone,))
        return replace(ddl, info_key=None), after

    def written(self, ddl: Ddl, job_start_ts: int, start_ts: int) -> Catalog:
        """The catalog with the timestamps under which `ddl` was written."""
        info = ddl.info_at(job_start_ts, start_ts)
        if info is None or ddl.info_key is None:
            return self
        return replace(self, tables=self.tables | {info["name"]["O"]: info})

    def _with(self, name: str, info: dict[str, Any], global_id: int) -> Catalog:
        return replace(self, tables=self.tables | {name: info}, global_id=global_id, version=self.version + 1)

    def _info(self, name: str) -> dict[str, Any]:
        if name not in self.tables:
            raise InvalidInput(f"there is no table {self.schema}.{name}")
        return self.tables[name]

    def _table_key(self, table_id: int) -> bytes:
        return keys.meta_hash(b"DB:%d" % self.schema_id, b"Table:%d" % table_id)

    def _table_ddl(
        self,
        job_id: int,
        action: Action,
        query: str,
        table: str,
        info: dict[str, Any],
        args: dict[str, Any],
        meta: tuple[Mutation, ...] = (),
    ) -> Ddl:
        ddl = self._ddl(job_id, action, query, info["id"], table, args, meta)
        return replace(ddl, info=info, info_key=self._table_key(info["id"]))

    def _ddl(
        self,
        job_id: int,
        action: Action,
        query: str,
        table_id: int,
        table: str,
        args: dict[str, Any],
        meta: tuple[Mutation, ...],
        *,
        db_info: dict[str, Any] | None = None,
    ) -> Ddl:
        return Ddl(
            job_id=job_id,
            action=action,
            query=query,
            schema_id=self.schema_id,
            schema=self.schema,
            table_id=table_id,
            table=table,
            version=self.version,
            last_global_id=self.global_id,
            raw_args=args,
            meta=meta,
            db_info=db_info,
        )


def bootstrap() -> list[Mutation]:
    """What a fresh cluster has before the first user DDL: schema mysql, its two DDL tables, the counters."""
    job_columns = [
        ColumnSpec("job_id", 8, 20, flag=NOT_NULL | PRIMARY | NO_DEFAULT),
        ColumnSpec("reorg", 3, 11),
        ColumnSpec("schema_ids", 250, 16777215, text=True),
        ColumnSpec("table_ids", 250, 16777215, text=True),
        ColumnSpec("job_meta", 251, 4294967295, flag=BINARY),
        ColumnSpec("type", 3, 11),
        ColumnSpec("processing", 3, 11),
    ]
    history_columns = [
        ColumnSpec("job_id", 8, 20, flag=NOT_NULL | PRIMARY | NO_DEFAULT),
        ColumnSpec("job_meta", 251, 4294967295, flag=BINARY),
        ColumnSpec("db_name", 254, 64, text=True),
        ColumnSpec("table_name", 254, 64, text=True),
        ColumnSpec("schema_ids", 250, 16777215, text=True),
        ColumnSpec("table_ids", 250, 16777215, text=True),
        ColumnSpec("create_time", 12, 19, flag=BINARY),
    ]
    tables = [
        table_info(keys.DDL_JOB_TABLE_ID, "tidb_ddl_job", job_columns, ["job_id"]),
        table_info(keys.DDL_HISTORY_TABLE_ID, "tidb_ddl_history", history_columns, ["job_id"]),
    ]
    mysql = db_info(JOB_TABLE_SCHEMA_ID, "mysql")
    return [
        _put_text(keys.meta_string(b"BootstrapKey"), "261"),
        _put_json(keys.meta_hash(b"DBs", b"DB:1"), mysql),
        *(_put_json(keys.meta_hash(b"DB:1", b"Table:%d" % t["id"]), t) for t in tables),
        _put_text(keys.meta_string(b"NextGlobalID"), str(FIRST_USER_ID - 1)),
        _put_text(keys.meta_string(b"SchemaVersionKey"), "57"),
    ]


def read_catalog(schema: str, pairs: list[tuple[bytes, bytes]]) -> Catalog:
    """The catalog of one schema from all pairs under `m`; schema_id 0 when there is none yet."""
    catalog = Catalog(schema)
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for key, value in pairs:
        meta = keys.parse_meta(key)
        if meta.name == b"NextGlobalID":
            catalog = replace(catalog, global_id=int(value))
        elif meta.name == b"SchemaVersionKey":
            catalog = replace(catalog, version=int(value))
        elif meta.name == b"DBs" and meta.field is not None and meta.field.startswith(b"DB:"):
            info = orjson.loads(value)
            if info["db_name"]["O"] == schema:
                catalog = replace(catalog, schema_id=info["id"])
        elif meta.name.startswith(b"DB:") and meta.field is not None and meta.field.startswith(b"Table:"):
            info = orjson.loads(value)
            found.setdefault(int(meta.name[3:]), {})[info["name"]["O"]] = info
    return replace(catalog, tables=found.get(catalog.schema_id, {}))


def db_info(schema_id: int, name: str) -> dict[str, Any]:
    """DBInfo, as under `DBs`."""
    return {
        "id": schema_id,
        "db_name": _name(name),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "Deprecated": {},
        "state": 5,
        "policy_ref_info": None,
    }


def table_info(table_id: int, name: str, columns: list[ColumnSpec], primary: list[str]) -> dict[str, Any]:
    """TableInfo of a table with a clustered primary key on `primary`."""
    by_name = {column.name: at for at, column in enumerate(columns)}
    int_handle = len(primary) == 1 and not columns[by_name[primary[0]]].text
    indexes = None if int_handle else [_primary_index(primary, by_name)]
    return {
        "id": table_id,
        "name": _name(name),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [column_info(at + 1, at, column) for at, column in enumerate(columns)],
        "index_info": indexes,
        "constraint_info": None,
        "fk_info": None,
        "state": 5,
        "pk_is_handle": int_handle,
        "is_common_handle": not int_handle,
        "common_handle_version": 0 if int_handle else 1,
        "comment": "",
        "auto_inc_id": 0,
        "auto_id_cache": 0,
        "auto_rand_id": 0,
        "max_col_id": len(columns),
        "max_idx_id": 0 if int_handle else 1,
        "max_fk_id": 0,
        "max_cst_id": 0,
        "update_timestamp": 0,
        "ShardRowIDBits": 0,
        "max_shard_row_id_bits": 0,
        "auto_random_bits": 0,
        "auto_random_range_bits": 0,
        "pre_split_regions": 0,
        "partition": None,
        "compression": "",
        "view": None,
        "sequence": None,
        "Lock": None,
        "version": 5,
        "tiflash_replica": None,
        "is_columnar": False,
        "temp_table_type": 0,
        "cache_table_status": 0,
        "policy_ref_info": None,
        "stats_options": None,
        "exchange_partition_info": None,
        "ttl_info": None,
        "revision": 0,
    }


def column_info(column_id: int, offset: int, column: ColumnSpec) -> dict[str, Any]:
    """ColumnInfo of a public column."""
    charset, collate = ("utf8mb4", "utf8mb4_bin") if column.text else ("binary", "binary")
    return {
        "id": column_id,
        "name": _name(column.name),
        "offset": offset,
        "origin_default": None,
        "origin_default_bit": None,
        "default": column.default,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "dependences": None,
        "type": {
            "Tp": column.tp,
            "Flag": column.flag,
            "Flen": column.flen,
            "Decimal": column.decimal,
            "Charset": charset,
            "Collate": collate,
            "Elems": None,
            "ElemsIsBinaryLit": None,
            "Array": False,
        },
        "state": 5,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }


def _primary_index(primary: list[str], by_name: dict[str, int]) -> dict[str, Any]:
    return {
        "id": 1,
        "idx_name": {"O": "PRIMARY", "L": "primary"},
        "tbl_name": _name(""),
        "idx_cols": [{"name": _name(name), "offset": by_name[name], "length": -1} for name in primary],
        "state": 5,
        "backfill_state": 0,
        "comment": "",
        "index_type": 1,
        "is_unique": True,
        "is_primary": True,
        "is_invisible": False,
        "is_global": False,
        "mv_index": False,
        "vector_index": None,
        "inverted_index": None,
        "full_text_index": None,
        "condition_expr_string": "",
    }


def _name(name: str) -> dict[str, str]:
    return {"O": name, "L": name.lower()}


def _put_text(key: bytes, text: str) -> Mutation:
    return Mutation(PUT, key, text.encode())


def _put_json(key: bytes, value: dict[str, Any]) -> Mutation:
    return Mutation(PUT, key, orjson.dumps(value))


def _time_text(ts: int, fsp: int) -> str:
    """A timestamp's physical time in UTC with `fsp` digits of the second, as a temporal default is kept."""
    milliseconds = timestamp.physical_ms(ts)
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{f'{milliseconds % 1000:03d}000'[:fsp]}" if fsp else text
