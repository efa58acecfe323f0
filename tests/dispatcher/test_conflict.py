"""The tracker takes blocks as it takes rows, and knows which unique values are equal."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.codec.cells import block_of
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.conflict import Conflicts, Tracker, key_hashes
from tidegate.dispatcher.kernels import partition_block
from tidegate.dispatcher.partitions import partition_of
from tidegate.dispatcher.split import key_columns
from tidegate.dispatcher.unique_keys import tracked_keys, value_hashes, why_by_table
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema

BY_CONFLICT = DispatchRule(partition="conflict")
LONGLONG, VARCHAR, DOUBLE, BLOB, DATETIME = 8, 15, 5, 252, 12


def column(name: str, kind: int = LONGLONG, collate: str = "binary", **more: Any) -> dict[str, Any]:
    charset = "binary" if collate == "binary" else collate.split("_")[0]
    kind_of = {"Tp": kind, "Flag": 0, "Flen": 20, "Decimal": 0, "Elems": None}
    return {"name": name, "type": kind_of | {"Charset": charset, "Collate": collate}, **more}


def table_of(
    columns: list[dict[str, Any]], *indexes: tuple[tuple[str, int], ...], **more: Any
) -> TableSchema:
    """A table whose first column is the integer primary key; `indexes` are unique ones."""
    cols = [
        {"id": i + 1, "offset": i, "state": 5} | one | {"name": {"O": one["name"]}}
        for i, one in enumerate([column("id"), *columns])
    ]
    cols[0]["type"] = cols[0]["type"] | {"Flag": 3}
    names = [one["name"]["O"] for one in cols]
    index_info = [
        {
            "id": i + 1,
            "idx_name": {"O": f"u{i}"},
            "idx_cols": [
                {"name": {"O": name}, "offset": names.index(name), "length": length} for name, length in index
            ],
            "state": 5,
            "is_unique": True,
            "is_primary": False,
        }
        for i, index in enumerate(indexes)
    ]
    info = {"id": 1, "name": {"O": "t"}, "pk_is_handle": True, "cols": cols, "index_info": index_info}
    return table_schema("s", info | more, 1)


TEXTS = table_of(
    [
        column("code", VARCHAR, "utf8mb4_bin"),
        column("mail", VARCHAR, "utf8mb4_general_ci"),
        column("raw", BLOB),
        column("n"),
        column("at", DATETIME),
    ],
    (("code", -1),),
    (("mail", 3), ("n", -1)),
    (("raw", 2),),
    (("at", -1), ("code", 2)),
)


def row(table: TableSchema, ts: int, op: int, *values: Value) -> RowChange:
    assert isinstance(values[0], int)
    image = tuple(values)
    return RowChange(
        table=table,
        commit_ts=ts,
        start_ts=ts - 1,
        physical_id=1,
        handle=values[0],
        old=image if op != INSERT else None,
        new=image if op != DELETE else None,
    )


def some_rows(chance: Random, count: int) -> list[RowChange]:
    def text(letters: str) -> bytes | None:
        return chance.choice([None, "".join(chance.choices(letters, k=chance.randint(0, 3))).encode()])

    ts = 10
    rows = []
    for _ in range(count):
        ts += chance.randint(0, 1)
        values = (text("a\u00e9 "), text("aAb "), text("xy\0"), chance.choice([None, -1, 1]))
        at = chance.choice([None, "2020-01-01 00:00:00", "2020-01-02 00:00:00"])
        op = chance.choice((DELETE, INSERT, INSERT, UPDATE))
        rows.append(row(TEXTS, ts, op, chance.randrange(6), *values, at))
    return rows


@pytest.mark.parametrize("seed", range(30))
def test_a_tracker_finds_the_same_places_in_blocks_as_row_by_row(seed: int) -> None:
    chance = Random(seed)
    keys = tracked_keys(TEXTS)
    assert len(keys) == 4
    assert {column for key in keys for column in key.columns} <= {*key_columns(TEXTS)}, "updates are split"
    keys_max = chance.choice((3, 20, 1000))
    plain, tracker = Tracker(keys_max), Tracker(keys_max)
    rows = some_rows(chance, 120)
    marks = 0
    while rows:
        some, rows = rows[: (size := chance.randint(1, 40))], rows[size:]
        partitions = [partition_of(one, BY_CONFLICT, 4) for one in some]
        expected = [
            i for i, one in enumerate(some) if plain.row(_op(one), partitions[i], value_hashes(one, keys))
        ]
        block = block_of(some)
        found = tracker.places(block, partition_block(block, BY_CONFLICT, 4), keys)
        assert found == expected
        assert len(tracker) == len(plain) <= keys_max
        marks += len(found)
    assert marks > 1


def _op(one: RowChange) -> int:
    return DELETE if one.is_delete else INSERT if one.is_insert else UPDATE


def test_hashes_of_blocks_are_those_of_rows() -> None:
    rows = some_rows(Random(7), 200)
    keys = tracked_keys(TEXTS)
    assert key_hashes(block_of(rows), keys).tolist() == [value_hashes(one, keys) for one in rows]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ((b"a", None, None, None, None), (b"a  ", None, None, None, None), [True]),
        ((b"a", None, None, None, None), (b"A", None, None, None, None), [False]),
        ((None, b"abcd", None, 1, None), (None, b"ABCx", None, 1, None), [True]),
        ((None, b"abcd", None, 1, None), (None, b"abcd", None, 2, None), [False]),
        ((None, "\u00e9\u00e9\u00e9x".encode(), None, 1, None), (None, b"EEEy", None, 1, None), [True]),
        ((None, None, b"xyz", None, None), (None, None, b"xyw", None, None), [True]),
        ((None, None, b"xy", None, None), (None, None, b"x ", None, None), [False]),
        ((None, b"abc", None, None, None), (None, b"abc", None, None, None), []),
    ],
)
def test_values_have_one_hash_where_the_unique_key_calls_them_equal(
    one: tuple[Value, ...], other: tuple[Value, ...], equal: list[bool]
) -> None:
    keys = tracked_keys(TEXTS)
    pairs = zip(*(value_hashes(row(TEXTS, 1, INSERT, 1, *v), keys) for v in (one, other)), strict=True)
    assert [a == b for a, b in pairs if a >= 0 and b >= 0] == equal


def test_a_table_whose_unique_values_cannot_be_distinguished_goes_by_table() -> None:
    unique = (("a", -1),)
    virtual = {"generated_expr_string": "id + 1", "generated_stored": False}
    partitions = {"enable": True, "definitions": [{"id": 7, "name": {"O": "p"}}], "type": 1, "expr": "id"}
    for table, words in (
        (table_of([column("a", DOUBLE)], unique), "written differently"),
        (table_of([column("a", VARCHAR, "utf8mb4_klingon_ci")], unique), "utf8mb4_klingon_ci"),
        (table_of([column("a", **virtual)], unique), "not replicated"),
        (table_of([column("a")], unique, partition=partitions), "partitioned"),
    ):
        assert words in why_by_table(table)
        assert tracked_keys(table) == ()
        rows = [row(table, 1, DELETE, i, *[None] * (len(table.columns) - 1)) for i in range(9)]
        assert {partition_of(one, BY_CONFLICT, 64) for one in rows} == {
            partition_of(rows[0], DispatchRule(partition="table"), 64)
        }


PARTITIONED = table_of(
    [column("a")],
    (("a", -1),),
    partition={
        "enable": True,
        "definitions": [{"id": 7, "name": {"O": "p"}}],
        "type": 1,
        "expr": "id",
    },
)


def test_a_table_with_one_unique_key_goes_by_it_and_starts_with_a_mark() -> None:
    """A row may have been elsewhere under an earlier rule or version."""
    table = table_of([column("a")], (("id", -1), ("a", -1)))
    rows = [row(table, 5, INSERT, i, i) for i in range(20)]
    block = block_of(rows)
    found = partition_block(block, BY_CONFLICT, 8)
    assert found.tolist() == partition_block(block, DispatchRule(partition="index-value"), 8).tolist()
    span = Conflicts().begin("s", 0)
    assert span.places(block, found) == [0], "a row may have been elsewhere under another rule or version"
    assert span.places(block, found) == []
    goes_by_table = replace(table_of([column("a", DOUBLE)], (("a", -1),)), version=9)
    block = block_of([row(goes_by_table, 9, INSERT, i, None) for i in range(3)])
    assert span.places(block, partition_block(block, BY_CONFLICT, 8)) == [0]
    several_writers = replace(table, partitions=PARTITIONED.partitions)
    block = block_of([row(several_writers, 9, INSERT, 1, 1)])
    assert Conflicts().begin("s", 0).places(block, np.zeros(1, np.int32)) == []


def test_a_text_primary_key_is_tracked() -> None:
    """Texts that the collation calls equal may be on two partitions."""
    info = {
        "id": 1,
        "name": {"O": "t"},
        "is_common_handle": True,
        "common_handle_version": 1,
        "cols": [
            {"id": 1, "offset": 0, "state": 5}
            | column("k", VARCHAR, "utf8mb4_general_ci")
            | {"name": {"O": "k"}}
        ],
        "index_info": [
            {
                "id": 1,
                "idx_name": {"O": "PRIMARY"},
                "idx_cols": [{"name": {"O": "k"}, "offset": 0, "length": -1}],
                "state": 5,
                "is_unique": True,
                "is_primary": True,
            }
        ],
    }
    info["cols"][0]["type"] |= {"Flag": 3}
    table = table_schema("s", info, 1)
    (key,) = tracked_keys(table)
    assert key.columns == table.handle_key == (0,)


PLAIN = table_of([column("a")], (("a", -1),))


def places(conflicts: Any, *rows: RowChange, partition: int = 0) -> list[int]:
    return conflicts.places(block_of(list(rows)), np.full(len(rows), partition, np.int32))


def test_a_mark_is_for_all_that_was_freed_before_it() -> None:
    span = Conflicts().begin("s", 0)
    places(span, row(PLAIN, 10, INSERT, 9, 9))
    freed = [row(PLAIN, 11, DELETE, 1, 1), row(PLAIN, 11, DELETE, 2, 2)]
    assert places(span, *freed, partition=0) == []
    assert places(span, row(PLAIN, 12, INSERT, 3, 1), partition=1) == [0]
    assert places(span, row(PLAIN, 13, INSERT, 4, 2), partition=1) == []


def test_rows_without_a_value_take_none_from_each_other() -> None:
    span = Conflicts().begin("s", 0)
    places(span, row(PLAIN, 10, INSERT, 9, 9))
    assert places(span, row(PLAIN, 11, DELETE, 1, None), partition=0) == []
    assert places(span, row(PLAIN, 12, INSERT, 2, None), partition=1) == []
    assert places(span, row(PLAIN, 13, DELETE, 1, 7), partition=0) == []
    assert places(span, row(PLAIN, 14, INSERT, 2, 7), partition=1) == [0]


def test_what_is_known_of_a_span_holds_only_for_the_range_that_follows() -> None:
    conflicts = Conflicts()
    first, second = row(PLAIN, 11, INSERT, 1, 1), row(PLAIN, 21, INSERT, 2, 2)

    def marked(after: int, upto: int, *rows: RowChange, commit: bool = True) -> bool:
        span = conflicts.begin("s", after)
        found = places(span, *rows)
        if commit:
            conflicts.commit("s", upto, span)
        return bool(found)

    assert marked(10, 20, first), "nothing was known"
    assert not marked(20, 30, second)
    assert marked(40, 50, second), "somebody else delivered up to 40"
    assert not marked(50, 60, second)
    assert not marked(60, 70, first, commit=False)
    assert marked(60, 70, first), "what was not committed is not known"


def test_a_new_version_of_a_table_begins_with_a_mark() -> None:
    span = Conflicts().begin("s", 0)
    assert places(span, row(PLAIN, 11, INSERT, 1, 1)) == [0]
    assert places(span, row(PLAIN, 12, INSERT, 2, 2)) == []
    assert places(span, row(replace(PLAIN, version=9), 13, INSERT, 3, 3)) == [0]


def test_all_trackers_of_a_writer_together_are_bounded() -> None:
    conflicts = Conflicts(total_max=3)
    for number in range(4):
        span = conflicts.begin(f"s{number}", 0)
        rows = [row(PLAIN, 11, INSERT, 9, 9), row(PLAIN, 12, DELETE, 1, 1), row(PLAIN, 13, DELETE, 2, 2)]
        places(span, *rows)
        conflicts.commit(f"s{number}", 20, span)
    warm = [bool(conflicts.begin(f"s{number}", 20).values) for number in range(4)]
    assert sum(warm) == 1


def test_transactions_after_unseen_deletes_have_a_mark_before_inserts() -> None:
    """Here the delete that freed 1 is not among the rows, because an earlier incarnation sent it."""
    span = Conflicts().begin("s", 0, blind_upto=13)
    rows = [row(PLAIN, 10, UPDATE, 9, 9), row(PLAIN, 12, INSERT, 3, 1), row(PLAIN, 12, INSERT, 4, 2)]
    assert places(span, *rows, row(PLAIN, 13, INSERT, 5, 5), row(PLAIN, 14, INSERT, 6, 6)) == [0, 1, 3, 4]
    assert places(span, row(PLAIN, 15, INSERT, 7, 7)) == []
    ts = 450_000_000_000_000_001  # more digits than a float has
    span = Conflicts().begin("s", 0, blind_upto=ts)
    assert places(span, row(PLAIN, ts, INSERT, 1, 1)) == [0]
    assert places(span, row(PLAIN, ts + 1, INSERT, 2, 2)) == [0]
    assert places(span, row(PLAIN, ts + 1, INSERT, 3, 3)) == []


def test_a_text_that_is_no_utf8_may_equal_another_one_that_is_none() -> None:
    keys = tracked_keys(TEXTS)

    def hashes(mail: bytes) -> int:
        return value_hashes(row(TEXTS, 1, INSERT, 1, None, mail, None, 1, None), keys)[1]

    assert hashes(b"a\xff") == hashes(b"A\xfe") == hashes("A\ufffd".encode())
    assert hashes(b"a\xe4\xb8") == hashes(b"a\xff\xff"), "each byte is one broken character"
    assert hashes(b"abc\xff") == hashes(b"ABC"), "the prefix that counts is sound"
    rows = [
        row(TEXTS, 1, INSERT, n, m, m, None, 1, None) for n, m in enumerate((b"a\xff", b"abc\xff", b"\xfe"))
    ]
    assert key_hashes(block_of(rows), keys).tolist() == [value_hashes(one, keys) for one in rows]


def test_the_trackers_of_one_range_together_are_bounded() -> None:
    conflicts = Conflicts(total_max=3)
    span = conflicts.begin("s", 0)
    for number in range(4):
        table = replace(PLAIN, id=number)
        places(span, *(row(table, 11 + n, DELETE, n, n) for n in range(2 + number % 2)))
        assert span.values == sum(len(tracker) for _, tracker in span.trackers.values()) <= 3


def test_the_trackers_of_ranges_that_were_begun_are_bounded_together() -> None:
    conflicts = Conflicts(total_max=3)
    spans = [conflicts.begin(name, 0) for name in "ab"]
    for span in spans:
        places(span, row(PLAIN, 11, DELETE, 1, 1), row(PLAIN, 12, DELETE, 2, 2))
    assert [span.values for span in spans] == [2, 2]
    conflicts.begin("c", 0)
    assert [span.values for span in spans] == [0, 0]
    assert places(spans[0], row(PLAIN, 13, UPDATE, 3, 3)) == [0]


def test_what_is_known_is_forgotten_with_a_block_of_whole_updates() -> None:
    span = Conflicts().begin("s", 0)
    assert places(span, row(PLAIN, 11, INSERT, 1, 1)) == [0]
    span.forget()
    assert places(span, row(PLAIN, 12, INSERT, 2, 2)) == [0]
