"""The stages between event store and sink, as pure functions from block to block.

    block of entries -> mount -> verify -> filter -> select columns -> split -> dispatch -> encode -> messages

Each stage works on thousands of rows at once in compiled kernels, and each kernel has a row-wise twin. With
`integrity.verify-encoded` the encoded messages are decoded again and compared with the rows. The last stage
depends on the form that the sink takes (`sink.base.Form`): messages pass all stages, rows and Arrow columns
leave after `split`, and entries pass no stage.

Rows that become messages pass all stages tile by tile (`mounter.tiles`): the cells of a tile are in a cache
of the processor until they are encoded, and the next tile has the same memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.claim_check import ClaimStorage
from tidegate.codec.alignment import mark_block, resolved
from tidegate.codec.base import CodecOptions
from tidegate.codec.blocks import encode_block
from tidegate.codec.definitions import definition_block
from tidegate.codec.entry import Schemas
from tidegate.codec.keys import encode_keys
from tidegate.codec.large import CLAIM_CHECK, LargeOptions
from tidegate.codec.readback import Misencoded, ReadBack
from tidegate.codec.registry import codec_of, marks, options_of
from tidegate.codec.schema_book import SchemaBook, SchemaRegistry, register_missing
from tidegate.config.settings import ReplicaConfig
from tidegate.config.values import revealed
from tidegate.dispatcher.columns import ColumnSelectors
from tidegate.dispatcher.conflict import SpanConflicts
from tidegate.dispatcher.kernels import partition_block
from tidegate.dispatcher.partitions import CONFLICT
from tidegate.dispatcher.router import Router
from tidegate.dispatcher.split import Part, part_of
from tidegate.filter.event_filter import EventFilter
from tidegate.filter.feed import FeedFilter
from tidegate.kernel import buffer
from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.cells import RowBlock, Taken, take
from tidegate.model.key_range import KeyRange
from tidegate.model.message import Message, MessageBlock
from tidegate.model.schema import TableSchema
from tidegate.mounter.columns import to_arrow
from tidegate.mounter.decode import Checks, MountOptions, Quarantined, in_order, mount_tiles
from tidegate.mounter.integrity import Mismatch, Tally, verify, with_checksums
from tidegate.mounter.schema_store import Follows, SchemaStore
from tidegate.mounter.tiles import TILE_BYTES, Tiling
from tidegate.schema_registry import HttpRegistry
from tidegate.sink.base import Content, Form

TOPICS_REMEMBERED: Final = 1_000
"""A worker keeps the codec options of at most this many topics. Encode plans are cached by these options."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """The settings and objects that the stages of one changefeed need. Built once for each worker process."""

    codec: CodecOptions
    codec_of: Callable[[str], CodecOptions]
    """The options for a topic. They differ because the subjects of a schema registry contain the topic."""
    mark: Callable[[int], Message]
    """The Resolved message of alignment marks, for a wall clock time in ms: encoded once for all marks of a
    block."""
    router: Router
    partitions: Callable[[str], int]
    """The number of partitions of a topic, which is the same at every call."""
    split_updates: bool
    mount: MountOptions
    verify: bool
    """Whether rows are compared with the checksums they carry."""
    checksums: bool
    """Whether messages carry these checksums."""
    read_back: ReadBack | None
    """Compares encoded messages with their rows. None: they are not compared."""
    rows: EventFilter | None
    """Discards rows. None: no filter rule concerns single rows."""
    columns: ColumnSelectors
    form: Form
    """The form that the sink takes."""
    registered: Callable[[TableSchema, CodecOptions], None] | None = None
    """Registers the schemas of a table version in the schema registry, with the options for its topic, before
    its rows are encoded. It is the only call of a stage that leaves this process. None: the protocol has no
    registry. Raises Retryable while the registry does not answer."""
    taken: Taken = buffer
    """Gives the memory for messages."""
    cells: Taken = buffer
    """Gives the memory for cells of rows that become messages. It may be the same at each call."""
    tile_bytes: int = TILE_BYTES
    """The cells of one tile have about at most so many bytes."""


def stage_context(
    config: ReplicaConfig,
    topic: str,
    partitions: Callable[[str], int],
    form: Form = Form.MESSAGES,
    *,
    namespace: str = "default",
) -> StageContext:
    """The context of a changefeed for a sink that takes `form`.

    `topic`: the topic of the sink URI. `partitions`: the number of partitions of a topic.
    """
    verdicts = FeedFilter.of(config)
    options = options_of(config) if form is Form.MESSAGES else CodecOptions()
    in_messages = config.has_tables and form is Form.MESSAGES
    placed, registered = _same, None
    if isinstance(options, LargeOptions) and options.large_message_handle_option == CLAIM_CHECK:
        uri = config.claim_check_storage_uri
        options = replace(options, claims=ClaimStorage(uri))
    if in_messages and (schemas := codec_of(options).schemas) is not None:
        book = SchemaBook()
        placed = partial(_placed, schemas, namespace, book)
        registered = _registering(HttpRegistry(revealed(config.sink.schema_registry)), book, schemas)
    codec = partial(placed, options)
    # One reader with the default topic's options decodes every topic: all topics share one book of schema
    # ids.
    read_back = ReadBack(codec(topic)) if config.integrity.verify_encoded and form is Form.MESSAGES else None
    return StageContext(
        codec=codec(topic),
        mark=lru_cache(1)(partial(_mark, codec(topic))),
        codec_of=lru_cache(TOPICS_REMEMBERED)(codec),
        registered=registered,
        router=Router.of(config, topic),
        partitions=partitions,
        split_updates=config.splits_updates and form is not Form.ENTRIES,
        mount=MountOptions(
            config.tidegate.time_zone,
            config.force_replicate,
            row_keys=in_messages and codec_of(options).row_keys(options),
        ),
        verify=config.integrity.checks,
        checksums=in_messages and codec_of(options).checksums(options),
        read_back=read_back,
        rows=verdicts.events if verdicts.events.concerns_rows else None,
        columns=verdicts.columns,
        form=form,
    )


def _mark(codec: CodecOptions, build_ms: int) -> Message:
    return resolved(marks(codec), build_ms)


def _same(options: CodecOptions, topic: str) -> CodecOptions:
    return options


def _placed(
    schemas: Schemas[Any], namespace: str, book: SchemaBook, options: CodecOptions, topic: str
) -> CodecOptions:
    placed: CodecOptions = schemas.placed(options, topic, namespace, book)
    return placed


def _registering(
    registry: SchemaRegistry, book: SchemaBook, schemas: Schemas[Any]
) -> Callable[[TableSchema, CodecOptions], None]:
    return lambda table, options: register_missing(book, registry, schemas.needed(table, options))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block of entries after all stages."""

    content: tuple[Content, ...]
    """Parts in the form of the context. No part is empty."""
    messages: int
    """The number of messages. In another form, the number of changes."""
    bytes: int
    """Bytes of the messages' values. In another form, bytes of the entries."""
    size: int
    """The same, with the bytes of the messages' keys."""
    bad: tuple[Quarantined, ...]
    damaged: tuple[Mismatch, ...]
    """Rows that differ from their checksum. They are in `content` as well."""
    misencoded: tuple[Misencoded, ...]
    """Rows whose messages decode to something else."""
    tally: Tally
    rows: int
    last_ts: int
    split: int = 0
    """The number of updates that change a unique key."""

    @property
    def alignments(self) -> int:
        """The number of places with alignment marks."""
        return sum(1 for one in self.content if isinstance(one, MessageBlock) and one.headers)


