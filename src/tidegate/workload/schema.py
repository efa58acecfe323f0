"""The catalogue of a schema of a workload: each change gives a DDL and the catalogue after it. Pure.

`ddl` has the transactions of a DDL, `definitions` what TiDB stores of schemas and tables. `bootstrap` is the
state of a fresh cluster; `read_catalog` reads the catalogue back from the pairs under `m`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from tidegate.errors import InvalidInput
from tidegate.kvclient.transaction import DEL, Mutation
from tidegate.model.schema import TableSchema
from tidegate.tidb import keys
from tidegate.tidb.table_info import table_schema
from tidegate.workload.ddl import Action, Ddl, put_json, put_text
from tidegate.workload.definitions import (
    BINARY,
    NO_DEFAULT,
    NOT_NULL,
    PRIMARY,
    ColumnSpec,
    column_info,
    db_info,
    stored_name,
    table_info,
)

JOB_TABLE_SCHEMA_ID: Final = 1
"""Schema id of `mysql`."""
FIRST_USER_ID: Final = 116
"""Ids below belong to the system schemas."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tables of a schema and the counters of ids and versions; methods return a DDL and the next catalog.

    `tables` maps names to TableInfo; `schema_id` 0: the schema does not exist yet.
    """

    schema: str
    schema_id: int = 0
    global_id: int = FIRST_USER_ID - 1
    version: int = 57
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def table(self, name: str) -> TableSchema:
        """The table's schema, as encoders need it."""
        info = self._info(name)
        return table_schema(self.schema, info, info["update_timestamp"])

    def create_schema(self) -> tuple[Ddl, Catalog]:
        """`create database`."""
        schema_id, job_id = self.global_id + 1, self.global_id + 2
        info = db_info(schema_id, self.schema)
        after = replace(self, schema_id=schema_id, global_id=job_id, version=self.version + 1)
        put = put_json(keys.meta_hash(b"DBs", b"DB:%d" % schema_id), info)
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
        args = {"column_info": {"name": stored_name(column)}}
        return after._table_ddl(after.global_id, Action.DROP_COLUMN, query, table, info, args), after

    def rename_table(self, old: str, new: str, query: str) -> tuple[Ddl, Catalog]:
        """`rename table` within the schema."""
        info = copy.deepcopy(self._info(old))
        info["name"] = stored_name(new)
        tables = {k: v for k, v in self.tables.items() if k != old} | {new: info}
        after = replace(self, tables=tables, global_id=self.global_id + 1, version=self.version + 1)
        args = {
            "old_schema_id": self.schema_id,
            "old_schema_name": stored_name(self.schema),
            "new_table_name": stored_name(new),
            "old_table_name": stored_name(old),
            "new_schema_id": self.schema_id,
        }
        ddl = after._table_ddl(after.global_id, Action.RENAME_TABLE, query, old, info, args)
        return replace(ddl, diff={"old_schema_id": self.schema_id}), after

    def truncate_table(self, table: str, query: str) -> tuple[Ddl, Catalog]:
        """`truncate table`: the table gets a new id; the rows under the old one stay."""
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
        """`drop table`: the rows stay."""
        info = self._info(table)
        tables = {k: v for k, v in self.tables.items() if k != table}
        after = replace(self, tables=tables, global_id=self.global_id + 1, version=self.version + 1)
        gone = Mutation(DEL, self._table_key(info["id"]))
        identifier = {"Schema": stored_name(self.schema), "Name": stored_name(table)}
        args = {"identifiers": [identifier], "fk_check": True}
        ddl = after._table_ddl(after.global_id, Action.DROP_TABLE, query, table, info, args, (gone,))
        return replace(ddl, info_key=None), after

    def written(self, ddl: Ddl, job_start_ts: int, start_ts: int) -> Catalog:
        """The catalog with the timestamps with which `ddl` was written."""
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
    """Keys of a fresh cluster before the first user DDL: schema mysql, its two DDL tables, counters."""
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
        put_text(keys.meta_string(b"BootstrapKey"), "261"),
        put_json(keys.meta_hash(b"DBs", b"DB:1"), mysql),
        *(put_json(keys.meta_hash(b"DB:1", b"Table:%d" % t["id"]), t) for t in tables),
        put_text(keys.meta_string(b"NextGlobalID"), str(FIRST_USER_ID - 1)),
        put_text(keys.meta_string(b"SchemaVersionKey"), "57"),
    ]


def read_catalog(schema: str, pairs: list[tuple[bytes, bytes]]) -> Catalog:
    """The catalog of one schema from all pairs under `m`; schema_id 0 if the schema does not exist yet."""
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
