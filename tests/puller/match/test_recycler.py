"""Memory returns when a block is gone, not before."""

from __future__ import annotations

import gc
from itertools import pairwise

from tidegate.puller.match.recycler import IDLE_BYTES_MAX, SMALL, Recycler
from tidegate.slabs import slab_size


def test_memory_of_a_dropped_block_is_reused_and_of_a_held_block_is_not() -> None:
    recycler = Recycler()
    first = recycler.buffers([SMALL, 10])
    address = first[0].address
    part = first[1]
    del first
    gc.collect()
    assert recycler.buffers([SMALL, 10])[0].address != address  # `part` still holds the slab
    del part
    gc.collect()
    assert recycler.idle_bytes > 0
    held = [recycler.buffers([SMALL, 10]) for _ in range(2)]
    assert address in [buffers[0].address for buffers in held]


def test_buffers_have_the_sizes_asked_for_and_do_not_overlap() -> None:
    sizes = [100_000, 0, 7, 64, 65]
    buffers = Recycler().buffers(sizes)
    assert [b.size for b in buffers] == sizes
    ends = sorted((b.address, b.address + b.size) for b in buffers if b.size)
    assert all(a[1] <= b[0] for a, b in pairwise(ends))
    assert all(b.address % 16 == 0 for b in buffers)


def test_a_slab_is_at_most_an_eighth_larger_than_its_block() -> None:
    for size in (SMALL, SMALL + 1, (8 << 20) + 1, (9 << 20) - 1, (1 << 24) - 1, 1 << 24):
        assert size <= slab_size(size) <= size + size // 8


def test_as_many_full_blocks_stay_idle_as_the_bound_has_room_for() -> None:
    block, recycler = [(8 << 20) + 1000], Recycler()
    held = [recycler.buffers(block) for _ in range(14)]
    addresses = {buffers[0].address for buffers in held}
    held.clear()
    gc.collect()
    assert IDLE_BYTES_MAX - (9 << 20) < recycler.idle_bytes <= IDLE_BYTES_MAX
    held = [recycler.buffers(block) for _ in range(14)]
    assert {buffers[0].address for buffers in held} == addresses
    assert recycler.idle_bytes == 0


def test_a_slab_serves_a_smaller_block_unless_half_of_it_would_be_unused() -> None:
    recycler = Recycler()
    address = recycler.buffers([4 << 20])[0].address
    gc.collect()
    small = recycler.buffers([2 << 20])
    assert small[0].address != address
    assert recycler.buffers([3 << 20])[0].address == address


def test_slabs_of_earlier_sizes_make_room_for_those_of_now() -> None:
    recycler = Recycler()
    held = [recycler.buffers([1 << 20]) for _ in range(IDLE_BYTES_MAX >> 20)]
    held.clear()
    gc.collect()
    assert recycler.idle_bytes == IDLE_BYTES_MAX
    recycler.buffers([9 << 20])
    gc.collect()
    before = recycler.idle_bytes
    assert IDLE_BYTES_MAX - (1 << 20) < before <= IDLE_BYTES_MAX
    held.append(recycler.buffers([9 << 20]))
    assert recycler.idle_bytes == before - slab_size(9 << 20), "it is used again"
