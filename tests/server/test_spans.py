"""The messages about spans that the puller gets while feeds come and go."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.control.messages import Wish
from tidegate.control.metadata import FeedId
from tidegate.ipc import MAX_FRAME, frame
from tidegate.model.reports import (
    DropBelow,
    Refused,
    Remove,
    SafePoint,
    SpanStatus,
    Status,
    ToPuller,
    Watch,
    parse,
    to_json,
)
from tidegate.model.span import span_id
from tidegate.model.timestamp import MAX
from tidegate.puller.region_feed import Reason
from tidegate.server.catalogue.catalogues import DDL_SPAN, DDL_SPAN_ID
from tidegate.server.processor.opening import Opening
from tidegate.server.processor.pipeline import PIPELINE_STARTS
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.processor.space_release import SpaceRelease
from tidegate.server.pulling.puller_process import status_reports
from tidegate.server.pulling.spans import STALLED_S, OwnerOf, SpanRegistry
from tidegate.tidb import keys

ONE, TWO = FeedId("default", "one"), FeedId("default", "two")
SPAN = keys.record_span(100)
NAME = span_id(SPAN)


class Messages:
    """The puller's end of the socket."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, report: ToPuller) -> None:
        self.messages.append(report)

    def take(self) -> list[tuple[str, int | None]]:
        reported = [to_json(m) for m in self.messages]
        assert all(m.span == SPAN for m in self.messages if not isinstance(m, SafePoint))
        self.messages = []
        return [(m["type"], m.get("start_ts", m.get("ts"))) for m in reported]


def connected() -> tuple[SpanRegistry, Messages]:
    registry, puller = SpanRegistry(), Messages()
    registry.keep_above(20)
    registry.connect(puller)  # type: ignore[arg-type]
    assert puller.take() == [("safe_point", 20)]
    return registry, puller


def test_each_puller_gets_what_is_held_of_each_keyspace() -> None:
    registry, puller = connected()
    registry.keep_above(70, 5)
    registry.keep_above(70, 5)
    assert [(m.ts, m.keyspace) for m in puller.messages] == [(70, 5)]
    again = Messages()
    registry.connect(again)  # type: ignore[arg-type]
    assert [(m.ts, m.keyspace) for m in again.messages] == [(20, -1), (70, 5)]


def test_a_span_is_followed_from_the_least_start_until_nobody_holds_it() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 50)
    registry.hold(TWO, SPAN, 30)
    registry.hold(TWO, SPAN, 60)
    assert puller.take() == [("watch", 50), ("watch", 30)]
    again = Messages()
    registry.connect(again)  # type: ignore[arg-type]
    assert again.take() == [("safe_point", 20), ("watch", 30)]
    registry.drop(TWO, NAME)
    assert again.take() == [("watch", 50)]  # what was being pulled from 30 on is not needed any more
    registry.drop(ONE, NAME)
    assert again.take() == [("unwatch", None)]
    assert registry.held == frozenset()


def test_a_table_dropped_and_recreated_while_the_feed_lags_stays_followed() -> None:
    """Both DDLs were read before the first was delivered: held from 50, and needed again from 90."""
    registry, puller = connected()
    registry.hold(ONE, SPAN, 50)
    registry.hold(ONE, SPAN, 90)
    assert puller.take() == [("watch", 50)]
    registry.drop(ONE, NAME, again_from=90)
    assert puller.take() == []
    again = Messages()
    registry.connect(again)  # type: ignore[arg-type]
    assert again.take() == [("safe_point", 20), ("watch", 90)]
    registry.drop(ONE, NAME)
    assert again.take() == [("unwatch", None)]


def test_a_removed_feed_removes_its_files_unless_another_feed_needs_them() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 50)
    registry.hold(TWO, SPAN, 50)
    registry.release(ONE, forget=True)
    assert puller.take() == [("watch", 50)]
    registry.release(TWO, forget=True)
    assert puller.take() == [("unwatch", None), ("remove", None)]


