"""Transactional keys without tables: what a transaction wrote last counts, be it the empty value."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.puller.test_puller import eventually, fail
from tidegate.config.values import TXN_MODE
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.order import entries_of
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.model.key_range import after_all
from tidegate.model.span import Span, span_id
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration
SPAN = Span(b"k", after_all(b"k"))
NAME = span_id(SPAN, TXN_MODE)


def test_a_commit_writes_the_empty_value_of_a_later_flush(tmp_path: Path) -> None:
    block_matcher.warm()
    store_kernels.warm()
    folder = tmp_path / "events"
    with EmbeddedUpstream(tmp_path / "upstream") as upstream, PdClient(upstream.pd_addr) as pd:
        requester = RegionRequester(pd)
        store = EventStore(folder, kv_mode=TXN_MODE)
        puller = Puller(pd, store, kv_mode=TXN_MODE, on_failure=fail)
        start_ts = pd.tso()
        puller.watch(SPAN, start_ts)
        for generation, values in ((1, (b"one", b"two")), (2, (b"", b"three"))):
            pairs = zip((b"k1", b"k2"), values, strict=True)
            flush = kvrpcpb.FlushRequest(
                mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=value) for key, value in pairs],
                primary_key=b"k1",
                start_ts=start_ts,
                generation=generation,
                lock_ttl=60_000,
                min_commit_ts=start_ts + 1,
            )
            assert not requester.at_key(b"k1", "KvFlush", flush, Backoff(20_000)).errors
        commit_ts = pd.tso()
        commit = kvrpcpb.CommitRequest(start_version=start_ts, keys=[b"k1", b"k2"], commit_version=commit_ts)
        assert not requester.at_key(b"k1", "KvCommit", commit, Backoff(20_000)).HasField("error")
        eventually(lambda: store_view.read_frontier(folder).get(NAME, 0) >= commit_ts, "the commit")
        puller.close()
        store.close()
    found = [e for block in reader.read(folder, NAME, start_ts, commit_ts) for e in entries_of(block)]
    assert [(entry.commit_ts, entry.key, entry.value) for entry in found] == [
        (commit_ts, b"k1", b""),
        (commit_ts, b"k2", b"three"),
    ]
