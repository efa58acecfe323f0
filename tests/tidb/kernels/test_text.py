"""Text kernels against the plain types, by property and on TiDB's own vectors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.guarded import Guarded
from tidegate.errors import Undecodable
from tidegate.kernel import address, buffer
from tidegate.tidb.kernels import column as column_kernels
from tidegate.tidb.kernels.column import WIDTH, Text
from tidegate.tidb.kernels.json import JSON_GROWTH, STACK_WORDS
from tidegate.tidb.kernels.text import CellWords
from tidegate.tidb.kernels.zone import zone_table
from tidegate.tidb.types import decimal, json, temporal
from tidegate.tidb.types import float as floats

STACK = np.zeros(STACK_WORDS, dtype=np.int64)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U64 = st.integers(0, (1 << 64) - 1)

relaxed = settings(deadline=None)
"""Two cores are shared: a slow example is no failure."""


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    column_kernels.warm()


def signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def texts(what: Text, words: Sequence[int], fsp: int = 0, zone: str = "") -> list[str]:
    """The kernel's texts of fixed-width cells; checks that each keeps to its documented length."""
    a = np.array([signed(word) for word in words], dtype=np.int64)
    return _run(what, a, np.zeros(len(a), dtype=np.int32), WIDTH[what] * len(a), fsp, zone)


def texts_of_bytes(what: Text, values: Sequence[bytes]) -> list[str]:
    """The kernel's texts of cells that hold bytes."""
    held = buffer(sum(map(len, values)))
    held[: len(held) - 64] = np.frombuffer(b"".join(values), dtype=np.uint8)
    sizes = np.array([len(value) for value in values], dtype=np.int32)
    a = address(held) + np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)[:-1]]).astype(np.int64)
    room = WIDTH[what] * len(a) or JSON_GROWTH * int(sizes.sum())
    return _run(what, a, sizes, room, 0, "")


def _run(what: Text, a: np.ndarray, sizes: np.ndarray, room: int, fsp: int, zone: str) -> list[str]:
    out, ends = buffer(room), np.zeros(len(a) + 1, dtype=np.int32)
    valid = np.zeros(len(a), dtype=np.uint8)
    table = zone_table(zone) if zone else None
    cells = CellWords(address(a), address(sizes), 1)
    column = column_kernels.Column(address(out), address(ends), address(valid))
    used = column_kernels.texts(int(what), fsp, len(a), cells, column, address(STACK), address(table))
    assert used <= room
    assert valid.all()
    data = out.tobytes()
    found = [data[start:end].decode() for start, end in pairwise(ends)]
    assert WIDTH[what] == 0 or max(map(len, found), default=0) <= WIDTH[what]
    return found


@relaxed
@given(st.lists(I64, min_size=1))
def test_integers_print_as_python_prints_them(words: list[int]) -> None:
    edges = [0, 9, 10, -1, 99_999_999, 10**8, 10**16 - 1, 10**16, -(1 << 63), (1 << 63) - 1]
    assert texts(Text.SIGNED, words + edges) == [str(word) for word in words + edges]
    assert texts(Text.UNSIGNED, words) == [str(word % (1 << 64)) for word in words]


@st.composite
def decimals(draw: st.DrawFn) -> bytes:
    precision = draw(st.integers(1, 81))
    frac = draw(st.integers(0, precision))
    digits = draw(st.text("0123456789", min_size=precision, max_size=precision))
    sign = draw(st.sampled_from(["", "-"]))
    text = (digits[: precision - frac] or "0") + ("." + digits[precision - frac :] if frac else "")
    return decimal.encode(sign + text, precision, frac)


@relaxed
@given(st.lists(decimals(), min_size=1))
def test_decimals_print_with_exactly_their_scale(values: list[bytes]) -> None:
    assert texts_of_bytes(Text.DECIMAL, values) == [decimal.decode(value) for value in values]


def test_a_negative_zero_has_no_sign() -> None:
    stored = bytes([3, 1]) + bytes(b ^ 0xFF for b in decimal.encode("0.0", 3, 1)[2:])
    assert texts_of_bytes(Text.DECIMAL, [stored]) == ["0.0"]


packed = st.builds(
    lambda *parts: temporal.pack(temporal.Parts(*parts)),
    *(st.integers(0, top) for top in (9999, 12, 31, 23, 59, 59, 999_999)),
)


@relaxed
@given(packed, st.integers(0, 6))
def test_times_print_with_exactly_fsp_digits(word: int, fsp: int) -> None:
    parts = temporal.unpack(word)
    assert texts(Text.DATE, [word]) == [temporal.date_text(parts)]
    assert texts(Text.DATETIME, [word], fsp) == [temporal.datetime_text(parts, fsp)]


@relaxed
@given(st.lists(U64, min_size=1), st.integers(0, 6))
def test_no_time_overruns_its_documented_length(words: list[int], fsp: int) -> None:
    for what in (Text.DATE, Text.DATETIME, Text.TIMESTAMP, Text.DURATION):
        texts(what, words, fsp, "America/New_York" if what is Text.TIMESTAMP else "")


@relaxed
@given(st.integers(-temporal.DURATION_MAX_NS, temporal.DURATION_MAX_NS), st.integers(0, 6))
def test_durations_print_with_at_least_two_digits_of_hours(nanoseconds: int, fsp: int) -> None:
    assert texts(Text.DURATION, [nanoseconds], fsp) == [temporal.duration_text(nanoseconds, fsp)]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Shanghai", "Africa/Casablanca", "Asia/Kathmandu"])
