"""MODIFY COLUMN, pair by pair: every pair of types that TiDB allows has a rule on the page and values here.

The expected values are written by hand from TiDB's rules, by what the value is (`12.5` as an integer, as a
date, as text ...); the test itself only fits them into the type: bounds, lengths, single precision.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pytest
from tools import modify_page
from tools.modify_page import (
    BINARIES,
    CHARS,
    INTEGERS,
    MOMENTS,
    PAGE,
    REFUSED_BY_TIDB,
    REFUSED_HERE,
    RULES,
    TEXTS,
    TYPES,
    cell,
    rule_of,
    tidb_allows,
)

from tidegate.consumer.table.modify import change_of
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb.cast import cast, refusal

UNSIGNED = 32
BITS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
ELEMS = {"ENUM": ("a", "b", "10"), "SET": ("a", "b", "c")}
LENGTHS = {"CHAR": 10, "VARCHAR": 10, "BINARY": 10, "VARBINARY": 10, "DECIMAL": 12, "BIT": 8}
LENGTHS |= {"TINYTEXT": 255, "TINYBLOB": 255, "TEXT": 65535, "BLOB": 65535}
FSP = {"DATETIME": 0, "TIMESTAMP": 0, "TIME": 0, "DECIMAL": 2}


def column(name: str, flag: int = 0, **other: Any) -> Column:
    settings = {"flen": LENGTHS.get(name, -1), "decimal": FSP.get(name, -1), "elems": ELEMS.get(name, ())}
    return modify_page.column(name, flag=flag, **settings | other)


@dataclass(frozen=True)
class Sample:
    """A value of a type, and what it is as each of the others; a kind that is not said is not tried."""

    value: Value
    says: dict[str, Value]
    before: Column | None = None
    """Its column where that is not the usual one."""


def sample(value: Value, before: Column | None = None, **says: Value) -> Sample:
    return Sample(value, says, before)


WHOLE = (
    sample(
        24, int=24, dec="24.00", real=24.0, bit=24, year=2024, time="00:00:24", text="24", enum=0, json="24"
    ),
    sample(2, int=2, dec="2.00", real=2.0, bit=2, year=2002, text="2", enum=2, set=2, json="2"),
    sample(101, int=101, date="2000-01-01", datetime="2000-01-01 00:00:00", time="00:01:01"),
    sample(0, int=0, dec="0.00", real=0.0, bit=0, year=0, date="0000-00-00", text="0", json="0"),
)
LARGE = (
    *WHOLE,
    sample(
        101112, int=101112, dec="101112.00", real=101112.0, time="10:11:12", date="2010-11-12",
        datetime="2010-11-12 00:00:00", text="101112", json="101112",
    ),
    sample(-5, int=-5, dec="-5.00", real=-5.0, time="-00:00:05", text="-5", json="-5"),
)  # fmt: skip
FRACTIONS = (
    sample(
        "2.5000", int=3, dec="2.50", real=2.5, bit=3, year=2003, time="00:00:03", text="2.5000", json="2.5"
    ),
    sample("-2.5000", int=-3, dec="-2.50", real=-2.5, time="-00:00:03", text="-2.5000", json="-2.5"),
    sample("1.0050", int=1, dec="1.01", real=1.005, bit=1, text="1.0050", json="1.005"),
    sample("-0.0040", int=0, dec="0.00", real=-0.004, text="-0.0040", json="-0.004"),
    sample("1234567.8950", int=1234568, dec="1234567.90", text="1234567.8950"),
)
FLOATS = (
    sample(2.5, int=2, dec="2.50", real=2.5, bit=2, year=2002, time="00:00:03", text="2.5", json="2.5"),
    sample(3.5, int=4, dec="3.50", real=3.5, bit=4, year=2004, text="3.5", json="3.5"),
    sample(-2.5, int=-2, dec="-2.50", real=-2.5, time="-00:00:03", text="-2.5", json="-2.5"),
    sample(1048576.0, int=1048576, dec="1048576.00", real=1048576.0, text="1048576", json="1048576.0"),
    sample(101112.0, time="10:11:12", text="101112"),
)
TENTH = 0.10000000149011612
"""0.1 in single precision."""
WORDS = (
    sample(b"12.5", int=13, dec="12.50", real=12.5, year=2013, text="12.5", enum=0, json="12.5"),
    sample(b"-1.5", int=-2, dec="-1.50", real=-1.5, text="-1.5"),
    sample(b"b", enum=2, set=2, text="b"),
    sample(b"10", enum=3, int=10, year=2010, text="10", json="10"),
    sample(b"a,c", set=5, text="a,c"),
    sample(
        b"2024-02-29 10:11:12.5", date="2024-02-29", datetime="2024-02-29 10:11:13", time="10:11:13",
        text="2024-02-29 10:11:12.5",
    ),
    sample(b'{"b":1}', json='{"b": 1}', text='{"b":1}'),
)  # fmt: skip
DATETIMES = (
    sample(
        "2024-02-29 10:11:12.500000", column("DATETIME", decimal=6), int=20240229101113, uint=20240229101113,
        dec="9999999999.99", real=20240229101112.5, year=2024, date="2024-02-29",
        datetime="2024-02-29 10:11:13", time="10:11:13", text="2024-02-29 10:11:12.500000",
        json='"2024-02-29 10:11:12.500000"',
    ),
    sample("2023-12-31 23:59:59.400000", column("DATETIME", decimal=6), datetime="2023-12-31 23:59:59"),
    sample("2023-12-31 23:59:59.500000", column("DATETIME", decimal=6), datetime="2024-01-01 00:00:00"),
)  # fmt: skip
SAMPLES: dict[str, tuple[Sample, ...]] = {
    "TINYINT": WHOLE,
    "SMALLINT": WHOLE,
    **dict.fromkeys(("MEDIUMINT", "INT", "BIGINT"), LARGE),
    "DECIMAL": tuple(Sample(s.value, s.says, column("DECIMAL", decimal=4)) for s in FRACTIONS),
    "FLOAT": (
        *FLOATS,
        sample(TENTH, dec="0.10", real=TENTH, text="0.1", json="0.10000000149011612"),
    ),
    "DOUBLE": (*FLOATS, sample(1.005, dec="1.01", text="1.005"), sample(1e21, text="1" + "0" * 21)),
    "BIT": (
        sample(5, int=5, dec="5.00", real=5.0, bit=5, year=2005, text="5"),
        sample(0x6162636465, column("BIT", flen=40), bit=255, int=0x6162636465, json='"abcde"'),
    ),
    "YEAR": (
        sample(2024, int=2024, dec="2024.00", real=2024.0, year=2024, text="2024", json="2024"),
        sample(2024, time="00:20:24"),
        sample(1970, int=1970, date="0000-00-00", datetime="0000-00-00 00:00:00", year=1970),
    ),
    "DATE": (
        sample(
            "2024-02-29", int=20240229, dec="20240229.00", real=20240229.0, year=2024, date="2024-02-29",
            datetime="2024-02-29 00:00:00", time="00:00:00", text="2024-02-29", json='"2024-02-29"',
        ),
    ),
    "DATETIME": DATETIMES,
    "TIMESTAMP": tuple(Sample(s.value, s.says, column("TIMESTAMP", decimal=6)) for s in DATETIMES),
    "TIME": (
        sample(
            "00:00:24.500000", column("TIME", decimal=6), int=25, dec="24.50", real=24.5, time="00:00:25",
            text="00:00:24.500000", json='"00:00:24.500000"',
        ),
        sample("-10:11:12", int=-101112, real=-101112.0, time="-10:11:12", text="-10:11:12"),
        sample("00:00:24", int=24, year=2024, json='"00:00:24.000000"'),
    ),
    **dict.fromkeys(TEXTS, WORDS),
    "ENUM": (
        sample(2, int=2, dec="2.00", real=2.0, bit=2, year=2002, text="b", enum=2, set=2),
        sample(3, int=3, bit=3, text="10", enum=3, json="10"),
    ),
    "SET": (
        sample(2, int=2, dec="2.00", real=2.0, bit=2, year=2002, text="b", enum=2, set=2),
        sample(5, int=5, text="a,c", set=5),
        sample(4, column("SET", elems=("a", "b", "10")), text="10", json="10"),
    ),
    "JSON": (
        sample("24", int=24, dec="24.00", real=24.0, year=2024, text="24", json="24"),
        sample('"12.5x"', int=13, dec="12.50", real=12.5, text='"12.5x"'),
        sample("true", int=1, dec="1.00", real=1.0, text="true"),
        sample("[1, 2]", int=0, dec="0.00", real=0.0, text="[1, 2]", json="[1, 2]"),
        sample('"2024-02-29 10:11:12"', date="2024-02-29", datetime="2024-02-29 10:11:12", time="10:11:12"),
    ),
    "VECTOR": (sample("[1,2]", vector="[1,2]"),),
}  # fmt: skip


def kind_of(after: str) -> str:
    """Return the name of a type's values in a sample."""
    kinds = {"DECIMAL": "dec", "FLOAT": "real", "DOUBLE": "real", "TIMESTAMP": "datetime"}
    kinds |= dict.fromkeys(INTEGERS, "int") | dict.fromkeys(TEXTS, "text")
    return kinds.get(after, after.lower())


