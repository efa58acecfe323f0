"""The right to write: what a node may store, and how it grants it to the incarnations of a feed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidegate.clock import SystemClock
from tidegate.control.metadata import (
    FeedId,
    Grant,
    MetadataStore,
    Outcome,
    Put,
    Transaction,
    format_key,
    grant_key,
)
from tidegate.errors import Fenced, InvalidInput, Retryable, TidegateError
from tidegate.model.span import Span
from tidegate.server.capture import check_format, take_ownership
from tidegate.server.feed_plan import Paths
from tidegate.server.metadata_sqlite import SqliteMetadata
from tidegate.server.node import Node

CLUSTER, CAPTURE = 7, "here"
EVERYTHING = Span(b"", b"")
ONE, TWO = FeedId("default", "one"), FeedId("default", "two")


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[SqliteMetadata]:
    store = SqliteMetadata(tmp_path / "metadata.db")
    yield store
    store.close()


@pytest.fixture
def owner(metadata: SqliteMetadata, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes a node that has just become the owner; `lost` is told when it is no longer."""
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


def test_each_grant_is_a_later_incarnation_and_fences_every_slot_there_ever_was(
    owner: Callable[..., Node], metadata: SqliteMetadata
) -> None:
    def raised(node: Node, feed: FeedId, slots: int) -> Grant:
        return asyncio.run(node.raise_grant(feed, "f00d", node.token(), [EVERYTHING], slots))

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
    told: list[TidegateError] = []
    replaced, ours = owner(told.append), owner()
    with pytest.raises(Fenced, match="Another control process owns"):
        asyncio.run(replaced.write(Put("/key", b"")))
    with pytest.raises(Fenced):
        asyncio.run(replaced.raise_grant(ONE, "f00d", replaced.token(), [EVERYTHING], 4))
    assert [type(error) for error in told] == [Fenced, Fenced]
    assert metadata.get("/key") is None
    assert metadata.get(grant_key(CLUSTER, ONE, CAPTURE)) is None
    assert asyncio.run(ours.write(Put("/key", b"")))


def test_a_write_that_waits_while_ownership_is_taken_anew_is_stored_under_the_new_one(
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
    """Its grants lie under other keys: an incarnation would begin beside one that still writes."""
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

    def transact_all(self, asked: Sequence[Transaction]) -> list[Outcome]:
        outcomes = super().transact_all(asked)
        if self.silent:
            raise Retryable("etcd does not answer.")
        return outcomes


@pytest.mark.parametrize("shared", ["", "etcd:127.0.0.1:1"])
def test_a_shared_store_that_does_not_answer_ends_what_is_believed_of_the_feeds(
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


def test_nothing_is_written_once_the_session_is_over_whatever_the_store_knows(
    owner: Callable[..., Node], metadata: SqliteMetadata
) -> None:
    lost: list[TidegateError] = []
    node = owner(lost.append, over=lambda: Fenced("The session is over."))
    with pytest.raises(Fenced):
        asyncio.run(node.write(Put("/x", b"1")))
    assert len(lost) == 1
    assert metadata.get("/x") is None
