import contextlib
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count
from tests.tidb.golden_rows import Change, case_names, changes, expected, shown
from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import checksum, keys, record, row
from tidegate.tidb.row import V2
from tidegate.tidb.types import json, temporal
from tidegate.tidb.value import fsp


def assert_image(change: Change, data: bytes, texts: list[object], zone: str) -> None:
    values = record.decode(change.table, keys.parse_record(change.key), data, temporal.zone(zone))
    for column, value, text in zip(change.table.columns, values, texts, strict=True):
        if column.kind is Kind.VECTOR and data[0] != V2 and text == "[]":
            continue  # classic TiCDC reads them as []: docs/formats/rows.md#format-v1
        assert shown(column, value) == expected(text), (change.table.name, column.name)


@pytest.mark.golden
@pytest.mark.parametrize("name", case_names())
def test_golden_rows_have_ticdcs_values_in_every_zone(name: str) -> None:
    for change in changes(name):
        zones = {"UTC": change.mounted, **(change.mounted.get("zones") or {})}
        for zone, image in zones.items():
            if image.get("values") is not None:
                assert_image(change, change.value, image["values"], zone)
            if image.get("pre_values") is not None:
                assert_image(change, change.old_value, image["pre_values"], zone)
            count("rows", f"row changes, values as in {zone}")


def stored_again(table: TableSchema, data: bytes) -> bytes:
    """A row value decoded to its stored cells and encoded again; columns of no public kind as they are."""
    kinds = {column.id: column.kind for column in table.columns}
    fields = row.split(data)
    if data[0] != V2:
        return row.encode_v1([(i, kinds[i], fields.stored(i, kinds[i])) for i in fields.cells])
    cells = [(i, kinds.get(i, Kind.BYTES), fields.stored(i, kinds.get(i, Kind.BYTES))) for i in fields.cells]
    return row.encode_v2(cells)


@pytest.mark.golden
@pytest.mark.parametrize("name", case_names())
def test_golden_row_values_are_encoded_again_byte_by_byte(name: str) -> None:
    for change in changes(name):
        for data in filter(None, (change.value, change.old_value)):
            bare = data
            if data[0] == V2 and data[1] & row.CHECKSUM:
                carried = row.split(data).checksum
                assert carried is not None
                bare = bytes([V2, data[1] & ~row.CHECKSUM]) + data[2 : -5 if carried.extra is None else -9]
                sealed = checksum.sealed(bare, change.key, carried.version)
                assert sealed == data
            if data[0] == V2 or set(row.split(data).cells) <= {c.id for c in change.table.columns}:
                assert stored_again(change.table, bare) == bare
                count("rows", f"row values encoded again, {'v2' if data[0] == V2 else 'v1'}")


def by_a_session(change: Change, values: tuple[Value, ...]) -> bool:
    """Whether an ordinary session writes this row from these values.

    Not so while a column is being changed: the row then holds the old and the new one. And not where JSON
    holds what its text does not show: times and binary strings are strings there.
    """
    known = {column.id for column in change.table.columns}
    if not set(row.split(change.value).cells) <= known:
        return False
    return all(
        json.decode(json.encode(value)) == value and _same_json(change, column, value)
        for column, value in zip(change.table.columns, values, strict=True)
        if column.kind is Kind.JSON and isinstance(value, str)
    )


def _same_json(change: Change, column: Column, value: str) -> bool:
    cell = row.split(change.value).cells.get(column.id)
    return not isinstance(cell, bytes) or json.encode(value) == cell


@pytest.mark.golden
@pytest.mark.parametrize("name", case_names())
def test_golden_rows_encode_back_to_what_a_session_wrote(name: str) -> None:
    for change in changes(name):
        if not change.value or change.value[0] != V2:
            continue
        key = keys.parse_record(change.key)
        values = record.decode(change.table, key, change.value)
        if not by_a_session(change, values):
            count("rows", "row changes no plain session writes")
            continue
        key_and_value = record.encode(
            change.table,
            values,
            physical_id=key.table_id,
            row_id=key.int_handle,
            checksum=bool(change.value[1] & row.CHECKSUM),
        )
        assert key_and_value == (change.key, change.value)
        count("rows", "row changes encoded from their values")


def plain(column: Column) -> st.SearchStrategy[Value]:
    """Values that a column's kind can hold, in their plain form."""
    match column.kind:
        case Kind.INT:
            made: st.SearchStrategy[Value] = st.integers(-(2**63), 2**63 - 1)
        case Kind.UINT | Kind.BIT | Kind.SET | Kind.ENUM:
            made = st.integers(0, 2**64 - 1)
        case Kind.DECIMAL:
            scale = max(column.decimal, 0)
            made = st.integers(0, 10**column.flen - 1).map(lambda n: f"{Decimal(n).scaleb(-scale):.{scale}f}")
        case Kind.DATETIME | Kind.TIMESTAMP:
            digits = fsp(column)
            moments = st.datetimes(datetime(1971, 1, 1), datetime(2038, 1, 1)).map(
                lambda moment: moment.isoformat(" ", "microseconds")
            )
            made = moments.map(lambda text: text[: 20 + digits] if digits else text[:19])
        case Kind.JSON:
            made = st.sampled_from(['{"a": [1, null, "x"]}', "[]", "1.5", '"中"', "true"])
        case Kind.STRING | Kind.BYTES:
            made = st.text(max_size=20).map(lambda text: text.rstrip().encode())
        case _:
            made = st.none()
    return made if not column.nullable else made | st.none()


@given(st.data())
def test_rows_of_real_tables_come_back(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(TABLES))
    values = tuple(data.draw(plain(column)) for column in table.columns)
    key, encoded = record.encode(table, values, row_id=1, checksum=data.draw(st.booleans()))
    assert record.decode(table, keys.parse_record(key), encoded) == values


def one_table(name: str) -> TableSchema:
    return next(changes(name, ours=True)).table


@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\x80", b"\x80\x00\x01\x00\x00\x00\x02\x04\x00", b"\x08\x04"]),
)
def test_any_value_is_a_row_or_undecodable_with_table_and_column(data: bytes, head: bytes) -> None:
    for table in TABLES:
        with contextlib.suppress(Undecodable):
            record.decode(table, keys.parse_record(keys.int_record(table.id, 1)), head + data)


TABLES = [
    one_table(name) for name in ("types_json", "types_decimals_small", "types_timestamps", "key_common_three")
]


def test_an_error_names_table_column_and_offset() -> None:
    table = one_table("types_decimals_small")
    damaged = bytes.fromhex("800001000000") + b"\x02\x01\x00\xff"
    with pytest.raises(Undecodable) as caught:
        record.decode(table, keys.parse_record(keys.int_record(table.id, 1)), damaged)
    assert caught.value.where == f"{table.name}.c1, byte 9 of the row"


def test_a_key_with_the_wrong_kind_of_handle_is_undecodable() -> None:
    table = one_table("key_int_signed")
    key = keys.parse_record(keys.common_record(table.id, b"\x01" * 18))
    with pytest.raises(Undecodable):
        record.decode(table, key, bytes.fromhex("800000000000"))


def test_a_table_without_clustered_key_needs_its_row_id() -> None:
    change = next(changes("key_nonclustered", ours=True))
    values = record.decode(change.table, keys.parse_record(change.key), change.value)
    with pytest.raises(InvalidInput, match="_tidb_rowid"):
        record.encode(change.table, values)
