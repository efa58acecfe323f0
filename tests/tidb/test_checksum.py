import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.golden_folder import count, lines
from tests.tidb.classic_row import encoded_again
from tests.tidb.golden_rows import Change, case_names, changes, expected, shown
from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.schema import Kind
from tidegate.tidb import checksum, keys, record, row
from tidegate.tidb.checksum import Check, Outcome


def sent(change: Change, data: bytes, found: Check) -> int:
    """The sum that TiCDC sends: docs/formats/checksums.md#what-messages-carry."""
    if found.outcome is Outcome.UNCHECKED:
        return 0
    if found.outcome is Outcome.MISMATCHED and found.version:
        return found.expected
    values = record.decode(change.table, keys.parse_record(change.key), data)
    return checksum.column_sum(change.table, values)


Verdict = tuple[bool, int, int]
"""Whether a row is corrupted, the sum that is sent on, the checksum's version."""


def verdict_of(change: Change, key: bytes, data: bytes) -> Verdict | None:
    """None when it carries no checksum."""
    found = checksum.check(change.table, key, data)
    if found.outcome is Outcome.UNCHECKED:
        return None
    return found.outcome is Outcome.MISMATCHED, sent(change, data, found), found.version


@pytest.mark.golden
@pytest.mark.parametrize("name", case_names())
def test_golden_rows_match_their_checksums_and_give_ticdcs(name: str) -> None:
    for change in changes(name):
        match_as_recorded(change)


def match_as_recorded(change: Change) -> None:
    """Ours finds no damage; TiCDC says the same, or exactly what its way of encoding rows again gives."""
    theirs = change.mounted.get("checksum")
    again = theirs is not None and theirs["corrupted"]
    accused = False
    for data, old, member in ((change.value, False, "current"), (change.old_value, True, "previous")):
        if not data:
            assert not theirs or theirs[member] == 0
            continue
        found = checksum.check(change.table, change.key, data, old=old)
        assert found.outcome in (Outcome.MATCHED, Outcome.UNCHECKED)
        if theirs is None:
            pass
        elif again and found.outcome is not Outcome.UNCHECKED:
            classic = verdict_of(change, change.key, encoded_again(change.table, data))
            assert classic is not None
            assert classic[1:] == (theirs[member], theirs["version"]), "not a known defect of TiCDC"
            accused = accused or classic[0]
        else:
            assert sent(change, data, found) == theirs[member]
            assert found.outcome is Outcome.UNCHECKED or found.version == theirs["version"]
        count("rows", f"row images, checksum {found.outcome.name.lower()}")
    assert accused is again, "TiCDC finds damage that ours does not"
    if accused:
        count("rows", "rows: TiCDC accuses JSON with types that its text does not show")


@pytest.mark.golden
@pytest.mark.parametrize("name", case_names())
def test_golden_altered_rows_are_judged_as_ticdc_judges_them(name: str) -> None:
    """Where TiCDC cannot mount the altered row at all, ours is undecodable or does not match."""
    rows = {change.record["seq"]: change for change in changes(name)}
    for case in lines(f"rows/{name}"):
        if case["kind"] == "checksum_case":
            judge_as_recorded(rows[case["of_seq"]], case)


def judge_as_recorded(change: Change, case: dict[str, Any]) -> None:
    """Our verdict on an altered row is TiCDC's, or TiCDC's is what its way of encoding rows again gives."""
    assert (case["key"], case["commit_ts"]) == (change.record["key"], change.record["commit_ts"])
    count("rows", f"checksum cases, {case['what']}")
    key, data = bytes.fromhex(case["key"]), bytes.fromhex(case["value"])
    if case.get("error"):
        try:
            verdict = verdict_of(change, key, data)
        except Undecodable:
            return
        assert verdict is not None
        assert verdict[0], case
        return
    theirs = case["checksum"]
    wanted = theirs and (theirs["corrupted"], theirs["current"], theirs["version"])
    verdict = verdict_of(change, key, data)
    if verdict != wanted:
        data = encoded_again(change.table, data)
        assert verdict_of(change, key, data) == wanted, case
        assert verdict is not None
        seen = "accuses healthy JSON" if wanted[0] else "overlooks damage in a FLOAT or BIT"
        count("rows", f"checksum cases: TiCDC {seen}")
    values = record.decode(change.table, keys.parse_record(change.key), data)
    pairs = zip(change.table.columns, values, strict=True)
    assert [shown(column, value) for column, value in pairs] == list(map(expected, case["values"]))


