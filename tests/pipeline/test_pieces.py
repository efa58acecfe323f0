"""A delivery that is cut anywhere and continued emits the messages of an uncut one, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eventstore.entries import FALLING, falling

from tidegate.dispatcher.split import Part
from tidegate.eventstore.order import Entry, block_of, entries_of, op_class, sort_entries
from tidegate.eventstore.seek import beyond, place_of
from tidegate.model.position import Place, Position, Rank
from tidegate.model.progress import SpanProgress
from tidegate.pipeline.worker.pieces import ROW_BYTES, Cutter, EncodePiece, weight

Out = tuple[int, int, str, bytes]
"""A message of an entry: commit ts, start ts, operation, key."""


def changes_key(entry: Entry) -> bool:
    """An update whose new value has another first letter."""
    return op_class(entry.op, entry.old_value) == 1 and entry.value[:1] != entry.old_value[:1]


def out(entry: Entry, part: Part) -> Iterator[Out]:
    name = ("delete", "update", "insert")[op_class(entry.op, entry.old_value)]
    halves = {Part.OLD_HALVES: ["delete"], Part.NEW_HALVES: ["insert"], Part.SPLIT: ["delete", "insert"]}
    if part in (Part.OLD_HALVES, Part.NEW_HALVES):
        names = halves[part] if changes_key(entry) else []
    elif changes_key(entry) and part is not Part.WHOLE:
        names = halves.get(part, [])
    else:
        names = [name]
    for each in names:
        yield entry.commit_ts, entry.start_ts, each, entry.key


def encode(piece: EncodePiece) -> list[Out]:
    """As the stages do: a transaction with a split update is sorted by operation."""
    entries = entries_of(piece.block)
    found = [one for entry in entries for one in out(entry, piece.part)]
    if piece.part is Part.SPLIT:
        found = ordered(found, {e[:2] for e in entries if changes_key(e)})
    return found


def ordered(found: list[Out], split: set[tuple[int, ...]]) -> list[Out]:
    rank = {"delete": 0, "update": 1, "insert": 2}
    return sorted(found, key=lambda o: (o[0], o[1], rank[o[2]] if o[:2] in split else 0))


def uncut(entries: list[Entry], splits: bool) -> list[Out]:
    """All at once."""
    part = Part.SPLIT if splits else Part.WHOLE
    found = [one for entry in entries for one in out(entry, part)]
    return ordered(found, {e[:2] for e in entries if changes_key(e)} if splits else set())


def reader(entries: list[Entry], block_rows: int) -> Callable[[Place | None], Iterator[pa.RecordBatch]]:
    blocks = [block_of(entries[i : i + block_rows]) for i in range(0, len(entries), block_rows)]

    def read(past: Place | None) -> Iterator[pa.RecordBatch]:
        return iter(blocks) if past is None else beyond(blocks, past)

    return read


def deliver(cutter: Cutter, past: Position | None, pieces: int) -> tuple[list[Out], Position | None, bool]:
    """At most so many pieces: what went out, where it ends, and whether that was all."""
    found: list[Out] = []
    for piece in cutter.run(past):
        if pieces == 0:
            return found, past, False
        entries = entries_of(piece.block)
        cutter.met += sum(map(changes_key, entries))
        found += encode(piece)
        # The fields that progress records keep.
        record = SpanProgress("i", (1, 1), 1, piece.end.commit_ts - 1, piece.end)
        past = SpanProgress.from_bytes(record.to_bytes()).position
        assert past == piece.end
        pieces -= 1
    return found, past, True


logs = st.lists(
    st.builds(
        Entry,
        commit_ts=st.integers(1, 3),
        start_ts=st.integers(1, 2),
        op=st.sampled_from([1, 1, 1, 2]),
        key=st.binary(min_size=1, max_size=2),
        value=st.sampled_from([b"a1", b"b2" * 40, b"c3"]),
        old_value=st.sampled_from([b"", b"a0", b"b0"]),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(
    logs,
    st.booleans(),
    st.integers(1, 9),
    st.lists(st.integers(1, 400), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), max_size=12),
)
def test_pieces_cut_and_resumed_anywhere_equal_the_uncut_delivery(
    log: list[Entry], splits: bool, block_rows: int, budgets: list[int], cuts: list[int]
) -> None:
    entries = sort_entries(log, 0, 99)
    read = reader(entries, block_rows)
    turn = iter(range(1 << 30))

    def budget() -> int:
        return budgets[next(turn) % len(budgets)]

    found: list[Out] = []
    past: Position | None = None
    for pieces in [*cuts, 1 << 30]:
        fresh, past, whole = deliver(Cutter(read, budget, splits=splits), past, pieces)
        found += fresh
    assert whole
    assert found == uncut(entries, splits)


@settings(max_examples=100, deadline=None)
@given(logs, st.integers(1, 9), st.integers(1, 6), st.booleans())
def test_a_feed_that_changes_splitting_in_a_transaction_loses_no_change(
    log: list[Entry], block_rows: int, pieces: int, splits: bool
) -> None:
    entries = sort_entries(log, 0, 99)
    read = reader(entries, block_rows)
    first, past, _ = deliver(Cutter(read, lambda: 40, splits=splits), None, pieces)
    rest, _, _ = deliver(Cutter(read, lambda: 40, splits=not splits), past, 1 << 30)
    keys = {(o[0], o[1], o[3]) for o in first + rest}
    assert keys == {(e.commit_ts, e.start_ts, e.key) for e in entries}
    last = {(o[0], o[1], o[3]): o[2] for o in first + rest}
    for entry in entries:
        gone = last[entry.commit_ts, entry.start_ts, entry.key] == "delete"
        # If a key changes twice in one transaction, which TiKV never has, either change may come last.
        same = [e for e in entries if (*e[:2], e.key) == (*entry[:2], entry.key)]
        assert len(same) > 1 or gone == (entry.op == 2)


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("kinds", FALLING)
def test_a_mixed_transaction_with_falling_keys_survives_a_kill_at_any_row(kinds: str, splits: bool) -> None:
    """A transaction that fits nowhere goes out row by row; its record of progress is all that is left."""
    entries = sort_entries([*falling(kinds, 3, 2), *falling(kinds, 3, 1), *falling(kinds, 4, 1)], 0, 99)
    read, whole, cuts = reader(entries, 2), uncut(entries, splits), 0
    all_is_out = False
    while not all_is_out:
        first, past, all_is_out = deliver(Cutter(read, lambda: 1, splits=splits), None, cuts)
        rest, _, _ = deliver(Cutter(read, lambda: 1, splits=splits), past, 1 << 30)
        assert first + rest == whole
        cuts += 1
    assert cuts > len(entries)


def test_a_piece_holds_whole_transactions_while_they_fit() -> None:
    entries = [Entry(ts, ts - 1, 1, b"k%d" % i, b"v", b"") for ts in (5, 6, 7) for i in range(4)]
    pieces = list(Cutter(reader(entries, 3), lambda: 300, splits=True).run())
    assert [p.end[:3] for p in pieces] == [(ts, ts - 1, Rank.DONE) for ts in (5, 6, 7)]
    assert [p.block.num_rows for p in pieces] == [4, 4, 4]


@pytest.mark.parametrize(("block_rows", "pieces"), [(12, [12]), (8, [8, 4]), (6, [4, 4, 4]), (5, [4, 4, 4])])
def test_the_last_transaction_of_a_block_goes_out_with_it_if_whole(
    block_rows: int, pieces: list[int]
) -> None:
    entries = [Entry(ts, ts - 1, 1, b"k%d" % i, b"v", b"") for ts in (5, 6, 7) for i in range(4)]
    found = list(Cutter(reader(entries, block_rows), lambda: 10_000, splits=True).run())
    assert [p.block.num_rows for p in found] == pieces
    assert [entry for p in found for entry in entries_of(p.block)] == entries


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("budget", [30, 100, 150, 290])
def test_no_piece_is_larger_than_the_budget_unless_it_is_one_entry(budget: int, splits: bool) -> None:
    entries = [Entry(ts, ts - 1, 1, b"k%d" % i, b"v", b"") for ts in (5, 6, 7) for i in range(4)]
    found = [p.block for p in Cutter(reader(entries, 12), lambda: budget, splits=splits).run()]
    assert [entry for block in found for entry in entries_of(block)] == entries
    assert all(weight(block) <= budget or block.num_rows == 1 for block in found)


def test_a_transaction_that_was_begun_is_always_a_piece_of_its_own() -> None:
    entries = [Entry(ts, ts - 1, 1, b"k%d" % i, b"v", b"") for ts in (5, 6, 7) for i in range(4)]
    found = Cutter(reader(entries, 12), lambda: 10_000, splits=True, apart=frozenset({(6, 5)})).run()
    assert [(p.part, p.block.num_rows) for p in found] == [
        (Part.SPLIT, 4),
        (Part.UPDATES, 4),
        (Part.SPLIT, 4),
    ]


@given(logs, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_a_slice_counts_the_bytes_of_its_own_entries(log: list[Entry], first: int, count: int) -> None:
    some = log[first : first + count]
    expected = sum(len(e.key) + len(e.value) + len(e.old_value) + ROW_BYTES for e in some)
    assert weight(block_of(log).slice(first, count)) == expected


@pytest.mark.parametrize("row", range(6))
def test_entries_beyond_a_place_are_found_in_any_block(row: int) -> None:
    entries = [Entry(9, 8, 1, bytes([65 + i]), b"v", b"") for i in range(6)]
    blocks = [block_of(entries[:2]), block_of(entries[2:3]), block_of(entries[3:])]
    place = place_of(block_of(entries), row)
    found = [entry for block in beyond(blocks, place) for entry in entries_of(block)]
    assert found == entries[row + 1 :]


def test_a_record_of_a_former_version_has_no_position() -> None:
    old = b'{"instance": "i", "token": [1, 2], "incarnation": 3, "ts": 77}'
    assert SpanProgress.from_bytes(old) == SpanProgress("i", (1, 2), 3, 77)
