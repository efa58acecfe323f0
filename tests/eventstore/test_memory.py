"""A reader's memory is that of a few blocks, however large a transaction and however many runs hold it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.eventstore.order import Entry
from tidegate.eventstore.reader import read
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


def block(entries: list[Entry]) -> pa.RecordBatch:
    """Entries as a block of the store."""
    columns = zip(*entries, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ENTRY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
