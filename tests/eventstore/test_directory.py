"""The directory of a segment: a reader of some tables gets what filtering all rows gives, or damage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import Retryable
from tidegate.eventstore import damage, directory_kernels, reader, segment, store_view
from tidegate.eventstore.directory import RECORD, Damaged, Directory, encode
from tidegate.eventstore.order import (
    Entry,
    block_of,
    entries_of,
    order_key,
    rows_by_table,
    sort_entries,
    sum_of,
    table_of,
)
from tidegate.eventstore.segment import Segment
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span
from tidegate.tidb.keys import index_prefix, int_record, meta_string, table_prefix

SPAN = Span(b"", b"")
KEYS = [
    *(int_record(table, handle) for table in (1, 2, 3, 99) for handle in (0, 1, 500)),
    *(index_prefix(table, 1, b"datum") for table in (1, 7)),
    table_prefix(3),
    table_prefix(4) + b"_",
    meta_string(b"DDLJobList"),
    b"t\x80",
    b"",
]


def changes(max_ts: int = 30, max_size: int = 100) -> st.SearchStrategy[list[Entry]]:
    return st.lists(
        st.builds(
            Entry,
            commit_ts=st.integers(1, max_ts),
            start_ts=st.integers(1, 3),
            op=st.sampled_from([1, 2]),
            key=st.sampled_from(KEYS),
            value=st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"value" * 9])),
            old_value=st.sampled_from([b"", b"old" * 13]),
        ),
        max_size=max_size,
    )


def directory_of(blocks: Sequence[pa.RecordBatch]) -> bytes:
    return encode([directory_kernels.tables_of(block) for block in blocks])


def opened(data: bytes, blocks: Sequence[pa.RecordBatch]) -> Directory:
    return Directory(memoryview(data), [block.num_rows for block in blocks])


@settings(max_examples=200, deadline=None)
@given(st.lists(changes().filter(len), min_size=1, max_size=4))
def test_the_compiled_directory_says_what_the_plain_one_says(parts: list[list[Entry]]) -> None:
    blocks = [block_of(part) for part in parts]
    directory = opened(directory_of(blocks), blocks)
    for index, part in enumerate(parts):
        plain, found = rows_by_table(part), directory.batch(index)
        assert list(zip(found.ids.tolist(), found.kinds.tolist(), strict=True)) == list(plain)
        assert found.counts.tolist() == [len(rows) for rows in plain.values()]
        if len(plain) > 1:
            assert found.numbers.tolist() == [row for rows in plain.values() for row in rows]
            assert found.sums.tolist() == [sum_of(part[i] for i in rows) for rows in plain.values()]
    keys = {table_of(entry.key) for part in parts for entry in part}
    assert directory.tables.records.tolist() == sorted(i for i, kind in keys if kind == RECORD)
    assert directory.tables.others.tolist() == sorted(i for i, kind in keys if kind == 1)


def test_a_block_may_have_one_table_per_row_and_more_than_65536_tables() -> None:
    rows = [Entry(1, 1, 1, int_record(n, 1), b"v", b"") for n in range(65_536)]
    block = block_of(rows)
    directory = opened(directory_of([block]), [block])
    entries = directory.entries_of(np.array([0, 40_000, 65_535, 70_000]))
    assert entries.tolist() == [0, 40_000, 65_535]
    found = directory_kernels.rows_of(block, directory, entries, proved=False)
    assert found is not None
    assert found.tolist() == [0, 40_000, 65_535]


def plain_filter(entries: Sequence[Entry], tables: Collection[int]) -> list[Entry]:
    return [e for e in entries if table_of(e.key)[1] == RECORD and table_of(e.key)[0] in tables]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(changes(), min_size=1, max_size=5),
    tables=st.sets(st.sampled_from([1, 2, 3, 4, 7, 99, 100])),
    after=st.integers(0, 20),
    upto=st.integers(10, 40),
    max_rows=st.integers(1, 9),
)
def test_reading_some_tables_is_filtering_all_rows(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[Entry]],
    tables: set[int],
    after: int,
    upto: int,
    max_rows: int,
) -> None:
    """Both ways of finding them: by sums and by CRC, over segments that overlap."""
    folder = tmp_path_factory.mktemp("store")
    store = EventStore(folder)
    span = store.open_span(SPAN)
    span.begin(0)
    for part in parts:
        span.append(block_of(part))
        span.spill()
    span.seal(40)
    store.publish()
    expected = plain_filter(sort_entries([e for part in parts for e in part], after, upto), tables)
    for scattered in (1, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "SCATTERED", scattered)
            blocks = list(reader.read(folder, span.id, after, upto, max_rows, tables=tables))
        found = [e for block in blocks for e in entries_of(block)]
        assert [order_key(e) for e in found] == [order_key(e) for e in expected]
    ids = {table_of(e.key) for part in parts for e in part}
    known = [segment.tables_in(folder / span.id, info) for info in span.manifest.segments]
    assert {i for each in known for i in each.records.tolist()} == {i for i, kind in ids if kind == RECORD}
    store.close()


def many(folder: Path, tables: int = 200, rows: int = 4000) -> tuple[EventStore, list[Entry]]:
    """A store with one segment of rows of many tables."""
    store = EventStore(folder)
    span = store.open_span(SPAN)
    span.begin(0)
    generator = Random(3)
    made = [
        Entry(2 + n, 1, 1, int_record(generator.randrange(tables), n), b"value%d" % n, b"old" * (n % 2))
        for n in range(rows)
    ]
    span.append(block_of(made))
    span.seal(rows + 2)
    store.publish()
    return store, made


def test_a_reader_of_one_table_reads_no_crc_and_no_rows_of_other_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = many(tmp_path)
    [span] = store.open_spans()
    info = span.manifest.segments[0]
    path = tmp_path / span.id / info.file
    data = bytearray(path.read_bytes())
    for entry in made:  # all others' values are gone: who touched one would notice
        if table_of(entry.key)[0] != 5:
            at = data.index(entry.key)
            data[at : at + len(entry.key)] = bytes(len(entry.key))
    path.write_bytes(bytes(data))
    upto = made[-1].commit_ts
    found = [e for b in reader.read(tmp_path, span.id, 0, upto, tables=[5]) for e in entries_of(b)]
    assert found == plain_filter(made, [5])
    with pytest.raises(Retryable, match="not what was written"):
        list(reader.read(tmp_path, span.id, 0, upto, tables=[6]))
    with pytest.raises(Retryable, match="CRC32C of a batch"):
        list(reader.read(tmp_path, span.id, 0, upto))
    store.close()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_segment_with_any_changed_byte_hides_no_row_of_a_table(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store, made = many(folder, tables=20, rows=300)
    [span] = store.open_spans()
    info = span.manifest.segments[0]
    path = folder / span.id / info.file
    good = bytearray(path.read_bytes())
    low = data.draw(st.sampled_from([0, info.directory]))
    at = data.draw(st.integers(low, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(good))
    table = data.draw(st.integers(0, 19))
    refusal: Retryable | None = None
    try:
        blocks = reader.read(folder, span.id, 0, made[-1].commit_ts, tables=[table])
        assert [e for b in blocks for e in entries_of(b)] == plain_filter(made, [table])
    except Retryable as error:
        refusal = error
    assert refusal is None or str(path) in refusal.where
    assert (refusal is not None) == any(damage.reports(folder))
    store.close()


def test_no_byte_of_a_directory_can_change_unnoticed() -> None:
    block = block_of([Entry(1, 1, 1, int_record(n % 3, n), b"v", b"") for n in range(9)])
    good = directory_of([block])
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(Damaged):
            opened(bytes(bad), [block])


def test_every_contradiction_of_a_directory_and_its_batches_is_damage() -> None:
    blocks = [block_of([Entry(1, 1, 1, int_record(n % 3, n), b"v", b"") for n in range(9)])]
    [said] = [directory_kernels.tables_of(block) for block in blocks]
    rows = [9]
    Directory(memoryview(encode([said])), rows)
    for wrong in (
        encode([replace(said, counts=said.counts - 1, numbers=said.numbers[:6])]),
        encode([replace(said, counts=np.array([9, 0, 0]))]),
        encode([said, said]),
        encode([said])[:-9],
        encode([said])[:20],
        b"",
        bytes(200),
    ):
        with pytest.raises(Damaged):
            Directory(memoryview(wrong), rows)
    with pytest.raises(Damaged):
        Directory(memoryview(encode([said])), [10])


def test_rows_that_a_directory_puts_in_another_table_are_not_handed_out() -> None:
    """As a faulty writer would: the directory's own CRC is right."""
    block = block_of([Entry(1, 1, 1, int_record(n % 3, n), b"v", b"") for n in range(9)])
    said = directory_kernels.tables_of(block)
    twice = said.numbers.copy()
    twice[1] = twice[0]
    for wrong, by_sum_alone in (
        (replace(said, ids=said.ids + 1), False),
        (replace(said, numbers=twice), False),
        (replace(said, numbers=said.numbers + np.uint16(60_000)), False),
        (replace(said, sums=said.sums + np.uint64(1)), True),
    ):
        directory = Directory(memoryview(encode([wrong])), [9])
        entries = np.arange(3, dtype=np.int64)
        assert directory_kernels.rows_of(block, directory, entries, proved=False) is None
        found = directory_kernels.rows_of(block, directory, entries, proved=True)
        assert (found is not None) == by_sum_alone


