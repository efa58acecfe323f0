"""The compiled encoders write the plain encoders' bytes."""

from __future__ import annotations

import functools
from json import dumps

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec import golden
from tests.codec.slots import block_of
from tidegate.codec.base import CodecOptions
from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import encoder
from tidegate.errors import InvalidInput
from tidegate.model.message import Message, MessageBlock
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.table_info import table_schema
from tidegate.tidb.types import json

OPTIONS = {
    "open": CodecOptions("open-protocol"),
    "open changed only": CodecOptions("open-protocol", only_output_updated_columns=True),
    "open without old values": CodecOptions("open-protocol", open_output_old_value=False),
    "open row by row": CodecOptions("open-protocol", max_batch_size=1),
    "open small messages": CodecOptions("open-protocol", max_message_bytes=9000, max_batch_size=100),
    "open deletes by key": CodecOptions("open-protocol", delete_only_output_handle_key_columns=True),
    "canal": CodecOptions("canal-json"),
    "canal extended": CodecOptions("canal-json", enable_tidb_extension=True),
    "canal compatible": CodecOptions("canal-json", content_compatible=True),
    "canal changed only": CodecOptions(
        "canal-json", only_output_updated_columns=True, enable_tidb_extension=True
    ),
    "canal deletes by key": CodecOptions("canal-json", delete_only_output_handle_key_columns=True),
}
BUILD_MS = 1_795_246_227_886


def messages_of(block: MessageBlock) -> list[tuple[int, Message]]:
    data = block.data.tobytes()
    found = []
    for i in range(len(block)):
        start, length = int(block.key_start[i]), int(block.key_length[i])
        key = None if length < 0 else data[start : start + length]
        start, length = int(block.value_start[i]), int(block.value_length[i])
        found.append((int(block.partition[i]), Message(key, data[start : start + length])))
    return found


def check(rows: list[RowChange], options: CodecOptions, partition: np.ndarray | None = None) -> None:
    """Compare the compiled encoder with the plain one, partition by partition."""
    if partition is None:
        partition = np.zeros(len(rows), dtype=np.int32)
    plain = encoder(options)
    try:
        expected = {
            int(p): plain.encode_rows([rows[i] for i in np.flatnonzero(partition == p)], BUILD_MS)
            for p in np.unique(partition)
        }
    except InvalidInput as error:
        with pytest.raises(InvalidInput, match=error.what):
            encode_block(block_of(rows), partition, options, BUILD_MS)
        return
    encoded = encode_block(block_of(rows), partition, options, BUILD_MS)
    assert int(encoded.rows.sum()) == len(rows)
    found: dict[int, list[Message]] = {}
    for number, message in messages_of(encoded):
        found.setdefault(number, []).append(message)
    assert found == expected


def golden_rows() -> list[list[RowChange]]:
    """All golden rows that messages were recorded for, by table version."""
    groups: dict[int, list[RowChange]] = {}
    for record in golden.lines("messages/open_default"):
        if record["kind"] == "row":
            row = golden.case(record["case"]).row(record["seq"], part=record.get("part"))
            groups.setdefault(id(row.table), []).append(row)
    return list(groups.values())


@pytest.mark.parametrize("name", OPTIONS)
def test_golden_rows_give_the_same_bytes_compiled_and_plain(name: str) -> None:
    rng = np.random.default_rng(7)
    for rows in golden_rows():
        check(rows, OPTIONS[name], rng.integers(0, 3, len(rows)).astype(np.int32))


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York"])
def test_timestamps_are_moved_to_the_feeds_zone(protocol: str, zone: str) -> None:
    config = {"open-protocol": "open_tz_shanghai", "canal-json": "canaljson_tz_newyork"}[protocol]
    zone = {"open-protocol": "Asia/Shanghai", "canal-json": "America/New_York"}[protocol]
    options = CodecOptions(protocol, time_zone=zone)
    case = golden.case("types_timestamps")
    seqs = [
        r["seq"]
        for r in golden.lines(f"messages/{config}")
        if r.get("case") == "types_timestamps" and "seq" in r
    ]
    local = [case.row(seq, zone) for seq in seqs]
    expected = [m.value for row in local for m in encoder(options).encode_rows([row], BUILD_MS)]
    block = block_of([case.row(seq) for seq in seqs])
    one_by_one = CodecOptions(protocol, time_zone=zone, max_batch_size=1)
    encoded = encode_block(block, np.zeros(len(seqs), dtype=np.int32), one_by_one, BUILD_MS)
    assert [message.value for _, message in messages_of(encoded)] == expected


