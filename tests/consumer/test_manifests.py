"""The chain of manifests of a change log: what a process finds, and who can add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.consumer.each_target import FilesLife, Killed
from tidegate.consumer.parquet import manifests
from tidegate.consumer.parquet.manifests import (
    CHANGES,
    ChangeFile,
    Commit,
    LoggedDdl,
    Manifest,
    ManifestChain,
    key_of,
)
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable
from tidegate.sink.lakehouse.store import DiskStore
from tidegate.sink.lakehouse.takeover import Writer

NEVER = float("inf")
"""An age that every file has reached."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge after few commits."""
    monkeypatch.setattr(manifests, "MERGED", (3, 9))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path)


def begun(store: DiskStore, name: str = "one") -> ManifestChain:
    chain = ManifestChain(store)
    chain.begin(Writer.of_this_process(name))
    return chain


def file_of(number: int) -> ChangeFile:
    return ChangeFile(f"a/b/{number}.parquet", "a", "b", 7, 1, ("id",), number, number, 1)


def add(chain: ManifestChain, count: int = 1) -> None:
    """Commit as a target does."""
    for _ in range(count):
        held = chain.newest
        assert held is not None
        number = held.number + 1
        ddl = LoggedDdl(number, "a", "b", "alter table b", ({"do": "nothing", "why": "a test"},))
        commit = Commit(number, 10 * number, held.state.writer.word, (file_of(number), ddl))
        state = replace(held.state, position=f"at {number}", tables=(("a", "b", "a/b"),), dropped=(number,))
        chain.append(Manifest(commit, state))


def upkeep(chain: ManifestChain) -> None:
    for _ in chain.merge():
        pass
    chain.thin(NEVER)


def named(chain: ManifestChain, after: int = 0) -> list[int]:
    """The commits that name files."""
    return [commit.number for commit in chain.commits(after) if commit.entries]


def names(store: DiskStore) -> list[str]:
    found = [name.removesuffix(".json").split("-") for name in store.names(CHANGES)]
    return sorted(f"{int(first)}-{int(last)}" for first, last in found)


def test_the_next_process_finds_what_the_last_one_has_committed(store: DiskStore) -> None:
    assert ManifestChain(store).find() is None
    chain = begun(store)
    add(chain, 2)
    assert ManifestChain(store).find() == chain.newest
    upkeep(chain)
    assert ManifestChain(store).find() == chain.newest
    assert list(ManifestChain(store).commits(2)) == [chain.newest.commit] if chain.newest else False
    assert begun(store).newest.state.position == "at 3"  # type: ignore[union-attr]


@pytest.mark.parametrize("later", [0, 1, 40])
def test_a_replaced_process_adds_nothing_however_late_it_wakes(store: DiskStore, later: int) -> None:
    """Also if the manifests since then were merged and removed: its number stays taken."""
    zombie = begun(store)
    add(zombie, 2)
    chain = begun(store)
    add(chain, later)
    upkeep(chain)
    before = {name: store.get(f"{CHANGES}/{name}") for name in store.names(CHANGES)}
    for act in (zombie.check_writer, lambda: add(zombie)):
        with pytest.raises(Fenced, match="taken over"):
            act()
    assert {name: store.get(f"{CHANGES}/{name}") for name in store.names(CHANGES)} == before
    add(chain)
    assert named(chain) == [2, 3, *range(5, 6 + later)]


