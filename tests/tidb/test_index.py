"""Index entries against those recorded from TiDB, whose rows they name, and there and back for any values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_folder import count, lines, names
from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.schema import Index, TableSchema
from tidegate.tidb import datum, index, keys, record, table_info
from tidegate.tidb import value as values_of
from tidegate.tidb.datum import Datum, Flag
from tidegate.tidb.index import Entry
from tidegate.tidb.table_info import table_schema
from tidegate.tidb.types import string

CHAR = 254
_TEMPORARY = 0x7FFF
"""The upper half of the ids under which a backfill keeps what is written meanwhile."""


class Replay:
    """A case's tables and rows as they stand after each transaction."""

    def __init__(self, case: str) -> None:
        self._case = case
        self.tables: dict[int, TableSchema] = {}
        self.rows: dict[bytes, bytes] = {}
        self.moved = False

    def entries(self) -> Iterator[tuple[TableSchema, bytes, bytes]]:
        """Index entries as they are put; then the rows of their transaction stand in `rows`."""
        taken = -1
        every = list(lines(f"rows/{self._case}"))
        for line in every:
            if line["kind"] == "table_info":
                self._learn(line)
            elif line["kind"] == "ddl":
                self.moved |= line["type"] in (64, 71, 72)
            elif line["kind"] == "kv":
                if line["commit_ts"] != taken:
                    taken = line["commit_ts"]
                    self._take_rows(every, taken)
                if line["is"] == "index" and line["op"] == "put":
                    table = self.tables[line["physical_table_id"]]
                    yield table, bytes.fromhex(line["key"]), bytes.fromhex(line["value"])

    def _take_rows(self, every: list[dict[str, Any]], commit_ts: int) -> None:
        for line in every:
            if line["kind"] == "kv" and line["is"] == "row" and line["commit_ts"] == commit_ts:
                self.rows[bytes.fromhex(line["key"])] = bytes.fromhex(line["value"] or "")

    def _learn(self, line: dict[str, Any]) -> None:
        info = line["table_info"]
        if table_info.is_base_table(info):
            table = table_schema("golden", info, line["commit_ts"])
            self.tables |= dict.fromkeys((info["id"], *table.partitions), table)


def _is_virtual(table: TableSchema, one: Index) -> bool:
    stored = {column.offset for column in table.columns}
    return any(offset not in stored for offset in one.columns)


def expected(table: TableSchema, entry: Entry, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of the entry's columns according to the row."""
    cells = {
        column.offset: (column, values_of.parse(column, item))
        for column, item in zip(table.columns, values, strict=True)
    }
    found = []
    for offset, length in zip(entry.index.columns, entry.index.lengths, strict=True):
        column, stored = cells[offset]
        found.append(record.prefix(stored, column.kind, length) if isinstance(stored, bytes) else stored)
    return tuple(found)


@pytest.mark.golden
@pytest.mark.parametrize("case", names("rows"))
def test_golden_index_entries_name_their_rows_and_are_written_as_tidb_does(case: str) -> None:
    replay = Replay(case)
    for table, key, value in replay.entries():
        if key[11] ^ 0x80 == _TEMPORARY >> 8:
            count("rows", "index entries, of a backfill, not compared")
            continue
        entry = index.decode(table, key, value)
        in_row = replay.rows.get(entry.record)
        if in_row is None and replay.moved:
            count("rows", "index entries of rows that a reorganisation copied, not compared")
            continue
        assert in_row, (case, key.hex())
        count("rows", "index entries, row found")
        if _is_virtual(table, entry.index):
            count("rows", "index entries, on a virtual column, read only")
            continue
        values = record.decode(table, keys.parse_record(entry.record), in_row)
        assert entry.values == expected(table, entry, values), (case, key.hex(), value.hex())
        made = index.encode(table, entry.index, values, entry.record)
        assert (made[0].hex(), made[1].hex()) == (key.hex(), value.hex()), (case, entry)
        count("rows", "index entries, written again")


# --- any values -------------------------------------------------------------------------------------------


def a_table(
    columns: dict[str, tuple[int, str, str]],
    primary: list[tuple[str, int]],
    indexed: list[tuple[str, int]],
    *,
    clustered: bool,
    unique: bool,
    version: int = 1,
    **more: Any,
) -> TableSchema:
    """columns: name -> type, charset, collation; primary, indexed: columns with their prefix lengths."""
    offsets = {name: at for at, name in enumerate(columns)}
    cols = [
        {
            "id": at + 1, "name": {"O": name}, "offset": at, "state": 5,
            "type": {"Tp": code, "Flag": 3 if name in dict(primary) else 0, "Flen": 60, "Decimal": 0,
                     "Charset": charset or "binary", "Collate": collate or "binary"},
        }
        for at, (name, (code, charset, collate)) in enumerate(columns.items())
    ]  # fmt: skip

    def an_index(number: int, name: str, parts: list[tuple[str, int]], **flags: bool) -> dict[str, Any]:
        idx_cols = [{"name": {"O": n}, "offset": offsets[n], "length": length} for n, length in parts]
        return {"id": number, "idx_name": {"O": name}, "idx_cols": idx_cols, "state": 5, **flags}

    info = {
        "id": 100, "name": {"O": "t"}, "cols": cols, "is_common_handle": clustered,
        "common_handle_version": version if clustered else 0,
        "index_info": [
            an_index(1, "PRIMARY", primary, is_unique=True, is_primary=True),
            an_index(2, "k", indexed, is_unique=unique, is_primary=False) | more,
        ],
    }  # fmt: skip
    return table_schema("db", info, 1)


COLLATIONS = ("utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_0900_ai_ci",
              "utf8mb4_0900_bin", "gbk_bin", "gbk_chinese_ci", "latin1_bin")  # fmt: skip
TEXTS = st.text(st.sampled_from("aAäÄß中文 "), max_size=12)


@given(
    texts=st.tuples(TEXTS, TEXTS | st.none(), st.integers(-(2**63), 2**63 - 1) | st.none()),
    collates=st.tuples(st.sampled_from(COLLATIONS), st.sampled_from(COLLATIONS)),
    kinds=st.tuples(st.sampled_from([15, 254]), st.sampled_from([15, 254])),
    lengths=st.tuples(st.sampled_from([-1, 3]), st.sampled_from([-1, 2])),
    flags=st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 1])),
)
@settings(deadline=None)
def test_an_entry_read_gives_back_what_it_was_made_of(
    texts: tuple[str, str | None, int | None],
    collates: tuple[str, str],
    kinds: tuple[int, int],
    lengths: tuple[int, int],
    flags: tuple[bool, bool, int],
) -> None:
    clustered, unique, version = flags
    row = (_kept(texts[0], kinds[0]), _kept(texts[1], kinds[1]), texts[2])
    table = a_table(
        {"p": (kinds[0], "utf8mb4", collates[0]), "a": (kinds[1], "utf8mb4", collates[1]), "b": (8, "", "")},
        [("p", lengths[0])],
        [("a", lengths[1]), ("b", -1), ("p", -1)],
        clustered=clustered,
        unique=unique,
        version=version,
    )
    row_key, row_value = record.encode(table, row, row_id=7)
    assert record.decode(table, keys.parse_record(row_key), row_value) == row
    key, value = index.encode(table, table.indexes[1], row, row_key)
    entry = index.decode(table, key, value)
    assert entry.record == row_key
    read, wanted = entry.values, expected(table, entry, row)
    if kinds[1] == CHAR and string.only_pads(collates[1]):  # the spaces at the end of a prefix may be lost
        read, wanted = (_without_spaces(values) for values in (read, wanted))
    assert read == wanted


