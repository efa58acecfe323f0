"""Debezium: DDL and watermarks as TiCDC writes them, what is no message, and the kernels' edges."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec import golden
from tests.codec.cells import block_of
from tests.codec.test_golden_messages import without_clock
from tests.contracts.codec_rows import expected_of, messages_of
from tests.golden_folder import lines, names
from tidegate.codec.base import Batch, WireColumn, describe
from tidegate.codec.blocks import encode_block
from tidegate.codec.decode import decoder
from tidegate.codec.protocols import debezium
from tidegate.codec.protocols.debezium import fields
from tidegate.codec.protocols.debezium.plain import DebeziumDecoder, DebeziumEncoder, DebeziumOptions
from tidegate.codec.protocols.debezium.templates import cells
from tidegate.codec.registry import canonical, codec_options
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.consumer.reading.source import Topic
from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema

EXTENDED = DebeziumOptions(enable_tidb_extension=True)


# --- DDL and watermarks


def definitions() -> dict[tuple[str, int], list[tuple[int, dict[str, Any]]]]:
    """By case and table id what TiDB wrote under the meta key, with its commit ts."""
    found: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = {}
    for case in names("ddl"):
        for record in lines(f"ddl/{case}"):
            if (
                record["kind"] == "meta"
                and (record.get("field") or "").startswith("Table:")
                and record["value"]
            ):
                info = json.loads(bytes.fromhex(record["value"]))
                found.setdefault((case, info["id"]), []).append((record["commit_ts"], info))
    return found


def recorded_events() -> dict[tuple[str, int, int], dict[str, Any]]:
    """TiCDC's events by case, job and number."""
    return {
        (case, record["job_id"], number): event
        for case in names("ddl")
        for record in lines(f"ddl/{case}")
        if record["kind"] == "ddl_done"
        for number, event in enumerate(record["events"] or [])
    }


def event_of(record: dict[str, Any], event: dict[str, Any], known: Any, value: dict[str, Any]) -> DdlEvent:
    """Our event for a recorded message."""
    payload, stated, before = value["payload"], event["table_info"] or {}, event["pre_table_info"] or {}
    schema, table = payload["databaseName"], payload["source"]["table"]
    versions = known.get((record["case"], stated.get("table_id")), [])
    after = [info for ts, info in versions if ts <= record["commit_ts"]]
    return replace(
        golden.ddl_event(record, schema, table),
        after=after[-1] if after else None,
        old_schema=before.get("schema") or schema,
        old_table=before.get("table") or table,
    )


def without_reparsed(value: dict[str, Any]) -> dict[str, Any]:
    """Without what TiCDC takes from the DDL's own text for the columns that stand in it."""
    for change in value["payload"]["tableChanges"]:
        for column in (change["table"] or {}).get("columns", []):
            for name in ("comment", "length", "defaultValueExpression"):
                del column[name]
    return value


def test_ddl_messages_are_ticdcs_but_for_what_it_parses_once_more() -> None:
    known, events, seen = definitions(), recorded_events(), Counter[str]()
    encoder, reader = DebeziumEncoder(EXTENDED), DebeziumDecoder()
    for record in lines("messages/debezium_extension"):
        event = events.get((record.get("case"), record.get("job_id"), record.get("event_index")))
        if record["kind"] != "ddl" or event is None:
            continue
        if record.get("no_message"):
            assert record["type"] in (25, 65, 67)
            seen["ours alone"] += 1
            continue
        theirs = without_clock(bytes.fromhex(record["value"]))
        ddl = event_of(record, event, known, json.loads(theirs))
        message = encoder.encode_ddl(ddl)
        assert message.key == bytes.fromhex(record["key"])
        (found,) = reader.decode(Batch([message.key], [message.value], [3])).ddls
        assert (found.query, found.schema, found.table) == (record["query"], ddl.schema, ddl.table)
        assert message.value is not None
        if record["type"] == 42:
            seen["an exchange, of which ours names the partitioned table"] += 1
        elif message.value == theirs:
            seen["same bytes"] += 1
        else:
            assert without_reparsed(json.loads(message.value)) == without_reparsed(json.loads(theirs))
            seen["parsed once more"] += 1
    assert seen["same bytes"] > 15 * seen["parsed once more"] > 0
    assert seen["ours alone"] > 5


