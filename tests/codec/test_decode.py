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
