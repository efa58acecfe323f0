"""A malformed request is answered with what to correct. It never breaks the server."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from tidegate.api.requests import body_of, number
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.metadata import FeedId
from tidegate.errors import InvalidInput
from tidegate.server.changefeeds.new_feed import Refused, check_new

URI = "kafka://127.0.0.1:9092/t?protocol=open-protocol"
CONFIG = merge_config({}, parse_sink_uri(URI)).to_json()
ODD = [
    None,
    "",
    [],
    {},
    -1,
    1.5,
    True,
    1 << 70,
    "x" * 300,
    "\0",
    ["x"],
    {"a": 1},
    [[]],
    [None],
    "/" + "\\a" * 50,
]


def body(raw: bytes) -> dict[str, Any]:
    """The body of a request that has it."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    return asyncio.run(body_of(Request({"type": "http", "method": "POST", "headers": []}, receive)))


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"[]",
        b'"x"',
        b"\xff",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b"null",
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        body(raw)
    assert len(refused.value.render()) < 500


@pytest.mark.parametrize("value", [-1, 1 << 64, 1.0, "7", True, [7], {}, 1e30])
def test_what_is_no_number_of_64_bits_is_refused(value: object) -> None:
    found = body(json.dumps({"start_ts": value}).encode())
    if value == {}:
        assert number(found, "start_ts") == 0
        return
    with pytest.raises(InvalidInput):
        number(found, "start_ts")


def places(part: Any) -> list[tuple[Any, Any]]:
    """Every member and element of a JSON value, as (its container, its name or index)."""
    pairs = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [found for at, inner in pairs for found in [(part, at), *places(inner)]]


@given(st.data())
def test_a_configuration_with_anything_anywhere_is_taken_or_refused(data: st.DataObject) -> None:
    config = copy.deepcopy(CONFIG)
    for _ in range(data.draw(st.integers(1, 3))):
        container, at = data.draw(st.sampled_from(places(config)))
        container[at] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    try:
        check_new(FeedId("default", "one"), URI, config, 0, 0)
    except InvalidInput as error:
        refused = error.render()
    else:
        refused = ""
    assert len(refused) < 2000


@pytest.mark.parametrize(
    "uri",
    [
        "kafka://[::1/t", "http://[", "kafka://h:99999/t", "kafka://h:-1/t", "kafka://h:\uff19/t", "kafka:///",
        "//", f"{URI}&partition-num=1e3", f"{URI}&max-message-bytes=" + "9" * 5000, f"{URI}&a=" + "b" * 5000,
        "\0kafka://h/t",
    ],
)  # fmt: skip
def test_an_odd_sink_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_new(FeedId("default", "one"), uri, {}, 0, 0)
    assert len(refused.value.render()) < 2000


def test_a_number_beyond_64_bits_is_no_start_ts_to_ignore() -> None:
    with pytest.raises(InvalidInput, match="is not the start-ts of a transaction"):
        check_new(FeedId("default", "one"), URI, {"filter": {"ignore_txn_start_ts": [1 << 70]}}, 0, 0)


@pytest.mark.parametrize("topic", ["{schema}", "{table}_{schema}", "a b", "..", "x" * 250, "{" * 5000])
def test_a_topic_that_cannot_be_named_is_refused_under_ticdcs_code(topic: str) -> None:
    """`{schema}` alone only where a schema registry's subjects are named by the topic."""
    rules = {"sink": {"dispatchers": [{"matcher": ["*.*"], "topic": topic}]}}
    registered = "kafka://h/t?protocol=avro&schema-registry=http%3A%2F%2Fh%3A1"
    for uri in (registered, *([] if topic == "{schema}" else [URI])):
        with pytest.raises(Refused) as refused:
            check_new(FeedId("default", "one"), uri, rules, 0, 0)
        assert refused.value.code == "CDC:ErrKafkaTopicExprInvalid"
        assert len(refused.value.render()) < 2000
        assert refused.value.fix
    if topic == "{schema}":
        check_new(FeedId("default", "one"), URI, rules, 0, 0)
