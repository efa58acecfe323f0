"""An owner's view of the processors of other captures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from tidegate.control.barrier import Barrier
from tidegate.control.gc import History
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.messages import (
    Checkpoint,
    Dispatch,
    DispatchResponse,
    Header,
    ProcessorStatus,
    Sync,
    Wish,
    to_json,
)
from tidegate.control.metadata import FeedId
from tidegate.control.owner import Owner
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.server.owner.peers import FORGIVEN_S, SHUN_MAX_S, SHUN_S, SILENT_S, Peer, Peers
from tidegate.server.owner.processor_link import ProcessorLink, Terms
from tidegate.server.owner.processor_reports import PartFailed, ProcessorReports, RecordsOver, Restarted

ALL = Span(b"", b"")


def header(epoch: int, sequence: int) -> Header:
    return Header(1, "default/one", "i", 7, "b", epoch, sequence)


def no_loads(capture: str, loads: Mapping[str, int]) -> None:
    """Nobody divides by them here."""


def dispatched(wish: Wish, epoch: int) -> Dispatch:
    return Dispatch(header(epoch, 1), wish, 3, [GrantedRange(ALL, (7, 1))], 100, 100, False)


def test_a_process_that_started_again_is_not_given_what_the_one_before_was() -> None:
    """Workers of the one before may live on, and prove themselves by the same grant."""
    peer = Peer("b", met_rev=7, latest=(1, 5), asked=dispatched(Wish.RUN, 1))
    reports = ProcessorReports("a", Peers(), no_loads)
    found = reports.take(peer, Sync(header(2, 1), "v", 2, 0, [], []), None, 9.0, loading=False)
    assert found == [Restarted("b")]
    reports.take(peer, Sync(header(2, 2), "v", 2, 0, [], []), None, 9.0, loading=False)
    assert peer.failures == 1, "a process that starts again and again is left out for longer each time"
    assert peer.met_at == 9.0, "it is to show that it lasts"


class Asked:
    """A link that notes what is asked of whom."""

    def __init__(self, *reachable: Peer) -> None:
        self._reachable, self.asked = list(reachable), list[str]()

    def reachable(self) -> list[Peer]:
        return self._reachable

    def dispatch(self, peer: Peer, wish: Wish) -> None:
        self.asked.append(f"{peer.capture}: {wish}")

    def end_leftover(self, peer: Peer) -> None:
        self.asked.append(f"{peer.capture}: leftovers")


def test_a_capture_that_gets_no_grant_loses_its_ranges_and_must_rest() -> None:
    """The product and the simulator adopt the grants of a round by this function."""
    peers, owner = Peers(), Owner(1, Barrier(1), ALL, resolved_interval_s=1.0)
    earlier = Grant("i", (7, 1), 3, 4, (GrantedRange(Span(b"", b"m"), (7, 1)),))
    for name in ("runs", "rests", "away"):
        peers[name].grant, peers[name].coming, peers[name].received = earlier, (ALL,), 9
    peers["runs"].asked = peers["away"].asked = dispatched(Wish.RUN, 1)
    owner.grant("runs", 3, earlier.ranges)
    link = Asked(peers["runs"], peers["rests"], peers["taker"])
    taken = Grant("i", (7, 2), 1, 4, (GrantedRange(ALL, (7, 2)),))
    peers.adopt(owner, {"taker": taken}, link)
    assert link.asked == ["runs: rest", "rests: leftovers"]
    assert [peer.grant for peer in peers] == [None, None, None, taken]
    assert all((peer.coming, peer.received) == ((), 0) for peer in peers)
    assert peers["away"].asked is None
    assert {holder for holder, *_ in owner.ranges.progress()} == {"taker"}


def test_a_late_state_of_a_processor_is_ignored_and_silence_ends_trust() -> None:
    peer = Peer("b")
    assert peer.receive(1.0, 1, 5, is_state=True)
    peer.met_rev = 7
    assert not peer.receive(2.0, 1, 4, is_state=True), "a later one has come before"
    assert peer.receive(3.0, 1, 2, is_state=False), "of how far it is each word counts"
    assert peer.answers(7, 3.0 + SILENT_S)
    assert not peer.answers(7, 3.1 + SILENT_S)
    assert not peer.answers(8, 3.0), "another owner is to meet it first"


def test_messages_to_another_owner_or_feed_are_dropped_before_they_count() -> None:
    """A Sync to the last owner may say that a capture has nothing which this owner has granted it since."""
    mine = Sync(header(1, 1), "v", 2, 0, [], [])
    taken: list[Header] = []

    async def read(*headers: Header) -> bool:
        node: Any = SimpleNamespace(owner_rev=7, router=SimpleNamespace(owners={}))
        peers, terms = Peers(), Terms("i", ALL, 900, 500, False, History())
        assert peers["b"]
        link = ProcessorLink(
            node,
            FeedId("default", "one"),
            peers,
            lambda: terms,
            lambda peer, said: taken.append(said.header),
            lambda: None,
        )
        for one in headers:
            node.router.owners["default/one"].put(orjson.dumps(to_json(replace(mine, header=one))))
        await asyncio.sleep(0)
        return link._answered.is_set()

    others = [
        replace(mine.header, owner_rev=6),
        replace(mine.header, owner_rev=8),
        replace(mine.header, instance="an earlier feed of this name"),
        replace(mine.header, capture="never met"),
    ]
    assert not asyncio.run(read(*others)), "the owner would end its wait for an answer"
    assert taken == []
    assert asyncio.run(read(mine.header))
    assert taken == [mine.header]


def test_a_new_process_is_asked_for_what_the_killed_one_did_not_answer() -> None:
    """It ignores what was meant for the other. The owner would wait for an answer, and all ranges with it."""
    sent: list[Any] = []

    async def read(wish: Wish, *, answered: bool = False) -> list[tuple[Wish, int]]:
        node: Any = SimpleNamespace(
            cluster=1, capture="a", owner_rev=7, clock=SimpleNamespace(monotonic=lambda: 1.0)
        )
        node.next_sequence, node.router = lambda: 9, SimpleNamespace(owners={}, to_processor=sent.append)
        peers, terms = Peers(), Terms("i", ALL, 900, 500, False, History())
        reports = ProcessorReports("a", peers, no_loads)

        def take(peer: Peer, message: Any) -> None:
            reports.take(peer, message, None, 1.0, loading=False)

        ProcessorLink(node, FeedId("default", "one"), peers, lambda: terms, take, lambda: None)
        peer = peers["b"]
        peer.latest = 1, 1
        peer.ask(wanted(wish, 5, 100, 80), 0.0)
        if answered:
            peer.given_up.set()
        for sequence in (1, 2):
            message = Sync(header(2, sequence), "v", 2, 0, [], [])
            node.router.owners["default/one"].put(orjson.dumps(to_json(message)))
        await asyncio.sleep(0)
        found = [(one.wish, one.header.capture_epoch) for one in sent]
        sent.clear()
        return found

    for wish in (Wish.PREPARE, Wish.REST):
        assert asyncio.run(read(wish)) == [(wish, 2)], "once"
        assert asyncio.run(read(wish, answered=True)) == []
    assert asyncio.run(read(Wish.RUN)) == [], "what was granted to the other begins at most once"


def test_only_the_answer_to_the_last_dispatch_says_that_nothing_runs() -> None:
    """An earlier answer is from before the capture began, and the last Dispatch may find it delivering."""
    peer, reports = Peer("b"), ProcessorReports("a", Peers(), no_loads)
    for number, wish in ((5, Wish.REST), (6, Wish.RUN), (7, Wish.REST)):
        peer.ask(wanted(wish, number, 100, 80), 0.0)
    given_up = []
    for sequence, answered in enumerate((5, 6, 7), 1):
        response = DispatchResponse(header(1, sequence), answered, 3, ())
        reports.take(peer, response, None, 1.0, loading=False)
        given_up.append(peer.given_up.is_set())
    assert given_up == [False, False, True]


@pytest.mark.parametrize("failures", [1, 2, 5, 5_000])
def test_who_fails_again_and_again_is_left_out_for_longer_but_not_for_ever(failures: int) -> None:
    peer = Peer("b")
    assert peer.may_try(0.0)
    for _ in range(failures):
        peer.fails(100.0)
    shunned_s = min(SHUN_MAX_S, SHUN_S * 2 ** min(failures - 1, 20))
    assert not peer.may_try(99.9 + shunned_s)
    assert peer.may_try(100.0 + shunned_s)
    peer.fails(101.0 + FORGIVEN_S)
    assert peer.failures == 1


def test_history_is_held_for_who_runs_or_prepares_and_reports() -> None:
    peers = Peers()
    assert peers.needs(0.0) == MAX
    runs, prepares, rests = peers["a"], peers["b"], peers["c"]
    for peer, wish, needs in ((runs, Wish.RUN, 50), (prepares, Wish.PREPARE, 40), (rests, Wish.REST, 30)):
        peer.asked, peer.needs, peer.received_at = dispatched(wish, 1), needs, 0.0
    assert peers.needs(0.0) == 30, "it may not have received yet that it is to rest"
    rests.given_up.set()
    assert peers.needs(0.0) == 40
    assert peers.needs(1.0 + 2 * SILENT_S) == 50, "a capture that was silent for this time has to open again"
    assert peers.needs(1.0 + 2 * SILENT_S, "b") == 40, "the owner's own one cannot be gone"


def wanted(wish: Wish, sequence: int, checkpoint: int, needed: int, *, incarnation: int = 3) -> Dispatch:
    ranges = [GrantedRange(ALL, (7, incarnation))]
    return Dispatch(
        header(1, sequence), wish, incarnation, ranges, 900, checkpoint, False, needed=needed, safe_point=1
    )


def test_nothing_is_released_until_a_processor_has_answered() -> None:
    """It may open its spans from any ts that the Dispatch says is held, and only its Sync says from which."""
    peers = Peers()
    peer, reports = peers["b"], ProcessorReports("a", peers, no_loads)
    peer.ask(wanted(Wish.PREPARE, 5, 100, 80), 0.0)
    peer.sent(5, 0.0)
    assert peers.needs(0.0) == 80
    peer.ask(wanted(Wish.PREPARE, 6, 200, 90), 1.0)
    assert peers.needs(1.0) == 80, "the first one may be under way"

    def answers(sequence: int, confirmed: int, needs: int) -> int:
        said = Sync(header(1, sequence), "v", 2, 0, [], [], needs=needs, last_sequence=confirmed)
        reports.take(peer, said, None, 2.0, loading=False)
        return peers.needs(2.0)

    assert answers(1, 4, MAX) == 80, "it is from before the Dispatch"
    assert answers(2, 5, 95) == 95
    peer.ask(wanted(Wish.PREPARE, 7, 300, 95), 3.0)
    assert peers.needs(3.0) == 95, "nothing new is asked for"
    assert answers(3, 7, 250) == 250
    peer.ask(wanted(Wish.RUN, 8, 400, 240, incarnation=4), 4.0)
    assert peers.needs(4.0) == 240
    assert answers(4, 8, 350) == 350
    peer.ask(wanted(Wish.REST, 9, 500, 350, incarnation=4), 5.0)
    assert peers.needs(5.0) == 350, "it may not have released its spans yet"
    peer.given_up.set()
    assert peers.needs(5.0) == MAX


def test_a_lost_dispatch_is_not_confirmed_by_a_later_message() -> None:
    peers = Peers()
    peer, reports = peers["b"], ProcessorReports("a", peers, no_loads)
    peer.ask(wanted(Wish.PREPARE, 5, 100, 80), 0.0)
    said = Sync(header(1, 1), "v", 2, 0, [], [], needs=MAX, last_sequence=6)
    reports.take(peer, said, None, 2.0, loading=False)
    assert peers.needs(2.0) == MAX, "it has an Announce, and has opened nothing"
    peer.ask(wanted(Wish.PREPARE, 7, 100, 80), 3.0)
    assert peers.needs(3.0) == 80, "now it may open"


def test_a_dispatch_that_was_lost_and_withdrawn_holds_nothing() -> None:
    """While nothing of ours arrives, and its own messages do."""
    peers = Peers()
    peer = peers["b"]
    for sequence, wish in ((5, Wish.PREPARE), (6, Wish.REST)):
        peer.ask(wanted(wish, sequence, 100, 80), 0.0)
        peer.sent(sequence, 0.0)
    peer.received_at = later = 1.0 + 2 * SILENT_S
    assert peers.needs(1.0) == 80
    assert peers.needs(later) == MAX


def test_what_a_processor_kept_for_an_earlier_owner_is_held_as_well() -> None:
    peers = Peers()
    peer, reports = peers["b"], ProcessorReports("a", peers, no_loads)
    reports.take(peer, Sync(header(1, 1), "v", 2, 0, [], [], needs=70), None, 2.0, loading=False)
    assert peer.asked is None
    assert peers.needs(2.0) == 70
    assert peers.needs(3.0 + 2 * SILENT_S) == MAX


def test_what_another_capture_cannot_deliver_is_tried_elsewhere() -> None:
    """A failure that would stay at the owner's own capture may pass if another one delivers the range."""
    found: list[type[TidegateError]] = []
    for capture in ("a", "b"):
        peer, reports = Peer(capture, asked=dispatched(Wish.RUN, 1)), ProcessorReports("a", Peers(), no_loads)
        response = DispatchResponse(header(1, 2), 1, 3, (), Failed.of(Fatal("the disk is broken")))
        (finding,) = reports.take(peer, response, None, 5.0, loading=False)
        assert isinstance(finding, PartFailed)
        found.append(type(finding.error))
        assert (peer.failures, peer.given_up.is_set()) == (1, True)
    assert found == [Fatal, Retryable]


