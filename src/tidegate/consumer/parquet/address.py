"""Where a change log may be: a directory, or a prefix of a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.consumer.applying.own_folder import mark_folder
from tidegate.consumer.applying.target import Name, TargetStatus
from tidegate.consumer.engine.position import Position
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.directory_lock import OWN, directory_lock, lock_holder
from tidegate.consumer.lakehouse.lake_target import LakeByHand
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.parquet.manifests import ManifestChain
from tidegate.consumer.parquet.target import LogTarget, check_root, tables_of
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import Transform
from tidegate.dispatcher.consistency import Visibility
from tidegate.errors import InvalidInput, shown
from tidegate.sink.lakehouse.object_store import ObjectStore
from tidegate.sink.lakehouse.store import DiskStore, Store

SCHEME: Final = "parquet"
BUCKETS: Final = "parquet+s3"
NO_UPKEEP: Final = Upkeep()
BY_HAND: Final = LakeByHand("change the row upstream once more; the consumer then writes all of it")


@dataclass(frozen=True, slots=True)
class LogAddress:
    """A directory for a change log."""

    root: Path
    upkeep: Upkeep = NO_UPKEEP

    @property
    def folder(self) -> Path:
        """A folder next to the tables."""
        return self.root / OWN

    @property
    def row_mode(self) -> bool:
        """True: no one reads rows before a manifest names them."""
        return True

    @property
    def transforms(self) -> Set[Transform]:
        """None: a log's files follow the commits."""
        return frozenset()

    @property
    def seen(self) -> Visibility:
        """Readers see all tables at one ts."""
        return Visibility.SNAPSHOTS

    @contextmanager
    def opened(self) -> Iterator[LogTarget]:
        """Open the target while holding the directory's lock."""
        store = DiskStore(self.root)
        with directory_lock(self.root, partial(check_root, store)):
            target = LogTarget(store, self.upkeep)
            try:
                yield target
            finally:
                target.close()

    def look(self) -> TargetStatus:
        """The newest position, and which process holds the directory's lock."""
        position, pid = position_at(DiskStore(self.root)), lock_holder(self.root)
        return TargetStatus(position, f"process {pid} on this machine" if pid is not None else "")

    def definitions(self) -> Mapping[Name, Definition]:
        """The newest definitions."""
        return definitions_at(DiskStore(self.root))

    def by_hand(self) -> LakeByHand:
        """Rows cannot be written by hand: only the consumer may write."""
        return BY_HAND

    def __str__(self) -> str:
        return f"{SCHEME}://{self.root}"


@dataclass(frozen=True, slots=True)
class LogBucketAddress:
    """A prefix of a bucket for a change log, and the consumer's name, which the log records."""

    store: ObjectStore
    name: str
    folder: Path
    """For the consumer's own files, on this machine."""
    upkeep: Upkeep = NO_UPKEEP

    @property
    def row_mode(self) -> bool:
        """True: no one reads rows before a manifest names them."""
        return True

    @property
    def transforms(self) -> Set[Transform]:
        """None: a log's files follow the commits."""
        return frozenset()

    @property
    def seen(self) -> Visibility:
        """Readers see all tables at one ts."""
        return Visibility.SNAPSHOTS

    @contextmanager
    def opened(self) -> Iterator[LogTarget]:
        """Open the target without a lock: `recover` takes it over, and fences the process that had it."""
        mark_folder(self.folder, f"{self} as {self.name}")
        self.store.probe()
        target = LogTarget(self.store, self.upkeep, self.name)
        try:
            yield target
        finally:
            target.close()

    def look(self) -> TargetStatus:
        """The newest position. The store does not show whether a process still writes."""
        return TargetStatus(position_at(self.store))

    def definitions(self) -> Mapping[Name, Definition]:
        """The newest definitions."""
        return definitions_at(self.store)

    def by_hand(self) -> LakeByHand:
        """Rows cannot be written by hand: only the consumer may write."""
        return BY_HAND

    def __str__(self) -> str:
        return f"{self.store} as a change log"


def log_directory(target: str | Path) -> Path:
    """The directory of `parquet:///dir`; InvalidInput for anything else."""
    scheme, _, path = str(target).partition("://")
    if scheme != SCHEME or not path.startswith("/"):
        raise InvalidInput(
            "this is not a directory of a change log",
            where=shown(str(target)),
            why="a change log on a disk is in an absolute directory",
            fix=f"write --target {SCHEME}:///absolute/directory",
        )
    return Path(path)


def position_at(store: Store) -> Position | None:
    """The newest position of a log; None: nothing was ever committed."""
    check_root(store)
    newest = ManifestChain(store).find()
    text = newest.state.position if newest is not None else None
    return Position.from_json(text) if text is not None else None


def definitions_at(store: Store) -> dict[Name, Definition]:
    """The newest definitions of a log's tables."""
    check_root(store)
    # The chain first: it names the definitions, and each is put before the manifest that names it.
    newest, files = ManifestChain(store).find(), DefinitionFiles(store)
    if newest is None or newest.state.position is None:
        return {}
    files.read()
    tables = tables_of(newest.state, Position.from_json(newest.state.position), files)
    return {name: table.definition for name, table in tables.items()}
