"""Net effect against a row-by-row oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumer.plain_net_effect import plain_effect, plain_keep, plain_not_replayed
from tidegate.consumer.applying.net_effect import (
    Changes,
    _keep,
    factorize,
    net_bag,
    net_effect,
    not_replayed,
    ordered_codes,
)
from tidegate.model.cells import DELETE, INSERT, UPDATE

NAMES = ["a", "b", "v"]
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])
Row = tuple[int, str, int]
Event = tuple[int, int, Row | None, Row | None]


def changes_of(events: list[tuple[int, int, Row | None, Row | None]], old_names: list[str]) -> Changes:
    """Events are (commit_ts, op, old, new), in topic order of one partition."""
    n = len(events)
    none = (None, None, None)
    new = [event[3] or none for event in events]
    old = [event[2] or none for event in events]
    table = pa.table([[row[i] for row in new] for i in range(3)], schema=SCHEMA)
    before = pa.table([[row[i] for row in old] for i in range(3)], schema=SCHEMA).select(old_names)
    return Changes(
        op=np.array([event[1] for event in events], np.uint8),
        commit_ts=np.array([event[0] for event in events], np.uint64),
        partition=np.zeros(n, np.int32),
        offset=np.arange(n, dtype=np.int64),
        seq=np.zeros(n, np.int32),
        new=table,
        old=before,
    )


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[dict[tuple[int, str], Row], list[tuple[int, int, Row | None, Row | None]]]:
    """A start state and a history of single-row transactions that is possible from it."""
    keys = st.tuples(st.integers(0, 3), st.sampled_from(["x", "y"]))
    start = {key: (*key, draw(st.integers(0, 9))) for key in draw(st.sets(keys, max_size=4))}
    state, events = dict(start), []
    for ts in range(1, draw(st.integers(0, 12)) + 1):
        key, to, value = draw(keys), draw(keys), draw(st.integers(0, 9))
        if key not in state:
            events.append((ts, INSERT, None, (*key, value)))
            state[key] = (*key, value)
        elif draw(st.booleans()):
            events.append((ts, DELETE, state.pop(key), None))
        elif to == key or to not in state:
            events.append((ts, UPDATE, state.pop(key), (*to, value)))
            state[to] = (*to, value)
    return start, events


def without_old_values(events: list[Event]) -> list[Event]:
    """An update is an insert of its new values, behind a delete when the key changes."""
    found: list[Event] = []
    for ts, op, old, new in events:
        if op == UPDATE and old is not None and new is not None:
            found += [(ts, DELETE, old, None)] if old[:2] != new[:2] else []
            found.append((ts, INSERT, None, new))
        else:
            found.append((ts, op, old, new))
    return found


def end_of(start: dict[tuple[int, str], Row], events: list[Event]) -> dict[tuple[int, str], Row]:
    """The rows after the history."""
    end = dict(start)
    for _, _, old, new in events:
        if old is not None:
            del end[old[:2]]
        if new is not None:
            end[new[:2]] = new
    return end


@given(histories(), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_net_effect_takes_the_start_to_the_end(history, old_values, random) -> None:  # type: ignore[no-untyped-def]
    start, events = history
    end = end_of(start, events)
    sent = events if old_values else without_old_values(events)
    doubled = sent + [event for event in sent if random.random() < 0.4]
    effect = net_effect(changes_of(doubled, ["a", "b"]), ["a", "b"], trust_inserts=old_values)
    upserts = {(row["a"], row["b"]): tuple(row[n] for n in NAMES) for row in effect.upserts.to_pylist()}
    deletes = {(row["a"], row["b"]) for row in effect.deletes.to_pylist()}
    assert not upserts.keys() & deletes
    assert len(upserts) == effect.upserts.num_rows, "a key occurs once"
    if effect.only_inserts:
        assert not upserts.keys() & start.keys()
    got = {key: row for key, row in start.items() if key not in deletes} | upserts
    assert got == end


def test_delete_and_insert_of_one_key_in_one_transaction_is_an_upsert() -> None:
    split = [(5, INSERT, None, (1, "x", 2)), (5, DELETE, (1, "x", 1), None)]
    effect = net_effect(changes_of(split, ["a", "b"]), ["a", "b"])
    assert effect.upserts.to_pylist() == [{"a": 1, "b": "x", "v": 2}]
    assert effect.deletes.num_rows == 0
    assert not effect.only_inserts


def test_a_row_that_an_update_without_old_values_touched_is_deleted() -> None:
    sent = [(5, INSERT, None, (1, "x", 2)), (6, DELETE, (1, "x", 2), None)]
    assert net_effect(changes_of(sent, ["a", "b"]), ["a", "b"]).deletes.num_rows == 0
    doubted = net_effect(changes_of(sent, ["a", "b"]), ["a", "b"], trust_inserts=False)
    assert doubted.deletes.to_pylist() == [{"a": 1, "b": "x"}]
    assert not net_effect(changes_of(sent[:1], ["a", "b"]), ["a", "b"], trust_inserts=False).only_inserts


def test_no_changes_have_no_effect() -> None:
    effect = net_effect(changes_of([], ["a", "b"]), ["a", "b"])
    assert effect.upserts.num_rows == effect.deletes.num_rows == 0


def test_a_bag_counts_equal_rows_and_forgets_replays() -> None:
    row = (1, "x", 1)
    first = [(5, INSERT, None, row), (5, INSERT, None, row), (6, INSERT, None, row)]
    effect = net_bag(changes_of([*first, *first], NAMES))
    assert effect.inserts.num_rows == 3
    assert len(set(effect.identities)) == 3
    gone = net_bag(changes_of([*first, (7, DELETE, row, None), (7, DELETE, row, None)], NAMES))
    assert gone.inserts.num_rows == 1
    assert net_bag(changes_of([(8, DELETE, row, None)], NAMES)).deletes.num_rows == 1


@given(st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "a"]))))
def test_factorize_numbers_equal_rows_equally(rows: list[tuple[int | None, str | None]]) -> None:
    table = pa.table(
        {"a": pa.array([r[0] for r in rows], pa.int64()), "b": pa.array([r[1] for r in rows], pa.string())}
    )
    codes = factorize(table).tolist()
    assert len(set(codes)) == len(set(rows))
    assert sorted(Counter(codes).values()) == sorted(Counter(rows).values())


CHANGED = st.tuples(
    st.integers(1, 4),
    st.sampled_from([INSERT, UPDATE, DELETE]),
    st.tuples(st.integers(0, 3), st.sampled_from(["", "x", "é"]), st.integers(0, 9)),
    st.tuples(st.integers(0, 3), st.sampled_from(["", "x", "é"]), st.integers(0, 9)),
    st.integers(0, 2),
)
"""A commit ts, an operation, the rows before and after it, and a partition; not possible in every order."""


def any_changes(rows: list[Any]) -> Changes:
    """Changes whose rows fit to no history."""
    events = [
        (ts, op, None if op == INSERT else old, None if op == DELETE else new) for ts, op, old, new, _ in rows
    ]
    partition = np.array([row[-1] for row in rows], np.int32)
    return replace(changes_of(events, NAMES), partition=partition)


@given(st.lists(CHANGED, max_size=30), st.sampled_from(["a", "b", "ab", "ba"]), st.booleans(), st.booleans())
@settings(deadline=None)
def test_the_effect_is_that_of_the_plain_twin(
    rows: list[Any], names: str, trust: bool, by_kind: bool
) -> None:
    changes, keys = any_changes(rows), list(names)
    effect = net_effect(changes, keys, trust, by_kind)
    upserts, deletes = plain_effect(changes, keys, trust, by_kind)
    assert [tuple(row.values()) for row in effect.upserts.to_pylist()] == [row for row, _ in upserts]
    assert effect.fresh.tolist() == [fresh for _, fresh in upserts]
    assert [tuple(row.values()) for row in effect.deletes.to_pylist()] == deletes


@given(st.lists(CHANGED, max_size=40), st.data())
@settings(deadline=None)
def test_a_bag_keeps_the_entries_that_its_plain_twin_keeps(rows: list[Any], data: st.DataObject) -> None:
    changes, count = any_changes(rows), len(rows)
    sign = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=count, max_size=count))
    content = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    row = data.draw(st.permutations(range(count)))
    found = not_replayed(changes, *(np.array(one, np.int64) for one in (row, sign, content)))
    assert found.tolist() == plain_not_replayed(changes, row, sign, content)
    wanted, eligible = data.draw(st.tuples(*[st.integers(-1, 9)] * 3)), np.array(sign, np.int64) > 0
    kept = _keep(np.array(content, np.int64), eligible, np.array(wanted, np.int64))
    assert kept.tolist() == plain_keep(content, eligible.tolist(), wanted)


@given(st.lists(st.tuples(st.none() | st.integers(-2, 2), st.none() | st.binary(max_size=2))))
def test_codes_are_in_the_order_of_the_values(rows: list[tuple[int | None, bytes | None]]) -> None:
    columns = pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.binary())
    for table in (pa.table(columns, ["a", "b"]), pa.table(columns[1:], ["b"]), pa.table(columns[:1], ["a"])):
        values = [
            [
                (one is None, one if one is not None else b"" if name == "b" else 0)
                for name, one in row.items()
            ]
            for row in table.to_pylist()
        ]
        codes = ordered_codes(table).tolist()
        in_order = sorted(range(len(rows)), key=codes.__getitem__)
        assert [values[at] for at in in_order] == sorted(values)
        assert len(set(codes)) == len(set(map(str, values)))


def test_more_distinct_keys_than_a_code_has_room_for_are_numbered_again() -> None:
    count = 3000
    columns = {f"k{at}": np.random.default_rng(at).permutation(count).astype(str) for at in range(7)}
    table = pa.table(columns)
    expected = sorted(range(count), key=lambda at: [columns[name][at] for name in columns])
    assert np.argsort(ordered_codes(table), kind="stable").tolist() == expected
    assert len(set(factorize(table).tolist())) == count
