"""Tables in stripes: the same is wanted as with a span for each table, whatever DDL comes."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.test_capture import Running, bank, capture

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.model.span import span_id
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.server.catalogue.stripes import (
    SPANS_MAX,
    STRIPES,
    Stripes,
    chosen_width,
    ids_of,
    spans_json,
    table_task,
    wider,
)
from tidegate.server.catalogue.stripes import wanted_ids as in_turn
from tidegate.tidb import keys
from tidegate.workload.bank import BankWorkload

__all__ = ["bank", "capture"]

IDS = st.integers(1, 40)


def wanted_ids(tasks: dict[str, SpanTask]) -> list[int]:
    assert all(list(in_turn(task)) == ids_of(task) for task in tasks.values())
    return sorted(table for task in tasks.values() for table in ids_of(task))


def apply(tasks: dict[str, SpanTask], batch: DdlBatch) -> None:
    """As the processor does when the bound has passed the batch."""
    for name in batch.removed:
        del tasks[name]
    for task in batch.added:
        held = tasks.get(task.id)
        start_ts = task.start_ts if held is None else held.start_ts
        tasks[task.id] = SpanTask(task.id, task.span, task.physical_id, start_ts, task.wanted)


@given(
    st.frozensets(IDS),
    st.lists(st.tuples(st.frozensets(IDS), st.frozensets(IDS)), max_size=8),
    st.sampled_from([1, 2, 7, 16, 64]),
)
def test_stripes_hold_what_spans_of_tables_hold(
    initial: frozenset[int], steps: list[tuple[frozenset[int], frozenset[int]]], width: int
) -> None:
    stripes, wanted = Stripes(width), set(initial)
    tasks = {task.id: task for task in stripes.begin(table_task(table, 5) for table in sorted(initial))}
    assert wanted_ids(tasks) == sorted(wanted)
    for ts, (come, go) in enumerate(steps, start=10):
        come, go = come - wanted, go & wanted
        added = tuple(table_task(table, ts) for table in sorted(come))
        removed = frozenset(table_task(table, ts).id for table in go)
        (batch,) = stripes.follow([DdlBatch(ts, (), added, removed, removed_tables=frozenset(go))])
        wanted = wanted - go | come
        held = set(tasks)
        assert batch.removed <= held
        apply(tasks, batch)
        assert wanted_ids(tasks) == sorted(wanted)
        assert stripes.count == len(tasks)
        # A stripe that was held stays as it is: only what begins now is pulled from now on.
        assert all(task.start_ts == ts for name, task in tasks.items() if name not in held)
        assert all(task.start_ts < ts for name, task in tasks.items() if name in held - batch.removed)
    for task in tasks.values():
        assert all(task.span.covers(keys.record_span(table)) for table in ids_of(task))


def piece_keys(table: int) -> list[bytes]:
    """Keys at and around the places where `CUTS` may cut a table."""
    return [keys.record_prefix(table), *(keys.int_record(table, at) for at in (-5, 0, 3, 4, 1 << 40))]


CUTS = st.builds(keys.int_record, IDS, st.sampled_from([0, 4]))


@given(
    st.frozensets(IDS),
    st.lists(st.tuples(st.frozensets(IDS), st.frozensets(IDS)), max_size=6),
    st.frozensets(CUTS, max_size=12),
    st.sampled_from([1, 2, 7, 64]),
)
def test_every_key_of_a_wanted_table_is_in_one_span_and_no_other_key_is(
    initial: frozenset[int],
    steps: list[tuple[frozenset[int], frozenset[int]]],
    cuts: frozenset[bytes],
    width: int,
) -> None:
    """Cuts may be inside tables."""
    stripes, wanted = Stripes(width, cuts), set(initial)
    tasks = {task.id: task for task in stripes.begin(table_task(table, 5) for table in sorted(initial))}

    def check() -> None:
        for table in range(1, 41):
            for key in piece_keys(table):
                held = [one for one in tasks.values() if one.span.contains(key) and table in ids_of(one)]
                assert len(held) == (table in wanted), (table, key)
        inside = [key for task in tasks.values() for key in cuts if task.span.start < key < task.span.end]
        assert not inside
        assert all(name == span_id(task.span) for name, task in tasks.items())

    check()
    for ts, (come, go) in enumerate(steps, start=10):
        come, go = come - wanted, go & wanted
        added = tuple(table_task(table, ts) for table in sorted(come))
        removed = frozenset(table_task(table, ts).id for table in go)
        (batch,) = stripes.follow([DdlBatch(ts, (), added, removed, removed_tables=frozenset(go))])
        assert batch.removed <= tasks.keys()
        wanted = wanted - go | come
        apply(tasks, batch)
        check()


def test_a_piece_of_a_stripe_is_one_and_a_piece_of_a_table_is_none() -> None:
    stripe = keys.stripe_span(8, 8)
    cuts = [keys.int_record(9, 5), keys.int_record(9, 6), keys.int_record(12, 0), keys.int_record(15, 1)]
    first, table, middle, end, last = stripe.cut_at(cuts)
    ids = [keys.stripe_ids(one) for one in (first, middle, end, last)]
    assert ids == [range(8, 10), range(9, 13), range(12, 16), range(15, 16)]
    assert not keys.stripe_ids(table)


def test_edges_are_multiples_of_the_width() -> None:
    stripes = Stripes(64)
    tasks = stripes.begin(table_task(table, 5) for table in (63, 64, 100, 127, 128))
    assert [keys.stripe_ids(task.span) for task in tasks] == [
        range(64),
        range(64, 128),
        range(128, 192),
    ]
    assert [ids_of(task) for task in tasks] == [[63], [64, 100, 127], [128]]
    assert [task.physical_id for task in tasks] == [63, 64, 128]


def test_the_span_of_a_table_is_no_stripe() -> None:
    assert not keys.stripe_ids(keys.record_span(7))
    assert not keys.stripe_ids(keys.ddl_span())
    assert not keys.stripe_ids(keys.meta_span())


def test_a_wide_stripe_is_shown_as_a_number_in_hex() -> None:
    (task,) = Stripes(4096).begin([table_task(0, 5), table_task(4095, 5)])
    assert spans_json([task])[task.id]["wanted"] == f"{1 | 1 << 4095:x}"


@pytest.mark.parametrize(
    ("ids", "width"),
    [
        (range(0), 1),
        (range(100, 200), 1),
        (range(100, 201), 4),
        (range(100, 1100), 32),
        (range(0, 10_000, 10), 1),
        (range(0, 10_010, 10), 256),
        (range(10_000), 256),
        (range(0, 20_000, 2), 512),
        (range(1 << 20, (1 << 20) + 100_000), 4096),
        (range(0, 10_000_000, 100), 4096),
    ],
)
def test_the_width_follows_from_the_number_and_the_spread_of_table_ids(ids: range, width: int) -> None:
    assert chosen_width(ids) == width
    stripes = len({table // width for table in ids})
    assert width in (1, 4096) or stripes <= STRIPES < len({2 * table // width for table in ids})


def test_a_feed_that_has_grown_gets_wider_stripes() -> None:
    assert wider(range(100, 100 + SPANS_MAX), 1) == 1
    grown = range(100, 101 + SPANS_MAX)
    assert wider(grown, 1) == chosen_width(grown) > 1
    assert wider(grown, 4096) == 4096
    assert wider(range(0, 64 * SPANS_MAX + 64, 8), 64) == 2048
    assert wider([], 1) == 1


@pytest.mark.integration
def test_rows_of_an_unwanted_neighbour_delay_nothing_and_are_not_sent(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    settings = {"filter": {"rules": ["bank.orders"]}, "tidegate": {"ids_per_stripe": 4096}}
    start_ts = pd.tso()
    assert capture.create("one", start_ts=start_ts, replica_config=settings)["http"] == 200
    ids = {table.name: table.id for table in load_catalogue(pd, start_ts).entries(start_ts)}
    assert len({table_id // 4096 for table_id in ids.values()}) == 1

    def put(name: str, count: int) -> None:
        for handle in range(count):
            transaction = Transaction(pd)
            transaction.put(keys.int_record(ids[name], 1 << 40 | handle), b"row")
            transaction.commit()

    for name, expected in (("bank.accounts", 0), ("bank.orders", 7)):
        put(name, 7)
        capture.wait_checkpoint("one", pd.tso())
        delivered = [line["table"] for line in capture.lines("one") if "row" in line]
        assert delivered == ["bank.orders"] * expected
        steps = [line for line in capture.lines("one") if "progress" in line]
        assert bool(steps) is bool(expected), "work was planned where there was none"


@pytest.mark.integration
def test_a_bound_that_no_row_waits_for_is_not_written_down(
    bank: BankWorkload, capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.server.processor.reader_floor.FLOOR_S", 3600.0)
    capture.create("one")
    capture.wait_checkpoint("one", pd.tso())
    folder = capture.data_dir / "feeds" / "default" / "one"

    def written() -> dict[str, str]:
        return {path.name: path.read_text() for path in folder.glob("bound*.json")}

    status = written()
    for _ in range(3):
        capture.wait_checkpoint("one", pd.tso())
    assert written() == status
    bank.run(None, threading.Event(), max_rows=1)
    capture.wait_checkpoint("one", pd.tso())
    assert written() != status
