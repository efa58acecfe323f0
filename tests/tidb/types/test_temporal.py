import re
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb import datum
from tidegate.tidb.types import temporal


def shown(parts: temporal.Parts, kind: str, fsp: int) -> str:
    return temporal.date_text(parts) if kind == "date" else temporal.datetime_text(parts, fsp)


@pytest.mark.golden
def test_golden_times_have_tidbs_packed_and_core_forms() -> None:
    """Texts that TiDB refuses have no form to compare; it refuses days that it will read (2020-00-00)."""
    for case in lines("keys/times"):
        if case["kind"] == "time":
            continue
        if case.get("error"):
            assert re.search(r"(0000|-00|Incorrect|Truncated)", case["text"] + case["error"])
            count("keys", "times, refused by SQL")
            continue
        assert case["packed_error"] is None
        packed = int(case["packed"])
        assert shown(temporal.unpack(packed), case["kind"], case["fsp"]) == case["string"]
        assert temporal.parse(case["text"]) == temporal.parse(case["string"])
        assert temporal.pack(temporal.parse(case["string"])) == packed
        core = int(case["core_time"], 16)
        assert shown(temporal.unpack_core(core), case["kind"], case["fsp"]) == case["string"]
        count("keys", f"times, {case['kind']}")


@pytest.mark.golden
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"])
def test_golden_timestamps_move_between_utc_and_zones(zone: str) -> None:
    """`codec_ZONE` is what TiDB stores for a timestamp typed in a session of that zone."""
    for case in lines("keys/times"):
        if case["kind"] == "time" or case.get("error"):
            continue
        stored = int(case[f"codec_{zone}"], 16)
        if case["kind"] != "timestamp":
            assert stored == int(case["packed"])
            continue
        in_zone = temporal.in_zone(stored, temporal.zone(zone))
        assert temporal.datetime_text(in_zone, case["fsp"]) == case["string"]
        assert temporal.pack(temporal.to_utc(in_zone, temporal.zone(zone))) == stored
        count("keys", f"times, timestamp in {zone}")


@pytest.mark.golden
def test_golden_durations() -> None:
    for case in lines("keys/times"):
        if case["kind"] != "time" or case["error"] or case["null"]:
            continue
        count("keys", "times, time")
        made = datum.encode(datum.Datum(datum.Flag.DURATION, int(case["nanoseconds"])))
        assert made.hex() == case["key"] == case["value"]
        nanoseconds = int(case["nanoseconds"])
        assert temporal.duration_text(nanoseconds, case["fsp"]) == case["string"]
        assert temporal.parse_duration(case["string"]) == nanoseconds


@given(st.integers(0, 2**64 - 1))
def test_any_packed_time_is_readable_or_undecodable(packed: int) -> None:
    try:
        parts = temporal.unpack(packed)
    except Undecodable:
        return
    assert temporal.pack(parts) == packed
    text = temporal.datetime_text(parts, 6)
    assert temporal.pack(temporal.parse(text)) == packed


@given(st.datetimes(timezones=st.just(UTC)))
def test_dates_come_back(moment: object) -> None:
    text = str(moment)[:26].removesuffix("+00:00")
    parts = temporal.parse(text)
    assert temporal.unpack(temporal.pack(parts)) == parts


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_nanoseconds_are_a_time_of_day_or_undecodable(nanoseconds: int) -> None:
    try:
        text = temporal.duration_text(nanoseconds, 6)
    except Undecodable:
        return
    assert abs(temporal.parse_duration(text) - nanoseconds) < 1000


def test_a_timestamp_without_a_day_is_undecodable_only_in_another_zone() -> None:
    packed = temporal.pack(temporal.Parts(2020, 0, 0, 0, 0, 0, 0))
    assert temporal.in_zone(packed, UTC).month == 0
    with pytest.raises(Undecodable):
        temporal.in_zone(packed, temporal.zone("Asia/Shanghai"))


def test_unknown_zones_are_refused() -> None:
    with pytest.raises(InvalidInput):
        temporal.zone("Mars/Olympus")
    with pytest.raises(InvalidInput):
        temporal.zone("../etc/passwd")


@pytest.mark.parametrize("text", ["", "2020-1-1", "2020-13-01", "2020-01-32", "2020-01-01 24:00:00", "x"])
def test_texts_that_are_no_time_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        temporal.parse(text)
