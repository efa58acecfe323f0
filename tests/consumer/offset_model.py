"""A producer without watermarks, a broker and a target as small as can be, and `OffsetFlow` between them.

The producer sends a row when it likes, but a DDL only when all rows of its table up to its ts are sent, and
later rows of that table afterwards; and it sends everything since a checkpoint again. The broker gives a
consumer some of what there is, while more is appended. The consumer is killed now and then and restarts from
its newest snapshot. In the end the target must hold what the newest change of each key says.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

import numpy as np

from tidegate.codec.base import DdlMessage
from tidegate.consumer.engine.assembler import StagedRun
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Rows
from tidegate.consumer.engine.offset_flow import Group, OffsetFlow
from tidegate.consumer.engine.position import PartitionPosition, Position

TABLES, KEYS = ("a", "b"), 4


@dataclass(frozen=True)
class Change:
    """A row, or the TRUNCATE of a table (`key` -1)."""

    table: str
    key: int
    ts: int
    value: int | None


Target = dict[tuple[str, int], int]


def history(rng: random.Random, size: int) -> list[Change]:
    """Changes in the order of their ts."""
    found = []
    for ts in range(10, 10 + size):
        table, key = rng.choice(TABLES), rng.randrange(KEYS)
        if rng.random() < 0.12:
            found.append(Change(table, -1, ts, None))
        else:
            found.append(Change(table, key, ts, ts if rng.random() < 0.8 else None))
    return found


def truth(changes: list[Change]) -> Target:
    """Return the source's tables after all changes."""
    held: Target = {}
    for change in changes:
        apply(held, change)
    return held


def apply(held: Target, change: Change) -> None:
    """One change to one state."""
    gone = [at for at in held if at[0] == change.table] if change.key == -1 else [(change.table, change.key)]
    for at in gone:
        held.pop(at, None)
    if change.value is not None:
        held[change.table, change.key] = change.value


def sending(rng: random.Random, changes: list[Change]) -> list[Change]:
    """An order in which a producer may send them, with repeats: each table's in its order."""
    queues = {table: [c for c in changes if c.table == table] for table in TABLES}
    sent: list[Change] = []
    while any(queues.values()):
        if sent and rng.random() < 0.06:  # it died, and begins again at an earlier checkpoint
            back = min([rng.choice(sent).ts, *(queue[0].ts for queue in queues.values() if queue)])
            queues = {table: [c for c in changes if c.table == table and c.ts >= back] for table in TABLES}
        table = rng.choice([table for table, queue in queues.items() if queue])
        sent.append(queues[table].pop(0))
    return sent