def test_a_store_of_keys_without_tables_writes_no_directory(tmp_path: Path) -> None:
    store = EventStore(tmp_path, kv_mode="txnkv")
    span = store.open_span(SPAN)
    span.begin(0)
    span.append(block_of([Entry(5, 4, 1, b"key", b"v", b"")]))
    span.seal(9)
    assert [info.directory for info in store_view.read_manifest(tmp_path, span.id).segments] == [0]
    store.close()


def test_a_damaged_directory_is_repaired_from_the_batches_alone(tmp_path: Path) -> None:
    store, made = many(tmp_path)
    [span] = store.open_spans()
    info = span.manifest.segments[0]
    path = tmp_path / span.id / info.file
    data = bytearray(path.read_bytes())
    data[info.directory + 100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Retryable, match="pulled from TiKV again"):
        list(reader.read(tmp_path, span.id, 0, 99, tables=[5]))
    [report] = damage.reports(tmp_path)
    found = span.assess(report.file)
    assert found is not None
    assert found.batches == frozenset()
    assert span.repair(found, []) == 0
    upto = made[-1].commit_ts
    again = [e for b in reader.read(tmp_path, span.id, 0, upto, tables=[5]) for e in entries_of(b)]
    assert again == plain_filter(made, [5])
    [fresh] = span.manifest.segments
    assert not Segment(tmp_path / span.id, fresh).misplaced(directory_kernels.tables_of)
    store.close()
