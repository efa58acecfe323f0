"""Table mode keeps a transaction whole in each table, while topics are at different moments."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.consumer.assembler_script import segment
from tidegate.codec.base import DdlMessage
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Flow, Rows
from tidegate.consumer.engine.places import number_of, topic_index
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_own_topics, check_same
from tidegate.errors import Fatal, InvalidInput

TOPICS, PARTITIONS, TRANSACTIONS = ("a", "b"), 3, 40
NUMBERS = [number_of(TOPICS, name, one) for name in TOPICS for one in range(PARTITIONS)]
FRESH = Position(0, "a,b", "open-protocol", "table", dict.fromkeys(NUMBERS, PartitionPosition(0, 0, 0)))


def rows_of(chance: Random) -> dict[int, set[int]]:
    """By partition, the ts of its rows: each transaction has rows of several partitions of both topics."""
    found: dict[int, set[int]] = {number: set() for number in NUMBERS}
    for ts in range(1, TRANSACTIONS + 1):
        for number in chance.sample(NUMBERS, chance.randint(2, len(NUMBERS))):
            found[number].add(ts)
    return found


def split_and_apart(seed: int, mode: Mode) -> tuple[int, int]:
    """Read partitions at different speeds, with restarts. Returns after how many steps a transaction was
    applied in part in a table, and after how many the two tables were at different moments."""
    chance = Random(seed)
    rows, read = rows_of(chance), dict.fromkeys(NUMBERS, 0)
    groups = tuple(tuple(n for n in NUMBERS if topic_index(n) == topic) for topic in (0, 1))
    flow, split, apart = Flow(FRESH, mode, groups, None, apart=True), 0, 0
    while any(flow.assembler.applied(number) < TRANSACTIONS for number in NUMBERS):
        number = chance.choice(NUMBERS)
        start, end = read[number], min(TRANSACTIONS, read[number] + chance.randint(1, 9))
        read[number] = end
        # Offsets are the ts of the rows and marks, so that a restart reads from there.
        some = sorted(ts for ts in rows[number] if start < ts <= end)
        staged = (segment(number, some[0], some[-1], some[0]),) if some else ()
        flow.take([Fetched(number, end + 1, segments=staged, resolved=((end, end),))])
        while isinstance(step := flow.next_step(chance.choice((1, 1000))), Rows):
            flow.assembler.take(step.bounds)
            moments = []
            for group in groups:
                at = {flow.assembler.applied(one) for one in group}
                split += len(at) > 1
                moments.append(max(at))
            apart += moments[0] != moments[1]
        if chance.random() < 0.1:
            position = flow.position(flow.snapshot(0) or 0)
            flow = Flow(Position.from_json(position.to_json()), mode, groups, None, apart=True)
            read = {n: max(0, at - 1) for n, at in flow.next_offsets().items()}
    return split, apart


@pytest.mark.parametrize("seed", range(20))
def test_tables_are_at_moments_of_their_own_and_never_in_part(seed: int) -> None:
    split, apart = split_and_apart(seed, Mode.TABLE)
    assert split == 0
    assert apart, "topics wait for each other"


def test_row_mode_splits_and_transaction_mode_lets_no_topic_ahead() -> None:
    assert all(split_and_apart(seed, Mode.ROW)[0] for seed in range(5))
    assert all(split_and_apart(seed, Mode.TRANSACTION) == (0, 0) for seed in range(5))


def test_rows_that_wait_for_another_topic_do_not_count_as_due() -> None:
    """Otherwise the job would try to apply them without a pause, as long as the other topic lags."""
    groups = tuple(tuple(n for n in NUMBERS if topic_index(n) == topic) for topic in (0, 1))
    flow = Flow(FRESH, Mode.TABLE, groups, None, apart=True)
    first, others = [n for n in NUMBERS if topic_index(n) == 0], [n for n in NUMBERS if topic_index(n)]
    ddl = DdlMessage(30, "drop table s.t", 4, "s", "t", None, 20)
    flow.take([Fetched(n, 9, segments=(segment(n, 15, 60, 1),), resolved=((60, 8),)) for n in first])
    flow.take([Fetched(n, 9, resolved=((10, 8),)) for n in others])
    while isinstance(step := flow.next_step(1000), Rows):
        flow.assembler.take(step.bounds)
    assert flow.waiting() == 0, "a DDL of the other topic may come"
    flow.take([Fetched(others[0], 19, resolved=((20, 18),))])
    assert flow.waiting() == 10 * len(first)
    flow.take([Fetched(others[0], 29, ddls=(ddl,), resolved=((60, 28),))])
    while isinstance(step := flow.next_step(1000), Rows):
        flow.assembler.take(step.bounds)
    assert flow.waiting() == 0, "a DDL waits for the other topic"
    flow.take([Fetched(n, 39, resolved=((60, 38),)) for n in others[1:]])
    assert flow.waiting() == 10 * len(first), "they come right after the DDL"


def test_a_table_whose_topic_changes_stops_table_mode() -> None:
    topic = Topic("kafka://127.0.0.1:1/a,b?protocol=open-protocol")
    known: dict[tuple[str, str], str] = {}
    one, other = (Fetched(n, 9, segments=(segment(n, 1, 2, 7),)) for n in (NUMBERS[0], NUMBERS[-1]))
    check_own_topics(known, topic, [one, one])
    with pytest.raises(Fatal, match="rows in two topics") as stopped:
        check_own_topics(known, topic, [other])
    assert "topic a, and topic b, partition 2, offset 7" in stopped.value.where
    assert "--mode transaction" in stopped.value.fix


def test_until_is_refused_if_a_topic_is_past_it() -> None:
    topic = Topic("kafka://127.0.0.1:1/a,b?protocol=open-protocol")
    parts = {n: PartitionPosition(9, 50 if topic_index(n) else 30, 50) for n in NUMBERS}
    held = replace(FRESH, ts=30, partitions=parts)
    check_same(held, topic, NUMBERS, "here", 50)
    with pytest.raises(InvalidInput, match="already past --until") as refused:
        check_same(held, topic, NUMBERS, "here", 40)
    assert "it holds rows up to 50" in refused.value.why