def test_rows_go_only_below_what_every_holder_is_done_with() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 50)
    registry.hold(TWO, SPAN, 50)
    puller.take()
    registry.drop_below({ONE: (70, 60)})
    assert puller.take() == []
    registry.drop_below({ONE: (70, 60), TWO: (65, 40)})
    registry.drop_below({ONE: (80, 60), TWO: (65, 40)})
    assert puller.take() == [("drop_below", 65)]


def test_delivered_events_are_requested_again_only_if_a_feed_needs_them() -> None:
    """A restarted puller continues; a feed that resumes after a pause gets what was released meanwhile."""
    registry, _ = connected()
    registry.hold(ONE, SPAN, 50)
    registry.hold(TWO, SPAN, 50)
    registry.release(TWO)
    registry.needed(ONE, 70, 60)
    registry.needed(TWO, 55, 55)
    again = Messages()
    registry.connect(again)  # type: ignore[arg-type]
    assert again.take() == [("safe_point", 20), ("watch", 70)]
    registry.hold(TWO, SPAN, 60)
    assert again.take() == [("watch", 60)]
    registry.drop_below({ONE: (80, 60), TWO: (65, 40)})
    assert again.take() == [("drop_below", 65)]


def test_files_of_a_span_go_when_nobody_holds_it_and_every_feed_is_past_it() -> None:
    registry, puller = connected()
    stored = {NAME: (SPAN, 70)}
    registry.hold(ONE, SPAN, 50)
    assert registry.sweep(stored, 100) == []
    registry.drop(ONE, NAME)
    puller.take()
    assert registry.sweep(stored, 69) == []
    assert registry.sweep(stored, 70) == [NAME]
    assert puller.take() == [("remove", None)]


def test_the_files_of_the_ddl_span_go_with_the_last_feed_only() -> None:
    registry, _ = connected()
    stored = {DDL_SPAN_ID: (DDL_SPAN, 70)}
    assert registry.sweep(stored, 1 << 60) == []
    assert registry.sweep(stored, MAX) == [DDL_SPAN_ID]


def test_a_puller_knows_what_pd_holds_before_it_gets_any_span() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 50)
    registry.needed(ONE, 70, 60)
    registry.keep_above(69)
    assert puller.take() == [("watch", 50), ("safe_point", 69)]
    again = Messages()
    registry.connect(again)  # type: ignore[arg-type]
    assert again.take() == [("safe_point", 69), ("watch", 70)], "nothing is asked for below what is held"


def test_a_refusal_concerns_the_feeds_that_need_the_refused_range() -> None:
    """It ends when the range is requested again."""
    registry, _ = connected()
    registry.hold(ONE, SPAN, 50)
    registry.hold(TWO, SPAN, 80)
    registry.receive_refused(Refused(SPAN, 50, 60))
    found = registry.refusal(ONE)
    assert found is not None
    assert found == Refused(SPAN, 50, 60)
    assert registry.refusal(TWO) is None
    registry.release(ONE)
    registry.hold(ONE, SPAN, 55)
    assert registry.refusal(ONE) is None
    registry.release(ONE)
    registry.release(TWO)
    registry.receive_refused(Refused(SPAN, 50, 60))
    registry.hold(TWO, SPAN, 40)
    assert registry.refusal(TWO) is None


def test_a_feed_that_asked_not_to_be_guarded_is_followed_from_anywhere() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 10, guarded=False)
    assert [message.guarded for message in puller.messages] == [False]
    assert puller.take() == [("watch", 10)]
    again = Messages()
    registry.connect(again)  # type: ignore[arg-type]
    assert again.messages == [SafePoint(20, -1), Watch(SPAN, 10, False)]
    registry.release(ONE)
    registry.hold(ONE, SPAN, 50)
    assert again.messages[-1].guarded, "not for ever"


def test_a_shared_span_is_guarded_again_when_the_other_feed_is_gone() -> None:
    """Spans of other feeds stay guarded."""
    registry, puller = connected()
    other = keys.record_span(101)
    registry.hold(TWO, SPAN, 50)
    registry.hold(ONE, other, 10, guarded=False)
    assert [message.guarded for message in puller.messages] == [True, False]
    puller.messages = []
    registry.hold(ONE, SPAN, 60, guarded=False)
    registry.release(ONE)
    reported = [m for m in puller.messages if m.span == SPAN]
    assert reported == [Watch(SPAN, 50, False), Watch(SPAN, 50, True)]


