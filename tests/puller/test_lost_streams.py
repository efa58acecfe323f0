"""The reason for a lost stream is logged once, and again after the store was back."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.puller.test_puller import SPAN, World, eventually, fail
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.puller.puller import Puller
from tidegate.tikv.rpc.change_data_service import ChangeDataService
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration


def test_a_lost_stream_is_logged_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
            [stream] = puller.streams
            stream.close()
            world.run(2)
            world.check(SPAN, start)
            reported = [r for r in caplog.records[before:] if r.getMessage().startswith("stream lost")]
            assert len(reported) == 1, times
            assert "why" in str(reported[0].__dict__)
    finally:
        puller.close()
        store.close()
        pd.close()
        upstream.stop()


def test_what_has_no_multiplexed_streams_is_asked_pd_for_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program at the address of a store that was replaced must not end all spans."""

    known, serve = threading.Event(), ChangeDataService.EventFeedV2

    def serve_late(service: ChangeDataService, requests: Any, context: grpc.ServicerContext) -> Any:
        if not known.is_set():
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method EventFeedV2")
        return serve(service, requests, context)

    monkeypatch.setattr(ChangeDataService, "EventFeedV2", serve_late)
    with EmbeddedUpstream(tmp_path / "upstream") as upstream, PdClient(upstream.pd_addr) as pd:
        world = World(upstream, pd, tmp_path / "events", random.Random(3))
        store = EventStore(world.folder)
        puller = Puller(pd, store, on_failure=fail)
        start = pd.tso()
        with caplog.at_level("WARNING"):
            puller.watch(SPAN, start)
            eventually(lambda: puller.status()[0].errors.get("stream_lost", 0) > 2, "some attempts")
        [reported] = [r for r in caplog.records if r.getMessage().startswith("stream lost")]
        assert "as TiKV has since 7.5: unknown method EventFeedV2" in str(reported.__dict__)
        known.set()
        world.run(2)
        world.check(SPAN, start)
        puller.close()
        store.close()
