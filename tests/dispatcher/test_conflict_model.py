"""A model of dispatch by conflict: rows swap unique values, readers apply each partition at its own speed.

The writer spreads a table's rows over partitions by their ids and puts an alignment mark on all of them where
`Tracker` asks for one. Two readers are modelled. The first waits at each mark until every partition is there.
The second is the contract's rule: rows below a mark's ts first, then those of its ts from all partitions,
deletes before inserts, then what is above. Both apply change by change to a table that enforces its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from tidegate.dispatcher.conflict import Tracker
from tidegate.model.cells import DELETE, INSERT, UPDATE

PARTITIONS = 3
IDS, VALUES = 12, 8
SEEDS = range(60)


@dataclass(frozen=True)
class Change:
    """One row change on the topic: a row `id` whose unique value is `u`."""

    ts: int
    op: int
    id: int
    u: int | None


@dataclass(frozen=True)
class Mark:
    ts: int


Topic = list[list[Change | Mark]]


class ConstraintError(AssertionError):
    """The target would refuse the change, or a row went back."""


@dataclass
class Target:
    """A table with a primary key and a unique key that may be NULL."""

    rows: dict[int, int | None] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        if change.ts < self.newest.get(change.id, 0):
            raise ConstraintError(f"row {change.id} goes back")
        self.newest[change.id] = change.ts
        if change.op == DELETE:
            if self.rows.pop(change.id, "none") != change.u:
                raise ConstraintError(f"row {change.id} is not there")
            return
        if (change.id in self.rows) is (change.op == INSERT):
            raise ConstraintError(f"row {change.id}: {change.op}")
        if change.u is not None and any(u == change.u for i, u in self.rows.items() if i != change.id):
            raise ConstraintError(f"unique value {change.u} is taken")
        self.rows[change.id] = change.u


def transactions(chance: Random, count: int) -> Iterator[list[Change]]:
    """Committed transactions, each as `split` sends it: deletes, updates, inserts."""
    rows: dict[int, int | None] = {}
    for step in range(count):
        before = dict(rows)
        for _ in range(chance.randint(1, 4)):
            _do_something(chance, rows)
        yield [
            *(Change(step + 1, DELETE, i, u) for i, u in before.items() if rows.get(i, "none") != u),
            *(Change(step + 1, UPDATE, i, u) for i, u in rows.items() if before.get(i, "none") == u),
            *(Change(step + 1, INSERT, i, u) for i, u in rows.items() if before.get(i, "none") != u),
        ]


def _do_something(chance: Random, rows: dict[int, int | None]) -> None:
    free = sorted(set(range(VALUES)) - set(rows.values()))
    row = chance.randrange(IDS)
    match chance.choice(("swap", "swap", "take", "drop", "null")):
        case "swap" if len(rows) > 1:
            a, b = chance.sample(sorted(rows), 2)
            rows[a], rows[b] = rows[b], rows[a]
        case "take" if free:
            rows[row] = chance.choice(free)
        case "drop":
            rows.pop(row, None)
        case _:
            rows[row] = None


def partition_of(row: int) -> int:
    return row * 7 % PARTITIONS


def hashes_of(u: int | None, collide: int) -> list[int]:
    """The hash of a unique value; `collide`: so many values share one."""
    return [-1 if u is None else u // collide]


def topic_of(
    log: list[list[Change]], chance: Random, *, restarts: bool = False, keys_max: int = 100, collide: int = 1
) -> Topic:
    """Return the writer's messages on each partition. `restarts`: at times it forgets everything."""
    topic: Topic = [[] for _ in range(PARTITIONS)]
    tracker = Tracker(keys_max)
    for transaction in log:
        for change in transaction:
            if restarts and chance.random() < 0.05:
                tracker = Tracker(keys_max)
            here = partition_of(change.id)
            if tracker.row(change.op, here, hashes_of(change.u, collide)):
                for partition in topic:
                    partition.append(Mark(change.ts))
            topic[here].append(change)
    return topic


def read_to_marks(topic: Topic, chance: Random) -> Target:
    """A reader that waits at each mark until all partitions are there."""
    target, at = Target(), [0] * PARTITIONS
    ends = [len(partition) for partition in topic]
    while at != ends:
        ready = [p for p in range(PARTITIONS) if at[p] < ends[p] and not isinstance(topic[p][at[p]], Mark)]
        if not ready:
            assert len({str(topic[p][at[p]]) for p in range(PARTITIONS)}) == 1, "all are at one mark"
            at = [place + 1 for place in at]
            continue
        here = chance.choice(ready)
        for _ in range(chance.randint(1, 20)):
            if at[here] == ends[here] or isinstance(change := topic[here][at[here]], Mark):
                break
            target.apply(change)
            at[here] += 1
    return target


def read_by_ts(topic: Topic, chance: Random) -> Target:
    """A reader that meets the other partitions at the ts of each mark."""
    target = Target()
    rows = [[one for one in partition if isinstance(one, Change)] for partition in topic]
    for ts in [*sorted({one.ts for one in topic[0] if isinstance(one, Mark)}), 1 << 62]:
        below = [[row for row in partition if row.ts < ts] for partition in rows]
        while any(below):
            here = chance.choice([p for p in range(PARTITIONS) if below[p]])
            for _ in range(min(chance.randint(1, 20), len(below[here]))):
                target.apply(below[here].pop(0))
        together = [row for partition in rows for row in partition if row.ts == ts]
        for row in sorted(together, key=lambda row: (DELETE, UPDATE, INSERT).index(row.op)):
            target.apply(row)
        rows = [[row for row in partition if row.ts > ts] for partition in rows]
    return target


def final(log: list[list[Change]]) -> dict[int, int | None]:
    target = Target()
    for transaction in log:
        for change in transaction:
            target.apply(change)
    return target.rows


SETTINGS = {
    "plain": {},
    "restarts": {"restarts": True},
    "full": {"keys_max": 2},
    "hashes that collide": {"collide": 3},
    "all of it": {"restarts": True, "keys_max": 3, "collide": 2},
}


@pytest.mark.parametrize("reader", [read_to_marks, read_by_ts])
@pytest.mark.parametrize("name", SETTINGS)
def test_readers_that_align_keep_row_order_and_never_meet_a_taken_value(reader, name) -> None:
    for seed in SEEDS:
        chance = Random(seed)
        log = list(transactions(chance, 80))
        topic = topic_of(log, chance, **SETTINGS[name])
        assert reader(topic, chance).rows == final(log), seed


def test_without_marks_values_collide() -> None:
    """The model shows what the marks are for: with alignment off nearly every workload breaks the target."""
    broken = 0
    for seed in SEEDS:
        chance = Random(seed)
        log = list(transactions(chance, 80))
        bare: Topic = [
            [one for one in partition if isinstance(one, Change)] for partition in topic_of(log, chance)
        ]
        try:
            read_to_marks(bare, chance)
        except ConstraintError:
            broken += 1
    assert broken > len(SEEDS) * 0.9


def test_rows_that_never_take_a_value_from_another_need_one_mark_alone() -> None:
    """The first row needs it, because what was free before is not known."""
    log = [
        [Change(3 * i + 1, INSERT, i, i)]
        + [Change(3 * i + 2, DELETE, i, i), Change(3 * i + 3, INSERT, i, i)] * (i % 2)
        for i in range(200)
    ]
    topic = topic_of(log, Random(1), keys_max=1000)
    assert [sum(isinstance(one, Mark) for one in partition) for partition in topic] == [1] * PARTITIONS
