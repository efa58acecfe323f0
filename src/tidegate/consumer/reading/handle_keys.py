"""Reads rows from TiKV, as they were at their commit ts, if only their handle key is on the topic.

The table's definition is that of just before the commit, as for all rows. The row after the change is read at
the commit ts, the row before it at the ts below. A clustered key gives the record's key; for any other key,
the entry of its unique index names the record. In a partitioned table all partitions are searched. The row
then passes through the protocol's own encoder, so that it looks to the reader like any other row of its
table.

A row that upstream's GC has removed cannot be read any more: no older version is ever used in its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any, Final, NamedTuple

from tidegate.errors import InvalidInput, Undecodable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.tables import tables_from_meta
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Index, Kind, TableSchema
from tidegate.tidb import index as entries
from tidegate.tidb import keys, record

CATALOGUES: Final = 4
"""Catalogues kept in memory, by TiDB's schema version. Rows that do not fit are few, and close in time."""
SCHEMA_VERSION: Final = keys.meta_string(b"SchemaVersionKey")


class GoneError(Exception):
    """The row cannot be read from upstream, now or later; the text says why."""


class RowReader:
    """Reads single rows from upstream. Not thread-safe."""

    def __init__(self, pd: PdClient, time_zone: tzinfo) -> None:
        """`time_zone`: that of the topic's TIMESTAMP texts."""
        self._pd, self._zone = pd, time_zone
        self._catalogues: OrderedDict[bytes, dict[tuple[str, str], TableSchema]] = OrderedDict()

    def row(self, stated: Mapping[str, Any], *, finds_updates: bool) -> RowChange:
        """The whole change for a message that carries only the key, as `codec.base.describe` returns it.

        `finds_updates`: the message of an update may look like that of an insert, so an old row is searched
        for. Raises GoneError, and Retryable while upstream does not answer.
        """
        ts, kind = int(stated["commit_ts"]), stated["kind"]
        try:
            # One below: a row at the ts of a DDL has the schema before it, here as where its message was
            # made.
            table = self._table(stated["schema"], stated["table"], ts - 1)
            after, before = Snapshot(self._pd, ts), Snapshot(self._pd, ts - 1)
            new = None if kind == "delete" else self._found(after, table, stated["new"])
            if kind != "insert":
                old: _Found | None = self._found(before, table, stated["old"])
            else:
                old = self._find(before, table, stated["new"]) if finds_updates else None
        except (InvalidInput, Undecodable) as error:
            raise GoneError(f"{error.what}: {error.why}") from None
        found = new or old
        assert found is not None, "a change has an image"
        return RowChange(
            table=table,
            commit_ts=ts,
            start_ts=ts - 1,
            physical_id=found.key.table_id,
            handle=found.key.int_handle if found.key.is_int else 0,
            old=None if old is None else old.values,
            new=None if new is None else new.values,
            row_key=found.raw,
        )

    def _table(self, schema: str, table: str, ts: int) -> TableSchema:
        """The definition of a table at a ts; cached by TiDB's schema version, which changes with each DDL."""
        snapshot = Snapshot(self._pd, ts)
        version = snapshot.get(SCHEMA_VERSION)
        tables = None if version is None else self._catalogues.get(version)
        if tables is None:
            pairs = snapshot.scan(keys.catalogue_span())
            tables = {(one.schema, one.table): one for one in tables_from_meta(pairs, ts)}
            if version is not None:
                self._catalogues[version] = tables
                if len(self._catalogues) > CATALOGUES:
                    self._catalogues.popitem(last=False)
        found = tables.get((schema, table))
        if found is None:
            raise GoneError(f"upstream has no table {schema}.{table} at {ts}")
        return found

    def _found(self, snapshot: Snapshot, table: TableSchema, cells: Mapping[str, Any]) -> _Found:
        found = self._find(snapshot, table, cells)
        if found is None:
            safe = self._pd.gc_safe_point()
            why = f"its GC has passed {safe}" if safe >= snapshot.ts else "is it the changefeed's upstream?"
            raise GoneError(f"upstream has no such row of {table.name} at {snapshot.ts}: {why}")
        return found

    def _find(self, snapshot: Snapshot, table: TableSchema, cells: Mapping[str, Any]) -> _Found | None:
        """The row with these values of its handle key in the snapshot; None when there is none."""
        values = _aligned(table, cells)
        if table.handle_columns:
            wanted = [
                record.encode(table, values, physical_id=one, time_zone=self._zone)[0]
                for one in table.physical_ids
            ]
        else:
            wanted = self._named(snapshot, table, values)
        for key, data in snapshot.batch_get(wanted).items():
            parsed = keys.parse_record(key)
            row = record.decode(table, parsed, data, self._zone)
            if all(row[at] == values[at] for at in table.handle_key):
                return _Found(key, parsed, row)
        return None

    def _named(self, snapshot: Snapshot, table: TableSchema, values: Sequence[Value]) -> list[bytes]:
        """The record keys in the handle key's index entries."""
        index = _handle_index(table)
        asked = [
            # The handle is 0 because a unique entry's key does not contain it: no column of the handle key is
            # NULL.
            entries.encode(table, index, values, keys.int_record(one, 0), self._zone)[0]
            for one in table.physical_ids
        ]
        found = snapshot.batch_get(asked)
        return [entries.decode(table, key, value).record for key, value in found.items()]


class _Found(NamedTuple):
    """A row that was found upstream."""

    raw: bytes
    key: keys.RecordKey
    values: tuple[Value, ...]


def _handle_index(table: TableSchema) -> Index:
    """The index whose columns are the handle key."""
    positions = {column.offset: at for at, column in enumerate(table.columns)}
    wanted = set(table.handle_key)
    for index in table.indexes:
        if index.unique and {positions.get(offset, -1) for offset in index.columns} == wanted:
            return index
    raise GoneError(f"{table.name} has no index of its handle key")


def _aligned(table: TableSchema, cells: Mapping[str, Any]) -> tuple[Value, ...]:
    """Decoded cells as a row's values; NULL for columns that are not among them."""
    lacking = [table.columns[at].name for at in table.handle_key if cells.get(table.columns[at].name) is None]
    if lacking or not table.handle_key:
        raise GoneError(f"the message does not have {', '.join(lacking) or 'a key'} of {table.name}")
    return tuple(
        item.encode() if column.kind is Kind.STRING and isinstance(item, str) else item
        for column in table.columns
        for item in (cells.get(column.name),)
    )
