"""The compiled order against the plain one."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventstore.entries import entries
from tidegate.eventstore import kernels, segment
from tidegate.eventstore.order import Entry, block_of, entries_of, order_key, sort_entries
from tidegate.model.block import MAX_BLOCK_BYTES


def sorted_by_kernel(blocks: list[pa.RecordBatch], after: int, upto: int, cut: int = 1000) -> list[Entry]:
    table = kernels.table_of([kernels.describe(b) for b in blocks])
    refs, low, high = kernels.order_rows(table, after, upto, np.zeros(len(blocks), dtype=np.int64))
    found: list[Entry] = []
    first = 0
    while first < len(refs):
        batch, first = kernels.take(table, refs, first, cut)
        assert batch.num_rows <= cut
        found += entries_of(batch)
    if found:
        assert (low, high) == (found[0].commit_ts, found[-1].commit_ts)
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(entries(), max_size=4), st.integers(0, 20), st.integers(15, 45), st.integers(1, 50))
def test_blocks_are_sorted_and_deduplicated_as_the_plain_order_says(
    parts: list[list[Entry]], after: int, upto: int, cut: int
) -> None:
    blocks = [block_of(part) for part in parts]
    plain = sort_entries([e for part in parts for e in part], after, upto)
    assert sorted_by_kernel(blocks, after, upto, cut) == plain


@settings(max_examples=150, deadline=None)
@given(
    st.lists(entries(), min_size=1, max_size=4), st.integers(0, 20), st.integers(15, 45), st.integers(1, 6)
)
def test_rows_that_are_shared_are_those_that_would_be_copied(
    parts: list[list[Entry]], after: int, upto: int, least: int
) -> None:
    """Most parts are in order, as a stream's are, and some blocks are slices."""
    blocks = [block_of([part[0], *part]).slice(1) for part in map(in_order, parts) if part]
    table = kernels.table_of([kernels.describe(b) for b in blocks])
    refs, _, _ = kernels.order_rows(table, after, upto, np.zeros(len(blocks), dtype=np.int64))
    copied = list(kernels.take_all(table, refs, kernels.allocate))
    shared = list(kernels.take_or_share(blocks, table, refs, kernels.allocate, least))
    assert [e for b in shared for e in entries_of(b)] == [e for b in copied for e in entries_of(b)]
    # A segment writes and sums them without offsets, and without the bytes of other rows.
    assert [segment._crc(b) for b in shared] == [segment._crc(block_of(entries_of(b))) for b in shared]


def in_order(part: list[Entry]) -> list[Entry]:
    return part if len(part) % 3 == 0 else sort_entries(part, 0, 99)


