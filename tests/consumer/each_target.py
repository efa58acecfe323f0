"""Each kind of target, for what all of them promise: how to open one, to kill it, and to see what is in."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.consumer import plain_log
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import forget
from tests.fixtures.s3 import S3Place
from tidegate.consumer.applying.target import Address
from tidegate.consumer.delta.target import BucketAddress, DeltaAddress, DeltaTarget
from tidegate.consumer.iceberg.bucket_catalog import BucketCatalog, BucketWriterCatalog
from tidegate.consumer.iceberg.catalog import WriterCatalog
from tidegate.consumer.iceberg.snapshots import newest_position
from tidegate.consumer.iceberg.tables import Tables
from tidegate.consumer.iceberg.target import IcebergAddress, IcebergBucketAddress, IcebergTarget
from tidegate.consumer.lakehouse.write_mode import DEFAULT, WriteMode
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.consumer.parquet.address import LogAddress, LogBucketAddress
from tidegate.consumer.parquet.manifests import ManifestChain
from tidegate.consumer.parquet.target import LogTarget
from tidegate.consumer.table.definition import ROWID
from tidegate.sink.lakehouse.store import DiskStore, Store
from tidegate.sink.lakehouse.tables import Lakehouse

SCHEMA = "contract"
Rows = list[tuple[Any, ...]]
WRITES = (
    "create", "append", "merge", "replace", "add_null_columns", "rename", "restore", "compact",
    "discard", "take_over",
)  # fmt: skip
"""The methods of a Lakehouse that change files, except those of its `snapshots`."""


class Place(Protocol):
    """One kind of target, and a consumer's place in it."""

    undoes: bool
    """Whether a restart takes back what was not committed; otherwise it continues from there."""

    exclusive: bool
    """Whether nobody can take it over while a process has it; otherwise that process is fenced."""

    deaths: int
    """A number of its writes at which a life of the story must have died, at least."""

    def address(self) -> Address: ...

    def other(self) -> Address:
        """Return the address of a second consumer that would write the same tables."""

    def mortal(self, dies_at: int) -> tuple[Any, Any]:
        """A context of a target that dies at its n-th write, before it if n is even, after it if odd; and
        what counts its writes (`steps`)."""

    def seen(self) -> dict[str, Rows]:
        """Return each table's rows, sorted, whatever the position says."""

    def state(self) -> Hashable:
        """Return the state that a kill leaves behind and a restart does not undo."""

    def put_foreign(self, table: str) -> None:
        """Somebody else's table, where a table of the consumer's would be."""

    def foreign(self, table: str) -> object:
        """Return the contents of `table`, which is not the target's own."""

    def remove_foreign(self, table: str) -> None: ...


class AtDelta:
    undoes = exclusive = True
    deaths = 40

    def __init__(self, root: Path, mode: WriteMode | None = None) -> None:
        self.root, self._mode = root, mode

    def address(self) -> Address:
        return DeltaAddress(self.root, mode=self._mode)

    def other(self) -> Address:
        return DeltaAddress(self.root, mode=self._mode)

    def lake(self) -> Lakehouse:
        """To look at it from outside."""
        return Lakehouse(self.root)

    def mortal(self, dies_at: int) -> tuple[Any, FilesLife]:
        life = FilesLife(dies_at)
        return self._mortal(life), life

    @contextmanager
    def _mortal(self, life: FilesLife) -> Iterator[DeltaTarget]:
        with self.address().opened() as target:
            for owner, names in (
                (target.lake, WRITES),
                (target.lake.snapshots, ("publish",)),
                (target._files, ("keep",)),
                (target._journal, ("intend",)),
                # Each file of a commit that is ours: rows, deleted rows, and the commit itself.
                (target.lake.store, ("create",) if self._mode is WriteMode.MERGE_ON_READ else ()),
            ):
                for name in names:
                    setattr(owner, name, life.watched(getattr(owner, name)))
            yield target

    def seen(self) -> dict[str, Rows]:
        lake, found = self.lake(), dict[str, Rows]()
        named = {row.path: row.table for row in lake.snapshots.rows()} if lake.snapshots.position() else {}
        for path, table in named.items():
            rows = lake.read(path)  # its newest version: what a restart has not undone shows here
            kept = rows.drop_columns(ROWID) if ROWID in rows.column_names else rows
            found[table] = _sorted(zip(*kept.to_pydict().values(), strict=True))
        return found

    def state(self) -> Hashable:
        return self.lake().snapshots.position()

    def put_foreign(self, table: str) -> None:
        folder = self.root / SCHEMA / table
        folder.mkdir(parents=True)
        (folder / "photo.jpg").write_bytes(b"not to be lost")

    def foreign(self, table: str) -> object:
        folder = self.root / SCHEMA / table
        return {file.name: file.read_bytes() for file in folder.rglob("*")}

    def remove_foreign(self, table: str) -> None:
        shutil.rmtree(self.root / SCHEMA / table)
        if not any((self.root / SCHEMA).iterdir()):
            (self.root / SCHEMA).rmdir()


