"""A reader that ends after any row, and begins again at its place, skips no row and reads none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eventstore.entries import FALLING, falling
from tidegate.eventstore import reader
from tidegate.eventstore.order import Entry, block_of, entries_of, op_class
from tidegate.eventstore.seek import place_of
from tidegate.eventstore.store import EventStore
from tidegate.model.position import Place
from tidegate.model.span import Span

SPAN = Span(b"a", b"z")


def in_order(entries: list[Entry]) -> list[Entry]:
    """Written out, so that the test does not depend on the store's own order: the class before the key."""
    return sorted(entries, key=lambda e: (e.commit_ts, e.start_ts, op_class(e.op, e.old_value), e.key))


@pytest.mark.parametrize("runs", [1, 4], ids=["one segment", "segments that overlap"])
@pytest.mark.parametrize("kinds", FALLING)
def test_a_mixed_transaction_with_falling_keys_resumes_after_any_row(
    tmp_path: Path, kinds: str, runs: int
) -> None:
    """Transactions with the same keys are around it, one of them with the same commit ts."""
    around = ((99, 80), (100, 90), (100, 95), (101, 85))
    kept = [entry for stamps in around for entry in falling(kinds, *stamps)]
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(50)
    for first in range(runs):
        span.append(block_of(kept[first::runs]))
        span.spill()
    span.seal(200)
    store.publish()

    def read(past: Place | None, max_rows: int) -> list[Entry]:
        after = 50 if past is None else past[0] - 1
        blocks = reader.read(tmp_path, span.id, after, 200, max_rows, past)
        return [entry for block in blocks for entry in entries_of(block)]

    whole = read(None, 1000)
    assert whole == in_order(kept)
    block = block_of(whole)
    for row in range(len(whole)):
        for max_rows in (1, 4, 1000):
            assert whole[: row + 1] + read(place_of(block, row), max_rows) == whole
    store.close()
