"""Iceberg tables as a target: see `lake_target`, and `lake` for the tables."""

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
from tidegate.consumer.iceberg.columns import holds
from tidegate.consumer.iceberg.lake import IcebergLake
from tidegate.consumer.iceberg.maintenance import Tidying
from tidegate.consumer.iceberg.snapshots import newest_position, snapshot_in
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.directory_lock import OWN, directory_lock, lock_holder
from tidegate.consumer.lakehouse.lake_target import LakeByHand, LakeTarget
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import DEFAULT, WriteMode
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import EVERY_TRANSFORM, Transform
from tidegate.dispatcher.consistency import Visibility
from tidegate.sink.lakehouse.object_store import ObjectStore
from tidegate.sink.lakehouse.store import DiskStore, Store

NO_UPKEEP: Final = Upkeep()
BY_HAND: Final = LakeByHand("change the row upstream once more; the consumer then writes all of it")


@dataclass(frozen=True, slots=True)
class IcebergAddress:
    """A directory for Iceberg tables and their catalog."""

    root: Path
    upkeep: Upkeep = NO_UPKEEP
    mode: WriteMode = DEFAULT

    @property
    def folder(self) -> Path:
        """A folder next to the tables."""
        return self.root / OWN

    @property
    def row_mode(self) -> bool:
        """True: no one reads rows before a snapshot names them."""
        return True

    @property
    def transforms(self) -> Set[Transform]:
        """All: the values are computed here, and pyiceberg stores them."""
        return EVERY_TRANSFORM

    @property
    def seen(self) -> Visibility:
        """Readers see all tables at one ts."""
        return Visibility.SNAPSHOTS

    @contextmanager
    def opened(self) -> Iterator[IcebergTarget]:
        """Open the target while holding the directory's lock."""
        # The check comes before the lock's folder is made: a directory that holds something else stays
        # untouched.
        with directory_lock(self.root, IcebergLake(self.root).check):
            target = IcebergTarget(self.root, self.upkeep, self.mode)
            try:
                yield target
            finally:
                target.close()

    def look(self) -> TargetStatus:
        """The newest snapshot's position, and which process holds the directory's lock."""
        position, pid = position_in(DiskStore(self.root)), lock_holder(self.root)
        return TargetStatus(position, f"process {pid} on this machine" if pid is not None else "")

    def definitions(self) -> Mapping[Name, Definition]:
        """The definitions in the newest snapshot."""
        return definitions_in(DiskStore(self.root))

    def by_hand(self) -> LakeByHand:
        """Rows cannot be written by hand: only the consumer may write."""
        return BY_HAND

    def __str__(self) -> str:
        return f"iceberg://{self.root}"


@dataclass(frozen=True, slots=True)
class IcebergBucketAddress:
    """A prefix of a bucket for Iceberg tables, and the consumer's name, which the catalog records."""

    store: ObjectStore
    name: str
    folder: Path
    """For the consumer's own files, on this machine."""
    upkeep: Upkeep = NO_UPKEEP
    mode: WriteMode = DEFAULT

    @property
    def row_mode(self) -> bool:
        """True: no one reads rows before a snapshot names them."""
        return True

    @property
    def transforms(self) -> Set[Transform]:
        """All: the values are computed here, and pyiceberg stores them."""
        return EVERY_TRANSFORM

    @property
    def seen(self) -> Visibility:
        """Readers see all tables at one ts."""
        return Visibility.SNAPSHOTS

    @contextmanager
    def opened(self) -> Iterator[IcebergTarget]:
        """Open the target without a lock: `recover` takes it over, and fences the process that had it."""
        mark_folder(self.folder, f"{self} as {self.name}")
        # Before anything is written there: a bucket without conditional puts cannot fence a replaced
        # consumer.
        self.store.probe()
        target = IcebergTarget(self.store, self.upkeep, self.mode, self.name)
        try:
            yield target
        finally:
            target.close()

    def look(self) -> TargetStatus:
        """The newest snapshot's position. The store does not show whether a process still writes."""
        return TargetStatus(position_in(self.store))

    def definitions(self) -> Mapping[Name, Definition]:
        """The definitions in the newest snapshot."""
        return definitions_in(self.store)

    def by_hand(self) -> LakeByHand:
        """Rows cannot be written by hand: only the consumer may write."""
        return BY_HAND

    def __str__(self) -> str:
        return f"{self.store} as Iceberg tables"


def position_in(store: Store) -> Position | None:
    """The position of the newest snapshot; None: there is none."""
    IcebergLake(store).check()
    text = newest_position(store)
    return Position.from_json(text) if text is not None else None


def definitions_in(store: Store) -> dict[Name, Definition]:
    """The definitions of the tables in the newest snapshot."""
    position, files = position_in(store), DefinitionFiles(store)
    if position is None:
        return {}
    # Read once for all tables: in a bucket each look at the list of definitions is a request.
    files.read()
    found = dict[Name, Definition]()
    for table in snapshot_in(store, position.ts).tables.values():
        held = table.columns()
        names = [field.name for field in held.fields]
        known, _ = files.find(table.path, partial(holds, held), names, position)
        found[table.schema, table.table] = known
    return found


class IcebergTarget(LakeTarget):
    """One target of Iceberg tables."""

    lake: IcebergLake

    def __init__(
        self,
        root: Path | Store,
        upkeep: Upkeep = NO_UPKEEP,
        mode: WriteMode = DEFAULT,
        consumer: str = "",
    ) -> None:
        """`consumer`: its name, for a target in a bucket."""
        lake = IcebergLake(root, mode, consumer)
        super().__init__(lake, upkeep, Tidying(lake, upkeep, self.dropped_versions).round)

    def close(self) -> None:
        """Wait for writers, and close the catalog."""
        super().close()
        self.lake.close()
