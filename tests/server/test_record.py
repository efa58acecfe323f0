"""The stored record of a changefeed: its checkpoint never goes back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.metadata import FeedId, FeedInfo, FeedStatus, Put
from tidegate.server.owner.record import FeedRecord

URI = parse_sink_uri("kafka://h/own?protocol=open-protocol")


class Etcd:
    """A store that notes each checkpoint as it arrives; the first write waits for `arrives`."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.stored: list[int] = []
        self._is_slow = is_slow
        self.arrives = asyncio.Event()

    async def write(self, put: Put, *, patience_s: float) -> None:
        if self._is_slow:
            self._is_slow = False
            await self.arrives.wait()
        self.stored.append(FeedStatus.from_bytes(put.value).checkpoint_ts)


def record_over(etcd: Etcd) -> FeedRecord:
    """The record of a changefeed whose stored checkpoint is 5."""
    node: Any = SimpleNamespace(cluster=1, captured=lambda mode: None, write=etcd.write)
    info = FeedInfo(URI.render(redact=False), merge_config({}, URI).to_json(), 1, 0, 0, "normal", "i")
    return FeedRecord(node, FeedId("default", "one"), info, FeedStatus(5))


def test_a_lower_checkpoint_leaves_the_stored_one_as_it_is() -> None:
    """The next owner would send rows again below what a Resolved has covered."""
    etcd = Etcd()
    record = record_over(etcd)

    async def store() -> None:
        for ts in (20, 10, 4, 30):
            await record.store(ts)

    asyncio.run(store())
    assert etcd.stored == [20, 20, 20, 30]
    assert record.persisted == 30


def test_a_slow_write_of_a_checkpoint_ends_before_a_later_one_begins() -> None:
    """Otherwise it would arrive after the later one, and replace it."""

    async def store() -> list[int]:
        etcd = Etcd(is_slow=True)
        record = record_over(etcd)
        writes = [asyncio.create_task(record.store(ts)) for ts in (10, 20)]
        for _ in range(5):
            await asyncio.sleep(0)
        etcd.arrives.set()
        await asyncio.gather(*writes)
        return etcd.stored

    assert asyncio.run(store()) == [10, 20]
