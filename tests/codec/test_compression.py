"""Values that producers compress can be read from every producer, and their size is bounded."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.codec.base import Batch, Decoded, Decoder
from tidegate.codec.decoding.joined import join
from tidegate.codec.decoding.opening import Opening, opened
from tidegate.codec.formats.compression import (
    LZ4,
    MAX_EXPANDED,
    NONE,
    SNAPPY,
    ExpandError,
    compressed,
    expanded,
)
from tidegate.codec.protocols.canal_json.plain import CanalJsonDecoder, CanalJsonEncoder, CanalOptions

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


@pytest.mark.parametrize("kind", [SNAPPY, LZ4])
def test_a_value_that_expands_to_too_much_is_refused(kind: str) -> None:
    assert len(expanded(kind, pa.compress(bytes(1 << 20), kind, asbytes=True), 1 << 20)) == 1 << 20
    with pytest.raises(ExpandError, match=r"claims|more than"):
        expanded(kind, pa.compress(bytes((1 << 20) + 1), kind, asbytes=True), 1 << 20)


@pytest.mark.parametrize("kind", [SNAPPY, LZ4])
def test_the_items_of_a_message_expand_to_no_more_than_one_value_may(kind: str) -> None:
    item = compressed(kind, bytes(1000))
    framed = (len(item).to_bytes(8, "big") + item) * 4
    assert len(opened(framed, kind, framed=True, most=4000)) == 4 * 1008
    with pytest.raises(ExpandError):
        opened(framed, kind, framed=True, most=3999)


class Counting:
    """A decoder that counts the bytes of what it is given at a time."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.sizes: list[int] = []

    def decode(self, batch: Batch) -> Decoded:
        self.sizes.append(sum(len(value or b"") for value in batch.values))
        return self._decoder.decode(batch)


MOST = 100_000
OPTIONS = CanalOptions(enable_tidb_extension=True)


def marks(kind: str, count: int, size: int) -> Batch:
    """Watermarks of some bytes each, one no JSON and one not compressed among them."""
    values: list[bytes | None] = []
    for ts in range(1, count + 1):
        mark = CanalJsonEncoder(OPTIONS).encode_resolved(ts)
        assert mark is not None
        values.append(compressed(kind, (mark.value or b"").ljust(size)))
    values[7], values[21] = compressed(kind, b"{" * size), b"\xff" * 20
    return Batch([None] * count, values, range(100, 100 + count))


@pytest.mark.parametrize("kind", [SNAPPY, LZ4])
@pytest.mark.parametrize("size", [MOST, MOST - 1, MOST // 2, MOST // 3, 700])
def test_a_batch_that_expands_greatly_is_decoded_in_pieces_without_loss(kind: str, size: int) -> None:
    batch = marks(kind, 120, size)
    inner = Counting(CanalJsonDecoder())
    pieces = list(Opening(inner, kind, framed=False, most=MOST).pieces(batch))
    assert max(inner.sizes) <= MOST
    assert len(pieces) == -(-119 // (MOST // size))
    assert [mark for piece in pieces for mark in piece.resolved] == [
        (ts, 99 + ts) for ts in range(1, 121) if ts not in (8, 22)
    ]
    bad = [one for piece in pieces for one in piece.bad]
    assert [(one.offset, one.value) for one in bad] == [(107, batch.values[7]), (121, batch.values[21])]
    assert Opening(CanalJsonDecoder(), kind, framed=False, most=MOST).decode(batch) == join(pieces)


def test_the_bound_that_readers_have_holds_for_messages_that_each_keep_it() -> None:
    values = [compressed(SNAPPY, bytes(MAX_EXPANDED // 2))] * 3
    inner = Counting(CanalJsonDecoder())
    found = Opening(inner, SNAPPY, framed=False).decode(Batch([None] * 3, values, range(3)))
    assert inner.sizes == [MAX_EXPANDED, MAX_EXPANDED // 2]
    assert [bad.offset for bad in found.bad] == [0, 1, 2]


def test_an_impossible_length_is_rejected_before_memory_is_allocated() -> None:
    claims = b"\xff\xff\xff\x7f" + bytes(10)  # 256 MB in 14 bytes
    with pytest.raises(ExpandError, match="claims to hold 268435455"):
        expanded(SNAPPY, claims)


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_items_of_a_batch_are_expanded_one_by_one(items: list[bytes]) -> None:
    def framed(parts: list[bytes]) -> bytes:
        return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    packed = framed([compressed(LZ4, item) for item in items])
    assert opened(packed, LZ4, framed=True) == framed(items)
    # The decoder refuses data that is no such batch.
    assert opened(packed + b"\x00", LZ4, framed=True) == packed + b"\x00"
