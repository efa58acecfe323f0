from __future__ import annotations

import re
from contextlib import suppress
from decimal import Context, Decimal

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.codec.cells import block_of
from tests.filter.tables import EVERY_KIND, expressions, row_of, rows
from tidegate.filter.expression import plain, vector
from tidegate.filter.expression.bind import bind
from tidegate.filter.expression.cells import Cells
from tidegate.filter.expression.syntax import Refusal
from tidegate.filter.expression.typed import Beyond, Domain, Typed, Uncomputable
from tidegate.model.row import RowChange, Value

EXAMPLES = 150


def plainly(text: str, row: RowChange) -> object:
    node = bind(text, EVERY_KIND)
    assert row.new is not None
    columns = EVERY_KIND.columns
    values = [plain.inner(column, value) for column, value in zip(columns, row.new, strict=True)]
    return plain.evaluate(node, values, columns)


def blockwise(node: Typed, cells: Cells) -> list[object]:
    """The values of the vector path as the plain path gives them."""
    found = vector.value_of(node, cells)
    null = np.broadcast_to(found.null, len(cells)).tolist()
    data = found.data.to_pylist() if node.domain is Domain.STRING else found.data.tolist()
    data = data * (len(cells) // len(data))
    if node.domain is Domain.DECIMAL:
        data = [Decimal(units).scaleb(-node.scale, Context(prec=1200)) for units in data]
    return [None if absent else item for absent, item in zip(null, data, strict=True)]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions, rows())
def test_blocks_give_what_rows_give(text: str, changes: list[RowChange]) -> None:
    try:
        node = bind(text, EVERY_KIND)
    except Refusal:
        event("refused")
        return
    block = block_of(changes)
    try:
        found = blockwise(node, Cells(EVERY_KIND, block.new, None, "UTC"))
    except Beyond:
        event("left to the plain path")
        return
    event("vector")
    assert found == [plainly(text, change) for change in changes]


def value_of(text: str, **columns: Value) -> object:
    """The plain path's value for one row; the vector path must say the same of it."""
    row = row_of(EVERY_KIND, columns)
    found = plainly(text, row)
    node = bind(text, EVERY_KIND)
    with suppress(Beyond):
        assert blockwise(node, Cells(EVERY_KIND, block_of([row, row]).new, None, "UTC")) == [found, found]
    return found


