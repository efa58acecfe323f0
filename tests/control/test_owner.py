"""A playbook of one DDL; who is granted what; that a Resolved, DDL and the end come when they are due."""

from __future__ import annotations

import pytest

from tidegate.control.barrier import Barrier, DdlBatch, SpanTask
from tidegate.control.ddl_log import NOTHING, DdlLog, KnownDdl
from tidegate.control.messages import RangeProgress
from tidegate.control.metadata import GrantedRange
from tidegate.control.owner import Finish, Owner, Persist, SendDdl, SendResolved
from tidegate.model.ddl import DdlEvent
from tidegate.model.span import Span

ALL = Span(b"", b"")
LOW, HIGH = Span(b"", b"m"), Span(b"m", b"")


def task(name: str, start_ts: int = 100) -> SpanTask:
    number = int.from_bytes(name.encode(), "big")
    return SpanTask(name, Span(name.encode(), name.encode() + b"\xff"), number, start_ts)


def ddl(ts: int) -> DdlEvent:
    return DdlEvent(1, 0, ts - 1, ts, 5, "alter table t", "s", "t", "s", "t", 1, None, None, (), ())


def granted(span: Span = ALL, token: tuple[int, int] = (1, 1)) -> GrantedRange:
    return GrantedRange(span, token)


def progress(ts: int, span: Span = ALL, token: tuple[int, int] = (1, 1), resolved: int = 0) -> RangeProgress:
    return RangeProgress(span, token, ts, resolved)


def running(barrier: Barrier, journal: int = 0) -> Owner:
    """An owner whose one processor has everything, and delivers it."""
    owner = Owner(100, barrier, ALL)
    owner.grant("a", 1, [granted()])
    owner.sink_open(journal)
    owner.running("a", 1, [granted()])
    return owner


def test_a_ddl_waits_for_all_ranges_is_sent_and_only_then_passed() -> None:
    owner = Owner(100, Barrier(100), ALL)
    owner.grant("a", 1, [granted(LOW)])
    owner.grant("b", 1, [granted(HIGH)])
    owner.sink_open(0)
    for capture, span in (("a", LOW), ("b", HIGH)):
        owner.running(capture, 1, [granted(span)])
        owner.report(capture, 1, [progress(100, span)])
    assert owner.tick(0.0) == [SendResolved(100)]
    owner.resolved_done(100)
    batch = DdlBatch(200, (ddl(200),), (task("c", 200),), frozenset({"a"}))
    owner.barrier.learn([batch], 300)
    assert owner.barrier.bound == 200

    owner.report("a", 1, [progress(200, LOW)])
    assert owner.tick(1.0) == []
    owner.report("b", 1, [progress(200, HIGH)])
    assert owner.tick(2.0) == [SendDdl(batch), Persist(199)]
    owner.persisted(199)
    assert owner.tick(3.0) == []

    assert owner.ddl_done(200) is batch
    assert owner.barrier.bound == 300
    assert owner.tick(3.0) == [SendResolved(200), Persist(200)]


def test_reports_of_an_old_incarnation_other_capture_or_token_are_ignored() -> None:
    owner = Owner(100, Barrier(500), ALL)
    owner.grant("a", 1, [granted()])
    owner.grant("a", 2, [granted(token=(1, 2))])
    assert not owner.report("a", 1, [progress(400, token=(1, 2))])
    assert not owner.report("b", 2, [progress(400, token=(1, 2))])
    assert not owner.report("a", 2, [progress(400)])
    assert owner.durable == 0
    owner.running("a", 1, [granted(token=(1, 2))])
    assert not owner.is_running
    assert owner.report("a", 2, [progress(300, token=(1, 2), resolved=350)])
    assert (owner.durable, owner.resolved) == (300, 350)
    owner.report("a", 2, [progress(200, token=(1, 2), resolved=210)])
    assert (owner.durable, owner.resolved) == (300, 350), "it came late"