def a_row() -> tuple[Change, bytes]:
    """A recorded row, and its value without its checksum."""
    change = next(c for c in changes("checksum_floats", ours=True) if c.value)
    value = change.value
    return change, bytes([value[0], value[1] & ~row.CHECKSUM]) + value[2:-5]


@pytest.mark.parametrize("version", [1, 2])
def test_a_sealed_row_matches_only_under_its_key_and_with_its_bytes(version: int) -> None:
    change, bare = a_row()
    sealed = checksum.sealed(bare, change.key, version)
    assert checksum.check(change.table, change.key, sealed).outcome is Outcome.MATCHED
    other = keys.int_record(change.table.id, 99)
    assert checksum.check(change.table, other, sealed).outcome is Outcome.MISMATCHED
    moved = keys.int_record(change.table.id + 1, keys.parse_record(change.key).int_handle)
    kept = Outcome.MATCHED if version == 2 else Outcome.MISMATCHED
    assert checksum.check(change.table, moved, sealed).outcome is kept
    assert version != 2 or sealed == change.value


def test_a_schema_change_in_flight_leaves_two_sums_and_one_must_match() -> None:
    change, bare = a_row()
    values = record.decode(change.table, keys.parse_record(change.key), bare)
    right = checksum.column_sum(change.table, values)
    for sums in ([right], [right, 1], [1, right]):
        sealed = checksum.sealed(bare, change.key, 0, sums)
        assert checksum.check(change.table, change.key, sealed).outcome is Outcome.MATCHED
    wrong = checksum.sealed(bare, change.key, 0, [1, 2])
    assert checksum.check(change.table, change.key, wrong) == Check(Outcome.MISMATCHED, 0, 1, right)
    assert checksum.check(change.table, change.key, wrong, old=True).outcome is Outcome.EXCUSED


def test_columns_add_their_bytes_and_null_adds_nothing() -> None:
    added = checksum.column_bytes
    assert added(Kind.INT, -1) == b"\xff" * 8
    assert added(Kind.ENUM, 2) == b"\x02" + bytes(7)
    assert added(Kind.DOUBLE, float("nan")) == added(Kind.DOUBLE, float("-inf")) == bytes(8)
    assert added(Kind.FLOAT, 1.5) == struct.pack("<d", 1.5)
    assert added(Kind.STRING, b"aa") == b"\x02\0\0\0aa"
    assert added(Kind.DECIMAL, "1.50") == b"\x04\0\0\x001.50"
    assert added(Kind.VECTOR, "[1]") == b"\x01\0\0\0" + struct.pack("<f", 1)
    assert added(Kind.JSON, None) == b""
    with pytest.raises(InvalidInput, match="INT column cannot hold"):
        added(Kind.INT, 1.5)


def test_the_example_of_the_checksums_page() -> None:
    """docs/formats/checksums.md: (id INT = 1, v VARCHAR 'aa', ts NULL)."""
    parts = [(Kind.INT, 1), (Kind.STRING, b"aa"), (Kind.TIMESTAMP, None)]
    whole = b"".join(checksum.column_bytes(kind, value) for kind, value in parts)  # type: ignore[arg-type]
    assert zlib.crc32(whole) == zlib.crc32(bytes([1, *bytes(7), 2, 0, 0, 0, 0x61, 0x61]))


def test_the_pages_example_is_what_the_code_writes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "integrity.md").read_text()
    block = next(block for block in page.split("```")[1::2] if block.startswith("\n80 "))
    shown = "".join(line[:19] for line in block.splitlines())
    bare = row.encode_v2([(2, Kind.STRING, b"aa")])
    assert bytes.fromhex(shown) == checksum.sealed(bare, keys.int_record(5, 1))


def test_what_cannot_be_sealed_is_refused() -> None:
    change, bare = a_row()
    for value in (b"", b"\x08\x02", change.value):
        with pytest.raises(InvalidInput):
            checksum.sealed(value, change.key)
    for version, sums in ((3, []), (0, []), (0, [1, 2, 3]), (2, [1])):
        with pytest.raises(InvalidInput):
            checksum.sealed(bare, change.key, version, sums)
