import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb.types import integer


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_integers_come_back_in_their_shortest_form(value: int) -> None:
    data = integer.encode_signed(value)
    assert integer.decode_signed(data) == value
    assert len(data) == 1 or not -(1 << 4 * len(data) - 1) <= value < 1 << 4 * len(data) - 1


@given(st.integers(0, 2**64 - 1))
def test_unsigned_integers_come_back_in_their_shortest_form(value: int) -> None:
    data = integer.encode_unsigned(value)
    assert integer.decode_unsigned(data) == value
    assert len(data) == 1 or value >> 4 * len(data)


@pytest.mark.parametrize("size", [0, 3, 5, 6, 7, 9])
def test_other_widths_are_refused(size: int) -> None:
    with pytest.raises(Undecodable):
        integer.decode_signed(bytes(size))
    with pytest.raises(Undecodable):
        integer.decode_unsigned(bytes(size))


def test_values_beyond_64_bits_are_refused() -> None:
    with pytest.raises(InvalidInput):
        integer.encode_signed(1 << 63)
    with pytest.raises(InvalidInput):
        integer.encode_unsigned(-1)
