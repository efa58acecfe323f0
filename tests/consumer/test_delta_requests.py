"""How a Delta target with deletion vectors uses its store: what it reads of logs, and how it writes files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.delta_table import Begun, as_values
from tests.consumer.test_iceberg import KEYED, rows
from tidegate.consumer.delta.lake import DeltaLake
from tidegate.sink.lakehouse import vector_tables
from tidegate.sink.lakehouse.open_tables import OpenTables
from tidegate.sink.lakehouse.store import DiskStore
from tidegate.sink.lakehouse.vector_tables import VectorTables


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes_in_small_files(monkeypatch)


def counted(store: Any) -> list[str]:
    """The names of the files that a store reads from here on."""
    real, names = store.get, list[str]()

    def get(key: str) -> bytes | None:
        names.append(key.rpartition("/")[2])
        found: bytes | None = real(key)
        return found

    store.get = get
    return names


def commits(names: list[str]) -> list[int]:
    return [int(name[:20]) for name in names if name.endswith(".json")]


def test_a_log_is_read_from_its_last_checkpoint_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_tables, "CHECKPOINT_EVERY", 5)
    made = Begun(tmp_path)
    made.put({key: key for key in range(100)}, fresh=True)
    for at in range(10):
        made.put({at: -1})
    version = made.lake.version(made.path)
    assert version % 5 == 1, "two commits after a checkpoint"
    another = DeltaLake(tmp_path)
    names = counted(another.store)
    assert as_values(another.read(made.path)) == made.held()
    assert commits(names) == [version - 1, version]
    assert sum(name.endswith(".checkpoint.parquet") for name in names) == 1
    made.target.close()


def test_a_later_version_is_read_from_the_remembered_one_on(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    version, before = made.lake.version(made.path), made.files()
    for key in (900, 901):
        write_deltalake(made.delta(), rows(KEYED, {key: 9}), mode="append")
    names = counted(made.lake.store)
    assert len(made.lake.vectors.live(made.path, version + 2).files) == len(before) + 2
    assert commits(names) == [version + 1, version + 2]
    assert made.lake.vectors.live(made.path, version).files == before, "a copy was advanced"
    made.target.close()


def tables_of_one_file(count: int) -> tuple[Callable[[], None], list[str]]:
    """A round over tables, and what it reads."""
    line = b'{"add":{"path":"a.parquet","size":1,"partitionValues":{}}}'
    store = SimpleNamespace(get=lambda key: line, names=lambda folder: [])
    tables = SimpleNamespace(open=lambda path: SimpleNamespace(version=lambda: 0))
    names, vectors = counted(store), VectorTables(store, tables)  # type: ignore[arg-type]

    def look() -> None:
        names.clear()
        for at in range(count):
            vectors.live(f"db/t{at}")

    look()
    return look, names


def test_thousands_of_small_tables_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    look, names = tables_of_one_file(2000)
    look()
    assert not names
    monkeypatch.setattr(vector_tables, "FILES_MAX", 1999)
    look, names = tables_of_one_file(2000)
    look()
    assert len(names) == 2000, "the least recently used one was forgotten each time"


def test_upkeep_opens_the_oldest_needed_version_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    named = made.lake.version(made.path)
    made.put({4: -4})
    opened, real = list[int | None](), OpenTables.at

    def at(self: OpenTables, path: str, version: int | None = None) -> DeltaTable:
        opened.append(version)
        return real(self, path, version)

    monkeypatch.setattr(OpenTables, "at", at)
    assert sum(made.lake.files_of(made.path).clean([named], 0, 0)) == 0
    assert [version for version in opened if version is not None] == [named]
    made.target.close()


def test_only_commits_need_a_conditional_put(tmp_path: Path) -> None:
    """An object store does not repeat one whose answer was lost."""
    made, created, written = Begun(tmp_path), list[str](), list[str]()
    made.put({key: key for key in range(40)}, fresh=True)
    store: Any = made.lake.store
    disk = DiskStore(tmp_path)

    def create(key: str, data: bytes) -> bool:
        created.append(Path(key).suffix)
        return disk.create(key, data)

    def put(key: str, data: bytes) -> None:
        written.append(Path(key).suffix)
        disk.put(key, data)

    store.create, store.put = create, put
    made.put({3: -3})
    assert (created, written) == ([".json"], [".parquet", ".bin"])
    made.target.close()
