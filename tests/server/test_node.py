"""The right to write: what a node may store, and how it grants it to the incarnations of a feed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate import metrics
from tidegate.clock import SystemClock
from tidegate.control.gc import History, Hold
from tidegate.control.grants import CAPTURES_MAX, Grant
from tidegate.control.metadata import (
    FeedId,
    GuardedWrites,
    MetadataStore,
    Put,
    WriteResult,
    format_key,
    grant_key,
)
from tidegate.errors import Fenced, InvalidInput, Retryable, TidegateError
from tidegate.etcd.client import EtcdClient
from tidegate.etcd.metadata import EtcdMetadata
from tidegate.model.span import Span
from tidegate.server.changefeeds import held_history
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.delivery.plan import Paths
from tidegate.server.metadata.ownership import check_format, take_ownership
from tidegate.server.metadata.sqlite import SqliteMetadata
from tidegate.server.node import WRITE_MAX, Node
from tidegate.server.pulling.spans import Captured, SpanRegistry

CLUSTER, CAPTURE = 7, "here"
EVERYTHING = Span(b"", b"")
ONE, TWO = FeedId("default", "one"), FeedId("default", "two")


def raise_grant(node: Node, feed: FeedId, slots: int) -> Grant:
    """The next incarnation's of all keys, on the node's own capture."""
    name = node.capture
    grants = node.share_out(feed, "f00d", node.token(), {name: [EVERYTHING]}, {name: slots})
    return asyncio.run(grants)[name]


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[SqliteMetadata]:
    store = SqliteMetadata(tmp_path / "metadata.db")
    yield store
    store.close()


@pytest.fixture
def owner(metadata: SqliteMetadata, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes a node that has just become the owner; `lost` is called when it no longer is."""
    with ThreadPoolExecutor(1) as disk:

        def make(
            lost: Callable[[TidegateError], None] = lambda error: None,
            metadata: MetadataStore = metadata,
            **more: Any,
        ) -> Node:
            nothing: Any = None
            return Node(
                cluster=CLUSTER,
                address="",
                identity="",
                capture=CAPTURE,
                epoch=1,
                owner_rev=take_ownership(metadata, CLUSTER, "capture"),
                paths=Paths(tmp_path, tmp_path / "events"),
                pd=nothing,
                metadata=metadata,
                captured=nothing,
                clock=SystemClock(),
                disk=disk,
                application=nothing,
                open_sink=nothing,
                lost=lost,
                **more,
            )

        yield make


def test_each_grant_is_a_later_incarnation_and_fences_every_past_slot(
    owner: Callable[..., Node], metadata: SqliteMetadata
) -> None:
    def raised(node: Node, feed: FeedId, slots: int) -> Grant:
        return raise_grant(node, feed, slots)

    first = owner()
    grants = [raised(first, ONE, slots) for slots in (4, 2)]
    second = owner()
    grants.append(raised(second, ONE, 6))
    assert [(grant.incarnation, grant.slots) for grant in grants] == [(1, 4), (2, 4), (3, 6)]
    assert sorted(grant.token for grant in grants) == [grant.token for grant in grants]
    assert len({grant.token for grant in grants}) == 3
    assert raised(second, TWO, 1).incarnation == 1
    stored = metadata.get(grant_key(CLUSTER, ONE, CAPTURE))
    assert stored is not None
    assert Grant.from_bytes(stored.value) == grants[-1]


def test_a_node_that_was_replaced_stores_and_grants_nothing(
    owner: Callable[..., Node], metadata: SqliteMetadata
) -> None:
    status: list[TidegateError] = []
    replaced, ours = owner(status.append), owner()
    with pytest.raises(Fenced, match="another control process owns"):
        asyncio.run(replaced.write(Put("/key", b"")))
    with pytest.raises(Fenced):
        raise_grant(replaced, ONE, 4)
    assert [type(error) for error in status] == [Fenced, Fenced]
    assert metadata.get("/key") is None
    assert metadata.get(grant_key(CLUSTER, ONE, CAPTURE)) is None
    assert asyncio.run(ours.write(Put("/key", b"")))


