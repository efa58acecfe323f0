"""Maxwell's messages: as TiCDC wrote them, several rows in one, and such as are none."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.codec import golden
from tests.contracts.codec_rows import expected_of, golden_rows
from tests.contracts.maxwell_writer import MaxwellWriter
from tidegate.codec.base import Batch, Decoded, describe
from tidegate.codec.decode import decoder
from tidegate.codec.protocols.maxwell import CODEC
from tidegate.codec.protocols.maxwell.plain import ROWS, MaxwellOptions, objects
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_timed
from tidegate.consumer.topic_check import check_topic
from tidegate.errors import InvalidInput

OPTIONS = MaxwellOptions()
WRITER = MaxwellWriter(OPTIONS)


def decoded(*messages: tuple[bytes | None, bytes | None]) -> Decoded:
    keys, values = zip(*messages, strict=True)
    return decoder(OPTIONS).decode(Batch(keys, values, range(len(keys))))


def row(**members: Any) -> bytes:
    whole = {"database": "d", "table": "t", "type": "insert", "ts": 5} | members
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def test_the_writer_of_the_tests_writes_what_ticdc_wrote() -> None:
    compared = 0
    for record in golden.lines("messages/maxwell"):
        if record["kind"] == "row" and "error" not in record:
            found = WRITER.batch([golden.case(record["case"]).row(record["seq"])])
            assert (found.key, found.value) == (bytes.fromhex(record["key"]), bytes.fromhex(record["value"]))
            compared += 1
    assert compared == 300


def test_the_kind_of_ddl_is_decoded_if_it_means_one_action() -> None:
    stated = set()
    for record in golden.lines("messages/maxwell"):
        if record["kind"] == "ddl" and "error" not in record:
            (ddl,) = decoded((bytes.fromhex(record["key"]), bytes.fromhex(record["value"]))).ddls
            assert ddl.action in (None, record["type"])
            assert ddl.ts == record["commit_ts"]
            stated.add(ddl.action)
    assert {None, 3, 4} <= stated


def test_rows_of_many_tables_in_one_message_come_in_their_order() -> None:
    rows = [row for rows in golden_rows() for row in rows[:3]]
    message = WRITER.batch(rows)
    found = describe(decoded((message.key, message.value)))
    assert [one.pop("offset") for one in found] == [0] * len(rows)
    assert found == [expected_of(CODEC.losses(OPTIONS), row) for row in rows]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (b'{"a":1}{"b":"}{"}{"c":"\\"}{"}', [b'{"a":1}', b'{"b":"}{"}', b'{"c":"\\"}{"}']),
        (b'{"a":"}{', [b'{"a":"}{']),
        (b"", [b""]),
        (b"}{}{", [b"}", b"{}", b"{"]),
    ],
)
def test_objects_are_parted_where_one_ends_and_not_within_texts(value: bytes, parts: list[bytes]) -> None:
    assert list(objects(value)) == parts


def test_a_text_without_an_end_is_passed_over_once() -> None:
    """Each of its quotes could open a text that has no end either; 4 MB of them would take hours."""
    value = b'{"a":"' + b'\\"' * 2_000_000
    assert list(objects(value)) == [value]
    assert decoded((ROWS, value)).bad


@pytest.mark.parametrize(
    ("images", "of_type", "new", "old"),
    [
        ({"data": {"a": 1}}, pa.int64(), 1, None),
        ({"data": {"a": 1 << 63}}, pa.uint64(), 1 << 63, None),
        ({"data": {"a": 1.5}}, pa.float64(), 1.5, None),
        ({"data": {"a": "1"}}, pa.string(), "1", None),
        ({"data": {"a": None}}, pa.string(), None, None),
        ({"type": "update", "data": {"a": None}, "old": {"a": 7}}, pa.int64(), None, 7),
        ({"type": "update", "data": {"a": 3}, "old": {"a": 0.5}}, pa.float64(), 3.0, 0.5),
        ({"type": "update", "data": {"a": -1}, "old": {"a": 1 << 63}}, pa.float64(), -1.0, 2.0**63),
        ({"type": "update", "data": {"a": 3}}, pa.int64(), 3, 3),
        ({"type": "delete", "old": {"a": 3}}, pa.int64(), None, 3),
    ],
)
def test_a_column_is_what_its_values_in_the_row_are(
    images: dict[str, Any], of_type: pa.DataType, new: Any, old: Any
) -> None:
    (table,) = decoded((ROWS, row(**images))).rows
    assert table.columns[0].type == of_type
    found = [None if image is None else image.column("a").to_pylist()[0] for image in (table.new, table.old)]
    assert found == [new, old]
    assert int(table.commit_ts[0]) == 5000 << 18


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (ROWS, None, "have a value"),
        (ROWS, b"[]", "not a JSON object"),
        (ROWS, row(data={"a": 1}) + b"{", "unexpected end"),
        (ROWS, row(data={"a": 1})[:-1], "unexpected"),
        (ROWS, row(type="upsert", data={"a": 1}), "unknown type 'upsert'"),
        (ROWS, row(type=...), "'type' is missing"),
        (ROWS, row(), "insert without its image"),
        (ROWS, row(type="delete", data={"a": 1}), "delete without its image"),
        (ROWS, row(data={"a": 1}, old={"a": 2}), "insert with two images"),
        (ROWS, row(type="update", data={"a": 1}, old={"b": 2}), "columns that the after image has not"),
        (ROWS, row(data={"a": True}), "column 'a' holds bool"),
        (ROWS, row(data={"a": [1]}), "column 'a' holds list"),
        (ROWS, row(type="update", data={"a": 1}, old={"a": "1"}), "column 'a' holds int and str"),
        (ROWS, row(ts=-1, data={"a": 1}), "out of range"),
        (ROWS, row(ts=1 << 37, data={"a": 1}), "out of range"),
        (ROWS, row(database=..., data={"a": 1}), "'database' is missing"),
        (b"\0\0\0\0\0\0\0\2", row(data={"a": 1}), "neither a batch of version 1 nor"),
        (None, row(data={"a": 1}), "neither a batch of version 1 nor"),
        (b'{"t":1}', b'{"ts":1,"sql":""}', "no DDL"),
        (b'{"t":2}', b'{"ts":1}', "'sql' is missing"),
    ],
)
def test_what_is_no_message_is_set_aside_whole(key: bytes | None, value: bytes | None, why: str) -> None:
    sound = row(data={"a": 1})
    found = decoded((ROWS, sound), (key, value), (ROWS, sound))
    assert [(bad.offset, bad.key, bad.value) for bad in found.bad] == [(1, key, value)]
    assert why in found.bad[0].why
    assert [int(offset) for table in found.rows for offset in table.offset] == [0, 2]


TOPIC = "kafka://127.0.0.1:1/t?protocol=maxwell"


def test_a_topic_of_it_is_read_in_row_mode_alone_and_not_checked() -> None:
    topic = Topic(TOPIC)
    with pytest.raises(InvalidInput, match="cannot be consumed into tables") as caught:
        check_timed(topic)
    assert "no watermarks" in caught.value.why
    assert "--mode row" in caught.value.fix
    with pytest.raises(InvalidInput, match="cannot be checked") as caught:
        check_topic(topic)
    assert "seconds only" in caught.value.why
    check_timed(Topic(TOPIC, by_offset=True))
