"""`integrity.verify-encoded`: whatever a message says otherwise than its row is found, and named.

That what is encoded is read back as it was, for every protocol: `tests/contracts/test_codecs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codec.cells import block_of
from tests.contracts.codec_rows import golden_rows
from tidegate.codec.base import CodecOptions
from tidegate.codec.blocks import encode_block
from tidegate.codec.entry import Loss
from tidegate.codec.large import HANDLE_KEY_ONLY
from tidegate.codec.readback import Misencoded, ReadBack, is_compared
from tidegate.codec.registry import canonical, codec_of, codec_options, row_protocols, unverified
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import InvalidInput
from tidegate.model.message import MessageBlock
from tidegate.model.row import RowChange
from tidegate.model.schema import Kind

BUILD_MS = 1_795_246_227_886
OPEN = codec_options({"protocol": "open-protocol"})
CANAL = codec_options({"protocol": "canal-json", "enable-tidb-extension": True})
SIMPLE = codec_options({"protocol": "simple"})
DEBEZIUM = codec_options({"protocol": "debezium", "enable-tidb-extension": True})
AVRO = codec_options({"protocol": "avro", "enable-tidb-extension": True})
MARKED_AVRO = codec_options(
    {"protocol": "avro", "enable-tidb-extension": True, "avro-enable-watermark": True}
)
Change = Callable[[bytes], bytes]


def table_rows(schema: str) -> list[RowChange]:
    return next(rows for rows in golden_rows() if rows[0].table.schema == schema)


def compared(options: CodecOptions, rows: list[RowChange], change: Change = bytes) -> list[Misencoded]:
    """Faults found in the messages of these rows after their values were changed."""
    block, partition = block_of(rows), np.zeros(len(rows), dtype=np.int32)
    return ReadBack(options).compare(
        block, changed(encode_block(block, partition, options, BUILD_MS), change), partition
    )


def changed(messages: MessageBlock, change: Change) -> MessageBlock:
    """The messages with other values, as an encoder with a defect would have made them."""
    data = messages.data.tobytes()
    parts: list[bytes] = []
    for start, length in zip(messages.value_start.tolist(), messages.value_length.tolist(), strict=True):
        parts.append(b"" if length < 0 else change(data[start : start + length]))
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    lengths[messages.value_length < 0] = -1
    ends = len(data) + np.cumsum(np.maximum(lengths, 0))
    return replace(
        messages,
        data=np.frombuffer(data + b"".join(parts), dtype=np.uint8),
        value_start=ends - np.maximum(lengths, 0),
        value_length=lengths,
    )


def once(old: bytes, new: bytes) -> Change:
    """Replaces the first occurrence in all messages together."""
    left = [1]

    def change(value: bytes) -> bytes:
        if left[0] and old in value:
            left[0] = 0
            return value.replace(old, new, 1)
        return value

    return change


NUMBERS = "r_types_ints_signed"


@pytest.mark.parametrize(
    ("options", "old", "new"),
    [
        (OPEN, b'"v":-32768', b'"v":-32767'),
        (CANAL, b'"c2":"-32768"', b'"c2":"-32767"'),
        (SIMPLE, b'"c2":"-32768"', b'"c2":"-32767"'),
        (DEBEZIUM, b'"c2":-32768', b'"c2":-32767'),
    ],
    ids=["open", "canal", "simple", "debezium"],
)
def test_a_value_that_is_another_is_found_and_named(options: CodecOptions, old: bytes, new: bytes) -> None:
    rows = table_rows(NUMBERS)
    (found,) = compared(options, rows, once(old, new))
    of = next(row for row in rows if row.commit_ts == found.commit_ts)
    assert of.new is not None
    assert (found.table, found.column, found.why) == (of.table.name, "c2", "it has another value")
    assert found.row == f"id = {of.new[[c.name for c in of.table.columns].index('id')]}"
    assert new in (found.value or b"")
    assert f"commit ts {of.commit_ts}, column c2: it has another value" in found.render()
    assert "-32767" not in found.render()


def test_a_bit_of_avro_that_is_another_is_found() -> None:
    """Flip one bit in every byte of a message after its schema's number."""
    rows = [row for row in table_rows("r_types_chars_utf8mb4") if row.is_insert][:1]
    block, partition = block_of(rows), np.zeros(1, dtype=np.int32)
    encoded = encode_block(block, partition, MARKED_AVRO, BUILD_MS)
    start, length = int(encoded.value_start[0]), int(encoded.value_length[0])
    missed = []
    for at in range(5, length):
        data = encoded.data.copy()
        data[start + at] ^= 1
        if not ReadBack(MARKED_AVRO).compare(block, replace(encoded, data=data), partition):
            missed.append(at)
    # The message also has the row's time in milliseconds, which no reader uses.
    assert len(missed) <= 7


CANAL_FIRST = table_rows("r_evolution_modify")


