"""The stored record of a changefeed: its checkpoint never goes back."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.config.reading import config_from_json, merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedError, FeedId, FeedInfo, FeedStatus, Put
from tidegate.errors import Retryable
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


def test_a_warning_while_settings_are_stored_does_not_undo_them() -> None:
    """It replaces the whole info, and captures read what is stored: they would follow other pieces of tables
    than the owner has granted.
    """
    stored: list[FeedInfo] = []
    record = record_over(Etcd())
    earlier = record.info
    later = dataclasses.replace(earlier, config={**earlier.config, "case_sensitive": True}, cuts_why="hot")

    async def write(put: Put) -> None:
        await asyncio.sleep(0)
        stored.append(FeedInfo.from_bytes(put.value))

    async def both() -> None:
        record._node.write = write  # type: ignore[method-assign, assignment]
        update = asyncio.create_task(record.update(later))
        await asyncio.sleep(0)
        await record.become(record.life.warned(FeedError("a region has no leader", "CDC:Err", 1, "a")))
        await update

    asyncio.run(both())
    assert [one.state for one in stored] == ["normal", "warning"]
    assert {one.cuts_why for one in stored} == {"hot"}
    assert record.info == stored[-1]
    assert record.config.case_sensitive
    assert record.life.state is State.WARNING


def test_settings_that_could_not_be_stored_are_not_in_memory() -> None:
    record = record_over(Etcd())
    earlier = record.info

    async def write(put: Put) -> None:
        raise Retryable("etcd does not answer")

    record._node.write = write  # type: ignore[method-assign, assignment]
    config = record.config
    with pytest.raises(Retryable):
        asyncio.run(record.update(dataclasses.replace(earlier, cuts_why="hot")))
    assert record.info is earlier
    assert record.config is config


def test_settings_that_a_warning_has_stored_are_in_memory_as_a_whole() -> None:
    """Their own write has failed, but the warning's has not, and it contains them."""
    stored: list[FeedInfo] = []
    record = record_over(Etcd())
    later = dataclasses.replace(record.info, config={**record.info.config, "case_sensitive": True})

    async def write(put: Put) -> None:
        info = FeedInfo.from_bytes(put.value)
        await asyncio.sleep(0)
        if info.error is None:
            raise Retryable("etcd does not answer")
        stored.append(info)

    async def both() -> None:
        record._node.write = write  # type: ignore[method-assign, assignment]
        update = asyncio.create_task(record.update(later))
        await asyncio.sleep(0)
        await record.become(record.life.warned(FeedError("a region has no leader", "CDC:Err", 1, "a")))
        with pytest.raises(Retryable):
            await update

    asyncio.run(both())
    assert record.info == stored[-1]
    assert record.config == config_from_json(stored[-1].config)
    assert record.config.case_sensitive
