"""Processors: scenarios as scripts; then with an owner, over a post that loses, doubles and delays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.processor_script import HEADER, ProcessorScript
from tests.control.test_owner import ALL
from tests.control.words import ddl_event as ddl
from tests.control.words import task
from tests.scripts import run_script, scripts

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import NOTHING, KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import (
    FROM_OWNER,
    FROM_PROCESSOR,
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    Message,
    ProcessorStatus,
    RangeState,
    Sync,
    Wish,
    parse,
    to_json,
)
from tidegate.control.open_spans import Received
from tidegate.control.owner import Finish, Owner, Persist, SendDdl, SendResolved
from tidegate.control.processor import Processor
from tidegate.model.reports import Failed, LoadState
from tidegate.model.span import Span


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "processor"))
def test_the_processor_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, ProcessorScript().run, rewrite=rewrite)


def test_messages_are_the_documents_and_survive_the_wire() -> None:
    status = ProcessorStatus("b", 5, rows=7, load=LoadState(3, 1))
    dispatch = Dispatch(HEADER, Wish.RUN, 1, (GrantedRange(ALL, (1, 1)),), 9, 100, load=False)
    messages: list[Message] = [
        Announce(HEADER, "1.0"),
        dispatch,
        Sync(HEADER, "1.0", 4, 1, (), (), KnownDdl(1, 2, 3)),
        DispatchResponse(HEADER, 4, 1, (), Failed("what", "where", "why", "fix", True)),
        Checkpoint(HEADER, 1, (), status, ("load/x",), KnownDdl(1, 2, 3)),
    ]
    for message in messages:
        assert parse(to_json(message), (*FROM_OWNER, *FROM_PROCESSOR)) == message
    found = to_json(dispatch)
    assert found["type"] == "dispatch"
    assert found["header"]["owner-rev"] == 1
    assert found["ranges"] == ["--1-1"]
    assert {"owner-version", "header", "type"} == to_json(messages[0]).keys()
    with pytest.raises(ValueError, match="does not belong here"):
        parse(to_json(messages[0]), FROM_PROCESSOR)
    with pytest.raises(ValueError, match="dispatch: 'runs' is not a valid Wish"):
        parse(found | {"wish": "runs"}, FROM_OWNER)


# --- owner and processors together ------------------------------------------------------------------------

NAMES = "abcdefgh"
CUT = b"d"


@dataclass
class World:
    """The rows that are durable, the tables that must be covered at each ts, and the DDLs that are out."""

    durable: dict[str, int]
    born: dict[str, int]
    ended: dict[str, int] = field(default_factory=dict)
    ddls_done: set[int] = field(default_factory=set)
    ddls: list[DdlBatch] = field(default_factory=list)

    def covered(self, ts: int) -> bool:
        """Whether every row and DDL up to `ts` is downstream."""
        for name, born in self.born.items():
            upto = min(ts, self.ended.get(name, ts))
            if upto > born and self.durable[name] < upto:
                return False
        return all(b.finished_ts in self.ddls_done for b in self.ddls if b.finished_ts <= ts)


class Cluster:
    """One owner and two captures, each with a part of the keys, and the post between them."""

    def __init__(self, start: int) -> None:
        names = NAMES[::3]
        self.world = World(dict.fromkeys(names, start), dict.fromkeys(names, start))
        self.unused = [name for name in NAMES if name not in names]
        self.known = start
        """The ts up to which upstream's history of DDL is known."""
        self.initial = [task(name, start) for name in names]
        self.owner = Owner(start, Barrier(start), ALL, spans=self.initial)
        self.ranges = {"x": Span(b"", CUT), "y": Span(CUT, b"")}
        self.machines = {name: Processor(replace(HEADER, capture=name)) for name in self.ranges}
        self.post: list[Message] = []
        self.sequence = self.grants = self.sent = self.persisted = self.compared = 0
        self.incarnations = dict.fromkeys(self.ranges, 0)
        self.pending: SendDdl | SendResolved | None = None
        self.persisting: Persist | None = None
        self.learned = dict.fromkeys(self.ranges, 0)
        for name in self.ranges:
            self.begin(name)
        for name, machine in self.machines.items():
            while machine.dispatch is None:
                self.carry(0)
            machine.open(start, self.initial, [], start)
            self.start(name)
        self.owner.sink_open(0)

    def begin(self, capture: str) -> None:
        """The next incarnation of a capture."""
        self.grants += 1
        self.incarnations[capture] += 1
        granted = GrantedRange(self.ranges[capture], (1, self.grants))
        self.owner.grant(capture, self.incarnations[capture], [granted])
        self.owner.sink_open(self.sent)
        self.pending = None
        self.dispatch(capture, granted)

    def dispatch(self, capture: str, granted: GrantedRange | None = None) -> None:
        self.sequence += 1
        before = self.machines[capture].dispatch
        ranges = (granted,) if granted is not None else before.ranges if before is not None else ()
        header = replace(HEADER, capture=capture, sequence=self.sequence)
        bound = self.owner.barrier.bound
        self.post.append(Dispatch(header, Wish.RUN, self.incarnations[capture], ranges, bound, 0, load=False))

    def start(self, capture: str) -> None:
        """Its pipeline fences, and finds what is durable; also of tables that a DDL to come will add."""
        machine = self.machines[capture]
        mine = {n: ts for n, ts in self.world.durable.items() if machine.holds(task(n))}
        if machine.dispatch is not None:
            machine.started(machine.dispatch.incarnation, mine)

    def learn(self, capture: str) -> None:
        """It reads the history of DDL."""
        machine, after = self.machines[capture], self.learned[capture]
        machine.learn([b for b in self.world.ddls if b.finished_ts > after], self.known)
        self.learned[capture] = self.known

    def say(self, capture: str, now: float) -> None:
        self.post += self.machines[capture].tick(now)

    def carry(self, which: int, *, keep: bool = False) -> None:
        """One message, any of those under way, comes; it may come again."""
        if self.post:
            at = which % len(self.post)
            message = self.post[at] if keep else self.post.pop(at)
            capture = message.header.capture
            match message:
                case Announce() | Dispatch():
                    self.machines[capture].receive(message)
                case Sync(ranges=ranges, checkpoints=known):
                    self.compare(capture, message.ddl)
                    self.owner.report(capture, message.incarnation, known)
                    self.run(capture, message.incarnation, ranges)
                case DispatchResponse(ranges=ranges):
                    self.run(capture, message.incarnation, ranges)
                case Checkpoint(ranges=progress):
                    self.compare(capture, message.ddl)
                    self.owner.report(capture, message.incarnation, progress)

    def compare(self, capture: str, said: KnownDdl) -> None:
        self.compared += said != NOTHING
        self.owner.receive_ddl(capture, said)
        assert self.owner.agreement.disagreement is None, "both have it from the same history"

    def run(self, capture: str, incarnation: int, ranges: Iterable[object]) -> None:
        found = [GrantedRange(r.id, r.token) for r in ranges if r.state is RangeState.RUNNING]  # type: ignore[attr-defined]
        self.owner.running(capture, incarnation, found)

    def tick(self, now: float) -> None:
        world = self.world
        for effect in self.owner.tick(now):
            match effect:
                case SendResolved(ts):
                    assert self.pending is None
                    assert world.covered(ts), f"Resolved {ts} before {world}"
                    assert ts > self.sent
                    self.pending = effect
                case SendDdl(batch):
                    assert self.pending is None
                    upto = batch.finished_ts
                    alive = [n for n, ts in world.born.items() if ts < upto <= world.ended.get(n, upto)]
                    assert all(world.durable[n] >= upto for n in alive)
                    self.pending = effect
                case Persist(ts):
                    assert world.covered(ts), f"checkpoint {ts} before {world}"
                    self.persisting = effect
                case Finish():
                    raise AssertionError("no target was set")

    def acknowledge(self) -> None:
        if isinstance(self.pending, SendDdl):
            self.world.ddls_done.add(self.pending.batch.finished_ts)
            self.owner.ddl_done(self.pending.batch.finished_ts)
        elif isinstance(self.pending, SendResolved):
            self.sent = max(self.sent, self.pending.ts)
            self.owner.resolved_done(self.pending.ts)
        self.pending = None
        if self.persisting is not None:
            self.owner.persisted(self.persisting.ts)
            self.persisting = None

    def new_ddl(self, which: int, amount: int) -> None:
        world, ts = self.world, self.known + amount
        added = (task(self.unused.pop(), ts),) if which % 2 and self.unused else ()
        alive = [n for n in world.born if n not in world.ended]
        removed = frozenset(alive[:1] if which % 3 == 0 and len(alive) > 1 else ())
        batch = DdlBatch(ts, (ddl(ts),), added, removed)
        world.ddls.append(batch)
        self.known = ts + which
        self.owner.learn([batch], self.known)
        for one in added:
            world.born[one.id] = world.durable[one.id] = ts
        for name in removed:
            world.ended[name] = ts


