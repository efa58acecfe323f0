"""A feed's folder with transactions of any size over one table, whose key an update may change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
from tests.pipeline.recorded import CLUSTER, RecordedFeed

from tidegate.eventstore.order import Entry, op_class, order_key
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys, record
from tidegate.tidb.table_info import table_schema
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, db_info, table_info
from tidegate.workload.schema import bootstrap

SCHEMA_ID, TABLE_ID = 300, 301
START_TS = 1 << 20
ID = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
PRIMARY_KEY = {
    "id": 1,
    "idx_name": {"O": "PRIMARY", "L": "primary"},
    "idx_cols": [{"name": {"O": "id", "L": "id"}, "offset": 0, "length": -1}],
    "is_unique": True,
    "is_primary": True,
    "state": 5,
}
INFO = table_info(TABLE_ID, "large", [ID, ColumnSpec("v", 15, 65535, text=True)], ["id"])
INFO |= {"pk_is_handle": False, "is_common_handle": False, "index_info": [PRIMARY_KEY]}
TABLE = table_schema("giant", INFO, 1)

Change = tuple[int, str, int, str]
"""An emitted change: commit ts, operation, id, text (the old one if it is a delete)."""


class LargeFeed(RecordedFeed):
    """Transactions of so many rows each: deletes, updates, those that change the key, inserts.

    `runs`: in so many runs of the store each transaction comes, every part of its keys in each.
    """

    def __init__(
        self, folder: Path, sink_uri: str, sizes: Sequence[int], text_bytes: int = 100, runs: int = 1
    ) -> None:
        self.folder, self.sink_uri = folder, sink_uri
        self.store_dir = folder / "events" / str(CLUSTER) / "tidb"
        self.name = "large-" + os.urandom(4).hex()
        self.feed_dir = folder / "feeds" / "default" / self.name
        self.feed_dir.mkdir(parents=True)
        self.start_ts, self.last_ts = START_TS, START_TS
        self.entries: list[Entry] = []
        for rows in sizes:
            self.last_ts += 100
            self.entries += transaction(self.last_ts, rows, text_bytes)
        table = keys.meta_hash(b"DB:%d" % SCHEMA_ID, b"Table:%d" % TABLE_ID)
        schema = keys.meta_hash(b"DBs", b"DB:%d" % SCHEMA_ID)
        meta = [(m.key, m.value) for m in bootstrap()]
        meta += [(schema, orjson.dumps(db_info(SCHEMA_ID, "giant"))), (table, orjson.dumps(INFO))]
        self.schemas = SchemaStore.from_meta(meta, self.start_ts)
        dealt = [tuple(entry) for run in range(runs) for entry in self.entries[run::runs]]
        self.rows = {keys.DDL_JOB_TABLE_ID: [], TABLE_ID: dealt}
        if runs > 1:
            self.append_rows, self.store_bytes = -(-len(dealt) // runs), 0

    def changes(self) -> list[Change]:
        """All that is to go out, in order, by the rule alone: a transaction's deletes, updates, inserts."""
        found: list[Change] = []
        entries = sorted(self.entries, key=order_key)
        for ts in dict.fromkeys(entry.commit_ts for entry in entries):
            halves = [half for entry in entries if entry.commit_ts == ts for half in changes_of(entry)]
            found += sorted(halves, key=lambda half: ("delete", "update", "insert").index(half[1]))
        return found


def row(handle: int, id: int, text: str) -> tuple[bytes, bytes]:
    """Key and value of a row."""
    return record.encode(TABLE, (id, text.encode()), row_id=handle)


def transaction(ts: int, rows: int, text_bytes: int) -> Iterator[Entry]:
    """Rows by handle; each third update gives its id to the row after it, as `set id = id + 1` does."""
    filler = "x" * text_bytes
    for handle in range(rows):
        key, new = row(handle, handle, f"{ts} new {handle} {filler}")
        _, old = row(handle, handle, f"{ts} old {handle} {filler}")
        match handle % 4:
            case 0:
                yield Entry(ts, ts - 1, OP_DELETE, key, b"", old)
            case 1:
                yield Entry(ts, ts - 1, OP_PUT, key, new, old)
            case 2:
                _, moved = row(handle, handle + 4, f"{ts} new {handle} {filler}")
                yield Entry(ts, ts - 1, OP_PUT, key, moved, old)
            case 3:
                yield Entry(ts, ts - 1, OP_PUT, key, new, b"")


def changes_of(entry: Entry) -> Iterator[Change]:
    """Yield the changes of one entry, halves one after the other."""
    kind = op_class(entry.op, entry.old_value)
    key = keys.parse_record(entry.key)
    new = record.decode(TABLE, key, entry.value) if entry.value else None
    old = record.decode(TABLE, key, entry.old_value) if entry.old_value else None
    if kind == 1 and new is not None and old is not None and new[0] == old[0]:
        yield entry.commit_ts, "update", new[0], text(new)
        return
    if old is not None:
        yield entry.commit_ts, "delete", old[0], text(old)
    if new is not None:
        yield entry.commit_ts, "insert", new[0], text(new)


def text(image: Sequence[object]) -> str:
    """The column `v` of an image."""
    found = image[1]
    assert isinstance(found, bytes)
    return found.decode()
