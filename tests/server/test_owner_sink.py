"""What the owner asks of its sink, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sink.test_kafka_owner import event

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.barrier import DdlBatch
from tidegate.control.metadata import FeedId, Grant
from tidegate.model.ddl import DdlEvent
from tidegate.model.progress import Journal
from tidegate.server.feed_plan import FeedPlan, Paths
from tidegate.server.owner_sink import SinkThread, open_sink
from tidegate.sink.kafka import slot

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


def test_topics_are_in_use_before_anything_is_told_that_needs_them(tmp_path: Path) -> None:
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


def test_a_fence_of_many_writers_does_not_seem_to_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each id takes its time at the broker, and thousands of them more than `start-timeout`."""

    class Broker:
        def __init__(self, settings: Any) -> None:
            self.id = settings["transactional.id"]

        def init_transactions(self, timeout_s: float) -> None:
            seen.append(watched.answers)

    seen: list[int] = []
    watched = SinkThread(FeedId("default", "one"))
    monkeypatch.setattr(slot, "Producer", Broker)
    monkeypatch.setattr(slot, "FENCES_AT_ONCE", 1)
    config = merge_config({}, URI)

    async def fence() -> None:
        ids = [f"id-{number}" for number in range(50)]
        await watched.call("the fence", lambda: slot.fence_slots(URI, config, ids, alive=watched.answered))

    asyncio.run(fence())
    watched.end()
    assert len(seen) == 50
    assert watched.answers == 51, "one for each, and one for the call"
