import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden import lines
from tests.tidb.stored import kind_of, known, stored_of
from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb import datum, row
from tidegate.tidb.datum import NULL, Datum, Flag


def test_golden_key_datums_are_tidbs_bytes_and_come_back() -> None:
    seen = 0
    for case in lines("keys/datums"):
        if case.get("key_error") or not all(known(item) for item in case["datums"]):
            continue
        made = [
            NULL if item["t"] == "null" else row.to_key_datum(stored_of(item, in_key=True), kind_of(item))
            for item in case["datums"]
        ]
        assert datum.encode_key(made).hex() == case["key"]
        assert [d.value for d in datum.read_all(bytes.fromhex(case["key"]))] == [d.value for d in made]
        seen += 1
    assert seen > 900


def test_golden_values_are_read_to_their_end() -> None:
    for case in lines("keys/datums"):
        read = datum.read_all(bytes.fromhex(case["value"]))
        assert len(read) == len(case["datums"])
        assert b"".join(map(datum.encode, read)).hex() == case["value"]


@given(st.binary(max_size=60))
def test_any_bytes_are_datums_or_undecodable(data: bytes) -> None:
    with contextlib.suppress(Undecodable):
        datum.read_all(data)


@given(st.sampled_from(list(Flag)), st.binary(max_size=40))
def test_any_bytes_after_a_flag_are_a_datum_or_undecodable(flag: Flag, data: bytes) -> None:
    with contextlib.suppress(Undecodable):
        _, end = datum.read(bytes([flag]) + data, 0)
        assert end <= len(data) + 1


def test_a_value_that_does_not_fit_its_flag_is_refused() -> None:
    for wrong in (Datum(Flag.INT, b""), Datum(Flag.BYTES, 1), Datum(Flag.NULL, 0)):
        with pytest.raises(InvalidInput):
            datum.encode(wrong)
    with pytest.raises(InvalidInput):
        datum.encode_key([Datum(Flag.VARINT, 1)])
