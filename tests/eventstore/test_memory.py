"""A reader's memory is that of a few blocks, however large a transaction and however many runs hold it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.eventstore import segment, span_files
from tidegate.eventstore.order import Entry
from tidegate.eventstore.reader import JOINED_BYTES, merged, read
from tidegate.eventstore.segment import UNLOAD_BYTES, Segment
from tidegate.eventstore.store import EventStore
from tidegate.model.block import ENTRY_SCHEMA, MAX_BLOCK_BYTES, OP_PUT
from tidegate.model.span import Span

ROOT = Path(__file__).parents[2]
ROWS, ROW_BYTES, TS = 34_000, 5_000, 7
READER_BYTES = {1: 10 * MAX_BLOCK_BYTES, 20: 20 * MAX_BLOCK_BYTES}
"""By runs: a few blocks, and of each run what one page fault may map, up to two huge pages."""

CHILD = """
import sys
from pathlib import Path
from tests.memory import taken_by
from tidegate.eventstore import kernels
from tidegate.eventstore.reader import read

def drain(upto):
    for block in read(Path(sys.argv[1]), sys.argv[2], 0, upto):
        hash(block.column(4).buffers()[2].to_pybytes()[::4096])

kernels.warm()
drain(1)
print(taken_by(lambda: drain(9)))
"""


@pytest.mark.parametrize("runs", READER_BYTES)
def test_a_reader_holds_a_few_blocks_of_a_transaction_of_any_size(tmp_path: Path, runs: int) -> None:
    store = EventStore(tmp_path, memory_bytes=0 if runs > 1 else 1 << 40)
    span = store.open_span(Span(b"", b""))
    span.append(block([Entry(1, 1, OP_PUT, b"k", b"v", b"")]))
    filler = b"x" * ROW_BYTES
    entries = [Entry(TS, 1, OP_PUT, b"%08d" % row, b"%d" % row + filler, b"") for row in range(ROWS)]
    for run in range(runs):
        span.append(block(entries[run::runs]))
    span.seal(9)
    store.publish()
    assert len(span.manifest.segments) >= runs
    assert READER_BYTES[runs] < ROWS * ROW_BYTES
    command = [sys.executable, "-c", CHILD, str(tmp_path), span.id]
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) < READER_BYTES[runs]
    keys = [key.as_py() for part in read(tmp_path, span.id, 1, 9) for key in part.column(3)]
    assert keys == [entry.key for entry in entries]


@pytest.mark.parametrize(("row_bytes", "is_joined"), [(100, True), (5_000, False)])
def test_only_small_pieces_are_copied_to_be_joined(tmp_path: Path, row_bytes: int, is_joined: bool) -> None:
    """A copy of large ones would cost more than to pass on two blocks."""
    store = EventStore(tmp_path, memory_bytes=1 << 40)
    span = store.open_span(Span(b"", b""))
    for ts in (3, 5):
        rows = [Entry(ts, 1, OP_PUT, b"%08d" % row, b"v" * row_bytes, b"") for row in range(600)]
        assert (600 * row_bytes >= JOINED_BYTES) is not is_joined
        span.append(block(rows))
        span.seal(ts)
    store.publish()
    blocks = list(read(tmp_path, span.id, 1, 5))
    assert [one.num_rows for one in blocks] == ([1200] if is_joined else [600, 600])
    mapped = [one.column(4).buffers()[2].address in mappings(tmp_path) for one in blocks]
    assert mapped == ([False] if is_joined else [True, True])
    segments = [Segment(tmp_path / span.id, one) for one in span.manifest.segments]
    stored = span_files._joined(segments, 1, 5)
    assert [one.num_rows for one in stored] == [1200], "it is copied anyway, and each reader pays for a block"


def test_pages_of_a_verified_batch_are_mapped_until_the_next_one_is(tmp_path: Path) -> None:
    """Its rows are read next, and to map it once more costs as much as its CRC."""
    rows = UNLOAD_BYTES // 1_000
    batches = [
        block([Entry(ts, 1, OP_PUT, b"%08d" % row, b"v" * 1_000, b"") for row in range(rows)])
        for ts in (3, 5, 7)
    ]
    info = segment.write(tmp_path, "s", segment.Facts("span", 3 * rows, 3, 7), batches)
    found = Segment(tmp_path, info)
    resident = []
    for index in range(3):
        found.batch(index)
        resident.append(sum(mappings(tmp_path).values()))
    assert all(UNLOAD_BYTES <= each < 2 * UNLOAD_BYTES for each in resident)


def test_a_merge_maps_one_whole_batch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments of one transaction run out of rows together, so their next batches are read together."""
    rows = UNLOAD_BYTES // 1_000
    segments = []
    for number in range(8):
        keys = [b"%08d" % (8 * row + number) for row in range(2 * rows)]
        entries = [Entry(5, 1, OP_PUT, key, b"v" * 1_000, b"") for key in keys]
        batches = [block(entries[:rows]), block(entries[rows:])]
        facts = segment.Facts("span", 2 * rows, 5, 5)
        segments.append(Segment(tmp_path, segment.write(tmp_path, str(number), facts, batches)))
    resident = []
    verified = Segment.batch

    def batch(one: Segment, index: int) -> pa.RecordBatch:
        found = verified(one, index)
        resident.append(sum(mappings(tmp_path).values()))
        return found

    monkeypatch.setattr(Segment, "batch", batch)
    assert sum(one.num_rows for one in merged(segments, 1, 5)) == 8 * 2 * rows
    assert len(resident) == 8 * 2
    assert max(resident) < 4 * UNLOAD_BYTES


def test_a_segment_that_was_read_is_not_mapped_until_the_end_of_the_read(tmp_path: Path) -> None:
    rows = JOINED_BYTES // 1_000
    segments = []
    for ts in range(3, 11):
        batches = [block([Entry(ts, 1, OP_PUT, b"%08d" % row, b"v" * 1_000, b"") for row in range(rows)])]
        facts = segment.Facts("span", rows, ts, ts)
        segments.append(Segment(tmp_path, segment.write(tmp_path, str(ts), facts, batches)))
    resident = [sum(mappings(tmp_path).values()) for _ in merged(segments, 1, 10)]
    assert len(resident) == 8
    # The segment of this block, and of the one before, which a caller that looks ahead has yet to read.
    assert all(JOINED_BYTES < each < 3 * JOINED_BYTES for each in resident)


class Mappings(dict[range, int]):
    """The resident bytes of each range of addresses. `in`: whether an address is in one of them."""

    def __contains__(self, address: object) -> bool:
        return any(address in each for each in self)


def mappings(folder: Path) -> Mappings:
    """Those of the files of a folder in this process."""
    found, at = Mappings(), range(0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            first, end = (int(word, 16) for word in words[0].split("-"))
            at = range(first, end) if words[-1].startswith(str(folder)) else range(0)
        elif words[0] == "Rss:" and at:
            found[at] = 1024 * int(words[1])
    return found


def block(entries: list[Entry]) -> pa.RecordBatch:
    """Entries as a block of the store."""
    columns = zip(*entries, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ENTRY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
