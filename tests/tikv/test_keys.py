"""The store's key encodings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Undecodable
from tidegate.tidb import memcomparable
from tidegate.tikv import keys


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        (b"", "0000000000000000f7"),
        (b"\x01\x02\x03", "0102030000000000fa"),
        (b"\x01\x02\x03\x00", "0102030000000000fb"),
        (b"12345678", "3132333435363738ff0000000000000000f7"),
        (b"123456789", "3132333435363738ff3900000000000000f8"),
    ],
)
def test_a_key_is_encoded_in_groups_of_eight(key: bytes, encoded: str) -> None:
    assert keys.encode(key).hex() == encoded


@given(st.binary(max_size=40))
def test_a_key_comes_back_and_is_encoded_as_tidb_does(key: bytes) -> None:
    assert keys.decode(keys.encode(key)) == key
    assert keys.encode(key) == memcomparable.encode_bytes(key)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_encoded_keys_sort_as_the_keys_and_none_begins_another(left: bytes, right: bytes) -> None:
    a, b = keys.encode(left), keys.encode(right)
    assert (a < b) == (left < right)
    assert left == right or not (a.startswith(b) or b.startswith(a))


@given(st.binary(max_size=30))
def test_decoding_is_total(data: bytes) -> None:
    try:
        assert keys.encode(keys.decode(data)) == data
    except Undecodable:
        assert True


@given(st.integers(0, keys.TS_MAX), st.integers(0, keys.TS_MAX))
def test_newer_versions_of_a_key_come_first(one: int, other: int) -> None:
    key = keys.encode(b"k")
    assert keys.version_of(keys.versioned(key, one)) == one
    assert (keys.versioned(key, one) < keys.versioned(key, other)) == (one > other)
