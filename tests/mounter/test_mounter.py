import pytest

from tests.tidb.golden_rows import case_names, changes, expected, shown
from tidegate.errors import Undecodable
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.row import Value
from tidegate.model.schema import Kind, TableSchema
from tidegate.mounter.mounter import Entry, mount_row
from tidegate.tidb import keys


def entry_of(change: object) -> Entry:
    record = change.record  # type: ignore[attr-defined]
    return Entry(
        record["commit_ts"],
        record["start_ts"],
        OP_DELETE if record["op"] == "delete" else OP_PUT,
        change.key,  # type: ignore[attr-defined]
        change.value,  # type: ignore[attr-defined]
        change.old_value,  # type: ignore[attr-defined]
    )


def texts(table: TableSchema, image: tuple[Value, ...] | None) -> list[bytes | None] | None:
    if image is None:
        return None
    return [
        shown(column, value)
        for column, value in zip(table.columns, image, strict=True)
        if column.kind is not Kind.VECTOR  # docs/formats/rows.md#format-v1
    ]


def wanted(table: TableSchema, image: list[object] | None) -> list[bytes | None] | None:
    if image is None:
        return None
    return [
        expected(text)
        for column, text in zip(table.columns, image, strict=True)
        if column.kind is not Kind.VECTOR
    ]


@pytest.mark.parametrize("name", case_names())
def test_golden_changes_mount_as_ticdc_mounts_them(name: str) -> None:
    for change in changes(name):
        row, seen = mount_row(entry_of(change), change.table), change.mounted
        assert row is not None
        op = "insert" if row.is_insert else "delete" if row.is_delete else "update"
        assert op == seen["op"]
        assert texts(row.table, row.new) == wanted(row.table, seen["values"])
        assert texts(row.table, row.old) == wanted(row.table, seen["pre_values"])
        assert row.physical_id == change.record["physical_table_id"]
        if not row.table.is_common_handle:
            assert row.handle == seen["row_id"] or row.table.pk_is_handle


def test_a_delete_of_what_was_not_there_changes_nothing() -> None:
    change = next(changes("key_int_signed"))
    entry = entry_of(change)._replace(op=OP_DELETE, value=b"", old_value=b"")
    assert mount_row(entry, change.table) is None


def test_a_key_of_another_table_is_undecodable() -> None:
    change = next(changes("key_int_signed"))
    with pytest.raises(Undecodable):
        mount_row(entry_of(change)._replace(key=keys.int_record(1, 1)), change.table)


def test_a_put_without_value_is_undecodable() -> None:
    change = next(changes("key_int_signed"))
    with pytest.raises(Undecodable):
        mount_row(entry_of(change)._replace(value=b""), change.table)