@pytest.mark.parametrize(
    ("spans", "hole"),
    [
        ([], ALL),
        ([LOW], HIGH),
        ([HIGH], ALL),
        ([LOW, HIGH], None),
        ([Span(b"", b"d"), Span(b"e", b"")], Span(b"d", b"")),
        ([Span(b"", b"k"), Span(b"c", b"")], None),
    ],
)
def test_while_a_part_of_the_keys_is_nobodys_the_checkpoint_stays(
    spans: list[Span], hole: Span | None
) -> None:
    owner = Owner(100, Barrier(500), ALL)
    owner.sink_open(0)
    ranges = [granted(span) for span in spans]
    owner.grant("a", 1, ranges)
    owner.sink_open(0)
    owner.running("a", 1, ranges)
    owner.report("a", 1, [progress(400, span) for span in spans])
    assert owner.hole() == hole
    assert bool(owner.tick(0.0)) is (hole is None)
    assert owner.checkpoint == (400 if hole is None else 100)


def test_a_moved_range_keeps_its_durable_ts_and_its_giver_is_ignored() -> None:
    owner = Owner(100, Barrier(500), ALL)
    owner.grant("a", 1, [granted()])
    owner.report("a", 1, [progress(300)])
    owner.grant("a", 2, [granted(LOW, (1, 2))])
    owner.grant("b", 1, [granted(HIGH, (1, 3))])
    assert owner.durable == 0, "of its parts nothing was said yet"
    owner.report("a", 2, [progress(310, LOW, (1, 2))])
    owner.report("b", 1, [progress(320, HIGH, (1, 3))])
    assert owner.durable == 310
    owner.grant("b", 2, [granted(HIGH, (1, 4))])
    assert owner.durable == 310
    assert not owner.report("b", 1, [progress(400, HIGH, (1, 3))])


def test_nothing_is_told_before_everything_runs_or_after_the_sink_is_lost() -> None:
    owner = Owner(100, Barrier(500), ALL)
    owner.grant("a", 1, [granted()])
    owner.report("a", 1, [progress(200)])
    assert owner.tick(0.0) == [Persist(200)]
    owner.sink_open(0)
    assert owner.tick(0.1) == []
    owner.running("a", 1, [granted()])
    assert owner.tick(0.2) == [SendResolved(200)]
    owner.sink_lost()
    owner.report("a", 1, [progress(300)])
    assert SendResolved not in [type(effect) for effect in owner.tick(5.0)]


def test_what_the_journal_holds_is_not_said_again() -> None:
    owner = running(Barrier(500), journal=150)
    owner.report("a", 1, [progress(140)])
    assert SendResolved not in [type(e) for e in owner.tick(0.0)]
    owner.report("a", 1, [progress(160)])
    assert SendResolved(160) in owner.tick(1.0)


def test_nothing_leaves_while_an_initial_load_is_under_way() -> None:
    barrier = Barrier(100, held_at=100)
    owner = running(barrier)
    batch = DdlBatch(150, ())
    barrier.learn([batch], 200)
    owner.report("a", 1, [progress(100)])
    assert (barrier.bound, barrier.cap) == (100, 100)
    assert owner.tick(10.0) == []
    owner.load_done()
    assert owner.tick(20.0) == [SendResolved(100)]
    owner.resolved_done(100)
    assert barrier.bound == 150
    owner.report("a", 1, [progress(150)])
    assert SendDdl(batch) in owner.tick(30.0)


def test_the_target_is_announced_stored_and_then_the_feed_is_finished() -> None:
    owner = running(Barrier(100, target_ts=150))
    owner.barrier.learn([], 400)
    assert owner.barrier.bound == 150
    owner.report("a", 1, [progress(150)])
    assert owner.tick(0.0) == [SendResolved(150), Persist(150)]
    owner.resolved_done(150)
    assert owner.tick(0.1) == []
    owner.persisted(150)
    assert owner.tick(0.2) == [Finish()]