def test_rows_in_order_are_not_copied_and_their_block_is_kept() -> None:
    rows = [Entry(i // 10, 1, 1, b"k%06d" % i, b"v" * 20, b"o") for i in range(10, 1000)]
    blocks = [block_of(rows)]
    table = kernels.table_of([kernels.describe(b) for b in blocks])
    refs, _, _ = kernels.order_rows(table, 0, 99, np.zeros(1, dtype=np.int64))
    memory = blocks[0].column(4).buffers()[2].address
    (shared,) = kernels.take_or_share(blocks, table, refs, kernels.allocate, 100)
    assert shared.column(4).buffers()[2].address == memory
    del blocks, table
    assert entries_of(shared) == rows
    (few,) = kernels.take_or_share(
        [shared], kernels.table_of([kernels.describe(shared)]), refs, kernels.allocate
    )
    assert few.column(4).buffers()[2].address != memory


def test_shared_blocks_keep_the_limit_and_end_between_transactions() -> None:
    rows = [Entry(i // 50, 1, 1, b"k%06d" % i, bytes(4096), b"") for i in range(50, 3050)]
    blocks = [block_of(rows)]
    table = kernels.table_of([kernels.describe(b) for b in blocks])
    refs, _, _ = kernels.order_rows(table, 0, 99, np.zeros(1, dtype=np.int64))
    shared = list(kernels.take_or_share(blocks, table, refs, kernels.allocate, 100))
    assert len(shared) == 2
    assert sum(b.num_rows for b in shared) == len(rows)
    assert max(map(segment.data_bytes, shared)) <= MAX_BLOCK_BYTES
    assert segment.ends(shared[0])[1] < segment.ends(shared[1])[0]


def test_rows_out_of_order_are_copied_between_those_that_are_not() -> None:
    early = [Entry(i, 1, 1, b"k%06d" % i, b"v", b"") for i in range(1, 500)]
    late = [Entry(i, 1, 1, b"k%06d" % i, b"v", b"") for i in range(500, 1000)]
    between = [Entry(499, 1, 1, b"z%d" % i, b"v", b"") for i in range(5)]
    blocks = [block_of(late), block_of(between[::-1]), block_of(early)]
    table = kernels.table_of([kernels.describe(b) for b in blocks])
    refs, _, _ = kernels.order_rows(table, 0, 9999, np.zeros(3, dtype=np.int64))
    shared = list(kernels.take_or_share(blocks, table, refs, kernels.allocate, 100))
    assert [b.num_rows for b in shared] == [499, 5, 500]
    assert [e for b in shared for e in entries_of(b)] == early + between + late


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 99), st.integers(25, 700))
def test_a_transaction_of_many_rows_is_sorted_by_class_and_key(seed: int, size: int) -> None:
    rows = [
        Entry(7, 3, 1 + i % 2, f"key{i * 7919 % size:06}".encode(), b"v", b"" if i % 3 else b"o")
        for i in range(size)
    ]
    Random(seed).shuffle(rows)
    assert sorted_by_kernel([block_of(rows)], 0, 99) == sorted(rows, key=order_key)


def test_slices_of_blocks_are_read_at_their_offset() -> None:
    rows = [Entry(i, 1, 1, b"k%d" % i, b"v%d" % i, b"o") for i in range(1, 20)]
    assert sorted_by_kernel([block_of(rows).slice(5, 7)], 0, 99) == rows[5:12]


def test_distant_timestamps_with_the_highest_bit_are_ordered_as_unsigned() -> None:
    stamps = [1, 1 << 62, (1 << 63) + 5, (1 << 64) - 1, 1 << 33, 2]
    rows = [Entry(ts, 1, 1, b"k", b"v", b"") for ts in stamps]
    assert [e.commit_ts for e in sorted_by_kernel([block_of(rows)], 0, (1 << 64) - 1)] == sorted(stamps)


@settings(max_examples=100, deadline=None)
@given(st.lists(entries(max_size=40), min_size=1, max_size=4), st.integers(1, 60))
def test_merging_sorted_blocks_gives_each_change_once_in_order(parts: list[list[Entry]], room: int) -> None:
    runs = [sort_entries(part, 0, 99) for part in parts]
    runs = [run for run in runs if run]
    blocks = [block_of(run) for run in runs]
    cursors = np.zeros(len(blocks), dtype=np.int64)
    merged: list[Entry] = []
    while blocks:
        table = kernels.table_of([kernels.describe(b) for b in blocks])
        ends = np.array([b.num_rows for b in blocks], dtype=np.int64)
        refs = np.empty(room, dtype=np.int64)
        count = kernels.merge(table, cursors, ends, refs)
        first = 0
        while first < count:
            batch, first = kernels.take(table, refs[:count], first)
            merged += entries_of(batch)
        alive = cursors < ends
        blocks, cursors = [b for b, a in zip(blocks, alive, strict=True) if a], cursors[alive]
    expected = sort_entries([e for run in runs for e in run], 0, 99)
    assert [order_key(e) for e in merged] == [order_key(e) for e in expected]


def test_a_block_ends_between_transactions_unless_one_fills_half_of_it() -> None:
    def ends(lengths: list[int], limit: int) -> list[int]:
        rows = [
            Entry(10 + number, 1, 1, b"k%02d" % row, b"v", b"")
            for number, length in enumerate(lengths)
            for row in range(length)
        ]
        block = block_of(rows)
        table = kernels.table_of([kernels.describe(block)])
        refs, _, _ = kernels.order_rows(table, 0, 99, np.zeros(1, dtype=np.int64))
        found, sizes = [0], np.zeros(3, dtype=np.int64)
        while found[-1] < len(rows):
            end = kernels.measure(table, refs, found[-1], len(refs), limit, sizes)
            assert sizes.tolist() == [3 * (end - found[-1]), end - found[-1], 0]
            found.append(end)
        return found[1:]

    assert ends([3, 3, 3, 3], 40) == [9, 12]  # ten rows of 4 bytes fit
    assert ends([4, 4, 4], 40) == [8, 12]
    assert ends([5, 6, 1], 40) == [5, 12]
    assert ends([4, 8], 40) == [10, 12]
    assert ends([25], 40) == [10, 20, 25]
    assert ends([10, 10], 40) == [10, 20]
