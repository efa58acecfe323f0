"""The chain of catalogs of Iceberg tables in a bucket, on a disk: each number is put once, however late.

`test_iceberg_in_s3` has the same over a real server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.consumer.iceberg import catalog_chain
from tidegate.consumer.iceberg.catalog_chain import FOLDER, CatalogChain, key_of
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable
from tidegate.sink.lakehouse.store import DiskStore
from tidegate.sink.lakehouse.takeover import Writer

TABLES = {("bank", "accounts"): "bank/accounts-1a2b3c4d/metadata/00001-x.metadata.json"}
MORE = TABLES | {("bank", "orders"): "bank/orders-5e6f7a8b/metadata/00000-y.metadata.json"}


def begun(root: Path, name: str = "one") -> CatalogChain:
    chain = CatalogChain(DiskStore(root))
    chain.begin(Writer.of_this_process(name))
    return chain


def numbers(root: Path) -> list[int]:
    return sorted(int(file.stem) for file in (root / FOLDER).iterdir())


def test_the_newest_object_is_the_catalog(tmp_path: Path) -> None:
    assert CatalogChain(DiskStore(tmp_path)).find() is None
    chain = begun(tmp_path)
    assert chain.newest is not None
    assert chain.newest.tables == {}
    chain.append(TABLES)
    chain.append(MORE)
    found = CatalogChain(DiskStore(tmp_path)).find()
    assert found is not None
    assert (found.number, found.tables, found.begun) == (3, MORE, (1,))
    again = begun(tmp_path)
    assert again.newest is not None
    assert (again.newest.number, again.newest.tables, again.newest.begun) == (4, MORE, (1, 4))


def test_a_process_that_was_replaced_adds_nothing_however_late(tmp_path: Path) -> None:
    old = begun(tmp_path)
    old.append(TABLES)
    new = begun(tmp_path)
    for at in range(3):
        new.append(TABLES if at % 2 else MORE)
    new.thin(time.time() + 1)
    assert numbers(tmp_path) == [1, 3, 6], "takeovers stay, and the newest"
    for _ in range(2):
        with pytest.raises(Fenced, match="was taken over") as fenced:
            old.append({})
        assert "consumer one, process" in fenced.value.why
        with pytest.raises(Fenced):
            old.check_writer()
        with pytest.raises(Fenced):
            old.thin(time.time() + 1)
    assert numbers(tmp_path) == [1, 3, 6]
    new.check_writer()
    new.append(MORE)


def test_objects_stay_until_a_newer_one_is_old(tmp_path: Path) -> None:
    chain = begun(tmp_path)
    for _ in range(3):
        chain.append(TABLES)
    assert chain.thin(time.time() - 3600) == 0
    assert chain.thin(time.time() + 1) == 2
    assert numbers(tmp_path) == [1, 4]


def test_a_listing_that_lacks_the_newest_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = begun(tmp_path)
    chain.append(TABLES)
    chain.append(MORE)
    names = DiskStore.names
    monkeypatch.setattr(DiskStore, "names", lambda *of: [one for one in names(*of) if "03" not in one])
    found = CatalogChain(DiskStore(tmp_path)).find()
    assert found is not None
    assert found.tables == MORE


def test_an_object_of_ones_own_is_known_although_its_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, create = begun(tmp_path), DiskStore.create
    monkeypatch.setattr(DiskStore, "create", lambda *of: create(*of) and False)
    chain.append(TABLES)
    assert chain.newest is not None
    assert chain.newest.number == 2


def test_one_of_two_that_begin_together_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, create = CatalogChain(DiskStore(tmp_path)), DiskStore.create
    meanwhile: list[Callable[[], CatalogChain]] = [lambda: begun(tmp_path)]

    def slow(store: DiskStore, key: str, data: bytes) -> bool:
        if meanwhile:
            meanwhile.pop()()
        return create(store, key, data)

    monkeypatch.setattr(DiskStore, "create", slow)
    found = first.begin(Writer.of_this_process("one"))
    assert (found.number, found.begun) == (2, (1, 2))
    monkeypatch.setattr(DiskStore, "create", lambda *of: False)
    with pytest.raises(Retryable, match="could not be taken over"):
        begun(tmp_path)


def test_a_start_that_was_paused_for_hours_does_not_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number that it is about to put was another process's, and upkeep has removed it."""
    running, late, create = begun(tmp_path), CatalogChain(DiskStore(tmp_path)), DiskStore.create

    def hours() -> None:
        for _ in range(3):
            running.append(TABLES)
        running.thin(time.time() + 1)

    meanwhile = [hours]

    def slow(store: DiskStore, key: str, data: bytes) -> bool:
        if meanwhile:
            meanwhile.pop()()
        return create(store, key, data)

    monkeypatch.setattr(DiskStore, "create", slow)
    found = late.begin(Writer.of_this_process("one"))
    assert (found.number, found.tables, found.begun) == (5, TABLES, (1, 5))
    with pytest.raises(Fenced):
        running.append(MORE)


def test_a_target_of_another_consumer_is_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(InvalidInput, match="another consumer writes") as refused:
        begun(tmp_path, "other")
    assert "--name one" in refused.value.fix
    assert numbers(tmp_path) == [1]


@pytest.mark.parametrize("content", [b"{", b'{"format": 2}', b'{"format": 1, "tables": []}', b"[]"])
def test_an_object_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    begun(tmp_path)
    (tmp_path / key_of(2)).write_bytes(content)
    with pytest.raises(Fatal, match="a catalog cannot be read") as stopped:
        CatalogChain(DiskStore(tmp_path)).find()
    assert stopped.value.where.endswith(key_of(2))


def test_an_object_that_was_removed_meanwhile_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path)
    monkeypatch.setattr(catalog_chain.CatalogChain, "_last", lambda self: 7)
    with pytest.raises(Retryable, match="a catalog is gone"):
        CatalogChain(DiskStore(tmp_path)).find()
