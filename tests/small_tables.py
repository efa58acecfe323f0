"""Tables made and written as TiDB writes them, a call each: at first meta keys without DDL jobs, later ones
by jobs; rows by handle.

Where a capture runs already, the first tables are made by jobs, too, with ids from upstream's counter: it
keeps its catalogue up to date by jobs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import Mutation, Transaction
from tidegate.model.row import Value
from tidegate.model.schema import TableSchema
from tidegate.tidb import keys, record
from tidegate.tidb.table_info import table_schema
from tidegate.workload.ddl import Ddl
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, db_info, table_info
from tidegate.workload.schema import Catalog, bootstrap, read_catalog

SCHEMA_ID = 300
ID = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
ROWS_A_TXN = 2000


_TYPES = {3: "int", 8: "bigint", 15: "varchar(40)"}
CODE = ColumnSpec("code", 15, 40, flag=NOT_NULL | PRIMARY, text=True)


def number(name: str) -> ColumnSpec:
    """An INT column."""
    return ColumnSpec(name, 3, 11)


def text(name: str) -> ColumnSpec:
    """A VARCHAR(40) column."""
    return ColumnSpec(name, 15, 160, text=True)


class SmallTables:
    """One schema; rows are named by their handle: the clustered `id`, or the hidden row id."""

    def __init__(
        self,
        pd: PdClient,
        schema: str,
        tables: Mapping[str, list[ColumnSpec]],
        *,
        by_jobs: bool = False,
    ) -> None:
        """A table whose first column is a primary key is clustered on it; any other has no key at all."""
        self._pd = pd
        self.tables: dict[str, TableSchema] = {}
        if by_jobs:
            self._make_by_jobs(schema, tables)
        else:
            self._make_at_once(schema, tables)

    def _make_at_once(self, schema: str, tables: Mapping[str, list[ColumnSpec]]) -> None:
        self.catalog = Catalog(schema, SCHEMA_ID, SCHEMA_ID + 100)
        meta = [(m.key, m.value) for m in bootstrap()]
        meta.append((keys.meta_hash(b"DBs", b"DB:%d" % SCHEMA_ID), orjson.dumps(db_info(SCHEMA_ID, schema))))
        for at, (name, columns) in enumerate(tables.items()):
            info = _info(SCHEMA_ID + 1 + at, name, columns)
            self.tables[name] = table_schema(schema, info, 1)
            self.catalog.tables[name] = info
            field = b"Table:%d" % info["id"]
            meta.append((keys.meta_hash(b"DB:%d" % SCHEMA_ID, field), orjson.dumps(info)))
        self.made_ts = self._commit(meta, [])

    def _make_by_jobs(self, schema: str, tables: Mapping[str, list[ColumnSpec]]) -> None:
        pairs = list(Snapshot(self._pd, self._pd.tso()).scan(keys.meta_span()))
        assert pairs, "upstream has its system schema, as after TiDB's first start"
        self.catalog = read_catalog(schema, pairs)
        assert not self.catalog.schema_id, f"schema {schema} exists already"
        self.ddl(Catalog.create_schema)
        for name, columns in tables.items():
            self.ddl(partial(create_table, info=_info(0, name, columns)))
        # Not the last FinishedTS: the jobs must be in the history, too.
        self.made_ts = self._pd.tso()

    def ddl(self, make: Callable[[Catalog], tuple[Ddl, Catalog]]) -> int:
        """Carry out what a method of the catalogue makes, as TiDB does; the job's FinishedTS."""
        ddl, after = make(self.catalog)
        queued, _ = self._written(ddl.queue)
        done, finished_ts = self._written(lambda start_ts: ddl.done(queued, start_ts))
        self._written(lambda start_ts: ddl.history(queued, done, start_ts))
        self.catalog = after.written(ddl, queued, done)
        self.tables = {name: self.catalog.table(name) for name in self.catalog.tables}
        return finished_ts

    def _written(self, mutations: Callable[[int], list[Mutation]]) -> tuple[int, int]:
        """Start and commit ts of a transaction that is made of its start ts."""
        transaction = Transaction(self._pd)
        transaction.write(mutations(transaction.start_ts))
        return transaction.start_ts, transaction.commit()

    def put(self, name: str, rows: Mapping[int, tuple[Value, ...]]) -> int:
        """Write rows by handle, thousands in a transaction; the last commit ts."""
        table, ts = self.tables[name], 0
        keyless = not table.handle_columns
        pairs = [
            record.encode(table, values, row_id=handle if keyless else None)
            for handle, values in rows.items()
        ]
        for at in range(0, len(pairs), ROWS_A_TXN):
            ts = self._commit(pairs[at : at + ROWS_A_TXN], [])
        return ts

    def delete(self, name: str, handles: Iterable[int]) -> int:
        """Delete rows by handle; the commit ts."""
        return self._commit([], [keys.int_record(self.tables[name].id, handle) for handle in handles])

    def _commit(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> int:
        transaction = Transaction(self._pd)
        for key in deletes:
            transaction.delete(key)
        for key, value in puts:
            transaction.put(key, value)
        return transaction.commit()


def create_table(catalog: Catalog, info: dict[str, Any]) -> tuple[Ddl, Catalog]:
    """CREATE TABLE of a definition of any form; its id is the catalogue's next one."""
    name = info["name"]["O"]
    columns = ", ".join(f"{each['name']['O']} {_TYPES[each['type']['Tp']]}" for each in info["cols"])
    query = f"create table {catalog.schema}.{name} ({columns})"
    ddl, after = catalog.create_table(name, query, [ID], [ID.name])
    info = info | {"id": ddl.table_id}
    ddl = replace(ddl, info=info, raw_args=ddl.raw_args | {"table_info": info})
    return ddl, replace(after, tables=after.tables | {name: info})


def _info(table_id: int, name: str, columns: list[ColumnSpec]) -> dict[str, Any]:
    info = table_info(table_id, name, columns, [columns[0].name])
    if columns[0].flag & PRIMARY:
        return info
    return info | {"pk_is_handle": False, "is_common_handle": False, "index_info": None}