@pytest.mark.parametrize(
    ("options", "change", "column", "why"),
    [
        (CANAL, once(b'"c":"x"', b'"c":null'), "c", "it is NULL"),
        (CANAL, once(b'"b":"one","c":"x"', b'"b":"x","c":"one"'), "b", "it has another value"),
        (CANAL, once(b',"c":"x"', b""), "c", "it is not there"),
        (CANAL, once(b'"commitTs":4', b'"commitTs":5'), "", "its commit ts is 5"),
        (CANAL, once(b'"table":"t"', b'"table":"u"'), "", "it is a row of r_evolution_modify.u"),
        (CANAL, once(b'"type":"INSERT"', b'"type":"DELETE"'), "", "its operation is delete, not insert"),
        (CANAL, once(b'{"id":0', b'["id":0'), "", "its message cannot be read back"),
        (CANAL, once(b'"type":"INSERT"', b'"type":"TIDB_WATERMARK"'), "", "its message holds no such row"),
        (OPEN, once(b'"u":', b'"x":'), "", "cannot be read back"),
    ],
)  # fmt: skip
def test_whatever_else_is_not_as_it_was_is_found(
    options: CodecOptions, change: Change, column: str, why: str
) -> None:
    found = compared(options, CANAL_FIRST, change)
    assert found[0].column == column
    assert why in found[0].why


def test_an_update_without_its_old_value_is_found() -> None:
    (found,) = compared(CANAL, table_rows(NUMBERS), once(b'"type":"UPDATE"', b'"type":"INSERT"'))
    assert (found.column, found.why) == ("", "its operation is insert, not update")


def test_an_update_that_changes_nothing_may_be_an_insert() -> None:
    options = codec_options({"protocol": "open-protocol", "only-output-updated-columns": True})
    row = next(row for row in table_rows(NUMBERS) if row.is_insert)
    assert compared(options, [replace(row, old=row.new)]) == []
    (found,) = compared(OPEN, [replace(row, old=row.new)], once(b',"p":{', b',"q":{'))
    assert found.why == "its operation is insert, not update"


def test_a_null_that_changes_places_with_a_value_is_found() -> None:
    """A sum alone does not tell it: NULL adds nothing to it."""
    table = table_rows("r_types_chars_utf8mb4")[0].table
    texts = [i for i, column in enumerate(table.columns) if column.kind is Kind.STRING and column.nullable]
    first = next(row for row in table_rows("r_types_chars_utf8mb4") if row.is_insert)
    assert first.new is not None
    image = [None if i in texts else cell for i, cell in enumerate(first.new)]
    for at in texts:
        image[at] = b"moved" if at == texts[0] else None
    moved = [None if i in texts else cell for i, cell in enumerate(first.new)]
    moved[texts[1]] = b"moved"
    rows, others = [replace(first, new=tuple(image))], [replace(first, new=tuple(moved))]
    partition = np.zeros(1, dtype=np.int32)
    found = ReadBack(CANAL).compare(
        block_of(rows), encode_block(block_of(others), partition, CANAL, BUILD_MS), partition
    )
    assert [one.why for one in found] == ["it is NULL"]


def test_rows_in_one_anothers_place_are_found() -> None:
    """A message of a batch of two partitions went to the other partition."""
    rows = table_rows(NUMBERS)[:6]
    assert len(rows) == 6
    block, partition = block_of(rows), (np.arange(6) % 2).astype(np.int32)
    encoded = encode_block(block, partition, OPEN, BUILD_MS)
    assert ReadBack(OPEN).compare(block, encoded, partition) == []
    swapped = replace(encoded, partition=1 - encoded.partition)
    assert len(ReadBack(OPEN).compare(block, swapped, partition)) == 6
    lost = replace(encoded, rows=encoded.rows - 1)
    assert [one.why for one in ReadBack(OPEN).compare(block, lost, partition)] == [
        "the messages do not have as many rows for each partition as there are"
    ]
    one, elsewhere = np.zeros(6, dtype=np.int32), np.ones(1, dtype=np.int32)
    encoded = replace(encode_block(block, one, OPEN, BUILD_MS), partition=elsewhere)
    assert len(ReadBack(OPEN).compare(block, encoded, one)) == 1


def test_a_row_of_which_only_the_key_is_sent_is_not_compared() -> None:
    reducing: dict[str, Any] = {"large_message_handle_option": HANDLE_KEY_ONLY, "max_message_bytes": 1024}
    options = replace(CANAL, **reducing)
    rows = [row for row in table_rows("r_types_blobs") if row.is_insert]
    encoded = encode_block(block_of(rows), np.zeros(len(rows), dtype=np.int32), options, BUILD_MS)
    assert b"onlyHandleKey" in encoded.data.tobytes()
    assert compared(options, rows) == []


def test_a_row_marked_as_corrupted_is_not_compared() -> None:
    options = codec_options({"protocol": "simple", "integrity-check-level": "correctness"})
    rows = [
        replace(row, checksum=row.checksum._replace(corrupted=True))
        for row in table_rows("r_checksum_ints_unsigned")
        if row.checksum is not None
    ]
    assert rows
    assert compared(options, rows) == []


