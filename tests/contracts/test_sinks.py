"""The contract of sinks (`sink/base.py`): one suite over Kafka, SQLite, readers and the map of all keys.

Changes are puts of one key each; `seen` is what a reader finds who sees only what is durable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.contracts.map_sink import MapSink, Versions
from tests.contracts.sqlite_sink import SqliteSink
from tests.fixtures.topic import read_committed
from tests.sink.test_kafka import Grants, block
from tests.sink.test_kafka_owner import event
from tidegate.codec import registry
from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_sink_uri, reader_uri
from tidegate.errors import Fenced
from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.cells import INSERT
from tidegate.model.message import MessageBlock
from tidegate.model.progress import SpanProgress, span_progress
from tidegate.sink.base import (
    Content,
    Domain,
    PartitionedOwner,
    PartitionedSink,
    Sink,
    SinkFeed,
    SlotTaken,
    Undecided,
    Writer,
)
from tidegate.sink.kafka.sink import KafkaSink
from tidegate.sink.kafka.slot import fence_slots
from tidegate.sink.reader.changes import Changes
from tidegate.sink.reader.sink import ReaderSink

pytestmark = pytest.mark.integration

SLOTS, CAPTURE = 3, "here"


class Place(Protocol):
    """A downstream, seen from outside."""

    def sink(self, incarnation: int = 1, instance: str = "one", capture: str = CAPTURE) -> Sink: ...

    def content(self, changes: Sequence[tuple[str, str]]) -> Content: ...

    def seen(self) -> list[tuple[str, str]]:
        """Changes that are durable, in the order in which they were made; the owner's are none."""
        ...

    def lose_answer(self, writer: Any) -> None:
        """The writer's next commit takes effect as far as it may, and its answer never comes."""
        ...

    def elsewhere(self) -> Sink: ...


class Feed:
    """The feed that all places are given."""

    def __init__(self, uri: str) -> None:
        self.uri = parse_sink_uri(uri)
        self.config = load_config(None, self.uri)

    def at(self, incarnation: int, instance: str, capture: str) -> SinkFeed:
        who = 1, "default", self.uri.topic, instance
        return SinkFeed(*who, self.uri, self.config, (1, 1, incarnation), capture)


class Interrupted:
    """A producer that is fenced by `then` after its commit, and does not get the broker's answer to it."""

    def __init__(self, producer: Producer, then: Callable[[], None]) -> None:
        self._producer, self._then = producer, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def commit_transaction(self, timeout: float) -> None:
        self._producer.commit_transaction(timeout)
        self._then()
        raise KafkaException(KafkaError(KafkaError._FENCED))


