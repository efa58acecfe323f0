import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tests.tidb.stored import key_datum, known
from tidegate.errors import Undecodable
from tidegate.tidb import datum, keys, memcomparable

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.golden
def test_golden_record_keys_and_spans() -> None:
    for case in lines("keys/table_keys"):
        if case["kind"] != "int_handle":
            continue
        table_id, handle = int(case["table_id"]), int(case["handle"])
        key = keys.int_record(table_id, handle)
        assert key.hex() == case["key"]
        assert keys.parse_record(key).int_handle == handle
        assert keys.parse_record(key).table_id == table_id
        assert keys.table_prefix(table_id).hex() == case["table_prefix"]
        span = keys.record_span(table_id)
        assert (span.start.hex(), span.end.hex()) == (case["cdc_span_start"], case["cdc_span_end"])
        assert memcomparable.encode_bytes(key).hex() == case["region_key"]
        count("keys", "table keys, int handle")


@pytest.mark.golden
def test_golden_common_handles_are_made_of_their_datums_and_padded() -> None:
    for case in lines("keys/table_keys"):
        if case["kind"] != "common_handle":
            continue
        handle = bytes.fromhex(case["handle"])
        key = keys.common_record(int(case["table_id"]), handle)
        assert key.hex() == case["key"]
        assert keys.parse_record(key).is_int is case["decoded_is_int"]
        nulls = [i for i, item in enumerate(case["datums"]) if item["t"] == "null"]
        assert case["handle_columns"] == (nulls[0] if nulls else len(case["datums"]))
        if not all(map(known, case["datums"])):
            count("keys", "table keys, common handle, read only: no weights")
            continue
        made = datum.encode_key(map(key_datum, case["datums"]))
        assert keys.common_record(int(case["table_id"]), made) == key
        count("keys", "table keys, common handle")


@pytest.mark.golden
def test_golden_index_keys_are_made_of_their_datums() -> None:
    for case in lines("keys/table_keys"):
        if case["kind"] != "index_prefix":
            continue
        read = datum.encode_key(datum.read_all(bytes.fromhex(case["key"])[19:]))
        assert keys.index_prefix(int(case["table_id"]), case["index_id"], read).hex() == case["key"]
        if not all(map(known, case["datums"])):
            count("keys", "table keys, index, read only: no weights")
            continue
        made = datum.encode_key(map(key_datum, case["datums"]))
        assert keys.index_prefix(int(case["table_id"]), case["index_id"], made).hex() == case["key"]
        count("keys", "table keys, index")


@pytest.mark.golden
def test_golden_meta_keys() -> None:
    for case in lines("keys/table_keys"):
        if case["kind"] == "meta_hash_key":
            key = keys.meta_hash(case["name"].encode(), case["field"].encode())
            assert key.hex() == case["key"]
            assert keys.meta_hash_prefix(case["name"].encode()).hex() == case["prefix"]
            assert keys.parse_meta(key) == keys.MetaKey(
                case["name"].encode(), keys.HASH_DATA, case["field"].encode()
            )
            count("keys", "table keys, meta")


@given(INT64, st.integers(0, 2**64 - 1))
def test_unsigned_handles_are_the_same_eight_bytes(table_id: int, handle: int) -> None:
    parsed = keys.parse_record(keys.int_record(table_id, handle))
    assert parsed.table_id == table_id
    assert parsed.int_handle & (1 << 64) - 1 == handle


def test_a_plain_meta_string_has_no_field() -> None:
    assert keys.parse_meta(keys.meta_string(b"SchemaVersionKey")).field is None


def test_the_span_holds_the_records_and_no_index() -> None:
    span = keys.record_span(5)
    assert span.contains(keys.int_record(5, -1))
    assert span.contains(keys.common_record(5, b"\x01" * 20))
    assert not span.contains(keys.index_prefix(5, 1))
    assert not span.contains(keys.int_record(6, 0))


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: b"m" + tail))
def test_any_bytes_are_a_key_or_undecodable(data: bytes) -> None:
    for parse in (keys.parse_record, keys.parse_meta):
        with contextlib.suppress(Undecodable):
            parse(data)


def test_an_index_key_is_not_a_record() -> None:
    with pytest.raises(Undecodable):
        keys.parse_record(keys.index_prefix(1, 1, bytes(9)))
