"""Values that a target's types cannot hold, in a real target: set aside, counted, never lost in silence."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from tests.consumer.at_delta import applier_of
from tests.consumer.memory_topic import consume
from tests.consumer.one_table import KEY_FLAGS, Mark, OneTable, topic
from tests.consumer.topics import Event
from tidegate.consumer.applying.apply import QUARANTINE
from tidegate.consumer.comparison import canonical
from tidegate.consumer.ddl.ddl_text_plan import KEPT
from tidegate.consumer.delta.target import FOLDER
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import Fatal
from tidegate.model.cells import INSERT, UPDATE
from tidegate.sink import quarantine
from tidegate.verify.target import conformed
from tidegate.workload.definitions import NOT_NULL, ColumnSpec

ID = ColumnSpec("id", 8, 20, flag=KEY_FLAGS)
COLOURS = OneTable.of(
    [ID, ColumnSpec("e", 247, 1, text=True), ColumnSpec("s", 248, 3, text=True)],
    {"e": ["red", "green"], "s": ["a", "b"]},
)


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_a_row_with_an_unknown_enum_element_is_quarantined_alone(tmp_path: Path, protocol: str) -> None:
    """All other rows are applied."""
    table = COLOURS
    events = [
        table.created(),
        table.change(110, None, (1, 2, 3)),
        table.change(111, None, (2, 9, 1)),
        table.change(112, None, (3, 1, 4)),
        table.change(113, (1, 2, 3), (1, 3, 3)),
        table.change(114, None, (4, 0, 0)),
        Mark(120),
    ]
    target = tmp_path / "target"
    applier = applier_of(target)
    consume(topic(events, protocol), target, applier=applier)
    rows = open_snapshot(target).tables["shop.items"].to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "e": "green", "s": "a,b"}, {"id": 4, "e": "", "s": ""}]
    held = quarantine.read(target / FOLDER / QUARANTINE)
    assert [(entry["where"]["table"], entry["row"]["n.id"]) for entry in held] == [
        ("shop.items", 2),
        ("shop.items", 3),
        ("shop.items", 1),
    ]
    assert held[0]["why"] == "column e: number 9, and it has 2 elements"
    assert held[0]["where"]["commit_ts"] == 111
    assert held[1]["why"] == "column s: number 4, and it has 2 elements"
    assert applier.stats.bad_rows == 3
    assert [entry["op"] for entry in held] == [INSERT, INSERT, UPDATE]


def test_a_row_set_aside_is_written_once_however_often_it_is_read(tmp_path: Path) -> None:
    events = [COLOURS.created(), COLOURS.change(110, None, (1, 9, 0)), Mark(111)]
    first, again = tmp_path / "first", tmp_path / "again"
    consume(topic(events), first)
    # A run that was killed after it set the row aside, and before its first snapshot.
    (again / FOLDER / QUARANTINE).parent.mkdir(parents=True)
    shutil.copy(first / FOLDER / QUARANTINE, again / FOLDER / QUARANTINE)
    applier = applier_of(again)
    consume(topic(events), again, applier=applier)
    assert len(quarantine.read(again / FOLDER / QUARANTINE)) == 1
    assert applier.stats.bad_rows == 0


def test_a_full_quarantine_stops_the_consumer_before_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run quarantines the row in a new file and continues after it."""
    events = [COLOURS.created(), COLOURS.change(110, None, (1, 9, 0)), Mark(111)]
    events += [COLOURS.change(112, None, (2, 9, 0)), Mark(113)]
    target = tmp_path / "target"
    monkeypatch.setattr(quarantine.Quarantine.__init__, "__defaults__", (300,))
    with pytest.raises(Fatal, match="quarantine is full") as caught:
        consume(topic(events), target, size=1)
    assert "restart the consumer" in caught.value.fix
    file = target / FOLDER / QUARANTINE
    file.rename(tmp_path / "kept")
    consume(topic(events), target, size=1)
    found = [entry["row"]["n.id"] for entry in quarantine.read(tmp_path / "kept") + quarantine.read(file)]
    assert set(found) == {1, 2}


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_a_truncate_after_a_comment_empties_the_table_without_the_header(
    tmp_path: Path, protocol: str
) -> None:
    table = COLOURS
    events = [
        table.change(110, None, (1, 1, 1)),
        table.ddl(112, 11, "/* nightly */ TRUNCATE TABLE items", table.info),
        table.change(115, None, (2, 1, 1)),
        Mark(120),
    ]
    target = tmp_path / "target"
    consume(topic(events, protocol, header=False), target)
    assert open_snapshot(target).tables["shop.items"].to_arrow()["id"].to_pylist() == [2]


DAYS = OneTable.of(
    [ColumnSpec("d", 10, 10, flag=KEY_FLAGS), ColumnSpec("n", 3, 11, flag=KEY_FLAGS), ColumnSpec("v", 3, 11)]
)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_rows_whose_key_is_no_day_of_the_calendar_stay_one_row_each(
    tmp_path: Path, protocol: str, header: bool
) -> None:
    table, target = DAYS, tmp_path / "target"
    days = ["0000-00-00", "2021-02-31", "2021-00-01", "2021-03-01"]
    events: list[Event] = [table.created()] if header else []
    events += [table.change(110 + at, None, (day, 1, at)) for at, day in enumerate(days)]
    events += [Mark(120)]
    events += [table.change(130 + at, (day, 1, at), (day, 1, at + 10)) for at, day in enumerate(days)]
    events += [table.change(140, ("2021-02-31", 1, 11), None), Mark(150)]
    applier = applier_of(target)
    consume(topic(events, protocol, header), target, size=5, applier=applier)
    rows = open_snapshot(target).tables["shop.items"].to_arrow().sort_by("d").to_pylist()
    assert [(row["d"], row["v"]) for row in rows] == [
        ("0000-00-00", 10),
        ("2021-00-01", 12),
        ("2021-03-01", 13),
    ]
    assert applier.stats.losses.bad_dates == 0