def run(
    block: pa.RecordBatch,
    schemas: SchemaStore,
    context: StageContext,
    build_ms: int,
    *,
    at: int | None = None,
    part: Part = Part.SPLIT,
    follows: Follows | None = None,
    conflicts: SpanConflicts | None = None,
) -> Encoded:
    """Run all stages over one block of entries sorted by commit ts. `build_ms` is the wall clock.

    `at`: decode all rows, which are inserts, with the schemas valid at this ts, instead of those before each
    row's commit ts.
    `follows`: as in `mount`. `part`: which part of the block is emitted; if the feed splits no updates, SPLIT
    means WHOLE. `conflicts`: finds the places of alignment marks among rows that are dispatched by conflict.
    None: no row takes a unique value from another one, as in an initial load.
    """
    if context.form is Form.ENTRIES:
        return _encoded(block, [block], tally=Tally())
    if part is Part.SPLIT and not context.split_updates:
        part = Part.WHOLE
    checks = Checks.of(block) if context.verify else None
    bad, tally, damaged = list[Quarantined](), Tally(), list[Mismatch]()
    # A part that is sorted by transactions needs all rows of each. Those of an initial load are inserts of
    # one transaction, of which none is split.
    tiling = None
    if context.form is Form.MESSAGES:
        tiling = Tiling(part is Part.SPLIT and at is None, context.cells, context.tile_bytes)
    # Rows that cannot be decoded leave the block here and go to quarantine; the others continue.
    tables = mount_tiles(block, schemas, context.mount, bad, checks, at=at, follows=follows, tiling=tiling)
    if checks is not None:
        tables = _verified(tables, block, context.checksums, checks, tally, damaged)
    misencoded = list[Misencoded]()
    content, mounted, split = _content(tables, context, build_ms, part, misencoded, conflicts)
    if conflicts is not None and part is Part.WHOLE:
        conflicts.forget()  # updates in this block may have freed and taken unique values
    rows = block.num_rows if follows is None else mounted + len(bad)
    return _encoded(
        block,
        content,
        rows,
        bad=tuple(in_order(bad)),
        damaged=tuple(damaged),
        misencoded=tuple(misencoded),
        tally=tally,
        split=split,
    )


