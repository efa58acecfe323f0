"""A worker marks where readers must wait if rows of a table swap unique values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import orjson
import pytest
from confluent_kafka import Producer
from tests.contracts.codec_rows import messages_of
from tests.dispatcher.test_conflict_model import (
    PARTITIONS,
    ConstraintError,
    Mark,
    Topic,
    final,
    read_by_ts,
    read_to_marks,
    transactions,
)
from tests.dispatcher.test_conflict_model import Change as ModelChange
from tests.pipeline.recorded import CLUSTER, RecordedFeed, begin
from tests.pipeline.test_stripes import Keeper

from tidegate import metrics
from tidegate.codec.alignment import ALIGN_HEADER
from tidegate.codec.base import Batch, CodecOptions, describe
from tidegate.codec.decode import decoder
from tidegate.codec.registry import marks, options_of
from tidegate.consumer.contract.check import TopicCheck
from tidegate.consumer.contract.verdict import Rule
from tidegate.consumer.engine.fetched import Range as Fetch
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.job import run
from tidegate.consumer.reading.fetch import fetch
from tidegate.consumer.reading.mark_headers import mark_headers, split_resolved
from tidegate.consumer.reading.source import Topic as Source
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.settings import Settings
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.topic_check import check_topic
from tidegate.control.metadata import FeedId
from tidegate.dispatcher.conflict import Conflicts
from tidegate.dispatcher.router import Router
from tidegate.dispatcher.split import Part
from tidegate.errors import Fatal
from tidegate.eventstore.order import Entry
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.message import Message, MessageBlock
from tidegate.model.progress import Delivered
from tidegate.model.schema import TableSchema
from tidegate.model.span import Span
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.exchange.ahead import Ahead
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import COUNTS
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import Worker, open_worker
from tidegate.server.delivery.totals import Totals
from tidegate.sink.base import Content, SlotTaken
from tidegate.tidb import keys, record
from tidegate.tidb.table_info import table_schema
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, db_info, table_info
from tidegate.workload.schema import bootstrap

SCHEMA_ID, TABLE_ID = 300, 301
START_TS = 1 << 20
UNIQUE = {
    "id": 1,
    "idx_name": {"O": "u", "L": "u"},
    "idx_cols": [{"name": {"O": "u", "L": "u"}, "offset": 1, "length": -1}],
    "is_unique": True,
    "is_primary": False,
    "state": 5,
}
COLUMNS = [ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY), ColumnSpec("u", 8, 20, flag=4)]
INFO = table_info(TABLE_ID, "swaps", COLUMNS, ["id"]) | {"index_info": [UNIQUE]}
TABLE = table_schema("bank", INFO, 1)
RULES = [{"matcher": ["bank.*"], "partition": "conflict"}]

Log = list[list[ModelChange]]


class SwapFeed(RecordedFeed):
    """A feed's folder with the model's transactions over a table with a second unique key."""

    def __init__(self, folder: Path, sink_uri: str, log: Log) -> None:
        self.folder, self.sink_uri = folder, sink_uri
        self.store_dir = folder / "events" / str(CLUSTER) / "tidb"
        self.name = "swaps-" + os.urandom(4).hex()
        self.feed_dir = folder / "feeds" / "default" / self.name
        self.feed_dir.mkdir(parents=True)
        self.start_ts, self.last_ts = START_TS, START_TS + len(log)
        table = keys.meta_hash(b"DB:%d" % SCHEMA_ID, b"Table:%d" % TABLE_ID)
        schema = keys.meta_hash(b"DBs", b"DB:%d" % SCHEMA_ID)
        meta = [(m.key, m.value) for m in bootstrap()]
        meta += [(schema, orjson.dumps(db_info(SCHEMA_ID, "bank"))), (table, orjson.dumps(INFO))]
        self.schemas = SchemaStore.from_meta(meta, self.start_ts)
        rows = [tuple(entry) for transaction in log for entry in entries(transaction)]
        self.rows = {keys.DDL_JOB_TABLE_ID: [], TABLE_ID: rows}


def entries(transaction: list[ModelChange], table: TableSchema = TABLE) -> list[Entry]:
    """A transaction as TiKV has it: one entry a row, with its old value."""
    old = {one.id: one.u for one in transaction if one.op in (DELETE, UPDATE)}
    new = {one.id: one.u for one in transaction if one.op in (INSERT, UPDATE)}
    found = []
    for row in sorted(old.keys() | new.keys()):
        ts = START_TS + transaction[0].ts
        key, value = record.encode(table, (row, new.get(row)))
        before = record.encode(table, (row, old[row]))[1] if row in old else b""
        found.append(
            Entry(ts, ts - 1, OP_PUT if row in new else OP_DELETE, key, value if row in new else b"", before)
        )
    return found


class Broker(Keeper):
    """Keeps committed messages by partition; `room`: bytes that may be encoded at once.

    `taken`: how often a commit fails because somebody else has taken the slot.
    """

    def __init__(self, room: int, chance: Random, taken: float) -> None:
        super().__init__()
        self.room, self._chance, self._taken = room, chance, taken
        self.topic: dict[int, list[Message]] = {number: [] for number in range(PARTITIONS)}
        self._open: list[tuple[int, Message]] = []

    @property
    def is_due(self) -> bool:
        return self._chance.random() < 0.3

    def write(self, contents: Sequence[Content]) -> None:
        for one in contents:
            assert isinstance(one, MessageBlock)
            self._open += messages_of(one)

    def commit(self, progress: Mapping[str, bytes]) -> None:
        if self._chance.random() < self._taken:
            self._open = []
            raise SlotTaken("the slot was taken")
        super().commit(progress)
        for partition, message in self._open:
            self.topic[partition].append(message)
        self._open = []


def delivered(
    feed: SwapFeed, chance: Random, *, room: int = 1 << 30, workers: int = 1, taken: float = 0
) -> tuple[dict[int, list[Message]], FeedSpec]:
    """All of the log, range by range, by so many workers in turns that know nothing of one another."""
    spec = FeedSpec.load(feed.write(settings={"sink": {"dispatchers": RULES}}))
    broker = Broker(room, chance, taken)
    staff = [Worker(LocalAccess(spec), lambda topic: PARTITIONS, broker) for _ in range(workers)]
    (span,) = Bounds.load(feed.feed_dir / "bounds.json").spans
    at, reported = START_TS, 0
    while at < feed.last_ts:
        upto = min(feed.last_ts, at + chance.randint(1, 25))
        (report,) = chance.choice(staff).deliver([Range(span, at, upto)])
        at, reported = upto, reported + report.alignments
    assert reported == sum(bool(message.headers) for message in broker.topic[0])
    return broker.topic, spec


def batches(topic: dict[int, list[Message]]) -> dict[int, Batch]:
    return {
        partition: Batch(
            [m.key for m in messages],
            [m.value for m in messages],
            range(len(messages)),
            [list(m.headers) for m in messages],
        )
        for partition, messages in topic.items()
    }


def modelled(topic: dict[int, list[Message]], spec: FeedSpec) -> Topic:
    """Return what a reader finds: row changes and marks, in the order of each partition."""
    return changes_and_marks(batches(topic), options_of(spec.config))


def changes_and_marks(topic: dict[int, Batch], options: CodecOptions) -> Topic:
    found: Topic = []
    for batch in topic.values():
        decoded = decoder(options).decode(batch)
        _, aligns = split_resolved(decoded.resolved, mark_headers(batch, decoded.resolved))
        assert decoded.bad == []
        some: list[tuple[int, ModelChange | Mark]] = [(at, Mark(ts - START_TS)) for ts, at in aligns]
        for item in describe(decoded):
            if item["kind"] != "resolved":
                image = item["new"] or item["old"]
                op = {"insert": INSERT, "update": UPDATE, "delete": DELETE}[item["kind"]]
                change = ModelChange(item["commit_ts"] - START_TS, op, image["id"], image["u"])
                some.append((item["offset"], change))
        found.append([one for _, one in sorted(some, key=lambda one: one[0])])
    return found


@pytest.mark.parametrize(
    ("protocol", "room", "workers", "taken"),
    [
        ("open-protocol", 1 << 30, 1, 0.0),
        ("canal-json&enable-tidb-extension=true", 1 << 30, 2, 0.0),
        ("simple", 400, 1, 0.0),
        ("open-protocol", 400, 2, 0.0),
        ("open-protocol", 1000, 1, 0.2),
    ],
)
def test_readers_of_what_a_worker_writes_never_meet_a_taken_value(
    tmp_path: Path, protocol: str, room: int, workers: int, taken: float
) -> None:
    """In pieces of any size, with commits in the midst of transactions, some of which fail, and by workers in
    turns.
    """
    for seed in range(3):
        chance = Random(seed)
        log = list(transactions(chance, 60))
        feed = SwapFeed(tmp_path / str(seed), f"kafka://127.0.0.1:1/own?protocol={protocol}", log)
        topic, spec = delivered(feed, chance, room=room, workers=workers, taken=taken)
        found = modelled(topic, spec)
        aligned = [[one for one in partition if isinstance(one, Mark)] for partition in found]
        assert aligned[0] == aligned[1] == aligned[2] != []
        for reader in (read_to_marks, read_by_ts):
            assert reader(found, chance).rows == final(log)


def test_without_its_marks_the_same_topic_breaks_readers(tmp_path: Path) -> None:
    chance = Random(1)
    log = list(transactions(chance, 60))
    feed = SwapFeed(tmp_path, "kafka://127.0.0.1:1/own?protocol=open-protocol", log)
    found = modelled(*delivered(feed, chance))
    bare: Topic = [[one for one in partition if not isinstance(one, Mark)] for partition in found]
    broken = 0
    for seed in range(20):
        try:
            read_to_marks(bare, Random(seed))
        except ConstraintError:
            broken += 1
    assert broken > 10


def test_a_worker_that_continues_marks_conflicts_alone(tmp_path: Path) -> None:
    """Its knowledge outlives a range; only the first row of all needs a mark for its own sake."""
    log = [[ModelChange(ts, INSERT, ts, ts)] for ts in range(1, 41)]
    log += [[ModelChange(ts, DELETE, ts - 40, ts - 40)] for ts in range(41, 51)]
    log += [[ModelChange(ts, INSERT, ts - 50, ts)] for ts in range(51, 61)]
    for workers, expected in ((1, 1), (2, None)):
        feed = SwapFeed(tmp_path / str(workers), "kafka://127.0.0.1:1/own?protocol=open-protocol", log)
        found = modelled(*delivered(feed, Random(3), workers=workers))
        count = sum(isinstance(one, Mark) for one in found[0])
        assert count == expected if expected is not None else count > 1


def marks_of(topic: dict[int, list[Message]]) -> list[int]:
    """The transactions that marks name, as partition 0 has them."""
    (_, partition), *_ = topic.items()
    return [orjson.loads(m.headers[0][1])["epoch"] - START_TS for m in partition if m.headers]


def test_a_delete_that_is_out_already_has_a_mark_behind_it(tmp_path: Path) -> None:
    """Another incarnation, with other spans, has sent row 1 up to its delete."""
    log = [
        [ModelChange(1, INSERT, 1, 1), ModelChange(1, INSERT, 9, 9)],
        [ModelChange(2, DELETE, 1, 1)],
        [ModelChange(3, INSERT, 2, 1)],
    ]
    feed = SwapFeed(tmp_path, "kafka://127.0.0.1:1/own?protocol=open-protocol", log)
    spec = FeedSpec.load(feed.write(settings={"sink": {"dispatchers": RULES}}))
    (span,) = Bounds.load(feed.feed_dir / "bounds.json").spans
    broker = Broker(1 << 30, Random(1), 0)
    worker = Worker(LocalAccess(spec), lambda topic: PARTITIONS, broker)
    first, second = (record.encode(TABLE, (number, None))[0] for number in (1, 2))
    worker._ahead = Ahead((Delivered(Span(first, second), "", START_TS + 2, None),))
    worker.deliver([Range(span, START_TS, feed.last_ts)])
    assert marks_of(broker.topic) == [1, 3]


def test_a_block_with_marks_has_its_definition_and_the_body_of_marks_once(tmp_path: Path) -> None:
    log = list(transactions(Random(1), 60))
    feed = SwapFeed(tmp_path, "kafka://127.0.0.1:1/own?protocol=simple", log)
    spec = FeedSpec.load(feed.write(settings={"sink": {"dispatchers": RULES}}))
    (span,) = Bounds.load(feed.feed_dir / "bounds.json").spans
    worker = Worker(LocalAccess(spec), lambda topic: PARTITIONS, Broker(1 << 30, Random(1), 0))
    assert worker.schemas is not None
    (block,) = worker.access.read([(span, START_TS, feed.last_ts)], None, None)
    schemas = worker.schemas.upto(feed.last_ts)
    conflicts = Conflicts().begin(span, START_TS)
    encoded = worker.encode(block, schemas, conflicts=conflicts)
    assert encoded.alignments > 5
    blocks = [one for one in encoded.content if isinstance(one, MessageBlock)]
    reported = [at for at, one in enumerate(blocks) if not one.headers and not one.rows.any()]
    assert reported == [0], "the definition is sent once, before everything else"
    assert worker.plan.mark(7) is worker.plan.mark(7)

    assert len(conflicts) == 1
    worker.encode(block, schemas, part=Part.WHOLE, conflicts=conflicts)
    assert len(conflicts) == 0, "whole updates may free and take values that nobody looked at"


def test_the_topic_check_accepts_marks_and_reports_a_mark_without_copies(
    tmp_path: Path,
) -> None:
    """A mark must be on every partition."""
    chance = Random(5)
    log = list(transactions(chance, 40))
    feed = SwapFeed(tmp_path, "kafka://127.0.0.1:1/own?protocol=open-protocol", log)
    topic, spec = delivered(feed, chance, workers=2)
    assert checked(topic, spec) == {}
    second = [at for at, message in enumerate(topic[1]) if message.headers][1]
    del topic[1][second]
    assert checked(topic, spec).keys() == {Rule.ALIGNED}


def checked(topic: dict[int, list[Message]], spec: FeedSpec) -> dict[Rule, int]:
    check = TopicCheck(range(PARTITIONS), router=Router.of(spec.config, "own"))
    for partition, batch in batches(topic).items():
        decoded = decoder(options_of(spec.config)).decode(batch)
        check.take(partition, decoded, mark_headers(batch, decoded.resolved))
    return {rule: count for rule, count in check.finish().counts.items() if count}


def test_the_places_of_marks_are_counted(tmp_path: Path) -> None:
    counter = metrics.alignment_marks.labels("default", "swaps")
    before = counter._value.get()
    totals = dict.fromkeys(COUNTS, 3)
    Totals().count(FeedId("default", "swaps"), totals, tmp_path)
    assert counter._value.get() == before + 3


@pytest.mark.integration
def test_row_mode_reads_marked_topics_of_a_real_broker_to_the_end(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    chance = Random(9)
    log = list(transactions(chance, 80))
    uri = f"kafka://{kafka}/{new_topic(PARTITIONS)}?protocol=open-protocol"
    feed = SwapFeed(tmp_path / "feed", uri, log)
    spec = FeedSpec.load(feed.write(settings={"sink": {"dispatchers": RULES}}))
    (span,) = begin(spec).starts
    worker = open_worker(LocalAccess(spec))
    owner = spec.sink.open_owner(marks(options_of(spec.config)), lambda: None)
    for after in range(START_TS, feed.last_ts, 20):
        worker.deliver([Range(span, after, after + 20)])
        owner.send_resolved(after + 20)
    owner.close()
    topic = Source(uri)
    verdict = check_topic(topic, router=Router.of(spec.config, spec.sink_uri.topic))
    assert verdict.holds
    assert verdict.unjudged == {}
    found = fetch(topic, Fetch(1, 0, 1 << 30), tmp_path)
    assert found.aligns
    assert [ts for ts, _ in found.resolved] == [START_TS + 20 * n for n in range(1, 5)]
    for mode in Mode:
        target = tmp_path / mode.value
        settings = Settings(uri, target, mode=mode, until=feed.last_ts, commit_s=0.05, master="workers[1]")
        assert run(settings, lambda: False, Listener()).ts == feed.last_ts
        rows = open_snapshot(target).tables["bank.swaps"].to_arrow().to_pylist()
        assert {row["id"]: row["u"] for row in rows} == final(log)

    producer = Producer({"bootstrap.servers": kafka})
    mark = marks(options_of(spec.config)).encode_resolved(0)
    assert mark is not None
    producer.produce(topic.name, mark.value, mark.key, 0, headers=[(ALIGN_HEADER, b"{")])
    assert producer.flush(60) == 0
    for mode in Mode:
        again = tmp_path / f"{mode.value}-again"
        settings = Settings(uri, again, mode=mode, until=feed.last_ts, commit_s=0.05, master="workers[1]")
        if mode is not Mode.ROW:
            assert run(settings, lambda: False, Listener()).ts == feed.last_ts
        else:
            with pytest.raises(Fatal, match="alignment mark cannot be read"):
                run(settings, lambda: False, Listener())