@pytest.mark.golden
def test_schemas_next_to_rows_are_those_of_the_new_architecture() -> None:
    """They tell of commit ts and cluster, and of no start ts, which is a transaction's."""
    options = DebeziumOptions(flavour="new", enable_tidb_extension=True, debezium_include_start_ts=True)
    event = golden.ddl_event({"job_id": 1, "event_index": 0, "commit_ts": 5, "type": 3, "query": ""}, "", "")
    encoder, seen = DebeziumEncoder(options), Counter[str]()
    ours = {"ddl": encoder.encode_ddl(event), "checkpoint": encoder.encode_resolved(5)}
    for record in lines("messages_new/debezium_extension_start_ts"):
        message = ours.get(record["kind"])
        if message is not None and message.value is not None and record.get("value"):
            _, opening, theirs = bytes.fromhex(record["value"]).rpartition(b',"schema":{')
            assert message.value.endswith(opening + theirs)
            seen[record["kind"]] += 1
    assert seen["ddl"] > 200
    assert seen["checkpoint"] == 6


def test_watermarks_decode_and_are_left_out_without_the_extension() -> None:
    message = DebeziumEncoder(EXTENDED).encode_resolved(77)
    assert message is not None
    assert DebeziumDecoder().decode(Batch([message.key], [message.value], [5])).resolved == [(77, 5)]
    assert DebeziumEncoder(DebeziumOptions()).encode_resolved(77) is None


# --- what is no message


def message_with(field: dict[str, Any], value: Any) -> tuple[bytes, bytes]:
    """An insert of one column."""
    source = {"db": "d", "table": "t", "commit_ts": 1}
    payload = {"source": source, "op": "c", "before": None, "after": {"a": value}}
    image = {"type": "struct", "field": "after", "fields": [{"field": "a", **field}]}
    return b'{"payload":{"a":1}}', json.dumps({"payload": payload, "schema": {"fields": [image]}}).encode()


BITS = {"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "9"}}
ENUM = {"type": "string", "name": "io.debezium.data.Enum", "parameters": {"allowed": "a,b\\,c"}}
SET = {"type": "string", "name": "io.debezium.data.EnumSet", "parameters": {"allowed": "x,y"}}
MILLIS = {"type": "int64", "name": "io.debezium.time.Timestamp"}


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ({"type": "int64"}, "1", "holds str"),
        ({"type": "int64"}, 1.5, "does not fit"),
        ({"type": "int64", "tidb_type": "bigint unsigned"}, 1 << 63, "no integer of 64 bits"),
        ({"type": "double", "tidb_type": "decimal"}, "1", "not a number"),
        ({"type": "boolean"}, 1, "not a boolean"),
        ({"type": "int32", "name": "io.debezium.time.Date"}, 2_932_897, "out of range"),
        (MILLIS, -(1 << 62), "out of range"),
        ({"type": "int64", "name": "io.debezium.time.MicroTime"}, 839 * 3_600_000_000, "out of range"),
        (
            {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
            "2020-01-01 00:00:00",
            "no timestamp",
        ),
        (BITS, "AA==", "1 bytes of bits, not 2"),
        (BITS | {"parameters": {"length": "900000000"}}, "AA==", "has the length"),
        (ENUM, "c", "none of its elements"),
        (SET, "x,z", "none of its elements"),
        ({"type": "map"}, "1", "unknown type 'map'"),
        ({"type": "string", "name": "io.debezium.time.Interval"}, "1", "unknown type"),
        ({"type": "string", "tidb_type": "datetime"}, "1", "of 'datetime' is"),
        ({"type": "int64", "tidb_type": "strange"}, 1, "unknown mysqlType"),
    ],
)
def test_what_is_no_value_of_its_field_is_set_aside_with_the_reason(
    field: dict[str, Any], value: Any, why: str
) -> None:
    key, text = message_with(field, value)
    (bad,) = DebeziumDecoder().decode(Batch([key], [text], [9])).bad
    assert why in bad.why


@pytest.mark.parametrize(
    ("field", "value", "decoded"),
    [
        ({"type": "int64", "tidb_type": "bigint unsigned"}, -1, 2**64 - 1),
        ({"type": "int64"}, -1, -1),
        (ENUM, "b,c", 2),
        (ENUM, "", 0),
        (SET, "x,y", 3),
        (SET, "", 0),
        (BITS, "BQE=", 261),
        ({"type": "boolean"}, True, 1),
        (MILLIS, 1_577_934_245_678, "2020-01-02 03:04:05.678"),
        (MILLIS, -1000, "1969-12-31 23:59:59"),
        ({"type": "double", "tidb_type": "decimal"}, 1e21, "1000000000000000000000"),
        ({"type": "int64", "name": "io.debezium.time.MicroTime"}, -1_500_000, "-00:00:01.500000"),
    ],
)
def test_values_are_understood_by_their_field(field: dict[str, Any], value: Any, decoded: Any) -> None:
    key, text = message_with(field, value)
    batch = Batch([key], [text], [9])
    (row,) = describe(DebeziumDecoder().decode(batch))
    assert row["new"] == {"a": decoded}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"payload":{"source":{}}}', "has no schema"),
        (b'{"payload":{"source":{}},"schema":{"fields":[]}}', "'commit_ts' is missing"),
        (b'{"payload":{"source":{"commit_ts":1},"op":"r"},"schema":{"type":"struct"}}', "unknown operation"),
        (b'{"payload":{"source":{"commit_ts":1},"op":"c"},"schema":{"type":"struct"}}', "without its image"),
        (b'{"payload":{"source":{"commit_ts":1}},"schema":{"type":"struct"}}', "'ddl' is missing"),
        (None, "the value is missing"),
    ],
)
def test_what_is_no_message_is_set_aside_with_the_reason(value: bytes | None, why: str) -> None:
    (bad,) = DebeziumDecoder().decode(Batch([b'{"payload":{}}'], [value], [9])).bad
    assert why in bad.why