step = st.sampled_from(
    ["deliver", "deliver", "idle", "pass", "pass", "ddl", "quiet", "learn", "say", "say", "carry", "carry",
     "carry", "again", "lose", "tick", "tick", "ack", "dispatch", "dispatch", "restart", "sink"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(step, st.integers(0, 7), st.integers(1, 60)), min_size=20, max_size=250))
def test_nothing_is_announced_before_it_is_covered(history: list[tuple[str, int, int]]) -> None:
    cluster = Cluster(1000)
    world, owner = cluster.world, cluster.owner
    now, checkpoint = 0.0, 1000
    for action, which, amount in history:
        now += amount / 10
        capture = "xy"[which % 2]
        machine = cluster.machines[capture]
        spans = sorted(machine.spans.tasks)
        match action:
            case "deliver" if spans:
                # The pipeline never goes past the bound it was given.
                name = spans[amount % len(spans)]
                upto = max(world.durable[name], min(world.durable[name] + amount, machine.bound))
                world.durable[name] = upto
                assert machine.dispatch is not None
                token = machine.dispatch.ranges[0].token
                machine.report(token, machine.dispatch.incarnation, {name: upto})
                machine.report((0, 0), machine.dispatch.incarnation, {name: upto + amount})
            case "idle":
                frontier = {name: world.durable[name] + amount for name in spans}
                for name, after, upto in machine.spans.beyond(frontier, machine.bound):
                    if after >= world.durable[name]:
                        world.durable[name] = upto
                        machine.idle(Received.by_name([(name, after, upto)]))
            case "ddl":
                cluster.new_ddl(which, amount)
            case "quiet":
                cluster.known += amount
                owner.learn([], cluster.known)
            case "learn":
                cluster.learn(capture)
            case "pass":
                machine.passed()
            case "say":
                cluster.say(capture, now)
            case "carry":
                cluster.carry(which)
            case "again":
                cluster.carry(which, keep=True)
            case "lose" if cluster.post:
                cluster.post.pop(which % len(cluster.post))
            case "tick":
                cluster.tick(now)
            case "ack":
                cluster.acknowledge()
            case "dispatch":
                cluster.dispatch(capture)
            case "restart":
                owner.sink_lost()
                cluster.begin(capture)
                cluster.carry(len(cluster.post) - 1)
                machine.confirm()
                cluster.start(capture)
            case "sink":
                cluster.pending = cluster.persisting = None
                owner.sink_lost()
                owner.sink_open(cluster.sent)
        assert owner.checkpoint >= checkpoint
        checkpoint = owner.checkpoint
        undone = [b.finished_ts for b in world.ddls if b.finished_ts not in world.ddls_done]
        if undone:
            assert all(one.bound <= min(undone) for one in cluster.machines.values())
            assert checkpoint < min(undone)


def test_with_a_post_that_delivers_it_gets_on() -> None:
    cluster = Cluster(1000)
    for number in range(200):
        if number % 20 == 10:
            cluster.new_ddl(number, 7)
        cluster.known += 3
        cluster.owner.learn([], cluster.known)
        for capture, machine in cluster.machines.items():
            cluster.learn(capture)
            for name, after, upto in machine.spans.beyond(dict.fromkeys(NAMES, cluster.known), machine.bound):
                cluster.world.durable[name] = upto
                machine.idle(Received.by_name([(name, after, upto)]))
            machine.passed()
            cluster.say(capture, number)
            cluster.dispatch(capture)
        while cluster.post:
            cluster.carry(0)
        cluster.tick(number)
        cluster.acknowledge()
    assert len(cluster.world.ddls_done) == len(cluster.world.ddls) == 10
    assert cluster.owner.checkpoint > 1000 + 190 * 3
