"""A segment is written in pieces that get no large pages of memory, and is the same file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.disk import DiskFull
from tidegate.eventstore import segment, segment_file
from tidegate.eventstore.order import Entry, block_of
from tidegate.eventstore.segment import Segment
from tidegate.eventstore.segment_file import PIECE, PiecewiseFile

Written = Callable[[int, Sequence[memoryview]], int]


def recorded(monkeypatch: pytest.MonkeyPatch, most: int = 1 << 40) -> list[int]:
    """The sizes of the calls of `os.writev` from now on, each of which writes at most `most` bytes."""
    sizes: list[int] = []
    write: Written = os.writev

    def limited(descriptor: int, parts: Sequence[memoryview]) -> int:
        whole = b"".join(parts)
        sizes.append(len(whole))
        return write(descriptor, [memoryview(whole[:most])])

    monkeypatch.setattr(segment_file.os, "writev", limited)
    return sizes


def wide(first: int, rows: int) -> pa.RecordBatch:
    """Rows of a kilobyte, one for each ts from `first` on."""
    return block_of(Entry(ts, ts - 1, 1, b"k%d" % ts, b"v" * 1000, b"") for ts in range(first, first + rows))


def test_no_call_writes_more_than_a_piece_or_across_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A call of megabytes would get pages of 2 MB.
    assert PIECE < 2 << 20
    sizes = recorded(monkeypatch)
    batches = [wide(1, 1500), wide(1501, 1500)]
    info = segment.write(tmp_path, "s", segment.Facts("span", 3000, 1, 3000), batches)
    assert sum(sizes) == info.bytes == (tmp_path / "s").stat().st_size
    at = 0
    for size in sizes:
        assert size > 0
        assert at // PIECE == (at + size - 1) // PIECE
        at += size
    # Pieces are as large as they may be. Besides their ends only those of the batches and of the file count.
    assert len(sizes) <= info.bytes // PIECE + 3
    found = Segment(tmp_path, info)
    assert [found.batch(i).to_pydict() for i in range(2)] == [b.to_pydict() for b in batches]


@given(
    flushes=st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=6),
    piece=st.sampled_from([1, 2, 8, 64]),
    most=st.integers(1, 80),
)
def test_whatever_is_given_is_written_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, flushes: list[list[int]], piece: int, most: int
) -> None:
    path = tmp_path_factory.mktemp("file") / "f"
    path.write_bytes(b"a file that is replaced" * 100)
    given_bytes = b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_file, "PIECE", piece)
        recorded(patch, most)
        with PiecewiseFile(path) as file:
            for sizes in flushes:
                for size in sizes:
                    part = os.urandom(size)
                    file.write(pa.py_buffer(part) if size % 2 else part)
                    given_bytes += part
                assert file.size == len(given_bytes)
                file.flush()
    assert path.read_bytes() == given_bytes


@pytest.mark.parametrize("call", ["writev", "write"])
def test_a_disk_that_fills_between_two_pieces_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    recorded(monkeypatch, PIECE - 1)

    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # `write` is called if a call wrote less than it was given, which is how Linux begins to say it.
    monkeypatch.setattr(segment_file.os, call, full)
    with pytest.raises(DiskFull):
        segment.write(tmp_path, "s", segment.Facts("span", 1500, 1, 1500), [wide(1, 1500)])
    assert not list(tmp_path.iterdir())


def test_a_batch_is_written_before_its_memory_is_used_again(tmp_path: Path) -> None:
    # Keys of the same length, so that both batches have the same sizes.
    first, second = wide(1000, 300), wide(1300, 300)
    memory = [[None if b is None else bytearray(b) for b in column.buffers()] for column in first.columns]
    shared = pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(
                column.type, 300, [None if b is None else pa.py_buffer(b) for b in held], null_count=0
            )
            for column, held in zip(first.columns, memory, strict=True)
        ],
        schema=first.schema,
    )

    def batches() -> Iterator[pa.RecordBatch]:
        yield shared
        for held, column in zip(memory, second.columns, strict=True):
            for old, new in zip(held, column.buffers(), strict=True):
                if old is not None:
                    memoryview(old)[:] = memoryview(new).cast("B")
        yield shared

    info = segment.write(tmp_path, "s", segment.Facts("span", 600, 1000, 1599), batches())
    found = Segment(tmp_path, info)
    assert [found.batch(i).to_pydict() for i in range(2)] == [first.to_pydict(), second.to_pydict()]


def test_a_file_keeps_no_descriptor_open_and_no_memory(tmp_path: Path) -> None:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())  # other threads may use the default one
    with PiecewiseFile(tmp_path / "f") as file:
        part = pa.allocate_buffer(1 << 20, pool)
        file.write(part)
        file.flush()
        del part
        # The next batch may use this memory, and nothing may hold it until the file is closed.
        assert pool.bytes_allocated() == 0
        assert descriptors_of(tmp_path / "f") == 1
    assert descriptors_of(tmp_path / "f") == 0


def descriptors_of(path: Path) -> int:
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            found += one.readlink() == path
    return found