class AtDeltaInS3(AtDelta):
    """Its `root` is where the server keeps the prefix."""

    exclusive = False
    deaths = 20

    def __init__(self, s3: S3Place, folder: Path) -> None:
        super().__init__(s3.folder)
        self._s3, self._folder = s3, folder

    def address(self) -> Address:
        return BucketAddress(self._s3.store(), "contract", self._folder / "own")

    def other(self) -> Address:
        return BucketAddress(self._s3.store(), "contract-other", self._folder / "other")

    def lake(self) -> Lakehouse:
        return Lakehouse(self._s3.store())


class AtParquet(AtDelta):
    """A change log. Its rows are those that a reader builds from the changes."""

    deaths = 20

    def address(self) -> Address:
        return LogAddress(self.root)

    def other(self) -> Address:
        return LogAddress(self.root)

    @contextmanager
    def _mortal(self, life: FilesLife) -> Iterator[Any]:
        with self.address().opened() as target:
            assert isinstance(target, LogTarget)
            for name in ("create", "delete"):
                setattr(target.store, name, life.watched(getattr(target.store, name)))
            yield target

    def seen(self) -> dict[str, Rows]:
        found = plain_log.newest(self.root)
        return {name.removeprefix(f"{SCHEMA}."): _sorted(rows) for name, rows in found.items()}

    def state(self) -> Hashable:
        newest = ManifestChain(self.store()).find()
        return newest.state.position if newest is not None else None

    def store(self) -> Store:
        """To look at it from outside."""
        return DiskStore(self.root)


class AtParquetInS3(AtParquet):
    """Its `root` is where the server keeps the prefix."""

    exclusive = False
    deaths = 8

    def __init__(self, s3: S3Place, folder: Path) -> None:
        super().__init__(s3.folder)
        self._s3, self._folder = s3, folder

    def address(self) -> Address:
        return LogBucketAddress(self._s3.store(), "contract", self._folder / "own")

    def other(self) -> Address:
        return LogBucketAddress(self._s3.store(), "contract-other", self._folder / "other")

    def store(self) -> Store:
        return self._s3.store()


