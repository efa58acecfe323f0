"""Which rows lie in which partition: against TiDB's own placement, and by hand where none is recorded."""

from __future__ import annotations

import datetime
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from tests.codec.golden import lines
from tidegate.consumer.table.convert import Losses, to_target
from tidegate.consumer.table.definition import Definition, from_info
from tidegate.consumer.table.partitioning import HASH, LIST, RANGE, NotComputable, members

COLLATIONS = {"b": "utf8mb4_bin", "ci": "utf8mb4_general_ci"}
DAY, STAMP = datetime.date, datetime.datetime


@pytest.mark.parametrize("case", ["part_range", "part_list", "part_hash", "random_02", "random_13"])
def test_every_recorded_row_is_found_where_tidb_put_it(case: str) -> None:
    infos: list[dict[str, Any]] = []
    placed: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for record in lines(f"rows/{case}"):
        if record["kind"] == "table_info":
            infos.append(record["table_info"])
        elif record["kind"] == "kv" and record.get("mounted"):
            mounted = record["mounted"]
            placed[len(infos) - 1, record["physical_table_id"]].append(
                mounted["values"] or mounted["pre_values"]
            )
    checked = 0
    for (version, physical_id), rows in placed.items():
        info = infos[version]
        if not info.get("partition"):
            continue
        held = from_info("s", info, 1)
        batch = batch_of(held, rows)
        for one in info["partition"]["definitions"]:
            mask = members(info, held, {one["id"]}).mask(batch)
            assert mask.to_pylist() == [one["id"] == physical_id] * len(rows)
        checked += len(rows)
    assert checked >= 5


def batch_of(held: Definition, rows: list[list[Any]]) -> pa.RecordBatch:
    """Rows as TiCDC prints their values, in the target's types; null where the text is no such value."""
    arrays = []
    for at, column in enumerate(held.columns):
        texts = [row[at] if at < len(row) and isinstance(row[at], str) else None for row in rows]
        try:
            arrays.append(to_target(pa.array(texts, pa.string()), column, "UTC", Losses()))
        except Exception:  # a column that no partition looks at
            arrays.append(pa.nulls(len(rows), column.type))
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in held.columns])


def column(at: int, name: str, kind: int, flag: int = 0, collate: str = "binary") -> dict[str, Any]:
    field = {"Tp": kind, "Flag": flag, "Flen": 20, "Decimal": 0, "Collate": collate}
    field["Charset"] = "binary" if collate == "binary" else "utf8mb4"
    return {"id": at + 1, "name": {"O": name, "L": name}, "offset": at, "type": field, "state": 5}


INFO = {
    "id": 7,
    "name": {"O": "t", "L": "t"},
    "cols": [
        column(0, "i", 8),
        column(1, "u", 8, flag=32),
        column(2, "d", 10),
        column(3, "s", 7),
        column(4, "b", 15, collate="utf8mb4_bin"),
        column(5, "ci", 15, collate="utf8mb4_general_ci"),
    ],
}
HELD = from_info("s", INFO, 1)


def found(
    kind: int,
    by: str | list[str],
    bounds: list[Any],
    name: str,
    values: list[Any],
    held: Definition = HELD,
) -> list[list[int]]:
    """For each partition the positions of the values of column `name` that lie in it."""
    definitions = [
        {
            "id": 100 + at,
            "name": {"O": f"p{at}", "L": f"p{at}"},
            "less_than": bound if kind == RANGE else None,
            "in_values": bound if kind == LIST else None,
        }
        for at, bound in enumerate(bounds)
    ]
    columns = None if isinstance(by, str) else [{"O": one, "L": one} for one in by]
    partition = {"type": kind, "expr": by if isinstance(by, str) else "", "columns": columns}
    info = INFO | {"partition": partition | {"definitions": definitions}}
    arrays = [
        pa.array(values, one.type) if one.name == name else pa.nulls(len(values), one.type)
        for one in held.columns
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=[one.name for one in held.columns])
    masks = [members(info, held, {one["id"]}).mask(batch).to_pylist() for one in definitions]
    assert all(sum(row) <= 1 for row in zip(*masks, strict=True)), "partitions do not overlap"
    return [[at for at, inside in enumerate(mask) if inside] for mask in masks]