def _without_spaces(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (values[0] and values[0].rstrip(b" "), *values[1:])


def _kept(text: str | None, mysql_type: int) -> bytes | None:
    """As a column of that type keeps it: a `char` has no spaces at its end."""
    if text is None:
        return None
    return (text if mysql_type == 15 else text.rstrip(" ")).encode()


PLAIN = a_table(
    {"p": (8, "", ""), "a": (15, "utf8mb4", "gb18030_chinese_ci"), "b": (8, "", "")},
    [("p", -1)], [("a", -1)], clustered=False, unique=True,
)  # fmt: skip


def test_a_collation_without_weights_is_refused_with_table_and_column() -> None:
    with pytest.raises(InvalidInput, match=r"gb18030_chinese_ci cannot be made\n  where: db\.t\.a\n"):
        index.encode(PLAIN, PLAIN.indexes[1], (1, "中", 2), keys.int_record(100, 1))
    clustered = a_table(
        {"a": (15, "utf8mb4", "gb18030_chinese_ci")}, [("a", -1)], [("a", -1)], clustered=True, unique=True
    )
    with pytest.raises(InvalidInput, match=r"where: db\.t\.a"):
        record.encode(clustered, ("中",))


def test_what_is_not_written_is_said() -> None:
    table = a_table(
        {"p": (8, "", ""), "a": (8, "", "")},
        [("p", -1)],
        [("a", -1)],
        clustered=False,
        unique=True,
        is_global=True,
    )
    with pytest.raises(InvalidInput, match="entries of a global index are not written here"):
        index.encode(table, table.indexes[1], (1, 2), keys.int_record(100, 1))
    key = keys.index_prefix(100, 2, datum.encode_key([Datum(Flag.INT, 2)]))
    found = index.decode(table, key, bytes.fromhex("08 7e 8000000000000065 0000000000000005"))
    assert (found.values, found.record) == ((2,), keys.int_record(101, 5))


ENTRY = "748000000000000064 5f69 8000000000000001 038000000000000001"


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("7480", "30", "not the key of an index entry"),
        ("748000000000000064 5f69 8000000000000009", "30", "that the table does not have"),
        (ENTRY, "30", "names no row"),
        (ENTRY + "05", "30", "no handle"),
        (ENTRY[:-4], "30", "is cut"),
        (ENTRY, "ff" + "00" * 20, "an index value is cut"),
        (ENTRY, "007f00ff" + "00" * 20, "an index value is cut"),
        (ENTRY, "00" + "55" * 20, "no known kind"),
    ],
)
def test_damaged_entries_name_the_table_and_the_index(key: str, value: str, what: str) -> None:
    with pytest.raises(Undecodable, match=what) as caught:
        index.decode(PLAIN, bytes.fromhex(key), bytes.fromhex(value))
    assert caught.value.where.startswith("db.t")


@given(st.binary(max_size=40), st.binary(max_size=40), st.sampled_from([1, 2]))
def test_any_bytes_are_an_entry_or_undecodable(tail: bytes, value: bytes, number: int) -> None:
    try:
        entry = index.decode(PLAIN, keys.index_prefix(100, number, tail), value)
    except Undecodable:
        return
    assert len(entry.values) == 1
    assert entry.record[:11] == keys.record_prefix(100) or value[1:2] == b"\x7e"
