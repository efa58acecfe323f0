"""The batch decoder finds what the plain decoder finds."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.test_blocks import BUILD_MS, golden_rows, strange_rows
from tests.codec.test_fuzz import messages
from tidegate.codec.base import CodecOptions, Decoded, describe
from tidegate.codec.canal_json import CanalJsonDecoder
from tidegate.codec.open_protocol import OpenProtocolDecoder
from tidegate.codec.registry import decoder, encoder
from tidegate.errors import InvalidInput
from tidegate.model.row import RowChange

OPTIONS = {
    "open": CodecOptions("open-protocol"),
    "open changed only": CodecOptions("open-protocol", only_output_updated_columns=True),
    "open row by row": CodecOptions("open-protocol", max_batch_size=1),
    "open deletes by key": CodecOptions("open-protocol", delete_only_output_handle_key_columns=True),
    "canal": CodecOptions("canal-json"),
    "canal extended": CodecOptions("canal-json", enable_tidb_extension=True),
    "canal compatible": CodecOptions("canal-json", content_compatible=True),
}


def plain(options: CodecOptions) -> OpenProtocolDecoder | CanalJsonDecoder:
    return OpenProtocolDecoder() if options.protocol == "open-protocol" else CanalJsonDecoder()


def both(options: CodecOptions, batch: list[tuple[bytes | None, bytes | None]]) -> tuple[Decoded, Decoded]:
    keys, values = zip(*batch, strict=True)
    offsets = np.arange(len(batch), dtype=np.int64) * 3
    fast = decoder(options)
    fast.decode(keys, values, None, offsets)  # learn
    return plain(options).decode(keys, values, None, offsets), fast.decode(keys, values, None, offsets)


def same(options: CodecOptions, batch: list[tuple[bytes | None, bytes | None]]) -> None:
    expected, found = both(options, batch)
    assert describe(found) == describe(expected)
    for table in found.rows:
        places = list(zip(table.offset.tolist(), table.seq.tolist(), strict=True))
        assert places == sorted(places)


@pytest.mark.parametrize("name", OPTIONS)
def test_golden_rows_decode_alike(name: str) -> None:
    made = encoder(OPTIONS[name])
    for rows in golden_rows():
        try:
            batch = [(m.key, m.value) for m in made.encode_rows(rows, BUILD_MS)]
        except InvalidInput:  # a delete without a key: nothing to decode
            continue
        same(OPTIONS[name], batch)


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_ticdcs_own_messages_decode_alike(protocol: str) -> None:
    same(CodecOptions(protocol), list(messages(protocol)))


@given(strange_rows(), st.sampled_from(sorted(OPTIONS)))
@settings(max_examples=200, deadline=None)
def test_any_row_decodes_alike(rows: list[RowChange], name: str) -> None:
    same(OPTIONS[name], [(m.key, m.value) for m in encoder(OPTIONS[name]).encode_rows(rows, BUILD_MS)])


@functools.cache
def ours(name: str) -> list[tuple[bytes | None, bytes | None]]:
    rows = max(golden_rows(), key=len)
    return [(m.key, m.value) for m in encoder(OPTIONS[name]).encode_rows(rows[:40], BUILD_MS)]


@given(st.data(), st.sampled_from(["open", "open row by row", "canal extended"]))
@settings(max_examples=300, deadline=None)
def test_damaged_messages_decode_alike(data: st.DataObject, name: str) -> None:
    batch = list(ours(name))
    for _ in range(data.draw(st.integers(1, 3))):
        hit = data.draw(st.integers(0, len(batch) - 1))
        key, value = batch[hit]
        damaged = bytearray(value or b"")
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        batch[hit] = (key, bytes(damaged))
    same(OPTIONS[name], batch)


def _framed(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    size = len(key).to_bytes(8, "big")
    return (1).to_bytes(8, "big") + size + key, len(value).to_bytes(8, "big") + value


@pytest.mark.parametrize(
    ("options", "message", "why"),
    [
        (
            "open",
            _framed(
                b'{"ts":7,"scm":"s","tbl":"t","t":1,"ohk":true}', b'{"u":{"a":{"t":3,"h":true,"f":2,"v":1}}}'
            ),
            "only its key is",
        ),
        (
            "open",
            _framed(
                b'{"ts":7,"scm":"s","tbl":"t","t":1,"ohk":true,"ohk":false,"ccl":"s3://b/x?secret=1/u.json"}',
                b'{"u":{"a":{"t":3,"h":true,"f":2,"v":1}}}',
            ),
            "in the claim-check storage as u.json",
        ),
        (
            "canal extended",
            (
                None,
                b'{"database":"s","table":"t","pkNames":["a"],"isDdl":false,"type":"INSERT","es":1,"ts":1,"sql":"",'
                b'"sqlType":{"a":4},"mysqlType":{"a":"int"},"old":null,"data":[{"a":"1"}],'
                b'"_tidb":{"commitTs":7,"onlyHandleKey":true}}',
            ),
            "only its key is",
        ),
    ],
)
def test_a_row_that_was_too_large_for_the_topic_is_named_with_its_ts(
    options: str, message: tuple[bytes | None, bytes], why: str
) -> None:
    for decoded in both(OPTIONS[options], [message]):
        (bad,) = decoded.bad
        assert bad.reduced_ts == 7
        assert "s.t" in bad.why
        assert why in bad.why
        assert "secret" not in bad.why
        assert decoded.rows == []
