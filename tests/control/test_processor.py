"""One feed on one capture; then owner and processors together, over a post that loses, doubles and delays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.test_owner import ALL
from tests.control.words import ddl_event as ddl
from tests.control.words import task

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import NOTHING, DdlLog, KnownDdl
from tidegate.control.messages import (
    FROM_OWNER,
    FROM_PROCESSOR,
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    FromProcessor,
    Header,
    Message,
    RangeState,
    Sync,
    Told,
    Wish,
    parse,
    to_json,
)
from tidegate.control.metadata import GrantedRange
from tidegate.control.owner import Finish, Owner, Persist, SendDdl, SendResolved
from tidegate.control.processor import Processor
from tidegate.model.reports import Failed, LoadState
from tidegate.model.span import Span

HEADER = Header(7, "default/one", "f00d", 1, "a", 3, 0)
EVERYTHING = GrantedRange(ALL, (1, 1))


def dispatch(
    sequence: int,
    bound: int,
    *,
    incarnation: int = 1,
    wish: Wish = Wish.RUN,
    ranges: tuple[GrantedRange, ...] = (EVERYTHING,),
    owner_rev: int = 1,
) -> Dispatch:
    header = replace(HEADER, sequence=sequence, owner_rev=owner_rev)
    return Dispatch(header, wish, incarnation, ranges, bound, 100, load=False)


def opened(bound: int = 200, known: int = 200, batches: Iterable[DdlBatch] = ()) -> Processor:
    """With the spans a and b, of which the pipeline has begun to deliver."""
    machine = Processor(HEADER)
    assert machine.hear(dispatch(1, bound))
    machine.open(100, [task("a"), task("b")], batches, known)
    machine.started(1, {})
    machine.tick(0.0)
    return machine


def checkpoints(said: list[FromProcessor]) -> list[int]:
    return [one.checkpoint_ts for m in said if isinstance(m, Checkpoint) for one in m.ranges]


def test_messages_are_the_documents_and_survive_the_wire() -> None:
    told = Told("b", 5, rows=7, load=LoadState(3, 1))
    messages: list[Message] = [
        Announce(HEADER, "1.0"),
        dispatch(4, 9),
        Sync(HEADER, "1.0", 4, 1, (), (), KnownDdl(1, 2, 3)),
        DispatchResponse(HEADER, 4, 1, (), Failed("what", "where", "why", "fix", True)),
        Checkpoint(HEADER, 1, (), told, ("load/x",), KnownDdl(1, 2, 3)),
    ]
    for message in messages:
        assert parse(to_json(message), (*FROM_OWNER, *FROM_PROCESSOR)) == message
    found = to_json(messages[1])
    assert found["type"] == "dispatch"
    assert found["header"]["owner-rev"] == 1
    assert found["ranges"] == [{"id": ["", ""], "token": [1, 1]}]
    assert {"owner-version", "header", "type"} == to_json(messages[0]).keys()
    with pytest.raises(ValueError, match="does not belong here"):
        parse(to_json(messages[0]), FROM_PROCESSOR)
    with pytest.raises(ValueError, match="dispatch: 'runs' is not a valid Wish"):
        parse(found | {"wish": "runs"}, FROM_OWNER)


def test_what_is_reported_is_the_least_and_never_above_the_bound() -> None:
    machine = opened()
    machine.report((1, 1), 1, {"a": 150})
    assert machine.tick(1.0) == []
    machine.report((1, 1), 1, {"b": 140})
    assert checkpoints(machine.tick(2.0)) == [140]
    assert machine.tick(3.0) == [], "nothing has changed"
    machine.report((1, 1), 1, {"a": 900, "b": 900})
    assert checkpoints(machine.tick(4.0)) == [200], "above the bound other tables may be wanted"


def test_a_table_that_a_ddl_adds_counts_from_the_ddl_on() -> None:
    """It holds the checkpoint there, however far the other tables are."""
    batch = DdlBatch(200, (ddl(200),), (task("c", 200),), frozenset({"a"}))
    machine = opened(bound=200, known=300, batches=[batch])
    machine.report((1, 1), 1, {"a": 250, "b": 250})
    assert (checkpoints(machine.tick(1.0)), machine.passed()) == ([200], [])
    machine.hear(dispatch(2, 300))
    assert machine.passed() == [batch]
    assert machine.spans.keys() == {"b", "c"}
    assert checkpoints(machine.tick(2.0)) == [], "c has nothing above 200 yet"
    machine.report((1, 1), 1, {"c": 230})
    assert checkpoints(machine.tick(3.0)) == [230]


def test_a_stripe_of_which_other_tables_are_wanted_stays_as_far_as_it_is() -> None:
    wider = replace(task("a", 200), wanted=0b11)
    narrower = replace(task("a", 210), wanted=0b10)
    batches = [DdlBatch(200, (ddl(200),), (wider,)), DdlBatch(210, (ddl(210),), (narrower,))]
    machine = opened(bound=200, known=300, batches=batches)
    machine.report((1, 1), 1, {"a": 200, "b": 200})
    assert (machine.reach, machine.wanted("a")[1]) == (200, 0)
    machine.hear(dispatch(2, 210))
    assert machine.reach == 200, "who is told of the spans as they are must not go past the DDL"
    assert machine.passed() == batches[:1]
    assert (machine.reach, machine.wanted("a")[1]) == (210, 0b11)
    assert machine.spans["a"] == replace(wider, start_ts=200)
    machine.report((1, 1), 1, {"a": 210, "b": 210})
    machine.hear(dispatch(3, 300))
    assert machine.passed() == batches[1:]
    assert machine.spans["a"] == replace(narrower, start_ts=210)
    assert checkpoints(machine.tick(1.0)) == [210]


def test_beyond_a_ddl_nothing_is_reported_before_its_spans_are_among_ours() -> None:
    """Also by a processor without any table, whose checkpoint is the bound."""
    batch = DdlBatch(150, (ddl(150),), (task("c", 150),), frozenset("ab"))
    machine = opened(bound=150, known=300, batches=[batch])
    machine.report((1, 1), 1, {"a": 400, "b": 400})
    machine.tick(1.0)
    machine.hear(dispatch(2, 300))
    assert checkpoints(machine.tick(2.0)) == []
    machine.passed()
    machine.report((1, 1), 1, {"c": 180})
    assert checkpoints(machine.tick(3.0)) == [180]


def test_what_was_opened_for_another_dispatch_is_not_told_under_this_one() -> None:
    """Another filter, another instance: what was durable for the one says nothing about the other."""
    machine = opened()
    machine.report((1, 1), 1, {"a": 190, "b": 190})
    assert checkpoints(machine.tick(1.0)) == [190]
    machine.hear(dispatch(2, 200, incarnation=2))
    machine.told = Told("the catalogue")
    (found, *_) = machine.tick(7.0)
    assert isinstance(found, Sync)
    assert (found.checkpoints, [one.state for one in found.ranges]) == ([], [RangeState.PREPARING])
    machine.open(100, [task("a"), task("b")], [], 200)
    assert checkpoints(machine.tick(8.0)) == [100]


def test_an_answer_that_was_lost_is_given_again() -> None:
    machine = opened()
    machine.failed(Failed("what", "", "", "", True))
    machine.tick(1.0)
    assert machine.tick(2.0) == []
    machine.hear(dispatch(2, 250))
    (found,) = [one for one in machine.tick(3.0) if isinstance(one, DispatchResponse)]
    assert (found.answers, found.error) == (2, Failed("what", "", "", "", True))
    machine.hear(dispatch(3, 250, incarnation=2))
    assert not any(isinstance(one, DispatchResponse) for one in machine.tick(4.0))


def test_a_table_added_late_starts_where_the_sink_already_is() -> None:
    machine = opened(bound=200, known=300, batches=[DdlBatch(200, (ddl(200),), (task("c", 200),))])
    machine.report((1, 1), 1, {"a": 200, "b": 200, "c": 260})
    machine.hear(dispatch(2, 300))
    machine.passed()
    assert machine.spans["c"].start_ts == 260


def test_records_of_earlier_rules_are_removed_once_the_checkpoint_passes() -> None:
    machine = opened(bound=500, known=500)
    assert machine.started(1, {}, {"a/old": 150, "b/old": 250, "rules/old": 250})

    def over(sequence: int, stored: int, incarnation: int = 1) -> set[str]:
        header = replace(HEADER, sequence=sequence, owner_rev=1)
        message = Dispatch(header, Wish.RUN, incarnation, (EVERYTHING,), 500, stored, load=False)
        assert machine.hear(message)
        return {key for m in machine.tick(float(sequence)) if isinstance(m, Checkpoint) for key in m.over}

    assert over(2, 149) == set()
    assert over(3, 150) == {"a/old"}
    assert over(4, 249) == set()
    # Of an incarnation that has not begun nothing is known: it may be under those very rules.
    assert over(5, 900, incarnation=2) == set()
    assert machine.started(2, {}, {"a/old": 150})
    assert over(6, 900, incarnation=2) == {"a/old"}
    assert over(7, 901, incarnation=2) == set()


def test_the_bound_is_never_above_the_ddl_that_is_known_here() -> None:
    machine = opened(bound=500, known=200)
    assert machine.bound == 200
    machine.learn([DdlBatch(300, ())], 400)
    assert (machine.bound, [batch.finished_ts for batch in machine.passed()]) == (400, [300])


def test_an_idle_span_advances_to_the_bound_without_the_pipeline() -> None:
    machine = opened(bound=250, known=400)
    assert machine.idle_ranges({"a": 300, "b": 180}) == [("a", 100, 250), ("b", 100, 180)]
    machine.idle("a", 100, 250)
    machine.idle("b", 120, 180)
    assert (machine.durable("a"), machine.durable("b")) == (250, 100), "b was said of less than is known"


def test_what_lacks_its_beginning_is_not_received_however_far_it_is() -> None:
    machine = opened(bound=500, known=500)

    def resolved(*lacking: str) -> int:
        machine.resolve({"a": 300, "b": 310}, lacking)
        (found,) = (m for m in machine.tick(9.0) if isinstance(m, Checkpoint))
        return found.ranges[0].resolved_ts

    machine.report((1, 1), 1, {"a": 120, "b": 130})
    assert resolved("a", "b") == 120
    assert machine.report((1, 1), 1, {"a": 140})
    assert resolved("b") == 130
    assert machine.report((1, 1), 1, {"b": 150})
    assert resolved() == 300


def test_a_report_of_an_old_incarnation_or_another_token_changes_nothing() -> None:
    machine = opened()
    machine.hear(dispatch(2, 200, incarnation=2))
    assert not machine.report((1, 1), 1, {"a": 150})
    assert not machine.report((1, 0), 2, {"a": 150})
    assert not machine.started(1, {"a": 150})
    assert machine.durable("a") == 100
    assert machine.report((1, 1), 2, {"a": 150})
    assert machine.durable("a") == 150


def test_only_the_latest_word_of_the_latest_owner_counts() -> None:
    machine = opened(known=900)
    assert not machine.hear(dispatch(1, 500)), "once more"
    assert machine.hear(dispatch(3, 300))
    assert not machine.hear(dispatch(2, 400)), "late"
    assert machine.hear(Announce(replace(HEADER, owner_rev=2), ""))
    assert not machine.hear(dispatch(9, 400)), "of the owner before"
    assert not machine.hear(Announce(HEADER, ""))
    assert not machine.hear(replace(dispatch(9, 400), header=replace(HEADER, owner_rev=2, capture="b")))
    later = dispatch(1, 600, owner_rev=2)
    assert not machine.hear(replace(later, header=replace(later.header, capture_epoch=2))), "before a restart"
    assert machine.bound == 300
    assert machine.hear(later)
    assert machine.bound == 600


def test_a_processor_holds_and_reports_what_was_granted_to_it() -> None:
    machine = Processor(HEADER)
    low, high = (GrantedRange(span, (1, 1)) for span in (Span(b"", b"b"), Span(b"c", b"")))
    machine.hear(dispatch(1, 200, ranges=(low, high)))
    machine.open(100, [task("a"), task("b"), task("c")], [], 200)
    assert machine.spans.keys() == {"a", "c"}
    machine.report((1, 1), 1, {"a": 150, "c": 170})
    (found,) = [one for one in machine.tick(0.0) if isinstance(one, Checkpoint)]
    assert [(one.id, one.checkpoint_ts) for one in found.ranges] == [(low.id, 150), (high.id, 170)]


def test_everything_is_said_again_now_and_then() -> None:
    machine = opened()
    machine.report((1, 1), 1, {"a": 150, "b": 150})
    machine.tick(1.0)
    (found,) = machine.tick(6.0)
    assert isinstance(found, Sync)
    assert [one.state for one in found.ranges] == [RangeState.RUNNING]
    assert [one.checkpoint_ts for one in found.checkpoints] == [150]


def test_an_end_is_answered_to_the_dispatch_that_asked_for_it() -> None:
    machine = opened()
    machine.hear(dispatch(2, 200, wish=Wish.PREPARE))
    machine.given_up()
    machine.hear(dispatch(3, 200, wish=Wish.REST, ranges=()))
    (found,) = machine.tick(1.0)
    assert isinstance(found, DispatchResponse)
    assert (found.answers, [one.state for one in found.ranges]) == (2, [RangeState.PREPARING])
    machine.close()
    machine.given_up()
    (found,) = machine.tick(1.0)
    assert isinstance(found, DispatchResponse)
    assert (found.answers, found.ranges) == (3, [])


def test_each_checkpoint_carries_known_ddl_from_the_stored_checkpoint_on() -> None:
    known = DdlBatch(150, (ddl(150),)), DdlBatch(160, (ddl(160),))
    machine = opened(bound=155, batches=known)
    machine.hear(dispatch(2, 200))
    machine.report((1, 1), 1, {"a": 140, "b": 140})
    (first,) = machine.tick(1.0)
    assert isinstance(first, Checkpoint)
    assert (first.ddl.after, first.ddl.upto) == (100, 200)
    machine.hear(replace(dispatch(3, 200), checkpoint=155))
    (sync,) = (m for m in machine.tick(9.0) if isinstance(m, Sync))
    assert (sync.ddl.after, sync.ddl.upto) == (155, 200)
    other = DdlLog(155)
    other.learn(known[1:], 200)
    assert sync.ddl == other.said != first.ddl
    machine.close()
    (sync,) = (m for m in machine.tick(99.0) if isinstance(m, Sync))
    assert sync.ddl == NOTHING


# --- owner and processors together ------------------------------------------------------------------------

NAMES = "abcdefgh"
CUT = b"d"


@dataclass
class World:
    """What really is durable, which tables must be covered when, and which DDLs are out."""

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
        """What upstream's history of DDL is."""
        self.owner = Owner(start, Barrier(start), ALL)
        self.ranges = {"x": Span(b"", CUT), "y": Span(CUT, b"")}
        self.machines = {name: Processor(replace(HEADER, capture=name)) for name in self.ranges}
        self.initial = [task(name, start) for name in names]
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
                    self.machines[capture].hear(message)
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
        self.owner.hear_ddl(capture, said)
        assert self.owner.disagreement is None, "both have it from the same history"

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


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(step, st.integers(0, 7), st.integers(1, 60)), min_size=20, max_size=250))
def test_nothing_is_announced_before_it_is_covered(history: list[tuple[str, int, int]]) -> None:
    cluster = Cluster(1000)
    world, owner = cluster.world, cluster.owner
    now, checkpoint = 0.0, 1000
    for action, which, amount in history:
        now += amount / 10
        capture = "xy"[which % 2]
        machine = cluster.machines[capture]
        spans = sorted(machine.spans)
        match action:
            case "deliver" if spans:
                # The pipeline never goes past the bound it was told.
                name = spans[amount % len(spans)]
                upto = max(world.durable[name], min(world.durable[name] + amount, machine.bound))
                world.durable[name] = upto
                assert machine.dispatch is not None
                token = machine.dispatch.ranges[0].token
                machine.report(token, machine.dispatch.incarnation, {name: upto})
                machine.report((0, 0), machine.dispatch.incarnation, {name: upto + amount})
            case "idle":
                frontier = {name: world.durable[name] + amount for name in spans}
                for name, after, upto in machine.idle_ranges(frontier):
                    if after >= world.durable[name]:
                        world.durable[name] = upto
                        machine.idle(name, after, upto)
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
            for name, after, upto in machine.idle_ranges(dict.fromkeys(NAMES, cluster.known)):
                cluster.world.durable[name] = upto
                machine.idle(name, after, upto)
            machine.passed()
            cluster.say(capture, number)
            cluster.dispatch(capture)
        while cluster.post:
            cluster.carry(0)
        cluster.tick(number)
        cluster.acknowledge()
    assert len(cluster.world.ddls_done) == len(cluster.world.ddls) == 10
    assert cluster.owner.checkpoint > 1000 + 190 * 3


