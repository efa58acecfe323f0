"""A piece of memory is used again when nothing refers to it, not before."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.slabs import Slabs

SIZE = 100_000


def address_of(piece: memoryview) -> int:
    return int(pa.py_buffer(piece).address)


@pytest.mark.parametrize(
    "part",
    [
        lambda piece: piece[7:9],
        lambda piece: pa.py_buffer(piece).slice(7, 2),
        lambda piece: np.frombuffer(piece, np.uint8)[7:9],
        lambda piece: piece.cast("H"),
    ],
)
def test_memory_is_used_again_after_the_last_part_of_it_is_gone(
    part: Callable[[memoryview], Any],
) -> None:
    slabs = Slabs(1 << 20)
    piece = slabs.piece(SIZE)
    address, held = address_of(piece), part(piece)
    del piece
    gc.collect()
    assert slabs.idle_bytes == 0
    assert address_of(slabs.piece(SIZE)) != address
    gc.collect()
    del held
    gc.collect()
    assert address in {address_of(piece) for piece in [slabs.piece(SIZE) for _ in range(2)]}


def test_more_than_the_bound_is_not_kept() -> None:
    slabs = Slabs(1 << 20)
    pieces = [slabs.piece(400_000) for _ in range(5)]
    pieces.append(slabs.piece(2 << 20))
    pieces.clear()
    gc.collect()
    assert 400_000 < slabs.idle_bytes <= 1 << 20


def test_a_piece_above_the_bound_leaves_the_others_idle() -> None:
    slabs = Slabs(1 << 20)
    slabs.piece(400_000)
    slabs.piece(2 << 20)
    assert slabs.idle_bytes >= 400_000