def test_the_owner_is_due_only_for_a_resolved_or_a_checkpoint() -> None:
    """Its keeper sleeps until then: a tick that comes too late is one that nobody asked for."""
    owner = Owner(100, Barrier(1000), ALL, resolved_interval_s=0.125)
    assert owner.due_in(5.0) == float("inf"), "nothing is granted"
    owner.grant("a", 1, [granted()])
    owner.sink_open(0)
    owner.running("a", 1, [granted()])
    owner.report("a", 1, [progress(200)])
    assert owner.tick(5.0) == [SendResolved(200), Persist(200)]
    assert owner.due_in(5.0) == float("inf"), "both are under way: their ends are events"
    owner.resolved_done(200)
    owner.persisted(200)
    assert owner.due_in(5.0) == float("inf")
    owner.report("a", 1, [progress(300)])
    assert owner.tick(5.0625) == []
    assert owner.due_in(5.0625) == 0.0625
    assert owner.tick(5.125) == [SendResolved(300)]
    assert owner.due_in(5.125) == 0.375, "the checkpoint is written twice a second"
    assert owner.tick(5.5) == [Persist(300)]
    owner.persist_failed()
    owner.resolved_done(300)
    assert owner.due_in(5.5) == 0.5, "again, but not at once"
    owner.sink_lost()
    assert owner.due_in(9.0) == 0.0


def batch(ts: int, *queries: str) -> DdlBatch:
    return DdlBatch(ts, (), removed=frozenset(queries))


def owner_that_knows(*batches: DdlBatch, upto: int) -> Owner:
    owner = Owner(100, Barrier(100), ALL)
    owner.learn(batches, upto)
    owner.grant("a", 1, [granted()])
    owner.sink_open(0)
    owner.running("a", 1, [granted()])
    return owner


def said(*batches: DdlBatch, upto: int, after: int = 100) -> KnownDdl:
    log = DdlLog(100)
    log.learn(batches, upto)
    log.forget(after)
    return log.said


@pytest.mark.parametrize(
    ("theirs", "agrees"),
    [
        ((batch(150, "x"), batch(160)), True),
        ((batch(150, "x"),), False),
        ((batch(150, "y"), batch(160)), False),
        ((batch(151, "x"), batch(160)), False),
        ((), False),
    ],
)
def test_the_checkpoint_stands_while_a_capture_knows_other_ddl(
    theirs: tuple[DdlBatch, ...], agrees: bool
) -> None:
    owner = owner_that_knows(batch(150, "x"), batch(160), upto=200)
    owner.hear_ddl("a", said(*theirs, upto=170))
    owner.report("a", 1, [progress(170)])
    effects = owner.tick(0.0)
    assert (owner.checkpoint, bool(effects), owner.disagreement is None) == (
        149 if agrees else 100,
        agrees,
        agrees,
    )
    assert agrees or owner.due_in(9.0) == float("inf"), "nothing is due while it lasts"
    owner.hear_ddl("a", said(batch(150, "x"), batch(160), upto=180))
    assert owner.disagreement is None
    owner.tick(1.0)
    assert owner.checkpoint == 149


def test_a_late_message_from_before_they_differed_ends_no_disagreement() -> None:
    owner = owner_that_knows(batch(150), upto=200)
    owner.hear_ddl("a", said(upto=170))
    assert owner.disagreement is not None
    owner.hear_ddl("a", said(upto=140))
    assert owner.disagreement is not None, "both knew nothing up to 140: that says nothing about 150"
    owner.hear_ddl("a", said(batch(150), upto=175))
    assert owner.disagreement is None


def test_ddl_that_is_not_known_yet_is_compared_when_it_is() -> None:
    owner = owner_that_knows(upto=120)
    owner.hear_ddl("a", said(upto=170))
    owner.hear_ddl("a", said(upto=180))
    assert owner.disagreement is None
    assert owner.lags, "so that more is read before anything is done with what was reported"
    owner.learn([batch(150)], 175)
    assert owner.disagreement == ("a", said(upto=170))


