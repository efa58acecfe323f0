"""Why a stream was lost is told once, and again after the store was back; one reason ends the puller."""

from __future__ import annotations

import queue
import random
from pathlib import Path

import grpc
import pytest

from tests.puller.test_puller import SPAN, WAIT_S, World, fail
from tidegate.errors import TidegateError
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.puller.puller import Puller
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.tikv.services import ChangeDataService

pytestmark = pytest.mark.integration


def test_a_lost_stream_is_told_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upstream = EmbeddedUpstream(tmp_path / "upstream")
    pd = PdClient(upstream.start().pd)
    world = World(upstream, pd, tmp_path / "events", random.Random(1))
    store = EventStore(world.folder)
    puller = Puller(pd, store, on_failure=fail)
    try:
        start = pd.tso()
        puller.watch(SPAN, start)
        world.run(2)
        world.check(SPAN, start)
        for times in (1, 2):
            before = len(caplog.records)
            [stream] = puller._streams.values()
            stream.close()
            world.run(2)
            world.check(SPAN, start)
            told = [r for r in caplog.records[before:] if r.getMessage().startswith("stream lost")]
            assert len(told) == 1, times
            assert "why" in str(told[0].__dict__)
    finally:
        puller.close()
        store.close()
        pd.close()
        upstream.stop()


def test_a_store_without_multiplexed_streams_ends_the_puller_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(service: ChangeDataService, requests: object, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method EventFeedV2")

    monkeypatch.setattr(ChangeDataService, "EventFeedV2", unknown)
    failed: queue.SimpleQueue[TidegateError] = queue.SimpleQueue()
    with EmbeddedUpstream(tmp_path / "upstream") as upstream, PdClient(upstream.pd_addr) as pd:
        store = EventStore(tmp_path / "events")
        puller = Puller(pd, store, on_failure=failed.put)
        puller.watch(SPAN, pd.tso())
        error = failed.get(timeout=WAIT_S)
        assert "the store does not serve multiplexed change feeds" in error.render()
        assert "unknown method EventFeedV2" in error.render()
        assert "upgrade TiKV" in error.render()
        puller.close()
        store.close()
