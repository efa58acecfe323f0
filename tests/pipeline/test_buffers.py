"""The memory of a worker's messages: used again by the next piece, never within one, and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from tests.pipeline.recorded import RecordedFeed
from tests.pipeline.test_stripes import BANK, UPTO, URI, Keeper

from tidegate.kernel import PAD, buffer
from tidegate.model.message import MessageBlock
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.buffers import (
    KEPT,
    KEPT_BYTES,
    KEPT_CELLS,
    UNUSED,
    WASTE,
    Buffers,
    Bytes,
    Cells,
)
from tidegate.pipeline.worker.deliver import Worker
from tidegate.pipeline.worker.load_task import entries
from tidegate.sink.base import Content


def test_a_buffer_is_taken_again_by_the_next_piece_and_not_before() -> None:
    buffers = Buffers()
    first, second = buffers.take(1000), buffers.take(1000)
    assert not np.shares_memory(first, second)
    assert len(first) >= 1000 + PAD
    buffers.next_piece()
    again = [buffers.take(900) for _ in range(3)]
    assert [sum(np.shares_memory(one, old) for old in (first, second)) for one in again] == [1, 1, 0]
    assert not np.shares_memory(again[0], again[1])


def test_a_buffer_serves_only_messages_that_fit_and_fill_it_somewhat() -> None:
    buffers = Buffers()
    large = buffers.take(100_000)
    buffers.next_piece()
    most = len(large) - PAD
    assert not np.shares_memory(buffers.take(most + 1), large)
    assert not np.shares_memory(buffers.take(most // WASTE - PAD), large)
    assert np.shares_memory(buffers.take(most // WASTE + 1), large)


def test_pieces_that_grow_by_less_than_an_eighth_share_one_buffer() -> None:
    buffers = Buffers()
    first = buffers.take(100_000)
    for size in (100_001, 104_000, 112_500):
        buffers.next_piece()
        assert np.shares_memory(buffers.take(size), first)
    buffers.next_piece()
    assert not np.shares_memory(buffers.take(112_501), first)


def test_a_buffer_is_not_made_so_large_that_it_is_not_kept() -> None:
    buffers, size = Buffers(), KEPT_BYTES - PAD - 1
    first = buffers.take(size)
    buffers.next_piece()
    assert np.shares_memory(buffers.take(size), first)


def test_buffers_that_are_kept_are_bounded_and_forgotten_at_rest() -> None:
    buffers = Buffers()
    taken = [buffers.take(1000 + number) for number in range(KEPT + 1)]
    buffers.next_piece()
    again = [buffers.take(1000) for _ in taken]
    assert sum(any(np.shares_memory(one, old) for old in taken) for one in again) == KEPT
    buffers = Buffers()
    huge, small = buffers.take(KEPT_BYTES), buffers.take(10)
    buffers.next_piece()
    assert not np.shares_memory(buffers.take(KEPT_BYTES), huge)
    assert np.shares_memory(buffers.take(10), small)
    buffers.next_piece()
    buffers.forget()
    assert not np.shares_memory(buffers.take(10), small)


def test_a_buffer_that_later_pieces_do_not_use_is_given_up() -> None:
    buffers = Buffers()
    large = buffers.take(100_000)
    buffers.next_piece()
    for _ in range(UNUSED):
        assert any(one.buffer is large for one in buffers._free)
        buffers.take(1000)
        buffers.next_piece()
    assert not any(one.buffer is large for one in buffers._free)


class Noting(Keeper):
    """Also notes where the messages are in memory."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.places = room, list[int]()

    def write(self, contents: Sequence[Content]) -> None:
        super().write(contents)
        self.places += [one.data.ctypes.data for one in contents if isinstance(one, MessageBlock)]


