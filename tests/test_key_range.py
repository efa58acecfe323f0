"""Which keys a feed without tables follows, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config import merge_config, parse_sink_uri
from tidegate.errors import InvalidInput
from tidegate.model.key_range import KeyRange, after_all
from tidegate.model.span import Span

URI = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol")


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


@given(st.binary(max_size=4), st.binary(max_size=5))
def test_a_prefix_ends_where_its_keys_end(prefix: bytes, key: bytes) -> None:
    end = after_all(prefix)
    assert key.startswith(prefix) == (prefix <= key and (not end or key < end))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"kv_mode": "raw"}, "'raw' is not a value of option 'tidegate.kv-mode'"),
        ({"kv_mode": "rawkv", "start_key": "6"}, "Option 'tidegate.start-key' is not hex: '6'"),
        ({"kv_mode": "rawkv", "start_key": "62", "end_key": "61"}, "no range"),
        ({"kv_mode": "rawkv", "start_key": "62", "key_prefix": "61"}, "no range"),
        ({"kv_mode": "rawkv", "keyspace_id": 1 << 24}, "There is no keyspace 16777216"),
        ({"start_key": "61"}, "kv-mode = 'tidb' does not go with start-key"),
        ({"kv_mode": "txnkv", "initial_load": True}, "kv-mode = 'txnkv' does not go with initial-load"),
    ],
)
def test_what_makes_no_sense_is_refused(own: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        keys(**own)


def test_settings_of_tables_do_not_go_with_keys() -> None:
    settings = {"tidegate": {"kv_mode": "rawkv"}, "filter": {"rules": ["a.*"]}}
    with pytest.raises(InvalidInput, match=r"does not go with \[filter\] rules"):
        merge_config(settings, URI)
