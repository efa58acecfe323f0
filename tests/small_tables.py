"""Tables made and written as TiDB writes them, a call each: meta keys without DDL jobs, rows by handle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.model.row import Value
from tidegate.model.schema import TableSchema
from tidegate.tidb import keys, record
from tidegate.tidb.table_info import table_schema
from tidegate.workload.schema import NOT_NULL, PRIMARY, ColumnSpec, bootstrap, db_info, table_info

SCHEMA_ID = 300
ID = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
ROWS_A_TXN = 2000


CODE = ColumnSpec("code", 15, 40, flag=NOT_NULL | PRIMARY, text=True)


def number(name: str) -> ColumnSpec:
    """An INT column."""
    return ColumnSpec(name, 3, 11)


def text(name: str) -> ColumnSpec:
    """A VARCHAR(40) column."""
    return ColumnSpec(name, 15, 160, text=True)


class SmallTables:
    """One schema; rows are named by their handle: the clustered `id`, or the hidden row id."""

    def __init__(self, pd: PdClient, schema: str, tables: Mapping[str, list[ColumnSpec]]) -> None:
        """A table whose first column is a primary key is clustered on it; any other has no key at all."""
        self._pd = pd
        self.tables: dict[str, TableSchema] = {}
        meta = [(m.key, m.value) for m in bootstrap()]
        meta.append((keys.meta_hash(b"DBs", b"DB:%d" % SCHEMA_ID), orjson.dumps(db_info(SCHEMA_ID, schema))))
        for at, (name, columns) in enumerate(tables.items()):
            info = _info(SCHEMA_ID + 1 + at, name, columns)
            self.tables[name] = table_schema(schema, info, 1)
            field = b"Table:%d" % info["id"]
            meta.append((keys.meta_hash(b"DB:%d" % SCHEMA_ID, field), orjson.dumps(info)))
        self.made_ts = self._commit(meta, [])

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


def _info(table_id: int, name: str, columns: list[ColumnSpec]) -> dict[str, Any]:
    info = table_info(table_id, name, columns, [columns[0].name])
    if columns[0].flag & PRIMARY:
        return info
    return info | {"pk_is_handle": False, "is_common_handle": False, "index_info": None}
