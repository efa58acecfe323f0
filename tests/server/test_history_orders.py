"""Orders of events in which upstream's history could be released too early, or held for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.test_node import CLUSTER, metadata, owner
from tests.server.test_spans import ONE

from tidegate.control.gc import History
from tidegate.control.grants import Grant
from tidegate.control.messages import Announce, Dispatch, Wish
from tidegate.control.metadata import FeedId, Put, holder_key
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.server.changefeeds.held_history import PREDECESSORS_S, HeldHistory
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.node import Node
from tidegate.server.owner.peers import Peer, Peers
from tidegate.server.owner.processor_link import ProcessorLink, Terms
from tidegate.server.processor.opening import Opening

__all__ = ["metadata", "owner"]
HELD: Any = SimpleNamespace(unreadable={}, values=list, kv_modes=frozenset)


class Needs(HeldHistory):
    """The holds for one changefeed, with the needs that are known so far."""

    known = 500

    def needs(self, scope: int) -> dict[FeedId, int]:
        return {ONE: self.known}

    def _captured(self) -> list[Any]:
        return []


def test_a_new_owner_counts_reports_before_it_releases_earlier_holds(
    owner: Callable[..., Node],
) -> None:
    node, calls = owner(shared="etcd://here"), list[tuple[bool, int, int]]()

    def hold(service: str, ttl_s: int, ts: int, scope: int) -> int:
        calls.append((node.term in service, ttl_s, ts))
        return 250  # PD's least safepoint is the earlier owner's hold

    node.pd = SimpleNamespace(hold_history=hold)  # type: ignore[assignment]

    async def take_over() -> None:
        await node.write(Put(holder_key(CLUSTER, "earlier"), b""))
        history = Needs(node, HELD)
        assert await history.tend(force=True)
        history.known = 300  # a processor has reported since; the next renewal is not due for a minute
        await history.release_predecessors(PREDECESSORS_S)

    asyncio.run(take_over())
    own, released = calls[:2], calls[2:]
    assert [ts for _, _, ts in own] == [499, 299]
    assert released == [(False, 0, 0)]


def link_of(sent: list[Announce | Dispatch]) -> ProcessorLink:
    node: Any = SimpleNamespace(
        cluster=1,
        capture="a",
        owner_rev=7,
        clock=SimpleNamespace(monotonic=lambda: 0.0),
        next_sequence=lambda: 1,
    )
    node.router = SimpleNamespace(owners={}, to_processor=sent.append)
    terms = Terms("i", Span(b"", b""), 900, 500, False, History(300, 299))
    return ProcessorLink(node, ONE, Peers(), lambda: terms, lambda peer, said: None, lambda: None)


@pytest.mark.parametrize(
    ("holds", "needs", "asked"), [(True, MAX, True), (False, 300, True), (False, MAX, False)]
)
def test_a_leftover_processor_releases_its_ranges_or_history(holds: bool, needs: int, asked: bool) -> None:
    """One that failed while it opened has no ranges, and holds history until somebody asks it to rest."""
    sent: list[Announce | Dispatch] = []
    peer = Peer("b", holds=holds, needs=needs)
    link_of(sent).end_leftover(peer)
    assert [one.wish for one in sent if isinstance(one, Dispatch)] == ([Wish.REST] if asked else [])
    granted: list[Announce | Dispatch] = []
    link_of(granted).end_leftover(Peer("b", holds=holds, needs=needs, grant=Grant("i", (7, 1), 1, 1)))
    assert granted == [], "this owner wants something of it"


def test_a_view_uses_no_base_from_below_the_reported_needs() -> None:
    """Another changefeed holds more now. When that one goes, its history may be released at once."""
    done: list[tuple[int, int]] = []
    given: Any = SimpleNamespace(
        _plan=SimpleNamespace(config=SimpleNamespace(has_tables=True, check_gc_safe_point=True)),
        _is_owners=False,
        _filter=None,
        _node=SimpleNamespace(checkpoints=list),
        history=History(100, 99),
    )

    async def run(call: Any, *arguments: Any) -> bool:
        if call == "leave_out":
            done.append(arguments)
        return True

    given._catalogues = SimpleNamespace(run=run, leave_out="leave_out", serves="serves")
    asyncio.run(FeedDdl._open_tracker(given, 500, lambda what: None, 300))
    assert done == [(500, 300)]


def test_an_opening_reports_its_needs_at_once() -> None:
    """They rise when it is complete. Until the report has come, the owner holds what it held before."""
    done: list[str] = []
    given: Any = SimpleNamespace(
        say_needs=lambda floors: done.append("needs"),
        plan=SimpleNamespace(paths=SimpleNamespace(store=None)),
        _machine=SimpleNamespace(sync_soon=lambda: done.append("sync")),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tidegate.server.processor.opening.store_view.read_frontier", lambda store: {})
        Opening._report_needs(given)
    assert done == ["needs", "sync"]
