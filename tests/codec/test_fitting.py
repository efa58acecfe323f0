"""Rows that do not fit their message: kernels and plain encoders send, and store, the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codec.cells import block_of
from tests.contracts.codec_rows import golden_rows
from tests.contracts.test_codecs import BUILD_MS, check
from tidegate.codec import registry
from tidegate.codec.base import Batch
from tidegate.codec.blocks import encode_block
from tidegate.codec.decode import decoder
from tidegate.codec.large import CLAIM_CHECK, HANDLE_KEY_ONLY, LargeOptions, claim, unclaimed
from tidegate.errors import InvalidInput
from tidegate.model.row import RowChange

OPEN = registry.codec_options({"protocol": "open-protocol"})
CANAL: Any = registry.codec_options({"protocol": "canal-json", "enable-tidb-extension": True})
KEYED = replace(CANAL, flavour="new", output_row_key=True)
SIMPLE = registry.codec_options({"protocol": "simple"})
UPDATED = registry.codec_options({"protocol": "open-protocol", "only-output-updated-columns": True})
every_protocol = pytest.mark.parametrize(
    "options",
    [OPEN, CANAL, KEYED, SIMPLE, UPDATED],
    ids=["open", "canal", "canal with row keys", "simple", "open, updated columns only"],
)
every_way = pytest.mark.parametrize("way", [HANDLE_KEY_ONLY, CLAIM_CHECK])
PLACE = "file:///claims/00000000-0000-4000-8000-000000000000.json"


class OnePlace:
    """A storage all of whose names are one, so that two encoders give the same bytes."""

    def __init__(self) -> None:
        self.stored: Counter[bytes] = Counter()

    def location(self) -> str:
        return PLACE

    def store(self, location: str, content: bytes) -> None:
        assert location == PLACE
        self.stored[content] += 1


def some_rows() -> list[list[RowChange]]:
    return [rows[:40] for rows in golden_rows() if len(rows) > 8][::4]


def sizes(rows: list[RowChange], options: Any) -> list[int]:
    """The sizes of the rows' messages when each row has its own."""
    encoder = registry.encoder(replace(options, max_message_bytes=1 << 40))
    alone = (encoder.encode_rows([row], BUILD_MS)[0] for row in rows)
    return [len(one.key or b"") + len(one.value or b"") + 36 for one in alone]


@every_protocol
@every_way
@pytest.mark.parametrize("compression", ["none", "lz4", "snappy"])
def test_kernels_and_plain_encoders_reduce_the_same_rows(options: Any, way: str, compression: str) -> None:
    """In their partitions, in order, between rows that fit; and they store the same."""
    reduced, rng = 0, np.random.default_rng(5)
    for rows in some_rows():
        chosen = replace(
            options, large_message_handle_option=way, large_message_handle_compression=compression
        )
        limit = int(np.quantile(sizes(rows, chosen), 0.8))
        plain, compiled = OnePlace(), OnePlace()
        partition = rng.integers(0, 3, len(rows)).astype(np.int32)
        chosen = replace(chosen, max_message_bytes=limit, claims=plain)
        check(rows, chosen, partition)
        if rows[0].table.handle_key:
            try:
                encode_block(block_of(rows), partition, replace(chosen, claims=compiled), BUILD_MS)
            except InvalidInput:  # the handle key alone does not fit
                continue
            # `check` has encoded them twice.
            assert {content: 2 * count for content, count in compiled.stored.items()} == plain.stored
            reduced += sum(compiled.stored.values())
    assert (reduced > 0) == (way == CLAIM_CHECK)


