"""Every recorded configuration of messages: its bytes are ours, or it is named as not compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.codec import golden
from tests.codec.test_canal_json import comparable
from tests.codec.test_open_protocol import options_of
from tests.golden_folder import count, lines, names
from tidegate.codec.canal_json import CanalJsonEncoder
from tidegate.codec.open_protocol import OpenProtocolEncoder
from tidegate.errors import InvalidInput

PART = "messages"
ENCODERS = {"open-protocol": OpenProtocolEncoder, "canal-json": CanalJsonEncoder}
Encoder = OpenProtocolEncoder | CanalJsonEncoder


def skip(name: str, why: str, part: str = PART) -> None:
    """Say in the summary of the run that a configuration was not compared."""
    count(part, f"skipped: {name}: {why}")
    pytest.skip(f"{part}/{name}: {why}")


def encoder_of(name: str, config: dict[str, Any]) -> Encoder:
    make = ENCODERS.get(config["protocol"])
    if make is None:
        skip(name, f"protocol {config['protocol']} is not one of ours")
    if "max_message_bytes" not in config:
        skip(name, "of the storage sink")
    assert make is not None
    try:
        return make(options_of(config))
    except InvalidInput as error:
        skip(name, f"refused: {error.what}")
        raise


@pytest.mark.golden
@pytest.mark.parametrize("name", names(PART))
def test_messages_of_any_configuration_are_ticdcs_bytes(name: str) -> None:
    records = lines(f"{PART}/{name}")
    config = next(records)
    encoder = encoder_of(name, config)
    present, lacking = set(names("rows")), Counter[str]()
    for record in records:
        events = record["events"] if record["kind"] == "batch" else [[record.get("case"), record.get("seq")]]
        if record["kind"] == "checkpoint":
            _compare_mark(encoder, record)
            count(PART, f"{name}: checkpoint messages")
        elif events == [[None, None]]:
            lacking[f"{record['kind']} messages"] += 1
        elif record["kind"] == "ddl":
            lacking["DDL messages, whose events are not in rows/"] += 1
        elif any(case not in present for case, *_ in events):
            lacking["messages of cases that rows/ does not have"] += 1
        elif any(seq not in golden.case(case).records for case, seq, *_ in events):
            lacking["messages of rows that TiCDC could not mount"] += 1
        else:
            _compare(encoder, config, record, events)
            count(PART, f"{name}: {record['kind']} messages")
    for why, number in lacking.items():
        count(PART, f"skipped: {name}: {why}", number)


def _compare_mark(encoder: Encoder, record: dict[str, Any]) -> None:
    message = encoder.encode_resolved(record["ts"])
    assert (message is None) == record.get("no_message", False)
    if message is not None:
        value = bytes.fromhex(record["value"])
        same = comparable if b'"mysqlType"' in value else bytes
        assert same(message.value) == same(value), record


def _compare(encoder: Encoder, config: dict[str, Any], record: dict[str, Any], events: list[Any]) -> None:
    zone = config["time_zone"]
    rows = [
        golden.case(case).row(seq, zone, part[0] if part else record.get("part"))
        for case, seq, *part in events
    ]
    if "error" in record:
        with pytest.raises(InvalidInput):
            encoder.encode_rows(rows)
        return
    theirs = record["messages"] if record["kind"] == "batch" else [record]
    ours = encoder.encode_rows(rows)
    assert len(ours) == len(theirs), record
    for message, other in zip(ours, theirs, strict=True):
        assert (message.key.hex() if message.key else None) == (other["key"] or None), record
        value = bytes.fromhex(other["value"])
        if config["protocol"] == "canal-json":
            assert comparable(message.value) == comparable(value), record
        else:
            assert message.value == value, record


@pytest.mark.golden
@pytest.mark.parametrize("name", names("messages_new"))
def test_messages_of_the_new_architecture_are_named(name: str) -> None:
    skip(name, "its bytes are not classic TiCDC's, which ours are", "messages_new")
