"""A recorded change log put into an event store, as the puller would have done."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.metadata import FeedId, grant_key
from tidegate.eventstore.store import EventStore
from tidegate.model.block import ENTRY_SCHEMA, MAX_BLOCK_ROWS, OP_DELETE, OP_PUT
from tidegate.model.span import Span, span_id
from tidegate.mounter import bases
from tidegate.mounter.bases import Base
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.worker.begin import Found, resume
from tidegate.tidb import keys
from tidegate.workload.changelog import Txn, read_log

CLUSTER, CAPTURE = 7, "here"
EVERYTHING = GrantedRange(Span(b"", b""), (1, 1))


class RecordedFeed:
    """A feed's folder over the first transactions of a change log; everything a pipeline process needs."""

    append_rows = MAX_BLOCK_ROWS
    store_bytes = 512 << 20
    """The size of one fill of the store, and of the memory that it may use before it writes a run."""

    def __init__(self, folder: Path, log: Path, sink_uri: str, upto: int | None = None) -> None:
        self.folder, self.sink_uri = folder, sink_uri
        self.store_dir = folder / "events" / str(CLUSTER) / "tidb"
        # A name of its own: the progress topic of a feed outlives it on the broker.
        self.name = "recorded-" + os.urandom(4).hex()
        self.feed_dir = folder / "feeds" / "default" / self.name
        self.feed_dir.mkdir(parents=True)
        self.values: dict[bytes, bytes] = {}
        self.rows: dict[int, list[tuple[Any, ...]]] = {}
        self.last_ts = 0
        for line in read_log(log, until=upto):
            if isinstance(line, Txn) and line.is_base:
                self.start_ts = line.commit_ts
                self.values = {m.key: m.value for m in line.mutations}
                meta = ((k, v) for k, v in self.values.items() if k.startswith(b"m"))
                self.schemas = SchemaStore.from_meta(meta, self.start_ts)
            elif isinstance(line, Txn):
                self._take(line)

    def _take(self, txn: Txn) -> None:
        self.last_ts = txn.commit_ts
        for mutation in txn.mutations:
            if mutation.op not in ("put", "insert", "delete") or mutation.key[:1] != b"t":
                continue
            old = self.values.get(mutation.key, b"")
            put = mutation.op != "delete"
            if put:
                self.values[mutation.key] = mutation.value
            else:
                self.values.pop(mutation.key, None)
            if keys.is_record(mutation.key):
                table = keys.parse_record(mutation.key).table_id
                if table == keys.DDL_HISTORY_TABLE_ID:
                    table = keys.DDL_JOB_TABLE_ID  # one span holds both
                row = (
                    txn.commit_ts,
                    txn.start_ts,
                    OP_PUT if put else OP_DELETE,
                    mutation.key,
                    mutation.value,
                    old,
                )
                self.rows.setdefault(table, []).append(row)

    def write(self, incarnation: int = 1, slots: int = 4, settings: dict[str, Any] | None = None) -> Path:
        """The feed files of an incarnation, over an event store filled once; returns its spec's path.

        settings: of the changefeed, as in its file.
        """
        spans = self._fill()
        folder = bases.folder_of(self.store_dir)
        folder.mkdir(exist_ok=True)
        (folder / Base(self.start_ts, self.start_ts).name).write_bytes(self.schemas.dump())
        ddl_span = span_id(keys.ddl_span())
        bounds = {"token": [1, 1], "bound": self.last_ts, "ddl_span": ddl_span, "spans": spans}
        (self.feed_dir / "bounds.json").write_text(json.dumps(bounds))
        self.grant(incarnation, slots)
        uri = parse_sink_uri(self.sink_uri)
        spec = {
            "cluster_id": CLUSTER,
            "namespace": "default",
            "id": self.name,
            "sink_uri": self.sink_uri,
            "config": merge_config(settings or {}, uri).to_json(),
            "token": [1, 1],
            "instance": "recorded",
            "incarnation": incarnation,
            "slots": slots,
            "capture": CAPTURE,
            "ranges": [["", ""]],
            "givers": {},
            "store_dir": str(self.store_dir),
            "metadata": str(self.folder / "metadata.db"),
            "socket_path": str(self.folder / "control.sock"),
        }
        for earlier in self.feed_dir.glob("spec-*.json"):
            earlier.unlink()
        path = self.feed_dir / Grant("recorded", (1, 1), incarnation, slots).spec_file
        path.write_text(json.dumps(spec))
        return path

    def _fill(self) -> dict[str, dict[str, Any]]:
        """Every table's rows in the event store; the spans of user tables as bounds.json names them."""
        users = {span_id(keys.record_span(table)): table for table in self.rows if table < 1 << 40}
        spans = {
            name: {"start": "", "end": "", "physical_id": table, "start_ts": self.start_ts}
            for name, table in users.items()
        }
        if self.store_dir.exists():
            return spans
        store = EventStore(self.store_dir, memory_bytes=self.store_bytes)
        for table, rows in self.rows.items():
            ddl = table == keys.DDL_JOB_TABLE_ID
            span = store.open_span(keys.ddl_span() if ddl else keys.record_span(table))
            for at in range(0, len(rows), self.append_rows):
                columns = list(zip(*rows[at : at + self.append_rows], strict=True))
                batch = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
                span.append(pa.RecordBatch.from_arrays(batch, schema=ENTRY_SCHEMA))
            span.seal(self.last_ts + 1)
        store.publish()
        store.close()
        return spans

    def grant(
        self, incarnation: int, slots: int = 4, ranges: tuple[GrantedRange, ...] = (EVERYTHING,)
    ) -> None:
        """Raise the feed's grant in the metadata store."""
        with sqlite3.connect(self.folder / "metadata.db") as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB)")
            value = Grant("recorded", (1, 1), incarnation, slots, ranges).to_bytes()
            key = grant_key(CLUSTER, FeedId("default", self.name), CAPTURE)
            connection.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (key, value))


def begin(spec: FeedSpec) -> Found:
    """Begin an incarnation, as a worker and the capture do together."""
    return resume(spec, spec.sink.fence(spec.writers, spec.prove))
