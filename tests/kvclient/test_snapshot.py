import pytest

from tidegate.errors import Fatal, Retryable
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pages import pages
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import PUT, Mutation, Transaction, TwoPhase
from tidegate.model.span import Span
from tidegate.tikv.server import EmbeddedUpstream

KEYS = [bytes([first]) + b"%03d" % n for first in range(0, 256, 16) for n in range(20)]
ALL = Span(b"", b"")


def fill(pd: PdClient, value: bytes = b"v") -> int:
    txn = Transaction(pd)
    txn.write(Mutation(PUT, key, value) for key in KEYS)
    return txn.commit()


@pytest.mark.parametrize("page_rows", [1, 7, 1024])
def test_a_scan_gives_every_key_once_and_in_order_over_all_regions(pd: PdClient, page_rows: int) -> None:
    snapshot = Snapshot(pd, fill(pd))
    assert [k for k, _ in snapshot.scan(ALL, page_rows=page_rows)] == KEYS


def test_a_scan_stops_at_the_end_of_its_span_and_at_its_limit(pd: PdClient) -> None:
    snapshot = Snapshot(pd, fill(pd))
    inside = [k for k in KEYS if b"\x10" <= k < b"\xb0005"]
    assert [k for k, _ in snapshot.scan(Span(b"\x10", b"\xb0005"), page_rows=16)] == inside
    assert [k for k, _ in snapshot.scan(ALL, 50, page_rows=16)] == KEYS[:50]
    assert list(snapshot.scan(ALL, 0)) == []


def test_a_page_too_large_for_a_message_is_asked_for_by_halves(
    upstream: EmbeddedUpstream, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 definitions of wide tables do not fit into one answer; without halves no feed would start."""
    ts = fill(pd, bytes(1000))
    small = [("grpc.max_receive_message_length", 10_000)]
    monkeypatch.setattr("tidegate.kvclient.channel._OPTIONS", small)
    with PdClient(upstream.pd_addr) as narrow:
        assert [k for k, _ in Snapshot(narrow, ts).scan(ALL)] == KEYS
        read = list(pages(narrow, Snapshot(narrow, ts), ALL))
        assert [k.as_py() for page in read for k in page.column(0)] == KEYS
        ts = fill(pd, bytes(20_000))
        with pytest.raises(Fatal) as caught:
            list(Snapshot(narrow, ts).scan(Span(KEYS[3], b"")))
    assert "larger than a message" in caught.value.what
    assert KEYS[3].hex() in caught.value.where


def test_a_read_does_not_see_what_is_committed_later(pd: PdClient) -> None:
    first = fill(pd, b"old")
    fill(pd, b"new")
    assert {v for _, v in Snapshot(pd, first).scan(ALL)} == {b"old"}


def test_a_lock_of_a_committed_transaction_is_cleared_by_the_reader(pd: PdClient) -> None:
    half = TwoPhase(pd, pd.tso(), KEYS[0])
    half.prewrite([Mutation(PUT, key, b"v") for key in KEYS], Backoff())
    commit_ts = pd.tso()
    half.commit([KEYS[0]], commit_ts, Backoff())
    assert [k for k, _ in Snapshot(pd, pd.tso()).scan(ALL)] == KEYS
    assert Snapshot(pd, pd.tso()).get(KEYS[-1]) == b"v"


def test_an_expired_lock_is_rolled_back_by_the_reader(pd: PdClient) -> None:
    abandoned = TwoPhase(pd, pd.tso(), KEYS[0], ttl_ms=1)
    abandoned.prewrite([Mutation(PUT, key, b"v") for key in KEYS[:40]], Backoff())
    assert list(Snapshot(pd, pd.tso()).scan(ALL)) == []
    assert abandoned.committed_at(Backoff()) == 0


def test_a_live_lock_is_waited_for_within_the_budget_and_named(pd: PdClient) -> None:
    live = TwoPhase(pd, pd.tso(), b"k", ttl_ms=60_000)
    live.prewrite([Mutation(PUT, b"k", b"v")], Backoff())
    before = live.start_ts - 1
    assert Snapshot(pd, before).get(b"k") is None
    with pytest.raises(Retryable) as caught:
        Snapshot(pd, pd.tso(), budget_ms=200).get(b"k")
    assert str(live.start_ts) in str(caught.value)
