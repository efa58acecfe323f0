"""Mounting whole blocks: kernels agree with the plain mounter row by row, and nothing is lost on the way."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from tests.golden_folder import count
from tests.mounter.golden_rows import CASES, GoldenRow, OneTable, block_of, golden_rows, store_of
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.cells import DELETE, INSERT, RowBlock
from tidegate.model.row import RowChange
from tidegate.model.schema import Kind, TableSchema
from tidegate.mounter import decode_plan
from tidegate.mounter.decode import MountOptions, Quarantined, mount
from tidegate.mounter.mounter import Entry, mount_row
from tidegate.mounter.rows import rows_of
from tidegate.tidb import keys, record, row
from tidegate.tidb.table_info import table_schema

UTC = ZoneInfo("UTC")
ALL = MountOptions(force_replicate=True, row_keys=True)


def mounted(rows: list[GoldenRow], options: MountOptions = ALL) -> tuple[list[RowBlock], list[Quarantined]]:
    return mount(block_of([row.entry for row in rows]), store_of(rows), options)


def in_block_order(blocks: list[RowBlock], zone: ZoneInfo = UTC) -> list[RowChange]:
    placed = [
        (int(at), row)
        for block in blocks
        for at, row in zip(block.position, rows_of(block, zone), strict=True)
    ]
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]


def fields(row: RowChange) -> tuple[object, ...]:
    """Return the fields that identify a row change; repr because NaN is not equal to itself."""
    return (
        row.commit_ts,
        row.start_ts,
        row.physical_id,
        row.handle,
        row.row_key,
        id(row.table),
        repr(row.old),
        repr(row.new),
    )


def assert_same(found: list[RowChange], wanted: list[RowChange | None]) -> None:
    assert [fields(row) for row in found] == [fields(row) for row in wanted if row is not None]


@pytest.mark.golden
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("case", CASES)
def test_golden_rows_mount_as_the_plain_mounter_mounts_them(case: str, zone: str) -> None:
    rows = golden_rows(case)
    blocks, failed = mounted(rows, replace(ALL, time_zone=zone))
    assert failed == []
    plain = [mount_row(row.entry, row.table, ZoneInfo(zone)) for row in rows]
    assert_same(in_block_order(blocks, ZoneInfo(zone)), plain)
    count("rows", f"row changes, kernels as the plain mounter in {zone}", len(rows))


def assert_within_extent(block: RowBlock) -> None:
    assert block.extent is not None
    for image, without in ((block.new, DELETE), (block.old, INSERT)):
        sizes = image.sizes[block.op != without, : len(block.table.columns)]
        assert (np.maximum(sizes, 0).sum(axis=1) <= block.extent.largest).all()


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_no_image_has_more_bytes_than_its_block_says(case: str) -> None:
    """Encoders write without a look at the sizes of a row if that many bytes fit."""
    for block in mounted(golden_rows(case))[0]:
        assert_within_extent(block)


def test_a_long_default_counts_among_the_bytes_of_an_image() -> None:
    columns = [
        {
            "id": number, "name": {"O": name}, "offset": number - 1, "state": 5, "origin_default": default,
            "type": {"Tp": code, "Flag": flag, "Flen": 900, "Decimal": 0, "Charset": "utf8", "Elems": None},
        }
        for number, (name, code, flag, default) in enumerate([("id", 8, 3, None), ("t", 15, 1, "x" * 800)], 1)
    ]  # fmt: skip
    table = table_schema("db", {"id": 7, "name": {"O": "t"}, "pk_is_handle": True, "cols": columns}, 1)
    entry = Entry(101, 99, OP_PUT, keys.int_record(7, 5), row.encode_v2([]), b"")
    (block,), _ = mount(block_of([entry]), OneTable({7: [(0, table)]}), ALL)
    assert [change.new for change in rows_of(block)] == [(5, b"x" * 800)]
    assert_within_extent(block)


def test_many_tables_in_one_block_come_out_one_block_per_table_version() -> None:
    rows = [row for case in CASES[:30] for row in golden_rows(case)[:40]]
    rows = rows[::2] + rows[1::2]
    blocks, failed = mounted(rows)
    assert failed == []
    assert len({id(block.table) for block in blocks}) == len(blocks) > 30
    for block in blocks:
        assert list(block.position) == sorted(block.position)
    assert_same(in_block_order(blocks), [mount_row(row.entry, row.table, UTC) for row in rows])


def test_a_slice_of_a_block_mounts_as_the_rows_it_holds() -> None:
    rows = golden_rows("key_common_three")
    block = block_of([row.entry for row in rows]).slice(3, 9)
    blocks, failed = mount(block, store_of(rows), ALL)
    assert failed == []
    assert_same(in_block_order(blocks), [mount_row(row.entry, row.table, UTC) for row in rows[3:12]])


def table_of(columns: int, version: int = 100) -> TableSchema:
    """Table 7 of integers c0 (the key), c1, ..."""
    cols = [
        {
            "id": i + 1,
            "name": {"O": f"c{i}", "L": f"c{i}"},
            "offset": i,
            "type": {
                "Tp": 8,
                "Flag": 4099 if i == 0 else 0,
                "Flen": 20,
                "Decimal": 0,
                "Charset": "binary",
                "Collate": "binary",
                "Elems": None,
            },
            "state": 5,
            "version": 2,
        }
        for i in range(columns)
    ]
    info = {
        "id": 7,
        "name": {"O": "t", "L": "t"},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": cols,
    }
    info |= {"index_info": None, "pk_is_handle": True, "is_common_handle": False, "state": 5}
    return table_schema("db", json.loads(json.dumps(info)), version)


def put(table: TableSchema, commit_ts: int, *values: int, old: bytes = b"") -> Entry:
    key, value = record.encode(table, values)
    return Entry(commit_ts, commit_ts - 1, OP_PUT, key, value, old)


def test_a_row_is_read_with_the_schema_before_its_commit_ts() -> None:
    narrow, wide = table_of(2), table_of(3, version=200)
    store = OneTable({7: [(100, narrow), (200, wide)]})
    entries = [put(narrow, 150, 1, 10), put(narrow, 200, 2, 20), put(wide, 201, 3, 30, 31)]
    blocks, failed = mount(block_of(entries), store, ALL)
    assert failed == []
    assert [(len(block.table.columns), list(block.commit_ts)) for block in blocks] == [
        (2, [150, 200]),
        (3, [201]),
    ]


@pytest.mark.parametrize("columns", [2, 63, 64, 65, 200, 300])
def test_rows_of_wide_tables_with_nulls_and_lost_and_missing_columns(columns: int) -> None:
    """At 64 columns and at ids above 255 the kernels take other ways."""
    table, older, newer = table_of(columns), table_of(max(columns - 3, 2)), table_of(columns + 3)
    entries = []
    for seed in range(40):
        written = (older, table, newer)[seed % 3]
        cells: dict[int, tuple[Kind, row.Stored]] = {
            column.id: (column.kind, (-1) ** column.id * (seed + 1) << (column.id * 7 + seed) % 50)
            for column in written.columns[1:]
        }
        for gap in range(2 + seed % 5, len(written.columns), 5):
            cells[gap] = (Kind.INT, None)
        key, value = keys.int_record(7, seed), row.encode_v2((at, *cell) for at, cell in cells.items())
        entries.append(Entry(101, 99, OP_PUT, key, value, value if seed % 2 else b""))
    blocks, failed = mount(block_of(entries), OneTable({7: [(0, table)]}), ALL)
    assert failed == []
    assert_same(in_block_order(blocks), [mount_row(entry, table, UTC) for entry in entries])


def test_a_column_that_is_both_null_and_not_is_refused() -> None:
    table = table_of(3)
    value = row.encode_v2([(2, Kind.INT, None), (3, Kind.INT, 5)])
    assert value[6:8] == bytes([3, 2])
    twice = value[:7] + bytes([3]) + value[8:]
    key = keys.int_record(7, 1)
    entries = [Entry(101, 99, OP_PUT, key, twice, b"")]
    blocks, failed = mount(block_of(entries), OneTable({7: [(0, table)]}), ALL)
    assert not blocks
    assert "db.t" in failed[0].table


def test_rows_of_a_table_that_does_not_exist_at_their_time_are_quarantined() -> None:
    table = table_of(2)
    store = OneTable({7: [(100, table), (200, None)]})
    entries = [put(table, 90, 1, 1), put(table, 150, 2, 2), put(table, 250, 3, 3)]
    blocks, failed = mount(block_of(entries), store, ALL)
    assert [list(block.position) for block in blocks] == [[1]]
    assert [(row.position, row.commit_ts, row.key) for row in failed] == [
        (i, entries[i].commit_ts, entries[i].key) for i in (0, 2)
    ]
    _, unknown = mount(block_of(entries), OneTable({}), ALL)
    assert [row.position for row in unknown] == [0, 1, 2]


def test_a_damaged_row_is_quarantined_and_the_others_are_delivered() -> None:
    table = table_of(2)
    entries = [put(table, 150 + i, i, i) for i in range(5)]
    entries[1] = entries[1]._replace(value=entries[1].value[:-1])
    entries[3] = entries[3]._replace(old_value=b"\x80\0")
    blocks, failed = mount(block_of(entries), OneTable({7: [(100, table)]}), ALL)
    assert [(row.position, row.value, row.old_value) for row in failed] == [
        (1, entries[1].value, b""),
        (3, entries[3].value, b"\x80\0"),
    ]
    assert all("db.t" in row.why for row in failed)
    assert [row.new for row in rows_of(blocks[0])] == [(0, 0), (2, 2), (4, 4)]


def test_a_row_only_the_plain_decoder_understands_is_mounted_by_it() -> None:
    table = table_of(3)
    odd = bytes.fromhex("8000020000000302010002002d2a")
    entries = [
        put(table, 150, 1, 1, 1),
        put(table, 151, 2, 2, 2)._replace(value=odd),
        put(table, 152, 3, 3, 3),
    ]
    blocks, failed = mount(block_of(entries), OneTable({7: [(100, table)]}), ALL)
    plain = mount_row(entries[1], table)
    assert failed == []
    assert plain is not None
    assert [row.new for row in rows_of(blocks[0])] == [(1, 1, 1), plain.new, (3, 3, 3)]


def test_deletes_of_nothing_and_index_entries_leave_no_trace() -> None:
    table = table_of(2)
    kept = put(table, 150, 1, 1)
    nothing = kept._replace(op=OP_DELETE, value=b"")
    index = kept._replace(key=kept.key[:9] + b"_i" + kept.key[11:])
    blocks, failed = mount(block_of([nothing, kept, index]), OneTable({7: [(100, table)]}), ALL)
    assert failed == []
    assert [list(block.position) for block in blocks] == [[1]]


def test_a_key_that_is_no_record_key_is_quarantined() -> None:
    table = table_of(2)
    kept = put(table, 150, 1, 1)
    blocks, failed = mount(
        block_of([kept._replace(key=b"t"), kept._replace(key=b"mDB"), kept]),
        OneTable({7: [(100, table)]}),
        ALL,
    )
    assert [row.position for row in failed] == [0, 1]
    assert [list(block.position) for block in blocks] == [[2]]


def test_tables_without_a_handle_key_are_left_out_unless_forced() -> None:
    rows = golden_rows("key_none")
    assert not rows[0].table.eligible
    assert mounted(rows, MountOptions()) == ([], [])
    assert sum(map(len, mounted(rows)[0])) == len(rows)


def test_an_empty_block_mounts_to_nothing() -> None:
    assert mount(block_of([]), OneTable({}), ALL) == ([], [])


def test_slots_stay_readable_when_only_the_row_block_is_left() -> None:
    rows = golden_rows("types_chars_utf8mb4")
    blocks, _ = mounted(rows)
    gc.collect()
    pa.default_memory_pool().release_unused()
    assert_same(in_block_order(blocks), [mount_row(row.entry, row.table, UTC) for row in rows])


def test_a_plan_dies_with_its_table() -> None:
    table = table_of(4)
    decode_plan.plan_of(table, False)
    before = len(decode_plan._plans)
    del table
    gc.collect()
    assert len(decode_plan._plans) < before