def test_a_waiting_write_is_stored_under_an_ownership_taken_meanwhile(
    owner: Callable[..., Node], metadata: SqliteMetadata
) -> None:
    node = owner()

    async def scenario() -> bool:
        busy = threading.Event()
        node.disk.submit(busy.wait)
        writing = asyncio.create_task(node.write(Put("/key", b"")))
        await asyncio.sleep(0)
        node.owner_rev = take_ownership(metadata, CLUSTER, "capture")
        busy.set()
        return await writing

    assert asyncio.run(scenario())
    assert metadata.get("/key") is not None


def test_a_data_folder_of_another_version_is_refused(metadata: SqliteMetadata, tmp_path: Path) -> None:
    """Its grants lie under other keys: an incarnation would begin while another one still writes."""
    check_format(metadata, CLUSTER, tmp_path)
    check_format(metadata, CLUSTER, tmp_path)
    take_ownership(metadata, CLUSTER, "capture")
    check_format(metadata, CLUSTER, tmp_path)
    metadata.transact((), (Put(format_key(CLUSTER), b"3"),))
    with pytest.raises(InvalidInput, match="another version of Tidegate"):
        check_format(metadata, CLUSTER, tmp_path)
    take_ownership(metadata, CLUSTER + 1, "an earlier version's")
    with pytest.raises(InvalidInput, match="has the form 1"):
        check_format(metadata, CLUSTER + 1, tmp_path)


