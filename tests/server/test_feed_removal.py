"""Grants and folders of a removed changefeed: they go, but no grant goes before its writers are fenced."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.clock import SystemClock
from tidegate.control.grants import (
    Grant,
    raised,
    shared_out,
    writers_of,
)
from tidegate.control.metadata import (
    FeedId,
    FeedInfo,
    GuardedWrites,
    Put,
    WriteResult,
    feed_key,
    floor_key,
    grant_key,
)
from tidegate.errors import Fenced, Retryable
from tidegate.model.span import Span
from tidegate.server.changefeeds import removal as feed_removal
from tidegate.server.changefeeds.removal import fenced_for_good
from tidegate.server.delivery.plan import FeedPlan, Paths
from tidegate.server.metadata.ownership import take_ownership
from tidegate.server.metadata.sqlite import SqliteMetadata
from tidegate.server.node import Node
from tidegate.server.processor.registry import ProcessorRegistry

CLUSTER = 7
ONE = FeedId("default", "one")
LOW, HIGH, ALL = Span(b"", b"m"), Span(b"m", b""), Span(b"", b"")
MakeNode = Callable[[], Node]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Makes a node that has just become the owner, with a metadata store that it shares with others."""
    metadata = SqliteMetadata(tmp_path / "metadata.db")
    nothing: Any = None
    with ThreadPoolExecutor(1) as disk:

        def make() -> Node:
            return Node(
                cluster=CLUSTER,
                address="",
                identity="",
                capture="a",
                epoch=1,
                owner_rev=take_ownership(metadata, CLUSTER, "a"),
                paths=Paths(tmp_path, tmp_path / "events"),
                pd=nothing,
                metadata=metadata,
                captured=nothing,
                clock=SystemClock(),
                disk=disk,
                application=nothing,
                open_sink=nothing,
                lost=lambda error: None,
                shared="etcd:127.0.0.1:1",
            )

        yield make
    metadata.close()


