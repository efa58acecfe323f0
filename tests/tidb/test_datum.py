import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tests.tidb.stored import key_datum, kind_of, known, stored_of
from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.schema import Kind
from tidegate.tidb import datum, row
from tidegate.tidb.datum import Datum, Flag
from tidegate.tidb.types import temporal


def in_zone(item: dict[str, Any], zone: str) -> dict[str, Any]:
    """The datum as a session of that zone stores it."""
    if item["t"] != "timestamp" or zone == item["time_zone"]:
        return item
    utc = temporal.to_utc(temporal.parse(item["v"]), temporal.zone(zone))
    return item | {"v": temporal.datetime_text(utc, item["fsp"])}


@pytest.mark.golden
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai"])
def test_golden_key_datums_are_tidbs_bytes_and_come_back(zone: str) -> None:
    suffix = "" if zone == "UTC" else f"_{zone}"
    for case in lines("keys/datums"):
        if f"key{suffix}" not in case:
            continue
        key = bytes.fromhex(case[f"key{suffix}"])
        if not all(map(known, case["datums"])):
            assert b"".join(map(datum.encode, datum.read_all(key))) == key
            count("keys", "datums, key read only: no weights")
        else:
            made = [key_datum(in_zone(item, zone)) for item in case["datums"]]
            assert datum.encode_key(made) == key
            assert [d.value for d in datum.read_all(key)] == [d.value for d in made]
        read = datum.read_all(bytes.fromhex(case[f"value{suffix}"]))
        assert len(read) == len(case["datums"])
        for one, item in zip(read, case["datums"], strict=True):
            assert row.from_datum(one, kind_of(item)) == stored_of(in_zone(item, zone))
        assert b"".join(map(datum.encode, read)).hex() == case[f"value{suffix}"]
        count("keys", f"datums, {zone}")


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


@pytest.mark.parametrize("flag", [Flag.BYTES, Flag.COMPACT_BYTES])
@pytest.mark.parametrize("kind", [Kind.INT, Kind.UINT, Kind.DOUBLE, Kind.DATETIME, Kind.ENUM, Kind.BIT])
def test_bytes_are_no_number(kind: Kind, flag: Flag) -> None:
    """As another table's row under this one's id has them: it is damage, and no reason to stop."""
    with pytest.raises(Undecodable, match="does not fit its column"):
        row.from_datum(Datum(flag, b"{}"), kind)