def test_what_came_for_other_ranges_is_not_told_of_those_that_may_come() -> None:
    low, high = GrantedRange(Span(b"", b"m"), (0, 0)), GrantedRange(Span(b"m", b""), (0, 0))
    machine = Processor(HEADER)
    assert machine.hear(dispatch(1, 200, incarnation=0, wish=Wish.PREPARE, ranges=(low,)))
    machine.open(100, [task("a")], [], 200)
    machine.resolve({"a": 190})
    assert checkpoints(machine.tick(0.0))
    assert machine.hear(dispatch(2, 200, incarnation=0, wish=Wish.PREPARE, ranges=(high,)))
    assert checkpoints(machine.tick(0.1)) == [], "it is open for the others still"


def test_an_owner_learns_what_of_its_words_has_come() -> None:
    machine = Processor(HEADER)

    def heard(now: float) -> list[int]:
        return [one.heard for one in machine.tick(now) if isinstance(one, Sync)]

    machine.hear(dispatch(7, 200))
    assert heard(0.0) == [7]
    assert not machine.hear(replace(dispatch(9, 200), header=replace(HEADER, sequence=9, capture_epoch=1)))
    assert heard(10.0) == [9], "it has come, although it was for the process before"
    machine.hear(Announce(replace(HEADER, owner_rev=2, sequence=3), "1.0"))
    assert heard(10.1) == [3], "another owner counts for itself"
