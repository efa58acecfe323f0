"""What each kind of failure asks for."""

from __future__ import annotations

from random import Random

import pytest

from tidegate.errors import Fatal
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.proto import errorpb_pb2 as errorpb
from tidegate.proto import metapb_pb2 as metapb
from tidegate.puller.match.matcher import Violation
from tidegate.puller.region_feed import (
    PAUSES,
    VIOLATIONS_MAX,
    Deregister,
    Failed,
    History,
    Initialized,
    Reason,
    RegionFeed,
    Relocate,
    Silent,
    State,
    Stop,
    StreamLost,
    Violated,
    pause_s,
)

REGION = RegionInfo(4, b"", b"", 2, 1, 41, 1)


def region_feed(history: History | None = None) -> RegionFeed:
    return RegionFeed(Span(b"a", b"z"), REGION, history or History(), Random(1))


@pytest.mark.parametrize(
    ("error", "reason", "leader"),
    [
        (cdcpb.Error(not_leader=errorpb.NotLeader(leader=metapb.Peer(id=5, store_id=9))), "not_leader", 9),
        (cdcpb.Error(not_leader=errorpb.NotLeader()), "not_leader", 0),
        (cdcpb.Error(epoch_not_match=errorpb.EpochNotMatch()), "epoch_not_match", 0),
        (cdcpb.Error(region_not_found=errorpb.RegionNotFound()), "region_not_found", 0),
        (cdcpb.Error(congested=cdcpb.Congested()), "congested", 0),
        (cdcpb.Error(server_is_busy=errorpb.ServerIsBusy()), "server_is_busy", 0),
        (cdcpb.Error(), "unknown", 0),
    ],
)
def test_a_passing_failure_locates_the_range_again(error: cdcpb.Error, reason: str, leader: int) -> None:
    feed = region_feed()
    [effect] = feed.step(Failed(error))
    assert isinstance(effect, Relocate)
    assert (effect.reason, effect.leader_store, effect.history.attempts) == (Reason(reason), leader, 1)
    assert feed.state is State.ENDED
    assert feed.step(Failed(error)) == []


@pytest.mark.parametrize(
    "error",
    [
        cdcpb.Error(compatibility=cdcpb.Compatibility(required_version="9.9.9")),
        cdcpb.Error(cluster_id_mismatch=cdcpb.ClusterIDMismatch(current=1, request=2)),
    ],
)
def test_a_store_that_will_never_serve_us_stops_the_puller(error: cdcpb.Error) -> None:
    [effect] = region_feed().step(Failed(error))
    assert isinstance(effect, Stop)
    assert isinstance(effect.error, Fatal)
    assert effect.error.fix


def test_a_duplicate_request_is_deregistered_first() -> None:
    effects = region_feed().step(Failed(cdcpb.Error(duplicate_request=cdcpb.DuplicateRequest())))
    assert [type(e) for e in effects] == [Deregister, Relocate]


def test_the_stores_own_wish_for_a_pause_is_honoured() -> None:
    busy = cdcpb.Error(server_is_busy=errorpb.ServerIsBusy(backoff_ms=7_000))
    [effect] = region_feed().step(Failed(busy))
    assert isinstance(effect, Relocate)
    assert effect.after_s == 7.0


def test_pauses_grow_to_their_cap_and_start_over_after_initialized() -> None:
    random = Random(3)
    waits = [pause_s(Reason.CONGESTED, attempt, random) for attempt in range(12)]
    cap = PAUSES[Reason.CONGESTED].cap_ms / 1000
    assert all(cap / 2 <= wait <= cap for wait in waits[7:])
    assert waits[0] <= 0.05
    feed = region_feed(History(attempts=9))
    assert feed.step(Initialized()) == []
    [effect] = feed.step(StreamLost("gone"))
    assert isinstance(effect, Relocate)
    assert effect.history.attempts == 1


def test_a_broken_contract_is_retried_and_stops_the_puller_if_it_repeats() -> None:
    event = Violated(Violation.COMMIT_BELOW_RESOLVED, 77)
    effects = region_feed().step(event)
    assert [type(e) for e in effects] == [Deregister, Relocate]
    effects = region_feed(History(3, VIOLATIONS_MAX)).step(event)
    assert isinstance(effects[1], Stop)
    assert "77" in effects[1].error.where


def test_a_silent_registration_is_deregistered_with_growing_patience() -> None:
    """The patience doubles until a registration gets live."""
    history = History()
    for doubled in (1, 2, 4, 8, 16, 16):
        scanning = region_feed(history)
        assert scanning.patience_s(300.0) == 300.0 * doubled
        deregister, again = scanning.step(Silent())
        assert isinstance(deregister, Deregister)
        assert isinstance(again, Relocate)
        assert again.reason == "silent"
        history = again.history
    live = region_feed(history)
    live.step(Initialized())
    assert live.patience_s(300.0) == 300.0
