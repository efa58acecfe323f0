"""Memory returns when a block is gone, not before."""

from __future__ import annotations

import gc
from itertools import pairwise

from tidegate.puller.match.recycler import SMALL, Recycler


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