def fitted(says: dict[str, Value], after: str, flag: int) -> Value:
    """The hand-written value within the type's bounds."""
    value = says[kind_of(after)]
    if after in INTEGERS:
        assert isinstance(value, int)
        if flag & UNSIGNED:
            return max(0, min(int(says.get("uint", value)), 2 ** BITS[after] - 1))  # type: ignore[arg-type]
        return max(-(2 ** (BITS[after] - 1)), min(value, 2 ** (BITS[after] - 1) - 1))
    if after == "FLOAT":
        return struct.unpack("<f", struct.pack("<f", value))[0]  # type: ignore[no-any-return]
    if after in TEXTS:
        assert isinstance(value, str)
        cut = value.encode()[: LENGTHS.get(after)]
        return cut.ljust(10, b"\0") if after == "BINARY" else cut
    return value


PAIRS = [(before, after) for before in TYPES for after in TYPES]


@pytest.mark.parametrize("before", TYPES)
def test_every_pair_of_types_is_converted_by_tidbs_rule_or_refused(before: str) -> None:
    for after in TYPES:
        said = cell(before, after)
        if said in (REFUSED_BY_TIDB, REFUSED_HERE):
            assert tidb_allows(before, after) == (said == REFUSED_HERE)
            assert (said == REFUSED_HERE) == (before == "TIME" and after in MOMENTS)
            continue
        tried = [one for one in SAMPLES[before] if kind_of(after) in one.says]
        assert tried, f"no value shows {before} to {after}"
        for one in tried:
            for flag in (0, UNSIGNED) if after in INTEGERS else (0,):
                was, new = one.before or column(before), column(after, flag)
                assert refusal(was, new, UTC) == ""
                assert cast(one.value, was, new) == fitted(one.says, after, flag), (before, after, one.value)
                assert cast(None, was, new) is None


