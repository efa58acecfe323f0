from typing import Any

import pytest

from tests.golden_folder import count, lines
from tests.tidb import definition_fuzz
from tests.tidb.golden_rows import case_names, tables
from tidegate.errors import Undecodable
from tidegate.tidb import table_info
from tidegate.tidb.table_info import PUBLIC


@pytest.mark.golden
@pytest.mark.parametrize("name", case_names())
def test_golden_tables_have_ticdcs_columns_flags_and_eligibility(name: str) -> None:
    for table, seen in tables(name):
        count("rows", "table versions")
        emitted = [c for c in seen["columns"] if c["visible"]]
        stored = table.info["cols"]
        public = [c for c in stored if c["state"] == PUBLIC]
        assert [(c["id"], c["name"]["O"]) for c in public] == [(c["id"], c["name"]) for c in seen["columns"]]
        by_offset = {c["offset"]: c["name"]["O"] for c in stored}
        assert [
            (index.id, index.name, index.unique, index.primary, [by_offset[at] for at in index.columns])
            for index in table.indexes
        ] == [
            (i["id"], i["name"], i["unique"], i["primary"], i["columns"])
            for i in seen["indexes"] or []
            if i["state"] == "public"
        ]
        assert (table.schema, table.table, table.id) == (seen["schema"], seen["table"], seen["table_id"])
        assert [(c.id, c.name, c.mysql_type, c.flag) for c in table.columns] == [
            (c["id"], c["name"], c["type"], c["mysql_flag"]) for c in emitted
        ]
        assert [(c.charset, c.collate, c.flen, c.decimal) for c in table.columns] == [
            (c["charset"], c["collation"], c["flen"], c["decimal"]) for c in emitted
        ]
        assert list(table.ticdc_flags) == [c["flag"] for c in emitted]
        assert table.eligible == seen["eligible"]
        assert list(table.partitions) == [p["id"] for p in seen.get("partitions") or []]


def test_the_handle_key_is_the_smallest_not_null_unique_index() -> None:
    table, _ = next(iter(tables("key_uk_notnull", ours=True)))
    handle = [table.columns[at] for at in table.handle_key]
    assert handle
    assert not any(column.nullable for column in handle)
    assert table.primary_key == ()
    assert table.handle_columns == ()


def test_a_clustered_key_is_in_the_record_key() -> None:
    table, _ = next(iter(tables("key_common_three", ours=True)))
    assert table.is_common_handle
    assert table.handle_columns == table.primary_key == table.handle_key
    assert len(table.handle_columns) == 3


def test_views_and_sequences_are_no_base_tables() -> None:
    infos = [
        event["table_info"]
        for done in lines("ddl/views_sequences", ours=True)
        if done["kind"] == "ddl_done"
        for event in done["events"] or []
    ]
    assert infos
    assert table_info.is_base_table({"id": 1, "view": None, "sequence": None})
    assert not table_info.is_base_table({"id": 1, "view": {"view_security": 0}})
    assert not table_info.is_base_table({"id": 1, "sequence": {"sequence_start": 1}})


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"id":"x"}', b"\xff"])
def test_what_is_no_definition_is_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable):
        table_info.parse(data)


@pytest.mark.parametrize("cols", [1, [{}], [{"id": 1}], ["x"]])
def test_a_definition_with_odd_columns_is_undecodable(cols: object) -> None:
    with pytest.raises(Undecodable):
        table_info.table_schema("s", {"id": 1, "name": {"O": "t"}, "cols": cols}, 1)


def test_damaged_definitions_are_refused_or_harmless() -> None:
    """A negative column id was a crash of the process, and so were 65 columns in a key."""
    found = definition_fuzz.run(seed=20261122, number=3000)
    assert found.total() == 3000
    assert min(found["decoded"], found["definition refused"]) > 500


COLUMN: dict[str, Any] = {
    "id": 1, "name": {"O": "c"}, "offset": 0, "state": 5,
    "type": {"Tp": 3, "Flag": 3, "Flen": 11, "Decimal": 0},
}  # fmt: skip


def columns(*changes: dict[str, object]) -> dict[str, object]:
    cols = [COLUMN | {"id": at + 1, "offset": at} | change for at, change in enumerate(changes)]
    return {"id": 1, "name": {"O": "t"}, "cols": cols}


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (columns({"id": -1}), "id of column 'c' is -1, not 1 to 4294967295"),
        (columns({"id": True}), "id of column 'c' is True"),
        (columns({}, {"id": 1}), "column id 1 is there twice"),
        (columns({}, {"offset": 0}), "column offset 0 is there twice"),
        (columns({"type": {"Tp": 246, "Flag": 0, "Flen": 99, "Decimal": 0}}), "length of column 'c' is 99"),
        (columns({"type": {"Tp": 12, "Flag": 0, "Flen": 26, "Decimal": 7}}), "decimals of column 'c' is 7"),
        (
            columns({"type": {"Tp": 248, "Flag": 0, "Flen": 9, "Decimal": 0, "Elems": ["e"] * 65}}),
            "65 elements",
        ),
        (columns(*[{}] * 65) | {"pk_is_handle": True}, "65 columns in the key, 64 are the most"),
        (columns({}) | {"id": 0}, "table id is 0"),
    ],
)
def test_a_definition_beyond_what_can_be_stored_says_where(info: dict[str, object], why: str) -> None:
    with pytest.raises(Undecodable) as refused:
        table_info.table_schema("s", info, 1)
    assert why in refused.value.render()