@pytest.mark.parametrize(
    ("kind", "by", "bounds", "name", "values", "expected"),
    [
        (RANGE, "`i`", [["0"], ["10"], ["MAXVALUE"]], "i", [None, -1, 0, 9, 10], [[0, 1], [2, 3], [4]]),
        (RANGE, "`u`", [["18446744073709551615"], ["MAXVALUE"]], "u", [1, 2**64 - 1], [[0], [1]]),
        (RANGE, ["d"], [["'2020-01-01'"]], "d", [DAY(2019, 12, 31), DAY(2020, 1, 1), None], [[0, 2]]),
        (RANGE, "YEAR(`d`)", [["2020"], ["2021"]], "d", [DAY(2019, 5, 5), DAY(2020, 1, 1)], [[0], [1]]),
        (RANGE, "TO_DAYS(`d`)", [["737790"]], "d", [DAY(2019, 12, 31), DAY(2020, 1, 1)], [[0]]),
        (
            RANGE,
            "to_days(`d`)",
            [["TO_DAYS('2020-01-01')"]],
            "d",
            [DAY(2019, 12, 31), DAY(2020, 1, 1)],
            [[0]],
        ),
        (
            RANGE,
            "unix_timestamp(`s`)",
            [["1577836800"]],
            "s",
            [STAMP(2019, 12, 31, 23, 59, 59, 999999), STAMP(2020, 1, 1)],
            [[0]],
        ),
        (RANGE, ["b"], [["'m'"], ["MAXVALUE"]], "b", ["A", "l ", "m", "é"], [[0, 1], [2, 3]]),
        (LIST, "`i`", [[["1"], ["NULL"]], [["2"]]], "i", [1, 2, 3, None], [[0, 3], [1]]),
        (LIST, ["b"], [[["'a'"], ["'it''s'"]], [["DEFAULT"]]], "b", ["a ", "it's", "z"], [[0, 1], [2]]),
        (HASH, "`i`", [None, None, None], "i", [None, -5, 4, 6], [[0, 3], [2], [1]]),
    ],
)
def test_partitions_by_hand(
    kind: int, by: str | list[str], bounds: list[Any], name: str, values: list[Any], expected: list[list[int]]
) -> None:
    assert found(kind, by, bounds, name, values)[: len(expected)] == expected


DATED = INFO | {"cols": [*INFO["cols"], column(6, "m", 12), column(7, "z", 10)]}
PRIMARY = {"id": 1, "idx_name": {"O": "PRIMARY"}, "state": 5, "is_unique": True, "is_primary": True}


@pytest.mark.parametrize(
    ("kind", "by", "bounds", "name", "values", "expected"),
    [
        (RANGE, ["d"], [["'2020-01-01'"]], "d", ["2019-12-31", "2020-01-01", "0000-00-00"], [[0, 2]]),
        (RANGE, "YEAR(`d`)", [["2021"], ["2022"]], "d", ["2019-05-05", "2021-02-31"], [[0], [1]]),
        (RANGE, "TO_DAYS(`d`)", [["737790"]], "d", ["2019-12-31", "2020-01-01"], [[0]]),
        (
            RANGE,
            "unix_timestamp(`s`)",
            [["1577836800"]],
            "s",
            ["2019-12-31 23:59:59.999999", "2020-01-01 00:00:00.000000"],
            [[0]],
        ),
        (
            LIST,
            ["m"],
            [[["'2020-01-01'"]], [["'2020-01-01 10:00:00.5'"]]],
            "m",
            ["2020-01-01 10:00:00.500000", "2020-01-01 00:00:00.000000"],
            [[1], [0]],
        ),
    ],
)
def test_moments_of_a_key_lie_where_they_lie_as_dates(
    kind: int, by: str | list[str], bounds: list[Any], name: str, values: list[Any], expected: list[list[int]]
) -> None:
    at = [one["name"]["O"] for one in DATED["cols"]].index(name)
    index = PRIMARY | {"idx_cols": [{"name": {"O": name}, "offset": at, "length": -1}]}
    held = from_info("s", DATED | {"index_info": [index], "is_common_handle": True}, 1)
    assert held.keys == (name,)
    assert found(kind, by, bounds, name, values, held)[: len(expected)] == expected


def test_bounds_of_several_columns_are_compared_as_tuples() -> None:
    bounds = [["5", "'k'"], ["5", "MAXVALUE"], ["MAXVALUE", "MAXVALUE"]]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([4, 5, 5, 6, None], one.type)
            if one.name == "i"
            else pa.array(["z", "a", "z", "a", None], one.type)
            if one.name == "b"
            else pa.nulls(5, one.type)
            for one in HELD.columns
        ],
        names=[one.name for one in HELD.columns],
    )
    definitions = [{"id": at, "name": {"O": f"p{at}"}, "less_than": bound} for at, bound in enumerate(bounds)]
    columns = [{"O": "I"}, {"O": "b"}]
    info = INFO | {"partition": {"type": RANGE, "expr": "", "columns": columns, "definitions": definitions}}
    masks = [members(info, HELD, {at}).mask(batch).to_pylist() for at in range(3)]
    assert masks == [
        [True, True, False, False, True],
        [False, False, True, False, False],
        [False, False, False, True, False],
    ]
    assert members(info, HELD, {0, 2}).mask(batch).to_pylist() == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("kind", "by", "bounds", "why"),
    [
        (4, ["i"], [None], "KEY"),
        (RANGE, "`i` + 1", [["5"]], "expression"),
        (RANGE, "abs(`i`)", [["5"]], "expression"),
        (RANGE, ["ci"], [["'m'"]], "utf8mb4_general_ci"),
        (RANGE, ["nope"], [["5"]], "'nope' is not at the target"),
        (RANGE, "`i`", [["5 + 5"]], "not an integer"),
        (RANGE, ["d"], [["'0000-00-00'"]], "no day of the calendar"),
        (RANGE, ["s"], [["'2020-01-01'"]], "time zone"),
        (HASH, "`u`", [None], "unsigned"),
    ],
)
def test_what_is_not_computed_says_why(kind: int, by: str | list[str], bounds: list[Any], why: str) -> None:
    with pytest.raises(NotComputable, match=why):
        found(kind, by, bounds, "i", [1])


def test_partitions_that_the_definition_does_not_name() -> None:
    with pytest.raises(NotComputable, match="does not name"):
        members(INFO, HELD, {5})
