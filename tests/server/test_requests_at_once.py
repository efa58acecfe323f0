"""Requests about one changefeed that come while an earlier one is still being carried out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, wait_for

from tidegate.control.changefeed import Command
from tidegate.control.messages import Wish
from tidegate.control.metadata import FeedError, FeedId
from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.server.changefeeds.new_feed import check_new
from tidegate.server.changefeeds.reactor import Reactor
from tidegate.server.owner.feed import Feed
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration

__all__ = ["bank", "capture"]

ONE = FeedId("default", "one")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker is there to delete a topic."""
    monkeypatch.setattr("tidegate.sink.kafka.topics.DELETE_TIMEOUT_S", 0.5)


def ask(capture: Running, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return each request's result or error; each begins as soon as the one before has to wait."""

    async def together() -> list[Any]:
        return await asyncio.gather(*requests, return_exceptions=True)

    return asyncio.run_coroutine_threadsafe(together(), capture._loop).result(240)


def running(capture: Running, pd: PdClient) -> Reactor:
    capture.create("one")
    capture.wait_checkpoint("one", pd.tso())
    return capture.capture.reactor


async def once_it_ends(reactor: Reactor, request: Coroutine[Any, Any, Any]) -> None:
    """The request, when an earlier one has begun to end the feed's pipeline process."""
    feed = reactor.feeds[ONE]
    while (asked := feed.replication.peers[feed.node.capture].asked) is None or asked.wish is Wish.RUN:
        await asyncio.sleep(0.01)
    await request


def test_a_second_feed_is_created_without_reading_upstreams_catalogue(
    bank: BankWorkload, capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(capture, pd)

    def read(*_: Any) -> Any:
        raise AssertionError("upstream's catalogue was read")

    monkeypatch.setattr("tidegate.server.changefeeds.creation.load_catalogue", read)
    made = capture.create("two")
    assert made["http"] == 200
    assert made["config"]["tidegate"]["ids_per_stripe"] == 1
    capture.wait_checkpoint("two", pd.tso())


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_second_pause_or_shutdown_does_not_save_the_pipeline_process(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    """The first pause kills it all the same."""
    reactor, pid = running(capture, pd), capture.pipeline_pid("one")
    os.kill(pid, signal.SIGSTOP)
    again = once_it_ends(reactor, reactor.command(ONE, Command.PAUSE))
    shutdown = once_it_ends(reactor, reactor.feeds[ONE].stop())
    assert ask(capture, reactor.command(ONE, Command.PAUSE), again, shutdown) == [None, None, None]
    assert not exists(pid)
    assert capture.feed("one")["state"] == "stopped"


def test_a_pause_does_not_save_the_pipeline_process_of_a_failed_run(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    reactor, pid = running(capture, pd), capture.pipeline_pid("one")
    os.kill(pid, signal.SIGSTOP)
    capture._loop.call_soon_threadsafe(reactor.feeds[ONE].replication._jobs.fail, Retryable("made to fail"))
    assert ask(capture, once_it_ends(reactor, reactor.command(ONE, Command.PAUSE))) == [None]
    assert not exists(pid)
    assert capture.feed("one")["state"] == "stopped"


def test_a_feed_that_fails_at_every_look_releases_all_it_holds(
    bank: BankWorkload, capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reactor = running(capture, pd)

    def lost() -> None:
        raise Fatal("made to fail")

    with monkeypatch.context() as failing:
        failing.setattr(capture.capture.processor_registry.processors[ONE], "_tick", lost)
        assert "made to fail" in capture.wait_state("one", "failed")["error"]["message"]
        wait_for(lambda: not capture.capture.spans.held, "its spans to be released")
    assert not reactor.feeds[ONE].replication._link.left_behind
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    capture.wait_checkpoint("one", pd.tso())


def test_a_pause_that_comes_while_a_feed_is_removed_does_not_bring_it_back(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    reactor, pid = running(capture, pd), capture.pipeline_pid("one")
    feed = reactor.feeds[ONE]
    removed, refused = ask(capture, reactor.remove(ONE), reactor.command(ONE, Command.PAUSE))
    assert removed is None
    assert isinstance(refused, InvalidInput)
    assert "changefeed not exists" in refused.what
    assert not exists(pid)
    capture._loop.call_soon_threadsafe(feed.replication.warn, FeedError("late", "CDC:ErrPuller", 0))
    assert capture.feed("one")["error_code"] == "CDC:ErrChangeFeedNotExists"
    stored = capture.capture.node.metadata.under("/tidegate/")
    assert [kv.key.split("/")[-3] for kv in stored if "/one" in kv.key] == ["grant"]


def test_a_name_is_taken_until_all_of_the_removed_feed_is_gone(
    bank: BankWorkload, capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reactor = running(capture, pd)
    refused_by_then = asyncio.Event()

    async def forget_progress(feed: Feed) -> None:
        await refused_by_then.wait()

    monkeypatch.setattr(reactor, "_forget_progress", forget_progress)
    new = check_new(ONE, "kafka://127.0.0.1:1/one?protocol=open-protocol", {}, 0, 0)

    async def create() -> None:
        # The API shows the feed until its progress topic is deleted, which is waited for here.
        while (ONE, True) in [(name, feed.record.life.runs) for name, feed in reactor.feeds.items()]:
            await asyncio.sleep(0.01)
        try:
            await reactor.create(new)
        finally:
            refused_by_then.set()

    removed, refused = ask(capture, reactor.remove(ONE), create())
    assert removed is None
    assert isinstance(refused, InvalidInput)
    assert "already exists" in refused.what
    assert capture.create("one")["http"] == 200


def test_a_resume_waits_for_the_update_that_came_before_it(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    reactor = running(capture, pd)
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    end = pd.tso()
    updated, resumed = ask(capture, reactor.update(ONE, target_ts=end), reactor.resume(ONE))
    assert (updated.id, resumed) == (ONE, None)
    capture.wait_state("one", "finished")
    wait_for(lambda: capture.lines("one")[-1].get("resolved") == end, "the last Resolved")