class FencingSink:
    """Notes whom it fences, and which grants are stored at that moment."""

    def __init__(self, node: Node, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._node, self._meanwhile = node, meanwhile
        self.fenced: dict[str, int] = {}
        self.stored: dict[str, Grant] = {}

    def fence(self, writers: Mapping[str, int], prove: Callable[[], None]) -> None:
        front = grant_key(CLUSTER, ONE, "")
        found = self._node.metadata.under(front)
        self.stored = {kv.key.removeprefix(front): Grant.from_bytes(kv.value) for kv in found}
        self.fenced = dict(writers)
        self._meanwhile()
        prove()


def plan_with(sink: FencingSink) -> FeedPlan:
    plan: Any = SimpleNamespace(feed=ONE, instance="f00d", sink=sink)
    return plan  # type: ignore[no-any-return]


def share_out(node: Node, **ranges: Span) -> dict[str, Grant]:
    """Grants of a changefeed with another instance each time."""
    instance, token = f"i{node.next_grant}", node.token()
    shares = {name: [span] for name, span in ranges.items()}
    return asyncio.run(node.share_out(ONE, instance, token, shares, dict.fromkeys(shares, 4)))


async def removed(node: Node, sink: FencingSink) -> dict[str, Grant]:
    grants = await fenced_for_good(node, plan_with(sink))
    if grants:
        await node.forget_grants(ONE, grants)
    return grants


def test_grants_of_a_removed_feed_are_deleted_after_its_writers_are_fenced(make_node: MakeNode) -> None:
    node = make_node()
    share_out(node, a=ALL)
    share_out(node, a=LOW, b=HIGH)
    before = share_out(node, b=LOW, c=HIGH)
    sink = FencingSink(node)
    asyncio.run(removed(node, sink))
    assert sink.fenced == {"a": 4, "b": 4, "c": 4}, "also a, which was never fenced after it lost its range"
    assert not any(grant.is_proven_by(sink.stored[name]) for name, grant in before.items())
    assert {name for name, one in sink.stored.items() if one.ranges} == {"a"}, (
        "nobody begins this incarnation"
    )
    assert sink.stored["a"].givers.keys() == {"b", "c"}, "a crash here leaves the names of those to be fenced"
    assert asyncio.run(node.grants(ONE)) == {}
    assert not [kv.key for kv in node.metadata.under("/tidegate/") if "/one/" in kv.key]


def test_a_later_feed_has_no_incarnation_of_a_deleted_grant(make_node: MakeNode) -> None:
    node = make_node()
    for _ in range(3):
        share_out(node, a=LOW, b=HIGH)
    asyncio.run(removed(node, FencingSink(node)))
    floor = node.metadata.get(floor_key(CLUSTER))
    assert floor is not None
    assert floor.value == b"4", "three, and the one that took the ranges"
    later = share_out(node, a=LOW, c=HIGH)
    assert {name: one.incarnation for name, one in later.items()} == {"a": 5, "c": 5}
    asyncio.run(removed(node, FencingSink(node)))
    assert share_out(node, b=ALL)["b"].incarnation == 7, "the floor never falls"


def test_a_late_write_of_a_deleted_grant_is_refused(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write without an answer is sent again. Its first attempt may arrive when the grant is deleted."""
    node = make_node()
    sent: list[Sequence[GuardedWrites]] = []
    transact_all = node.metadata.transact_all

    def noted(asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        sent.append(asked)
        return transact_all(asked)

    with monkeypatch.context() as patched:
        patched.setattr(node.metadata, "transact_all", noted)
        share_out(node, a=LOW, b=HIGH)
    asyncio.run(removed(node, FencingSink(node)))
    assert sent
    assert [one.succeeded for asked in sent for one in transact_all(asked)] == [False]
    assert asyncio.run(node.grants(ONE)) == {}


@pytest.mark.parametrize("fails", ["refused", "late"])
def test_grants_stay_if_the_sink_cannot_fence(
    make_node: MakeNode, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()
    share_out(node, a=LOW, b=HIGH)
    monkeypatch.setattr(feed_removal, "FENCE_S", 0.05 if fails == "late" else 10.0)

    def meanwhile() -> None:
        if fails == "refused":
            raise Retryable("The broker does not answer.")
        time.sleep(0.3)

    assert asyncio.run(removed(node, FencingSink(node, meanwhile))) == {}
    left = asyncio.run(node.grants(ONE))
    assert left.keys() == {"a", "b"}
    alone = raised(left, "c", "another", node.token(), [ALL], 4)
    assert alone["c"].givers.keys() == {"a", "b"}, "the next feed of this name fences them"
    later = shared_out(left, "another", node.token(), {"c": [LOW], "d": [HIGH]}, {"c": 4, "d": 4})
    assert writers_of(left | later).keys() == {"a", "b", "c", "d"}


def test_an_owner_that_was_replaced_deletes_no_grant(make_node: MakeNode) -> None:
    """It may wake up in the middle of a removal, when its successor has granted ranges of the next feed."""
    node = make_node()
    share_out(node, a=LOW, b=HIGH)
    successor: list[Node] = []

    def meanwhile() -> None:
        successor.append(make_node())

    assert asyncio.run(removed(node, FencingSink(node, meanwhile))) == {}
    granted = share_out(successor[0], a=HIGH, b=LOW)
    with pytest.raises(Fenced):
        asyncio.run(node.forget_grants(ONE, granted))
    with pytest.raises(Fenced):
        asyncio.run(fenced_for_good(node, plan_with(FencingSink(node))))
    assert asyncio.run(successor[0].grants(ONE)) == granted


def test_a_division_is_stored_only_over_the_grants_that_it_was_made_from(make_node: MakeNode) -> None:
    """The owner reads them once, divides, and writes."""
    node = make_node()
    share_out(node, a=LOW, b=HIGH)

    async def divide() -> None:
        stored = await node.stored_grants(ONE)
        shares = {"b": [LOW], "a": [HIGH]}
        slots = dict.fromkeys(shares, 4)
        assert (await node.share_out(ONE, "i", node.token(), shares, slots, stored)).keys() == {"a", "b"}
        with pytest.raises(Retryable, match="have changed meanwhile"):
            await node.share_out(ONE, "i", node.token(), shares, slots, stored)

    asyncio.run(divide())


def test_a_feed_that_never_ran_needs_no_fence(make_node: MakeNode) -> None:
    node = make_node()
    sink = FencingSink(node)
    assert asyncio.run(removed(node, sink)) == {}
    assert sink.fenced == {}


def spec(folder: Path, **differs: Any) -> None:
    folder.mkdir(parents=True)
    found = {"namespace": "default", "id": folder.name, "cluster_id": CLUSTER, "metadata": "etcd:127.0.0.1:1"}
    (folder / "spec-1-f00d.json").write_text(json.dumps(found | differs))


def test_a_capture_removes_folders_of_feeds_removed_while_it_was_away(make_node: MakeNode) -> None:
    node = make_node()
    folders = {name: node.paths.feed(FeedId("default", name)) for name in ("gone", "kept", "other", "torn")}
    spec(folders["gone"])
    spec(folders["kept"])
    spec(folders["other"], metadata="etcd:127.0.0.1:2")
    folders["torn"].mkdir()
    (folders["torn"] / "spec-1-f00d.json").write_text("{")
    info = FeedInfo("kafka://a/b", {}, 1, 0, 3, "normal", "f00d")
    asyncio.run(node.write(Put(feed_key(CLUSTER, FeedId("default", "kept"), "info"), info.to_bytes())))
    asyncio.run(ProcessorRegistry(node)._remove_folders())
    assert {name for name, folder in folders.items() if folder.exists()} == {"kept", "other", "torn"}


def test_a_changefeed_that_is_created_meanwhile_keeps_its_files(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader's definitions are in its folder before it is stored, so it seems to be a removed one."""
    node = make_node()
    folder = node.paths.feed(ONE)
    spec(folder)
    registry, read = ProcessorRegistry(node), Node.read

    async def read_while_it_is_created(self: Node, key: str) -> bytes | None:
        found = await read(self, key)
        await registry.clear(ONE)
        folder.mkdir(parents=True)
        (folder / "changes.db").write_text("definitions")
        return found

    monkeypatch.setattr(Node, "read", read_while_it_is_created)
    asyncio.run(registry._remove_folders())
    assert (folder / "changes.db").exists()


def test_a_creation_waits_until_the_folder_of_an_earlier_one_is_removed(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the removal under way could take the new files, too."""
    node = make_node()
    folder, begun, may_end = node.paths.feed(ONE), threading.Event(), threading.Event()
    spec(folder)
    registry, rmtree = ProcessorRegistry(node), shutil.rmtree

    def slow(path: Path, ignore_errors: bool) -> None:
        if not begun.is_set():
            begun.set()
            assert may_end.wait(60)
        rmtree(path, ignore_errors)

    async def scenario() -> None:
        removing = asyncio.create_task(registry._remove_folders())
        assert await asyncio.to_thread(begun.wait, 60)
        registry.begin(str(ONE))
        assert not registry.processors, "a processor would lose its files, too"
        creating = asyncio.create_task(registry.clear(ONE))
        await asyncio.sleep(0.02)
        assert not creating.done()
        may_end.set()
        await asyncio.gather(removing, creating)
        assert not folder.exists()

    monkeypatch.setattr(shutil, "rmtree", slow)
    asyncio.run(scenario())


def test_a_processor_that_ends_already_is_not_retired(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creation has cleared the name while it was read that no changefeed of the name is stored."""
    node = make_node()
    folder, registry, read = node.paths.feed(ONE), ProcessorRegistry(node), Node.read
    stopped, box = asyncio.Event(), object()

    async def stop() -> None:
        stopped.set()
        await asyncio.sleep(0.05)

    machine = SimpleNamespace(sequence=1, instance="f00d")
    processor: Any = SimpleNamespace(machine=machine, box=box, received_at=float("-inf"), stop=stop)

    async def read_while_it_is_created(self: Node, key: str) -> bytes | None:
        found = await read(self, key)
        asyncio.get_running_loop().create_task(create())
        await stopped.wait()
        return found

    created = []

    async def create() -> None:
        await registry.clear(ONE)
        folder.mkdir(parents=True)
        created.append(True)

    async def scenario() -> None:
        registry.processors[ONE] = processor
        node.router.processors[str(ONE)] = processor.box
        monkeypatch.setattr(Node, "read", read_while_it_is_created)
        retiring = asyncio.create_task(registry._retire())
        while not created:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        retiring.cancel()
        assert folder.exists()

    monkeypatch.setattr("tidegate.server.processor.registry.RETIRE_S", 0.01)
    asyncio.run(scenario())
