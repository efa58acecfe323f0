"""Table mode at a real MariaDB, killed: each table is at its topic's moment, unique values included."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

from tests.consumer.bank import SCHEMA, TABLES, Bank
from tests.consumer.bank_targets import AtMariaDb, Truth
from tests.consumer.memory_topic import MemoryTopic, consume_into
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.topics import Places, messages_to
from tidegate.codec.registry import codec_options
from tidegate.config.settings import DispatchRule
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.engine.places import number_of, topic_index
from tidegate.consumer.engine.position import Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.dispatcher.router import Router

SEED, GROUPS, LANES = 5, 30, 4
TOPICS = ("a", "b")
HOME = {"accounts": "a", "seats": "a", "savings": "b", "reserves": "b"}
"""Topic `a` is read slowly, and `b` fast."""


class Apart(AtMariaDb):
    """A reader who knows that topics are at different moments."""

    def moment(self, position: str | None, name: str) -> int:
        if position is None:
            return 0
        topic = TOPICS.index(HOME[name])
        parts = Position.from_json(position).partitions.items()
        (at,) = {part.applied for number, part in parts if topic_index(number) == topic}
        return at


def topics() -> tuple[MemoryTopic, int]:
    """The bank in two topics, its rows dealt to partitions by their keys; the last ts."""
    options = codec_options({"protocol": "open-protocol"})
    rules = [DispatchRule((f"{SCHEMA}.{name}",), topic=topic) for name, topic in HOME.items()]
    places = Places({"a": 3, "b": 2}, Router(rules, "a"))
    bank = Bank(SEED)
    events = [event for group in islice(bank.groups(), GROUPS) for event in group]
    messages = messages_to(places, events, options)
    found = MemoryTopic(options, places.all(), messages, places.names)
    return found, bank.ts


def test_whatever_dies_each_table_is_whole_at_its_topics_ts(mariadb: MySqlServer, tmp_path: Path) -> None:
    topic, last = topics()
    target, truth = Apart(mariadb, LANES, tmp_path / "own"), Truth(SEED)
    looks = apart = 0
    for life in count():
        address = MySqlAddress(
            MortalServer.at(mariadb, 40 + 17 * life), f"bank-{LANES}", tmp_path / "own", LANES
        )
        try:
            with address.opened() as opened:
                writer = Applier(opened, tmp_path / "own")
                end = consume_into(
                    topic, writer, tmp_path / f"staging-{life}", mode=Mode.TABLE, until=last, size=5, rows=40
                )
            break
        except Killed:
            seen = target.look()
            if seen is not None and seen.tables:
                assert truth.faults(seen) == []
                looks += 1
                apart += len({seen.moments[name] for name in ("accounts", "savings")}) > 1
    assert looks > 5
    assert apart, "topics were never at different moments"
    assert end.ts == last
    final = target.look()
    target.close()
    assert final is not None
    assert set(final.moments.values()) == {last}
    assert truth.faults(final, columns=True) == []
    assert {number_of(TOPICS, "a", 0), number_of(TOPICS, "b", 0)} <= end.partitions.keys()
    assert set(HOME) == set(TABLES)
