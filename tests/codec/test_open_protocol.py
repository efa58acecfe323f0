"""Open-protocol bytes against those of TiCDC's classic encoder."""

from __future__ import annotations

import pytest

from tests.codec import golden
from tidegate.codec.base import CodecOptions, describe
from tidegate.codec.open_protocol import OpenProtocolDecoder, OpenProtocolEncoder
from tidegate.codec.registry import codec_options
from tidegate.errors import InvalidInput

CONFIGS = (
    "open_default",
    "open_delete_handle_only",
    "open_no_old_value",
    "open_updated_only",
    "open_tz_shanghai",
    "open_too_large",
)


def options_of(config: dict) -> CodecOptions:
    named = {name.removeprefix("open."): value for name, value in (config["options"] or {}).items()}
    named |= {"max-message-bytes": config["max_message_bytes"], "max-batch-size": config["max_batch_size"]}
    limit = named.pop("max-message-bytes")
    options = codec_options({"protocol": config["protocol"], **named})
    return CodecOptions(**{f: getattr(options, f) for f in options.__slots__} | {"max_message_bytes": limit})


@pytest.mark.parametrize("name", CONFIGS)
def test_row_messages_are_ticdcs_bytes(name: str) -> None:
    records = golden.lines(f"messages/{name}")
    config = next(records)
    encoder = OpenProtocolEncoder(options_of(config))
    checked = 0
    for record in (r for r in records if r["kind"] == "row"):
        row = golden.case(record["case"]).row(record["seq"], config["time_zone"], record.get("part"))
        if "error" in record:
            with pytest.raises(InvalidInput):
                encoder.encode_rows([row])
        else:
            (message,) = encoder.encode_rows([row])
            assert (message.key.hex(), message.value.hex()) == (record["key"], record["value"]), record
        checked += 1
    assert checked > 100


@pytest.mark.parametrize("name", ["open_batch16", "open_batch_bytes"])
def test_batches_break_where_ticdcs_do(name: str) -> None:
    records = golden.lines(f"messages/{name}")
    config = next(records)
    encoder = OpenProtocolEncoder(options_of(config))
    for record in records:
        if record["kind"] == "batch":
            rows = [golden.case(case).row(seq) for case, seq, *_ in record["events"]]
            messages = [{"key": m.key.hex(), "value": m.value.hex()} for m in encoder.encode_rows(rows)]
            assert messages == [{"key": m["key"], "value": m["value"]} for m in record["messages"]]
        else:
            with pytest.raises(InvalidInput):
                encoder.encode_rows([golden.case(record["case"]).row(record["seq"])])


def test_resolved_marks_and_ddl_are_ticdcs_bytes_and_decode() -> None:
    encoder, decoder = OpenProtocolEncoder(CodecOptions("open-protocol")), OpenProtocolDecoder()
    for record in golden.lines("messages/open_default"):
        if record["kind"] not in ("checkpoint", "ddl"):
            continue
        key, value = bytes.fromhex(record["key"]), bytes.fromhex(record["value"])
        decoded = decoder.decode([key], [value], None, [7])
        if record["kind"] == "checkpoint":
            message = encoder.encode_resolved(record["ts"])
            assert decoded.resolved == [(record["ts"], 7)]
        else:
            (ddl,) = decoded.ddls
            assert (ddl.ts, ddl.query, ddl.action) == (record["commit_ts"], record["query"], record["type"])
            message = encoder.encode_ddl(golden.ddl_event(record, ddl.schema, ddl.table))
        assert (message.key, message.value) == (key, value)


def test_every_golden_row_decodes_to_what_was_encoded() -> None:
    records = list(golden.lines("messages/open_default"))
    rows = [r for r in records if r["kind"] == "row" and "error" not in r]
    decoded = OpenProtocolDecoder().decode(
        [bytes.fromhex(r["key"]) for r in rows],
        [bytes.fromhex(r["value"]) for r in rows],
        None,
        range(len(rows)),
    )
    assert not decoded.bad
    for record, found in zip(rows, describe(decoded), strict=True):
        row = golden.case(record["case"]).row(record["seq"], part=record.get("part"))
        assert golden.same_images(row, found), record["case"]