@pytest.mark.parametrize(
    ("text", "columns", "wanted"),
    [
        # NULL: three values, and what tells them apart.
        ("i = NULL", {"i": 1}, None),
        ("i <=> NULL", {}, 1),
        ("NOT i", {}, None),
        ("i AND 0", {}, 0),
        ("i AND 1", {}, None),
        ("i OR 1", {}, 1),
        ("i OR 0", {}, None),
        ("i XOR 1", {}, None),
        ("i IS NULL OR i < 5", {}, 1),
        ("(i > 3) IS UNKNOWN", {}, 1),
        ("(i > 3) IS NOT TRUE", {}, 1),
        ("i IN (1, NULL)", {"i": 1}, 1),
        ("i IN (1, NULL)", {"i": 2}, None),
        ("i NOT IN (1, NULL)", {"i": 2}, None),
        ("i BETWEEN NULL AND 1", {"i": 2}, 0),
        ("COALESCE(i, tiny, 7)", {}, 7),
        ("NULLIF(i, 3)", {"i": 3}, None),
        ("IF(i, 'a', 'b') = 'b'", {}, 1),
        ("CASE i WHEN 1 THEN 'one' WHEN 2 THEN 'two' END = 'two'", {"i": 2}, 1),
        ("CASE WHEN i > 5 THEN 1 WHEN i > 2 THEN 2 ELSE 3 END", {"i": 4}, 2),
        # Numbers of all sizes, compared exactly.
        ("b = 9007199254740993", {"b": 9007199254740992}, 0),
        ("b = '9007199254740993'", {"b": 9007199254740992}, 0),
        ("u > b", {"u": (1 << 64) - 1, "b": -1}, 1),
        ("u = 18446744073709551615", {"u": (1 << 64) - 1}, 1),
        ("b < 1.5", {"b": 1}, 1),
        ("b = 1.5e0", {"b": 1}, 0),
        ("`dec` = 0.1", {"dec": "0.100"}, 1),
        ("`dec` > '0.05'", {"dec": "0.100"}, 1),
        ("f = 0.1", {"f": 0.1}, 1),
        ("g = 0.1", {"g": float(np.float32(0.1))}, 0),
        ("f < 0.10000000000000001", {"f": 0.1}, 1),
        ("wide * 2 = 24691357802469135780.2469135780", {"wide": "12345678901234567890.1234567890"}, 1),
        ("i % 2 = 0", {"i": -4}, 1),
        ("i % 3", {"i": -4}, -1),
        ("i DIV 3", {"i": -4}, -1),
        ("i / 0", {"i": 1}, None),
        ("i % 0 IS NULL", {"i": 1}, 1),
        ("i / 3 = 0.333333333", {"i": 1}, 1),
        ("i / 4 = 0.25", {"i": 1}, 1),
        ("-i", {"i": 3}, -3),
        ("tiny - 10 + 20", {"tiny": 12}, 22),
        ("i & 6", {"i": 5}, 4),
        ("i | 8", {"i": 5}, 13),
        ("i ^ 1", {"i": 5}, 4),
        ("~0 = 18446744073709551615", {}, 1),
        ("1 << 3", {}, 8),
        ("i >> 1", {"i": -1}, (1 << 63) - 1),
        ("ABS(i) + MOD(7, 4)", {"i": -3}, 6),
        ("bits = b'101'", {"bits": 5}, 1),
        ("y = 18", {"y": 2018}, 1),
        ("y = '70'", {"y": 1970}, 1),
        # Texts: by the column's collation; `_bin` and `_ci` do not count spaces at the end, binary does.
        ("s = 'A'", {"s": b"a"}, 0),
        ("s = 'a '", {"s": b"a  "}, 1),
        ("x = 'a '", {"x": b"a"}, 0),
        ("c = 'STRASSE'", {"c": "straße".encode()}, 0),
        ("c = 'STRASE'", {"c": "straße".encode()}, 1),
        ("uni = 'STRASSE'", {"uni": "straße".encode()}, 1),
        ("c = 'resume'", {"c": "Résumé".encode()}, 1),
        ("c < 'b'", {"c": b"A"}, 1),
        ("s < 'b'", {"s": b"a"}, 1),
        ("s = '中文'", {"s": "中文".encode()}, 1),
        ("x = x'00ff'", {"x": b"\x00\xff"}, 1),
        ("c IN ('x', 'ABC')", {"c": b"abc"}, 1),
        ("s LIKE 'a\\%%'", {"s": b"a%b"}, 1),
        ("s LIKE 'a!_b' ESCAPE '!'", {"s": b"axb"}, 0),
        ("s LIKE '_中%'", {"s": "x中y".encode()}, 1),
        ("c LIKE 'É%'", {"c": b"east"}, 1),
        ("s NOT LIKE '%b'", {"s": b"ab "}, 1),
        ("c REGEXP '^A[0-9]+$'", {"c": b"a12"}, 1),
        ("s REGEXP '^A'", {"s": b"a"}, 0),
        ("LENGTH(s) = 6 AND CHAR_LENGTH(s) = 2", {"s": "中文".encode()}, 1),
        ("UPPER(s) = 'ÀB' AND LOWER(s) = 'àb'", {"s": "àB".encode()}, 1),
        ("CONCAT(s, '-', s) = 'a-a'", {"s": b"a"}, 1),
        ("s > 3", {"s": b" 3.5 "}, 1),
        ("s = 0", {"s": b""}, 1),
        # Enum and set: compared by name with texts, by number with numbers.
        ("e = 'GREEN'", {"e": 2}, 1),
        ("e > 1", {"e": 2}, 1),
        ("e IN ('red', 'blue')", {"e": 3}, 1),
        ("e = ''", {"e": 0}, 1),
        ("m = 'a,c'", {"m": 5}, 1),
        ("m & 4", {"m": 5}, 4),
        # Dates and times.
        ("day >= '2020-01-01'", {"day": "2020-01-01"}, 1),
        ("day = '2020-1-1 00:00:00'", {"day": "2020-01-01"}, 1),
        ("day < 20200102", {"day": "2020-01-01"}, 1),
        ("dt BETWEEN '2020-01-01' AND '2020-12-31 23:59:59'", {"dt": "2020-06-01 12:00:00.000001"}, 1),
        ("dt > TIMESTAMP'2020-06-01 12:00:00'", {"dt": "2020-06-01 12:00:00.000001"}, 1),
        ("dt > 20200601120000", {"dt": "2020-06-01 12:00:00.000001"}, 1),
        ("day = '0000-00-00'", {"day": "0000-00-00"}, 1),
        ("day = dt", {"day": "2020-06-01", "dt": "2020-06-01 00:00:00.000000"}, 1),
        ("YEAR(dt) = 2020 AND MONTH(dt) = 6 AND DAY(dt) = 1", {"dt": "2020-06-01 12:00:00.000000"}, 1),
        ("HOUR(tm) = 838 AND MINUTE(tm) = 59", {"tm": "-838:59:00.000"}, 1),
        ("DATE(dt) = '2020-06-01'", {"dt": "2020-06-01 12:00:00.000000"}, 1),
        ("tm < '01:00'", {"tm": "-00:00:01.000"}, 1),
        # JSON compared with constants, by TiDB's order of kinds.
        ("j > 3", {"j": "4"}, 1),
        ("j > 3", {"j": '"a"'}, 1),
        ("j < 5", {"j": "null"}, 1),
        ("j = 'a'", {"j": '"a"'}, 1),
        ("j IS NULL", {}, 1),
        # Virtual columns, which rows do not carry.
        ("v > 3", {"i": 3}, 1),
        ("doubled = 3.1", {"dec": "1.525"}, 1),
        ("low = 'ab'", {"s": b"AB"}, 1),
        # Numbers, dates and times as texts.
        ("i LIKE '-4_'", {"i": -42}, 1),
        ("u LIKE '1844674407370955161_'", {"u": (1 << 64) - 1}, 1),
        ("(i > 3) LIKE '1'", {"i": 4}, 1),
        ("CONCAT(i, '/', u) = '-1/7'", {"i": -1, "u": 7}, 1),
        ("CONCAT(i) IS NULL", {}, 1),
        ("CONCAT(`dec`) = '0.100'", {"dec": "0.100"}, 1),
        ("CONCAT(-`dec`) = '0.000'", {"dec": "0.000"}, 1),
        ("CONCAT(`dec` * 10) = '1.000'", {"dec": "0.100"}, 1),
        ("CONCAT(`dec` + wide) = '-0.5999999999'", {"dec": "0.400", "wide": "-0.9999999999"}, 1),
        ("CONCAT(wide) LIKE '%901.1234567890'", {"wide": "123456789012345678901.1234567890"}, 1),
        ("CONCAT(f) = '0.1'", {"f": 0.1}, 1),
        ("CONCAT(g) = '0.1'", {"g": float(np.float32(0.1))}, 1),
        ("CONCAT(g + 0e0) = '0.10000000149011612'", {"g": float(np.float32(0.1))}, 1),
        ("CONCAT(f) = '100000000000000000000'", {"f": 1e20}, 1),
        ("CONCAT(f) = '0.0000000000000000125'", {"f": 1.25e-17}, 1),
        ("CONCAT(-f) = '-0'", {"f": 0.0}, 1),
        ("LENGTH(f) = 309", {"f": 1e308}, 1),
        ("y LIKE '0000'", {"y": 0}, 1),
        ("CONCAT(y + 0) = '0'", {"y": 0}, 1),
        ("UPPER(y) LIKE '20%'", {"y": 2018}, 1),
        ("LENGTH(bits) = 1", {"bits": 5}, 1),
        ("day LIKE '2020-02-%'", {"day": "2020-02-29"}, 1),
        ("CONCAT(day) = '0000-00-00'", {"day": "0000-00-00"}, 1),
        ("CONCAT(dt) = '2020-06-01 12:00:00.000000'", {"dt": "2020-06-01 12:00:00.000000"}, 1),
        ("CONCAT(DATE(dt)) = '2020-06-01'", {"dt": "2020-06-01 12:00:00.000000"}, 1),
        ("ts REGEXP ' 12:00:00[.]500$'", {"ts": "2020-06-01 12:00:00.500"}, 1),
        ("tm LIKE '-838:%.000'", {"tm": "-838:59:00.000"}, 1),
        ("LENGTH(tm) = 12", {"tm": "01:02:03.004"}, 1),
        # Such a text is compared by the collation of the column on the other side.
        ("CONCAT(i, 'A') = c", {"i": 1, "c": b"1a"}, 1),
        ("CONCAT(i, 'A') = s", {"i": 1, "s": b"1a"}, 0),
        ("IF(i = 1, 'A', 'B') = c", {"i": 1, "c": b"a"}, 1),
        ("CONCAT(c, i) = 'A1'", {"i": 1, "c": b"a"}, 1),
        # Names.
        ("test.t.`I` = 1 AND t.i = 1", {"i": 1}, 1),
        ("`dec` = 1", {"dec": "1.000"}, 1),
        ("s = 'it''s' OR s = \"it\\'s\"", {"s": b"it's"}, 1),
    ],
)
def test_values_are_those_of_tidb(text: str, columns: dict[str, Value], wanted: object) -> None:
    assert value_of(text, **columns) == wanted


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("age > 3", 0, "there is no column 'age'; the table has id, i,"),
        ("i > 1 and and b < 2", 10, "AND is not expected here"),
        ("i >", 3, "a value is expected; found the end"),
        ("i = 'x", 4, "a text lacks its closing '"),
        ("i = 1)", 5, "an operator or the end is expected; found ')'"),
        ("i == 1", 3, "a value is expected; found '='"),
        ("i = ?", 4, "unexpected character"),
        ("i + rand() > 1", 4, "rand() is not in the subset; functions are abs,"),
        ("(select 1)", 1, "SELECT is not expected here"),
        ("i = 1 and day = 'tomorrow'", 16, "'tomorrow' is not a date"),
        ("day = '2020-02-30'", 6, "no date of the calendar"),
        ("tm > 'noon'", 5, "'noon' is not a time"),
        ("day = 1", 6, "1 is not a date"),
        ("dt = s", 5, "a text is not in the subset next to a date; constants are"),
        ("i = 'abc'", 4, "'abc' is not a number"),
        ("uni < 'b'", 4, "order by collation utf8mb4_0900_ai_ci is not in the subset, equality is"),
        ("dt + 1 > 2", 0, "a date is not in the subset in arithmetic"),
        ("j = i", 0, "a JSON value is not in the subset next to anything but a constant number or text"),
        ("s LIKE c", 7, "a LIKE pattern must be a constant text"),
        ("j LIKE '1%'", 0, "LIKE of a JSON value is not in the subset"),
        ("bits LIKE 'a%'", 0, "LIKE of a BIT column is not in the subset: as a text it is bytes"),
        ("char_length(bits) = 1", 12, "char_length() of a BIT column is not in the subset"),
        ("`dec` / 3 LIKE '0.3%'", 6, "LIKE of a decimal is not in the subset unless it is a column"),
        (
            "concat(s, if(i, f, g)) = 'a'",
            10,
            "concat() of a floating number is not in the subset",
        ),
        ("s REGEXP '('", 9, "missing ): ("),
        ("i BETWEEN 1", 11, "AND is missing; found the end"),
        ("abs(i, 2)", 0, "abs() takes 1 arguments, not 2"),
        ("other.i = 1", 0, "other is not the table of the row"),
        ("9223372036854775807 + 1 > i", 20, "the result of + is out of range"),
        ("_koi8r'a' = s", 0, "_koi8r before a text is not in the subset"),
        ("f DIV 2", 2, "DIV of floating numbers is not in the subset"),
        ("(" * 30 + "i", 21, "more than 20 parentheses or calls within each other"),
        ("i" + "+i" * 200, 199, "more than 100 operators on top of each other"),
        ("i" * 20_000, 0, "it has 20000 characters"),
    ],
)
def test_expressions_beyond_the_subset_are_refused_with_their_place(text: str, at: int, why: str) -> None:
    with pytest.raises(Refusal) as refusal:
        bind(text, EVERY_KIND)
    assert why in refusal.value.why
    assert refusal.value.at == at
    error = refusal.value.as_input(text, "filter.event-filters[0].ignore-insert-value-expr", "test.t")
    assert f"character {at + 1}" in error.where
    assert "test.t" in error.where


