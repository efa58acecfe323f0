"""For each range that is not delivered, is held or is about to move: the reason, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.control.changefeed import State
from tidegate.control.range_reasons import (
    GRANTS,
    GROUPS_MAX,
    PHASES,
    QUIET_S,
    RUNS,
    CaptureFacts,
    Coming,
    Delivery,
    FeedFacts,
    OwnedRange,
    Reason,
    Why,
    explain,
    grouped,
    seconds,
)
from tidegate.model.span import Span
from tidegate.model.timestamp import compose

NOW_MS = 1_000_000
BEGUN = compose(NOW_MS - 30_000)
"""The stored checkpoint."""
LOW, HIGH = Span(b"", b"m"), Span(b"m", b"")
FEED = FeedFacts(State.NORMAL, BEGUN, NOW_MS)
A, B = CaptureFacts("10.0.0.1:8300"), CaptureFacts("10.0.0.2:8300")
RANGES = (
    OwnedRange(LOW, "a", True, compose(NOW_MS - 100), compose(NOW_MS)),
    OwnedRange(HIGH, "b", True, compose(NOW_MS - 100), compose(NOW_MS)),
)


def whole(**facts: object) -> Why:
    """The one reason for both ranges."""
    one, other = explain(replace(FEED, **facts), RANGES, {"a": A, "b": B})  # type: ignore[arg-type]
    assert one == other
    return one


def second(
    *, feed: FeedFacts = FEED, coming: tuple[Coming, ...] = (), running: bool = True, **facts: object
) -> Why:
    """The reason for the range of capture b, which has these facts; that of a just runs."""
    ranges = (RANGES[0], replace(RANGES[1], running=running))
    captures = {"a": A, "b": replace(B, **facts)}  # type: ignore[arg-type]
    one, other = explain(feed, ranges, captures, coming)
    assert one == RUNS, "the other range is not concerned"
    return other


def test_ranges_that_run_have_no_reason() -> None:
    assert whole() == RUNS
    assert Why(Delivery.RUNNING, Reason.NONE, "") == RUNS


@pytest.mark.parametrize(
    ("facts", "reason", "words"),
    [
        ({"state": State.STOPPED}, Reason.STOPPED, "`tidegate changefeed resume` starts it"),
        ({"state": State.FAILED, "error": "no topic"}, Reason.FAILED, "it has failed: no topic"),
        ({"state": State.FINISHED}, Reason.FINISHED, "all up to target-ts is delivered"),
        ({"state": State.REMOVED}, Reason.STOPPED, "it is being removed"),
        (
            {"state": State.PENDING, "error": "no broker", "retry_in_s": 4.0},
            Reason.BACK_OFF,
            "tries again in 4.0 s, after an error: no broker",
        ),
        (
            {"divided": "capture c is gone"},
            Reason.DIVIDED,
            "the key space is being divided again: capture c is gone",
        ),
        ({"waits_for": "processor"}, Reason.MEETING, "the owner waits for the first answer"),
        ({"waits_for": "catalogue from upstream"}, Reason.DEFINITIONS, "reads the tables' definitions"),
        ({"waits_for": "sink"}, Reason.FENCING, "the owner fences earlier writers"),
        ({"waits_for": GRANTS}, Reason.DIVIDED, "stores which capture gets which ranges"),
        ({"waits_for": "the moon"}, Reason.MEETING, "the owner waits for the moon"),
    ],
)
def test_a_changefeed_that_does_not_run_keeps_all_its_ranges(
    facts: dict[str, object], reason: Reason, words: str
) -> None:
    found = whole(**facts)
    assert (found.delivery, found.reason) == (Delivery.NOT_RUNNING, reason)
    assert words in found.words


@pytest.mark.parametrize(
    ("facts", "reason", "words"),
    [
        ({"has_session": False}, Reason.GONE, "capture 10.0.0.2:8300 has no session any more"),
        ({"has_session": False, "running": False}, Reason.GONE, "the others get its ranges"),
        (
            {"silent_s": 12.0, "lost_in_s": 8.0},
            Reason.SILENT,
            "has sent nothing for 12 s; the others get its ranges when its session ends, or in 8.0 s at the",
        ),
        ({"running": False, "has_application": False}, Reason.APPLICATION, "has no Spark worker yet"),
        (
            {"running": False, "waits": "catalogue from upstream"},
            Reason.DEFINITIONS,
            "capture 10.0.0.2:8300 reads the tables' definitions from upstream",
        ),
        ({"running": False, "waits": "a worker"}, Reason.STARTING, "waits for a worker"),
        ({"running": False}, Reason.STARTING, "starts its pipeline"),
    ],
)
def test_a_capture_that_does_not_deliver_keeps_its_own_ranges(
    facts: dict[str, object], reason: Reason, words: str
) -> None:
    found = second(**facts)  # type: ignore[arg-type]
    assert (found.delivery, found.reason) == (Delivery.NOT_RUNNING, reason)
    assert words in found.words


def test_a_short_silence_is_none() -> None:
    assert second(silent_s=QUIET_S) == RUNS, "it repeats everything in this time"


def test_every_phase_of_an_owner_has_words() -> None:
    for phase in PHASES:
        assert whole(waits_for=phase).words.startswith("the owner ")


def test_a_range_that_no_capture_has_says_who_cannot_take_it() -> None:
    ranges = [replace(RANGES[0], capture="", running=False)]
    (found,) = explain(FEED, ranges, {"a": replace(A, unable="is drained")})
    assert found == Why(
        Delivery.NOT_RUNNING,
        Reason.NOT_GRANTED,
        "no capture has it: none can take it (10.0.0.1:8300 is drained)",
    )


def test_a_ddl_holds_the_ranges_that_have_reached_it_and_no_others() -> None:
    ddl_ts = RANGES[1].checkpoint + 5
    feed = replace(FEED, ddl_ts=ddl_ts, ddl="ALTER TABLE t ADD COLUMN c INT")
    assert second(feed=feed) == RUNS, "it still has rows to deliver"
    reached = [RANGES[0], replace(RANGES[1], checkpoint=ddl_ts)]
    before, held = explain(feed, reached, {"a": A, "b": B})
    assert before == RUNS
    assert (held.delivery, held.reason) == (Delivery.HELD, Reason.DDL)
    assert f"a DDL at {ddl_ts} is sent once all ranges are delivered up to it: ALTER TABLE" in held.words
    switch = replace(FEED, switch_ts=ddl_ts)
    assert [one.reason for one in explain(switch, reached, {"a": A, "b": B})] == [
        Reason.NONE,
        Reason.REPARTITION,
    ]


def test_other_ddl_and_an_initial_load_hold_all_ranges() -> None:
    assert whole(disagreement="agreement on DDL: capture b").words == "agreement on DDL: capture b"
    loading = whole(load="initial load: 2 of 5 ranges")
    assert (loading.delivery, loading.words) == (
        Delivery.HELD,
        "changes follow the initial load: 2 of 5 ranges",
    )


@pytest.mark.parametrize(
    ("coming", "words"),
    [
        (Coming(HIGH, "a", False, 0), "when that has a Spark worker: its application starts"),
        (Coming(HIGH, "a", True, 0), "when upstream has scanned it"),
        (Coming(HIGH, "a", True, compose(NOW_MS - 3000)), "it lacks the last 3.0 s of 30 s since the"),
    ],
)
def test_a_range_that_moves_says_how_far_its_taker_is(coming: Coming, words: str) -> None:
    found = second(coming=(coming,))
    assert (found.delivery, found.reason) == (Delivery.RUNNING, Reason.MOVES)
    assert found.words.startswith("moves to capture 10.0.0.1:8300 when ")
    assert words in found.words


def test_a_part_of_a_range_that_moves_is_found_among_many_that_come() -> None:
    coming = [Coming(Span(bytes([at]), bytes([at + 1])), "c", True, 0) for at in range(200)]
    low, high = explain(FEED, RANGES, {"a": A, "b": B, "c": CaptureFacts("c")}, coming)
    assert low.reason is high.reason is Reason.MOVES
    own = [replace(one, taker="a") for one in coming if one.span.start < b"m"]
    assert explain(FEED, RANGES, {"a": A, "b": B}, own) == [RUNS, RUNS], "it has the range already"


def test_a_drained_capture_says_why_no_other_takes_its_ranges() -> None:
    found = second(drained=True)
    assert (found.delivery, found.reason) == (Delivery.RUNNING, Reason.DRAINS)
    assert found.words == "capture 10.0.0.2:8300 is drained, and keeps it meanwhile"
    unable = {"a": replace(A, unable="has failed, and gets none for 40 s"), "b": replace(B, drained=True)}
    _, found = explain(FEED, RANGES, unable)
    assert "no other can take it (10.0.0.1:8300 has failed, and gets none for 40 s)" in found.words
    (found,) = explain(FEED, RANGES[1:], {"b": replace(B, drained=True)})
    assert found.words.endswith("keeps it meanwhile: there is no other")


def test_an_obstacle_is_shown_at_the_late_range_of_its_capture() -> None:
    obstacle = "span 7 (shop.orders): 1 ranges without a region"
    late = replace(RANGES[1], span=Span(b"x", b""), checkpoint=compose(NOW_MS - 20_000))
    less = replace(late, span=Span(b"m", b"x"), checkpoint=compose(NOW_MS - 15_000))
    ranges = [RANGES[0], less, late]
    found = explain(FEED, ranges, {"a": A, "b": replace(B, waits=obstacle)})
    assert found == [RUNS, RUNS, Why(Delivery.RUNNING, Reason.BEHIND, f"20 s behind: {obstacle}")]
    assert second(waits=obstacle) == RUNS, "it is not late"


def test_groups_have_the_number_of_their_ranges_and_the_slowest_one() -> None:
    silent, drained = replace(A, silent_s=15.0, lost_in_s=5.0), replace(B, drained=True)
    ranges = [
        OwnedRange(Span(bytes([at]), bytes([at + 1])), "b" if at % 4 else "a", True, BEGUN + 100 - at)
        for at in range(100)
    ]
    found = explain(FEED, ranges, {"a": silent, "b": drained})
    groups, more = grouped(zip(ranges, found, strict=True))
    assert [(one.why.reason, one.count, one.example) for one in groups] == [
        (Reason.SILENT, 25, ranges[96]),
        (Reason.DRAINS, 75, ranges[99]),
    ], "those that are not delivered come first"
    assert more == 0
    assert grouped([(one, RUNS) for one in ranges]) == ([], 0)


def test_many_groups_are_bounded_and_the_rest_is_counted() -> None:
    silent = Why(Delivery.NOT_RUNNING, Reason.SILENT, "silent")
    ranges = [OwnedRange(Span(bytes([at]), bytes([at + 1])), str(at)) for at in range(GROUPS_MAX + 5)]
    groups, more = grouped((one, silent) for one in ranges)
    assert (len(groups), more) == (GROUPS_MAX, 5)


def test_times_are_short() -> None:
    assert [seconds(each) for each in (0.04, 9.9, 9.99, 119.4, 120, 7000, 7200)] == [
        "0.0 s", "9.9 s", "10 s", "119 s", "2 min", "117 min", "2.0 h",
    ]  # fmt: skip
