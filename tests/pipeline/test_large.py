"""Large ranges go out in pieces: a throttled broker, a transaction of many of Kafka's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.fixtures.quota import throttle
from tests.fixtures.topic import read_committed
from tests.integration.validators import read_topic, validate
from tests.pipeline.large import Change, LargeFeed
from tests.pipeline.recorded import begin

from tidegate.codec.base import describe
from tidegate.model.position import Position, Rank
from tidegate.model.progress import RULES_PREFIX, SpanProgress
from tidegate.pipeline.exchange.feed import Bounds, DurableBefore, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import Worker, open_worker
from tidegate.sink.kafka.sink import KafkaSink

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
KEYS = {"giant.large": ("id",)}
WORKER_BYTES = 240 << 20
"""The memory that a worker may use above its base; some 140 MB are usual."""


def changes(uri: str) -> dict[int, list[Change]]:
    """Return the changes that a committed reader finds in each partition."""
    return {
        partition: [
            (item["commit_ts"], item["kind"], image["id"], image["v"])
            for item in describe(decoded)
            for image in [item["new"] or item["old"]]
        ]
        for partition, decoded in read_topic(uri).items()
    }


def assert_delivered(feed: LargeFeed) -> None:
    """All that is to go out is there, once, and in each partition in its order."""
    place = {change: at for at, change in enumerate(feed.changes())}
    found = changes(feed.sink_uri)
    assert sorted(change for some in found.values() for change in some) == sorted(place)
    for some in found.values():
        at = [place[change] for change in some]
        assert at == sorted(at)
    report = validate(feed.sink_uri, KEYS)
    assert (report.faults, report.duplicates) == ([], 0)


def progress_topic(spec: FeedSpec) -> str:
    sink = spec.sink
    assert isinstance(sink, KafkaSink)
    return sink.progress_topic


def progress(kafka: str, topic: str) -> list[SpanProgress]:
    """Every committed record of a span's progress, in order."""
    records = [(m.key().decode(), m.value()) for m in read_committed(kafka, topic)[0]]
    return [SpanProgress.from_bytes(value) for key, value in records if not key.startswith(RULES_PREFIX)]


def uncommitted(kafka: str, topic: str) -> int:
    """Messages of all transactions, those that were given up too."""
    admin = AdminClient({"bootstrap.servers": kafka})
    settings = {"bootstrap.servers": kafka, "group.id": "all", "isolation.level": "read_uncommitted"}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
    parts = [TopicPartition(topic, p, 0) for p in consumer.list_topics(topic).topics[topic].partitions]
    asked = {TopicPartition(topic, p.partition): OffsetSpec.latest() for p in parts}
    ends = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    left = {p.partition for p, answer in ends.items() if answer.result(60).offset}
    consumer.assign(parts)
    count = 0
    while left:
        for message in consumer.consume(10_000, timeout=1.0):
            if message.error() is None:
                count += 1
            else:
                left.discard(message.partition())
    consumer.close()
    return count


