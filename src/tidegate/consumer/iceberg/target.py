"""Iceberg tables as a target: see `lake_target`, and `lake` for the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.consumer.applying.target import Name, TargetStatus
from tidegate.consumer.engine.position import Position
from tidegate.consumer.iceberg.columns import holds
from tidegate.consumer.iceberg.lake import IcebergLake
from tidegate.consumer.iceberg.maintenance import Tidying
from tidegate.consumer.iceberg.snapshots import newest_position, open_snapshot
from tidegate.consumer.iceberg.write_mode import DEFAULT, WriteMode
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.directory_lock import OWN, directory_lock, lock_holder
from tidegate.consumer.lakehouse.lake_target import LakeByHand, LakeTarget
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import EVERY_TRANSFORM, Transform
from tidegate.dispatcher.consistency import Visibility
from tidegate.sink.lakehouse.store import DiskStore

NO_UPKEEP: Final = Upkeep()


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
        with directory_lock(self.root, IcebergLake(self.root).check):
            target = IcebergTarget(self.root, self.upkeep, self.mode)
            try:
                yield target
            finally:
                target.close()

    def look(self) -> TargetStatus:
        """The newest snapshot's position, and which process holds the directory's lock."""
        IcebergLake(self.root).check()
        text, pid = newest_position(self.root), lock_holder(self.root)
        holder = f"process {pid} on this machine" if pid is not None else ""
        return TargetStatus(Position.from_json(text) if text is not None else None, holder)

    def definitions(self) -> Mapping[Name, Definition]:
        """The definitions in the newest snapshot."""
        IcebergLake(self.root).check()
        text, files = newest_position(self.root), DefinitionFiles(DiskStore(self.root))
        if text is None:
            return {}
        files.read()
        position, found = Position.from_json(text), dict[Name, Definition]()
        for table in open_snapshot(self.root, position.ts).tables.values():
            held = table.columns()
            names = [field.name for field in held.fields]
            known, _ = files.find(table.path, partial(holds, held), names, position)
            found[table.schema, table.table] = known
        return found

    def by_hand(self) -> LakeByHand:
        """Rows cannot be written by hand: only the consumer may write."""
        return LakeByHand("change the row upstream once more; the consumer then writes all of it")

    def __str__(self) -> str:
        return f"iceberg://{self.root}"


class IcebergTarget(LakeTarget):
    """One target directory of Iceberg tables."""

    lake: IcebergLake

    def __init__(self, root: Path, upkeep: Upkeep = NO_UPKEEP, mode: WriteMode = DEFAULT) -> None:
        lake = IcebergLake(root, mode)
        super().__init__(lake, upkeep, Tidying(lake, upkeep, self.dropped_versions).round)

    def close(self) -> None:
        """Wait for writers, and close the catalog."""
        super().close()
        self.lake.close()
