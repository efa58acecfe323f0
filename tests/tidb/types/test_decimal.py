from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb.types import decimal


@pytest.mark.golden
def test_golden_decimals_decode_and_encode_as_tidb_does() -> None:
    """TiDB calls some of 7 or 8 digits after the point in a column of 9 truncated, and writes them whole."""
    for case in lines("keys/decimals"):
        if case["parse_error"]:
            with pytest.raises(InvalidInput):
                decimal.encode(case["text"])
        else:
            assert Decimal(case["text"]) == Decimal(case["parsed"])
        count("keys", "decimals, natural")
        assert decimal.encode(case["parsed"]).hex() == case["codec_natural"]
        if "bin" not in case:
            continue
        data = bytes.fromhex(case["codec"])
        assert data[2:].hex() == case["bin"]
        assert list(data[:2]) == [case["precision"], case["frac"]]
        assert decimal.decode(data) == case["from_bin"]
        assert decimal.encode(case["parsed"], case["precision"], case["frac"]) == data
        count("keys", "decimals, of a column's size")


@st.composite
def sized_decimals(draw: st.DrawFn) -> tuple[str, int, int]:
    precision = draw(st.integers(1, 65))
    frac = draw(st.integers(0, min(30, precision)))
    whole = draw(st.integers(0, 10 ** (precision - frac) - 1))
    digits = f"{draw(st.integers(0, 10**frac - 1)):0{frac}d}" if frac else ""
    sign = draw(st.sampled_from(["", "-"])) if whole or digits.strip("0") else ""
    return f"{sign}{whole}" + (f".{digits}" if frac else ""), precision, frac


@given(sized_decimals())
def test_decimals_of_any_size_come_back(case: tuple[str, int, int]) -> None:
    text, precision, frac = case
    assert decimal.decode(decimal.encode(text, precision, frac)) == text


@given(st.lists(st.integers(-(10**12), 10**12), min_size=2, max_size=2))
def test_binary_forms_compare_as_the_numbers_do(pair: list[int]) -> None:
    texts = [str(Decimal(value) / 1000) for value in pair]
    encoded = [decimal.encode_binary(text, 20, 5) for text in texts]
    assert (encoded[0] < encoded[1]) == (pair[0] < pair[1])


@given(st.binary(max_size=48))
def test_any_bytes_are_a_decimal_or_undecodable(data: bytes) -> None:
    try:
        text = decimal.decode(data)
    except Undecodable:
        return
    assert decimal.decode(decimal.encode(text, data[0], data[1])) == text


@pytest.mark.parametrize("text", ["", "abc", "1e5", "--1", "1.2.3", "１"])
def test_texts_that_are_no_number_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        decimal.encode(text, 10, 2)


def test_a_number_too_wide_for_its_column_is_refused() -> None:
    with pytest.raises(InvalidInput):
        decimal.encode("100", 4, 2)
