import contextlib
import json as plain_json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb import datum
from tidegate.tidb.datum import Datum, Flag
from tidegate.tidb.types import json

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8)
DOCUMENTS = st.recursive(
    LEAVES | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.golden
def test_golden_documents_decode_and_encode_as_tidb_does() -> None:
    for case in lines("keys/json"):
        if "error" in case:
            with pytest.raises(InvalidInput):
                json.encode(case["text"])
            count("keys", "json, refused")
            continue
        data = bytes([case["type_code"]]) + bytes.fromhex(case["binary"])
        assert json.decode(data) == case["string"]
        assert json.encode(case["text"]) == data
        read, end = datum.read(bytes.fromhex(case["codec_value"]), 0)
        assert (read, end) == (Datum(Flag.JSON, data), len(data) + 1)
        count("keys", "json")


@given(DOCUMENTS)
def test_documents_come_back(document: object) -> None:
    assert plain_json.loads(json.decode(json.encode(plain_json.dumps(document)))) == document


@given(st.binary(max_size=120))
def test_any_bytes_are_a_document_or_undecodable(data: bytes) -> None:
    with contextlib.suppress(Undecodable):
        json.decode(data)


@given(DOCUMENTS, st.data())
def test_a_damaged_document_is_read_or_undecodable(document: object, data: st.DataObject) -> None:
    encoded = bytearray(json.encode(plain_json.dumps(document)))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Undecodable):
        json.decode(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))


def test_parts_that_overlap_are_refused_before_they_multiply() -> None:
    """40 arrays, each of two entries that point at the same next array: 2**40 leaves if one believed it."""
    size = 18
    blob = b""
    for level in range(40):
        left = 18 * (40 - level)
        blob += (2).to_bytes(4, "little") + left.to_bytes(4, "little")
        blob += 2 * (bytes([3]) + size.to_bytes(4, "little"))
    with pytest.raises(Undecodable):
        json.decode(b"\x03" + blob + bytes(8))


def test_nesting_has_a_limit() -> None:
    assert json.decode(json.encode("[" * 99 + "]" * 99)) == "[" * 99 + "]" * 99
    with pytest.raises(InvalidInput):
        json.encode("[" * 5000 + "]" * 5000)


def test_keys_have_a_limit_and_are_sorted_without_their_values() -> None:
    with pytest.raises(InvalidInput, match="65536 bytes of at most 65535"):
        json.encode('{"' + "k" * 65_536 + '": 1}')
    assert json.decode(json.encode(r'{"\ud800": {}, "\ud801": 1}')) == '{"?": {}, "?": 1}'