def test_a_report_of_an_earlier_incarnation_changes_no_totals() -> None:
    peers = Peers()
    peer, reports = peers["b"], ProcessorReports("a", peers, no_loads)
    peer.asked = dispatched(Wish.RUN, 1)
    for sequence, (incarnation, rows) in enumerate([(3, 7), (2, 9)], 2):
        message = Checkpoint(header(1, sequence), incarnation, (), ProcessorStatus(rows=rows))
        assert reports.take(peer, message, None, 5.0, loading=True) == []
        assert reports.totals.rows == 7


def test_records_are_removed_only_as_the_running_incarnation_says() -> None:
    """A message that the network kept may name records that a later incarnation writes again."""
    peers = Peers()
    peer, reports = peers["b"], ProcessorReports("a", peers, no_loads)
    removed = []
    for sequence, (wish, incarnation) in enumerate([(Wish.RUN, 2), (Wish.RUN, 3), (Wish.PREPARE, 3)], 2):
        peer.asked = dispatched(wish, 1)
        message = Checkpoint(header(1, sequence), incarnation, (), ProcessorStatus(), over=("record",))
        found = reports.take(peer, message, None, 5.0, loading=False)
        removed.append([one for one in found if isinstance(one, RecordsOver)])
    assert peer.asked is not None
    assert removed == [[], [RecordsOver(("record",))], []]
