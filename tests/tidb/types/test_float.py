import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.errors import Undecodable
from tidegate.tidb.types import float as floats


@pytest.mark.golden
def test_golden_comparable_floats() -> None:
    for case in lines("keys/primitives"):
        if case["kind"] == "float":
            value = struct.unpack(">d", bytes.fromhex(case["bits"]))[0]
            assert floats.encode(value).hex() == case["comparable"]
            assert floats.decode(bytes.fromhex(case["comparable"])) == value
            assert bytes(0xFF - byte for byte in floats.encode(value)).hex() == case["comparable_desc"]
            count("keys", "primitives, float")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_fixed_text_is_exact_and_without_exponent(value: float) -> None:
    text = floats.fixed_text(value, single=False)
    assert float(text) == value
    assert "e" not in text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_fixed_text_of_a_float_is_shortest_for_32_bits(value: float) -> None:
    assert floats.to_float32(float(floats.fixed_text(value, single=True))) == value


def test_texts_of_what_is_not_finite() -> None:
    shown = [floats.fixed_text(value, single=False) for value in (math.nan, math.inf, -math.inf, -0.0)]
    assert shown == ["NaN", "+Inf", "-Inf", "-0"]


def test_a_cut_float_is_undecodable() -> None:
    with pytest.raises(Undecodable):
        floats.decode(bytes(7))