class Unanswered(SqliteMetadata):
    """Each write happens, and its answer is lost, once `silent` says so."""

    silent = False

    def transact_all(self, asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        outcomes = super().transact_all(asked)
        if self.silent:
            raise Retryable("etcd does not answer")
        return outcomes


@pytest.mark.parametrize("shared", ["", "etcd:127.0.0.1:1"])
def test_a_silent_shared_store_ends_what_is_believed_of_the_feeds(
    owner: Callable[..., Node], tmp_path: Path, shared: str
) -> None:
    """A pause that is stored, and believed not to be, would be in force when the next capture takes over."""
    lost: list[TidegateError] = []
    store = Unanswered(tmp_path / "shared.db")
    node = owner(lost.append, store, shared=shared)
    store.silent = True
    with pytest.raises(Retryable):
        asyncio.run(node.write(Put("/x", b"1")))
    assert [type(one) for one in lost] == ([Fenced] if shared else [])
    store.close()


def test_nothing_is_written_after_the_session_is_over(
    owner: Callable[..., Node], metadata: SqliteMetadata
) -> None:
    """The store itself would still accept the write."""
    lost: list[TidegateError] = []
    node = owner(lost.append, over=lambda: Fenced("The session is over."))
    with pytest.raises(Fenced):
        asyncio.run(node.write(Put("/x", b"1")))
    assert len(lost) == 1
    assert metadata.get("/x") is None


def test_a_write_too_large_for_etcd_is_rejected_and_ownership_is_kept(
    owner: Callable[..., Node], metadata: SqliteMetadata
) -> None:
    """Sent, it would fail all that are written with it, and the owner could not know what is stored."""
    lost: list[TidegateError] = []
    large = Put("/x", bytes(WRITE_MAX + 1))
    node = owner(lost.append, shared="etcd:127.0.0.1:1")
    with pytest.raises(InvalidInput, match="more than can be kept in etcd"):
        asyncio.run(node.write(large))
    assert (lost, metadata.get("/x")) == ([], None)
    assert asyncio.run(owner(lost.append).write(large)), "one capture alone keeps it"


class HeldHistory:
    """A PD that notes the holds; `meanwhile` happens while it answers."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def hold_history(self, service: str, ttl_s: int, safe_point: int, scope: int) -> int:
        self.asked += 1
        self.held[service] = safe_point
        if not ttl_s:
            del self.held[service]
        self.meanwhile()
        return safe_point


@pytest.mark.parametrize("when", ["before", "meanwhile", "never"])
def test_an_owner_whose_session_ends_leaves_no_hold_behind(owner: Callable[..., Node], when: str) -> None:
    """The next owner has released it already. It would not be released again, and GC would wait for a day."""
    over: list[TidegateError] = []
    node = owner(shared="etcd:127.0.0.1:1", over=lambda: over[0] if over else None)
    pd: Any = HeldHistory()
    node.pd = pd
    ended = lambda: over.append(Fenced("The session is over."))  # noqa: E731
    if when == "before":
        ended()
    elif when == "meanwhile":
        pd.meanwhile = ended
    history: Any = SimpleNamespace(node=node)
    if when == "never":
        assert held_history.HeldHistory._update(history, -1, Hold(7, 60, {})) == 7
        assert list(pd.held.values()) == [7]
        return
    with pytest.raises(Fenced):
        held_history.HeldHistory._update(history, -1, Hold(7, 60, {}))
    assert pd.held == {}
    assert pd.asked == {"before": 0, "meanwhile": 2}[when]


def test_an_earlier_dispatch_brings_no_earlier_safepoint_back(owner: Callable[..., Node]) -> None:
    """It may wait in the box of a processor of this capture while the owner raises the hold."""
    node, spans = owner(), SpanRegistry()
    node.captured = lambda mode: Captured(node.paths.store, spans)
    early = node.owner_rev, node.next_sequence()
    held_history.HeldHistory(node, Feeds())._keep_above(-1, History(60, 59))
    assert not node.receive_history(-1, early, History(40, 39))
    assert (node.histories[-1], spans.safe_points[-1]) == (History(60, 59), 59)
    late = node.owner_rev, node.next_sequence()
    assert node.receive_history(-1, late, History(60, 59))


def test_a_former_owner_shows_no_checkpoint_of_its_changefeeds() -> None:
    """It would hang for ever, next to the one of the capture that has them."""
    metrics.checkpoint_ts.labels("somewhere", "one").set(1)
    metrics.forget_feed("somewhere", "one")
    metrics.forget_feed("somewhere", "one")  # of which nothing is shown
    assert b"somewhere" not in metrics.render()


def test_grants_of_the_most_captures_allowed_fit_in_one_etcd_transaction(
    etcd: str, owner: Callable[..., Node]
) -> None:
    """etcd takes 128 comparisons. Dead captures do not count, and a key that is written is compared once."""
    store = EtcdMetadata(EtcdClient(etcd))
    node = owner(metadata=store, shared=f"etcd:{etcd}")
    names = [f"c{i:03}" for i in range(2 * CAPTURES_MAX)]
    keys = [b"%03d" % i for i in range(1, CAPTURES_MAX)]
    ranges = [Span(start, end) for start, end in zip([b"", *keys], [*keys, b""], strict=True)]

    def share(among: Sequence[str]) -> dict[str, Grant]:
        shares = {name: [one] for name, one in zip(among, ranges, strict=True)}
        return asyncio.run(node.share_out(ONE, "f00d", node.token(), shares, dict.fromkeys(among, 4)))

    first = share(names[:CAPTURES_MAX])
    asyncio.run(node.settle(ONE, first))
    assert len(share(names[:CAPTURES_MAX])) == CAPTURES_MAX, "again, as at each division"
    with pytest.raises(InvalidInput, match="more than etcd takes in one transaction"):
        share(names[CAPTURES_MAX:])
    gone = {name: Grant("f00d", node.token(), 1, 4) for name in names}
    settled = asyncio.run(node.settle(ONE, gone))
    assert all(one.fenced for one in settled.values()), "any number, in several transactions"
