"""Lock and write records: their bytes, and the reader's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tikv.support import MemoryView
from tidegate.errors import Undecodable
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Lock, Write
from tidegate.tikv.reader import MvccReader

U64 = st.integers(0, keys.TS_MAX)
LOCKS = st.builds(
    Lock,
    kind=st.sampled_from([mvcc.KIND_PUT, mvcc.KIND_DELETE, mvcc.KIND_LOCK, mvcc.KIND_PESSIMISTIC]),
    primary=st.binary(max_size=80),
    start_ts=U64,
    ttl=U64,
    short_value=st.none() | st.binary(max_size=255),
    for_update_ts=U64,
    txn_size=U64,
    min_commit_ts=U64,
    secondaries=st.none() | st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    rollback_ts=st.lists(U64, max_size=3).map(tuple),
    last_change_ts=st.just(7),
    last_change_versions=st.integers(1, 1 << 40),
    txn_source=U64,
    locked_with_conflict=st.booleans(),
    generation=U64,
)
WRITES = st.builds(
    Write,
    kind=st.sampled_from([mvcc.KIND_PUT, mvcc.KIND_DELETE, mvcc.KIND_LOCK, mvcc.KIND_ROLLBACK]),
    start_ts=U64,
    short_value=st.none() | st.binary(max_size=255),
    overlapped_rollback=st.booleans(),
    gc_fence=st.none() | U64,
    last_change_ts=st.just(0),
    last_change_versions=st.integers(1, 300),
    txn_source=U64,
)


@pytest.mark.parametrize(
    ("lock", "stored"),
    [
        (Lock(mvcc.KIND_PUT, b"pk", 1, 10), "5004706b010a"),
        (Lock(mvcc.KIND_DELETE, b"", 300, 0), "4400ac0200"),
        (Lock(mvcc.KIND_PUT, b"pk", 1, 10, b"short"), "5004706b010a7605" + b"short".hex()),
        (
            Lock(mvcc.KIND_PESSIMISTIC, b"pk", 5, 3, for_update_ts=8, txn_size=2, min_commit_ts=9),
            "5304706b0503660000000000000008740000000000000002630000000000000009",
        ),
        (
            Lock(
                mvcc.KIND_PUT, b"p", 1, 1, b"", min_commit_ts=2, secondaries=(b"a", b"bc"), rollback_ts=(7,)
            ),
            "500270010176006300000000000000026102026104626372010000000000000007",
        ),
        (
            Lock(mvcc.KIND_LOCK, b"p", 1, 1, last_change_ts=4, last_change_versions=3, txn_source=1),
            "4c027001016c0000000000000004037301",
        ),
        (
            Lock(mvcc.KIND_PUT, b"p", 1, 1, locked_with_conflict=True, generation=6),
            "500270010146670000000000000006",
        ),
    ],
)
def test_a_lock_has_tikvs_bytes(lock: Lock, stored: str) -> None:
    assert mvcc.encode_lock(lock).hex() == stored
    assert mvcc.decode_lock(bytes.fromhex(stored)) == lock


@pytest.mark.parametrize(
    ("write", "stored"),
    [
        (Write(mvcc.KIND_PUT, 5), "5005"),
        (Write(mvcc.KIND_DELETE, 300), "44ac02"),
        (Write(mvcc.KIND_PUT, 5, b"abc"), "50057603616263"),
        (Write(mvcc.KIND_ROLLBACK, 5, mvcc.PROTECTED), "5205760170"),
        (Write(mvcc.KIND_PUT, 5, b"", True, 0), "5005760052460000000000000000"),
        (Write(mvcc.KIND_LOCK, 5, None, False, None, 9, 130, 3), "4c056c000000000000000982015303"),
    ],
)
def test_a_write_record_has_tikvs_bytes(write: Write, stored: str) -> None:
    assert mvcc.encode_write(write).hex() == stored
    assert mvcc.decode_write(bytes.fromhex(stored)) == write


@given(LOCKS)
def test_a_lock_comes_back(lock: Lock) -> None:
    assert mvcc.decode_lock(mvcc.encode_lock(lock)) == lock


@given(WRITES)
def test_a_write_record_comes_back(write: Write) -> None:
    assert mvcc.decode_write(mvcc.encode_write(write)) == write


def test_an_unknown_field_ends_the_parsing_and_keeps_what_was_read() -> None:
    lock = Lock(mvcc.KIND_PUT, b"pk", 1, 10, b"v", for_update_ts=4)
    assert mvcc.decode_lock(mvcc.encode_lock(lock) + b"?future") == lock
    write = Write(mvcc.KIND_PUT, 5, b"v", True)
    assert mvcc.decode_write(mvcc.encode_write(write) + b"?future") == write


@given(st.binary(max_size=30))
def test_decoding_is_total(data: bytes) -> None:
    for decode in (mvcc.decode_lock, mvcc.decode_write):
        try:
            decode(data)
        except Undecodable:
            assert True


def test_a_reader_sees_the_newest_data_version_and_skips_other_records() -> None:
    key = keys.encode(b"k")
    view = MemoryView()
    view.put_write(b"k", 10, Write(mvcc.KIND_PUT, 9, b"ten"))
    view.put_write(b"k", 15, Write(mvcc.KIND_ROLLBACK, 15))
    view.put_write(b"k", 20, Write(mvcc.KIND_LOCK, 19))
    view.put_write(b"k", 30, Write(mvcc.KIND_DELETE, 29))
    reader = MvccReader(view)
    assert reader.value_at(key, 9) is None
    assert reader.value_at(key, 10) == b"ten"
    assert reader.value_at(key, 29) == b"ten"
    assert reader.value_at(key, 30) is None
    assert reader.newest_write(key) == (30, Write(mvcc.KIND_DELETE, 29))


def test_a_fenced_version_counts_only_while_the_fence_is_there() -> None:
    view = MemoryView()
    view.put_write(b"k", 10, Write(mvcc.KIND_PUT, 9, b"old", True, 20))
    view.put_write(b"k", 20, Write(mvcc.KIND_DELETE, 19))
    assert MvccReader(view).value_at(keys.encode(b"k"), 15) == b"old"
    assert MvccReader(view).value_at(keys.encode(b"k"), 25) is None
    view.delete_write(b"k", 20)
    assert MvccReader(view).value_at(keys.encode(b"k"), 15) == b"old"
    assert MvccReader(view).value_at(keys.encode(b"k"), 25) is None, (
        "the deletion was collected, not the value"
    )


def test_the_record_of_a_transaction_is_found_by_its_start() -> None:
    key = keys.encode(b"k")
    view = MemoryView()
    view.put_write(b"k", 10, Write(mvcc.KIND_PUT, 5, b"x"))
    view.put_write(b"k", 12, Write(mvcc.KIND_PUT, 11, b"y"))
    reader = MvccReader(view)
    assert reader.record_of(key, 5).is_committed()
    assert reader.record_of(key, 5).commit_ts == 10
    overlap = reader.record_of(key, 10)
    assert overlap.write is None
    assert overlap.overlap == Write(mvcc.KIND_PUT, 5, b"x")
    assert overlap.next_data_ts == 12
    assert not overlap.is_rolled_back()
    assert reader.record_of(key, 7).overlap is None
