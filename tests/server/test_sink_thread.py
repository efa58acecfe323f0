"""The owner's calls of its sink, and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.server.test_node import metadata, owner
from tests.sink.test_kafka_owner import event

from tidegate.clock import SystemClock
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.barrier import DdlBatch
from tidegate.control.grants import Grant
from tidegate.control.metadata import FeedId, FeedInfo, FeedStatus
from tidegate.errors import Fenced, Retryable
from tidegate.model.ddl import DdlEvent
from tidegate.model.progress import Journal
from tidegate.model.span import Span
from tidegate.server.delivery.plan import FeedPlan, Paths
from tidegate.server.delivery.sink_thread import SinkThread, open_sink
from tidegate.server.node import Node
from tidegate.server.owner.hand_over import HandOver
from tidegate.server.owner.peers import Peers
from tidegate.server.owner.processor_link import ProcessorLink
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.replication import Replication
from tidegate.server.owner.shares import FeedShares
from tidegate.server.supervision.jobs import Jobs
from tidegate.sink.kafka import sink as kafka
from tidegate.sink.kafka import slot

__all__ = ["metadata", "owner"]

URI = parse_sink_uri("kafka://h/own?protocol=open-protocol")


class Listener:
    """A sink that notes what it is asked."""

    journal = Journal()

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def use(self, topics: Iterable[str]) -> None:
        self.asked.append(("use", list(topics)))

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        self.asked.append(("ddl", event.table, topic, event.moved_to))

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        self.asked.append(("resolved", ts))

    def forget(self, keys: Iterable[str]) -> None:
        self.asked.append("forget")

    def close(self) -> None:
        self.asked.append("close")


def test_topics_are_in_use_before_anything_is_sent_that_needs_them(tmp_path: Path) -> None:
    """Else rows, which may follow a DDL at once, or a Resolved that covers them, would come before."""
    rules = [{"matcher": ["s.*"], "topic": "{schema}_{table}"}]
    config = merge_config({"sink": {"dispatchers": rules}}, URI)
    paths = Paths(tmp_path, tmp_path / "store")
    plan = FeedPlan(1, FeedId("default", "one"), URI, config, "i", paths, "here")
    sink = Listener()

    async def run() -> None:
        thread = SinkThread(plan.feed)
        made, grant = event(10), Grant("i", (1, 1), 1, 4)
        opened = await open_sink(plan, grant, lambda _: sink, thread, ["s_known"], [made])
        named = replace(made, before={}, old_table="t1", table="t2")
        about_all = replace(made, table="", old_table="")
        await opened.send_ddl(DdlBatch(20, (named, about_all), topics=frozenset({"s_t2"})))
        await opened.send_ddl(DdlBatch(30, (), topics=frozenset({"s_quiet"})))
        await opened.send_resolved(30)
        await opened.close()

    asyncio.run(run())
    assert sink.asked == [
        ("use", ["s_known", "s_t10_0"]),
        ("ddl", "t10_0", "s_t10_0", ""),
        ("use", ["s_t2", "s_t1", "own"]),
        ("ddl", "t2", "s_t1", "s_t2"),
        ("ddl", "", "own", ""),
        ("use", ["s_quiet"]),
        ("resolved", 30),
        "close",
    ]


class Fences:
    """Divides a changefeed among captures again and again, and notes which writers each round fences."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        fenced = self.fenced = set[str]()

        class Broker:
            def __init__(self, settings: Any) -> None:
                self.id = settings["transactional.id"]

            def init_transactions(self, timeout_s: float) -> None:
                fenced.add(self.id)

        feed, nothing = FeedId("default", "one"), cast(Any, None)
        node.captured = lambda mode: nothing
        monkeypatch.setattr(slot, "Producer", Broker)
        monkeypatch.setattr(kafka, "ensure_progress_topic", lambda *_: None)
        monkeypatch.setattr(kafka, "read_records", lambda *_: {})
        info = FeedInfo(URI.render(redact=False), merge_config({}, URI).to_json(), 1, 0, 0, "normal", "i")
        peers = Peers()
        link = ProcessorLink(node, feed, peers, nothing, nothing, nothing)
        self._node, self._feed, self.watched = node, feed, SinkThread(feed)
        self._shares = FeedShares(node, FeedRecord(node, feed, info, FeedStatus(1)), peers, link, nothing)
        self._plan = FeedPlan.of(node.cluster, feed, info, node.paths, node.capture)

    async def divide(self, other: str, slots: int) -> dict[str, Grant]:
        """Give each of this capture and another one half; returns all grants that are stored then."""
        node, feed = self._node, self._feed
        self.fenced.clear()
        halves = {node.capture: [Span(b"", b"m")], other: [Span(b"m", b"")]}
        grants = await node.share_out(feed, "i", node.token(), halves, dict.fromkeys(halves, slots))
        await self._shares.fence_all(self._plan, grants, self.watched)
        await self._shares.settle(grants)
        return await node.grants(feed)


