"""Open-protocol bytes against those of TiCDC's classic encoder."""

from __future__ import annotations

from tests.codec import golden
from tidegate.codec.base import Batch
from tidegate.codec.protocols.open_protocol.plain import OpenOptions, OpenProtocolDecoder, OpenProtocolEncoder


def test_resolved_marks_and_ddl_are_ticdcs_bytes_and_decode() -> None:
    encoder, decoder = OpenProtocolEncoder(OpenOptions()), OpenProtocolDecoder()
    for record in golden.lines("messages/open_default"):
        if record["kind"] not in ("checkpoint", "ddl"):
            continue
        key, value = bytes.fromhex(record["key"]), bytes.fromhex(record["value"])
        decoded = decoder.decode(Batch([key], [value], [7]))
        if record["kind"] == "checkpoint":
            message = encoder.encode_resolved(record["ts"])
            assert decoded.resolved == [(record["ts"], 7)]
        else:
            (ddl,) = decoded.ddls
            assert (ddl.ts, ddl.query, ddl.action) == (record["commit_ts"], record["query"], record["type"])
            message = encoder.encode_ddl(golden.ddl_event(record, ddl.schema, ddl.table))
        assert (message.key, message.value) == (key, value)