def test_small_pieces_share_memory_and_say_the_same_as_a_large_one(tmp_path: Path) -> None:
    found = []
    for room in (2 << 10, 1 << 30):
        feed, keeper = RecordedFeed(tmp_path / str(room), BANK, URI, UPTO), Noting(room)
        spec = FeedSpec.load(feed.write())
        spans = Bounds.load(feed.feed_dir / "bounds.json").spans
        worker = Worker(LocalAccess(spec), lambda _: 1, keeper)  # type: ignore[arg-type]
        worker.deliver([Range(span, ts, feed.last_ts) for span, ts in spans.items()])
        found.append(keeper)
    small, large = found
    assert len(small.places) > 50
    assert len(set(small.places)) < len(small.places) / 5
    assert len(small.messages) == len(large.messages) > 1000
    assert sorted(small.messages) == sorted(large.messages)


def test_the_cells_of_each_tile_have_the_memory_of_the_one_before() -> None:
    cells = Cells()
    first = cells.take(1000)
    assert len(first) >= 1000 + PAD
    assert np.shares_memory(cells.take(900), first)
    larger = cells.take(KEPT_CELLS)
    assert np.shares_memory(cells.take(1000), larger)
    huge = cells.take(KEPT_CELLS + 1)
    assert len(huge) > KEPT_CELLS
    assert np.shares_memory(cells.take(1000), larger)
    cells.forget()
    assert not np.shares_memory(cells.take(1000), larger)


class Frozen:
    """A clock that shows one time, because messages carry it."""

    def now_ms(self) -> int:
        return 1_796_000_000_000


@pytest.mark.parametrize(("log", "protocol"), [("keys", "canal-json"), ("bank", "simple")])
def test_rows_cut_into_tiles_become_the_same_messages(tmp_path: Path, protocol: str, log: str) -> None:
    found = []
    for tile_bytes in (1_000, 1 << 30):
        path = BANK.with_name(f"{log}.jsonl.gz")
        feed = RecordedFeed(tmp_path / str(tile_bytes), path, f"kafka://127.0.0.1:1/t?protocol={protocol}")
        spec, keeper = FeedSpec.load(feed.write()), Keeper()
        spans = Bounds.load(feed.feed_dir / "bounds.json").spans
        worker = Worker(LocalAccess(spec), lambda _: 3, keeper)  # type: ignore[arg-type]
        worker.plan, worker.clock = replace(worker.plan, tile_bytes=tile_bytes), Frozen()
        worker.deliver([Range(span, ts, feed.last_ts) for span, ts in spans.items()])
        found.append(keeper.messages)
    tiles, whole = ([one for one in messages if b"tableSchema" not in one[1]] for messages in found)
    assert len(whole) > 500
    assert tiles == whole
    # A tile adds no definition. But the first one need not have rows for every partition.
    assert sorted(found[0]) == sorted(found[1])


def test_an_initial_load_is_cut_into_tiles_although_it_is_one_transaction(tmp_path: Path) -> None:
    feed = RecordedFeed(tmp_path, BANK, "kafka://127.0.0.1:1/t?protocol=canal-json", UPTO)
    spec = FeedSpec.load(feed.write())
    worker = Worker(LocalAccess(spec), lambda _: 3, Keeper())  # type: ignore[arg-type]
    worker.clock = Frozen()  # type: ignore[assignment]
    assert worker.schemas is not None
    spans, found, upto = Bounds.load(feed.feed_dir / "bounds.json").spans, [], feed.last_ts
    blocks = [one for span, ts in spans.items() for one in worker.access.read([(span, ts, upto)])]
    block = max(blocks, key=len)
    pairs = block.filter(pc.not_equal(block.column("value"), b"")).select(["key", "value"])
    sizes = list[int]()

    def cells(size: int) -> Bytes:
        sizes.append(size)
        return buffer(size)

    for tile_bytes in (1 << 30, 1_000):
        keeper = Keeper()
        sizes.clear()
        worker.plan = replace(worker.plan, cells=cells, tile_bytes=tile_bytes)
        keeper.write(worker.encode(entries(pairs, upto), worker.schemas.upto(upto), at=upto).content)
        found.append(keeper.messages)
        assert max(sizes) <= tile_bytes
    assert len(found[0]) == pairs.num_rows > 100
    assert found[0] == found[1]