def test_a_span_refused_for_a_removed_feed_is_requested_by_the_others() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 10)
    registry.hold(TWO, SPAN, 80)
    registry.receive_refused(Refused(SPAN, 10, 20))
    puller.take()
    registry.release(ONE)
    assert puller.take() == [("watch", 80)]
    assert registry.refusal(TWO) is None


def test_the_status_of_any_number_of_spans_fits_into_frames() -> None:
    line = SpanStatus(NAME, waiting_for="x" * 300, errors={str(reason): 1 << 40 for reason in Reason})
    lines = [line._replace(resolved=number) for number in range(100_000)]
    registry, reported = SpanRegistry(), status_reports(lines)
    assert max(len(frame(message)) for message in reported) < MAX_FRAME // 2
    sent = parse(json.loads(json.dumps(to_json(reported[0]))), [Status])
    assert sent == reported[0], "it is the same after its way"
    for message in reported[:-1]:
        registry.receive_status(message)
    assert registry.status == [], "half of it is not taken for all there is"
    registry.receive_status(reported[-1])
    assert registry.status == lines
    for message in status_reports([]):
        registry.receive_status(message)
    assert registry.status == []


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        ({}, "is no list"),
        ([["a"]], "is no status of a span"),
        ([{"span": "a"}], "is no status of a span"),
        ([["a", 0, 0, 0, True, {}, ""]], "is no status of a span"),
        ([["a", 0, 0, 0, 0, {"lost": "1"}, ""]], "the errors of span a are no numbers"),
    ],
)
def test_a_status_of_another_form_is_refused(spans: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse({"type": "status", "spans": spans, "first": True, "last": True, "filling": ""}, [Status])


def full(registry: SpanRegistry) -> None:
    registry.receive_status(Status([], filling="8 of 10 bytes"))


def test_a_stalled_feed_is_in_the_way_of_active_feeds_that_share_its_spans() -> None:
    registry, _ = connected()
    registry.hold(ONE, SPAN, 50)
    registry.hold(TWO, SPAN, 50)
    late = 100 + STALLED_S
    registry.note_progress(ONE, 100)
    registry.note_progress(TWO, late)
    assert registry.feeds_blocked_by(ONE, late) == [], "there is room"
    full(registry)
    assert registry.feeds_blocked_by(ONE, late) == [TWO]
    assert registry.feeds_blocked_by(ONE, late - 1) == [], "it may still advance"
    assert registry.feeds_blocked_by(TWO, late) == []
    assert registry.feeds_blocked_by(ONE, late + STALLED_S) == [], "the other does not advance either"


def test_feeds_without_shared_spans_are_not_in_each_others_way() -> None:
    """The DDL span does not count as shared."""
    registry = SpanRegistry()
    registry.hold(ONE, SPAN, 50)
    registry.hold(TWO, keys.record_span(101), 50)
    for feed in (ONE, TWO):
        registry.hold(feed, DDL_SPAN, 50)
    full(registry)
    registry.note_progress(ONE, 0)
    registry.note_progress(TWO, 100)
    assert registry.feeds_blocked_by(ONE, 100) == []


def test_a_feed_that_makes_way_keeps_the_spans_that_are_named() -> None:
    registry = SpanRegistry()
    for feed in (ONE, TWO):
        registry.hold(feed, SPAN, 50)
        registry.hold(feed, DDL_SPAN, 50)
    registry.release(ONE, but={DDL_SPAN_ID})
    registry.release(TWO)
    assert registry.held == {DDL_SPAN_ID}


class Standing:
    """The part of a `FeedProcessor` that looks whether it is in the way of others: it hangs, and is."""

    _check_space = FeedProcessor._check_space
    _begins = FeedProcessor._begins

    def __init__(self, waits: str, *, ready: bool) -> None:
        self.id = ONE
        spans, _ = connected()
        for feed in (ONE, TWO):
            spans.hold(feed, SPAN, 50)
        full(spans)
        self._space_release = SpaceRelease(ONE)
        assert self._space_release.look(0, spans, 7, {}, loads=False) is None, "it advances"
        spans.note_progress(TWO, STALLED_S)
        self.openings = SimpleNamespace(current=SimpleNamespace(spans=spans), is_ready=ready)
        self.pipeline = SimpleNamespace(is_starting=waits == PIPELINE_STARTS, load_plan=None, beats={})
        self._goal = SimpleNamespace(wish=Wish.RUN)
        self.machine = SimpleNamespace(dispatch=SimpleNamespace(checkpoint=7))
        self.node = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: STALLED_S))
        self._failure: Any = None

    def _fail(self, error: Any) -> None:
        self._failure = error


