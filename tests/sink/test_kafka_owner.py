"""DDL and Resolved on a real broker: broadcast, once, journalled, and only by the newest owner."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.fixtures.topic import read_committed
from tests.integration.cluster import eventually
from tests.integration.validators import read_topic
from tests.sink.slots import deliver, read_progress
from tidegate.codec import registry
from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.model.ddl import DdlEvent
from tidegate.model.layout import Layout
from tidegate.model.progress import SpanProgress
from tidegate.sink.base import OpenTransactions, PartitionedOwner, PartitionedSink, SinkFeed
from tidegate.sink.kafka.client import transactional_id
from tidegate.sink.kafka.owner_sink import KafkaOwnerSink
from tidegate.sink.kafka.sink import KafkaSink
from tidegate.sink.kafka.slot import SlotWriter

pytestmark = pytest.mark.integration


def event(finished_ts: int, seq: int = 0) -> DdlEvent:
    return DdlEvent(
        job_id=1,
        seq=seq,
        start_ts=finished_ts - 5,
        finished_ts=finished_ts,
        action=3,
        query=f"create table s.t{finished_ts}_{seq}(id int)",
        schema="s",
        table=f"t{finished_ts}_{seq}",
        old_schema="s",
        old_table=f"t{finished_ts}_{seq}",
        schema_version=1,
        before=None,
        after=None,
        added_ids=(),
        removed_ids=(),
    )


@pytest.fixture
def open_sink(kafka: str, new_topic: Callable[..., str]) -> Callable[..., KafkaOwnerSink]:
    topic, journal = new_topic(3), new_topic(1)

    def open_one(
        protocol: str = "open-protocol",
        instance: str = "first",
        prove: Callable[[], None] = lambda: None,
        options: str = "",
    ) -> KafkaOwnerSink:
        uri = parse_sink_uri(f"kafka://{kafka}/{topic}?protocol={protocol}{options}")
        config = load_config(None, uri)
        marks = registry.marks(registry.options_of(config))
        name = transactional_id(1, "default", topic, "owner")
        sink = KafkaOwnerSink(uri, config, name, journal, instance, marks, prove)
        sink.source = uri.render()  # type: ignore[attr-defined]
        return sink

    return open_one


def marks_of(sink: Any) -> dict[int, tuple[list[int], list[int]]]:
    """Per partition the ts of its Resolved and of its DDL messages."""
    return {
        partition: ([ts for ts, _ in decoded.resolved], [ddl.ts for ddl in decoded.ddls])
        for partition, decoded in read_topic(sink.source).items()
    }


def test_resolved_and_ddl_reach_every_partition_and_no_ddl_is_resent(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    """A DDL that is in the journal was sent."""
    first = open_sink()
    first.send_ddl(event(100))
    first.send_resolved(100)
    second = open_sink()
    assert (second.journal.ddl_ts, second.journal.resolved_ts) == (100, 100)
    second.send_ddl(event(100))
    second.send_ddl(event(100, seq=1))
    second.send_resolved(120)
    assert marks_of(second) == {p: ([100, 120], [100, 100]) for p in range(3)}


def places(sink: KafkaOwnerSink, topics: list[str]) -> dict[str, dict[int, tuple[list[int], list[int]]]]:
    """`marks_of`, by topic."""
    uri = sink.source  # type: ignore[attr-defined]
    found = {}
    for topic in topics:
        of_topic = copy(sink)
        of_topic.source = uri.replace(f"/{sink._uri.topic}?", f"/{topic}?")  # type: ignore[attr-defined]
        found[topic] = marks_of(of_topic)
    return found


def test_resolved_goes_to_all_topics_in_use_and_a_ddl_to_its_tables_topic(
    open_sink: Callable[..., KafkaOwnerSink], new_topic: Callable[..., str]
) -> None:
    """Each has the number of partitions it has, or that of the feed's own when it is made."""
    sink, narrow = open_sink(), new_topic(2)
    own, made = sink._uri.topic, f"{narrow}-made"
    sink.send_resolved(10)
    sink.use([narrow, made, own])
    sink.send_ddl(event(20), topic=narrow)
    sink.send_ddl(event(20, seq=1))
    sink.send_resolved(20)
    assert sink.topics == {own: 3, narrow: 2, made: 3}
    assert places(sink, [own, narrow, made]) == {
        own: dict.fromkeys(range(3), ([10, 20], [20])),
        narrow: dict.fromkeys(range(2), ([20], [20])),
        made: dict.fromkeys(range(3), ([20], [])),
    }


