"""A playbook of one DDL, then random histories against a model that knows what must never happen."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.control.barrier import Barrier, DdlBatch, SpanTask
from tidegate.control.owner import Finish, Owner, Persist, SendDdl, SendResolved
from tidegate.model.ddl import DdlEvent
from tidegate.model.span import Span


def task(name: str, start_ts: int = 100) -> SpanTask:
    number = int.from_bytes(name.encode(), "big")
    return SpanTask(name, Span(name.encode(), name.encode() + b"\xff"), number, start_ts)


def ddl(ts: int) -> DdlEvent:
    return DdlEvent(1, 0, ts - 1, ts, 5, "alter table t", "s", "t", "s", "t", 1, None, None, (), ())


def test_a_ddl_waits_for_all_spans_is_sent_and_only_then_passed() -> None:
    owner = Owner(100, [task("a"), task("b")], Barrier(100))
    owner.granted((1, 1), 1)
    owner.sink_open(0)
    assert owner.tick(0.0) == [SendResolved(100)]
    owner.resolved_done(100)
    batch = DdlBatch(200, (ddl(200),), (task("c", 200),), frozenset({"a"}))
    owner.barrier.learn([batch], 300)
    assert owner.barrier.bound == 200

    owner.report((1, 1), 1, {"a": 200})
    assert owner.tick(1.0) == []
    owner.report((1, 1), 1, {"b": 200})
    assert owner.tick(2.0) == [SendDdl(batch), Persist(199)]
    owner.persisted(199)
    assert owner.tick(3.0) == []

    added, removed = owner.ddl_done(200)
    assert ([t.id for t in added], removed) == (["c"], frozenset({"a"}))
    assert owner.barrier.bound == 300
    assert owner.tick(3.0) == [SendResolved(200), Persist(200)]


def test_a_report_of_an_old_incarnation_changes_nothing() -> None:
    owner = Owner(100, [task("a")], Barrier(500))
    owner.granted((1, 1), 1)
    owner.granted((1, 1), 2)
    assert not owner.report((1, 1), 1, {"a": 400})
    assert owner.durable("a") == 100
    assert owner.report((1, 1), 2, {"a": 300})
    assert owner.durable("a") == 300


def test_an_idle_span_advances_to_the_bound_without_the_pipeline() -> None:
    owner = Owner(100, [task("a"), task("b")], Barrier(250))
    assert owner.idle_ranges({"a": 300, "b": 180}) == [("a", 100, 250), ("b", 100, 180)]
    owner.idle("a", 100, 250)
    assert owner.durable("a") == 250


def test_what_the_journal_holds_is_not_said_again() -> None:
    owner = Owner(100, [task("a")], Barrier(500))
    owner.granted((1, 1), 1)
    owner.sink_open(150)
    owner.report((1, 1), 1, {"a": 140})
    assert SendResolved not in [type(e) for e in owner.tick(0.0)]
    owner.report((1, 1), 1, {"a": 160})
    assert SendResolved(160) in owner.tick(1.0)


def test_a_span_added_late_starts_where_the_sink_already_is() -> None:
    owner = Owner(100, [task("a")], Barrier(100))
    owner.granted((1, 1), 1)
    owner.sink_open(0)
    owner.report((1, 1), 1, {"a": 200, "c": 260})
    owner.barrier.learn([DdlBatch(200, (ddl(200),), (task("c", 200),))], 300)
    owner.tick(0.0)
    added, _ = owner.ddl_done(200)
    assert added[0].start_ts == 260


def test_the_target_is_announced_stored_and_then_the_feed_is_finished() -> None:
    owner = Owner(100, [task("a")], Barrier(100, target_ts=150))
    owner.granted((1, 1), 1)
    owner.sink_open(0)
    owner.barrier.learn([], 400)
    assert owner.barrier.bound == 150
    owner.report((1, 1), 1, {"a": 150})
    assert owner.tick(0.0) == [SendResolved(150), Persist(150)]
    owner.resolved_done(150)
    assert owner.tick(0.1) == []
    owner.persisted(150)
    assert owner.tick(0.2) == [Finish()]


@dataclass
class World:
    """What really is durable, which spans must be covered when, and which DDLs are out."""

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


step = st.sampled_from(
    ["report", "stale", "idle", "ddl", "ddl", "frontier", "tick", "tick", "ack", "restart", "lose"]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(step, st.integers(0, 7), st.integers(1, 60)), min_size=10, max_size=150))
def test_nothing_is_announced_before_it_is_covered(history: list[tuple[str, int, int]]) -> None:
    names = [chr(ord("a") + i) for i in range(8)]
    start = 1000
    world = World(dict.fromkeys(names[:3], start), dict.fromkeys(names[:3], start))
    owner = Owner(start, [task(n, start) for n in names[:3]], Barrier(start))
    alive, unused = set(names[:3]), names[3:]
    incarnation, now, sent, checkpoint = 1, 0.0, 0, start
    owner.granted((1, 1), incarnation)
    owner.sink_open(0)
    pending: SendDdl | SendResolved | None = None
    persisting: Persist | None = None

    for action, which, amount in history:
        now += amount / 10
        known = sorted(alive)
        name = known[which % len(known)] if known else ""
        if action == "report" and name:
            # The pipeline never goes past the bound it was told.
            upto = min(world.durable[name] + amount, max(owner.barrier.bound, world.durable[name]))
            world.durable[name] = upto
            owner.report((1, 1), incarnation, {name: upto})
        elif action == "stale" and name:
            owner.report((1, 1), incarnation - 1, {name: world.durable[name] + amount})
            owner.report((1, 0), incarnation, {name: world.durable[name] + amount})
        elif action == "idle":
            frontier = {n: world.durable[n] + amount for n in known}
            for span, after, upto in owner.idle_ranges(frontier):
                if after >= world.durable[span]:
                    world.durable[span] = upto
                    owner.idle(span, after, upto)
        elif action == "ddl":
            ts = owner.barrier.resolved + amount
            added = (task(unused.pop(), ts),) if which % 2 and unused else ()
            doomed = [n for n in known if all(n not in b.removed for b in world.ddls)]
            removed = frozenset(doomed[:1] if which % 3 == 0 and len(doomed) > 1 else ())
            batch = DdlBatch(ts, (ddl(ts),), added, removed)
            world.ddls.append(batch)
            owner.barrier.learn([batch], ts + which)
            for t in added:
                world.born[t.id] = world.durable[t.id] = ts
            for n in removed:
                world.ended[n] = ts
        elif action == "frontier":
            owner.barrier.learn([], owner.barrier.resolved + amount)
        elif action == "tick":
            for effect in owner.tick(now):
                match effect:
                    case SendResolved(ts):
                        assert pending is None
                        assert world.covered(ts), f"Resolved {ts} before {world}"
                        assert ts > sent
                        pending = effect
                    case SendDdl(batch):
                        assert pending is None
                        assert all(world.durable[n] >= batch.finished_ts for n in alive)
                        pending = effect
                    case Persist(ts):
                        assert world.covered(ts)
                        persisting = effect
                    case Finish():
                        raise AssertionError("no target was set")
        elif action == "ack":
            if isinstance(pending, SendDdl):
                ts = pending.batch.finished_ts
                world.ddls_done.add(ts)
                owner.ddl_done(ts)
                alive = (alive | {t.id for t in pending.batch.added}) - pending.batch.removed
            elif isinstance(pending, SendResolved):
                sent = max(sent, pending.ts)
                owner.resolved_done(pending.ts)
            pending = None
            if persisting is not None:
                owner.persisted(persisting.ts)
                persisting = None
        elif action == "restart":
            incarnation += 1
            pending = persisting = None
            owner.sink_lost()
            owner.granted((1, 1), incarnation)
            owner.sink_open(sent)
            owner.report((1, 1), incarnation, {n: world.durable[n] for n in alive})
        elif action == "lose":
            pending = persisting = None
            owner.sink_lost()
            owner.sink_open(sent)
        assert owner.checkpoint >= checkpoint
        checkpoint = owner.checkpoint
        undone = [b.finished_ts for b in world.ddls if b.finished_ts not in world.ddls_done]
        if undone:
            assert owner.barrier.bound <= min(undone)
            assert checkpoint < min(undone)
        assert owner.barrier.bound <= owner.barrier.resolved
        assert owner.spans.keys() == alive