@pytest.mark.parametrize(
    ("waits", "ready", "makes_way"), [("", True, True), (PIPELINE_STARTS, True, False), ("", False, False)]
)
def test_a_feed_whose_pipeline_is_being_started_does_not_make_way(
    waits: str, ready: bool, makes_way: bool
) -> None:
    """A start takes longer than a running feed may go without progress: it would never be over."""
    feed = Standing(waits, ready=ready)
    feed._check_space()  # type: ignore[arg-type]
    assert feed._space_release.is_due is makes_way
    assert (feed._failure is not None) is makes_way


def test_a_refused_span_is_followed_from_where_feeds_need_it_later() -> None:
    """The puller waits at a span that it has refused, and a later start alone changes nothing."""
    registry, puller = connected()
    registry.hold(ONE, SPAN, 10)
    registry.receive_refused(Refused(SPAN, 10, 20))
    puller.take()
    registry.needed(ONE, 10, 10)
    assert puller.take() == []
    registry.needed(ONE, 30, 30)
    assert puller.take() == [("unwatch", None), ("watch", 30)]
    assert registry.refusal(ONE) is None
    registry.receive_refused(Refused(SPAN, 30, 40))
    registry.try_again(ONE, 50)
    assert puller.take() == [("unwatch", None), ("watch", 50)]


def test_history_is_held_for_each_span_that_a_capture_is_to_take() -> None:
    """Its changefeed's checkpoint rises by what others deliver, while regions of the span still wait."""
    registry, _ = connected()
    registry.hold(ONE, SPAN, 30)
    assert registry.behind(ONE, {NAME: 25}) == 25
    assert registry.behind(ONE, {}) == 30, "nothing has come yet"
    assert registry.behind(TWO, {NAME: 25}) == MAX


def test_a_feed_knows_when_something_has_come_of_each_of_its_spans() -> None:
    registry, _ = connected()
    registry.hold(ONE, SPAN, 30)
    assert not registry.have_begun(ONE, {})
    assert registry.have_begun(ONE, {NAME: 25})
    later = keys.record_span(101)
    registry.hold(ONE, later, 40)
    assert not registry.have_begun(ONE, {NAME: 25})
    assert registry.behind(ONE, {NAME: 50}) == 40
    assert registry.have_begun(ONE, {NAME: 25, span_id(later): 40})
    registry.release(ONE, but=[NAME])
    assert registry.behind(ONE, {NAME: 50}) == 50
    registry.drop(ONE, NAME)
    assert registry.have_begun(ONE, {}), "it holds none"
    registry.release(ONE)
    assert not registry._orders, "nothing is kept of a feed that is gone"
    assert registry.within(ONE, [SPAN]) == frozenset()


def test_an_owner_and_its_processor_hold_the_ddl_span_apart() -> None:
    """Neither releases the other's hold, and the span is read again from where the first of them needs it."""
    registry, _ = connected()
    registry.hold(OwnerOf(ONE), DDL_SPAN, 40)
    registry.hold(ONE, DDL_SPAN, 50)
    registry.needed(OwnerOf(ONE), 90, 60)
    registry.needed(ONE, 55, 55)
    again = Messages()
    registry.connect(again)  # type: ignore[arg-type]
    assert [one.start_ts for one in again.messages if isinstance(one, Watch)] == [55]
    registry.drop_below({ONE: (80, 70), OwnerOf(ONE): (0, 60)})
    assert [one.ts for one in again.messages if isinstance(one, DropBelow)] == [60]
    registry.release(ONE, forget=True)
    assert registry.held == {DDL_SPAN_ID}
    registry.release(OwnerOf(ONE), forget=True)
    assert registry.held == frozenset()
    assert isinstance(again.messages[-1], Remove)