def grow(kafka: str, partitions: dict[str, int]) -> None:
    """Somebody gives topics more partitions."""
    admin = AdminClient({"bootstrap.servers": kafka})
    made = admin.create_partitions([NewPartitions(*one) for one in partitions.items()])
    for future in made.values():
        future.result(30)
    eventually(
        "the partitions",
        lambda: all(
            len(admin.list_topics(name).topics[name].partitions) == n for name, n in partitions.items()
        ),
    )


def delete(kafka: str, *topics: str) -> None:
    """Somebody deletes topics."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_topics(list(topics)).values():
        future.result(30)
    eventually("the topics are gone", lambda: not set(topics) & admin.list_topics().topics.keys())


def test_topics_and_their_partition_counts_outlive_an_owner(
    open_sink: Callable[..., KafkaOwnerSink], new_topic: Callable[..., str], kafka: str
) -> None:
    """Otherwise rows of one key would be on two partitions, and readers of an unused topic would wait."""
    first, other = open_sink(), new_topic(2)
    own = first._uri.topic
    first.use([other])
    grow(kafka, {own: 5, other: 4})
    again = open_sink()
    assert again.topics == {own: 3, other: 2}
    again.send_resolved(30)
    assert places(again, [own, other]) == {
        own: dict.fromkeys(range(3), ([30], [])),
        other: dict.fromkeys(range(2), ([30], [])),
    }, "nothing on the new partitions"
    assert open_sink(instance="second").topics == {own: 5}, "another feed's record says nothing"


def test_a_deleted_topic_is_dropped_if_unwanted_and_a_smaller_one_rejected(
    open_sink: Callable[..., KafkaOwnerSink], new_topic: Callable[..., str], kafka: str
) -> None:
    first, gone, wanted, smaller = open_sink(), new_topic(2), new_topic(2), new_topic(2)
    own = first._uri.topic
    first.use([gone, wanted, smaller])
    delete(kafka, gone, wanted, smaller)
    again = open_sink()
    assert again.topics == {own: 3}
    again.use([wanted])
    assert again.topics == {own: 3, wanted: 2}, "made again as it was"
    third = open_sink()
    assert third.topics == {own: 3, wanted: 2}
    new_topic(1, smaller)
    third.use([smaller])
    assert third.topics[smaller] == 1, "the feed has forgotten it"
    delete(kafka, wanted)
    new_topic(1, wanted)
    with pytest.raises(InvalidInput, match="fewer than the 2 that are written"):
        open_sink()


def test_a_missing_topic_is_refused_by_name_where_none_may_be_made(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    sink = open_sink(options="&auto-create-topic=false")
    with pytest.raises(InvalidInput, match="'nowhere' does not exist") as refused:
        sink.use(["nowhere"])
    assert "auto-create-topic" in refused.value.fix
    sink.send_resolved(10)
    assert sink.topics == {sink._uri.topic: 3}


def test_workers_spread_rows_over_the_partitions_that_the_owner_has_fixed(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    own, other = new_topic(1), new_topic(2)
    uri = parse_sink_uri(f"kafka://{kafka}/{own}?protocol=open-protocol")
    config = load_config(None, uri)
    feed = SinkFeed(1, "default", own, "first", uri, config)
    owner = KafkaSink(feed).open_owner(registry.marks(registry.options_of(config)), lambda: None)
    early = KafkaSink(feed)
    assert early.partitions(own) == 1
    with pytest.raises(Retryable, match="not recorded"):
        early.partitions(other)
    owner.use([other])
    grow(kafka, {own: 2, other: 3})
    late = KafkaSink(feed)
    assert [sink.partitions(topic) for sink in (early, late) for topic in (own, other)] == [1, 2, 1, 2]


def test_an_owner_that_was_replaced_can_send_nothing(open_sink: Callable[..., KafkaOwnerSink]) -> None:
    old = open_sink()
    new = open_sink()
    with pytest.raises(Fenced):
        old.send_resolved(50)
    new.send_resolved(60)
    assert marks_of(new) == {p: ([60], []) for p in range(3)}


def test_what_is_recorded_behind_an_open_transaction_is_not_missed(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    """A reader of committed records stops at the first open transaction, such as a killed worker leaves."""
    uri = parse_sink_uri(f"kafka://{kafka}/{new_topic(1)}?protocol=open-protocol")
    config = load_config(None, uri)
    sink = KafkaSink(SinkFeed(1, "default", uri.topic, "first", uri, config, capture="a"))
    marks = registry.marks(registry.options_of(config))
    owner = sink.open_owner(marks, lambda: None)
    killed = Producer({"bootstrap.servers": kafka, "transactional.id": sink.transactional_id(0)})
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(sink.progress_topic, b"{}", b"span", 0)
    killed.flush(30)
    owner.send_resolved(60)
    owner.close()
    with pytest.raises(OpenTransactions):
        sink.open_owner(marks, lambda: None)
    sink.fence({"a": 1}, lambda: None)
    assert sink.open_owner(marks, lambda: None).journal.resolved_ts == 60


def test_an_owner_replaced_before_it_opened_only_opens_and_sends_nothing(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    """It wakes up late and fences its successor, which opens again; its pending message is not sent."""
    new = open_sink()
    seen: list[str] = []

    def refuse() -> None:
        with pytest.raises(Fenced):
            new.send_resolved(50)  # so the proof comes after the initialisation
        seen.append("proved")
        raise Fenced("another incarnation of this changefeed writes now")

    with pytest.raises(Fenced, match="another incarnation"):
        open_sink(prove=refuse)
    assert seen == ["proved"]
    again = open_sink()
    again.send_resolved(60)
    assert marks_of(again) == {p: ([60], []) for p in range(3)}


def test_the_journal_of_another_feed_of_the_same_name_does_not_count(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    open_sink().send_ddl(event(100))
    again = open_sink(instance="second")
    assert again.journal.ddl_ts == 0
    again.send_ddl(event(90))
    assert [ddls for _, ddls in marks_of(again).values()] == [[100, 90]] * 3


def test_canal_json_sends_a_ddl_to_partition_zero_only(open_sink: Callable[..., KafkaOwnerSink]) -> None:
    sink = open_sink("canal-json&enable-tidb-extension=true")
    sink.send_ddl(event(100))
    assert [p for p, (_, ddls) in marks_of(sink).items() if ddls] == [0]


def test_the_progress_of_ended_spans_is_deleted_and_that_of_others_stays(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    sink: Any = open_sink()
    uri = parse_sink_uri(sink.source)
    config = load_config(None, uri)
    writer = SlotWriter(uri, config, transactional_id(1, "default", uri.topic, 0), sink._topic, lambda: None)
    progress = {
        name: SpanProgress("i", (1, 1), 1, ts).to_bytes() for name, ts in (("a", 5), ("b", 6), ("c", 7))
    }
    deliver(writer, [], progress)
    sink.forget(["a", "c"])
    found = read_progress(uri, config, sink._topic)
    assert {name: one.ts for name, one in found.items()} == {"b": 6}
    sink.send_resolved(70)
    assert open_sink().journal.resolved_ts == 70


# --- another number of partitions ------------------------------------------------------------------------


def sent_to(sink: Any) -> dict[int, list[tuple[int, tuple[tuple[str, bytes], ...]]]]:
    """Per partition of the own topic the ts of its Resolved, each with its headers."""
    found = read_committed(sink._uri.bootstrap, sink._uri.topic)
    reported = {p: {m.offset(): tuple(m.headers() or ()) for m in messages} for p, messages in found.items()}
    return {
        partition: [(ts, reported[partition][offset]) for ts, offset in decoded.resolved]
        for partition, decoded in read_topic(sink.source).items()
    }


def test_a_repartition_is_one_step_with_its_resolved_and_survives_restarts(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    """Retired partitions get Resolved and DDL for ever; partition-num says nothing any more."""
    first = open_sink(options="&partition-num=3")
    first.send_resolved(90)
    first.repartition(100, 5)
    assert (first.partitions, first.journal.resolved_ts) == (5, 100)
    second = open_sink(options="&partition-num=3")
    assert (second.partitions, second.journal.resolved_ts) == (5, 100)
    second.send_resolved(110)
    second.repartition(120, 2)
    third = open_sink()
    assert (third.partitions, third.topics) == (2, {third._uri.topic: 2})
    third.send_ddl(event(130))
    third.send_resolved(140)
    grown, shrunk = Layout(1, 100, 3, 5, 5).headers, Layout(2, 120, 5, 2, 5).headers
    since = [(100, grown), (110, grown), (120, shrunk), (140, shrunk)]
    old, new = [(90, ()), *since], since
    assert sent_to(third) == dict.fromkeys(range(3), old) | dict.fromkeys((3, 4), new)
    assert [ddls for _, ddls in marks_of(third).values()] == [[130]] * 5


def test_rows_go_by_the_new_number_for_those_who_look_after_the_change(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    own = new_topic(3)
    uri = parse_sink_uri(f"kafka://{kafka}/{own}?protocol=open-protocol&partition-num=3")
    config = load_config(None, uri)
    sink = KafkaSink(SinkFeed(1, "default", own, "first", uri, config))
    assert isinstance(sink, PartitionedSink)
    owner = sink.open_owner(registry.marks(registry.options_of(config)), lambda: None)
    assert isinstance(owner, PartitionedOwner)
    owner.use([])
    assert KafkaSink(SinkFeed(1, "default", own, "first", uri, config)).partitions(own) == 3
    owner.repartition(100, 7)
    assert KafkaSink(SinkFeed(1, "default", own, "first", uri, config)).partitions(own) == 7


def test_no_number_changes_below_what_is_written(open_sink: Callable[..., KafkaOwnerSink]) -> None:
    sink: Any = open_sink()
    uri = parse_sink_uri(sink.source)
    config = load_config(None, uri)
    writer = SlotWriter(uri, config, transactional_id(1, "default", uri.topic, 0), sink._topic, lambda: None)
    deliver(writer, [], {"a": SpanProgress("first", (1, 1), 1, 105).to_bytes()})
    deliver(writer, [], {"b": SpanProgress("another", (1, 1), 1, 500).to_bytes()})
    with pytest.raises(Retryable, match="cannot change yet") as refused:
        sink.repartition(104, 5)
    assert "rows up to 105 are out" in refused.value.why
    assert sink.partitions == 3
    sink.repartition(105, 5)
    assert sent_to(sink)[4] == [(105, Layout(1, 105, 3, 5, 5).headers)]


def test_a_change_by_an_owner_that_was_replaced_does_not_happen(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    old = open_sink()
    new = open_sink()
    with pytest.raises(Fenced):
        old.repartition(100, 5)
    assert new.partitions == open_sink().partitions == 3


def test_admin_follows_resolved_on_every_partition_if_the_protocol_has_it(
    open_sink: Callable[..., KafkaOwnerSink],
) -> None:
    sink: Any = open_sink("ticdc-mq")
    sink.repartition(100, 4)
    layout = Layout(1, 100, 3, 4, 4).headers
    for messages in read_committed(sink._uri.bootstrap, sink._uri.topic).values():
        resolved, admin = messages
        assert (admin.key(), admin.value()) == (b'{"type":"Admin"}', b'{"partition":4}')
        assert tuple(resolved.headers()) == tuple(admin.headers()) == layout


def test_a_recreated_topic_with_fewer_partitions_than_written_is_rejected(
    open_sink: Callable[..., KafkaOwnerSink], new_topic: Callable[..., str], kafka: str
) -> None:
    sink = open_sink()
    sink.repartition(100, 5)
    sink.repartition(110, 2)
    delete(kafka, sink._uri.topic)
    new_topic(4, sink._uri.topic)
    with pytest.raises(InvalidInput, match="has 4 partitions, fewer than the 5 that are written"):
        open_sink()


def test_a_topic_gets_the_partitions_that_it_lacks_and_never_loses_any(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    own = new_topic(2)
    uri = parse_sink_uri(f"kafka://{kafka}/{own}?protocol=open-protocol")
    sink = KafkaSink(SinkFeed(1, "default", own, "first", uri, load_config(None, uri)))
    for wanted, there in ((4, 4), (3, 4), (4, 4)):
        sink.widen(wanted)
        found = AdminClient({"bootstrap.servers": kafka}).list_topics(own, timeout=10).topics[own]
        assert len(found.partitions) == there
    nowhere = parse_sink_uri(f"kafka://{kafka}/nowhere-at-all?protocol=open-protocol")
    with pytest.raises(InvalidInput, match="does not exist"):
        KafkaSink(SinkFeed(1, "default", "n", "i", nowhere, load_config(None, nowhere))).widen(3)