def test_an_owner_that_knows_as_much_as_a_capture_does_not_lag() -> None:
    owner = owner_that_knows(batch(150), upto=200)
    owner.hear_ddl("a", said(batch(150), upto=200))
    assert not owner.lags
    owner.hear_ddl("a", said(batch(150), upto=210))
    assert owner.lags
    owner.learn([], 220)
    assert not owner.lags


def test_late_or_empty_ddl_reports_change_nothing() -> None:
    """A report below the compared ts is late; a capture without ranges no longer disagrees."""
    owner = owner_that_knows(batch(150), upto=200)
    owner.hear_ddl("a", said(batch(150), upto=180, after=160))
    owner.hear_ddl("a", said(upto=180))
    owner.hear_ddl("a", NOTHING)
    assert owner.disagreement is None, "they come too late"
    owner.hear_ddl("a", said(batch(190), upto=195, after=160))
    assert owner.disagreement is not None
    owner.hear_ddl("a", NOTHING)
    owner.hear_ddl("a", said(batch(150), upto=180))
    assert owner.disagreement is not None, "they come too late"
    owner.grant("b", 1, [granted(token=(2, 1))])
    assert owner.disagreement is None, "it has nothing of the feed any more"


def test_a_ddl_checkpoint_is_due_as_soon_as_an_earlier_one_is_stored() -> None:
    owner = owner_that_knows(batch(150), upto=200)
    owner.report("a", 1, [progress(120)])
    assert Persist(120) in owner.tick(5.0)
    owner.resolved_done(120)
    owner.report("a", 1, [progress(150)])
    (sent,) = owner.tick(5.01)
    assert isinstance(sent, SendDdl)
    owner.ddl_done(150)
    owner.report("a", 1, [progress(180)])
    assert not [effect for effect in owner.tick(5.02) if isinstance(effect, Persist)], "one at a time"
    owner.persisted(120)
    assert owner.due_in(5.03) == 0.0
    assert Persist(180) in owner.tick(5.03)


def test_a_changefeed_without_rows_says_resolved_less_often() -> None:
    """Each is a transaction at the sink. The first row ends that: a Resolved for it is wanted soon."""
    owner = Owner(100, Barrier(1000), ALL, resolved_interval_s=0.125, quiet_interval_s=1.0)
    owner.grant("a", 1, [granted()])
    owner.sink_open(0)
    owner.running("a", 1, [granted()])

    def said(now: float, ts: int) -> bool:
        owner.report("a", 1, [progress(ts)])
        sent = SendResolved(ts) in owner.tick(now)
        if sent:
            owner.resolved_done(ts)
        return sent

    assert said(5.0, 200)
    assert not said(5.5, 250)
    assert owner.due_in(5.5) <= 0.5
    assert said(6.0, 300)
    owner.synced(350)
    assert not said(6.0625, 350)
    assert said(6.125, 350)
    assert not said(6.25, 400), "it is covered"
    assert said(7.125, 400)


def test_what_one_capture_agrees_on_is_still_compared_with_what_others_say() -> None:
    """The owner must not forget DDL while a capture with ranges has not passed it."""
    owner = owner_that_knows(batch(150), batch(160), upto=170)
    low, high = Span(b"", b"m"), Span(b"m", b"")
    owner.grant("a", 2, [GrantedRange(low, (2, 1))])
    owner.grant("b", 1, [GrantedRange(high, (2, 1))])
    owner.hear_ddl("b", said(batch(150), batch(160), upto=180))
    assert owner.lags
    owner.hear_ddl("a", said(batch(160), upto=170, after=155))
    owner.learn([], 190)
    assert not owner.lags
    assert owner.disagreement is None
    owner.hear_ddl("b", said(batch(160), upto=185))
    assert owner.disagreement is not None, "it lacks the first, which it has not passed"


def test_ddl_of_a_capture_without_ranges_holds_nothing_back() -> None:
    owner = owner_that_knows(batch(150), upto=170)
    owner.hear_ddl("c", said(upto=170))
    assert owner.disagreement is None
