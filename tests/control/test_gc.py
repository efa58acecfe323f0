from tidegate.control.gc import GcGuard, Hold, earliest_start
from tidegate.control.metadata import FeedId
from tidegate.model.timestamp import MAX

A, B = FeedId("default", "a"), FeedId("default", "b")


def test_the_feed_that_needs_most_is_held_and_renewed_each_minute() -> None:
    guard = GcGuard()
    needs = {A: 500, B: 300}
    assert guard.tick(needs, 0.0) == Hold(299, 86_400, 300)
    assert guard.tick(needs, 59.0) is None
    assert guard.tick(needs, 60.0) == Hold(299, 86_400, 300)
    del needs[B]
    assert guard.tick(needs, 61.0, force=True) == Hold(499, 86_400, 500)
    assert GcGuard(60).tick(needs, 0.0) == Hold(499, 60, 500)


def test_the_last_feed_lets_go_and_so_does_a_start_without_any() -> None:
    guard = GcGuard()
    assert guard.tick({}, 0.0) == Hold(0, 0, MAX), "an earlier process may have left one"
    assert guard.tick({}, 61.0) is None
    guard.tick({A: 5}, 122.0)
    assert guard.tick({}, 123.0, force=True) == Hold(0, 0, MAX)
    assert guard.tick({}, 190.0) is None


def test_a_failed_call_is_due_again() -> None:
    guard = GcGuard()
    guard.tick({A: 5}, 0.0)
    guard.failed()
    assert guard.tick({A: 5}, 0.1) == Hold(4, 86_400, 5)
    guard.tick({}, 1.0, force=True)
    guard.failed()
    assert guard.tick({}, 1.1) == Hold(0, 0, MAX)


def test_a_feed_whose_history_is_gone_does_not_cost_the_others_theirs() -> None:
    """PD refuses what lies below its least safepoint; what is left is held instead."""
    guard = GcGuard()
    needs = {A: 500, B: 300}
    assert guard.tick(needs, 0.0) == Hold(299, 86_400, 300)
    assert not guard.answered(Hold(299, 86_400), 400)
    assert guard.tick(needs, 0.1, force=True) == Hold(400, 86_400, 300)
    assert guard.answered(Hold(400, 86_400), 400)
    del needs[B]
    assert guard.tick(needs, 60.2) == Hold(499, 86_400, 500)
    assert earliest_start(300) == 301
