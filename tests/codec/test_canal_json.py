"""Canal-JSON against TiCDC's classic encoder; only `ts` and the member order of `mysqlType` may differ."""

from __future__ import annotations

import json
import re

import pytest

from tests.codec import golden
from tidegate.codec.base import Batch
from tidegate.codec.protocols.canal_json.plain import CanalJsonDecoder, CanalJsonEncoder, CanalOptions


def comparable(value: bytes) -> tuple[bytes, dict]:
    """The bytes with `mysqlType` cut out, and `mysqlType` apart; build time 0."""
    types = json.loads(value)["mysqlType"]
    text = re.sub(rb'"ts":\d+', b'"ts":0', value, count=1)
    head, _, rest = text.partition(b',"mysqlType":')
    _, end = json.JSONDecoder().raw_decode(rest.decode("latin-1"))
    return head + rest[end:], types


@pytest.mark.parametrize("name", ["canaljson_default", "canaljson_tidb_extension"])
def test_watermarks_and_ddl_are_ticdcs_bytes_and_decode(name: str) -> None:
    records = golden.lines(f"messages/{name}")
    extension = bool((next(records)["options"] or {}).get("enable-tidb-extension"))
    encoder = CanalJsonEncoder(CanalOptions(enable_tidb_extension=extension))
    decoder = CanalJsonDecoder()
    for record in records:
        if record["kind"] == "checkpoint":
            message = encoder.encode_resolved(record["ts"])
            assert (message is None) == record.get("no_message", False)
        elif record["kind"] == "ddl":
            (ddl,) = decoder.decode(Batch([None], [bytes.fromhex(record["value"])], [3])).ddls
            assert ddl.query == record["query"]
            message = encoder.encode_ddl(golden.ddl_event(record, ddl.schema, ddl.table))
        else:
            continue
        if message is not None:
            assert comparable(message.value) == comparable(bytes.fromhex(record["value"]))


def test_a_watermark_decodes_to_its_timestamp() -> None:
    message = CanalJsonEncoder(CanalOptions(enable_tidb_extension=True)).encode_resolved(77)
    assert message is not None
    assert CanalJsonDecoder().decode(Batch([None], [message.value], [5])).resolved == [(77, 5)]