class AtKafka(Feed):
    """One partition: the order of a topic is its partitions'."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(f"kafka://{bootstrap}/{topic}?protocol=open-protocol")
        self.bootstrap, self.topic = bootstrap, topic

    def sink(self, incarnation: int = 1, instance: str = "one", capture: str = CAPTURE) -> KafkaSink:
        return KafkaSink(self.at(incarnation, instance, capture))

    def content(self, changes: Sequence[tuple[str, str]]) -> Content:
        return block(*((0, key.encode(), value.encode()) for key, value in changes))

    def seen(self) -> list[tuple[str, str]]:
        found = [message for one in read_committed(self.bootstrap, self.topic).values() for message in one]
        rows = [message for message in found if message.key().isalnum()]  # marks have binary keys
        return [(message.key().decode(), message.value().decode()) for message in rows]

    def lose_answer(self, writer: Any) -> None:
        ids = [self.sink().transactional_id(0)]
        writer._producer = Interrupted(writer._producer, lambda: fence_slots(self.uri, self.config, ids))

    def elsewhere(self) -> Sink:
        other = AtKafka(self.bootstrap, self.topic + "-2")
        return other.sink()


class AtTwoTopics(AtKafka):
    """Messages go to two topics in turn; values carry the order in which they were made."""

    def __init__(self, bootstrap: str, topic: str, other: str) -> None:
        super().__init__(bootstrap, topic)
        self.topics, self.made, self.writes = (topic, other), 0, 0

    def content(self, changes: Sequence[tuple[str, str]]) -> Content:
        numbered = [(key, f"{value}#{self.made + i:08}") for i, (key, value) in enumerate(changes)]
        self.made += len(changes)
        self.writes += 1
        found = super().content(numbered)
        assert isinstance(found, MessageBlock)
        return replace(found, topic=self.topics[self.writes % 2])

    def seen(self) -> list[tuple[str, str]]:
        places = [AtKafka(self.bootstrap, topic) for topic in self.topics]
        found = [change for place in places for change in AtKafka.seen(place)]
        ordered = sorted(found, key=lambda change: change[1].partition("#")[2])
        return [(key, value.partition("#")[0]) for key, value in ordered]


class AtSqlite(Feed):
    def __init__(self, path: Path) -> None:
        super().__init__("kafka://127.0.0.1:1/feed?protocol=open-protocol")
        self.path = path

    def sink(self, incarnation: int = 1, instance: str = "one", capture: str = CAPTURE) -> SqliteSink:
        return SqliteSink(self.at(incarnation, instance, capture), self.path)

    def content(self, changes: Sequence[tuple[str, str]]) -> Content:
        new = pa.record_batch({"k": [key for key, _ in changes], "v": [value for _, value in changes]})
        old = pa.record_batch({name: pa.nulls(len(changes), pa.string()) for name in ("k", "v")})
        count, numbers = len(changes), np.arange(len(changes))
        return ArrowRows(
            TABLE, np.full(count, INSERT, np.uint8), numbers.astype(np.uint64), numbers, new, old
        )

    def seen(self) -> list[tuple[str, str]]:
        connection = self.sink().connect()
        found = connection.execute("SELECT key, image FROM state JOIN history USING (name, key) ORDER BY n")
        return [(key[2:-2], image.split('"')[-2]) for key, image in found]

    def lose_answer(self, writer: Any) -> None:
        writer.commits.connection = Deaf(writer.commits.connection)

    def elsewhere(self) -> Sink:
        return AtSqlite(self.path.with_name("other")).sink()


class AtReader(AtSqlite):
    def sink(self, incarnation: int = 1, instance: str = "one", capture: str = CAPTURE) -> ReaderSink:
        if not self.path.exists():
            self.path.mkdir()
            Changes(self.path).begin("one", 1, (), 0)
        feed = replace(self.at(incarnation, instance, capture), folder=self.path)
        return ReaderSink(replace(feed, uri=reader_uri("typed", 3600, 1 << 30)))

    def seen(self) -> list[tuple[str, str]]:
        found = list[tuple[str, str]]()
        with closing(self.sink().connect()) as connection:
            for (data,) in connection.execute("SELECT data FROM pieces ORDER BY n"):
                rows = pa.ipc.open_stream(data).read_all()
                found += zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)
        return found

    def elsewhere(self) -> Sink:
        return AtReader(self.path.with_name("other")).sink()


class Deaf:
    """A connection that is gone when a commit is answered."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        found = self._connection.execute(statement, *values)
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return found


