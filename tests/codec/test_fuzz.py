"""Decoders meet arbitrary bytes: only BadMessage, and the neighbours survive."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec import golden
from tidegate.codec.base import CodecOptions, Decoded, describe
from tidegate.codec.registry import decoder

LENGTHS = st.sampled_from([0, 1, 7, 8, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]).map(
    lambda n: n.to_bytes(8, "big")
)
PROTOCOLS = ("open-protocol", "canal-json")


@functools.cache
def messages(protocol: str) -> list[tuple[bytes | None, bytes]]:
    name = {"open-protocol": "open_batch16", "canal-json": "canaljson_tidb_extension"}[protocol]
    found = []
    for record in golden.lines(f"messages/{name}"):
        for m in record.get("messages", [record] if record["kind"] == "row" else []):
            found.append((bytes.fromhex(m["key"]) if m["key"] else None, bytes.fromhex(m["value"])))
    return found[:150]


def decode(protocol: str, batch: list[tuple[bytes | None, bytes | None]]) -> Decoded:
    keys, values = zip(*batch, strict=True)
    return decoder(CodecOptions(protocol)).decode(keys, values, None, range(len(batch)))


@given(st.sampled_from(PROTOCOLS), st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))
@settings(max_examples=150, deadline=None)
def test_arbitrary_bytes_are_bad_messages(protocol: str, key: bytes | None, value: bytes | None) -> None:
    decoded = decode(protocol, [(key, value)])
    assert len(decoded.bad) == 1
    assert (decoded.bad[0].key, decoded.bad[0].value) == (key, value)


@given(LENGTHS, LENGTHS, st.binary(max_size=30))
@settings(max_examples=100, deadline=None)
def test_hostile_lengths_are_bad_messages(key_length: bytes, value_length: bytes, rest: bytes) -> None:
    key = (1).to_bytes(8, "big") + key_length + b'{"ts":1,"scm":"a","tbl":"b","t":1}' + rest
    decoded = decode("open-protocol", [(key, value_length + rest)])
    assert len(decoded.bad) == 1


@given(st.data(), st.sampled_from(PROTOCOLS))
@settings(max_examples=150, deadline=None)
def test_one_damaged_message_never_spoils_the_rest(data: st.DataObject, protocol: str) -> None:
    pool = messages(protocol)
    start = data.draw(st.integers(0, len(pool) - 4))
    batch: list[tuple[bytes | None, bytes | None]] = list(pool[start : start + 4])
    clean = describe(decode(protocol, batch))
    hit = data.draw(st.integers(0, 3))
    value = bytearray(batch[hit][1] or b"")
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    batch[hit] = (batch[hit][0], bytes(value))
    found = describe(decode(protocol, batch))
    assert [row for row in found if row["offset"] != hit] == [row for row in clean if row["offset"] != hit]
    assert any(row["offset"] == hit for row in found)
