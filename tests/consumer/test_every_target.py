"""Every target keeps the promises of `Target`, tested through its verbs alone: see `story`, `each_target`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.each_target import (
    SCHEMA,
    AtDelta,
    AtIceberg,
    AtParquet,
    Killed,
    Place,
)
from tests.consumer.story import STORY, do, done_at, position, resume, settled, state_at
from tidegate.consumer.applying.target import NetChanges, TableChanges, Target
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.errors import Fatal, Fenced, InvalidInput, TidegateError

FIRST_COMMIT = 3
"""Steps of the story up to its first snapshot."""
SECOND_COMMIT, THIRD_COMMIT = 7, 13
ROWS = 5
"""The number of the step that writes into all tables; a commit follows."""
ALTER = 9
"""That of the DDL that changes a table."""
LIVES = 1000
"""Most lives in the test that dies at every write."""


@pytest.fixture(params=["delta", "delta-deletes", "iceberg", "iceberg-deletes", "parquet"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Each target that is a folder. `test_every_served_target` has those at a server."""
    if request.param == "parquet":
        return AtParquet(tmp_path / "target")
    mode = None
    if request.param.endswith("-deletes"):
        deletes_in_small_files(monkeypatch)
        mode = WriteMode.MERGE_ON_READ
    if request.param.startswith("delta"):
        return AtDelta(tmp_path / "target", mode)
    return AtIceberg(tmp_path / "target", mode or WriteMode.COPY_ON_WRITE)


def check(place: Place, target: Target, done: int) -> None:
    """The target holds what its position says. A database may hold a part of what was begun, too."""
    if target.begun is not None:
        assert not place.undoes
        return
    may = [state_at(done)]
    if not place.undoes and done < len(STORY) and STORY[done].ddl is not None:
        may.append(state_at(done + 1))  # its statement has run, and its position is still to move
    assert place.seen() in [{name: sorted(rows, key=repr) for name, rows in one.items()} for one in may]
    if len(may) == 1:
        assert target.definitions.keys() == {(SCHEMA, name) for name in may[0]}


def finish(place: Place) -> None:
    """Do what is left; everything is in, once, and a further restart finds it so."""
    with place.address().opened() as target:
        resume(target)
    with place.address().opened() as target:
        assert done_at(target.recover()) == len(STORY)
        assert target.begun is None
        check(place, target, len(STORY))


def test_a_restart_after_any_step_finds_the_position_and_what_it_says(place: Place) -> None:
    """One that cannot undo has each step; one that can is back at its newest snapshot."""
    committed, kept = 0, None
    for number in range(len(STORY)):
        with place.address().opened() as target:
            held = target.recover()
            done = done_at(held)
            assert done == (committed if place.undoes else number)
            assert target.begun is None
            if committed == number:
                assert held == kept, "as `commit` said that it is kept"
            check(place, target, done)
            for again in range(done, number + 1):
                if (reported := do(target, again)) is not None:
                    assert reported.ts == position(again + 1).ts
                    committed, kept = number + 1, reported
    finish(place)


@pytest.mark.slow
def test_death_at_every_write_loses_and_doubles_nothing(place: Place) -> None:
    """After each write there is, which is before the next. A life dies one write later than the last one did,
    until a death leaves something behind; then the count begins again. Each takeover writes the same, so only
    some lives die in one."""
    # `mysql/test_ddl` dies at each step of the DDLs that rename, empty and drop.
    # Over S3 a life costs ten times as much, and its verbs are those of Delta on a disk.
    until = THIRD_COMMIT if not place.undoes else len(STORY) if place.exclusive else SECOND_COMMIT
    dies_at, takeover, state, lives, moves = 3, 0, place.state(), 0, 0
    while lives < LIVES:
        context, life = place.mortal(dies_at)
        try:
            with context as target:
                done = done_at(target.recover())
                check(place, target, done)
                takeover = 0 if place.undoes else life.steps
                resume_from(target, done, until)
            break
        except Killed:
            lives += 1
        left = place.state()
        moves += left != state
        dies_at = dies_at + 2 if left == state else 3 + (takeover if moves % 8 else 0)
        state = left
    assert place.deaths < lives < LIVES
    finish(place)


def resume_from(target: Target, done: int, until: int = len(STORY)) -> None:
    for number in range(done, until):
        do(target, number)


def test_an_older_open_target_writes_nothing_after_a_takeover(place: Place) -> None:
    """A target fences it, or cannot be taken over before the process that has it ends."""
    with place.address().opened() as old:
        resume(old, ROWS)
        if place.exclusive:
            with pytest.raises(InvalidInput, match="another consumer"), place.address().opened():
                pass
            resume_from(old, ROWS)
        else:
            with place.address().opened() as new:
                resume(new, ROWS + 2)
                before = place.state()
                for number in (ROWS, ROWS + 1, ALTER):
                    with pytest.raises(Fenced):
                        do(old, number)
                    assert place.state() == before
                resume_from(new, ROWS + 2)
    finish(place)


def test_a_second_consumer_of_the_same_tables_is_refused(place: Place) -> None:
    with place.address().opened() as first:
        resume(first, ROWS)
        before = place.seen()
        with pytest.raises(InvalidInput, match="consumer") as refused, place.other().opened() as second:
            resume(second, ROWS)
        assert refused.value.where
        assert refused.value.fix
        assert place.seen() == before
        resume_from(first, ROWS)
    finish(place)


@pytest.mark.parametrize(("done", "table"), [(0, "log"), (FIRST_COMMIT, "seats")], ids=["new", "in use"])
def test_what_is_somebody_elses_is_refused_and_left_as_it_was(place: Place, done: int, table: str) -> None:
    if done:
        with place.address().opened() as target:
            resume(target, done)
    place.put_foreign(table)
    before = place.foreign(table)
    for _ in range(2):
        with pytest.raises(TidegateError) as refused, place.address().opened() as target:
            resume(target)
        assert isinstance(refused.value, Fatal | InvalidInput)
        assert SCHEMA in refused.value.where + refused.value.why
        assert refused.value.fix
        assert place.foreign(table) == before
    place.remove_foreign(table)
    finish(place)


def test_a_table_that_cannot_be_settled_stops_the_write_and_all_writers(place: Place) -> None:
    """The others of the same write may be in or not: the next life brings all of it."""

    def broken() -> TableChanges | None:
        raise Fatal("a value cannot be converted")

    with place.address().opened() as target:
        resume(target, ROWS)
        rows = STORY[ROWS].after["seats"]
        good: NetChanges = lambda: settled(target, "seats", [], rows)  # noqa: E731
        with pytest.raises(Fatal, match="cannot be converted"):
            target.write([good, broken], position(ROWS + 1))
    finish(place)