def test_a_fence_of_many_writers_does_not_seem_to_hang(
    owner: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id takes its time at the broker, and thousands of them more than `start-timeout`."""
    fences = Fences(owner(), monkeypatch)
    asyncio.run(fences.divide("there", 25))
    fences.watched.end()
    assert len(fences.fenced) == 50
    assert fences.watched.answers == 51, "one for each, and one for the call"


def test_the_writers_of_a_capture_that_is_gone_are_fenced_once(
    owner: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every round would fence all captures that there ever were."""
    fences = Fences(owner(), monkeypatch)

    async def divide() -> list[tuple[int, bool]]:
        found = []
        for other in ("gone", "there", "there"):
            stored = await fences.divide(other, 2)
            found.append((len(fences.fenced), stored["gone"].fenced))
        return found

    found = asyncio.run(divide())
    fences.watched.end()
    assert found == [(4, False), (6, True), (4, True)]


class Beginning:
    """The parts of a replication, which note what the begin of an incarnation asks of them, in order."""

    def __init__(self, folder: Path, *, fenced: bool = True) -> None:
        self.asked: list[str] = []
        self._fenced = fenced
        grants = {name: Grant("i", (1, 2), 1, 4) for name in ("here", "there")}
        paths = Paths(folder, folder / "store")
        plan = FeedPlan(1, FeedId("default", "one"), URI, merge_config({}, URI), "i", paths, "here")
        opened = SimpleNamespace(delivered_to=0, resolved_journal=5, ddl_journal=0)
        self.owner = SimpleNamespace(sink_open=lambda *journal: None)
        adopt = self._logged("adopt the settings", False)
        self._record = SimpleNamespace(plan=plan, loading=False, adopt_settings=adopt)
        self._jobs = Jobs(plan.feed, lambda: None)
        self._effects = SimpleNamespace(begin=lambda: None)
        self._check_sink = lambda: None
        self._pause = SimpleNamespace(begin=lambda: None)
        self.steps = HandOver(SystemClock())
        self.shares = SimpleNamespace(
            raise_grants=self._logged("store the grants", grants),
            lead=lambda grants: "here",
            fence_all=self._logged("fence all writers"),
            settle=self._logged("store that they are fenced"),
        )
        self.sink = SimpleNamespace(begin=lambda: None, open=self._logged("open the sink", opened))
        self.layout = SimpleNamespace(take_up=self._logged("take up the layout"))
        self.reports = SimpleNamespace(totals=SimpleNamespace(starts=0))
        self.peers = {name: name for name in grants}
        self._link = SimpleNamespace(dispatch=lambda peer, wish: self.asked.append(f"{peer}: {wish}"))
        self.ddl = SimpleNamespace(try_again=lambda: None)

    def _logged(self, what: str, answer: Any = None) -> Callable[..., Any]:
        async def ask(*given: Any) -> Any:
            self.asked.append(what)
            if what == "fence all writers" and not self._fenced:
                raise Retryable("The broker does not answer.")
            return answer

        return ask


def test_earlier_writers_are_fenced_before_the_sink_opens_and_work_begins(tmp_path: Path) -> None:
    """Otherwise a capture that has lost its ranges could still write rows that its successor writes, too."""
    feed: Any = Beginning(tmp_path)
    asyncio.run(Replication._start_incarnation(feed))
    assert feed.asked == [
        "store the grants",
        "fence all writers",
        "open the sink",
        "store that they are fenced",
        "adopt the settings",
        "take up the layout",
        "here: run",
        "there: run",
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_work_begins_only_when_it_is_stored_that_writers_are_fenced(tmp_path: Path, fails: bool) -> None:
    """The sink opens meanwhile. Otherwise captures would fence each other's new writers (safety.md)."""
    feed: Any = Beginning(tmp_path)

    async def begin() -> None:
        answered = asyncio.Event()

        async def settle(grants: Mapping[str, Grant]) -> None:
            await answered.wait()
            if fails:
                raise Fenced("another control process owns this cluster's changefeeds now")

        feed.shares.settle = settle
        beginning = asyncio.create_task(Replication._start_incarnation(feed))
        await asyncio.sleep(0.01)
        assert feed.asked[-1] == "open the sink"
        answered.set()
        with pytest.raises(Fenced) if fails else nullcontext():
            await beginning

    asyncio.run(begin())
    assert feed.asked[3:] == (
        [] if fails else ["adopt the settings", "take up the layout", "here: run", "there: run"]
    )


def test_nothing_begins_if_earlier_writers_cannot_be_fenced(tmp_path: Path) -> None:
    feed: Any = Beginning(tmp_path, fenced=False)
    with pytest.raises(Retryable):
        asyncio.run(Replication._start_incarnation(feed))
    assert feed.asked == ["store the grants", "fence all writers"]