class AtIceberg:
    undoes = exclusive = True
    deaths = 40

    def __init__(self, root: Path, mode: WriteMode = DEFAULT) -> None:
        self.root, self._mode = root, mode

    def address(self) -> IcebergAddress:
        return IcebergAddress(self.root, mode=self._mode)

    def other(self) -> IcebergAddress:
        return IcebergAddress(self.root, mode=self._mode)

    def mortal(self, dies_at: int) -> tuple[Any, FilesLife]:
        life = FilesLife(dies_at)
        return self._mortal(life), life

    @contextmanager
    def _mortal(self, life: FilesLife) -> Iterator[IcebergTarget]:
        """Each transaction of the catalog is a write, and so is what moves or removes files."""
        with self.address().opened() as target, pytest.MonkeyPatch.context() as patch:
            for owner, names in (
                (WriterCatalog, ("commit_table", "rename_table", "drop_table", "take_over")),
                (Tables, ("empty_trash",)),
                (target._files, ("keep",)),
                (target._journal, ("intend",)),
            ):
                for name in names:
                    patch.setattr(owner, name, life.watched(getattr(owner, name)))
            yield target

    def seen(self) -> dict[str, Rows]:
        """At each table's newest state: what a restart has not undone shows here."""
        if not (self.root / "catalog.db").exists():
            return {}
        catalog = SqlCatalog("tidegate", uri=f"sqlite:///{self.root}/catalog.db")
        found = _rows_in(catalog)
        catalog.close()
        return found

    def state(self) -> Hashable:
        return newest_position(DiskStore(self.root))

    def put_foreign(self, table: str) -> None:
        self.root.mkdir(exist_ok=True)
        catalog = SqlCatalog("tidegate", uri=f"sqlite:///{self.root}/catalog.db")
        catalog.create_namespace_if_not_exists((SCHEMA,))
        rows = pa.table({"photo": ["not to be lost"]})
        made = catalog.create_table((SCHEMA, table), rows.schema, f"file://{self.root}/theirs/{table}")
        made.append(rows)
        catalog.close()

    def foreign(self, table: str) -> object:
        return self.seen()[table]

    def remove_foreign(self, table: str) -> None:
        catalog = SqlCatalog("tidegate", uri=f"sqlite:///{self.root}/catalog.db")
        catalog.drop_table((SCHEMA, table))
        catalog.close()
        shutil.rmtree(self.root / "theirs")


class AtIcebergInS3:
    undoes, exclusive = True, False
    deaths = 20

    def __init__(self, s3: S3Place, folder: Path, mode: WriteMode = DEFAULT) -> None:
        self._s3, self._folder, self._mode = s3, folder, mode

    def address(self) -> IcebergBucketAddress:
        return IcebergBucketAddress(self._s3.store(), "contract", self._folder / "own", mode=self._mode)

    def other(self) -> IcebergBucketAddress:
        return IcebergBucketAddress(self._s3.store(), "contract-other", self._folder / "other")

    def mortal(self, dies_at: int) -> tuple[Any, FilesLife]:
        life = FilesLife(dies_at)
        return self._mortal(life), life

    @contextmanager
    def _mortal(self, life: FilesLife) -> Iterator[IcebergTarget]:
        """Each object that is put is a write, whether it has a condition or not."""
        with self.address().opened() as target:
            for name in ("create", "put", "delete"):
                setattr(target.lake.store, name, life.watched(getattr(target.lake.store, name)))
            yield target

    def seen(self) -> dict[str, Rows]:
        """At the newest catalog: what it names and no snapshot does would show here."""
        return _rows_in(BucketCatalog(self._s3.store()))

    def state(self) -> Hashable:
        return newest_position(self._s3.store())

    def put_foreign(self, table: str) -> None:
        """In the catalog, where a name must be free. Only a program that knows the chain can do that."""
        catalog = self._catalog()
        rows = pa.table({"photo": ["not to be lost"]})
        location = f"{self._s3.store().uri('theirs')}/{table}"
        catalog.create_table_transaction((SCHEMA, table), rows.schema, location).commit_transaction()
        catalog.load_table((SCHEMA, table)).append(rows)
        catalog.confirm()

    def foreign(self, table: str) -> object:
        return self.seen()[table]

    def remove_foreign(self, table: str) -> None:
        catalog = self._catalog()
        catalog.drop_table((SCHEMA, table))
        catalog.confirm()
        shutil.rmtree(self._s3.folder / "theirs")

    def _catalog(self) -> BucketWriterCatalog:
        catalog = BucketWriterCatalog(self._s3.store(), "contract")
        catalog.take_over()
        return catalog