def test_the_page_says_what_the_code_does() -> None:
    """One rule a pair, every rule used; the page is as it is written from them."""
    assert {rule_of(*pair) for pair in PAIRS} == {None, *range(1, len(RULES) + 1)}
    text = PAGE.read_text()
    assert text == modify_page.page(text), "run: python -m tools.modify_page"


# --- what TiDB keeps as it is


def _kept() -> list[tuple[Column, Column]]:
    """Changes of a definition that leave column id and data: the new type holds every value as it is."""
    wider = [
        (column(INTEGERS[i], flag), column(INTEGERS[j], flag))
        for flag in (0, UNSIGNED)
        for i in range(5)
        for j in range(i, 5)
    ]
    texts = ["VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"]
    blobs = ["VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"]
    longer = [
        (column(group[i]), column(group[j]))
        for group in (texts, blobs)
        for i in range(5)
        for j in range(i, 5)
    ]
    others = [
        (column("CHAR", flen=5), column("CHAR", flen=9)),
        (column("VARCHAR", flen=5), column("VARCHAR", flen=9)),
        (column("BIT", flen=4), column("BIT", flen=64)),
        (column("FLOAT"), column("FLOAT")),
        (column("ENUM"), column("ENUM", elems=("a", "b", "10", "new"))),
        (column("SET"), column("SET", elems=("a", "b", "c", "new"))),
    ]
    return [*wider, *longer, *others]


def test_a_change_that_keeps_the_rows_changes_no_value() -> None:
    """Whether TiDB rewrites the rows or not, the result is the same."""
    values: dict[Kind, tuple[Value, ...]] = {
        **dict.fromkeys((Kind.STRING, Kind.BYTES), (b"", b"ab")),
        Kind.FLOAT: (0.5, -1.25),
    }
    for before, after in _kept():
        for value in values.get(before.kind, (0, 1, 2)):
            assert cast(value, before, after) == value
        assert change_of(before, after, UTC) is None


def test_more_digits_of_the_second_keep_the_moment_and_respell_a_time() -> None:
    assert cast("2024-02-29 10:11:12", column("DATETIME"), column("DATETIME", decimal=3)) == (
        "2024-02-29 10:11:12.000"
    )
    assert change_of(column("DATETIME"), column("DATETIME", decimal=3), UTC) is None
    change = change_of(column("TIME"), column("TIME", decimal=3), UTC)
    assert change is not None
    assert cast("10:11:12", change.before, change.after) == "10:11:12.000"


def test_elements_that_move_are_found_by_name() -> None:
    """`MODIFY e ENUM('b', 'a')`: rows keep their names, those without one get the empty element."""
    moved = column("ENUM", elems=("b", "a"))
    assert [cast(n, column("ENUM"), moved) for n in (1, 2, 3)] == [2, 1, 0]
    bits = column("SET", elems=("c", "a"))
    assert [cast(n, column("SET"), bits) for n in (1, 4, 5)] == [2, 1, 3]


def test_characters_and_bytes_are_cut_where_their_types_count() -> None:
    text = "aé😀z".encode()
    assert cast(text, column("TEXT"), column("CHAR", flen=3)) == "aé😀".encode()
    assert cast(text, column("TEXT"), column("VARBINARY", flen=3)) == "aé".encode()
    assert cast(b"ab  ", column("VARCHAR"), column("CHAR")) == b"ab"
    assert cast(b"ab\0\0", column("BINARY", flen=4), column("BINARY", flen=6)) == b"ab\0\0\0\0"
    assert set(CHARS) | set(BINARIES) == set(TEXTS)
