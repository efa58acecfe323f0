"""Pages of a scan as Arrow columns: what the plain scan gives, through locks, splits and cut-off bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pages import columns_of, pages
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot, following
from tidegate.kvclient.transaction import PUT, Mutation, Transaction, TwoPhase
from tidegate.model.span import Span
from tidegate.proto import errorpb_pb2 as errorpb
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb

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


def test_a_scan_goes_on_after_a_full_page_a_large_one_and_a_region() -> None:
    assert following(b"k", 10, 100, 10, b"m", b"z") == b"k\0"
    assert following(b"k", 3, 5 << 20, 10, b"m", b"z") == b"k\0"
    assert following(b"k", 3, 100, 10, b"m", b"z") == b"m"
    assert following(b"", 0, 0, 10, b"z", b"z") is None


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
