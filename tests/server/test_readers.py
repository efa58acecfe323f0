"""Readers that nobody reads, in a capture that runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, work

from tidegate.server.changefeeds import readers
from tidegate.workload.bank import BankWorkload

__all__ = ["bank", "capture"]
pytestmark = pytest.mark.integration


def make(running: Running, name: str) -> Any:
    return running.call("POST", "/readers", {"name": name, "tables": ["bank.accounts"], "rows": "typed"})


def look(running: Running) -> set[str]:
    """The readers there are, when those without a query were looked for."""
    found = asyncio.run_coroutine_threadsafe(running.capture.readers.remove_orphans(), running._loop)
    found.result(60)
    return {feed["id"] for feed in running.call("GET", "/changefeeds")["items"]}


def test_a_reader_that_was_never_read_is_removed_and_a_used_one_stays(
    bank: BankWorkload, capture: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Spark checkpoint knows the reader that is removed."""
    work(bank, 10)
    made = {name: make(capture, name) for name in ("read", "never")}
    assert {one["http"] for one in made.values()} == {200}
    columns = capture.call("POST", "/readers/columns", {"name": "read", "tables": ["bank.accounts"]})[
        "columns"
    ]
    asked = {"instance": made["read"]["instance"], "columns": columns, "start": made["read"]["ts"]}
    assert capture.call("POST", "/readers/read/latest", asked)["http"] == 200
    assert look(capture) == {"read", "never"}, "it has an hour"
    monkeypatch.setattr(readers, "ORPHAN_S", -1.0)
    assert look(capture) == {"read"}


def test_a_capture_has_so_many_readers(
    bank: BankWorkload, capture: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "READERS_MAX", 1)
    assert make(capture, "one")["http"] == 200
    refused = make(capture, "two")
    assert (refused["http"], "has 1 readers" in refused["error_msg"]) == (400, True)
    assert make(capture, "one")["http"] == 200


def test_a_capture_whose_workers_are_elsewhere_has_none(
    bank: BankWorkload, capture: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture.capture.readers, "_elsewhere", True)
    refused = make(capture, "one")
    assert (refused["http"], "run on a Spark cluster" in refused["error_msg"]) == (400, True)
