"""Golden folders made by hand, where TiCDC judges a row wrongly: accepted as its defects give it, only so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import golden_folder
from tests.filter.tables import NOT_NULL, PRIMARY, column
from tests.tidb.golden_rows import changes
from tests.tidb.test_checksum import (
    test_golden_altered_rows_are_judged_as_ticdc_judges_them as judge_altered,
)
from tests.tidb.test_checksum import test_golden_rows_match_their_checksums_and_give_ticdcs as judge_rows
from tidegate.model.schema import Kind
from tidegate.tidb import checksum, keys, row
from tidegate.tidb.types import json as json_type

TABLE, VERSION = 7, 100
KEY = keys.int_record(TABLE, 1)
COLUMNS = [
    column("id", 8, flag=NOT_NULL | PRIMARY),
    column("f", 4, flen=12, decimal=-1),
    column("b", 16, flen=12),
    column("d", 5, flen=22, decimal=-1),
    column("j", 245),
]
A_DATE = bytes([0x0E]) + bytes(8)
"""The JSON value that is the zero date; its text is a JSON text."""
PLAIN, DATE = json_type.encode('{"a": 1}'), A_DATE
VALUES = ["1", "0.5", "5", "0.5", '{"a": 1}']


def cells(**others: Any) -> bytes:
    """The row (1, 0.5, b'101', 0.5, {"a": 1}) but for `others`, without checksum."""
    values = {"f": 0.5, "b": 5, "d": 0.5, "j": PLAIN} | others
    kinds = {"f": Kind.FLOAT, "b": Kind.BIT, "d": Kind.DOUBLE, "j": Kind.JSON}
    return row.encode_v2((at, kinds[name], values[name]) for at, name in enumerate(kinds, 2))


def carrying(bare: bytes, healthy: bytes) -> bytes:
    """A row with the checksum of another one."""
    return bytes([bare[0], bare[1] | row.CHECKSUM]) + bare[2:] + checksum.sealed(healthy, KEY)[-5:]


def column_sum(*values: Any) -> int:
    kinds = (Kind.INT, Kind.FLOAT, Kind.BIT, Kind.DOUBLE, Kind.JSON)
    register = 0
    for kind, value in zip(kinds, values, strict=True):
        register = checksum.crc32(checksum.column_bytes(kind, value), register)
    return register


SUM = column_sum(1, 0.5, 5, 0.5, '{"a": 1}')


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = golden_folder.folder()
    yield
    golden_folder.use(before)


def written(folder: Path, data: bytes, values: list[str], *, verdict: Any = None, case: Any = None) -> None:
    """A folder with one row change, and one altered row if `case` (data, values, verdict) is given."""
    cols = [entry | {"id": at + 1, "offset": at} for at, entry in enumerate(COLUMNS)]
    info = {"id": TABLE, "name": {"O": "t", "L": "t"}, "cols": cols, "index_info": [], "pk_is_handle": True}
    place = {"key": KEY.hex(), "commit_ts": VERSION + 5}
    mounted = {"table_id": TABLE, "table_version": VERSION, "values": values, "checksum": _named(verdict)}
    records: list[dict[str, Any]] = [
        {"kind": "table_info", "commit_ts": VERSION, "table_info": info},
        {"kind": "cdc_table", "schema": "test", "table_id": TABLE, "version": VERSION},
        {"kind": "kv", "is": "row", "seq": 0, "mounted": mounted, "value": data.hex(), "old_value": ""}
        | place,
    ]
    if case is not None:
        altered, shown, found = case
        more = {"of_seq": 0, "what": "by hand", "error": None, "values": shown, "checksum": _named(found)}
        records.append({"kind": "checksum_case", "value": altered.hex()} | more | place)
    (folder / "rows").mkdir(exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "rows" / "odd.jsonl").write_text(text)
    golden_folder.use(folder)


def _named(verdict: tuple[bool, int, int] | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return dict(zip(("corrupted", "current", "version"), verdict, strict=True)) | {"previous": 0}


def below_single(value: float) -> float:
    """A double that has the same 32-bit float."""
    return value * (1 + 2**-40)


@pytest.mark.parametrize(
    ("altered", "values"),
    [
        (cells(f=below_single(0.5)), VALUES),
        (cells(b=5 | 1 << 16), VALUES),
        (cells(f=below_single(0.5), b=5 | 1 << 40), VALUES),
    ],
    ids=["float", "bit", "both"],
)
def test_we_detect_damage_that_ticdc_loses_when_it_reencodes_a_row(
    tmp_path: Path, altered: bytes, values: list[str]
) -> None:
    healthy = checksum.sealed(cells(), KEY)
    damaged = carrying(altered, cells())
    written(tmp_path, healthy, VALUES, verdict=(False, SUM, 2), case=(damaged, values, (False, SUM, 2)))
    (change,) = changes("odd")
    assert checksum.check(change.table, KEY, damaged).outcome is checksum.Outcome.MISMATCHED
    judge_rows("odd")
    judge_altered("odd")


@pytest.mark.parametrize(
    ("altered", "values", "verdict"),
    [
        (cells(f=below_single(0.5)), VALUES, (False, SUM + 1, 2)),
        (cells(f=below_single(0.5)), VALUES, (False, SUM, 1)),
        (cells(f=below_single(0.5)), [*VALUES[:1], "0.25", *VALUES[2:]], (False, SUM, 2)),
        (cells(f=0.25), VALUES, (False, SUM, 2)),
        (cells(b=5 | 1 << 13), VALUES, (False, SUM, 2)),
        (cells(d=below_single(0.5)), VALUES, (False, SUM, 2)),
        (cells(f=below_single(0.5), d=0.25), VALUES, (False, SUM, 2)),
    ],
    ids=[
        "sum",
        "version",
        "value",
        "a bit of the float",
        "a bit of the column's bytes",
        "double",
        "one of two",
    ],
)
def test_no_other_oversight_is_accepted(
    tmp_path: Path, altered: bytes, values: list[str], verdict: tuple[bool, int, int]
) -> None:
    healthy = checksum.sealed(cells(), KEY)
    written(
        tmp_path, healthy, VALUES, verdict=(False, SUM, 2), case=(carrying(altered, cells()), values, verdict)
    )
    with pytest.raises(AssertionError):
        judge_altered("odd")


def carried(data: bytes) -> int:
    found = row.split(data).checksum
    assert found is not None
    return found.value


def test_healthy_json_that_ticdc_accuses_is_healthy(tmp_path: Path) -> None:
    data = checksum.sealed(cells(j=DATE), KEY)
    values = [*VALUES[:4], '"0000-00-00"']
    verdict = (True, carried(data), 2)
    written(tmp_path, data, values, verdict=verdict, case=(data, values, verdict))
    (change,) = changes("odd")
    assert checksum.check(change.table, KEY, data).outcome is checksum.Outcome.MATCHED
    judge_rows("odd")
    judge_altered("odd")


@pytest.mark.parametrize(
    ("document", "text", "off"), [(DATE, '"0000-00-00"', 1), (PLAIN, '{"a": 1}', 0)], ids=["sum", "no date"]
)
def test_no_other_accusation_is_accepted(tmp_path: Path, document: bytes, text: str, off: int) -> None:
    data = checksum.sealed(cells(j=document), KEY)
    values = [*VALUES[:4], text]
    verdict = (True, carried(data) + off, 2)
    written(tmp_path, data, values, verdict=verdict, case=(data, values, verdict))
    with pytest.raises(AssertionError):
        judge_rows("odd")
    with pytest.raises(AssertionError):
        judge_altered("odd")