@pytest.mark.parametrize("name", row_protocols())
def test_a_text_that_cannot_be_said_is_no_mismatch(name: str) -> None:
    """The loss is documented: U+FFFD replaces the value, or the message is refused."""
    options = MARKED_AVRO if name == "avro" else codec_options({"protocol": name} | _marks(name))
    row = next(row for row in table_rows("r_types_chars_utf8mb4") if row.is_insert)
    at = next(i for i, column in enumerate(row.table.columns) if column.kind is Kind.STRING)
    assert row.new is not None
    for text in (b"a\xffb", b"\xe2\x80", b"\xe2\x80\xe2\x80z"):
        assert compared(options, [replace(row, new=(*row.new[:at], text, *row.new[at + 1 :]))]) == []


def test_what_a_protocol_says_that_it_loses_is_left_out() -> None:
    table = table_rows("r_types_datetimes")[0].table
    lossy = [
        column for column in table.columns if not is_compared(column, codec_of(DEBEZIUM).losses(DEBEZIUM))
    ]
    assert {column.kind for column in lossy} == {Kind.DATETIME}
    for options in (OPEN, CANAL, SIMPLE, AVRO):
        assert all(is_compared(column, codec_of(options).losses(options)) for column in table.columns)


def test_a_reader_that_has_lost_a_definition_meets_it_again() -> None:
    rows = table_rows(NUMBERS)
    reader, block, partition = ReadBack(SIMPLE), block_of(rows), np.zeros(len(rows), dtype=np.int32)
    encoded = encode_block(block, partition, SIMPLE, BUILD_MS)
    for _ in range(2):
        assert reader.compare(block, encoded, partition) == []


def test_protocols_whose_messages_tell_no_types_are_refused_in_words() -> None:
    plain = codec_options({"protocol": "debezium"})
    bare = codec_options(
        {"protocol": "debezium", "debezium-disable-schema": True, "enable-tidb-extension": True}
    )
    assert "without enable-tidb-extension=true" in unverified(codec_of(plain), plain)
    assert "debezium-disable-schema = true" in unverified(codec_of(bare), bare)
    checking = {"integrity": {"verify_encoded": True}}
    with pytest.raises(
        InvalidInput, match="verify-encoded = true cannot be used with protocol debezium"
    ) as caught:
        canonical(merge_config(checking, parse_sink_uri("kafka://a:1/t?protocol=debezium")))
    assert "without enable-tidb-extension=true" in caught.value.why
    stated = canonical(merge_config(checking, parse_sink_uri("kafka://a:1/t?protocol=canal-json")))
    assert stated.integrity.verify_encoded
    with pytest.raises(InvalidInput, match=r"\[integrity\]"):
        merge_config(checking | {"tidegate": {"kv_mode": "txnkv"}}, parse_sink_uri("kafka://a:1/t"))
    for options in (plain, bare):
        with pytest.raises(InvalidInput, match="cannot be read back"):
            ReadBack(options)
    usual = [codec_options({"protocol": name}) for name in row_protocols()]
    others = [options.protocol for options in usual if unverified(codec_of(options), options)]
    assert others == ["debezium"]
    assert Loss.TYPES in codec_of(plain).losses(plain)


@pytest.mark.parametrize("name", row_protocols())
def test_another_value_in_any_column_is_found_and_the_column_named(name: str) -> None:
    """In the message of each recorded row one value is changed: a different column in each row."""
    options = MARKED_AVRO if name == "avro" else codec_options({"protocol": name} | _marks(name))
    losses, reader, kinds = codec_of(options).losses(options), ReadBack(options), set[Kind]()
    for rows in golden_rows():
        row = next((one for one in rows if one.is_insert), None)
        if row is None or row.new is None:
            continue
        changes = {
            column.name: (*row.new[:at], other, *row.new[at + 1 :])
            for at, column in enumerate(row.table.columns)
            if (other := _other(column.kind, row.new[at])) is not None and is_compared(column, losses)
        }
        if changes:
            kinds |= {column.kind for column in row.table.columns if column.name in changes}
            partition = np.zeros(len(changes), dtype=np.int32)
            others = block_of([replace(row, new=image) for image in changes.values()])
            messages = encode_block(others, partition, options, BUILD_MS)
            found = reader.compare(block_of([row] * len(changes)), messages, partition)
            assert [one.column for one in found] == list(changes)
    assert len(kinds) >= (6 if Loss.CALENDAR in losses else 9)


def _marks(name: str) -> dict[str, Any]:
    return {"enable-tidb-extension": True} if re.search("json|debezium", name) else {}


def _other(kind: Kind, value: Any) -> Any:
    """Another value of the kind; None: there is none at hand."""
    match kind, value:
        case _, None:
            return None
        case ((Kind.INT | Kind.UINT | Kind.BIT), int()):
            return value ^ 1
        case ((Kind.FLOAT | Kind.DOUBLE), float()):
            return 1.5 if value != 1.5 else 2.5
        case ((Kind.STRING | Kind.BYTES), bytes()):
            return value + b"x"
        case Kind.DATE, str():
            return "2001-02-03" if value != "2001-02-03" else "2001-02-04"
        case Kind.YEAR, int():
            return 1999 if value != 1999 else 2000
    return None