# --- the kernels' edges


def every_kind() -> TableSchema:
    """Columns of the kinds that this protocol converts, nullable ones and such with a default among them."""
    kinds: list[tuple[str, int, int, int, int, list[str] | None, Any]] = [
        ("id", 8, 3, 20, 0, None, None), ("d", 246, 0, 65, 30, None, None),
        ("e", 246, 0, 18, 4, None, "1.5000"),
        ("day", 10, 1, 10, 0, None, None), ("day_or_null", 10, 0, 10, 0, None, None),
        ("ms", 12, 1, 23, 3, None, None), ("us", 12, 0, 26, 6, None, "2021-02-03 04:05:06.789000"),
        ("ts", 7, 0, 26, 6, None, None), ("clock", 11, 0, 15, 6, None, None),
        ("one", 16, 0, 1, 0, None, None), ("bits", 16, 0, 33, 0, None, None),
        ("en", 247, 0, 1, 0, ["a", "b,c", "", "q\"\\"], "b,c"), ("st", 248, 0, 9, 0, ["x", "y", "z\n"], None),
        ("f", 4, 0, 12, -1, None, None), ("y", 13, 0, 4, 0, None, None), ("big", 8, 32, 20, 0, None, None),
    ]  # fmt: skip
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5, "default": default,
         "type": {"Tp": code, "Flag": flag, "Flen": flen, "Decimal": decimal, "Charset": "binary",
                  "Elems": elems}}
        for i, (name, code, flag, flen, decimal, elems, default) in enumerate(kinds)
    ]  # fmt: skip
    return table_schema("s", {"id": 1, "name": {"O": "t"}, "pk_is_handle": True, "cols": cols}, 1)


TABLE = every_kind()


@st.composite
def decimals(draw: st.DrawFn, whole: int, frac: int) -> str:
    digits = draw(st.text("0123456789", min_size=1, max_size=whole)).lstrip("0") or "0"
    tail = draw(st.text("0123456789", min_size=frac, max_size=frac) | st.just("0" * frac))
    sign = draw(st.sampled_from(["", "-"])) if (digits + tail).strip("0") else ""
    return f"{sign}{digits}.{tail}"


def moments(fsp: int, first: int = 0) -> st.SearchStrategy[str]:
    day = st.tuples(st.integers(first, 9999), st.integers(0, 12), st.integers(0, 31))
    clock = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
    fraction = st.integers(0, 10**fsp - 1) | st.just(0)
    return st.builds(
        lambda d, c, f: f"{d[0]:04d}-{d[1]:02d}-{d[2]:02d} {c[0]:02d}:{c[1]:02d}:{c[2]:02d}.{f:0{fsp}d}",
        day,
        clock,
        fraction,
    )


