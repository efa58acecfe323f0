"""Ticdc-mq: the examples of its document, letter by letter, and the type of every column."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.codec import golden
from tests.golden_folder import names
from tidegate.codec.base import Batch, Decoded, describe
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.protocols.ticdc_mq.plain import MqOptions, TicdcMqDecoder, TicdcMqEncoder, admin
from tidegate.codec.protocols.ticdc_mq.types import TYPES, type_name
from tidegate.codec.registry import canonical
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema

ENCODER = TicdcMqEncoder(MqOptions())
EXAMPLES = {
    "update": (
        """{ "ts":1, "type":"Row", "schema":"schema1", "table":"table1" }""",
        """{ "update":{ "columnName1":{ "type":"Long", "value":7766, "unique":true },
                        "columnName2":{ "type":"Text", "value":"aabb" } } }""",
    ),
    "delete": (
        """{ "ts":1, "type":"Row", "schema":"schema1", "table":"table1" }""",
        """{ "delete":{ "columnName1":{ "type":"Long", "value":7766, "unique":true } } }""",
    ),
    "ddl": (
        """{ "ts":1, "type":"DDL", "schema":"schema1", "table":"table1" }""",
        """{ "query":"drop table a;" }""",
    ),
    "resolved": ("""{ "ts":1, "type":"Resolved" }""", None),
    "admin": ("""{ "type":"Admin" }""", """{ "partition":5 }"""),
}
"""As docs/design/2020-02-24-ticdc-mq-protocol-cn.md of TiCDC shows them."""


def table() -> TableSchema:
    columns = [("columnName1", 3, 3, "binary"), ("columnName2", 252, 0, "utf8mb4")]
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5,
         "type": {"Tp": code, "Flag": flag, "Flen": 11, "Decimal": 0, "Charset": charset, "Elems": None}}
        for i, (name, code, flag, charset) in enumerate(columns)
    ]  # fmt: skip
    return table_schema("schema1", {"id": 1, "name": {"O": "table1"}, "pk_is_handle": True, "cols": cols}, 1)


def ours(example: str) -> Message:
    row = (7766, b"aabb")
    match example:
        case "update":
            return ENCODER.encode_rows([RowChange(table(), 1, 1, 1, 7766, None, row)])[0]
        case "delete":
            return ENCODER.encode_rows([RowChange(table(), 1, 1, 1, 7766, row, None)])[0]
        case "ddl":
            event = DdlEvent(1, 0, 0, 1, 4, "drop table a;", "schema1", "table1", "schema1", "table1", 1,
                             None, None, (), ())  # fmt: skip
            return ENCODER.encode_ddl(event)
        case "resolved":
            return ENCODER.encode_resolved(1)
    return admin(5)


def compact(text: str | None) -> bytes | None:
    """The same members in the same order, without blanks."""
    return None if text is None else json.dumps(json.loads(text), separators=(",", ":")).encode()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_documents_examples_are_what_is_written(example: str) -> None:
    message = ours(example)
    assert (message.key, message.value) == tuple(map(compact, EXAMPLES[example]))
    assert {name for name, _ in message.headers} == ({"tidegate-ddl"} if example == "ddl" else set())


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_documents_examples_are_read_with_their_blanks(example: str) -> None:
    key, value = EXAMPLES[example]
    batch = Batch([key.encode()], [None if value is None else value.encode()], [9])
    decoded = TicdcMqDecoder().decode(batch)
    assert decoded.bad == []
    row = {"offset": 9, "schema": "schema1", "table": "table1", "physical_id": None, "commit_ts": 1}
    expected: dict[str, Any] = {
        "update": row | {"kind": "insert", "new": {"columnName1": 7766, "columnName2": "aabb"}, "old": None},
        "delete": row | {"kind": "delete", "new": None, "old": {"columnName1": 7766}},
        "ddl": {"offset": 9, "kind": "ddl", "ts": 1, "query": "drop table a;", "action": None,
                "schema": "schema1", "table": "table1"},
        "resolved": {"offset": 9, "kind": "resolved", "ts": 1},
        "admin": {"offset": 9, "kind": "repartition", "partitions": 5},
    }  # fmt: skip
    assert describe(decoded) == [expected[example]]
    for rows in decoded.rows:
        assert [column.name for column in rows.columns if column.key] == ["columnName1"]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, b"{}", "the key is missing"),
        (b"[]", b"{}", "the key is not a JSON object"),
        (b'{"ts":1,"type":"row","schema":"s","table":"t"}', b"{}", "unknown type"),
        (b'{"type":"Row","schema":"s","table":"t"}', b'{"delete":{}}', "'ts' is missing"),
        (b'{"ts":1,"type":"Row","schema":"s","table":"t"}', b'{"update":{},"delete":{}}', "an update, or"),
        (
            b'{"ts":1,"type":"Row","schema":"s","table":"t"}',
            b'{"update":{"a":{"type":"Long"}}}',
            "column object",
        ),
        (
            b'{"ts":1,"type":"Row","schema":"s","table":"t"}',
            b'{"update":{"a":{"type":"Lung","value":1}}}',
            "unknown type 'Lung'",
        ),
        (
            b'{"ts":1,"type":"Row","schema":"s","table":"t"}',
            b'{"update":{"a":{"type":"Tiny","value":"1"}}}',
            "holds str",
        ),
        (b'{"ts":1,"type":"Resolved"}', b"{}", "has a value"),
        (b'{"type":"Admin"}', b'{"partition":-1}', "out of range"),
        (b'{"ts":1,"type":"DDL","schema":"s","table":"t"}', None, "the value is missing"),
    ],
)
def test_what_is_no_message_is_set_aside_with_the_reason(
    key: bytes | None, value: bytes | None, why: str
) -> None:
    decoded = TicdcMqDecoder().decode(Batch([key], [value], [9]))
    (bad,) = decoded.bad
    assert why in bad.why
    assert decoded == Decoded(bad=[bad])


def test_every_type_has_a_name_of_its_own_that_leads_back_to_it() -> None:
    assert len(set(TYPES.values())) == len(TYPES)
    seen = set()
    for name in names("rows"):
        for one in golden.case(name).tables.values():
            for column in one.columns:
                unsigned = column.unsigned and column.mysql_type in (1, 2, 3, 8, 9)
                found = column.mysql_type, unsigned, is_binary(column)
                assert TYPES[type_name(column)] == found, (one.name, column.name)
                seen.add(type_name(column))
    assert len(seen) > 20


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"force_replicate": True}, "force-replicate = true cannot be used with protocol = ticdc-mq"),
        ({"sink": {"kafka_config": {"output_raw_change_event": True}}}, "output-raw-change-event"),
        ({"sink": {"only_output_updated_columns": True}}, "ticdc-mq has no such option"),
        ({"sink": {"delete_only_output_handle_key_columns": True}}, "ticdc-mq has no such option"),
    ],
)
def test_what_its_messages_cannot_say_is_refused(settings: dict[str, Any], named: str) -> None:
    uri = parse_sink_uri("kafka://a:1/t?protocol=ticdc-mq")
    assert canonical(merge_config({}, uri)).sink.protocol == "ticdc-mq"
    with pytest.raises(InvalidInput) as error:
        canonical(merge_config(settings, uri))
    assert named in error.value.render()
