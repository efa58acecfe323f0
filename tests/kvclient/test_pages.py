"""Pages of a scan as Arrow columns: what the plain scan gives, through locks, splits and cut-off bytes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.values import TXN_MODE
from tidegate.errors import Retryable
from tidegate.kvclient import pages as page_module
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pages import columns_of, pages
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.snapshot import Snapshot, following
from tidegate.kvclient.transaction import PUT, Mutation, Transaction, TwoPhase
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.model.key_range import after_all, front_of
from tidegate.model.span import Span
from tidegate.proto import errorpb_pb2 as errorpb
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.tables.reader import region_starts
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream

ALL = Span(b"", b"")
PAIRS = st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), max_size=8)


def response(pairs: list[tuple[bytes, bytes]]) -> kvrpcpb.ScanResponse:
    return kvrpcpb.ScanResponse(pairs=[kvrpcpb.KvPair(key=k, value=v, commit_ts=7) for k, v in pairs])


@given(PAIRS)
def test_a_plain_page_is_read_as_protobuf_reads_it(pairs: list[tuple[bytes, bytes]]) -> None:
    found = columns_of(response(pairs).SerializeToString(), 8)
    assert found is not None
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == pairs


@given(PAIRS, st.binary(max_size=40), st.integers(0, 3000))
def test_damaged_bytes_are_left_to_protobuf(pairs: list[tuple[bytes, bytes]], junk: bytes, cut: int) -> None:
    whole = response(pairs).SerializeToString()
    damaged = whole[:cut] + junk + whole[cut + 3 :]
    found = columns_of(damaged, 8)
    assert found is None or found.num_rows <= 8


@pytest.mark.parametrize(
    "odd",
    [
        kvrpcpb.ScanResponse(region_error=errorpb.Error(message="moved")),
        kvrpcpb.ScanResponse(error=kvrpcpb.KeyError(abort="no")),
        kvrpcpb.ScanResponse(pairs=[kvrpcpb.KvPair(key=b"k", error=kvrpcpb.KeyError(abort="no"))]),
        response([(b"k", b"v")] * 9),
    ],
)
def test_errors_and_too_many_pairs_are_no_plain_page(odd: kvrpcpb.ScanResponse) -> None:
    assert columns_of(odd.SerializeToString(), 8) is None


def test_a_scan_continues_after_a_full_page_a_large_one_and_a_region() -> None:
    assert following(b"k", 10, 100, 10, b"m", b"z") == b"k\0"
    assert following(b"k", 3, 5 << 20, 10, b"m", b"z") == b"k\0"
    assert following(b"k", 3, 100, 10, b"m", b"z") == b"m"
    assert following(b"", 0, 0, 10, b"z", b"z") is None


class Store:
    """Pages of a span without end, with ten bytes in each row."""

    def __init__(self) -> None:
        self.fetched = 0
        """The number of rows in all pages so far."""

    def page(self, pd: object, snapshot: object, span: Span, rows: int) -> tuple[pa.RecordBatch, Span]:
        self.fetched += rows
        columns = [pa.array([b"12345"] * rows, pa.binary())] * 2
        # The offsets of a column, 4 bytes a row, count as well.
        return pa.RecordBatch.from_arrays(columns, schema=page_module.PAGE_SCHEMA), span


@pytest.mark.parametrize(
    ("limits", "expected"), [({"rows_max": 2000}, 2000), ({"bytes_max": 36_000}, 2000), ({}, 21_760)]
)
def test_no_page_is_fetched_that_the_caller_will_not_take(
    limits: dict[str, int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load with a limit of rows per second read eleven times as much as it delivered."""
    store, taken, none = Store(), 0, cast("Any", None)
    monkeypatch.setattr(page_module, "_page", store.page)
    for page in pages(none, none, ALL, **limits):
        taken += page.num_rows
        if taken >= 2000:
            break
    assert expected <= store.fetched <= expected + 5


def test_a_caller_that_takes_more_than_it_said_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store, none = Store(), cast("Any", None)
    monkeypatch.setattr(page_module, "_page", store.page)
    found = pages(none, none, ALL, rows_max=300)
    assert [next(found).num_rows for _ in range(4)] == [256, 44, 4096, 16_384]


@pytest.mark.integration
def test_pages_hold_what_a_scan_gives_though_a_lock_is_in_the_way(pd: PdClient) -> None:
    written = Transaction(pd)
    keys = [bytes([first]) + b"%03d" % n for first in range(0, 256, 16) for n in range(60)]
    written.write(Mutation(PUT, key, key * 3) for key in keys)
    written.commit()
    abandoned = TwoPhase(pd, pd.tso(), keys[300], ttl_ms=1)
    abandoned.prewrite([Mutation(PUT, key, b"never") for key in keys[300:320]], Backoff())
    ts, span = pd.tso(), Span(b"\x10", b"\xb0030")
    found = list(pages(pd, Snapshot(pd, ts), span))
    pairs = [pair for page in found for pair in zip(*(c.to_pylist() for c in page.columns), strict=True)]
    assert pairs == list(Snapshot(pd, ts).scan(span))
    assert [key for key, _ in pairs] == [key for key in keys if span.contains(key)]
    assert len(found) > 1


@pytest.mark.integration
def test_pages_of_a_keyspace_are_asked_for_in_it(tmp_path: Path) -> None:
    front = front_of(TXN_MODE, 1)
    written = [front + b"%03d" % n for n in range(300)]
    with (
        EmbeddedUpstream(tmp_path, api_version=2, keyspaces=["one"], regions=2) as upstream,
        PdClient(upstream.pd_addr) as pd,
    ):
        requester, start_ts = RegionRequester(pd, 1), pd.tso()
        prewrite = kvrpcpb.PrewriteRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=key) for key in written],
            primary_lock=written[0],
            start_version=start_ts,
            lock_ttl=3000,
        )
        requester.at_key(written[0], "KvPrewrite", prewrite, Backoff())
        commit = kvrpcpb.CommitRequest(keys=written, start_version=start_ts, commit_version=pd.tso())
        requester.at_key(written[0], "KvCommit", commit, Backoff())
        UpstreamControl(pd).split(0, [encode_bytes(written[100])])
        span = Span(front, after_all(front))
        found = list(pages(pd, Snapshot(pd, pd.tso(), keyspace_id=1), span))
        assert [key for page in found for key in page.column(0).to_pylist()] == written
        with pytest.raises(Retryable, match="API V1 may name"):
            list(pages(pd, Snapshot(pd, pd.tso()), span))


@pytest.mark.integration
def test_a_span_without_end_is_cut_where_regions_end(pd: PdClient) -> None:
    UpstreamControl(pd).split(0, [encode_bytes(key) for key in (b"a", b"k", b"t")])
    for span, inside in ((Span(b"", b""), [b"a", b"k", b"t"]), (Span(b"b", b""), [b"k", b"t"])):
        ranges = span.cut_at([key for key in region_starts(pd, span) if key in (b"a", b"k", b"t")])
        assert ranges == [Span(*edges) for edges in pairwise([span.start, *inside, b""])]