def _verified(
    tables: Iterable[RowBlock],
    block: pa.RecordBatch,
    in_messages: bool,
    checks: Checks,
    tally: Tally,
    damaged: list[Mismatch],
) -> Iterator[RowBlock]:
    """The rows, compared with their checksums, and with these if messages carry them. Fills `damaged`."""
    for rows in tables:
        # Before any filter: the sum covers the row as it is upstream.
        damaged += verify(block, rows, checks, tally)
        yield with_checksums(rows, checks) if in_messages else rows


def run_keys(block: pa.RecordBatch, keys: KeyRange, context: StageContext) -> Encoded:
    """The only stage of a feed without tables: encode, with the partition from the hash of the key."""
    if context.form is Form.ENTRIES:
        return _encoded(block, [block], tally=Tally())
    count = context.partitions(context.router.default_topic)
    return _encoded(block, [encode_keys(block, keys.strip, count, context.codec)], tally=Tally())


def _encoded(
    block: pa.RecordBatch,
    content: Sequence[Content],
    rows: int | None = None,
    *,
    tally: Tally,
    bad: tuple[Quarantined, ...] = (),
    damaged: tuple[Mismatch, ...] = (),
    misencoded: tuple[Misencoded, ...] = (),
    split: int = 0,
) -> Encoded:
    """The result for a block of entries, with its sizes. `rows`: how many rows to count, by default all."""
    kept = tuple(one for one in content if len(one))
    count, values, size = sum(len(one) for one in kept), 0, 0
    for one in kept:
        if isinstance(one, MessageBlock):
            sent = int(np.maximum(one.value_length, 0).sum())
            values += sent
            size += sent + int(np.maximum(one.key_length, 0).sum())
        else:
            # Rows that are not encoded yet have no size of their own; they count by their share of the block.
            values += block.nbytes * len(one) // block.num_rows
            size += block.nbytes * len(one) // block.num_rows
    last_ts = block.column(0)[-1].as_py()
    return Encoded(
        kept,
        count,
        values,
        size,
        bad,
        damaged,
        misencoded,
        tally,
        block.num_rows if rows is None else rows,
        last_ts,
        split,
    )


def _content(
    tables: Iterable[RowBlock],
    context: StageContext,
    build_ms: int,
    part: Part,
    misencoded: list[Misencoded],
    conflicts: SpanConflicts | None,
) -> tuple[list[Content], int, int]:
    """The content to emit of each table, the number of rows, and how many of these are updates that change a
    unique key. Fills `misencoded`.
    """
    found: list[Content] = []
    count = split = 0
    # By table version, the partitions that have its definition. A tile need not state it again.
    stated = defaultdict[TableSchema, set[int]](set)
    for mounted in tables:
        count += len(mounted)
        # Rows are filtered before columns are selected, because a rule may read a column that is not sent.
        kept = mounted if context.rows is None else context.rows.remaining(mounted)
        if len(kept) == 0:
            continue
        rows = context.columns.of_block(kept) if context.columns else kept
        routed, changed = part_of(rows, part)
        split += changed
        if len(routed) == 0 or context.form is Form.ROWS:
            found.append(routed)
            continue
        if context.form is Form.ARROW:
            images = to_arrow(routed, "new"), to_arrow(routed, "old")
            found.append(ArrowRows(routed.table, routed.op, routed.commit_ts, routed.position, *images))
            continue
        rule, codec = context.router.rule(rows.table), context.codec
        topic = context.router.topic_by(rule, rows.table.schema, rows.table.table)
        if topic != context.router.default_topic:
            codec = context.codec_of(topic)
        partitions = context.partitions(topic)
        partition = partition_block(routed, rule, partitions, context.mount.time_zone)
        if context.registered is not None:
            context.registered(routed.table, codec)
        places = list[int]()
        if conflicts is not None and rule.partition == CONFLICT:
            places = conflicts.places(routed, partition)
        # Before the rows: a reader needs the definition to decode them.
        definition = definition_block(routed.table, partition, codec, build_ms, stated[routed.table])
        if definition is not None:
            found.append(replace(definition, topic=topic))
        marked = set(places)
        for first, end in _between(places, len(routed)):
            if first in marked:
                # Before the row, and on all partitions: readers wait here until the value is free.
                ts = int(routed.commit_ts[first])
                found.append(mark_block(context.mark(build_ms), routed.table.name, ts, topic, partitions))
            some, where = routed, partition
            # Without marks the block is passed on as it is, without a copy.
            if places:
                some, where = take(routed, np.arange(first, end)), partition[first:end]
            encoded = encode_block(some, where, codec, build_ms, context.taken)
            if context.read_back is not None:
                misencoded += context.read_back.compare(some, encoded, where)
            found.append(replace(encoded, topic=topic))
    return found, count, split


def _between(places: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """The ranges (first, end) of rows between places, from 0 to `count`."""
    return pairwise(sorted({0, *places, count}))
