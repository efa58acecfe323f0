"""Which files of a table are deleted: a pass over the log decides as loading every version would."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tidegate.sink.lakehouse import table_files
from tidegate.sink.lakehouse.delta_log import FileHistory, checkpoints, needless
from tidegate.sink.lakehouse.store import DiskStore
from tidegate.sink.lakehouse.table_files import COMMITS_A_PIECE, TableFiles
from tidegate.sink.lakehouse.tables import Lakehouse

SCHEMA = pa.schema([("id", pa.int64())])
PATH = "a/b"
FILES = [f"f{number}" for number in range(6)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[set[str]], list[int]]:
    """The files of each version, any of which may come back, and the needed versions."""
    versions = [set(draw(st.sets(st.sampled_from(FILES)))) for _ in range(draw(st.integers(1, 12)))]
    needed = draw(st.sets(st.integers(0, len(versions) - 1), min_size=1))
    return versions, sorted(needed)


@given(histories(), st.booleans())
def test_a_data_file_goes_when_no_needed_version_has_it(
    made: tuple[list[set[str]], list[int]], gaps: bool
) -> None:
    versions, needed = made
    history = FileHistory()
    history.begin(needed[0], versions[needed[0]], 0.0)
    for at in range(needed[0] + 1, len(versions)):
        if gaps and at < needed[-1] and at not in needed:
            continue  # trimmed from the log
        if history.version < at - 1:
            history.begin(at, versions[at], float(at))
            continue
        removed = [(name, False) for name in versions[at - 1] - versions[at]]
        history.commit(at, removed + [(name, True) for name in versions[at]], float(at))
    ends = [*needed, *range(needed[-1] + 1, len(versions))]
    kept = set().union(*(versions[at] for at in ends))
    gone, young = history.unneeded(needed, float(len(versions)))
    assert not young
    assert not kept & set(gone)
    known = set(gone) | kept
    assert known >= set().union(*(versions[at] for at in range(needed[0], len(versions)))) or gaps
    history.forget(gone)
    assert history.unneeded(needed, float(len(versions))) == ([], False)
    assert all(history.knows(name) for name in kept)


def test_a_data_file_that_went_a_moment_ago_stays_for_now() -> None:
    history = FileHistory()
    history.begin(3, ["a", "b"], 0.0)
    history.commit(4, [("a", False), ("c", True)], 100.0)
    history.commit(5, [("b", False)], 200.0)
    assert history.unneeded([5], 99.0) == ([], True)
    assert history.unneeded([5], 150.0) == (["a"], True)
    assert history.unneeded([4, 5], 300.0) == (["a"], False)


def log_of(newest: int, every: int) -> list[str]:
    """The names in a log with a checkpoint at each `every`-th version."""
    commits = [f"{at:020d}.json" for at in range(newest + 1)]
    return [
        *commits,
        *(f"{at:020d}.checkpoint.parquet" for at in range(every, newest + 1, every)),
        "_last_checkpoint",
    ]


def readable(names: list[str], version: int) -> bool:
    """Whether a version can be put together from these files."""
    bases = [at for at in checkpoints(names) if at <= version]
    first = bases[-1] + 1 if bases else 0
    return all(f"{at:020d}.json" in names for at in range(first, version + 1))


@given(
    st.integers(0, 40).flatmap(
        lambda newest: st.tuples(st.just(newest), st.sets(st.integers(0, newest), min_size=1))
    ),
    st.integers(2, 9),
)
def test_a_log_keeps_what_its_needed_versions_are_read_from_and_no_more(
    made: tuple[int, set[int]], every: int
) -> None:
    newest, needed = made[0], sorted(made[1])
    names = log_of(newest, every)
    left = [name for name in names if name not in needless(names, needed)]
    assert "_last_checkpoint" in left
    kept = [*needed, *range(needed[-1], newest + 1)]
    assert all(readable(left, at) for at in kept)
    for name in left:
        if name != "_last_checkpoint" and not name.startswith(f"{newest:020d}"):
            without = [other for other in left if other != name]
            base = name.replace("json", "checkpoint.parquet") in left
            assert base or not all(readable(without, at) for at in kept), name


def dated(folder: Path, age_s: float) -> None:
    then = time.time() - age_s
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A table of 330 versions: appends, and a compaction now and then; two hours old."""
    lake = Lakehouse(tmp_path_factory.mktemp("aged"))
    lake.create(PATH, SCHEMA)
    while lake.version(PATH) < 330:
        lake.append(PATH, pa.table([[lake.version(PATH)]], schema=SCHEMA))
        lake.compact(PATH)
    dated(lake.root, 7200)
    return lake


