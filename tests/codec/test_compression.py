"""Values that producers compress: read back whatever wrote them, and bounded whoever wrote them."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.codec import compression
from tidegate.codec.compression import LZ4, NONE, SNAPPY, ExpandError, compressed, expanded
from tidegate.codec.opening import opened

KINDS = st.sampled_from((NONE, SNAPPY, LZ4))


@given(KINDS, st.binary(max_size=300), st.integers(0, 2000))
def test_what_is_compressed_comes_back(kind: str, data: bytes, times: int) -> None:
    whole = data * times
    assert expanded(kind, compressed(kind, whole)) == whole


@given(st.sampled_from((SNAPPY, LZ4)), st.binary(max_size=60))
def test_bytes_that_are_not_compressed_are_refused_or_expand_to_little(kind: str, data: bytes) -> None:
    found = b""
    with suppress(ExpandError):
        found = expanded(kind, data)
    assert len(found) <= 255 * len(data)


@pytest.mark.parametrize("kind", [SNAPPY, LZ4])
def test_a_cut_value_is_refused(kind: str) -> None:
    whole = compressed(kind, b'{"a":1}' * 50)
    for size in range(1, len(whole)):
        with pytest.raises(ExpandError):
            expanded(kind, whole[:size])


def test_a_value_that_expands_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_EXPANDED", 1 << 20)
    for kind in (SNAPPY, LZ4):
        assert len(expanded(kind, pa.compress(bytes(1 << 20), kind, asbytes=True))) == 1 << 20
        with pytest.raises(ExpandError, match=r"claims|more than"):
            expanded(kind, pa.compress(bytes((1 << 20) + 1), kind, asbytes=True))


def test_a_length_that_the_bytes_cannot_have_is_refused_before_memory_is_taken() -> None:
    claims = b"\xff\xff\xff\x7f" + bytes(10)  # 256 MB in 14 bytes
    with pytest.raises(ExpandError, match="claims to hold 268435455"):
        expanded(SNAPPY, claims)


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_items_of_a_batch_are_expanded_one_by_one(items: list[bytes]) -> None:
    def framed(parts: list[bytes]) -> bytes:
        return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    packed = framed([compressed(LZ4, item) for item in items])
    assert opened(packed, LZ4, framed=True) == framed(items)
    # What is no such batch is for the decoder to refuse.
    assert opened(packed + b"\x00", LZ4, framed=True) == packed + b"\x00"
