"""Canal-JSON against TiCDC's classic encoder; only `ts` and the member order of `mysqlType` may differ."""

from __future__ import annotations

import json
import re

import pytest

from tests.codec import golden
from tests.codec.test_open_protocol import options_of
from tidegate.codec.base import CodecOptions, describe
from tidegate.codec.canal_json import CanalJsonDecoder, CanalJsonEncoder

CONFIGS = (
    "canaljson_default",
    "canaljson_tidb_extension",
    "canaljson_content_compatible",
    "canaljson_delete_handle_only",
    "canaljson_updated_only",
    "canaljson_tz_newyork",
)


def comparable(value: bytes) -> tuple[bytes, dict]:
    """The bytes with `mysqlType` cut out, and `mysqlType` apart; build time 0."""
    types = json.loads(value)["mysqlType"]
    text = re.sub(rb'"ts":\d+', b'"ts":0', value, count=1)
    head, _, rest = text.partition(b',"mysqlType":')
    _, end = json.JSONDecoder().raw_decode(rest.decode("latin-1"))
    return head + rest[end:], types


@pytest.mark.parametrize("name", CONFIGS)
def test_row_messages_are_ticdcs_bytes(name: str) -> None:
    records = golden.lines(f"messages/{name}")
    config = next(records)
    encoder = CanalJsonEncoder(options_of(config))
    checked = 0
    for record in (r for r in records if r["kind"] == "row"):
        row = golden.case(record["case"]).row(record["seq"], config["time_zone"], record.get("part"))
        (message,) = encoder.encode_rows([row])
        assert message.key is None
        assert comparable(message.value) == comparable(bytes.fromhex(record["value"])), record
        checked += 1
    assert checked > 100


@pytest.mark.parametrize("name", ["canaljson_default", "canaljson_tidb_extension"])
def test_watermarks_and_ddl_are_ticdcs_bytes_and_decode(name: str) -> None:
    records = golden.lines(f"messages/{name}")
    encoder, decoder = CanalJsonEncoder(options_of(next(records))), CanalJsonDecoder()
    for record in records:
        if record["kind"] == "checkpoint":
            message = encoder.encode_resolved(record["ts"])
            assert (message is None) == record.get("no_message", False)
        elif record["kind"] == "ddl":
            (ddl,) = decoder.decode([None], [bytes.fromhex(record["value"])], None, [3]).ddls
            assert ddl.query == record["query"]
            message = encoder.encode_ddl(golden.ddl_event(record, ddl.schema, ddl.table))
        else:
            continue
        if message is not None:
            assert comparable(message.value) == comparable(bytes.fromhex(record["value"]))


def test_every_golden_row_decodes_to_what_was_encoded() -> None:
    rows = [r for r in golden.lines("messages/canaljson_tidb_extension") if r["kind"] == "row"]
    values = [bytes.fromhex(r["value"]) for r in rows]
    decoded = CanalJsonDecoder().decode([None] * len(rows), values, None, range(len(rows)))
    assert not decoded.bad
    for record, found in zip(rows, describe(decoded), strict=True):
        row = golden.case(record["case"]).row(record["seq"], part=record.get("part"))
        assert golden.same_images(row, found), record["case"]


def test_a_watermark_decodes_to_its_timestamp() -> None:
    message = CanalJsonEncoder(CodecOptions("canal-json", enable_tidb_extension=True)).encode_resolved(77)
    assert message is not None
    assert CanalJsonDecoder().decode([None], [message.value], None, [5]).resolved == [(77, 5)]