@pytest.mark.parametrize("stray", [True, False])
def test_a_rename_between_two_pieces_loses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stray: bool
) -> None:
    """It links the files of another table, whose names may be just those that are about to be deleted."""
    monkeypatch.setattr(table_files, "FILES_A_PIECE", 1)
    lake, other = Lakehouse(tmp_path / "lake"), "a/c"
    lake.create(other, SCHEMA)
    for number in range(4):
        lake.append(other, pa.table([[number]], schema=SCHEMA))
    if stray:  # of a rename that was killed before its commit
        lake.create(PATH, SCHEMA)
        for file in lake.files(other):
            os.link(file, tmp_path / "lake" / PATH / file.name)
    else:  # the table was here before, and left
        lake.rename(other, PATH)
        lake.create(PATH, SCHEMA)
    dated(tmp_path, 7200)
    files = lake.files_of(PATH)
    pieces = files.clean([lake.version(PATH)], time.time() - 3600, time.time() - 3600)
    assert next(piece for piece in pieces if piece) == 1
    lake.rename(other, PATH)
    assert sum(pieces) == 0
    assert lake.read(PATH).sort_by("id")["id"].to_pylist() == [0, 1, 2, 3]


def test_named_versions_stay_readable_across_the_gaps_of_a_trimmed_log(aged: Lakehouse) -> None:
    """As delta-rs reads them: also the newest, with and without the hint where the last checkpoint is."""
    lake, folder = aged, aged.root / PATH
    needed = [3, 150, 151, 317, lake.version(PATH)]
    before = {at: (sorted(lake.files(PATH, at)), lake.read(PATH, at).sort_by("id")) for at in needed}
    log = len(list((folder / "_delta_log").iterdir()))
    stray = folder / "part-of-a-killed-write.parquet"
    stray.write_bytes(b"x")
    os.utime(stray, (1, 1))
    young = folder / "part-that-is-being-written.parquet"
    young.write_bytes(b"x")
    now = time.time()
    cleaner = lake.files_of(PATH)
    pieces = list(cleaner.clean(needed, now - 3600, now - 3600))
    assert len(pieces) > 330 // COMMITS_A_PIECE
    assert cleaner.left, "a young file is still to be looked at"
    assert len(list((folder / "_delta_log").iterdir())) < log / 2
    assert not stray.exists()
    assert young.exists()
    for hint in (True, False):
        if not hint:
            (folder / "_delta_log" / "_last_checkpoint").unlink()
        for at in needed:
            assert (sorted(lake.files(PATH, at)), lake.read(PATH, at).sort_by("id")) == before[at]
        assert DeltaTable(folder).version() == needed[-1]
    kept = {file for files, _ in before.values() for file in files}
    assert set(folder.glob("*.parquet")) == kept | {young}
    young.unlink()
    again = lake.files_of(PATH)
    assert sum(again.clean(needed, now, now)) == 0, "another process comes to the same, across the gaps"
    assert not again.left
    lake.append(PATH, pa.table([[1]], schema=SCHEMA))
    assert sum(again.clean([151, lake.version(PATH)], time.time(), 0)) > 0
    assert lake.read(PATH, 151).sort_by("id") == before[151][1]
    assert lake.read(PATH).num_rows == before[needed[-1]][1].num_rows + 1


class Killed(BaseException):
    """Simulates kill -9."""


def test_death_at_any_deletion_leaves_all_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "FILES_A_PIECE", 1)
    lake = Lakehouse(tmp_path)
    lake.create(PATH, SCHEMA)
    for number in range(125):
        lake.append(PATH, pa.table([[number]], schema=SCHEMA))
        lake.compact(PATH)
    dated(lake.root, 7200)
    needed = [60, 110, lake.version(PATH)]
    before = {at: lake.read(PATH, at).sort_by("id") for at in needed}
    deaths = 0
    while True:
        steps = iter(range(8 + deaths % 5))

        def lives_on(steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise Killed

        mortal = TableFiles(
            DiskStore(tmp_path), PATH, lambda at: ([file.name for file in lake.files(PATH, at)], []), lives_on
        )
        try:
            list(mortal.clean(needed, time.time(), time.time()))
            break
        except Killed:
            deaths += 1
        fresh = Lakehouse(tmp_path)
        assert {at: fresh.read(PATH, at).sort_by("id") for at in needed} == before
    assert deaths > 10
    assert {at: Lakehouse(tmp_path).read(PATH, at).sort_by("id") for at in needed} == before


def test_a_version_of_which_the_log_shows_nothing_is_not_old() -> None:
    """A listing may be empty by mistake; files must not be deleted because of that."""
    before = time.time()
    assert table_files._time_of(3, {}) >= before
