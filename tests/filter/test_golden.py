"""Every filter case recorded from the real TiCDC; rows go through the plain and the vector path."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from tests.codec.cells import block_of
from tests.codec.golden import case as rows_case
from tests.golden_folder import count, lines
from tidegate.config.reading import config_from_json
from tidegate.config.settings import FilterConfig
from tidegate.errors import Fatal, InvalidInput
from tidegate.filter.event_filter import EventFilter
from tidegate.filter.events import EVENT_OF_ACTION, SCHEMA_ACTIONS
from tidegate.filter.rows import ignored, ignores
from tidegate.tidb.table_filter import found

RENAMES = (14, 47)
RECORDS = list(lines("filters/event_filters"))
FILTERS = [record for record in RECORDS if record["kind"] == "event_filters"]


def made(record: dict[str, Any]) -> EventFilter:
    settings = {"filter": {"event_filters": record["event_filters"] or []}, "sink": {"protocol": "open"}}
    config = config_from_json(settings)
    return EventFilter(config.filter, time_zone=record["time_zone"])


def asked(kind: str, name: str) -> Iterator[dict[str, Any]]:
    return (record for record in RECORDS if record["kind"] == kind and record["filter"] == name)


def broken_regex(record: dict[str, Any]) -> bool:
    """TiCDC logs a broken regular expression and ignores the whole rule; we refuse it."""
    for rule in record["event_filters"] or []:
        for pattern in rule["ignore-sql"] or []:
            try:
                found(pattern, [""])
            except InvalidInput:
                return True
    return False


@pytest.mark.golden
@pytest.mark.parametrize("record", FILTERS, ids=lambda record: record["name"])
def test_golden_filters_are_read_or_refused(record: dict[str, Any]) -> None:
    count("filters", "event filters")
    if record.get("error"):
        with pytest.raises(InvalidInput) as error:
            made(record)
        assert error.value.what == record["error"]
    elif broken_regex(record):
        with pytest.raises(InvalidInput, match="not a regular expression"):
            made(record)
        assert not any(line["ignored"] for line in asked("ddl", record["name"]))
    else:
        made(record)


USABLE = [record for record in FILTERS if not record.get("error") and not broken_regex(record)]


@pytest.mark.golden
@pytest.mark.parametrize("record", USABLE, ids=lambda record: record["name"])
def test_golden_rows_are_dropped_as_ticdc_drops_them(record: dict[str, Any]) -> None:
    verdicts = made(record)
    for name, group in groupby(asked("row", record["name"]), key=lambda line: line["case"]):
        for line in group:
            row = rows_case(name).row(line["seq"])
            count("filters", "rows")
            if "error" not in line:
                rules = verdicts.rules_of(row.table)
                assert ignores(row, rules) is line["dropped"], line
                assert ignored(block_of([row]), rules).tolist() == [line["dropped"]], line
                continue
            for judge in (
                lambda row=row: ignores(row, verdicts.rules_of(row.table)),
                lambda row=row: verdicts.remaining(block_of([row])),
            ):
                with pytest.raises(Fatal) as error:
                    judge()
                assert same_error(error.value, line["error"], row.table.name)


def same_error(ours: Fatal, theirs: str, table: str) -> bool:
    """The same kind of error, about the same column and table, or the same text that is no number."""
    quoted = theirs.rpartition("value: ")[2] if "Truncated" in theirs else theirs.split("'")[1]
    return (
        ours.what.startswith(theirs.partition("]")[0]) and quoted in ours.render() and table in ours.render()
    )


def names_of_events(case: str) -> dict[tuple[int, int], tuple[str, str]]:
    """Job id and number of the event to schema and table, before a rename."""
    found_names = {}
    for record in lines(f"ddl/{case}"):
        for event in (record.get("events") or []) if record["kind"] == "ddl_done" else []:
            info = event["table_info"]
            if event["type"] in RENAMES and event["pre_table_info"]:
                info = event["pre_table_info"]
            found_names[record["job_id"], event["seq"]] = info["schema"], info["table"]
    return found_names


@pytest.mark.golden
@pytest.mark.parametrize("record", USABLE, ids=lambda record: record["name"])
def test_golden_ddls_are_ignored_as_ticdc_ignores_them(record: dict[str, Any]) -> None:
    verdicts = made(record)
    for name, group in groupby(asked("ddl", record["name"]), key=lambda line: line["case"]):
        names = names_of_events(name)
        for line in group:
            schema, table = names[line["job_id"], line["event_index"]]
            answer = verdicts.ignores_statement(line["type"], line["query"], schema, table)
            assert answer is line["ignored"], line
            count("filters", "ddls")


@pytest.mark.golden
def test_golden_kinds_of_ddl_that_ticdc_discards_have_no_event() -> None:
    for record in RECORDS:
        if record["kind"] == "ddl_types":
            for action, discarded, about_schema in record["answers"]:
                count("filters", "kinds of ddl")
                assert discarded is (action not in EVENT_OF_ACTION), action
                assert about_schema is (action in SCHEMA_ACTIONS), action


@pytest.mark.golden
def test_golden_start_ts_are_skipped() -> None:
    for record in RECORDS:
        if record["kind"] == "ignore_start_ts":
            count("filters", "start ts")
            verdicts = EventFilter(FilterConfig(ignore_txn_start_ts=tuple(record["ignore"])))
            assert verdicts.skips(record["start_ts"]) is record["ddl_discarded"]