def _rows_in(catalog: SqlCatalog | BucketCatalog) -> dict[str, Rows]:
    """The rows of all tables at their newest snapshots, as pyiceberg reads them."""
    found = {}
    for name in catalog.list_tables((SCHEMA,)) if catalog.namespace_exists((SCHEMA,)) else []:
        rows = catalog.load_table(name).scan().to_arrow()
        kept = rows.drop_columns(ROWID) if ROWID in rows.column_names else rows
        found[name[1]] = _sorted(zip(*kept.to_pydict().values(), strict=True))
    return found


class FilesLife:
    """Dies at the n-th write; the dead begin no further write."""

    def __init__(self, dies_at: int) -> None:
        self.steps, self._dies_at, self._dead, self._lock = 0, dies_at, False, threading.Lock()

    def watched(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self.steps += 2
                step = self.steps
            self._die_if(self._dead or step == self._dies_at)
            done = whole(*arguments, **named)
            self._die_if(step + 1 == self._dies_at)
            return done

        return write

    def _die_if(self, due: bool) -> None:
        if due:
            self._dead = True
            raise Killed


class AtMariaDb:
    undoes = exclusive = False
    deaths = 40

    def __init__(self, server: MySqlServer, folder: Path) -> None:
        self._server, self._folder, self._bystander = server, folder, server.connect()
        forget(server, "contract", SCHEMA)
        forget(server, "contract-other", SCHEMA)

    def address(self) -> MySqlAddress:
        return MySqlAddress(self._server, "contract", self._folder / "own", lanes=3)

    def other(self) -> MySqlAddress:
        return MySqlAddress(self._server, "contract-other", self._folder / "other", lanes=3)

    def mortal(self, dies_at: int) -> tuple[Any, Any]:
        server = MortalServer.at(self._server, dies_at)
        return MySqlAddress(server, "contract", self._folder / "own", lanes=3).opened(), server.life

    def seen(self) -> dict[str, Rows]:
        return {table: _sorted(self._rows(f"SELECT * FROM `{SCHEMA}`.`{table}`")) for table in self._tables()}

    def state(self) -> Hashable:
        columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema=%s"
        noted = {
            "progress": "SELECT batch, position, begun, ddl FROM tidegate.progress WHERE consumer='contract'",
            "lanes": "SELECT lane, batch, digest FROM tidegate.lanes WHERE consumer='contract'",
            "definitions": "SELECT * FROM tidegate.definitions WHERE consumer='contract'",
        }
        own = "SELECT table_name FROM information_schema.tables WHERE table_schema='tidegate'"
        there = [noted[table] for (table,) in self._rows(own) if table in noted]
        found = [self._rows(columns, SCHEMA), *map(self._rows, sorted(there))]
        return repr([_sorted(rows) for rows in found] + [sorted(self.seen().items())])

    def put_foreign(self, table: str) -> None:
        self._rows(f"CREATE DATABASE IF NOT EXISTS `{SCHEMA}`")
        self._rows(f"CREATE TABLE `{SCHEMA}`.`{table}` (photo VARBINARY(40)) ENGINE=InnoDB")
        self._rows(f"INSERT INTO `{SCHEMA}`.`{table}` VALUES ('not to be lost')")

    def foreign(self, table: str) -> object:
        return self._rows(f"SHOW CREATE TABLE `{SCHEMA}`.`{table}`"), self.seen()[table]

    def remove_foreign(self, table: str) -> None:
        self._rows(f"DROP TABLE `{SCHEMA}`.`{table}`")

    def _tables(self) -> list[str]:
        found = self._rows("SELECT table_name FROM information_schema.tables WHERE table_schema=%s", SCHEMA)
        return [table for (table,) in found]

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._bystander.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())


def _sorted(rows: Any) -> Rows:
    return sorted((tuple(row) for row in rows), key=repr)