CLOCKS = st.builds(
    lambda sign, h, m, s, f: f"{sign}{h:02d}:{m:02d}:{s:02d}.{f:06d}",
    st.sampled_from(["", "-"]),
    st.integers(0, 838),
    st.integers(0, 59),
    st.integers(0, 59),
    st.integers(0, 999_999) | st.just(0),
).map(lambda text: "00:00:00.000000" if text.strip("-0:.") == "" else text)
STAMPS = st.datetimes(
    min_value=np.datetime64("1970-01-01T00:00:01").item(),
    max_value=np.datetime64("2038-01-19T03:14:07").item(),
).map(lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S.%f")) | st.just("0000-00-00 00:00:00.000000")
IMAGES = st.tuples(
    st.integers(-(2**63), 2**63 - 1), st.none() | decimals(35, 30), st.none() | decimals(14, 4),
    moments(1).map(lambda text: text[:10]), st.none() | moments(1).map(lambda text: text[:10]),
    moments(3), st.none() | moments(6), st.none() | STAMPS, st.none() | CLOCKS,
    st.none() | st.integers(0, 1), st.none() | st.integers(0, 2**33 - 1),
    st.none() | st.integers(0, 4), st.none() | st.integers(0, 7),
    st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.none() | st.just(0) | st.integers(1901, 2155), st.none() | st.integers(0, 2**64 - 1),
)  # fmt: skip


@given(
    st.lists(st.tuples(st.none() | IMAGES, st.none() | IMAGES), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_kernels_and_plain_code_agree_on_every_kind(images: list[Any], extended: bool, old: bool) -> None:
    rows = [RowChange(TABLE, 5 << 18, 1, 1, 1, before, after) for before, after in images if before or after]
    if not rows:
        return
    options = DebeziumOptions(enable_tidb_extension=extended, debezium_output_old_value=old)
    plain = DebeziumEncoder(options).encode_rows(rows, 7)
    encoded = encode_block(block_of(rows), np.zeros(len(rows), np.int32), options, 7)
    assert [message for _, message in messages_of(encoded)] == plain
    batch = Batch([m.key for m in plain], [m.value for m in plain], range(len(plain)))
    fast = decoder(options)
    fast.decode(batch)
    found = describe(fast.decode(batch))
    assert found == describe(DebeziumDecoder().decode(batch))
    losses = debezium.CODEC.losses(options)
    assert [{k: v for k, v in one.items() if k != "offset"} for one in found] == [
        expected_of(losses, row) for row in rows
    ]


def test_a_templates_columns_are_taken_by_kernels_not_by_the_plain_decoder(monkeypatch: Any) -> None:
    """Otherwise the two would agree whatever the kernels do."""
    image = (1, "1.0", "2.0000", "2020-01-02", None, "2020-01-02 03:04:05.678", None,
             "2020-01-02 03:04:05.000001", "-01:02:03.000004", 1, 7, 2, 3, 1.5, 2020, 2**64 - 1)  # fmt: skip
    rows = [RowChange(TABLE, 5 << 18, 1, 1, 1, None, image)] * 3
    messages = DebeziumEncoder(EXTENDED).encode_rows(rows, 7)
    batch = Batch([m.key for m in messages], [m.value for m in messages], range(3))
    fast = decoder(EXTENDED)
    first = describe(fast.decode(batch))
    monkeypatch.setattr(DebeziumDecoder, "decode", lambda *_: pytest.fail("decoded plainly"))
    assert describe(fast.decode(batch)) == first


def test_a_conversion_marks_what_the_plain_decoder_refuses() -> None:
    def column(field: dict[str, Any]) -> WireColumn:
        return fields.wire_column("a", json.dumps({"field": "a", **field}), False)

    for field, taken in [
        ({"type": "boolean"}, pa.array(["true", "1", None])),
        (BITS, pa.array([b"\1\0", b"\1", None], pa.binary())),
        (ENUM, pa.array(["a", "c", None])),
        (SET, pa.array(["x", "z", None])),
        (MILLIS, pa.array([0, 1 << 62, None])),
        (
            {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
            pa.array(["2020-01-01T00:00:00Z", "1", None]),
        ),
    ]:
        wire = column(field)
        convert = cells(wire).convert
        assert convert is not None
        _, wrong = convert(taken, wire)
        assert wrong.tolist() == [0, 1, 0]


# --- settings


def test_options_come_from_the_uri_and_the_file() -> None:
    uri = parse_sink_uri(
        "kafka://a:1/t?protocol=debezium&debezium-disable-schema=true&enable-tidb-extension=true"
    )
    config = canonical(merge_config({"sink": {"debezium": {"output_old_value": False}}}, uri))
    options = codec_options(config.codec_settings())
    assert isinstance(options, DebeziumOptions)
    assert (options.debezium_disable_schema, options.debezium_output_old_value) == (True, False)
    assert options.enable_tidb_extension


@pytest.mark.parametrize(
    ("settings_", "named"),
    [
        (
            {"force_replicate": True, "sink": {"debezium": {"output_old_value": False}}},
            "[sink.debezium] output-old-value = false",
        ),
        ({"sink": {"debezium": {"include_start_ts": True}}}, "debezium-include-start-ts"),
    ],
)
def test_what_its_messages_cannot_say_is_refused(settings_: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput) as error:
        canonical(merge_config(settings_, parse_sink_uri("kafka://a:1/t?protocol=debezium")))
    assert named in error.value.render()


def test_a_consumer_reads_timestamps_as_utc_whatever_zone_is_set() -> None:
    uri = "kafka://a:1/t?enable-tidb-extension=true&protocol="
    assert Topic(f"{uri}debezium", "Asia/Shanghai").zone == "UTC"
    assert Topic(f"{uri}canal-json", "Asia/Shanghai").zone == "Asia/Shanghai"


def test_a_consumer_does_not_read_messages_without_a_schema() -> None:
    uri = "kafka://a:1/t?protocol=debezium&enable-tidb-extension=true"
    assert Topic(uri).options == EXTENDED
    with pytest.raises(InvalidInput, match="debezium-disable-schema = true cannot be read"):
        Topic(f"{uri}&debezium-disable-schema=true")
