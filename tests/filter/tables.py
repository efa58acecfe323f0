"""A table with a column of every kind, rows for it, and expressions over it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema

NOT_NULL, PRIMARY, UNIQUE, UNSIGNED = 1, 2, 4, 32


def column(name: str, code: int, **more: Any) -> dict[str, Any]:
    """A ColumnInfo; offset and id are set by `table`."""
    kind = {"Tp": code, "Flag": more.get("flag", 0), "Flen": more.get("flen", 11)}
    kind |= {"Decimal": more.get("decimal", 0), "Elems": more.get("elems")}
    collate = more.get("collate", "binary")
    kind |= {"Charset": collate.partition("_")[0], "Collate": collate}
    return {
        "name": {"O": name, "L": name.lower()},
        "type": kind,
        "state": 5,
        "generated_expr_string": more.get("generated", ""),
        "generated_stored": False,
    }


def index(name: str, columns: list[int], *, primary: bool = False, unique: bool = True) -> dict[str, Any]:
    """An IndexInfo over columns by offset."""
    parts = [{"offset": offset, "length": -1, "name": {"O": "", "L": ""}} for offset in columns]
    return {
        "id": 1,
        "idx_name": {"O": name, "L": name},
        "idx_cols": parts,
        "is_unique": unique,
        "is_primary": primary,
        "state": 5,
    }


def table(
    columns: list[dict[str, Any]], indexes: list[dict[str, Any]] | None = None, **more: Any
) -> TableSchema:
    """A table `test.t`."""
    cols = [entry | {"id": at + 1, "offset": at} for at, entry in enumerate(columns)]
    info = {"id": 7, "name": {"O": "t", "L": "t"}, "cols": cols, "index_info": indexes or []}
    return table_schema("test", info | more, 100)


EVERY_KIND = table(
    [
        column("id", 8, flag=NOT_NULL | PRIMARY),
        column("i", 3),
        column("tiny", 1, flag=UNSIGNED),
        column("b", 8),
        column("u", 8, flag=UNSIGNED),
        column("dec", 246, flen=12, decimal=3),
        column("wide", 246, flen=40, decimal=10),
        column("f", 5, flen=22, decimal=-1),
        column("g", 4, flen=12, decimal=-1),
        column("s", 15, flen=20, collate="utf8mb4_bin"),
        column("c", 15, flen=20, collate="utf8mb4_general_ci"),
        column("uni", 15, flen=20, collate="utf8mb4_0900_ai_ci"),
        column("x", 15, flen=20),
        column("e", 247, elems=["red", "Green", "blue"], collate="utf8mb4_general_ci"),
        column("m", 248, elems=["a", "b", "c"], collate="utf8mb4_bin"),
        column("bits", 16, flen=8, flag=UNSIGNED),
        column("y", 13, flag=UNSIGNED),
        column("day", 10),
        column("dt", 12, decimal=6),
        column("ts", 7, decimal=3),
        column("tm", 11, decimal=3),
        column("j", 245),
        column("v", 3, generated="`i` + 1"),
        column("doubled", 246, flen=10, decimal=1, generated="`dec` * 2"),
        column("low", 15, flen=20, collate="utf8mb4_bin", generated="lower(`s`)"),
    ],
    pk_is_handle=True,
)

_STORED = [
    "",
    " ",
    "a",
    "A",
    "ab",
    "aB ",
    "a%b",
    "é",
    "E",
    "ß",
    "12",
    " 3.5 ",
    "-7e1",
    "中文",
    "a_b",
    "\x01a",
]
_TEXTS = st.one_of(
    st.sampled_from(_STORED),
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=4),
)
_DATES = ["2020-02-29", "0000-00-00", "1999-12-31", "2024-07-01"]
_CLOCKS = ["00:00:00", "23:59:59", "12:30:05"]
INT32 = st.one_of(st.integers(-3, 3), st.integers(-(1 << 31), (1 << 31) - 1))
INT64 = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
UINT64 = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))


def _decimals(places: int, units: int) -> st.SearchStrategy[str]:
    shown = st.one_of(st.integers(-30, 30), st.integers(-units, units))
    return shown.map(
        lambda n: f"{'-' if n < 0 else ''}{abs(n) // 10**places}.{abs(n) % 10**places:0{places}d}"
    )


def _moments(digits: int) -> st.SearchStrategy[str]:
    fraction = st.integers(0, 10**digits - 1).map(lambda n: f".{n:0{digits}d}")
    return st.tuples(st.sampled_from(_DATES[:1] + _DATES[2:]), st.sampled_from(_CLOCKS), fraction).map(
        lambda parts: f"{parts[0]} {parts[1]}{parts[2]}"
    )


VALUES: dict[str, st.SearchStrategy[Value]] = {
    "id": INT64,
    "i": INT32,
    "tiny": st.integers(0, 255),
    "b": INT64,
    "u": UINT64,
    "dec": _decimals(3, 10**12 - 1),
    "wide": _decimals(10, 10**40 - 1),
    "f": st.one_of(st.sampled_from([0.0, -0.0, 0.1, 1.5, 1e300, -2.0]), st.floats(-1e6, 1e6, width=64)),
    "g": st.one_of(st.sampled_from([0.0, 1.5]), st.floats(-1e6, 1e6, width=32)),
    "s": _TEXTS.map(str.encode),
    "c": _TEXTS.map(str.encode),
    "uni": _TEXTS.map(str.encode),
    "x": st.one_of(st.binary(max_size=4), _TEXTS.map(str.encode)),
    "e": st.integers(0, 3),
    "m": st.integers(0, 7),
    "bits": st.integers(0, 255),
    "y": st.sampled_from([0, 1970, 2000, 2018, 2155]),
    "day": st.sampled_from(_DATES),
    "dt": _moments(6),
    "ts": _moments(3),
    "tm": st.sampled_from(["00:00:00.000", "-12:30:05.500", "838:59:59.000", "01:02:03.004"]),
    "j": st.sampled_from(["1", "null", '"a"', '{"a": 1}', "[1]", "true", "2.5", "-3"]),
}


def row_of(
    schema: TableSchema, new: dict[str, Value] | None, old: dict[str, Value] | None = None
) -> RowChange:
    """A change with these values, NULL for the rest."""
    images = [
        None if image is None else tuple(image.get(column.name) for column in schema.columns)
        for image in (old, new)
    ]
    return RowChange(schema, 10, 5, schema.id, 1, images[0], images[1])


@st.composite
def rows(draw: st.DrawFn) -> list[RowChange]:
    """A few inserts, each column sometimes NULL."""
    image = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})
    return [row_of(EVERY_KIND, one) for one in draw(st.lists(image, min_size=1, max_size=6))]


# --- expressions ----------------------------------------------------------------------------------------

_NUMERIC = ["id", "i", "tiny", "b", "u", "dec", "wide", "f", "g", "y", "bits", "v", "doubled", "e", "m"]
_TEXTUAL = ["s", "c", "uni", "x", "e", "m", "low"]
_CONSTANTS = ["0", "1", "2", "-3", "255", "9223372036854775807", "18446744073709551615", "1.5", "-0.1",
              "12345678901234567890.5", "1e3", "0.1e0", "NULL", "TRUE", "'3'", "'1.5'", "''"]  # fmt: skip
_WRITTEN = [
    "i",
    "u",
    "dec",
    "wide",
    "f",
    "g",
    "y",
    "day",
    "dt",
    "ts",
    "tm",
    "e",
    "v",
    "dec * 2 - i",
    "-f",
    "date(ts)",
]
"""Types that LIKE and CONCAT treat as text."""
_WORDS = ["'a'", "'AB'", "'é'", "'ss'", "'中文'", "''", "'a '", "'red'", "'GREEN'", "'a,b'", "x'61'", "NULL"]
_MOMENTS = ["'2020-02-29'", "'2020-02-29 23:59:59.5'", "date '1999-12-31'", "'0000-00-00'", "NULL"]
_SPANS = ["'12:30:05'", "'-12:30:05.5'", "time '01:02:03.004'"]
_COMPARE = ["=", "<=>", "<>", "<", "<=", ">", ">="]

_numbers = st.deferred(
    lambda: st.one_of(
        st.sampled_from(_NUMERIC),
        st.sampled_from(_CONSTANTS),
        st.builds("({} {} {})".format, _numbers, st.sampled_from(["+", "-", "*", "/", "div", "%"]), _numbers),
        st.builds("({} {} {})".format, _integers, st.sampled_from(["&", "|", "^", "<<", ">>"]), _integers),
        st.builds("(-{})".format, _numbers),
        st.builds("abs({})".format, _numbers),
        st.builds("length({})".format, st.sampled_from(_TEXTUAL[:4])),
        st.builds("char_length({})".format, st.sampled_from(_TEXTUAL[:4])),
        st.builds(
            "{}({})".format, st.sampled_from(["year", "month", "day", "hour"]), st.sampled_from(["dt", "ts"])
        ),
        st.builds("{}(tm)".format, st.sampled_from(["hour", "minute", "second"])),
        st.builds("if({}, {}, {})".format, _tests, _numbers, _numbers),
        st.builds("coalesce({}, {})".format, _numbers, _numbers),
        st.builds("nullif({}, {})".format, _numbers, _numbers),
        st.builds("case when {} then {} else {} end".format, _tests, _numbers, _numbers),
    )
)
_integers = st.sampled_from(["i", "tiny", "b", "u", "bits", "3", "-1", "64"])
_texts = st.one_of(
    st.sampled_from(_TEXTUAL),
    st.sampled_from(_WORDS),
    st.builds("{}({})".format, st.sampled_from(["lower", "upper"]), st.sampled_from(["s", "c", "uni"])),
    st.builds("concat({}, 'b')".format, st.sampled_from(["s", "c", "uni"])),
    st.builds("concat({}, {})".format, st.sampled_from(["s", "c", "''"]), st.sampled_from(_WRITTEN)),
    st.builds("ifnull({}, 'a')".format, st.sampled_from(["s", "c"])),
)
_PATTERNS = ["'%1%'", "'-_.%'", "'a%'", "'%B'", "'_'", "'%é%'", "'a\\\\%b'", "'a!_b' escape '!'", "''", "'%'"]
_patterns = st.sampled_from(_PATTERNS)
_moments = st.sampled_from(["day", "dt", "ts", "date(dt)", "date(ts)"])
_any_column = st.sampled_from([*VALUES, "v"])

_tests: st.SearchStrategy[str] = st.deferred(
    lambda: st.one_of(
        st.builds("({} {} {})".format, _numbers, st.sampled_from(_COMPARE), _numbers),
        st.builds("({} {} {})".format, _texts, st.sampled_from(_COMPARE), _texts),
        st.builds("({} {} {})".format, _moments, st.sampled_from(_COMPARE), st.sampled_from(_MOMENTS)),
        st.builds("({} {} {})".format, _moments, st.sampled_from(_COMPARE), _moments),
        st.builds("(tm {} {})".format, st.sampled_from(_COMPARE), st.sampled_from(_SPANS)),
        st.builds(
            "(j {} {})".format, st.sampled_from(_COMPARE), st.sampled_from(["1", "2.5", "'a'", "-3.0"])
        ),
        st.builds("({} is {}null)".format, _any_column, st.sampled_from(["", "not "])),
        st.builds("({} is {})".format, _tests, st.sampled_from(["true", "not true", "false", "unknown"])),
        st.builds("({} {}in ({}, {}))".format, _numbers, st.sampled_from(["", "not "]), _numbers, _numbers),
        st.builds("({} in ({}, {}, {}))".format, _texts, _texts, _texts, _texts),
        st.builds("({} between {} and {})".format, _numbers, _numbers, _numbers),
        st.builds("({} not between {} and {})".format, _moments, *[st.sampled_from(_MOMENTS)] * 2),
        st.builds("({} {}like {})".format, _texts, st.sampled_from(["", "not "]), _patterns),
        st.builds("({} like {})".format, st.one_of(st.sampled_from(_WRITTEN), _numbers), _patterns),
        st.builds("({} regexp {})".format, _texts, st.sampled_from(["'^a'", "'b$'", "'[0-9]+'"])),
        st.builds("({} {} {})".format, _tests, st.sampled_from(["and", "or", "xor"]), _tests),
        st.builds("(not {})".format, _tests),
        _numbers,
    )
)
expressions = _tests
"""Texts of expressions, most of them within the subset."""
