"""How far a batch of a reader goes, and what its tickets are for. The changefeed is a stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.sink.test_kafka_owner import event
from tests.sink.test_reader import Place
from tests.small_tables import ID, _info, number, text

from tidegate.config.sink_uri import reader_uri
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId
from tidegate.errors import InvalidInput, Retryable
from tidegate.server.changefeeds.new_feed import Refused
from tidegate.server.changefeeds.reader_history import Query, columns_of
from tidegate.server.changefeeds.readers import PARTS, _latest, _plan
from tidegate.sink.reader.changes import piece_schema
from tidegate.tidb.table_info import table_schema

NARROW, WIDE = _info(7, "t", [ID, number("n")]), _info(7, "t", [ID, number("n"), text("t")])
ADD_COLUMN = 5
AT = 20
"""The ts of the DDL that adds a column."""


class Reader:
    """A reader of one table with rows and a DDL. Everything up to `resolved` is in its file."""

    def __init__(self, folder: Path, rows: Sequence[int], resolved: int, kind: str = "typed") -> None:
        self.place, self.kind = Place(folder, info=NARROW), kind
        for ts in rows:
            self.place.write(ts)
        self.place.owner.send_ddl(replace(event(AT), table="t", old_table="t", action=ADD_COLUMN, after=WIDE))
        self.place.owner.send_resolved(resolved)
        record = SimpleNamespace(
            plan=SimpleNamespace(folder=folder),
            uri=reader_uri(kind, 3600, 1 << 30),
            config=SimpleNamespace(filter=SimpleNamespace(rules=["`s`.`t`"])),
            life=SimpleNamespace(state=State.NORMAL, error=None),
            shown_state=State.NORMAL,
            info=SimpleNamespace(instance="one"),
        )
        totals = SimpleNamespace(quarantined=0)
        replication = SimpleNamespace(reports=SimpleNamespace(totals=totals))
        self.feed: Any = SimpleNamespace(id=FeedId("default", "r"), record=record, replication=replication)

    def asked(self, start: int) -> Query:
        """A query that expects the columns of rows above `start`."""
        info = NARROW if start < AT else WIDE
        columns = piece_schema(columns_of(table_schema("s", info, 1))) if self.kind == "typed" else None
        return Query("one", columns, 0)

    def latest(self, start: int, *, max_bytes: int = 0, target: int = 0) -> int:
        found: int = _latest(self.feed, self.asked(start), start, max_bytes, target)["upto"]
        return found

    def plan(self, start: int, end: int) -> dict[str, Any]:
        return _plan(self.feed, self.asked(start), start, end)


@pytest.mark.parametrize("kind", ["typed", "generic"])
@pytest.mark.parametrize(
    ("rows", "resolved", "start", "upto"),
    [
        ([11, 30], 40, 10, AT),  # not beyond the DDL, although there are rows
        ([30], 40, 10, AT),  # no rows before the DDL, and the query must reach it
        ([20], 40, 10, AT),
        ([11, 30], 40, AT, 40),  # then beyond it
        ([11], 19, 10, 19),  # the DDL is stored, and a row at its ts may still come
        ([11], 19, 19, 19),
        ([11], 20, 19, AT),
        ([11], 40, AT, AT),  # nothing new: the query waits
    ],
)
def test_a_batch_ends_at_a_ddl(
    tmp_path: Path, kind: str, rows: list[int], resolved: int, start: int, upto: int
) -> None:
    assert Reader(tmp_path, rows, resolved, kind).latest(start) == upto


def test_a_batch_ends_at_its_target_or_where_it_has_enough(tmp_path: Path) -> None:
    reader = Reader(tmp_path, [11, 12, 30], 40)
    assert [reader.latest(10, target=ts) for ts in (11, 15, AT, 35)] == [11, 15, AT, AT]
    assert reader.latest(AT, target=15) == AT, "a target below the start of a reader that was created later"
    assert reader.latest(AT, target=25) == 25, "without rows"
    assert reader.latest(10, max_bytes=1) == 11


def test_a_batch_is_planned_with_the_columns_of_its_rows(tmp_path: Path) -> None:
    reader = Reader(tmp_path, [11, 30], 40)
    made = reader.plan(10, AT)
    assert (len(made["parts"]), made["bytes"]) == (1, reader.place.changes.weight(10, AT))
    with pytest.raises(Refused, match="other columns after ts 20"):
        _plan(reader.feed, reader.asked(10), AT, 40)


def test_rows_of_several_tables_are_divided_into_tasks(tmp_path: Path) -> None:
    assert len(Reader(tmp_path, [11], 40, "generic").plan(10, 40)["parts"]) == PARTS


def test_what_has_not_come_is_not_planned(tmp_path: Path) -> None:
    reader = Reader(tmp_path, [], 25)
    with pytest.raises(Retryable, match="some changes up to ts 26 have not come yet"):
        reader.plan(AT, 26)
    assert reader.plan(AT, 25)["bytes"] == 0


def test_nothing_is_read_below_what_the_query_has_confirmed(tmp_path: Path) -> None:
    reader = Reader(tmp_path, [11, 12], 19)
    reader.place.changes.receive(1, 11, used=True)
    assert reader.latest(11) == 19
    for call in (lambda: reader.latest(10), lambda: reader.plan(10, 12)):
        with pytest.raises(InvalidInput, match="confirmed"):
            call()


def test_nothing_is_read_from_a_reader_that_was_given_up(tmp_path: Path) -> None:
    reader = Reader(tmp_path, [11, 12], 19)
    assert reader.place.changes.stop("silent", reader.place.changes.progress().queried_ms)
    for call in (lambda: reader.latest(10), lambda: reader.plan(10, 12)):
        with pytest.raises(Refused, match="nothing is kept for reader r") as caught:
            call()
        assert caught.value.code == "CDC:ErrReaderSilent"
