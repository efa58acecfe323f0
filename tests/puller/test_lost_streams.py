"""Why a stream was lost is told, once for each reason, and again after the store was back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.puller.test_puller import SPAN, World, fail
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.puller.puller import Puller
from tidegate.tikv.server import EmbeddedUpstream

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