@settings(deadline=None, max_examples=40)
@given(seconds=st.lists(st.integers(0, (1 << 31) - 1), min_size=1), micros=st.integers(0, 999_999))
def test_timestamps_show_the_clock_of_their_zone(zone: str, seconds: list[int], micros: int) -> None:
    moments = [datetime.fromtimestamp(s, UTC).replace(microsecond=micros) for s in seconds]
    words = [temporal.pack(temporal.Parts(*m.timetuple()[:6], m.microsecond)) for m in moments]
    wanted = [temporal.datetime_text(temporal.in_zone(word, ZoneInfo(zone)), 6) for word in words]
    assert texts(Text.TIMESTAMP, words, 6, zone) == wanted


def test_timestamps_around_every_clock_change_are_right_to_the_second() -> None:
    table = zone_table("Europe/London")
    changes = [int(start) for start in table[3::2] if start >= 0]
    assert len(changes) > 100
    moments = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=s + d) for s in changes for d in (-1, 0)]
    words = [temporal.pack(temporal.Parts(*m.timetuple()[:6], 0)) for m in moments]
    wanted = [temporal.datetime_text(temporal.in_zone(word, ZoneInfo("Europe/London")), 0) for word in words]
    assert texts(Text.TIMESTAMP, words, 0, "Europe/London") == wanted


def bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


numbers = st.floats(allow_nan=False, allow_infinity=False)


@relaxed
@given(st.lists(numbers | st.floats(-1e22, 1e22) | st.integers(-(10**18), 10**18).map(float), min_size=1))
def test_doubles_print_the_shortest_digits_that_read_back(values: list[float]) -> None:
    words = [bits(number) for number in values]
    assert texts(Text.DOUBLE, words) == [floats.fixed_text(number, single=False) for number in values]
    assert texts(Text.DOUBLE_TIDB, words) == [json.double_text(number) for number in values]
    for number, text in zip(values, texts(Text.DOUBLE_JSON, words), strict=True):
        assert float(text) == number
        assert ("e" in text) == (number != 0 and not 1e-6 <= abs(number) < 1e21)


@relaxed
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_print_the_shortest_digits_of_32_bits(values: list[float]) -> None:
    words = [bits(number) for number in values]
    assert texts(Text.FLOAT, words) == [floats.fixed_text(number, single=True) for number in values]
    for number, text in zip(values, texts(Text.FLOAT_JSON, words), strict=True):
        assert np.float32(text) == np.float32(number)


def test_what_is_no_number_prints_as_zero() -> None:
    words = [bits(number) for number in (float("nan"), float("inf"), -float("inf"))]
    for what in (Text.DOUBLE, Text.FLOAT, Text.DOUBLE_JSON, Text.FLOAT_JSON):
        assert texts(what, words) == ["0", "0", "0"]


documents = st.recursive(
    st.none() | st.booleans() | I64 | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
)


@relaxed
@given(documents)
def test_json_prints_as_the_plain_reader_does(document: object) -> None:
    data = json.encode(orjson.dumps(document).decode())
    assert texts_of_bytes(Text.JSON, [data]) == [json.decode(data)]


@relaxed
@given(st.lists(st.binary(max_size=20), min_size=1))
def test_damaged_utf8_in_json_is_replaced_as_python_replaces_it(strings: list[bytes]) -> None:
    values = [bytes([12, len(string)]) + string for string in strings]
    assert texts_of_bytes(Text.JSON, values) == [json.decode(value) for value in values]


def test_a_string_at_the_end_of_memory_prints_as_any_other() -> None:
    """A kernel reads 8 bytes of a shorter string if its page has them, so nothing after the page is read."""
    strings = ["x" * size + end for size in range(20) for end in ("", "\n", "é", 'yz"')]
    values = [json.encode(orjson.dumps(string).decode()) for string in strings]
    rooms = [Guarded(value) for value in values]
    sizes = np.array([len(value) for value in values], dtype=np.int32)
    places = np.array([room.address for room in rooms], dtype=np.int64)
    found = _run(Text.JSON, places, sizes, JSON_GROWTH * int(sizes.sum()), 0, "")
    assert found == [json.decode(value) for value in values]


def nested(depth: int) -> bytes:
    return json.encode("[" * depth + "]" * depth)


def test_json_nests_a_hundred_levels_and_no_more() -> None:
    assert texts_of_bytes(Text.JSON, [nested(100)]) == ["[" * 100 + "]" * 100]
    deeper = struct.pack("<IIBI", 1, 13 + len(nested(100)) - 1, 3, 13) + nested(100)[1:]
    assert not passes(b"\x03" + deeper)


def passes(value: bytes) -> bool:
    """Whether `json_ok` takes the value."""
    held = np.frombuffer(value or b"\0", dtype=np.uint8).copy()
    a, size = np.array([address(held)], dtype=np.int64), np.array([len(value)], dtype=np.int32)
    ok = np.zeros(1, dtype=np.uint8)
    return column_kernels.check_json(1, address(a), address(size), address(ok), address(STACK)) == 1


@relaxed
@given(documents, st.data())
def test_damaged_json_passes_exactly_if_the_plain_reader_can_read_it(
    document: object, data: st.DataObject
) -> None:
    value = bytearray(json.encode(orjson.dumps(document).decode()))
    for _ in range(data.draw(st.integers(0, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    value = value[: data.draw(st.integers(len(value) // 2, len(value)))]
    try:
        json.decode(bytes(value))
        readable = True
    except Undecodable:
        readable = False
    assert passes(bytes(value)) == readable