def test_of_two_that_begin_at_once_the_later_one_stays(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, create = ManifestChain(store), ManifestChain(store), store.create
    raced: list[ManifestChain] = []

    def interrupted(key: str, data: bytes) -> bool:
        if not raced:
            raced.append(other)
            other.begin(Writer.of_this_process("one"))
        return create(key, data)

    monkeypatch.setattr(store, "create", interrupted)
    one.begin(Writer.of_this_process("one"))
    with pytest.raises(Fenced):
        add(other)
    add(one)
    assert named(one) == [3]


def test_a_start_that_was_paused_for_hours_does_not_go_back(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number that it is about to put was another process's, and upkeep has merged and removed it."""
    running, late, create = begun(store), ManifestChain(store), store.create

    def hours() -> None:
        add(running, 11)
        upkeep(running)

    meanwhile = [hours]

    def slow(key: str, data: bytes) -> bool:
        if meanwhile:
            meanwhile.pop()()
        return create(key, data)

    monkeypatch.setattr(store, "create", slow)
    found = late.begin(Writer.of_this_process("one"))
    assert (found.number, found.state.position) == (13, "at 12")
    with pytest.raises(Fenced):
        add(running)
    assert named(late) == list(range(2, 13))


def test_a_log_of_another_consumer_is_refused(store: DiskStore) -> None:
    chain = begun(store)
    with pytest.raises(InvalidInput, match="another consumer"):
        begun(store, "other")
    add(chain)


def test_a_process_that_cannot_get_ahead_of_others_gives_up(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "create", lambda key, data: False)
    with pytest.raises(Retryable, match="could not be taken over"):
        begun(store)


def test_a_put_whose_answer_was_lost_counts(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, create = begun(store), store.create

    def lost(key: str, data: bytes) -> bool:
        create(key, data)
        return create(key, data)  # the library tries once more, and meets our own object

    monkeypatch.setattr(store, "create", lost)
    add(chain, 2)
    assert named(chain) == [2, 3]


def test_death_at_every_write_loses_no_commit(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of merged manifests, and of the removal of those that they replace."""
    create, delete, done = store.create, store.delete, 0
    for dies_at in range(2, 80):
        life = FilesLife(dies_at)
        for name, whole in (("create", create), ("delete", delete)):
            monkeypatch.setattr(store, name, life.watched(whole))
        chain = ManifestChain(store)
        try:
            chain.begin(Writer.of_this_process("one"))
            for _ in range(dies_at):
                add(chain)
                done += 1
                upkeep(chain)
        except Killed:
            # A death after its put leaves a commit that the process does not know of.
            found = named(ManifestChain(store))
            assert done <= len(found) <= done + 1
            done = len(found)
            newest = ManifestChain(store).find()
            assert newest is None or not found or newest.state.position == f"at {found[-1]}"
    assert done > 500


def test_to_open_a_log_reads_no_old_manifest(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = begun(store)
    add(chain, 50)
    got: list[str] = []
    get: Callable[[str], Any] = store.get
    monkeypatch.setattr(store, "get", lambda key: got.append(key) or get(key))
    ManifestChain(store).find()
    assert got == [key_of(52, 52), key_of(51, 51)]


def test_neither_manifests_nor_their_number_grow_with_the_log(store: DiskStore) -> None:
    chain = begun(store)
    add(chain, 8)
    upkeep(chain)
    size = len(store.get(key_of(9, 9)) or b"")
    add(chain, 90)
    upkeep(chain)
    assert len(store.get(key_of(99, 99)) or b"") <= size + 10, "only its numbers have more digits"
    merged = [f"{first + 1}-{first + 9}" for first in range(0, 99, 9)]
    assert names(store) == sorted(["1-1", "99-99", *merged])
    add(chain, 4)
    upkeep(chain)
    assert names(store) == sorted(["1-1", *merged, "100-102", "103-103"])
    assert named(chain, 50) == list(range(51, 104))
    assert named(chain) == list(range(2, 104))


def test_a_merged_manifest_replaces_others_only_when_it_is_old(store: DiskStore) -> None:
    chain = begun(store)
    add(chain, 5)
    for _ in chain.merge():
        pass
    assert chain.thin(0.0) == 0, "a reader may have listed the folder just before"
    assert names(store) == ["1-1", "1-3", "2-2", "3-3", "4-4", "4-6", "5-5", "6-6"]
    assert named(chain) == [2, 3, 4, 5, 6]
    assert chain.thin(NEVER) == 4
    assert names(store) == ["1-1", "1-3", "4-6", "6-6"]


def test_a_listing_that_lacks_the_newest_hides_nothing(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep would take the files of these commits for those of a crash, and remove them."""
    chain = begun(store)
    add(chain, 4)
    listed = store.names(CHANGES)
    monkeypatch.setattr(DiskStore, "names", lambda *given: [name for name in listed if name < f"{5:020d}"])
    assert named(chain) == [2, 3, 4, 5]


def test_a_manifest_of_a_later_release_or_a_missing_one_ends_the_reader(store: DiskStore) -> None:
    chain = begun(store)
    add(chain, 3)
    store.delete([key_of(3, 3)])
    with pytest.raises(Retryable, match="gone"):
        list(chain.commits())
    store.create(key_of(5, 5), b'{"format": 3}')
    with pytest.raises(Fatal, match="cannot be read"):
        ManifestChain(store).find()


def shorten(chain: ManifestChain, upto: int) -> None:
    """Commit that the changes up to a commit are removed."""
    held = chain.newest
    assert held is not None
    state = replace(held.state, removed=upto)
    chain.append(Manifest(Commit(held.number + 1, held.commit.ts + 10, held.state.writer.word), state))


@pytest.mark.parametrize("upto", [1, 2, 4, 9, 10, 25])
def test_a_log_that_was_shortened_begins_behind_what_was_removed(store: DiskStore, upto: int) -> None:
    chain = begun(store)
    add(chain, 14)
    upkeep(chain)
    chain = begun(store)
    add(chain, 14)
    shorten(chain, upto)
    whole = list(chain.commits())
    assert [commit.number for commit in whole] == list(range(upto + 1, 32))
    for _ in range(3):
        chain.forget(upto)
        upkeep(chain)
        reader = ManifestChain(store)
        assert reader.find() == chain.newest
        assert reader.removed == upto
        assert list(reader.commits()) == whole
        assert list(reader.commits(upto + 3)) == whole[3:]
    assert {"1-1", "16-16", "31-31"} <= set(names(store)), "numbers of takeovers stay taken"
    assert not [
        name for name in names(store) if int(name.split("-")[1]) <= upto and name not in ("1-1", "16-16")
    ]


def test_what_follows_a_removed_commit_is_merged(store: DiskStore) -> None:
    chain = begun(store)
    add(chain, 4)
    shorten(chain, 4)
    chain.forget(4)
    add(chain, 12)
    upkeep(chain)
    assert names(store) == ["1-1", "10-18", "18-18", "5-5", "6-6", "7-9"]
    assert named(chain) == [5, *range(7, 19)]


def test_a_replaced_process_adds_nothing_to_a_log_that_was_shortened(store: DiskStore) -> None:
    zombie = begun(store)
    add(zombie, 2)
    chain = begun(store)
    add(chain, 40)
    shorten(chain, 40)
    chain.forget(40)
    upkeep(chain)
    for act in (zombie.check_writer, lambda: add(zombie)):
        with pytest.raises(Fenced, match="taken over"):
            act()
    # It may still merge what it listed before. No reader looks there, and the next removal takes the file.
    store.create(key_of(1, 3), b"{}")
    assert named(begun(store)) == [41, 42, 43, 44]
    chain = begun(store)
    assert chain.removed == 40
    chain.forget(40)
    assert "1-3" not in names(store)


def test_only_a_shortened_log_has_the_format_that_earlier_releases_refuse(store: DiskStore) -> None:
    chain = begun(store)
    add(chain)
    assert orjson.loads(store.get(key_of(2, 2)) or b"")["format"] == 1
    shorten(chain, 1)
    begun(store)
    for number in (3, 4):
        body = orjson.loads(store.get(key_of(number, number)) or b"")
        assert (body["format"], body["removed"]) == (2, 1)