@every_protocol
@every_way
def test_a_row_too_large_for_every_form_is_rejected_and_not_stored(options: Any, way: str) -> None:
    """The error names the key of the row."""
    rows = next(rows for rows in golden_rows() if rows[0].table.handle_key and len(rows) > 8)[:5]
    for chosen in (options, replace(options, large_message_handle_option=way)):
        storage = OnePlace()
        chosen = replace(chosen, max_message_bytes=150, claims=storage)
        for encode in (
            lambda chosen=chosen: encode_block(block_of(rows), np.zeros(5, np.int32), chosen, BUILD_MS),
            lambda chosen=chosen: registry.encoder(chosen).encode_rows(rows, BUILD_MS),
        ):
            with pytest.raises(InvalidInput, match="larger than one message") as caught:
                encode()
            words = caught.value.render()
            key = rows[0].table.handle_key[0]
            image = rows[0].new or rows[0].old
            assert image is not None
            for part in (
                rows[0].table.name,
                f"{rows[0].table.columns[key].name} = {image[key]!r}",
                "max-message-bytes is 150",
                "claim-check",
                "handle-key-only",
                "column-selectors",
            ):
                assert part in words
        assert not storage.stored


@every_protocol
@every_way
def test_a_row_without_a_key_that_does_not_fit_is_refused(options: Any, way: str) -> None:
    """TiCDC's canal-json and simple send an empty row, which no reader can use."""
    rows = next(rows for rows in golden_rows() if not rows[0].table.handle_key)[:3]
    storage = OnePlace()
    chosen = replace(options, large_message_handle_option=way, max_message_bytes=60, claims=storage)
    for encode in (
        lambda: encode_block(block_of(rows), np.zeros(len(rows), np.int32), chosen, BUILD_MS),
        lambda: registry.encoder(chosen).encode_rows(rows, BUILD_MS),
    ):
        with pytest.raises(InvalidInput, match="no handle key"):
            encode()
    assert not storage.stored


def test_a_claimed_row_is_alone_in_its_message_and_keeps_its_place() -> None:
    """Rows before it are sent before it, rows behind it behind it, as in TiCDC not in its batch."""
    rows = next(rows for rows in golden_rows() if rows[0].table.schema == "r_types_ints_signed")[-40:]
    order = np.argsort(sizes(rows, OPEN))
    rows = [rows[i] for i in (*order[:4], order[-1], *order[4:8])]
    rows = [replace(row, commit_ts=470613016205066241 + i) for i, row in enumerate(rows)]
    limit = max(sizes([rows[4]], OPEN)) - 1
    chosen = replace(
        OPEN, large_message_handle_option=CLAIM_CHECK, max_message_bytes=limit, claims=OnePlace()
    )
    messages = registry.encoder(replace(chosen, max_batch_size=100)).encode_rows(rows)
    claimed = [i for i, message in enumerate(messages) if b'"ccl":' in (message.key or b"")]
    assert len(claimed) == 1
    assert (messages[claimed[0]].key or b"").count(b'"ts":') == 1
    keys = b"".join(message.key or b"" for message in messages)
    found = [keys.index(b'{"ts":%d' % row.commit_ts) for row in rows]
    assert found == sorted(found)


@pytest.mark.parametrize("raw", [False, True])
def test_a_stored_message_is_key_and_value(raw: bool) -> None:
    options = LargeOptions(claim_check_raw_value=raw)
    assert unclaimed(options, claim(options, None, b"\xffvalue")) == (None, b"\xffvalue")
    if not raw:
        assert unclaimed(options, claim(options, b"k", b"v")) == (b"k", b"v")
        for wrong in (b"", b"{", b"[]", b'{"key":1,"value":"eA=="}', b'{"key":null}', b'{"value":"%"}'):
            with pytest.raises(ValueError, match=r"."):
                unclaimed(options, wrong)


@every_protocol
def test_compressed_messages_of_another_kind_are_bad_messages(options: Any) -> None:
    rows = max(golden_rows(), key=len)[:3]
    for kind, other in (("lz4", "snappy"), ("snappy", "lz4"), ("none", "lz4")):
        sent = registry.encoder(replace(options, large_message_handle_compression=kind)).encode_rows(rows)
        batch = Batch([m.key for m in sent], [m.value for m in sent], range(len(sent)))
        found = decoder(replace(options, large_message_handle_compression=other)).decode(batch)
        assert [bad.value for bad in found.bad] == [m.value for m in sent]
        assert not found.rows
