"""A recorded change log as a topic, made by batches as a pipeline makes it.

The rows between two marks are mounted, split, dispatched and encoded with the kernels. `topics` does so row
by row with the plain code, which takes four times as long. Tests of readers and targets need only the topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.consumer.topics import ddls_of
from tests.contracts.codec_rows import messages_of
from tidegate.codec.base import CodecOptions
from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import codec_of, encoder, marks
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.kernels import partition_block
from tidegate.dispatcher.split import split_block
from tidegate.model.block import ENTRY_SCHEMA, OP_DELETE, OP_PUT
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.schema import TableSchema
from tidegate.mounter.decode import MountOptions, mount
from tidegate.mounter.mounter import Entry
from tidegate.mounter.schema_store import SchemaStore
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb.table_filter import is_system_schema
from tidegate.workload.changelog import SnapshotLine, Txn, read_log

BY_KEY = DispatchRule(partition="index-value")
MARK_EVERY = 50
"""Transactions between two marks. There is one after each DDL and at each snapshot, too."""


def messages_of_log(
    path: Path, options: CodecOptions, partitions: int, until: int | None = None, force: bool = False
) -> Iterator[tuple[int, Message]]:
    """(partition, message) in sending order. `force`: rows of tables without a key, too."""
    lines = read_log(path, until=until)
    base = next(line for line in lines if isinstance(line, Txn))
    made, since = _Topic(base, options, partitions, force), 0
    for line in lines:
        if isinstance(line, SnapshotLine):
            yield from made.rows()
            yield from made.mark(line.ts)
        if not isinstance(line, Txn):
            continue
        made.take(line)
        since += 1
        if ddls := list(ddls_of(line, made.store)):
            yield from made.rows()
            for ddl in ddls:
                yield from made.ddl(ddl)
        if ddls or since >= MARK_EVERY:
            yield from made.rows()
            yield from made.mark(line.commit_ts)
            since = 0
    yield from made.rows()


class _Topic:
    """The state of the upstream, and the entries that are not sent yet."""

    def __init__(self, base: Txn, options: CodecOptions, partitions: int, force: bool) -> None:
        pairs = [(one.key, one.value) for one in base.mutations if one.key.startswith(b"m")]
        self.store = SchemaStore.from_meta(pairs, base.commit_ts)
        self._values = {one.key: one.value for one in base.mutations}
        self._options, self._codec, self._encode = options, codec_of(options), encoder(options)
        self._partitions, self._mount = partitions, MountOptions(force_replicate=force)
        self._waiting: list[Entry] = []
        self._reported: set[tuple[int, TableSchema]] = set()

    def take(self, txn: Txn) -> None:
        """The rows of a transaction: deletes, then updates, then inserts, as the event store has them."""
        entries = []
        for one in txn.mutations:
            if one.op not in ("put", "insert", "delete"):
                continue
            old = self._values.pop(one.key, b"")
            if one.op != "delete":
                self._values[one.key] = one.value
            if one.key.startswith(b"t") and one.key[9:11] == b"_r":
                op = OP_DELETE if one.op == "delete" else OP_PUT
                entries.append(Entry(txn.commit_ts, txn.start_ts, op, one.key, one.value, old))
        entries.sort(key=lambda entry: (entry.op != OP_DELETE, not entry.old_value))
        self._waiting += entries

    def rows(self) -> Iterator[tuple[int, Message]]:
        """The messages of all rows that wait."""
        if not self._waiting:
            return
        columns = zip(zip(*self._waiting, strict=True), ENTRY_SCHEMA, strict=True)
        block = pa.record_batch([pa.array(c, f.type) for c, f in columns], schema=ENTRY_SCHEMA)
        self._waiting.clear()
        mounted, failed = mount(block, self.store, self._mount, follows=_is_of_users)
        assert not failed
        for rows in mounted:
            sent = split_block(rows) if self._codec.splits_updates else rows
            partition = partition_block(sent, BY_KEY, self._partitions)
            yield from self._definitions(sent.table, partition)
            yield from messages_of(encode_block(sent, partition, self._options))

    def _definitions(self, table: TableSchema, partition: np.ndarray) -> Iterator[tuple[int, Message]]:
        if self._codec.definitions is None:
            return
        for number in np.unique(partition).tolist():
            if (number, table) not in self._reported:
                self._reported.add((number, table))
                yield number, self._codec.definitions.encode(table, self._options, 0)

    def ddl(self, event: DdlEvent) -> Iterator[tuple[int, Message]]:
        """On all partitions or on the first one, as the protocol has it."""
        message = self._encode.encode_ddl(event)
        assert message is not None
        everywhere = marks(self._options).ddl_to_all_partitions()
        return ((number, message) for number in range(self._partitions if everywhere else 1))

    def mark(self, ts: int) -> Iterator[tuple[int, Message]]:
        """A Resolved on all partitions, if the options have any."""
        message = self._encode.encode_resolved(ts)
        return ((number, message) for number in range(self._partitions) if message is not None)


def _is_of_users(version: TableVersion) -> bool:
    return not is_system_schema(version.schema)
