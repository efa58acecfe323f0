from tidegate.control.changefeed import State
from tidegate.control.gc import GcGuard, Hold, earliest_start
from tidegate.control.metadata import FeedId

A, B = FeedId("default", "a"), FeedId("default", "b")


def test_the_slowest_unfinished_feed_is_held_and_renewed_each_minute() -> None:
    guard = GcGuard()
    feeds = {A: (State.NORMAL, 500), B: (State.STOPPED, 300)}
    assert guard.tick(feeds, 0.0) == Hold(299, 86_400)
    assert guard.tick(feeds, 59.0) is None
    assert guard.tick(feeds, 60.0) == Hold(299, 86_400)
    feeds[B] = (State.FINISHED, 300)
    assert guard.tick(feeds, 61.0, force=True) == Hold(499, 86_400)


def test_the_last_feed_lets_go() -> None:
    guard = GcGuard()
    assert guard.tick({}, 0.0) is None
    guard.tick({A: (State.NORMAL, 5)}, 1.0)
    assert guard.tick({}, 2.0, force=True) == Hold(0, 0)
    assert guard.tick({}, 100.0) is None


def test_a_failed_call_is_due_again() -> None:
    guard = GcGuard()
    guard.tick({A: (State.NORMAL, 5)}, 0.0)
    guard.failed()
    assert guard.tick({A: (State.NORMAL, 5)}, 0.1) == Hold(4, 86_400)


def test_a_feed_whose_history_is_gone_does_not_cost_the_others_theirs() -> None:
    guard = GcGuard()
    feeds = {A: (State.NORMAL, 500), B: (State.STOPPED, 300)}
    assert guard.tick(feeds, 0.0) == Hold(299, 86_400)
    assert not guard.answered(Hold(299, 86_400), 400)
    assert guard.lost(feeds, 400) == [B]
    feeds[B] = (State.FAILED, 300)
    assert guard.tick(feeds, 0.1, force=True) == Hold(499, 86_400)
    assert guard.answered(Hold(499, 86_400), 499)
    assert guard.tick(feeds, 60.2) == Hold(499, 86_400)
    # Were it resumed, it would be found lost once more, also when there is no other.
    del feeds[A]
    assert guard.tick(feeds, 130.0) == Hold(0, 0)
    assert guard.answered(Hold(0, 0), 400)
    feeds[B] = (State.NORMAL, 300)
    assert guard.tick(feeds, 131.0, force=True) == Hold(0, 0)
    assert guard.lost(feeds, 400) == [B]


def test_feeds_below_the_safepoint_have_lost_their_history() -> None:
    feeds = {A: (State.NORMAL, 500), B: (State.STOPPED, 300)}
    assert GcGuard().lost(feeds, 299) == []
    assert GcGuard().lost(feeds, 300) == [B]
    assert earliest_start(300) == 301