def test_an_owner_neither_keeps_rows_nor_lets_them_go() -> None:
    """A feed of keys has one span for both: its owner reads floors from it, its processor rows."""
    registry, puller = connected()
    registry.hold(OwnerOf(ONE), SPAN, 50)
    puller.take()
    registry.drop_below({OwnerOf(ONE): (90, 90)})
    assert puller.take() == [], "a processor may come, and need all of it"
    registry.hold(ONE, SPAN, 50)
    registry.drop_below({ONE: (70, 60), OwnerOf(ONE): (0, 90)})
    assert puller.take() == [("drop_below", 70)]


def test_dropped_rows_are_pulled_again_though_the_owner_holds_the_span() -> None:
    """Two feeds of keys share a span. One of them releases its rows, and needs them again."""
    registry, puller = connected()
    for feed in (ONE, TWO):
        registry.hold(OwnerOf(feed), SPAN, 50)
        registry.hold(feed, SPAN, 50)
    registry.release(ONE)
    puller.take()
    registry.drop_below({TWO: (70, 70), OwnerOf(ONE): (0, 50), OwnerOf(TWO): (0, 70)})
    assert puller.take() == [("drop_below", 70)]
    registry.hold(ONE, SPAN, 50)
    assert puller.take() == [("watch", 50)]


def test_nothing_is_dropped_of_what_an_opening_owner_holds() -> None:
    registry, puller = connected()
    registry.hold(OwnerOf(ONE), SPAN, 50)
    registry.hold(TWO, SPAN, 60)
    puller.take()
    registry.drop_below({TWO: (70, 70)})
    assert puller.take() == [], "its processor will need the rows from 50 on"


def test_an_earlier_hold_counts_whatever_was_needed_before() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 30)
    registry.needed(ONE, 60, 60)
    registry.needed(ONE, 50, 50)
    registry.hold(TWO, SPAN, 70)
    assert puller.take() == [("watch", 30)], "the first holder needs it from 60 on, which is less than 70"
    registry.connect(puller)  # type: ignore[arg-type]
    assert puller.take() == [("safe_point", 20), ("watch", 60)]
    registry.needed(ONE, 80, 80)
    registry.needed(TWO, 90, 90)
    registry.hold(ONE, SPAN, 75)
    assert puller.take() == [("watch", 75)], "it was needed from 80 on"
    registry.connect(puller)  # type: ignore[arg-type]
    assert puller.take() == [("safe_point", 20), ("watch", 75)], "what was needed before raises it no more"
    registry.drop(ONE, NAME)
    assert puller.take() == [("watch", 90)]


def test_a_span_is_needed_again_from_below_what_was_needed_before() -> None:
    registry, puller = connected()
    registry.hold(ONE, SPAN, 50)
    registry.needed(ONE, 80, 80)
    registry.drop(ONE, NAME, again_from=60)
    puller.messages.clear()
    registry.connect(puller)  # type: ignore[arg-type]
    assert puller.take() == [("safe_point", 20), ("watch", 60)]


def test_a_late_refusal_of_what_is_no_longer_needed_concerns_nobody() -> None:
    registry, _ = connected()
    registry.hold(ONE, SPAN, 50)
    registry.needed(ONE, 80, 80)
    registry.receive_refused(Refused(SPAN, 50, 60))
    assert registry.refusal(ONE) is None


def test_spans_are_raised_before_the_owner_may_let_their_history_go() -> None:
    """Otherwise a puller that lost its store registers them where history may be gone."""
    done: list[object] = []

    class Said(SimpleNamespace):
        def __setattr__(self, name: str, value: object) -> None:
            done.append((name, value))

    spans = SimpleNamespace(needed=lambda feed, *ts: done.append(ts), behind=lambda feed, floors: 65)
    machine = Said(needs=60)
    opening: Any = SimpleNamespace(needs=(70, 66), spans=spans, _machine=machine, _feed=ONE)
    Opening.say_needs(opening, {})
    assert done == [(70, 66), ("needs", 65)]