def test_moments_of_a_key_are_text_in_utc_whatever_their_precision(tmp_path: Path) -> None:
    table, target = (
        OneTable.of(
            [ColumnSpec("t", 7, 19, flag=KEY_FLAGS), ColumnSpec("m", 12, 23, decimal=3, flag=KEY_FLAGS)]
        ),
        tmp_path / "target",
    )
    zero = "0000-00-00 00:00:00"
    events = [
        table.created(),
        table.change(110, None, ("2020-01-01 00:00:00", "2020-01-01 00:00:00.120")),
        table.change(111, None, (zero, f"{zero}.000")),
        Mark(120),
    ]
    consume(topic(events), target, applier=applier_of(target, "Asia/Shanghai"))
    rows = open_snapshot(target).tables["shop.items"].to_arrow().sort_by("t").to_pylist()
    assert rows == [
        {"t": f"{zero}.000000", "m": f"{zero}.000000"},
        {"t": "2019-12-31 16:00:00.000000", "m": "2020-01-01 00:00:00.120000"},
    ]


@pytest.mark.parametrize("lost", [False, True])
def test_a_column_that_becomes_part_of_the_key_becomes_text(tmp_path: Path, lost: bool) -> None:
    columns = [ID, ColumnSpec("m", 12, 19, flag=NOT_NULL), ColumnSpec("d", 10, 10, flag=NOT_NULL)]
    before = OneTable.of(columns)
    after = OneTable.of([replace(column, flag=KEY_FLAGS) for column in columns])
    day = "0000-00-00" if lost else "2020-01-01"
    events: list[Event] = [
        before.created(),
        before.change(110, None, (1, "2020-01-01 10:00:00", day)),
        before.ddl(112, 32, "alter table items add primary key (id, m, d)", after.info),
        after.change(114, (1, "2020-01-01 10:00:00", day), None),
        after.change(115, None, (2, "2020-01-02 10:00:00", "0000-00-00")),
        Mark(120),
    ]
    target = tmp_path / "target"
    if lost:
        with pytest.raises(Fatal, match="lost values becomes part of a key") as caught:
            consume(topic(events), target)
        assert "column d" in caught.value.where
        return
    consume(topic(events), target)
    assert open_snapshot(target).tables["shop.items"].to_arrow().to_pylist() == [
        {"id": 2, "m": "2020-01-02 10:00:00.000000", "d": "0000-00-00"}
    ]


def test_a_comparison_reads_the_texts_of_a_key_as_moments() -> None:
    typed = pa.table({"d": [date(2020, 1, 1), None], "m": [datetime(2020, 1, 1, 1), None]})
    typed = typed.cast(pa.schema([("d", pa.date32()), ("m", pa.timestamp("us"))]))
    texts = {
        "d": ["2020-01-01", "0000-00-00"],
        "m": ["2020-01-01 01:00:00.000000", "2021-02-31 00:00:00.000000"],
    }
    assert canonical(pa.table(texts), typed.schema).equals(typed)
    assert conformed(pa.record_batch(texts), typed.schema, "file").equals(typed.to_batches()[0])


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_a_time_shown_with_more_digits_but_no_new_data_stays_one_row(tmp_path: Path, protocol: str) -> None:
    """TiDB keeps the rows and the column's id when it only shows more digits; here a TIME is its text."""
    columns = [ColumnSpec("at", 11, 10, 0, flag=KEY_FLAGS), ColumnSpec("v", 11, 10, 0)]
    before, target = OneTable.of(columns), tmp_path / "target"
    after = OneTable.of([replace(column, flen=14, decimal=3) for column in columns])
    events = [
        before.created(),
        before.change(110, None, ("10:11:12", "-01:00:00")),
        before.change(111, None, ("10:11:13", None)),
        before.ddl(120, 12, "ALTER TABLE items MODIFY at TIME(3) NOT NULL", after.info),
        after.change(130, ("10:11:12.000", "-01:00:00.000"), ("10:11:12.000", "00:00:00.500")),
        Mark(140),
    ]
    consume(topic(events, protocol), target)
    rows = open_snapshot(target).tables["shop.items"].to_arrow().sort_by("at").to_pylist()
    assert rows == [{"at": "10:11:12.000", "v": "00:00:00.500"}, {"at": "10:11:13.000", "v": None}]


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_without_the_header_a_modified_column_is_said_and_older_rows_stay(
    tmp_path: Path, protocol: str
) -> None:
    """No message shows that decimals lost digits: without the note the rows would differ in silence."""
    table = OneTable.of([ID, ColumnSpec("d", 246, 12, 4)])
    after = OneTable.of([ID, ColumnSpec("d", 246, 10, 2)])
    events = [
        table.change(110, None, (1, "4.3250")),
        table.ddl(120, 12, "ALTER TABLE `items` MODIFY COLUMN `d` DECIMAL(10,2)", after.info),
        after.change(130, None, (2, "4.33")),
        Mark(140),
    ]
    applier = applier_of(tmp_path / "target")
    consume(topic(events, protocol, header=False), tmp_path / "target", applier=applier)
    rows = open_snapshot(tmp_path / "target").tables["shop.items"].to_arrow().sort_by("id")
    assert rows["d"].to_pylist() == ["4.3250", "4.33"]
    assert KEPT in applier.stats.guessed["shop.items"]
