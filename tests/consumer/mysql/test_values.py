"""Values as SQL: literals against a slow twin, statements, and every type through a real MariaDB."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumer.applying.net_effect import BagEffect, Effect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.mysql.by_hand import MySqlByHand
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.digest import Digest
from tidegate.consumer.mysql.lanes import written
from tidegate.consumer.mysql.literals import (
    KEYS,
    SLICE,
    STATEMENT_BYTES,
    MySqlValues,
    bag_deletes,
    check_lengths,
    deletes,
    inserts,
    literals,
    row_texts,
)
from tidegate.consumer.mysql.rendering import whole
from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.consumer.table.convert import (
    BIT,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    ENUM,
    FLOAT,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    SET,
    SHORT,
    TIME,
    TIMESTAMP,
    TINY,
    VECTOR,
    YEAR,
    TargetColumn,
    in_key,
    target_type,
)
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal, Undecodable
from tidegate.kernel import PAD

NUMBERS = itertools.count()
CHAR, VARCHAR, BLOB = 254, 15, 252
VALUES = MySqlValues()


def column(kind: int, name: str = "c", *, unsigned: bool = False, binary: bool = False) -> TargetColumn:
    flen = 64 if kind == BIT else 0
    of_type = target_type(kind, unsigned=unsigned, binary=binary, flen=flen, decimal=0)
    return TargetColumn(name, kind, of_type)


def converted(values: Sequence[Any], wire: pa.DataType, of: TargetColumn) -> pa.Array:
    return VALUES.convert(pa.array(values, wire), of, "UTC")


# --- literals


def slow_literal(value: Any, of: TargetColumn) -> bytes:
    """One value by itself, as the SQL manual says it."""
    if value is None:
        return b"NULL"
    if isinstance(value, int) or of.mysql_type == DECIMAL:
        return str(value).encode()
    if isinstance(value, float):
        return repr(value).encode()
    raw = value if isinstance(value, bytes) else value.encode()
    escaped = b"".join({0: b"\\0", 39: b"\\'", 92: b"\\\\"}.get(one, bytes([one])) for one in raw)
    return (b"_binary" if pa.types.is_binary(of.type) else b"") + b"'" + escaped + b"'"


UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("'\\\0\n\"%`a")
CASES = {
    "bigint": (column(LONGLONG), pa.int64(), INT64),
    "unsigned bigint": (column(LONGLONG, unsigned=True), pa.uint64(), UINT64),
    "unsigned int": (column(LONG, unsigned=True), pa.uint64(), st.integers(0, 2**32 - 1)),
    "year": (column(YEAR), pa.int64(), st.just(0) | st.integers(1901, 2155)),
    "bit": (column(BIT), pa.uint64(), UINT64),
    "enum": (column(ENUM), pa.uint64(), st.integers(0, 65535)),
    "set": (column(SET), pa.uint64(), st.integers(0, 2**63 - 1)),
    "decimal": (
        column(DECIMAL),
        pa.string(),
        st.decimals(allow_nan=False, allow_infinity=False).map("{:f}".format),
    ),
    "text": (column(VARCHAR), pa.binary(), TEXTS.map(str.encode)),
    "blob": (column(BLOB, binary=True), pa.binary(), st.binary() | st.text("'\\\0").map(str.encode)),
    "json": (column(JSON), pa.string(), TEXTS),
    "date": (column(DATE), pa.string(), st.sampled_from(["0000-00-00", "2024-02-31", "9999-12-31"])),
}


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_literals_are_those_of_the_slow_twin(case: str, data: st.DataObject) -> None:
    of, wire, strategy = CASES[case]
    values = data.draw(st.lists(st.none() | strategy, max_size=8))
    made = literals(converted(values, wire, of), of)
    assert made.to_pylist() == [slow_literal(value, of) for value in values]


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)))
def test_a_double_is_a_text_that_reads_back_as_the_same(values: list[float | None]) -> None:
    made = literals(converted(values, pa.float64(), column(DOUBLE)), column(DOUBLE)).to_pylist()
    assert [None if one == b"NULL" else _bits(one) for one in made] == [
        None if value is None else _bits(repr(value).encode()) for value in values
    ]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_a_float_is_the_text_of_the_double_that_it_is(values: list[float]) -> None:
    made = literals(converted(values, pa.float32(), column(FLOAT)), column(FLOAT)).to_pylist()
    assert list(map(_bits, made)) == [_bits(repr(value).encode()) for value in values]


def _bits(text: bytes) -> bytes:
    return struct.pack(">d", float(text.strip(b"'")))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("kind", "wire"), [(FLOAT, pa.float32()), (DOUBLE, pa.float64())])
def test_a_number_that_mysql_does_not_have_is_undecodable(value: float, kind: int, wire: pa.DataType) -> None:
    with pytest.raises(Undecodable, match="column c"):
        literals(converted([1.0, value], wire, column(kind)), column(kind))


# --- conversion


def test_a_timestamp_becomes_utc_and_nothing_else_does() -> None:
    texts = ["2024-06-01 12:00:00", "0000-00-00 00:00:00", None]
    moved = VALUES.convert(pa.array(texts), column(TIMESTAMP), "Asia/Shanghai").to_pylist()
    assert moved == ["2024-06-01 04:00:00.000000", "0000-00-00 00:00:00.000000", None]
    assert VALUES.convert(pa.array(texts), column(DATETIME), "Asia/Shanghai").to_pylist() == texts


def test_a_timestamp_of_the_hour_that_comes_twice_is_the_earlier_one() -> None:
    texts = [f"2024-{month:02}-03 {hour:02}:30:00.25" for month in (3, 6, 11) for hour in range(24)]
    made = VALUES.convert(pa.array(texts), column(TIMESTAMP), "America/New_York").to_pylist()
    zone = ZoneInfo("America/New_York")
    utc = [datetime.fromisoformat(f"{text}0000").replace(tzinfo=zone).astimezone(UTC) for text in texts]
    assert made == [moment.strftime("%Y-%m-%d %H:%M:%S.%f") for moment in utc]


def test_a_moment_that_identifies_rows_is_kept_as_any_other() -> None:
    for kind in (DATE, DATETIME, TIMESTAMP):
        assert VALUES.type_of(in_key(column(kind))) == VALUES.type_of(column(kind)) == pa.string()


@pytest.mark.parametrize("kind", [TINY, LONGLONG, BIT, ENUM, FLOAT, DECIMAL, VARCHAR, DATE, JSON, VECTOR])
def test_an_image_that_a_message_left_out_is_null(kind: int) -> None:
    made = VALUES.convert(pa.nulls(2), column(kind), "UTC")
    assert made.type == VALUES.type_of(column(kind))
    assert literals(made, column(kind)).to_pylist() == [b"NULL", b"NULL"]


def test_a_value_of_another_kind_is_undecodable() -> None:
    with pytest.raises(Undecodable, match="column c"):
        converted(["x"], pa.string(), column(LONGLONG))
    with pytest.raises(Undecodable, match="column c"):
        converted([1 << 63], pa.uint64(), column(LONGLONG))


# --- statements


def test_every_row_is_in_one_statement_and_none_is_longer_than_it_may_be() -> None:
    of = [column(LONGLONG, "id"), column(VARCHAR, "v")]
    count = SLICE + 100
    rows = pa.table({"id": range(count), "v": pa.array([b"x" * 200] * count, pa.binary())})
    rows = pa.concat_tables([rows.slice(0, 7), rows.slice(7)])  # chunks, and offsets within them
    made = list(inserts(of, rows, "t", Digest()))
    head = b"INSERT INTO t (`id`, `v`) VALUES "
    assert all(one.startswith(head) for one in made)
    assert all(len(one) <= STATEMENT_BYTES + len(head) for one in made)
    texts = b",".join(one.removeprefix(head) for one in made)
    assert texts == b",".join(b"(%d,'%s')" % (n, b"x" * 200) for n in range(count))


def test_a_row_that_is_longer_than_a_statement_is_one_of_its_own() -> None:
    of = [column(BLOB, "v", binary=True)]
    sizes = [10, STATEMENT_BYTES * 2, 10, 10]
    rows = pa.table({"v": pa.array([b"x" * size for size in sizes], pa.binary())})
    made = list(inserts(of, rows, "t", Digest()))
    assert [one.count(b"_binary") for one in made] == [1, 1, 2]


def test_a_delete_names_so_many_keys_and_no_more() -> None:
    of = [column(LONGLONG, "a"), column(LONGLONG, "b")]
    rows = pa.table({"a": range(KEYS + 1), "b": range(KEYS + 1)})
    one = [text.count(b",") + 1 for text in deletes(of[:1], rows, "t", Digest())]
    both = [text.count(b"`a`=") for text in deletes(of, rows, "t", Digest())]
    assert one == both == [KEYS, 1]
    assert list(deletes(of, rows.slice(KEYS), "t", Digest())) == [
        b"DELETE FROM t WHERE (`a`=500 AND `b`=500)"
    ]


def test_no_rows_are_no_statements() -> None:
    of = [column(LONGLONG, "a")]
    rows = pa.table({"a": pa.array([], pa.int64())})
    for made in (inserts, deletes, bag_deletes):
        assert not list(made(of, rows, "t", Digest()))


def plain_rows(of: Sequence[TargetColumn], rows: pa.Table) -> list[bytes]:
    """Each row as the literals of its values, by Arrow: the twin of the kernel that writes rows."""
    columns = [literals(pa.concat_arrays(rows[one.name].chunks), one).to_pylist() for one in of]
    return [b",".join(row) for row in zip(*columns, strict=True)]


@given(st.data())
def test_rows_are_written_as_their_literals_are(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(CASES)), min_size=1, max_size=4))
    count, skipped = data.draw(st.integers(1, 70)), data.draw(st.integers(0, 9))
    of, columns = [], {}
    for at, name in enumerate(names):
        kind, wire, strategy = CASES[name]
        some = st.one_of(strategy, st.none()) if data.draw(st.booleans()) else strategy
        values = data.draw(st.lists(some, min_size=1, max_size=8))
        repeated = [values[(at + place) % len(values)] for place in range(count + skipped)]
        of.append(replace(kind, name=f"c{at}"))
        columns[f"c{at}"] = converted(repeated, wire, kind)
    rows = pa.table(columns).slice(skipped)
    texts = row_texts(of, rows)
    assert list(texts) == plain_rows(of, rows)
    (whole,) = texts.cut(1 << 30, count)
    assert bytes(whole) == b"".join(b"(" + row + b")," for row in plain_rows(of, rows))


@pytest.mark.parametrize("size", range(20))
def test_special_bytes_are_escaped_wherever_they_are(size: int) -> None:
    texts = [
        b"x" * at + special + b"y" * (size - at) for at in range(size + 1) for special in (b"'", b"\\", b"\0")
    ]
    texts += [bytes([one]) * size for one in (0, 1, 38, 39, 40, 91, 92, 93, 127, 128, 167, 220, 255)]
    rows = pa.table({"c": pa.array(texts, pa.binary())})
    for of in ([column(VARCHAR)], [column(BLOB, binary=True)]):
        assert list(row_texts(of, rows)) == [slow_literal(text, of[0]) for text in texts]


@pytest.mark.parametrize("count", [1, 63, 64, 65])
def test_a_row_never_needs_more_room_than_it_is_given(count: int) -> None:
    of = [
        *(column(LONGLONG, "i"), column(LONGLONG, "u", unsigned=True), column(DECIMAL, "d")),
        *(column(VARCHAR, "t"), column(BLOB, "b", binary=True)),
    ]
    least, most = -(2**63), 2**64 - 1
    rows = pa.table(
        {
            "i": pa.array([least] * count, pa.int64()),
            "u": pa.array([most] * count, pa.uint64()),
            "d": pa.array([None] * count, pa.string()),
            "t": pa.array([b"'" * 100] * count, pa.binary()),
            "b": pa.array([b""] * count, pa.binary()),
        }
    )
    texts = row_texts(of, rows)
    assert isinstance(texts.data, np.ndarray)
    assert texts.bounds[-1] <= len(texts.data) - PAD
    assert set(texts) == {b"%d,%d,NULL,'%s',_binary''" % (least, most, b"\\'" * 100)}


# --- through a real server


@dataclass(frozen=True, slots=True)
class Stored:
    """A type: how MariaDB declares it, its values as the topic has them, and how to read them back exact."""

    declared: str
    of: TargetColumn
    wire: pa.DataType
    values: tuple[Any, ...]
    shown: str = "c"


def _whole(declared: str, kind: int, bits: int) -> dict[str, Stored]:
    most = 1 << bits - 1
    signed = (-most, -1, 0, 1, most - 1)
    unsigned = (0, 1, most - 1, most, 2 * most - 1)
    return {
        declared: Stored(declared, column(kind), pa.int64(), signed),
        f"{declared} unsigned": Stored(
            f"{declared} UNSIGNED", column(kind, unsigned=True), pa.uint64(), unsigned
        ),
    }


def _random_floats(form: str, count: int) -> Iterator[float]:
    """Yield floats of all exponents, denormal ones included; the same in every run."""
    chance = random.Random(7)
    while count:
        value: float = struct.unpack(form, chance.randbytes(struct.calcsize(form)))[0]
        if math.isfinite(value):
            count -= 1
            yield value


LISTED_TEXTS = (
    *("", "a", "b'c", "\\", "\\'", "''", "\\0", "\0", "x\ny\r\t\x1a", '"`%_;-- /*', "\U0001f600\U0010ffff"),
    *("é", "%s %%", "\\%\\_", "ÿ"),
)
SIXTY_FOUR = ",".join(f"'e{n}'" for n in range(64))
STORED = {
    **_whole("TINYINT", TINY, 8),
    **_whole("SMALLINT", SHORT, 16),
    **_whole("MEDIUMINT", INT24, 24),
    **_whole("INT", LONG, 32),
    **_whole("BIGINT", LONGLONG, 64),
    "neighbours": Stored(
        "BIGINT", column(LONGLONG), pa.int64(), (*range(2**53 - 2, 2**53 + 4), 2**63 - 2, 2**63 - 1)
    ),
    "float": Stored(
        "FLOAT",
        column(FLOAT),
        pa.float32(),
        (0.0, 1.5, 16777216.0, 3.4028234663852886e38, 2.0**-149, 2.0**-126, *_random_floats("<f", 200)),
        "CAST(c AS DOUBLE)",
    ),
    "double": Stored(
        "DOUBLE",
        column(DOUBLE),
        pa.float64(),
        (
            *(0.0, 0.1, math.nextafter(0.1, 1), 1e22, 1e23, 1.7976931348623157e308, -1.7976931348623157e308),
            *(5e-324, 2.2250738585072014e-308, 2.225073858507201e-308, *_random_floats("<d", 200)),
        ),
    ),
    "bit": Stored(
        "BIT(64)", column(BIT), pa.uint64(), (0, 1, 2**63, 2**64 - 2, 2**64 - 1), "CAST(c AS UNSIGNED)"
    ),
    "enum": Stored("ENUM('b','a','2')", column(ENUM), pa.uint64(), (1, 2, 3), "c+0"),
    "set": Stored("SET('a','b','1')", column(SET), pa.uint64(), tuple(range(8)), "CAST(c AS UNSIGNED)"),
    "year": Stored("YEAR", column(YEAR), pa.int64(), (0, 1901, 1999, 2000, 2069, 2155)),
    "date": Stored(
        "DATE",
        column(DATE),
        pa.string(),
        ("0000-00-00", "2024-02-31", "2024-02-29", "2024-00-00", "2024-01-00", "0001-01-01", "9999-12-31"),
        "CAST(c AS CHAR)",
    ),
    "datetime": Stored(
        "DATETIME(6)",
        column(DATETIME),
        pa.string(),
        (
            *("0000-00-00 00:00:00.000000", "2024-02-31 23:59:59.999999", "9999-12-31 23:59:59.999999"),
            *("2024-00-00 01:02:03.000000", "2024-01-01 00:00:00.000000", "2024-01-01 00:00:00.000001"),
        ),
        "CAST(c AS CHAR)",
    ),
    "timestamp": Stored(
        "TIMESTAMP(6) NOT NULL DEFAULT '2000-01-01'",
        column(TIMESTAMP),
        pa.string(),
        (
            *("0000-00-00 00:00:00.000000", "1970-01-01 00:00:01.000000", "2038-01-19 03:14:07.999999"),
            *("2024-03-31 02:30:00.000000", "2024-03-31 02:30:00.000001"),
        ),
        "CAST(c AS CHAR)",
    ),
    "time": Stored(
        "TIME(6)",
        column(TIME),
        pa.string(),
        ("-838:59:59.000000", "-00:00:00.000001", "00:00:00.000000", "00:00:00.000001", "838:59:59.000000"),
        "CAST(c AS CHAR)",
    ),
    "decimal": Stored(
        "DECIMAL(65,30)",
        column(DECIMAL),
        pa.string(),
        (
            *(f"{sign}{'9' * 35}.{'9' * 29}{last}" for sign in ("", "-") for last in (8, 9)),
            *(f"0.{'0' * 29}{last}" for last in (0, 1, 2)),
        ),
        "CAST(c AS CHAR)",
    ),
    "varchar": Stored(
        "VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        column(VARCHAR),
        pa.binary(),
        tuple(text.encode() for text in LISTED_TEXTS),
        "BINARY c",
    ),
    "latin1": Stored(
        "CHAR(60) CHARACTER SET latin1 COLLATE latin1_bin",
        column(CHAR),
        pa.binary(),
        tuple(text.encode() for text in ("", "a", "é", "it's", "\\")),
        "BINARY CONVERT(c USING utf8mb4)",
    ),
    "gbk": Stored(
        "VARCHAR(60) CHARACTER SET gbk COLLATE gbk_bin",
        column(VARCHAR),
        pa.binary(),
        tuple(text.encode() for text in ("中文", "誠\\", "嘸'", "x'y\\")),
        "BINARY CONVERT(c USING utf8mb4)",
    ),
    "varbinary": Stored(
        "VARBINARY(300)",
        column(VARCHAR, binary=True),
        pa.binary(),
        (
            b"",
            b"a ",
            b"a",
            b"A",
            b"a\0",
            bytes(range(256)),
            *(bytes([n]) for n in range(65, 256, 7)),
            b"\xff'\\",
        ),
    ),
}
ONLY_WITHOUT_KEY = {
    "json": Stored(
        "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin CHECK (JSON_VALID(c))",
        column(JSON),
        pa.string(),
        ('{"a": "\\\\ \' \\u0000 \U0001f600"}', "null", "[1, 2.5]", '"A"', '"a"'),
        "CAST(c AS CHAR)",
    ),
    "vector": Stored("LONGTEXT", column(VECTOR), pa.string(), ("[1,2.5]", "[1,2.5e10]"), "CAST(c AS CHAR)"),
    "blob": Stored(
        "LONGBLOB", column(BLOB, binary=True), pa.binary(), (bytes(range(256)) * 8192, b"", b"a", b"A", b"a ")
    ),
}

NORMALIZED = b"BINARY CONVERT(CAST(`c` AS JSON) USING utf8mb4)<=>CONVERT(CAST('1' AS JSON) USING utf8mb4)"
AS_IT_IS = b"BINARY CONVERT(`c` USING utf8mb4)<=>'1'"


@pytest.fixture
def server(mariadb: MySqlServer) -> Iterator[Connection]:
    """A session as the target has it, in a schema of its own."""
    connection = mariadb.connect()
    schema = f"values{next(NUMBERS)}"
    ask(connection, f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    connection.select_db(schema)
    yield connection
    ask(connection, f"DROP DATABASE {schema}")
    connection.close()


def ask(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def write(connection: Connection, statements: Iterator[bytes]) -> int:
    """How many rows they found; a warning fails."""
    return sum(written(connection, text) for text in statements)


def exact(value: Any, wire: pa.DataType) -> Any:
    """A value as it is compared: floats by their bits."""
    if value is None or not pa.types.is_floating(wire):
        return value.encode() if isinstance(value, str) else value
    return struct.pack(">d", value)


def create_keyed(connection: Connection, stored: Stored) -> None:
    ask(connection, f"CREATE TABLE t (c {stored.declared} PRIMARY KEY, v INT) ENGINE=InnoDB")


@pytest.mark.parametrize("name", STORED)
def test_values_come_back_exact_and_deletes_find_just_the_keys_they_name(
    server: Connection, name: str
) -> None:
    stored = STORED[name]
    create_keyed(server, stored)
    of = [stored.of, column(LONG, "v")]
    kept = list(dict.fromkeys(exact(value, stored.wire) for value in stored.values))
    values = [next(v for v in stored.values if exact(v, stored.wire) == one) for one in kept]
    rows = pa.table({"c": converted(values, stored.wire, stored.of), "v": range(len(values))})
    write(server, inserts(of, rows, "t", Digest()))
    assert read(server, stored) == dict(enumerate(kept))
    gone = rows.take(list(range(0, len(values), 2)))
    assert write(server, deletes(of[:1], gone, "t", Digest())) == gone.num_rows
    left = {at: one for at, one in enumerate(kept) if at % 2}
    assert read(server, stored) == left
    both = rows.take(list(left))
    assert write(server, deletes(of, both, "t", Digest())) == len(left), (
        "the same in the form for two columns"
    )


def read(connection: Connection, stored: Stored) -> dict[int, Any]:
    return {
        at: exact(value, stored.wire) for at, value in ask(connection, f"SELECT v, {stored.shown} FROM t")
    }


@pytest.mark.parametrize("name", [*STORED, *ONLY_WITHOUT_KEY])
def test_a_delete_without_a_key_finds_just_the_rows_it_names(server: Connection, name: str) -> None:
    """Every value twice and null; one of each is deleted, then the other."""
    stored = STORED.get(name) or ONLY_WITHOUT_KEY[name]
    nullable = () if "NOT NULL" in stored.declared else (None,)
    ask(server, f"CREATE TABLE t (c {stored.declared}) ENGINE=InnoDB")
    values = [*nullable, *{exact(one, stored.wire): one for one in stored.values}.values()]
    once = pa.table({"c": converted(values, stored.wire, stored.of)})
    for _ in range(2):
        write(server, inserts([stored.of], once, "t", Digest()))
    expected = Counter(exact(one, stored.wire) for one in values)
    for _ in range(2):
        for text, wanted in bag_deletes([stored.of], once, "t", Digest()):
            assert written(server, text) == wanted == 1
        left = Counter(exact(one, stored.wire) for (one,) in ask(server, f"SELECT {stored.shown} FROM t"))
        assert left == expected
        expected.clear()


@pytest.mark.parametrize(
    ("dialect", "info", "uniques", "text"),
    [
        (Dialect.MYSQL, None, (), NORMALIZED),
        (Dialect.MYSQL, {}, (("u",),), NORMALIZED),
        (Dialect.MYSQL, {}, (), AS_IT_IS),
        (Dialect.MARIADB, None, (), AS_IT_IS),
        (Dialect.MARIADB, {}, (("u",),), AS_IT_IS),
    ],
)
def test_json_without_a_key_is_compared_in_the_form_in_which_it_is_stored(
    dialect: Dialect, info: dict[str, Any] | None, uniques: tuple[tuple[str, ...], ...], text: bytes
) -> None:
    of = (column(JSON),)
    table = Definition("s", "t", 0, 1, of, (), info, uniques=uniques)
    rows = pa.table({"c": ["1"]})
    made = whole(TableChanges(table, BagEffect(rows.slice(1), [], rows)), 1 << 20, Digest(), dialect)
    assert made.deletes == [(b"DELETE FROM `s`.`t` WHERE " + text + b" LIMIT 1", 1)]


def test_json_of_mysqls_own_type_is_found_without_a_key(server: Connection, dialect: Dialect) -> None:
    if dialect is not Dialect.MYSQL:
        pytest.skip(f"about MySQL; the server is {dialect}")
    ask(server, "CREATE TABLE t (c JSON) ENGINE=InnoDB")
    texts = ['{"b": 1, "a":  1.0}', '{"b": 1, "a": 1}', "1", "1.0", '"a"', '"A"', "1e10", "null", None]
    rows = pa.table({"c": pa.array(texts, pa.string())})
    write(server, inserts([column(JSON)], rows, "t", Digest()))
    for at in range(len(texts)):
        once = rows.slice(at, 1)
        ((text, _),) = bag_deletes([column(JSON)], once, "t", Digest(), native_json=True)
        assert written(server, text) == 1
        assert not written(server, text)


def test_random_texts_and_bytes_come_back_exact(server: Connection) -> None:
    chance = random.Random(11)
    alphabet = "\0\n\r\x1a'\"\\%_`aé€\U0001f600"
    texts = ["".join(chance.choices(alphabet, k=chance.randrange(20))).encode() for _ in range(400)]
    raw = [chance.randbytes(chance.randrange(40)) for _ in texts]
    ask(server, "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b BLOB) ENGINE=InnoDB")
    of = [column(LONG, "id"), column(VARCHAR, "a"), column(BLOB, "b", binary=True)]
    rows = pa.table(
        {"id": range(len(texts)), "a": pa.array(texts, pa.binary()), "b": pa.array(raw, pa.binary())}
    )
    write(server, inserts(of, rows, "t", Digest()))
    held = ask(server, "SELECT id, BINARY a, b FROM t ORDER BY id")
    assert held == list(zip(range(len(texts)), texts, raw, strict=True))


def bag_of(rows: Sequence[tuple[str | None, int | None]]) -> pa.Table:
    texts = [None if text is None else text.encode() for text, _ in rows]
    numbers = pa.array([number for _, number in rows], pa.int64())
    return pa.table({"a": pa.array(texts, pa.binary()), "b": numbers})


BAG = [column(VARCHAR, "a"), column(LONG, "b")]


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin"])
def test_rows_without_a_key_are_found_by_their_bytes_in_every_collation(
    server: Connection, collation: str
) -> None:
    ask(server, f"CREATE TABLE t (a VARCHAR(20) COLLATE {collation}, b INT, KEY (a)) ENGINE=InnoDB")
    texts = ["a", "A", "a ", "á", "ss", "ß", "", " ", None]
    rows = [(text, number) for text in texts for number in (1, None)]
    write(server, inserts(BAG, bag_of(rows), "t", Digest()))
    for at, row in enumerate(rows):
        ((text, wanted),) = bag_deletes(BAG, bag_of([row]), "t", Digest())
        assert written(server, text) == wanted == 1
        left = ask(server, "SELECT a, b FROM t")
        assert Counter(left) == Counter(rows[at + 1 :])


def test_equal_rows_go_as_often_as_they_are_named(server: Connection) -> None:
    ask(server, "CREATE TABLE t (a VARCHAR(20), b INT) ENGINE=InnoDB")
    rows: list[tuple[str | None, int | None]] = [("a", 1)] * 5 + [(None, None)] * 3 + [("b", None)]
    write(server, inserts(BAG, bag_of(rows), "t", Digest()))
    gone: list[tuple[str | None, int | None]] = [("a", 1), (None, None), ("a", 1), (None, None), ("x", 1)]
    found = [
        (written(server, text), wanted) for text, wanted in bag_deletes(BAG, bag_of(gone), "t", Digest())
    ]
    assert found == [(2, 2), (2, 2), (0, 1)], "the count shows that a row is missing"
    left = ask(server, "SELECT a, b FROM t")
    assert Counter(left) == Counter({("a", 1): 3, (None, None): 1, ("b", None): 1})


def test_keys_of_several_columns_delete_just_their_rows(server: Connection) -> None:
    ask(
        server,
        "CREATE TABLE t (a VARCHAR(20) COLLATE utf8mb4_bin, b BIGINT UNSIGNED, c VARBINARY(9), d FLOAT,"
        " PRIMARY KEY (a, b, c, d)) ENGINE=InnoDB",
    )
    of = [
        *(column(VARCHAR, "a"), column(LONGLONG, "b", unsigned=True)),
        *(column(VARCHAR, "c", binary=True), column(FLOAT, "d")),
    ]
    parts = ([b"a", b"A", b"it's"], [2**64 - 1, 2**53 + 1, 2**53], [b"", b"\0\xff'", b" "], [0.5, 0.25])
    floats = [0.1, math.nextafter(1, 2)]  # as FLOAT: 0.1 is none exactly, the other is 1
    keys = list(itertools.product(*parts[:3], [*parts[3], *floats]))
    a, b, c, d = zip(*keys, strict=True)
    rows = pa.table(
        {
            "a": pa.array(a, pa.binary()),
            "b": pa.array(b, pa.uint64()),
            "c": pa.array(c, pa.binary()),
            "d": converted(d, pa.float32(), of[3]),
        }
    )
    write(server, inserts(of, rows, "t", Digest()))
    gone, stays = rows.take(list(range(0, len(keys), 2))), rows.take(list(range(1, len(keys), 2)))
    assert write(server, deletes(of, gone, "t", Digest())) == gone.num_rows
    left = ask(server, "SELECT BINARY a, b, c, CAST(d AS DOUBLE) FROM t")
    assert Counter(left) == Counter(zip(*stays.to_pydict().values(), strict=True))


LARGE_SETS, NO_SETS = (pa.table({"c": pa.array(held, pa.uint64())}) for held in ([None, 2**53], []))
FRESH, KNOWN = np.ones(2, np.bool_), np.array([True, False])
SET_CHANGES = {
    "deleted by key": (Effect(NO_SETS, LARGE_SETS, FRESH[:0]), True),
    "put, and may exist": (Effect(LARGE_SETS, NO_SETS, KNOWN), True),
    "put, and is new": (Effect(LARGE_SETS, NO_SETS, FRESH), False),
    "deleted by its values": (BagEffect(NO_SETS, [], LARGE_SETS), True),
    "inserted": (BagEffect(LARGE_SETS, ["0-1-0", "0-1-1"], NO_SETS), False),
}
"""Changes of rows with a SET of 54 elements, and whether a row is found by it."""


def set_changes(effect: Effect | BagEffect) -> TableChanges:
    """The changes, in a table whose key is the SET, or in one without a key."""
    keys = ("c",) if isinstance(effect, Effect) else ()
    return TableChanges(Definition("s", "t", 0, 1, (column(SET),), keys, {}), effect)


@pytest.mark.parametrize("kind", SET_CHANGES)
def test_a_set_that_tidb_compares_as_a_double_finds_no_rows(kind: str) -> None:
    """There 2**53 equals 2**53 + 1 in a SET, so a DELETE of one row finds the other one, too."""
    effect, finds = SET_CHANGES[kind]
    whole(set_changes(effect), 1 << 20, Digest(), Dialect.MYSQL)
    with pytest.raises(Fatal, match="compares its number as a double") if finds else nullcontext():
        whole(set_changes(effect), 1 << 20, Digest(), Dialect.TIDB)


def test_a_set_with_53_elements_finds_its_rows() -> None:
    exact = pa.table({"c": pa.array([None, 2**53 - 1], pa.uint64())})
    for effect in (Effect(exact, exact, ~FRESH), BagEffect(exact, ["0-1-0", "0-1-1"], exact)):
        whole(set_changes(effect), 1 << 20, Digest(), Dialect.TIDB)
        assert MySqlByHand(Dialect.TIDB).statements(set_changes(effect))


@pytest.mark.parametrize("kind", SET_CHANGES)
def test_sql_by_hand_finds_no_rows_by_such_a_set(kind: str) -> None:
    """It has a DELETE for each row of a table with a key, because the row may exist by now."""
    effect, finds = SET_CHANGES[kind]
    assert MySqlByHand(Dialect.MYSQL).statements(set_changes(effect))
    refused = finds or isinstance(effect, Effect)
    with pytest.raises(Fatal, match="compares its number as a double") if refused else nullcontext():
        MySqlByHand(Dialect.TIDB).statements(set_changes(effect))


def test_the_64th_element_of_a_set_is_found(server: Connection, dialect: Dialect) -> None:
    if dialect is Dialect.TIDB:
        pytest.skip("a TiDB refuses its number, and compares those above 2**53 as doubles")
    ask(server, f"CREATE TABLE t (c SET({SIXTY_FOUR})) ENGINE=InnoDB")
    of = [replace(column(SET), elems=tuple(map(str, range(64))))]
    masks = [0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    rows = pa.table({"c": pa.array(masks, pa.uint64())})
    write(server, inserts(of, rows, "t", Digest()))
    assert Counter(ask(server, "SELECT CAST(c AS UNSIGNED) FROM t")) == Counter((mask,) for mask in masks)
    assert write(server, deletes(of, rows.slice(0, 5), "t", Digest())) == 5
    ((text, _),) = bag_deletes(of, rows.slice(5), "t", Digest())
    assert written(server, text) == 1
    assert ask(server, "SELECT c FROM t") == []


def test_an_enum_that_is_none_of_its_elements_is_refused(server: Connection) -> None:
    """TiDB stores one (number 0, shown as '') without strict mode; a strict session cannot write it."""
    ask(server, "CREATE TABLE t (c ENUM('a')) ENGINE=InnoDB")
    with pytest.raises(pymysql.err.DataError, match="Data truncated for column 'c'"):
        write(server, inserts([column(ENUM)], pa.table({"c": pa.array([0], pa.uint64())}), "t", Digest()))
    ask(server, "SET sql_mode=''")
    ask(server, "INSERT INTO t VALUES (0), (1)")
    rows = pa.table({"c": pa.array([0], pa.uint64())})
    assert write(server, deletes([column(ENUM)], rows, "t", Digest())) == 1, "it would be found"


def test_text_that_is_not_utf8_is_refused(server: Connection) -> None:
    ask(server, "CREATE TABLE t (c VARCHAR(20) CHARACTER SET utf8mb4) ENGINE=InnoDB")
    rows = pa.table({"c": pa.array([b"\xff\xfe"], pa.binary())})
    with pytest.raises(pymysql.err.DataError, match="Incorrect string value"):
        write(server, inserts([column(VARCHAR)], rows, "t", Digest()))


def test_the_longest_statement_that_passes_is_the_longest_the_server_takes(
    server: Connection, dialect: Dialect
) -> None:
    if dialect is Dialect.TIDB:
        pytest.skip("a row of a TiDB has at most 6 MB; its embedded store ends at one of 64 MB")
    ((packet,),) = ask(server, "SELECT @@max_allowed_packet")
    ask(server, "CREATE TABLE t (c LONGBLOB) ENGINE=InnoDB")
    of = [column(BLOB, binary=True)]

    def insert(size: int) -> bytes:
        rows = pa.table({"c": pa.array([b"x" * size], pa.binary())})
        (text,) = inserts(of, rows, "t", Digest())
        return text

    frame = len(insert(0))
    longest, longer = insert(packet - 2 - frame), insert(packet - 1 - frame)
    check_lengths([longest], "s.t", packet)
    assert written(server, longest) == 1
    with pytest.raises(Fatal, match=r"(?s)s\.t.*max_allowed_packet"):
        check_lengths([longer], "s.t", packet)
    with pytest.raises(pymysql.err.OperationalError):
        written(server, longer)
    server.connect()  # the server has ended it
