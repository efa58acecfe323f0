"""Reads at a timestamp, alone and against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tikv.support import MemoryView
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Lock, Write
from tidegate.tikv.txn import snapshot

LOCK = Lock(mvcc.KIND_PUT, b"p", 10, 3000, b"new")


def view() -> MemoryView:
    found = MemoryView()
    found.put_write(b"k", 5, Write(mvcc.KIND_PUT, 4, b"old"))
    return found


def read(store: MemoryView, ts: int, **context: object) -> pb.GetResponse:
    return snapshot.get(store, pb.GetRequest(key=b"k", version=ts, context=pb.Context(**context)))


def test_a_lock_at_or_below_the_ts_blocks_a_read_and_one_above_does_not() -> None:
    store = view()
    store.put_lock(b"k", LOCK)
    assert read(store, 9).value == b"old"
    assert read(store, 10).error.locked.lock_version == 10


@pytest.mark.parametrize("kind", [mvcc.KIND_LOCK, mvcc.KIND_PESSIMISTIC])
def test_a_lock_without_data_never_does(kind: int) -> None:
    store = view()
    store.put_lock(b"k", LOCK._replace(kind=kind))
    assert read(store, 20).value == b"old"


def test_a_lock_that_must_commit_above_the_ts_is_passed() -> None:
    store = view()
    store.put_lock(b"k", LOCK._replace(min_commit_ts=21))
    assert read(store, 20).value == b"old"
    assert read(store, 21).HasField("error")


def test_a_client_that_knows_a_locks_fate_reads_past_or_through_it() -> None:
    store = view()
    store.put_lock(b"k", LOCK)
    assert read(store, 20, resolved_locks=[10]).value == b"old"
    assert read(store, 20, committed_locks=[10]).value == b"new"
    store.put_lock(b"k", LOCK._replace(kind=mvcc.KIND_DELETE, short_value=None))
    assert read(store, 20, committed_locks=[10]).not_found


def test_the_newest_read_ignores_the_lock_of_a_primary() -> None:
    store = view()
    store.put_lock(b"k", LOCK._replace(primary=b"k"))
    assert read(store, keys.TS_MAX).value == b"old"


KEYS = [b"a", b"b", b"bb", b"c", b"d"]
VERSIONS = st.dictionaries(
    st.tuples(st.sampled_from(KEYS), st.integers(1, 6)),
    st.sampled_from([b"x", b"L" * 300, None, "rollback"]),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(
    VERSIONS,
    st.dictionaries(st.sampled_from(KEYS), st.integers(1, 8), max_size=2),
    st.integers(0, 8),
    st.sampled_from([b"", b"b", b"bb"]),
    st.sampled_from([b"", b"c", b"d"]),
    st.integers(1, 6),
)
def test_a_scan_is_the_gets_of_its_range_in_order_forward_and_back(
    versions: dict[tuple[bytes, int], bytes | str | None],
    locked: dict[bytes, int],
    ts: int,
    low: bytes,
    high: bytes,
    limit: int,
) -> None:
    store = MemoryView()
    for (raw, commit_ts), value in versions.items():
        if isinstance(value, str):
            store.put_write(raw, commit_ts, Write(mvcc.KIND_ROLLBACK, commit_ts))
        elif value is None:
            store.put_write(raw, commit_ts, Write(mvcc.KIND_DELETE, commit_ts * 10))
        else:
            long = len(value) > mvcc.SHORT_VALUE_MAX
            store.put_write(raw, commit_ts, Write(mvcc.KIND_PUT, commit_ts * 10, None if long else value))
            if long:
                store.apply([(mvcc.DEFAULT, keys.versioned(keys.encode(raw), commit_ts * 10), value)])
    for raw, start_ts in locked.items():
        store.put_lock(raw, Lock(mvcc.KIND_PUT, raw, start_ts, 1, b"open"))
    inside = [raw for raw in KEYS if low <= raw and (not high or raw < high)]
    expected = list(snapshot.batch_get(store, pb.BatchGetRequest(keys=inside, version=ts)).pairs)
    bounds = [keys.encode(bound) if bound else b"" for bound in (low, high)]
    for reverse in (False, True):
        request = pb.ScanRequest(version=ts, limit=limit, reverse=reverse)
        found = list(snapshot.scan(store, request, bounds[0], bounds[1]).pairs)
        assert found == (expected[::-1] if reverse else expected)[:limit]


def test_locks_are_listed_up_to_a_start_and_a_limit() -> None:
    store = MemoryView()
    for number, raw in enumerate(KEYS):
        store.put_lock(raw, LOCK._replace(start_ts=10 * number))
    request = pb.ScanLockRequest(max_version=30)
    start = keys.encode(b"b")
    assert [lock.key for lock in snapshot.scan_locks(store, request, start, b"").locks] == [b"b", b"bb", b"c"]
    request.limit = 1
    assert [lock.lock_version for lock in snapshot.scan_locks(store, request, start, b"").locks] == [10]