@pytest.mark.parametrize(
    ("text", "columns", "why"),
    [
        ("b + 1 > 0", {"b": (1 << 63) - 1}, "the result of + is out of range"),
        ("u - 1 > 0", {"u": 0}, "the result of - is out of range"),
        ("b * b > 0", {"b": 1 << 62}, "the result of * is out of range"),
        ("-b > 0", {"b": -(1 << 63)}, "the result of neg is out of range"),
        ("f * f > 0", {"f": 1e300}, "the result of * is out of range"),
        ("s > 3", {"s": b"12 apples"}, "'12 apples' is not a number"),
    ],
)
def test_a_row_tidb_refuses_to_compute_is_left_to_the_plain_path(
    text: str, columns: dict[str, Value], why: str
) -> None:
    """The plain path raises the error that says why."""
    row, node = row_of(EVERY_KIND, columns), bind(text, EVERY_KIND)
    with pytest.raises(Uncomputable, match=re.escape(why)):
        plainly(text, row)
    with pytest.raises(Beyond):
        blockwise(node, Cells(EVERY_KIND, block_of([row]).new, None, "UTC"))


def test_what_and_or_have_decided_cannot_fail_any_more() -> None:
    assert value_of("s = 'x' AND s > 3", s=b"a") == 0
    assert value_of("s = 'a' OR s > 3", s=b"a") == 1


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Refusal):
        bind(text, EVERY_KIND)


def test_a_timestamp_is_compared_as_the_feeds_clock_shows_it() -> None:
    node = bind("ts = '2020-02-29 20:00:00'", EVERY_KIND)
    block = block_of([row_of(EVERY_KIND, {"ts": "2020-02-29 12:00:00.000"})])
    assert vector.evaluate(node, Cells(EVERY_KIND, block.new, None, "Asia/Shanghai")).tolist() == [True]
    assert vector.evaluate(node, Cells(EVERY_KIND, block.new, None, "UTC")).tolist() == [False]


def test_a_long_chain_of_or_is_one_operator() -> None:
    text = " or ".join(f"i = {n}" for n in range(1000))
    assert value_of(text, i=999) == 1
    assert value_of("i in (" + ",".join(map(str, range(2000))) + ")", i=1999) == 1
