import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb import memcomparable as m

INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)


def comparable_uvarint(value: int) -> bytes:
    """TiDB's EncodeComparableUvarint, which no key or row of a table has: small numbers in one byte."""
    if value <= 239:
        return bytes([value + 8])
    size = (value.bit_length() + 7) // 8
    return bytes([247 + size]) + value.to_bytes(size, "big")


def comparable_varint(value: int) -> bytes:
    """TiDB's EncodeComparableVarint."""
    if value >= 0:
        return comparable_uvarint(value)
    size = max((-value).bit_length() + 7, 8) // 8
    return bytes([8 - size]) + (value % (1 << 8 * size)).to_bytes(size, "big")


def descending(data: bytes) -> str:
    """The form that sorts the other way round."""
    return bytes(0xFF - byte for byte in data).hex()


@pytest.mark.golden
def test_golden_integers_and_bytes_have_tidbs_forms() -> None:
    for case in lines("keys/primitives"):
        if case["kind"] != "float":
            assert descending(bytes.fromhex(case["comparable"])) == case["comparable_desc"]
            count("keys", f"primitives, {case['kind']}")
        match case["kind"]:
            case "int":
                value = int(case["v"])
                assert comparable_varint(value).hex() == case["comparable_varint"]
                assert m.encode_int(value).hex() == case["comparable"]
                assert m.encode_varint(value).hex() == case["varint"]
                assert m.decode_int(bytes.fromhex(case["comparable"])) == value
                assert m.read_varint(bytes.fromhex(case["varint"]), 0) == (value, len(case["varint"]) // 2)
            case "uint":
                value = int(case["v"])
                assert comparable_uvarint(value).hex() == case["comparable_uvarint"]
                assert m.encode_uint(value).hex() == case["comparable"]
                assert m.encode_uvarint(value).hex() == case["uvarint"]
                assert m.decode_uint(bytes.fromhex(case["comparable"])) == value
                assert m.read_uvarint(bytes.fromhex(case["uvarint"]), 0)[0] == value
            case "bytes":
                data = bytes.fromhex(case["hex"])
                assert m.encode_bytes(data).hex() == case["comparable"]
                assert m.encode_compact(data).hex() == case["compact"]
                assert m.decode_bytes(bytes.fromhex(case["comparable"])) == (
                    data,
                    len(case["comparable"]) // 2,
                )
                assert m.read_compact(bytes.fromhex(case["compact"]), 0)[0] == data


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_encoded_bytes_compare_as_the_bytes_do(left: bytes, right: bytes) -> None:
    assert (m.encode_bytes(left) < m.encode_bytes(right)) == (left < right)


@given(st.binary(max_size=40), st.binary(max_size=10))
def test_bytes_end_themselves(data: bytes, tail: bytes) -> None:
    encoded = m.encode_bytes(data)
    assert m.decode_bytes(encoded + tail) == (data, len(encoded))


@given(INT64, INT64)
def test_encoded_integers_compare_as_the_integers_do(left: int, right: int) -> None:
    assert (m.encode_int(left) < m.encode_int(right)) == (left < right)


@given(INT64, UINT64)
def test_varints_come_back(signed: int, unsigned: int) -> None:
    assert m.read_varint(m.encode_varint(signed), 0)[0] == signed
    assert m.read_uvarint(m.encode_uvarint(unsigned), 0)[0] == unsigned


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_undecodable(data: bytes) -> None:
    for read in (m.decode_bytes, m.decode_int, m.decode_uint):
        with contextlib.suppress(Undecodable):
            read(data)
    for read_at in (m.read_uvarint, m.read_varint, m.read_compact):
        with contextlib.suppress(Undecodable):
            read_at(data, 0)


def test_a_varint_beyond_64_bits_is_undecodable() -> None:
    with pytest.raises(Undecodable):
        m.read_uvarint(b"\xff" * 9 + b"\x02", 0)


def test_integers_beyond_64_bits_are_refused() -> None:
    for encode, value in [(m.encode_int, 1 << 63), (m.encode_uint, -1), (m.encode_varint, 1 << 63)]:
        with pytest.raises(InvalidInput):
            encode(value)
