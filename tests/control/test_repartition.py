"""Another number of partitions, by the real owner over a model of sink and writers, killed at every step.

This must hold whatever dies when: each row is at the sink once, rows up to T by the old number and rows above
it by the new one, on every range; and what was asked for comes about. The owner's scenarios are scripts:
`testdata/owner/partitions.txt`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from tests.control.test_owner import ALL, HIGH, LOW

from tidegate.control.barrier import Barrier
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeProgress
from tidegate.control.metadata import FeedInfo
from tidegate.control.owner import Owner, Persist, SendRepartition, SendResolved
from tidegate.model.layout import Layout, first_change
from tidegate.model.span import Span

OLD, NEW = 3, 5
RANGES = (LOW, HIGH)


def test_a_request_is_stored_with_the_changefeed_and_defaults_to_none() -> None:
    """Changefeeds of earlier releases have stored no request."""
    info = FeedInfo("kafka://h/t", {}, 1, 0, 1, "normal", "i", repartition=5, partitions=3)
    assert FeedInfo.from_bytes(info.to_bytes()) == info
    earlier = info.to_bytes().replace(b',"repartition":5,"partitions":3', b"")
    found = FeedInfo.from_bytes(earlier)
    assert (found.repartition, found.partitions) == (0, 0)


def test_a_layout_is_what_its_headers_say() -> None:
    first = first_change(100, 3, 5)
    second = first.changed(200, 2)
    assert second == Layout(2, 200, 5, 2, 5)
    assert Layout.of_headers(*(value for _, value in second.headers)) == second
    assert Layout.from_json(second.to_json()) == second
    for body in (b"", b"[]", b"{}", b'{"ts":1,"old":3,"new":5,"all":4}', b'{"ts":1,"old":0,"new":1,"all":1}'):
        with pytest.raises(ValueError, match=r".+"):
            Layout.of_headers(b"1", body)


# --- the model -------------------------------------------------------------------------------------------


class Killed(Exception):
    """The control process is no more, and nothing of it but what is durable."""


@dataclass
class World:
    """The parts that survive a kill: upstream, the sink and the metadata store."""

    now: int = 100
    written: dict[tuple[Span, int], int] = field(default_factory=dict)
    """By row (range, commit ts) the number of partitions it was placed by."""
    done: dict[Span, int] = field(default_factory=lambda: dict.fromkeys(RANGES, 100))
    """By range the progress that is written with its rows."""
    partitions: int = OLD
    switched_at: int = 0
    resolved: int = 100
    wanted: int = NEW
    """The number of partitions in the changefeed's stored request; 0: none."""
    checkpoint: int = 100
    incarnation: int = 0

    def deliver(self, incarnation: int, by: int, span: Span, upto: int) -> None:
        """A writer's transaction: rows of a range up to a ts, with the progress. Fenced if it is older."""
        if incarnation != self.incarnation:
            return
        for ts in range(self.done[span] + 1, upto + 1):
            assert (span, ts) not in self.written
            assert ts > self.resolved, "Resolved spoke of it"
            self.written[span, ts] = by
        self.done[span] = max(self.done[span], upto)


class Incarnation:
    """One start of owner, sink and writers, until it is over or killed."""

    def __init__(self, world: World, chance: random.Random, kills: bool) -> None:
        self.world, self.chance, self.kills = world, chance, kills
        self.owner = Owner(world.checkpoint, Barrier(world.now), ALL)
        self.begin()

    def begin(self) -> None:
        """Grant, sink, writers."""
        world, owner = self.world, self.owner
        world.incarnation += 1
        self.number, self.by = world.incarnation, world.partitions
        ranges = [GrantedRange(span, (1, 1)) for span in RANGES]
        owner.grant("a", self.number, ranges)
        self.maybe_die()
        owner.sink_open(world.resolved)
        if world.wanted == world.partitions:
            world.wanted = 0
        elif world.wanted:
            owner.ask_repartition(world.wanted)
        owner.running("a", self.number, ranges)
        self.bound = owner.barrier.bound

    def maybe_die(self) -> None:
        if self.kills and self.chance.random() < 0.1:
            raise Killed

    def step(self) -> bool:
        """One thing that may happen; False: the incarnation is over, since the number has changed."""
        world, owner = self.world, self.owner
        what = self.chance.choice(("time", "learn", "deliver", "deliver", "tick", "tick"))
        if what == "time":
            world.now += self.chance.randrange(1, 10)
        elif what == "learn":
            owner.learn([], world.now)
            self.bound = owner.barrier.bound
        elif what == "deliver":
            span = self.chance.choice(RANGES)
            upto = self.chance.randrange(world.done[span], max(self.bound, world.done[span]) + 1)
            world.deliver(self.number, self.by, span, upto)
            self.maybe_die()
            owner.report("a", self.number, [RangeProgress(span, (1, 1), world.done[span], world.now)])
        else:
            return self.perform()
        self.maybe_die()
        return True

    def perform(self) -> bool:
        world, owner = self.world, self.owner
        for effect in owner.tick(world.now / 10):
            self.maybe_die()
            match effect:
                case SendResolved(ts):
                    world.resolved = ts
                    self.maybe_die()
                    owner.resolved_done(ts)
                case Persist(ts):
                    world.checkpoint = ts
                    owner.persisted(ts)
                case SendRepartition(ts, partitions):
                    assert ts >= world.resolved
                    assert all(out <= ts for _, out in world.written), "nothing above it is out"
                    world.partitions, world.switched_at, world.resolved = partitions, ts, ts
                    self.maybe_die()
                    owner.repartition_done(ts)
                    return False
        self.bound = owner.barrier.bound
        return True


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_rows_up_to_the_change_use_the_old_number_and_later_rows_the_new(seed: int, kills: bool) -> None:
    chance, world, deaths = random.Random(seed), World(), 0
    for _ in range(200):
        zombie = (world.incarnation, OLD)
        try:
            incarnation = Incarnation(world, chance, kills and deaths < 25)
            # Writes of an earlier incarnation are fenced.
            world.deliver(*zombie, chance.choice(RANGES), world.now + 5)
            for _ in range(60):
                if not incarnation.step():
                    incarnation.owner.sink_lost()
                    incarnation.begin()
        except Killed:
            deaths += 1
        if not world.wanted and min(world.done.values()) > world.switched_at + 20:
            break
    assert world.partitions == NEW
    assert world.wanted == 0
    assert {by for (_, ts), by in world.written.items() if ts <= world.switched_at} <= {OLD}
    assert {by for (_, ts), by in world.written.items() if ts > world.switched_at} == {NEW}
    for span in RANGES:
        delivered = sorted(ts for one, ts in world.written if one == span)
        assert delivered == list(range(101, world.done[span] + 1)), "each once, and none is missing"