@dataclass
class Broker:
    """Partitions, each a list; an offset is a position in it."""

    partitions: int
    ddls_on_first: bool
    logs: dict[int, list[Change]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.logs = {number: [] for number in range(self.partitions)}

    def send(self, change: Change) -> None:
        """Append it where it belongs."""
        if change.key >= 0:
            self.logs[(change.key + ord(change.table)) % self.partitions].append(change)
            return
        for number in [0] if self.ddls_on_first else self.logs:
            self.logs[number].append(change)

    def ends(self) -> dict[int, int]:
        """The offset behind the last message of each."""
        return {number: len(log) for number, log in self.logs.items()}

    def read(self, number: int, start: int, end: int) -> Fetched:
        """A range as it is fetched, a segment for each table."""
        log, segments, ddls = self.logs[number], [], []
        for table in sorted({change.table for change in log[start:end]}):
            at = [o for o in range(start, end) if log[o].table == table and log[o].key >= 0]
            if at:
                newest = max(log[o].ts for o in at)
                size = (f"{number}/{table}", 0, 1, len(at), at[0] + 1, at[-1] + 1, at[0], newest)
                segments.append(StagedRun(number, "s", table, (), *size))
        for offset in range(start, end):
            change = log[offset]
            if change.key < 0:
                query = f"TRUNCATE TABLE {change.table}"
                ddls.append(DdlMessage(change.ts, query, None, "s", change.table, None, offset))
        return Fetched(number, end, end - start, tuple(segments), (), tuple(ddls))

    def sides(self, segment: StagedRun, ts: int) -> tuple[np.ndarray, np.ndarray]:
        """As `changes.sides_of`."""
        log = self.logs[segment.partition]
        at = [o for o in range(segment.min_ts - 1, segment.max_ts) if _is_of(log[o], segment)]
        return np.array(at, np.int64), np.array([log[o].ts > ts for o in at], bool)


def _is_of(change: Change, segment: StagedRun) -> bool:
    return change.table == segment.table and change.key >= 0


@dataclass
class Consumer:
    """Applies what the flow allows; what a snapshot does not name is lost when it dies."""

    broker: Broker
    held: Target = field(default_factory=dict)
    truncated: dict[str, int] = field(default_factory=dict)
    position: Position = field(init=False)
    seen: set[Change] = field(default_factory=set)
    """The changes that were applied."""
    saved: tuple[Target, dict[str, int], set[Change]] = ({}, {}, set())

    def __post_init__(self) -> None:
        begin = {number: PartitionPosition(0, 0, 0) for number in self.broker.logs}
        self.position = Position(0, "t", "canal-json", "row", begin, by_offset=True)
        self.start()

    def start(self) -> None:
        """From the newest snapshot."""
        self.held, self.truncated, self.seen = copy.deepcopy(self.saved)
        group = Group(tuple(self.broker.logs), 0 if self.broker.ddls_on_first else None)
        self.flow = OffsetFlow(Position.from_json(self.position.to_json()), [group], self.broker.sides)

    def apply_all(self, rows: int, *, name: bool) -> None:
        """All that may be applied now; `name`: then a snapshot is named."""
        while (step := self.flow.next_step(rows)) is not None:
            if not isinstance(step, Rows):
                (message,) = step.messages
                apply(self.held, Change(message.table, -1, message.ts, None))
                self.truncated[message.table] = message.ts
                continue
            for pieces in self.flow.assembler.take(step.bounds).values():
                for piece in pieces:
                    log = self.broker.logs[piece.segment.partition]
                    for offset in range(piece.segment.min_ts - 1, piece.segment.max_ts):
                        change = log[offset]
                        if not _is_of(change, piece.segment) or not piece.after < offset + 1 <= piece.upto:
                            continue
                        if change.ts >= self.truncated.get(change.table, 0):
                            apply(self.held, change)
                            self.seen.add(change)
                        else:  # `without_repeats` drops it
                            assert change in self.seen, f"{change} came behind its table's DDL"
            self.flow.assembler.release()
        ts = self.flow.snapshot(self.position.ts)
        if name and ts is not None:
            self.position, self.saved = (
                self.flow.position(ts),
                copy.deepcopy((self.held, self.truncated, self.seen)),
            )
            self.flow.named()


def run(seed: int, *, ddls_on_first: bool, partitions: int = 3, size: int = 60) -> tuple[Target, Target, str]:
    """Return the target in the end, the expected target, and why the consumer is stuck, if it is."""
    rng = random.Random(seed)
    changes = history(rng, size)
    to_send = sending(rng, changes)
    broker = Broker(partitions, ddls_on_first)
    consumer, idle = Consumer(broker), 0
    while idle < 12:
        behind = broker.ends() if ddls_on_first else {}
        fetched = []
        for number, at in consumer.flow.wanted().items():
            for _ in range(rng.randrange(4)):
                if to_send:
                    broker.send(to_send.pop(0))
            end = min(broker.ends()[number], at + rng.randrange(1, 8))
            if rng.random() < 0.8 and at < end:
                fetched.append(broker.read(number, at, end))
        idle = 0 if fetched or to_send else idle + 1
        consumer.flow.take(fetched, behind)
        consumer.apply_all(rng.choice([1, 3, 100]), name=rng.random() < 0.7 or idle > 6)
        if rng.random() < 0.05 and idle == 0:
            consumer.start()
    left = consumer.flow.assembler.rows, consumer.flow.ddls_waiting
    stuck = f"{left[0]} rows and {left[1]} DDLs wait" if any(left) else ""
    return consumer.held, truth(changes), stuck
