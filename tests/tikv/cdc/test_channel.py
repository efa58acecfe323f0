"""The queue of one connection."""

from __future__ import annotations

import threading

from tests.tikv.cluster import WAIT_S
from tests.tikv.support import taken
from tidegate.proto import cdcpb_pb2 as pb
from tidegate.tikv.budget import Budget
from tidegate.tikv.cdc import wire
from tidegate.tikv.cdc.channel import MESSAGE_BYTES_MAX, SCAN_BYTES_MAX, Channel, Subscription


def event(request_id: int, size: int = 10) -> bytes:
    row = pb.Event.Row(type=pb.Event.COMMITTED, value=b"x" * size)
    return wire.framed(pb.Event(region_id=1, request_id=request_id, entries=pb.Event.Entries(entries=[row])))


def test_events_leave_in_order_together_and_a_resolved_mark_alone() -> None:
    channel, one = Channel(), Subscription()
    channel.put_observed(one, event(1))
    channel.put_scanned(one, event(2))
    channel.put_resolved(wire.resolved(pb.ResolvedTs(regions=[1], ts=5, request_id=1)))
    channel.put_observed(one, event(3))
    first, mark, last = taken(channel) or []
    assert [each.request_id for each in first.events] == [1, 2]
    assert (mark.resolved_ts.ts, len(mark.events)) == (5, 0)
    assert [each.request_id for each in last.events] == [3]
    assert channel.queued_bytes == 0


def test_a_message_has_at_most_six_mebibytes_unless_one_event_is_larger() -> None:
    channel, one = Channel(), Subscription()
    for size in (MESSAGE_BYTES_MAX // 2, MESSAGE_BYTES_MAX // 2, 10, 2 * MESSAGE_BYTES_MAX):
        channel.put_observed(one, event(1, size))
    assert [len(message.events) for message in taken(channel) or []] == [1, 2, 1]


def test_an_observed_event_over_the_quota_is_refused_and_a_mark_left_out() -> None:
    channel, one = Channel(quota_bytes=1000), Subscription()
    assert channel.put_observed(one, event(1, 700))
    assert not channel.put_observed(one, event(2, 700))
    channel.put_resolved(wire.resolved(pb.ResolvedTs(regions=range(1 << 40, (1 << 40) + 100), ts=5)))
    assert [len(message.events) for message in taken(channel) or []] == [1]
    assert channel.put_observed(one, event(2, 700))


def test_after_the_error_of_a_subscription_nothing_of_it_follows() -> None:
    channel, one, other = Channel(), Subscription(), Subscription()
    channel.put_observed(one, event(1))
    congested = pb.Error(congested=pb.Congested(region_id=1))
    channel.fail(one, wire.framed(pb.Event(region_id=1, request_id=1, error=congested)))
    assert channel.put_observed(one, event(1)), "it is ignored, not congested"
    assert not channel.put_scanned(one, event(1))
    channel.fail(one, event(9))
    channel.put_observed(other, event(2))
    (message,) = taken(channel) or []
    assert [(each.request_id, each.HasField("error")) for each in message.events] == [
        (1, False),
        (1, True),
        (2, False),
    ]


def test_a_scan_waits_for_room_and_continues() -> None:
    channel, one = Channel(), Subscription()
    assert channel.put_scanned(one, event(1, SCAN_BYTES_MAX))
    done = threading.Event()

    def scan() -> None:
        channel.put_scanned(one, event(2))
        done.set()

    thread = threading.Thread(target=scan)
    thread.start()
    assert not done.wait(0.05)
    assert len(taken(channel) or []) == 1
    assert done.wait(WAIT_S)
    thread.join()


def test_a_full_channel_that_sends_nothing_is_cancelled_with_the_reason() -> None:
    now = [0.0]
    channel, one = Channel(100_000, monotonic=lambda: now[0]), Subscription()
    now[0] = 301.0
    assert not channel.is_stuck(300.0), "it may be idle for as long as it likes"
    assert channel.put_observed(one, event(1, 99_000))
    assert not channel.is_stuck(300.0), "there is room"
    assert channel.put_observed(one, event(1, 750))
    assert channel.queued_bytes >= 99_900
    assert channel.is_stuck(300.0)
    channel.sent()
    assert not channel.is_stuck(300.0), "its client reads"
    now[0] = 601.0
    assert channel.is_stuck(300.0)
    channel.cancel("connection cancelled")
    assert channel.take() is None
    assert channel.failure == "connection cancelled"
    other = Channel(100_000, monotonic=lambda: now[0])
    assert other.put_observed(one, event(1, 50_000))
    assert not other.put_observed(one, event(1, 60_000))
    now[0] = 901.0
    assert other.is_stuck(300.0), "a registration was congested"
    assert other.take() is not None
    other.sent()
    now[0] = 1300.0
    assert not other.is_stuck(300.0)


def test_clients_that_do_not_read_share_one_budget_and_then_are_stuck() -> None:
    """Each below its own quota: a thousand of them would fill any machine."""
    now, budget = [0.0], Budget(100_000)
    silent, other = (Channel(80_000, lambda: now[0], budget) for _ in range(2))
    one, two = Subscription(), Subscription()
    assert silent.put_observed(one, event(1, 70_000))
    assert not other.put_observed(two, event(2, 50_000)), "congested: its client asks again"
    assert other.put_scanned(two, event(2, 500))
    assert silent.put_scanned(one, event(1, 29_900))
    assert not budget.has_room()
    now[0] = 301.0
    assert silent.is_stuck(300.0)
    assert len(taken(other) or []) == 1
    other.sent()
    now[0] = 602.0
    assert not other.is_stuck(300.0), "nothing waits for its client"
    assert other.put_scanned(two, event(3, 500)), "one event at a time is accepted"
    thread = threading.Thread(target=lambda: other.put_scanned(two, event(4, 500)))
    thread.start()
    assert len(taken(other) or []) == 1
    thread.join(WAIT_S)
    assert not thread.is_alive()
    silent.cancel("connection cancelled")
    assert other.take()
    assert budget.has_room(100_000), "all of it came back"
    assert not budget.has_room(100_001)
    assert other.put_observed(two, event(2, 50_000))


def test_a_closed_channel_ends_takers_and_waiting_scans() -> None:
    channel, one = Channel(), Subscription()
    channel.put_scanned(one, event(1, SCAN_BYTES_MAX))
    refused: list[bool] = []
    thread = threading.Thread(target=lambda: refused.append(channel.put_scanned(one, event(2))))
    thread.start()
    channel.close()
    thread.join(WAIT_S)
    assert refused == [False]
    assert channel.take() is None
    assert channel.put_observed(one, event(1))
    assert channel.take() is None
