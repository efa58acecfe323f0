"""The batch decoder finds what the plain decoder finds."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
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


Damage = tuple[int, int, int, bytes]
"""Which message, where in it (as a share of 65,536), how many bytes go, what comes in their place."""
DAMAGE = st.tuples(st.integers(0, 39), st.integers(0, 65535), st.integers(0, 2), st.binary(max_size=2))


@given(
    st.sampled_from(["open", "open row by row", "canal extended"]), st.lists(DAMAGE, min_size=1, max_size=3)
)
@example("canal extended", [(0, 65535, 0, b"0")])
@settings(max_examples=300, deadline=None)
def test_damaged_messages_decode_alike(name: str, damages: list[Damage]) -> None:
    batch = list(ours(name))
    for hit, where, cut, put in damages:
        key, value = batch[hit % len(batch)]
        damaged = bytearray(value or b"")
        at = where * len(damaged) >> 16
        damaged[at : at + cut] = put
        batch[hit % len(batch)] = (key, bytes(damaged))
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


NUMBER = re.compile(rb"(?<=[:,\[])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?=[,}\]])")
"""A number that stands alone in a JSON text."""
STRANGE_NUMBERS = (
    b"0613", b"00", b"-01", b"-", b"--1", b"+1", b"1-2", b"1.", b".5", b"01.5", b"1e", b"1e+", b"1e5",
    b"1E-2", b"-0", b"1.0", b"18446744073709551616", b"NaN", b"Infinity",
)  # fmt: skip


@pytest.mark.parametrize("name", ["open row by row", "canal", "canal extended"])
def test_what_is_no_json_number_is_refused_alike(name: str) -> None:
    """Seen once as `"commitTs":0613...` after damage: the compiled decoder took it."""
    batch = list(ours(name))
    key, value = max(batch, key=lambda message: len(NUMBER.findall(message[1] or b"")))
    assert value is not None
    for found in NUMBER.finditer(value):
        for strange in STRANGE_NUMBERS:
            changed = value[: found.start()] + strange + value[found.end() :]
            same(OPTIONS[name], [*batch[:2], (key, changed)])
