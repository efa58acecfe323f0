"""Key-value messages: TiKV-CDC's bytes, both ways, and the compiled encoder against the plain one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.codec.keys import encode_keys
from tidegate.codec.protocols.kv_json.plain import (
    KeyChange,
    KeyResolved,
    KvMarks,
    KvOptions,
    decode,
    encode,
    partition_of,
)
from tidegate.errors import Undecodable
from tidegate.model.block import ENTRY_SCHEMA, OP_DELETE, OP_PUT

CHANGES = st.lists(
    st.builds(
        lambda ts, op, key, value, expires: (
            KeyChange(ts, op, key, value, expires) if op == OP_PUT else KeyChange(ts, op, key)
        ),
        st.integers(1, (1 << 64) - 1),
        st.sampled_from((OP_PUT, OP_DELETE)),
        st.binary(max_size=40),
        st.binary(max_size=90),
        st.integers(0, (1 << 40)),
    ),
    max_size=30,
)


def varint(number: int) -> bytes:
    out = bytearray()
    while number:
        out.append(number & 127 | (128 if number >> 7 else 0))
        number >>= 7
    return bytes(out)


def block(changes: list[KeyChange], prefix: bytes) -> pa.RecordBatch:
    rows = [(c.commit_ts, c.commit_ts, c.op, prefix + c.key, c.value, varint(c.expires)) for c in changes]
    columns = list(zip(*rows, strict=True)) or [()] * 6
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def test_a_message_has_tikv_cdcs_bytes() -> None:
    put = encode(KeyChange(7, OP_PUT, b"a", b"v", 1700000000))
    assert put.key[16:] == b'{"ts":7,"k":"YQ==","t":4}'
    assert put.key[:16] == b"\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\x19"
    assert put.value is not None
    assert put.value[8:] == b'{"op":1,"v":"dg==","ex":1700000000}'
    assert encode(KeyChange(7, OP_DELETE, b"a")).value == b"\0\0\0\0\0\0\0\x08" + b'{"op":2}'
    resolved = KvMarks(KvOptions()).encode_resolved(9)
    assert (resolved.key, resolved.value) == (
        b"\0\0\0\0\0\0\0\1" + b'\0\0\0\0\0\0\0\x0e{"ts":9,"t":3}',
        bytes(8),
    )


@given(changes=CHANGES)
def test_what_is_encoded_is_decoded(changes: list[KeyChange]) -> None:
    for change in changes:
        message = encode(change)
        assert decode(message.key, message.value) == [change]
    resolved = KvMarks(KvOptions()).encode_resolved(5)
    assert decode(resolved.key, resolved.value) == [KeyResolved(5)]


@settings(deadline=None)  # the first call compiles, or loads what was compiled
@given(changes=CHANGES, partitions=st.integers(1, 9), first=st.integers(0, 5))
def test_the_compiled_encoder_writes_what_the_plain_one_writes(
    changes: list[KeyChange], partitions: int, first: int
) -> None:
    batch = block(changes, b"r\0\0\1").slice(first)
    made, expected = (
        encode_keys(batch, 4, partitions, KvOptions()),
        [encode(change) for change in changes[first:]],
    )
    assert len(made) == len(expected)
    data = made.data.tobytes()
    for i, (message, change) in enumerate(zip(expected, changes[first:], strict=True)):
        key, value = int(made.key_start[i]), int(made.value_start[i])
        assert data[key : key + int(made.key_length[i])] == message.key
        assert data[value : value + int(made.value_length[i])] == message.value
        assert made.partition[i] == partition_of(change.key, partitions)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\0\0\0\0\0\0\0\2", b""),
        (b"\0\0\0\0\0\0\0\1" + bytes(7) + b"\xff{}", bytes(8)),
        (b"\0\0\0\0\0\0\0\1" + bytes(7) + b"\x02{}", bytes(8)),
        (b"\0\0\0\0\0\0\0\1" + bytes(7) + b'\x07{"t":9}', bytes(8)),
    ],
)
def test_other_bytes_are_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(Undecodable, match="a key-value message cannot be read"):
        decode(key, value)
