"""A DDL's statement on its way to targets."""

from __future__ import annotations

import logging

import pytest

from tidegate.model.ddl import DdlEvent
from tidegate.server.catalogue.target_text import for_targets
from tidegate.tidb.sql import lexer


def event(query: str) -> DdlEvent:
    return DdlEvent(7, 0, 1, 2, 3, query, "d", "t", "d", "t", 4, None, None, (), ())


def test_a_statement_goes_out_restored(caplog: pytest.LogCaptureFixture) -> None:
    sent = for_targets(event("create table t (id int primary key clustered)"), "", 0)
    assert sent.query == "CREATE TABLE `t` (`id` INT PRIMARY KEY /*T![clustered_index] CLUSTERED */)"
    assert sent == event(sent.query)
    assert caplog.records == []


def test_a_statement_is_read_as_its_session_did() -> None:
    sent = for_targets(event("create table \"t\" (a char default 'x')"), "latin1", lexer.ANSI_QUOTES)
    assert sent.query == "CREATE TABLE `t` (`a` CHAR DEFAULT _LATIN1'x')"


def test_an_unreadable_ddl_is_sent_as_written_and_a_warning_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = "create table t (a frob)" + " " * 1000
    assert for_targets(event(query), "", 0) == event(query)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == "a DDL goes out as it was written"
    fields = record.__dict__["fields"]
    assert fields == {
        "finished_ts": 2,
        "job": 7,
        "table": "d.t",
        "why": "'frob', not a type",
        "statement": query[:500],
    }