class InMemory(Feed):
    def __init__(self) -> None:
        super().__init__("kafka://127.0.0.1:1/feed?protocol=open-protocol")
        self.versions, self.ts = Versions(), dict[str, int]()

    def sink(self, incarnation: int = 1, instance: str = "one", capture: str = CAPTURE) -> MapSink:
        return MapSink(self.at(incarnation, instance, capture), self.versions)

    def content(self, changes: Sequence[tuple[str, str]]) -> Content:
        ts = [self.ts.setdefault(key, 10 + len(self.ts)) for key, _ in changes]
        none = [b""] * len(changes)
        rows = [ts, ts, [OP_PUT] * len(changes), [key.encode() for key, _ in changes]]
        rows += [[value.encode() for _, value in changes], none]
        columns = [pa.array(one, of.type) for one, of in zip(rows, ENTRY_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)

    def seen(self) -> list[tuple[str, str]]:
        found = [(ts, key, value) for key, one in self.versions.keys.items() for ts, value in one.items()]
        return [(key.decode(), (value or b"").decode()) for _, key, value in sorted(found)]

    def lose_answer(self, writer: Any) -> None:
        writer.loses_answers = True

    def elsewhere(self) -> Sink:
        return InMemory().sink()


TABLE: Any = SimpleNamespace(
    name="s.t",
    schema="s",
    table="t",
    columns=(SimpleNamespace(name="k"), SimpleNamespace(name="v")),
    handle_key=(0,),
)


@pytest.fixture(params=["kafka", "kafka-topics", "sqlite", "reader", "map"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param.startswith("kafka"):
        bootstrap, new_topic = request.getfixturevalue("kafka"), request.getfixturevalue("new_topic")
        two = request.param == "kafka-topics"
        yield AtTwoTopics(bootstrap, new_topic(1), new_topic(1)) if two else AtKafka(bootstrap, new_topic(1))
    else:
        places = {"sqlite": AtSqlite, "reader": AtReader}
        made = places.get(request.param)
        yield made(tmp_path / "sink") if made is not None else InMemory()


def record(ts: int) -> bytes:
    return SpanProgress("one", (1, 1), 1, ts).to_bytes()


def send(place: Place, writer: Writer, changes: Sequence[tuple[str, str]], ts: int) -> None:
    """In a transaction of their own; once more when the slot was taken and has been taken back."""
    for left in (1, 0):
        try:
            writer.write([place.content(changes)])
            writer.commit({"s": record(ts)})
            return
        except SlotTaken:
            assert left


def durable(sink: Sink, grants: Grants, incarnation: int) -> dict[str, int]:
    records = sink.fence({CAPTURE: SLOTS}, grants.prover(incarnation))
    return {span: one.ts for span, one in span_progress(records, "one").items()}


def marks(place: Any) -> Any:
    return registry.marks(registry.options_of(place.config))


def test_rows_and_progress_are_durable_together_and_in_order(place: Place) -> None:
    grants, sink = Grants(), place.sink()
    assert sink.check() == 1
    assert durable(sink, grants, 1) == {}
    writer = sink.writer(0, grants.prover(1))
    rows = [(f"k{number:03}", f"v{number}") for number in range(300)]
    for first in range(0, 300, 100):
        writer.write([place.content(rows[first : first + 100])])
    writer.commit({"s": record(7), "t": record(8)})
    assert place.seen() == rows
    writer.commit({"t": record(9)})
    grants.current = 2
    assert durable(place.sink(2), grants, 2) == {"s": 7, "t": 9}
    assert place.seen() == rows


def test_what_is_given_up_leaves_nothing(place: Place) -> None:
    grants, sink = Grants(), place.sink()
    sink.check()
    sink.fence({CAPTURE: SLOTS}, grants.prover(1))
    writer = sink.writer(0, grants.prover(1))
    writer.write([place.content([("a", "1")])])
    writer.abort()
    send(place, writer, [("b", "2")], 5)
    assert place.seen() == [("b", "2")]


def test_after_the_fence_no_earlier_writer_makes_anything_durable(place: Place) -> None:
    """With a transaction open, without one, and in a slot that was never used."""
    grants, old = Grants(), place.sink()
    old.check()
    old.fence({CAPTURE: SLOTS}, grants.prover(1))
    open_one, idle = old.writer(0, grants.prover(1)), old.writer(1, grants.prover(1))
    send(place, open_one, [("a", "1")], 5)
    open_one.write([place.content([("b", "2")])])
    grants.current = 2
    new = place.sink(2)
    assert durable(new, grants, 2) == {"s": 5}
    with pytest.raises(Fenced):
        open_one.commit({"s": record(6)})
    with pytest.raises(Fenced):
        send(place, idle, [("c", "3")], 7)
    with pytest.raises(Fenced):
        send(place, old.writer(2, grants.prover(1)), [("d", "4")], 8)
    assert place.seen() == [("a", "1")]
    grants.current = 3
    assert durable(place.sink(3), grants, 3) == {"s": 5}


def test_a_rightful_writer_whose_slot_a_zombie_took_resumes_without_a_gap(place: Place) -> None:
    grants, zombie = Grants(), place.sink()
    zombie.check()
    zombie.fence({CAPTURE: SLOTS}, grants.prover(1))
    grants.current = 2
    rightful = place.sink(2)
    rightful.fence({CAPTURE: SLOTS}, grants.prover(2))
    writer = rightful.writer(0, grants.prover(2))
    send(place, writer, [("a", "1")], 5)
    with pytest.raises(Fenced):
        zombie.writer(0, grants.prover(1))
    send(place, writer, [("b", "2")], 6)
    assert place.seen() == [("a", "1"), ("b", "2")]


def test_a_taker_of_ranges_fences_the_giver_which_keeps_its_other_ranges(place: Place) -> None:
    """Two captures write one feed, each in slots of its own; the giver learns it by its next proof."""
    proofs = list[str]()
    giver, taker = place.sink(), place.sink(capture="there")
    giver.check()
    giver.fence({CAPTURE: SLOTS}, lambda: None)
    theirs = giver.writer(0, lambda: proofs.append("giver"))
    taker.fence({"there": SLOTS}, lambda: None)
    ours = taker.writer(0, lambda: None)
    send(place, theirs, [("a", "1")], 5)
    send(place, ours, [("b", "2")], 5)
    assert (place.seen(), proofs) == ([("a", "1"), ("b", "2")], ["giver"])

    theirs.write([place.content([("c", "3")])])
    records = taker.fence({"there": SLOTS, CAPTURE: SLOTS}, lambda: None)
    assert {key: one.ts for key, one in span_progress(records, "one").items()} == {"s": 5}
    with pytest.raises(SlotTaken):
        theirs.commit({"s": record(6)})
    assert len(proofs) > 1
    send(place, theirs, [("d", "4")], 6)
    assert [key for key, _ in place.seen()] == ["a", "b", "d"]


def test_a_commit_of_unknown_outcome_is_reported_so_and_found_by_the_next(place: Place) -> None:
    grants, sink = Grants(), place.sink()
    sink.check()
    sink.fence({CAPTURE: SLOTS}, grants.prover(1))
    writer = sink.writer(0, grants.prover(1))
    place.lose_answer(writer)
    changes = [("a", "1"), ("b", "2")]
    writer.write([place.content(changes)])
    with pytest.raises(Undecided) as undecided:
        writer.commit({"s": record(5)})
    assert undecided.value.where
    grants.current = 2
    again = place.sink(2)
    reached = durable(again, grants, 2).get("s", 0)
    assert reached == 5 or not sink.describe().atomic, "rows without their progress"
    if reached < 5:
        send(place, again.writer(0, grants.prover(2)), changes, 5)
    assert place.seen() == changes
    with pytest.raises(Fenced):
        send(place, writer, [("c", "3")], 6)
    assert place.seen() == changes, "who was not answered is fenced like any other writer"


def test_a_ddl_goes_out_once_and_a_replaced_owner_tells_nothing(place: Place) -> None:
    grants, sink = Grants(), place.sink()
    sink.check()
    sink.fence({CAPTURE: SLOTS}, grants.prover(1))
    first = sink.open_owner(marks(place), grants.prover(1))
    first.send_ddl(event(10))
    first.send_ddl(event(10, seq=1))
    first.send_resolved(12)
    grants.current = 2
    second = place.sink(2).open_owner(marks(place), grants.prover(2))
    assert (second.journal.ddl_ts, second.journal.ddl_seq, second.journal.resolved_ts) == (10, 1, 12)
    second.send_ddl(event(10, seq=1))
    second.send_ddl(event(11))
    for tell in (
        lambda: first.send_ddl(event(12)),
        lambda: first.send_resolved(20),
        lambda: first.forget(["s"]),
    ):
        with pytest.raises(Fenced):
            tell()
    with pytest.raises(Fenced):
        sink.open_owner(marks(place), grants.prover(1))
    second.close()
    grants.current = 3
    third = place.sink(3).open_owner(marks(place), grants.prover(3))
    assert (third.journal.ddl_ts, third.journal.resolved_ts) == (11, 12)
    grants.current = 4
    assert place.sink(4, "another").open_owner(marks(place), grants.prover(4)).journal.ddl_ts == 0


def test_progress_is_forgotten_by_key_and_as_a_whole(place: Place) -> None:
    grants, sink = Grants(), place.sink()
    sink.check()
    sink.fence({CAPTURE: SLOTS}, grants.prover(1))
    writer = sink.writer(0, grants.prover(1))
    writer.write([place.content([("a", "1")])])
    writer.commit({name: record(ts) for name, ts in (("a", 5), ("b", 6), ("c", 7))})
    owner = sink.open_owner(marks(place), grants.prover(1))
    owner.forget(["a", "c"])
    owner.close()
    grants.current = 2
    assert durable(place.sink(2), grants, 2) == {"b": 6}
    for _ in range(2):
        place.sink(2).forget()
    grants.current = 3
    assert durable(place.sink(3), grants, 3) == {}
    assert place.seen() == [("a", "1")]


def test_a_sink_has_partitions_on_both_sides_or_on_none(place: Place) -> None:
    grants, sink = Grants(), place.sink()
    sink.check()
    sink.fence({CAPTURE: SLOTS}, grants.prover(1))
    owner = sink.open_owner(marks(place), grants.prover(1))
    owner.close()
    assert isinstance(sink, PartitionedSink) == isinstance(owner, PartitionedOwner)


def test_a_sink_knows_whether_another_is_in_the_same_place(place: Place) -> None:
    sink: Any = place.sink()
    assert sink.same_place(place.sink(2))
    assert not sink.same_place(place.elsewhere())


@pytest.mark.parametrize(("domain", "writers"), [(Domain.ROW, 1), (Domain.TABLE, 1), (Domain.FEED, 1)])
def test_a_sink_with_one_writer_is_given_one_task(domain: Domain, writers: int, tmp_path: Path) -> None:
    feed = Feed("kafka://127.0.0.1:1/feed?protocol=open-protocol").at(1, "one", CAPTURE)
    assert SqliteSink(feed, tmp_path / "sink.db", domain).describe().at_once(8) == writers
    assert MapSink(feed, Versions()).describe().at_once(8) == 8
