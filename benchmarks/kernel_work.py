"""Work for every kernel on real batches, in the terms of blocks: rows are matched, stored, mounted, filtered,
dispatched, encoded, decoded and compared. `benchmarks.kernels` measures it.

It runs over this source tree and over trees of older commits. Functions of the block level have kept their
names and arguments; `either` finds the few that have not. Work that a tree lacks is left out there.

Rows are those that a real TiDB wrote (`narrow`: 5 columns, `wide`: 44), a third of them updates with both
images. Each pass does the same work on the same bytes, in blocks of ROWS rows.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import pkgutil
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from benchmarks.recorded import OneTable, blocks_of, read_log, sealed, with_updates

from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import codec_options
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.kernels import changed_keys, partition_block
from tidegate.eventstore import kernels, reader
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pages import columns_of
from tidegate.model.block import ENTRY_SCHEMA
from tidegate.model.schema import Kind, TableSchema
from tidegate.model.span import Span
from tidegate.mounter import decode
from tidegate.mounter.columns import to_arrow
from tidegate.mounter.integrity import Tally, column_sums, verify
from tidegate.mounter.mounter import Entry
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.puller.frontier import Frontier
from tidegate.tidb import arrow_checksum
from tidegate.tidb.keys import int_record
from tidegate.verify.fingerprint import fingerprints

LOGS: Final = Path(__file__).parents[1] / "tests" / "golden" / "changelog"
ROWS: Final = 4_096  # of a block
OLD_PROTOCOLS: Final = ("open-protocol", "canal-json")
BUILD_MS: Final = 1_795_246_227_886
PARTITIONS: Final = 16
REGIONS: Final = 64
MESSAGE: Final = 1_000  # rows of a message from a store
OPEN: Final = 10  # messages of prewrites that come before the first commit
EVENTS: Final = 40
"""Messages of prewrites, and as many of commits."""
SPILL_BYTES: Final = 1 << 20
STORED: Final = 200_000
"""Rows in the event store."""
TABLES: Final = 100
RUN_BYTES: Final = 8 << 20
"""Memory with which the event store writes runs, and merges them when it seals."""
PAIRS: Final = 1_000
MARKS: Final = 20_000
GROUPS: Final = (8, 32, 128, 512, 2048)

Run = Callable[[], object]
Prepare = Callable[[], Run]
"""Makes what one pass needs, and returns the pass."""
Work = tuple[str, str, int, Prepare]
"""Name, unit, number of units in a pass."""


def either(*paths: str) -> Any:
    """The first of some `module:name` that this tree has. Raises LookupError."""
    for path in paths:
        with suppress(ImportError, AttributeError):
            return pkgutil.resolve_name(path)
    raise LookupError(paths[0])


def works(logs: Sequence[str] = ("narrow", "wide")) -> Iterator[Work]:
    """All work that this tree can do, on the rows of some recorded logs, in the same order each time."""
    random.seed(1)
    later: list[Iterator[Work]] = []
    yield from _matching()
    yield from _storing()
    yield "scan: a page of pairs", "pair", PAIRS, _page()
    yield from _marks()
    for name in logs:
        yield from _rows(name, later)
    yield "sums of Arrow columns", "row", ROWS, _arrow_sums(ROWS)
    with suppress(LookupError):
        yield "keys: encode kv-json", "row", ROWS, _keys()
    with suppress(LookupError):
        yield "rows as SQL, and their digest", "row", ROWS, _sql()
    with suppress(LookupError):
        yield "messages of librdkafka, copied", "message", ROWS, _taken()
    # Last, so that work of both trees finds its memory in the same places.
    for made in later:
        yield from made


# --- matching -------------------------------------------------------------------------------------------


def _message(kind: Any, first: int) -> bytes:
    """MESSAGE rows of one region, in transactions of 20, from row number `first` on."""
    event = cdcpb.Event(region_id=1 + first // MESSAGE % REGIONS, request_id=7)
    for number in range(first, first + MESSAGE):
        start = 1000 + number // 20
        row = event.entries.entries.add(type=kind, start_ts=start, op_type=cdcpb.Event.Row.PUT)
        row.key = b"t%031d" % number
        if kind == cdcpb.Event.PREWRITE:
            row.value, row.old_value = b"v" * 140, b"o" * 28
        else:
            row.commit_ts = start + 1_000_000_000
    return bytes(cdcpb.ChangeDataEvent(events=[event]).SerializeToString())


def _commit_order() -> list[int]:
    """The messages of commits: each a random one of those whose prewrites have come, OPEN ahead of it."""
    rng, waiting, order = np.random.default_rng(1), list(range(OPEN)), list[int]()
    for at in range(OPEN, EVENTS + OPEN):
        if at < EVENTS:
            waiting.append(at)
        order.append(waiting.pop(int(rng.integers(len(waiting)))))
    return order


def _matching() -> Iterator[Work]:
    where = "tidegate.puller.match", "tidegate.puller"
    matcher_of = either(*(f"{one}.block_matcher:BlockMatcher" for one in where))
    memory_of = either(*(f"{one}.budget:StreamMemory" for one in where))
    firsts = range(0, EVENTS * MESSAGE, MESSAGE)
    prewrites = [_message(cdcpb.Event.PREWRITE, first) for first in firsts]
    commits = [_message(cdcpb.Event.COMMIT, first) for first in firsts]
    order = _commit_order()
    resolved = cdcpb.ResolvedTs(regions=range(1, REGIONS + 1), ts=1 << 40, request_id=7)
    mark = cdcpb.ChangeDataEvent(resolved_ts=resolved).SerializeToString()

    def ready(*arguments: Any) -> Any:
        matcher = matcher_of(*arguments)
        for region in range(1, REGIONS + 1):
            matcher.register(7, region, 0, region, Span(b"", b""), 1)
            event = cdcpb.Event(region_id=region, request_id=7)
            event.entries.entries.add(type=cdcpb.Event.INITIALIZED)
            matcher.feed([cdcpb.ChangeDataEvent(events=[event]).SerializeToString()])
        return matcher

    def in_memory() -> Run:
        matcher = ready()

        def run() -> None:
            changes = matcher.feed(prewrites[:OPEN]).changes
            for at in range(OPEN, EVENTS):
                changes += matcher.feed([prewrites[at], commits[order[at - OPEN]]]).changes
                matcher.relieve()
            changes += matcher.feed([*(commits[one] for one in order[EVENTS - OPEN :]), mark]).changes
            assert changes == EVENTS * MESSAGE, changes

        return run

    def spilled() -> Run:
        folder = tempfile.TemporaryDirectory(prefix="tidegate-bench-")
        matcher = ready(memory_of(SPILL_BYTES), Path(folder.name))

        def run() -> None:
            changes = 0
            for message in (*prewrites, *commits, mark):
                changes += matcher.feed([message]).changes
                matcher.relieve()
                changes += sum(found.changes for found in matcher.join())
            assert changes == EVENTS * MESSAGE, changes
            matcher.close()
            folder.cleanup()

        return run

    yield "match", "event", 2 * EVENTS * MESSAGE, in_memory
    yield "match, spilled", "event", 2 * EVENTS * MESSAGE, spilled


# --- event store ----------------------------------------------------------------------------------------


def _stored_blocks(late: bool, ordered: bool = False) -> list[pa.RecordBatch]:
    """STORED rows of 120 bytes in blocks of 20,000, ten for each commit ts, shuffled in their block. `late`:
    over all blocks. `ordered`: each block is in the store's order.
    """
    rng, size = np.random.default_rng(7), 20_000
    every = rng.permutation(STORED) if late else np.arange(STORED)
    values = pa.array([b"v" * 90] * size, pa.binary())
    olds = pa.array([b"" if n % 3 else b"o" * 90 for n in range(size)], pa.binary())
    made = []
    for first in range(0, STORED, size):
        chosen = rng.integers(0, TABLES, size).tolist()
        keys = pa.array([int_record(table, first + n) for n, table in enumerate(chosen)], pa.binary())
        commits = every[first : first + size].astype(np.uint64) // 10 + 2
        rng.shuffle(commits)
        columns = [pa.array(commits), pa.array(commits - 1), pa.array(np.ones(size, np.uint8))]
        block = pa.RecordBatch.from_arrays([*columns, keys, values, olds], schema=ENTRY_SCHEMA)
        if ordered:
            table = kernels.table_of([kernels.describe(block)])
            block = kernels.take(table, kernels.order_rows(table, 0, STORED, np.zeros(1, np.int64))[0])[0]
        made.append(block)
    return made


def _storing() -> Iterator[Work]:
    in_time, ordered, late = _stored_blocks(False), _stored_blocks(False, True), _stored_blocks(True)
    upto = STORED // 10 + 1

    def written(folder: Path, runs: bool, blocks: list[pa.RecordBatch]) -> tuple[Any, str]:
        """A store with all rows. `runs`: sealed once, after too little memory made it write runs."""
        store = EventStore(folder, memory_bytes=RUN_BYTES if runs else 1 << 30)
        span = store.open_span(Span(b"t", b"u"))
        span.begin(1)
        for number, block in enumerate(blocks, 1):
            span.append(block)
            if not runs and number % 2 == 0:
                span.seal(number * block.num_rows // 10 + 1)
                store.publish()
        if runs:
            span.seal(upto)
            store.publish()
        return store, span.id

    def writing(runs: bool, blocks: list[pa.RecordBatch]) -> Prepare:
        def prepare() -> Run:
            folder = tempfile.TemporaryDirectory(prefix="tidegate-bench-")

            def run() -> None:
                written(Path(folder.name), runs, blocks)[0].close()
                folder.cleanup()

            return run

        return prepare

    def reading(store: Any, span_id: str, **only: Any) -> Prepare:
        def run() -> None:
            read = sum(one.num_rows for one in reader.read(store.folder, span_id, 1, upto, **only))
            assert read == STORED or only, read

        return lambda: run

    stored = (False, "", in_time), (False, ", rows in order", ordered), (True, " with runs", late)
    for runs, how, blocks in stored:
        yield f"event store{how}: write", "row", STORED, writing(runs, blocks)
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            store, span_id = written(Path(folder), runs, blocks)
            yield f"event store{how}: read", "row", STORED, reading(store, span_id)
            if not runs and "tables" in inspect.signature(reader.read).parameters:
                one_table = reading(store, span_id, tables=[TABLES // 2])
                yield f"event store{how}: read one table", "row", STORED // TABLES, one_table
            store.close()


# --- scan pages and marks -------------------------------------------------------------------------------


def _page() -> Prepare:
    pairs = [kvrpcpb.KvPair(key=int_record(7, n), value=b"v" * 120) for n in range(PAIRS)]
    response = kvrpcpb.ScanResponse(pairs=pairs).SerializeToString()

    def run() -> None:
        page = columns_of(response, PAIRS)
        assert page is not None
        assert page.num_rows == PAIRS

    return lambda: run


def _marks() -> Iterator[Work]:
    def held() -> tuple[Frontier, Any]:
        frontier = Frontier()
        return frontier, np.array([frontier.hold(0, 1) for _ in range(MARKS)], dtype=np.int64)

    def rising() -> Run:
        frontier, marks = held()
        np.random.default_rng(1).shuffle(marks)

        def run() -> None:
            at = 0
            for size in itertools.cycle(GROUPS):
                some = marks[at : at + size]
                frontier.advance(some, np.full(len(some), 10, dtype=np.uint64))
                frontier.minima(1)
                at += len(some)
                if at == MARKS:
                    break
            assert frontier.minima(1).tolist() == [10]

        return run

    yield "marks: rise", "mark", MARKS, rising
    yield "marks: begin", "mark", MARKS, lambda: held


# --- rows -----------------------------------------------------------------------------------------------


def _rows(name: str, later: list[Iterator[Work]]) -> Iterator[Work]:
    """The way of rows from the event store to messages and columns, and from messages back. Work of protocols
    that older trees lack is added to `later`.
    """
    table, entries = read_log(LOGS / f"{name}.jsonl.gz", 3 * ROWS)
    entries = with_updates(entries)
    entries = (entries * (1 + ROWS // len(entries)))[:ROWS]
    (block,) = blocks_of(entries, ROWS)
    store: Any = OneTable(table)
    options = decode.MountOptions(force_replicate=True)
    yield f"mount {name}", "row", ROWS, lambda: lambda: decode.mount(block, store, options)
    yield f"mount {name}, compare checksums", "row", ROWS, _checked(entries, store, options)
    groups, bad = decode.mount(block, store, options)
    assert not bad
    group = max(groups, key=len)
    n, new = len(group), np.flatnonzero(group.op != 3)

    def columns() -> None:
        to_arrow(group, "new")
        to_arrow(group, "old")

    yield f"to Arrow {name}", "row", n, lambda: columns
    yield f"sums of columns {name}", "row", n, lambda: lambda: column_sums(table, group.new, new)
    yield f"filter: columns of {name}", "row", n, _filtered(table, group, new)
    by_key = DispatchRule(matcher=("*.*",), partition="index-value")
    every = tuple(column.name for column in table.columns)
    by_all = DispatchRule(matcher=("*.*",), partition="columns", columns=every)
    at = tuple(range(len(table.columns)))
    yield f"dispatch {name} by key", "row", n, lambda: lambda: partition_block(group, by_key, PARTITIONS)
    yield f"dispatch {name} by all columns", "row", n, lambda: lambda: partition_block(group, by_all, 16)
    yield f"split updates {name}", "row", n, lambda: lambda: changed_keys(group, at)
    arrow = to_arrow(group, "new")
    yield f"fingerprints {name}", "row", n, lambda: lambda: fingerprints(arrow)
    for label, given in _protocols():
        made = _messages(f"{label} {name}", table, group, given)
        if label in OLD_PROTOCOLS:
            yield from made
        else:
            later.append(made)


def _checked(entries: list[Entry], store: Any, options: Any) -> Prepare:
    (block,) = blocks_of(sealed(entries), ROWS)

    def run() -> None:
        checks = decode.Checks.of(block)
        for group in decode.mount(block, store, options, checks)[0]:
            assert not verify(block, group, checks, Tally())

    return lambda: run


def _filtered(table: TableSchema, group: Any, rows: Any) -> Prepare:
    """The columns that an expression reads, converted."""
    cells_of = either("tidegate.filter.expression.cells:Cells", "tidegate.filter.expression.slots:Cells")

    def run() -> None:
        cells = cells_of(table, group.new, rows, "UTC")
        for position, column in enumerate(table.columns):
            if column.kind is Kind.DECIMAL:
                cells.decimals(position, column.decimal)
            elif column.kind in (Kind.STRING, Kind.BYTES):
                cells.raw(position)
            elif column.kind is Kind.JSON:
                cells.json(position)

    return lambda: run


def _arrow_sums(n: int) -> Prepare:
    columns = [pa.array(np.arange(n)), pa.array([f"text of row {i}" for i in range(n)])]
    batch = pa.RecordBatch.from_arrays(columns, ["number", "text"])
    return lambda: lambda: arrow_checksum.sums(batch, [Kind.INT, Kind.STRING])


def _sql() -> Prepare:
    made, column = (
        either("tidegate.consumer.mysql.literals:row_texts"),
        either("tidegate.consumer.table.convert:TargetColumn"),
    )
    digest = either("tidegate.consumer.mysql.digest:Digest")
    types = {"id": (8, pa.int64()), "name": (15, pa.string()), "at": (12, pa.timestamp("us"))}
    of = [column(name, *kind) for name, kind in types.items()]
    names = pa.array([b"a name of some length, number %d" % number for number in range(ROWS)], pa.binary())
    rows = pa.table([pa.array(np.arange(ROWS)), names, pa.array(["2024-02-29 12:34:56"] * ROWS)], list(types))
    return lambda: lambda: digest().add(b"INSERT INTO t", made(of, rows))


def _taken() -> Prepare:
    """Messages in librdkafka's own form. `labs` is in the place of its functions: nothing is given back."""
    arena, of_message = (
        either("tidegate.consumer.reading.arena:Arena"),
        either("tidegate.consumer.reading.message_kernels:MESSAGE"),
    )
    measure = either("tidegate.consumer.reading.message_kernels:measure_messages")
    labs = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    value = np.frombuffer(b"v" * 442, np.uint8)
    records = np.zeros((ROWS, of_message.size // 8), np.int64)
    records[:, 3], records[:, 4], records[:, 7] = value.ctypes.data, len(value), np.arange(ROWS)
    list_of = records.ctypes.data + of_message.size * np.arange(ROWS)
    sizes, seen = np.zeros(3, np.int64), np.zeros(ROWS, np.int64)
    into = arena()

    def run() -> None:
        into.clear()
        places = list_of.ctypes.data, labs, sizes.ctypes.data, seen.ctypes.data
        assert measure(ROWS, *places) == 0
        into.reserve(ROWS, int(sizes[0]), int(sizes[1]))
        into.take(ROWS, list_of.ctypes.data, labs, {})
        assert into.count == len(records)  # which must live as long as the list of their addresses

    return lambda: run


# --- messages -------------------------------------------------------------------------------------------


def _protocols() -> Iterator[tuple[str, dict[str, str]]]:
    """The protocols with the options with which rows can be read back."""
    try:
        codecs, names = (
            either("tidegate.codec.registry:CODECS"),
            either("tidegate.codec.registry:row_protocols"),
        )
    except LookupError:  # a tree with two protocols
        yield "open-protocol", {}
        yield "canal-json", {"enable-tidb-extension": "true"}
        return
    for label in names():
        unmarked = codecs[label].unmarked
        yield label, {} if unmarked is None else dict(one.split("=") for one in unmarked.option.split("&"))
    yield "simple (avro)", {"protocol": "simple", "encoding-format": "avro"}


def _messages(name: str, table: TableSchema, group: Any, given: dict[str, str]) -> Iterator[Work]:
    options = codec_options({"protocol": name.partition(" ")[0], **given})
    zeros, n = np.zeros(len(group), dtype=np.int32), len(group)
    room = encode_block(group, zeros, options, BUILD_MS).data
    # In an older tree it is the buffer itself.
    taken: Any = (lambda size: room) if "taken" in inspect.signature(encode_block).parameters else room

    def encode() -> None:
        encode_block(group, zeros, options, BUILD_MS, taken)

    yield f"encode {name}", "row", n, lambda: encode
    if name.startswith("open-protocol") and hasattr(group, "extent"):
        unsized: Any = partial(encode_block, replace(group, extent=None), zeros, options, BUILD_MS)
        yield f"encode {name}, sizes unknown", "row", n, lambda: unsized
    messages = encode_block(group, zeros, options, BUILD_MS)
    read = _reading(table, options)
    keys = _texts(messages.data, messages.key_start, messages.key_length)
    values = _texts(messages.data, messages.value_start, messages.value_length)
    offsets = np.arange(len(keys), dtype=np.int64)

    def back() -> None:
        found = read(keys, values, offsets)
        assert sum(len(one) for one in found.rows) == n, "every row comes back"

    yield f"decode {name}", "row", n, lambda: back


def _texts(data: Any, starts: Any, lengths: Any) -> pa.Array:
    held, pairs = data.tobytes(), zip(starts.tolist(), lengths.tolist(), strict=True)
    return pa.array([None if size < 0 else held[at : at + size] for at, size in pairs], pa.large_binary())


def _reading(table: TableSchema, options: Any) -> Callable[[Any, Any, Any], Any]:
    """The decoder, which knows the table after its first batch."""
    reader_of = either("tidegate.codec.decode:decoder", "tidegate.codec.registry:decoder")
    decoder = reader_of(options)
    try:
        batch_of = either("tidegate.codec.base:Batch")
    except LookupError:
        return lambda keys, values, offsets: decoder.decode(keys, values, None, offsets)
    definitions = either("tidegate.codec.registry:codec_of")(options).definitions
    if definitions is not None:
        reported = definitions.encode(table, options, BUILD_MS)
        decoder.decode(batch_of([reported.key], [reported.value], [0]))
    return lambda keys, values, offsets: decoder.decode(batch_of(keys, values, offsets))


def _keys() -> Prepare:
    encode = either("tidegate.codec.keys:encode_keys", "tidegate.codec.kv_json:encode_block")
    numbers = np.arange(ROWS, dtype=np.uint64) + np.uint64(9)
    columns = [pa.array(numbers), pa.array(numbers - 1), pa.array(np.ones(ROWS, np.uint8))]
    texts = [[b"key of row %08d" % n for n in range(ROWS)], [b"v" * 120] * ROWS, [b""] * ROWS]
    block = pa.RecordBatch.from_arrays(
        [*columns, *(pa.array(t, pa.binary()) for t in texts)], schema=ENTRY_SCHEMA
    )
    options = (
        [codec_options({"protocol": "kv-json"})] if len(inspect.signature(encode).parameters) > 3 else []
    )
    return lambda: lambda: encode(block, 0, PARTITIONS, *options)