@pytest.mark.parametrize("name", ["open", "canal extended"])
def test_a_buffer_that_is_too_small_is_grown(name: str) -> None:
    rows = list(next(g for g in golden_rows() if g[0].table.schema == "r_types_chars_utf8mb4"))
    evil = [
        RowChange(
            row.table,
            row.commit_ts,
            row.start_ts,
            row.physical_id,
            row.handle,
            None,
            tuple(b"<" * 50 if isinstance(cell, bytes) else cell for cell in row.new),
        )
        for row in rows
        if row.new is not None
    ] * 50
    check(evil, OPTIONS[name])


TEXTS = st.one_of(
    st.text(max_size=40).map(str.encode),
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"plain text ", b"\x00", b"\x08\x0c", b'"', b"\\", b"<&>", b"\xe2\x80\xa8",
                              b"\xe2\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\x7f", b"\xc2\x85",
                              b"\xf4\x90\x80\x80"]),
             max_size=12).map(b"".join),
)  # fmt: skip


def _cell(draw: st.DrawFn, column: Column) -> Value:
    if column.nullable and draw(st.integers(0, 5)) == 0:
        return None
    match column.kind:
        case Kind.STRING | Kind.BYTES:
            return draw(TEXTS)
        case Kind.INT:
            return draw(st.integers(-(2**63), 2**63 - 1))
        case Kind.UINT:
            return draw(
                st.integers(0, 2**64 - 1) | st.sampled_from([127, 128, 32767, 32768, 2**31 - 1, 2**31, 2**63])
            )
        case Kind.DOUBLE:
            return draw(
                st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1e-6, 1e-7, 1e21, -0.0])
            )
        case Kind.FLOAT:
            return draw(st.floats(width=32, allow_nan=False, allow_infinity=False))
        case Kind.JSON:
            value = draw(st.recursive(
                st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
                ),
                max_leaves=6,
            ))  # fmt: skip
            return json.decode(json.encode(dumps(value)))
    raise AssertionError(column.kind)


@functools.cache
def strange_table() -> TableSchema:
    """One column of every kind whose text is not simply digits, with names that need escapes."""
    kinds = [
        ("id", 8, 3, "binary"), ('q"<', 15, 0, "utf8mb4"), ("Ä", 252, 0, "utf8mb4"),
        ("bin", 15, 128, "binary"),
        ("blob", 252, 128, "binary"), ("j", 245, 128, "binary"), ("f", 4, 0, "binary"), ("d", 5, 0, "binary"),
        ("ut", 1, 32, "binary"), ("us", 2, 32, "binary"), ("ui", 3, 32, "binary"), ("ub", 8, 32, "binary"),
    ]  # fmt: skip
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5,
         "type": {"Tp": code, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": charset, "Elems": None}}
        for i, (name, code, flag, charset) in enumerate(kinds)
    ]  # fmt: skip
    return table_schema("s&", {"id": 1, "name": {"O": "t\u2028"}, "pk_is_handle": True, "cols": cols}, 1)


@st.composite
def strange_rows(draw: st.DrawFn) -> list[RowChange]:
    table, rows = strange_table(), []
    for _ in range(draw(st.integers(1, 5))):
        images = [tuple(_cell(draw, column) for column in table.columns) for _ in range(2)]
        if draw(st.booleans()):
            images[1] = tuple(a if draw(st.booleans()) else b for a, b in zip(*images, strict=True))
        old, new = draw(st.sampled_from([(None, images[0]), (images[0], images[1]), (images[0], None)]))
        rows.append(
            RowChange(table, draw(st.integers(1, 2**63)), 1, 1, draw(st.integers(-5, 2**62)), old, new)
        )
    return rows


@given(strange_rows(), st.sampled_from(sorted(OPTIONS)), st.lists(st.integers(0, 2), min_size=5, max_size=5))
@settings(max_examples=200, deadline=None)
def test_any_row_gives_the_same_bytes_compiled_and_plain(
    rows: list[RowChange], name: str, partitions: list[int]
) -> None:
    check(rows, OPTIONS[name], np.array(partitions[: len(rows)], dtype=np.int32))
