"""Which keys a feed without tables follows, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.codec.registry import canonical, encoder, options_of
from tidegate.config.reading import config_from_json, merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import InvalidInput
from tidegate.model.key_range import KeyRange, after_all, keyspace_of
from tidegate.model.key_text import parse_key
from tidegate.model.span import Span

URI = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol")
TIKV_CDC = "kafka-version=2.4.0&partition-num=6&max-message-bytes=67108864&replication-factor=1"
"""As TiKV-CDC's manual has it."""


def keys(**own: Any) -> KeyRange:
    return KeyRange.of(merge_config({"tidegate": own}, URI))


def test_raw_keys_lie_in_a_keyspace() -> None:
    assert keys(kv_mode="rawkv") == KeyRange(Span(b"r\0\0\0", b"r\0\0\1"), 4)
    assert keys(kv_mode="rawkv", keyspace_id=7, start_key="61", end_key="62").span == Span(
        b"r\0\0\x07a", b"r\0\0\x07b"
    )
    assert keys(kv_mode="rawkv", keyspace_id=0xFFFFFF).span == Span(b"r\xff\xff\xff", b"s")


def test_transactional_keys_lie_in_a_keyspace_or_in_none() -> None:
    assert keys(kv_mode="txnkv", key_prefix="61ff") == KeyRange(Span(b"a\xff", b"b"), 0)
    assert keys(kv_mode="txnkv") == KeyRange(Span(b"", b""), 0)
    assert keys(kv_mode="txnkv", keyspace_id=0, start_key="61") == KeyRange(Span(b"x\0\0\0a", b"x\0\0\1"), 4)


@pytest.mark.parametrize(
    ("span", "keyspace"),
    [
        (Span(b"x\0\0\7", b"x\0\0\x08"), 7),
        (Span(b"x\0\0\7a", b"x\0\0\7b"), 7),
        (Span(b"x\0\0\7", b"x\0\0\x09"), -1),
        (Span(b"x\0\0\7", b""), -1),
        (Span(b"x\0", b"x\1"), -1),
        (Span(b"t\0\0\7", b"t\0\0\x08"), -1),
    ],
)
def test_a_span_may_lie_in_a_keyspace(span: Span, keyspace: int) -> None:
    assert keyspace_of(span) == keyspace


@given(st.binary(max_size=4), st.binary(max_size=5))
def test_a_prefix_ends_where_its_keys_end(prefix: bytes, key: bytes) -> None:
    end = after_all(prefix)
    assert key.startswith(prefix) == (prefix <= key and (not end or key < end))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"kv_mode": "raw"}, "'raw' is not a value of option 'tidegate.kv-mode'"),
        ({"kv_mode": "rawkv", "start_key": "6"}, "option 'tidegate.start-key' is not hex: '6'"),
        ({"kv_mode": "rawkv", "start_key": "62", "end_key": "61"}, "not a range"),
        ({"kv_mode": "rawkv", "start_key": "62", "key_prefix": "61"}, "not a range"),
        ({"kv_mode": "rawkv", "keyspace_id": 1 << 24}, "there is no keyspace 16777216"),
        ({"keyspace": "tenant"}, "kv-mode = 'tidb' cannot be used with keyspace"),
        ({"start_key": "61"}, "kv-mode = 'tidb' cannot be used with start-key"),
        (
            {"kv_mode": "rawkv", "initial_load": True},
            r"(?s)'rawkv' cannot be used with initial-load.*raw keys have no snapshot.*--start-ts 1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(own: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        keys(**own)


@pytest.mark.parametrize(
    "protocol", ["", "&protocol=open-protocol", "&protocol=default", "&protocol=kv-json"]
)
@pytest.mark.parametrize("kv_mode", ["txnkv", "rawkv"])
def test_what_tikv_cdc_takes_for_its_one_form_is_taken_here(kv_mode: str, protocol: str) -> None:
    uri = parse_sink_uri(f"kafka://127.0.0.1:9092/t?{TIKV_CDC}{protocol}")
    config = canonical(merge_config({"tidegate": {"kv_mode": kv_mode}}, uri))
    assert config.sink.protocol == "kv-json"
    assert config_from_json(config.to_json()) == config
    options = options_of(config)
    assert options.protocol == "kv-json"
    with pytest.raises(InvalidInput, match="it has keys, not rows"):
        encoder(options)


@pytest.mark.parametrize(
    ("kv_mode", "protocol", "words"),
    [
        ("rawkv", "canal-json", "a changefeed of keys cannot be written as 'canal-json'.*open-protocol"),
        ("txnkv", "avro", "a changefeed of keys cannot be written as 'avro'.*leave protocol out"),
        ("tidb", "kv-json", "protocol 'kv-json' is for keys without tables.*--kv-mode"),
        ("tidb", "", "a topic needs a protocol"),
    ],
)
def test_other_forms_are_refused_with_what_to_do(kv_mode: str, protocol: str, words: str) -> None:
    uri = parse_sink_uri(f"kafka://127.0.0.1:9092/t?protocol={protocol}")
    with pytest.raises(InvalidInput, match=f"(?s){words}"):
        canonical(merge_config({"tidegate": {"kv_mode": kv_mode}}, uri))


@pytest.mark.parametrize(
    ("text", "written", "key"),
    [
        ("00ff61", "hex", b"\0\xffa"),
        ("é\\", "raw", "é\\".encode()),
        (r"a\x00\n\\\"\101é", "escaped", b'a\0\n\\"A' + "é".encode()),
    ],
)
def test_keys_are_read_as_they_are_written(text: str, written: str, key: bytes) -> None:
    assert parse_key(text, written) == key


@pytest.mark.parametrize(
    ("text", "written", "words"),
    [
        ("6", "hex", "'6' is not a key written as hex"),
        ("a\\q", "escaped", "is not a key written as escaped.*a backslash"),
        ("a", "base64", "keys cannot be written as 'base64'.*hex, raw, escaped"),
    ],
)
def test_keys_written_otherwise_are_refused(text: str, written: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=f"(?s){words}"):
        parse_key(text, written)


def test_settings_of_tables_do_not_go_with_keys() -> None:
    settings = {"tidegate": {"kv_mode": "rawkv"}, "filter": {"rules": ["a.*"]}}
    with pytest.raises(InvalidInput, match=r"cannot be used with \[filter\] rules"):
        merge_config(settings, URI)
