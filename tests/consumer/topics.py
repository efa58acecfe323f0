"""A recorded change log as a topic: what a changefeed would send for it, with the plain encoders.

`events_of(path)` mounts the log's transactions row by row and yields row changes, DDL events and marks in
commit order; `messages_of` encodes them per partition; `publish` writes them to a real broker.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer

from tidegate.codec.base import CodecOptions
from tidegate.codec.registry import codec_of, encoder, marks
from tidegate.consumer.engine.places import number_of
from tidegate.dispatcher.router import Router
from tidegate.dispatcher.split import split_rows
from tidegate.model.block import ENTRY_SCHEMA, OP_DELETE, OP_PUT
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.mounter import ddl_jobs
from tidegate.mounter.mounter import Entry, mount_row
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys
from tidegate.tidb.table_filter import is_system_schema
from tidegate.workload.changelog import SnapshotLine, Txn, read_log


@dataclass(frozen=True)
class Mark:
    """A Resolved ts."""

    ts: int


Event = RowChange | DdlEvent | Mark


def events_of(path: Path, until: int | None = None, every: int = 50, force: bool = False) -> Iterator[Event]:
    """Rows and DDLs of a log in commit order, a mark after every `every` transactions and after each DDL.

    `force`: tables without a key too.
    """
    values: dict[bytes, bytes] = {}
    store: SchemaStore | None = None
    since = 0
    for line in read_log(path, until=until):
        if isinstance(line, SnapshotLine):
            yield Mark(line.ts)
        if not isinstance(line, Txn):
            continue
        if line.is_base:
            pairs = [(m.key, m.value) for m in line.mutations if m.key.startswith(b"m")]
            store = SchemaStore.from_meta(pairs, line.commit_ts)
            values |= {m.key: m.value for m in line.mutations}
            continue
        assert store is not None
        yield from _rows(line, store, values, force)
        done = list(ddls_of(line, store))
        yield from done
        since += 1
        if done or since >= every:
            since = 0
            yield Mark(line.commit_ts)


def _rows(txn: Txn, store: SchemaStore, values: dict[bytes, bytes], force: bool) -> Iterator[RowChange]:
    rows = []
    for mutation in txn.mutations:
        if mutation.op not in ("put", "insert", "delete"):
            continue
        deleted = mutation.op == "delete"
        old = values.pop(mutation.key, b"") if deleted else values.get(mutation.key, b"")
        if not deleted:
            values[mutation.key] = mutation.value
        if not mutation.key.startswith(b"t") or mutation.key[9:11] != b"_r":
            continue
        table = store.table(keys.parse_record(mutation.key).table_id, txn.commit_ts - 1)
        if table is None or is_system_schema(table.schema) or not (force or table.eligible):
            continue
        entry = Entry(
            txn.commit_ts, txn.start_ts, OP_DELETE if deleted else OP_PUT, mutation.key, mutation.value, old
        )
        row = mount_row(entry, table)
        if row is not None:
            rows.append(row)
    rows.sort(key=lambda row: (not row.is_delete, row.is_insert))
    yield from rows


def ddls_of(txn: Txn, store: SchemaStore) -> Iterator[DdlEvent]:
    """The DDLs that a transaction finishes, which are applied to `store`."""
    prefix = keys.record_prefix(keys.DDL_JOB_TABLE_ID)
    rows = [
        (txn.commit_ts, txn.start_ts, OP_PUT, m.key, m.value, b"")
        for m in txn.mutations
        if m.key.startswith(prefix) and m.op in ("put", "insert")
    ]
    if not rows:
        return
    columns = list(zip(*rows, strict=True))
    block = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)], schema=ENTRY_SCHEMA
    )
    for job in ddl_jobs.jobs_in(block, store.job_meta_columns()):
        for event in store.apply(job).events:
            if not is_system_schema(event.schema):
                yield event


def partition_of(row: RowChange, partitions: int) -> int:
    """By schema, table and handle key, as index-value dispatch does (not with TiCDC's numbers)."""
    image = row.new if row.new is not None else row.old
    assert image is not None
    key = repr([row.table.name, *(image[at] for at in row.table.handle_key)])
    return zlib.crc32(key.encode()) % partitions


def split(events: Iterable[Event]) -> Iterator[Event]:
    """Updates of a unique key as a delete and an insert."""
    for event in events:
        if isinstance(event, RowChange):
            yield from split_rows([event])
        else:
            yield event


class Places:
    """Where a changefeed's messages go: partitions of its topics, by number. Topics come into use in turn."""

    def __init__(self, counts: Mapping[str, int], router: Router) -> None:
        self.names, self._counts, self._router = tuple(sorted(counts)), counts, router
        self._used = {router.default_topic: 0}

    @classmethod
    def of_one(cls, partitions: int) -> Places:
        """One topic."""
        return cls({"memory": partitions}, Router([], "memory"))

    def row(self, row: RowChange) -> int:
        """The partition of a row."""
        topic = self._router.topic_of(row.table.schema, row.table.table)
        assert topic in self._used, "before the first row comes what makes the table"
        return number_of(self.names, topic, partition_of(row, self._counts[topic]))

    def ddl(self, event: DdlEvent, *, everywhere: bool) -> tuple[DdlEvent, list[int]]:
        """A DDL as it is sent, and its partitions."""
        topic = self._router.topic_of_ddl(event)
        after = self._router.topic_of(event.schema, event.table) if event.table else topic
        self._used |= {topic: 0, after: 0}
        numbers = self._numbers(topic)
        moved = event if after == topic else replace(event, moved_to=after)
        return moved, numbers if everywhere else numbers[:1]

    def mark(self) -> list[int]:
        """The partitions of all topics in use."""
        return [number for topic in self._used for number in self._numbers(topic)]

    def all(self) -> list[int]:
        """Those of all topics there will be."""
        return [number for topic in self.names for number in self._numbers(topic)]

    def _numbers(self, topic: str) -> list[int]:
        return [number_of(self.names, topic, partition) for partition in range(self._counts[topic])]


def messages_of(
    events: Iterable[Event], options: CodecOptions, partitions: int
) -> Iterator[tuple[int, Message]]:
    """(partition, message) in sending order, of one topic."""
    return messages_to(Places.of_one(partitions), events, options)


def messages_to(
    places: Places, events: Iterable[Event], options: CodecOptions
) -> Iterator[tuple[int, Message]]:
    """(number of partition, message) in sending order."""
    codec, encode = codec_of(options), encoder(options)
    if codec.splits_updates:
        events = split(events)
    waiting: dict[int, list[RowChange]] = {}
    reported: set[tuple[int, TableSchema]] = set()

    def flush() -> Iterator[tuple[int, Message]]:
        for partition, rows in waiting.items():
            for table in {row.table: None for row in rows} if codec.definitions is not None else ():
                if (partition, table) not in reported:
                    reported.add((partition, table))
                    yield partition, codec.definitions.encode(table, options, 0)
            for message in encode.encode_rows(rows):
                yield partition, message
        waiting.clear()

    for event in events:
        if isinstance(event, RowChange):
            waiting.setdefault(places.row(event), []).append(event)
            continue
        yield from flush()
        if isinstance(event, Mark):
            mark = encode.encode_resolved(event.ts)
            assert mark is not None
            yield from ((partition, mark) for partition in places.mark())
        else:
            sent, numbers = places.ddl(event, everywhere=marks(options).ddl_to_all_partitions())
            message = encode.encode_ddl(sent)
            yield from ((partition, message) for partition in numbers)
    yield from flush()


def publish(bootstrap: str, topic: str, messages: Iterable[tuple[int, Message]]) -> int:
    """Write messages in order; returns how many."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    count = 0
    for partition, message in messages:
        while True:
            try:
                producer.produce(
                    topic,
                    message.value,
                    message.key,
                    partition=partition,
                    headers=list(message.headers) or None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    assert producer.flush(30) == 0
    return count
