"""Blocks encoded one after the other, or at the same time: no encoder writes into the memory of another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codec.cells import block_of
from tests.contracts.codec_rows import golden_rows, messages_of
from tidegate.codec.blocks import Bytes, encode_block, plan_of, printable_bits
from tidegate.codec.formats.json_text import PRINTABLE_SINCE_15, go_printable
from tidegate.codec.registry import codec_options, encoder
from tidegate.errors import InvalidInput
from tidegate.kernel import PAD, address, buffer
from tidegate.model.message import Message
from tidegate.model.row import RowChange, RowChecksum

BUILD_MS = 1_795_246_227_000
SIMPLE = codec_options({"protocol": "simple"})
OPEN = codec_options({"protocol": "open-protocol"})


def rows_of(schema: str) -> list[RowChange]:
    return next(rows for rows in golden_rows() if rows[0].table.schema == schema)


def encoded(rows: list[RowChange], options: Any, build_ms: int) -> list[Message]:
    block = block_of(rows)
    found = encode_block(block, np.zeros(len(rows), dtype=np.int32), options, build_ms)
    return [message for _, message in messages_of(found)]


@pytest.mark.parametrize("options", [SIMPLE, OPEN], ids=["simple", "open"])
def test_encoders_at_the_same_time_write_what_each_was_given(options: Any) -> None:
    """With a time of building of its own each; texts, JSON and numbers, all through the same plans."""
    tables = [rows_of(schema) for schema in ("r_types_texts", "r_types_json", "r_types_ints_signed")]
    wanted = {
        (number, at): encoder(options).encode_rows(rows, BUILD_MS + number)
        for number in range(16)
        for at, rows in enumerate(tables)
    }

    def work(number: int) -> None:
        for _ in range(3):
            for at, rows in enumerate(tables):
                assert encoded(rows, options, BUILD_MS + number) == wanted[number, at]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))


def test_a_plan_lends_its_memory_to_one_encoder_at_a_time() -> None:
    plan = plan_of(block_of(rows_of("r_types_json")).table, SIMPLE, BUILD_MS)
    first, second = plan.bind(BUILD_MS), plan.bind(BUILD_MS + 1)
    assert first.job_at != second.job_at
    assert b"%d" % BUILD_MS in first.data.tobytes()
    assert b"%d" % (BUILD_MS + 1) in second.data.tobytes()
    plan.release(first)
    assert plan.bind(BUILD_MS) is first
    plan.release(first)
    plan.release(second)


def test_memory_is_taken_back_when_a_row_is_refused() -> None:
    rows, small = rows_of("r_types_texts"), replace(SIMPLE, max_message_bytes=400)
    plan = plan_of(block_of(rows).table, small, BUILD_MS)
    for _ in range(3):
        with pytest.raises(InvalidInput, match="larger than one message may be"):
            encoded(rows, small, BUILD_MS)
    assert len(plan.spare) == 1
    fitting = [row for row in rows if len(encoder(SIMPLE).encode_rows([row], BUILD_MS)[0].value or b"") < 300]
    assert encoded(fitting, small, BUILD_MS) == encoder(small).encode_rows(fitting, BUILD_MS)


def test_what_one_block_has_and_the_next_has_not_is_forgotten() -> None:
    """Checksums, and the order of rows over several partitions."""
    stated = codec_options({"protocol": "simple", "integrity-check-level": "correctness"})
    row = rows_of("r_types_ints_signed")[0]
    summed = replace(row, checksum=RowChecksum(1, 2, 0, False))
    one, first = np.zeros(1, dtype=np.int32), block_of([summed])
    assert first.checksums is not None
    encode_block(first, one, stated, BUILD_MS)
    found = encode_block(replace(block_of([row]), checksums=None), one, stated, BUILD_MS)
    assert [message for _, message in messages_of(found)] == encoder(stated).encode_rows([row], BUILD_MS)
    rows = rows_of("r_types_ints_signed")
    block, parted = block_of(rows), (np.arange(len(rows)) % 2).astype(np.int32)
    encode_block(block, parted, OPEN, BUILD_MS)
    assert encoded(rows, OPEN, BUILD_MS) == encoder(OPEN).encode_rows(rows, BUILD_MS)


def test_an_address_is_that_of_the_first_value_whatever_the_array() -> None:
    whole = np.arange(24, dtype=np.int64).reshape(4, 6)
    for array in (whole, whole[1:3], whole[:, :2], whole[::2], np.empty(0), np.frombuffer(b"abc", np.uint8)):
        assert address(array) == array.ctypes.data
    assert address(None) == 0


KEYED = codec_options(
    {"protocol": "canal-json", "flavour": "new", "enable-tidb-extension": True, "output-row-key": True}
)


def test_a_row_key_is_counted_whatever_its_length() -> None:
    """No column tells it; what the kernel does not count it writes behind its buffer."""
    rows = [replace(row, row_key=bytes([i]) * 12_000) for i, row in enumerate(rows_of("r_types_texts")[:20])]
    memory = np.full(1 << 20, 7, dtype=np.uint8)
    wanted, zeros = encoder(KEYED).encode_rows(rows, BUILD_MS), np.zeros(len(rows), dtype=np.int32)
    for size in range(1 << 13, 1 << 18, 1 << 13):

        def taken(asked: int, size: int = size) -> Bytes:
            return memory[:size] if size >= asked + PAD else buffer(asked)

        found = encode_block(block_of(rows), zeros, KEYED, BUILD_MS, taken)
        assert [message for _, message in messages_of(found)] == wanted
        assert (memory[size:] == 7).all()


def test_rows_without_the_keys_that_their_messages_tell_are_not_encoded() -> None:
    block = replace(block_of(rows_of("r_types_texts")), row_keys=None)
    with pytest.raises(AssertionError, match="asks for them"):
        encode_block(block, np.zeros(len(block), np.int32), KEYED, BUILD_MS)


def test_the_table_of_printable_characters_says_what_the_function_says() -> None:
    bits = np.unpackbits(printable_bits(), bitorder="little")
    ends = [end + by for run in PRINTABLE_SINCE_15 for end in run for by in (-1, 0, 1)]
    for code in (*range(0x3000), *ends, *range(0x3000, 0x110000, 97)):
        assert bits[code] == go_printable(chr(code)), hex(code)