@pytest.mark.slow
def test_a_throttled_broker_gets_everything_once_and_progress_on_the_way(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    """In one transaction this takes longer than the broker lets one be open."""
    client = f"slow-{tmp_path.name}"
    throttle(kafka, client, 512 << 10)
    uri = f"kafka://{kafka}/{new_topic(2)}?protocol=canal-json&enable-tidb-extension=true"
    feed = LargeFeed(tmp_path, f"{uri}&kafka-client-id={client}", [300] * 22, 1000)
    spec = FeedSpec.load(feed.write())
    starts = begin(spec).starts
    worker = open_worker(LocalAccess(spec))
    reported: list[int] = []
    ranges = [Range(span, after, feed.last_ts) for span, after in starts.items()]
    (report,) = worker.deliver(ranges, lambda spans: reported.extend(spans.values()))
    assert report.ts == feed.last_ts
    assert report.rows == len(feed.entries)
    records = progress(kafka, progress_topic(spec))
    reached = [record.ts for record in records]
    assert reached == sorted(reached)
    assert len(set(reached)) > 1
    assert reported == sorted(reported)
    assert feed.start_ts < reported[-1] < feed.last_ts
    assert_delivered(feed)
    assert uncommitted(kafka, spec.sink_uri.topic) == report.messages


CHILD = """
import json, os, signal, sys
from pathlib import Path
from tidegate.pipeline.worker import deliver
from tidegate.pipeline.worker.access import local
from tidegate.pipeline.exchange.ranges import Range
from tidegate.sink.kafka import pace, sink, slot

pace.TRANSACTION_BYTES, pace.WINDOW_MIN, pace.PIECE_MAX = 1 << 20, 256 << 10, 512 << 10
pace.TRANSACTION_S = 50.0  # bytes end it: on a slow machine the kills would come before much is written
spec, found, verb, count = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
left = [count]

class Dying(slot.SlotWriter):
    def write(self, contents):
        super().write(contents)
        self.strike("write")

    def commit(self, progress):
        super().commit(progress)
        self.strike("commit")

    def strike(self, now):
        left[0] -= now == verb
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sink.SlotWriter = Dying
deliver.open_worker(local(spec)).deliver([Range(*one) for one in found])
"""


@pytest.mark.slow
def test_a_large_transaction_is_sent_in_pieces_although_workers_are_killed(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    uri = f"kafka://{kafka}/{new_topic(3)}?protocol=open-protocol"
    feed = LargeFeed(tmp_path, uri, [20, 40_000, 30], 300)
    before, large = feed.start_ts + 100, feed.start_ts + 200
    kills = [("commit", 4), ("write", 17), ("commit", 9), ("commit", 6), ("write", 3), ("never", -1)]
    at: list[SpanProgress] = []
    for incarnation, (verb, count) in enumerate(kills, 1):
        path = feed.write(incarnation)
        spec = FeedSpec.load(path)
        found = [(span, after, feed.last_ts) for span, after in begin(spec).starts.items()]
        command = [sys.executable, "-c", CHILD, str(path), json.dumps(found), verb, str(count)]
        code = subprocess.run(command, timeout=240).returncode
        assert code == (0 if verb == "never" else -9)
        at += progress(kafka, progress_topic(spec))[-1:]
    assert at[-1].ts == feed.last_ts
    # Until its last piece is out the large transaction is not reported.
    assert {record.ts for record in at[:-1]} == {large - 1}
    places = [record.position for record in at[:-1] if record.position is not None]
    assert [place.commit_ts for place in places] == [large] * 5
    assert places == sorted(places)
    assert len({place.rank for place in places}) > 2
    assert before < large
    assert_delivered(feed)


WATCHED = """
import json, sys
from pathlib import Path
from tests.memory import taken_by
from tidegate.pipeline.worker import deliver
from tidegate.pipeline.worker.access import local
from tidegate.pipeline.exchange.ranges import Range

worker = deliver.open_worker(local(sys.argv[1]))
small, large = ([Range(*one)] for one in json.loads(sys.argv[2]))
worker.deliver(small)
print(taken_by(lambda: worker.deliver(large)))
"""


@pytest.mark.slow
def test_a_worker_is_bounded_however_large_a_transaction_is(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    """Resident memory with all that is mapped, above what a small transaction took."""
    uri = f"kafka://{kafka}/{new_topic(3)}?protocol=canal-json&enable-tidb-extension=true"
    feed = LargeFeed(tmp_path, uri, [100, 44_000, 30], 4000, runs=10)
    path = feed.write()
    spec = FeedSpec.load(path)
    starts = begin(spec).starts
    small, end = feed.start_ts + 100, feed.last_ts
    found = [[span, *r] for span, after in starts.items() for r in ((after, small), (small, end))]
    command = [sys.executable, "-c", WATCHED, str(path), json.dumps(found)]
    done = subprocess.run(command, cwd=ROOT, timeout=240, check=True, stdout=subprocess.PIPE, text=True)
    assert sum(len(entry.value) + len(entry.old_value) for entry in feed.entries) > WORKER_BYTES
    assert int(done.stdout) < WORKER_BYTES
    assert_delivered(feed)


def test_a_position_counts_only_where_the_ranges_begin(tmp_path: Path) -> None:
    """Another start than the record's ts comes from the bounds, and is beyond the record's."""
    feed = LargeFeed(tmp_path, "kafka://127.0.0.1:1/none?protocol=open-protocol", [4])
    spec = FeedSpec.load(feed.write())
    span = next(iter(Bounds.load(spec.feed_dir / "bounds.json").spans))
    position = Position(feed.last_ts, 7, Rank.INSERTS, b"\0")
    spec.durable_file.write_text(json.dumps(DurableBefore({span: position}).to_json()))

    worker = Worker(LocalAccess(spec), lambda _: 1, None)  # type: ignore[arg-type]
    one = Range(span, feed.last_ts - 1, 1 << 40)
    assert worker._begun([one]) is not None
    one = Range(span, feed.last_ts, 1 << 40)
    assert worker._begun([one]) is None
