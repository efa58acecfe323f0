"""A changefeed of several topics, read back: the target moves from one state of all of them to the next."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.consumer.logs import bank_events, differences, snapshots
from tests.consumer.memory_topic import MemoryTopic, consume
from tests.consumer.test_apply import TOTAL, bank_sums
from tests.consumer.topics import Places, messages_to
from tidegate.codec.registry import CODECS, codec_options
from tidegate.config.settings import DispatchRule
from tidegate.consumer.engine.places import number_of, place_of
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_followed, check_joining, check_same
from tidegate.dispatcher.router import Router
from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.model.ddl import DdlEvent

RULES = [
    DispatchRule(("bank.accounts",), topic="accounts"),
    DispatchRule(("bank.orders", "bank.transfers"), topic="{table}"),
    DispatchRule(("*.audit*", "*.notes*"), topic="log-{schema}-{table}"),
]


@cache
def topics(protocol: str, last_snapshot: int = -1) -> MemoryTopic:
    """The bank log, each table in a topic of its own; a renamed table continues in another one."""
    extension = CODECS[protocol].unmarked is not None
    options = codec_options({"protocol": protocol, "enable-tidb-extension": extension})
    router = Router(RULES, "bank")
    events = bank_events(last_snapshot)
    ddls = [event for event in events if isinstance(event, DdlEvent)]
    found = {router.topic_of_ddl(ddl) for ddl in ddls}
    found |= {router.topic_of(ddl.schema, ddl.table) for ddl in ddls if ddl.table}
    places = Places({name: 1 + len(name) % 3 for name in found}, router)
    messages = messages_to(places, events, options)
    return MemoryTopic(options, places.all(), messages, places.names)


@pytest.mark.parametrize(
    ("protocol", "mode"), [("open-protocol", Mode.TRANSACTION), ("canal-json", Mode.ROW)]
)
def test_all_topics_together_end_as_sql_saw_it(tmp_path: Path, protocol: str, mode: Mode) -> None:
    """Tables that are made later, renamed into another topic, dropped: each named snapshot is whole."""
    topic, line, target = topics(protocol), snapshots()[-1], tmp_path / "target"
    assert {"bank", "accounts", "orders", "log-bank-audit", "log-bank-audit_log"} <= set(topic.names)
    assert consume(topic, target, mode=mode, until=line.ts, size=300, rows=3000).ts == line.ts
    assert differences(target, line) == {}
    assert set(bank_sums(target)) == {TOTAL}


def test_a_target_that_holds_some_topics_continues_with_more(tmp_path: Path) -> None:
    """Their tables come to it whole, with the DDL that made them, though others are further."""
    whole, target = topics("open-protocol"), tmp_path / "target"
    first = whole.only("bank", "accounts", "orders", "log-bank_aux-notes")
    middle = snapshots()[len(snapshots()) // 2]
    held = consume(first, target, until=middle.ts, size=300, rows=3000)
    assert held.ts == middle.ts
    missing = {name for name, why in differences(target, middle).items() if why == ["missing"]}
    assert missing == differences(target, middle).keys() >= {"bank.transfers"}
    line = snapshots()[-1]
    found = consume(whole, target, until=line.ts, size=300, rows=3000)
    assert (found.ts, found.topics) == (line.ts, whole.names)
    assert differences(target, line) == {}


def test_a_position_names_its_topics_and_an_earlier_format_is_read() -> None:
    names = ("a", "b")
    partitions = {
        number_of(names, "a", 0): PartitionPosition(3, 5, 5),
        number_of(names, "b", 2): PartitionPosition(9, 5, 7),
    }
    position = Position(5, "a,b", "open-protocol", "transaction", partitions, 4, ("x",), {"t": 1})
    assert Position.from_json(position.to_json()) == position
    more = position.over(("a", "ab", "b"), [number_of(("a", "ab", "b"), "ab", 0)])
    assert [place_of(more.topics, number) for number in sorted(more.partitions)] == [
        ("a", 0),
        ("ab", 0),
        ("b", 2),
    ]
    assert more.partitions[number_of(more.topics, "b", 2)] == PartitionPosition(9, 5, 7)
    assert more.partitions[number_of(more.topics, "ab", 0)] == PartitionPosition(0, 0, 0)
    earlier = (
        '{"format":1,"ts":5,"topic":"b","protocol":"open-protocol","mode":"row",'
        '"partitions":{"2":{"offset":9,"applied":5,"watermark":7}}}'
    )
    held = Position.from_json(earlier)
    assert held.partitions == {2: PartitionPosition(9, 5, 7)}
    assert Position.from_json(held.over(("b",)).to_json()) == held
    assert '"format":1' in held.to_json(), "so that it can be read there, too"


def source(topics: str) -> Topic:
    return Topic(f"kafka://127.0.0.1:1/{topics}?protocol=open-protocol")


def test_a_target_is_refused_without_all_topics_that_it_holds(tmp_path: Path) -> None:
    held = Position(
        5, "a,c", "open-protocol", "transaction", {n: PartitionPosition(3, 5, 5) for n in (0, 1 << 16)}
    )
    with_b = source("c,b,a")
    numbers = [with_b.number(name, 0) for name in ("a", "b", "c")]
    check_same(held, with_b, numbers, tmp_path, None)
    with pytest.raises(InvalidInput, match="belongs to another topic"):
        check_same(held, source("a,b"), [0, 1 << 16], tmp_path, None)
    with pytest.raises(Fatal, match="has 2 partitions, the target was filled from 1") as grown:
        check_same(held, with_b, [*numbers, with_b.number("c", 1)], tmp_path, None)
    assert "topic c," in grown.value.where
    check_joining(with_b, {with_b.number("b", 0): 0}, tmp_path)
    with pytest.raises(Fatal, match="lost its beginning") as lost:
        check_joining(with_b, {with_b.number("b", 0): 7}, tmp_path)
    assert "topic b, partition 0" in lost.value.where


def test_a_table_that_moves_to_an_unread_topic_stops_the_consumer(
    tmp_path: Path,
) -> None:
    """The error names the table and the topic."""
    whole = topics("open-protocol")
    old = whole.only("log-bank-audit")
    found = [old.fetch(number, 0, 10_000, tmp_path, number) for number in old.partitions]
    both = source("log-bank-audit,log-bank-audit_log")
    check_followed(both, found, None, both.names)
    with pytest.raises(Retryable, match="log-bank-audit_log is not there yet"):
        check_followed(both, found, None, old.names)
    with pytest.raises(InvalidInput, match=r"rows of table bank\.audit_log continue") as stopped:
        check_followed(source("log-bank-audit"), found, None, old.names)
    assert "log-bank-audit_log" in stopped.value.fix
    first = min(ddl.ts for part in found for ddl in part.ddls)
    check_followed(source("log-bank-audit"), found, first, old.names)


def test_one_source_may_name_several_topics_in_any_order() -> None:
    topic = source("orders,bank")
    assert (topic.names, topic.uri.topic) == (("bank", "orders"), "orders")
    assert topic.place(topic.number("orders", 2)) == ("orders", 2)
    assert topic.number("bank", 2) == 2
    for wrong, words in (("a,,b", "not a Kafka topic name"), ("a,b,a", "named twice"), ("a,.", "'.' is not")):
        with pytest.raises(InvalidInput) as refused:
            source(wrong)
        assert words in refused.value.what
