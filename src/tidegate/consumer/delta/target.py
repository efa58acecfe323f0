"""Delta tables as a target: see `lake_target`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.consumer.applying.own_folder import mark_folder
from tidegate.consumer.applying.target import Name, TargetStatus
from tidegate.consumer.delta.lake import DeltaLake
from tidegate.consumer.delta.lock import target_lock
from tidegate.consumer.delta.maintenance import Tidying
from tidegate.consumer.engine.position import Position
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.directory_lock import OWN, lock_holder
from tidegate.consumer.lakehouse.lake_target import LakeByHand, LakeTarget
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import Transform
from tidegate.dispatcher.consistency import Visibility
from tidegate.sink.lakehouse.object_store import ObjectStore
from tidegate.sink.lakehouse.store import Store
from tidegate.sink.lakehouse.tables import Lakehouse

FOLDER: Final = OWN
NO_UPKEEP: Final = Upkeep()


@dataclass(frozen=True, slots=True)
class DeltaAddress:
    """A directory for Delta tables."""

    root: Path
    upkeep: Upkeep = NO_UPKEEP
    mode: WriteMode | None = None
    """None: the one that the target was begun with, or copy-on-write."""

    @property
    def folder(self) -> Path:
        """A folder next to the tables."""
        return self.root / FOLDER

    @property
    def row_mode(self) -> bool:
        """True: no one reads rows before a snapshot names them."""
        return True

    @property
    def transforms(self) -> Set[Transform]:
        """Whole columns: the consumer writes no generated columns."""
        return frozenset({Transform.IDENTITY})

    @property
    def seen(self) -> Visibility:
        """Readers see all tables at one ts."""
        return Visibility.SNAPSHOTS

    @contextmanager
    def opened(self) -> Iterator[DeltaTarget]:
        """Open the target while holding the directory's lock."""
        with target_lock(self.root):
            target = DeltaTarget(self.root, self.upkeep, mode=self.mode)
            try:
                yield target
            finally:
                target.close()

    def look(self) -> TargetStatus:
        """The newest snapshot's position, and which process holds the directory's lock."""
        lake = Lakehouse(self.root)
        lake.check()
        text, pid = lake.snapshots.position(), lock_holder(self.root)
        holder = f"process {pid} on this machine" if pid is not None else ""
        return TargetStatus(Position.from_json(text) if text is not None else None, holder)

    def definitions(self) -> Mapping[Name, Definition]:
        """The definitions in the newest snapshot."""
        return definitions_in(Lakehouse(self.root))

    def by_hand(self) -> LakeByHand:
        """Rows cannot be written by hand: besides the consumer, only `tidegate verify` may write."""
        return LakeByHand(
            "stop the consumer and run `tidegate verify --pd PD --target TARGET --table SCHEMA.TABLE "
            "--repair apply`, which compares the table with the source and makes its rows equal"
        )

    def __str__(self) -> str:
        return str(self.root)


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A prefix of a bucket for Delta tables, and the consumer's name, which the target records."""

    store: ObjectStore
    name: str
    folder: Path
    """For the consumer's own files, on this machine."""
    upkeep: Upkeep = NO_UPKEEP
    mode: WriteMode | None = None

    @property
    def row_mode(self) -> bool:
        """True: no one reads rows before a snapshot names them."""
        return True

    @property
    def transforms(self) -> Set[Transform]:
        """Whole columns: the consumer writes no generated columns."""
        return frozenset({Transform.IDENTITY})

    @property
    def seen(self) -> Visibility:
        """Readers see all tables at one ts."""
        return Visibility.SNAPSHOTS

    @contextmanager
    def opened(self) -> Iterator[DeltaTarget]:
        """Open the target without a lock: `recover` takes it over, and fences the process that had it."""
        mark_folder(self.folder, f"{self} as {self.name}")
        self.store.probe()
        target = DeltaTarget(self.store, self.upkeep, self.name, self.mode)
        try:
            yield target
        finally:
            target.close()

    def look(self) -> TargetStatus:
        """The newest snapshot's position. The store does not show whether a process still writes."""
        lake = Lakehouse(self.store)
        lake.check()
        text = lake.snapshots.position()
        return TargetStatus(Position.from_json(text) if text is not None else None)

    def definitions(self) -> Mapping[Name, Definition]:
        """The definitions in the newest snapshot."""
        return definitions_in(Lakehouse(self.store))

    def by_hand(self) -> LakeByHand:
        """Rows cannot be written by hand: only the consumer may write."""
        return LakeByHand("change the row upstream once more; the consumer then writes all of it")

    def __str__(self) -> str:
        return str(self.store)


def definitions_in(lake: Lakehouse) -> dict[Name, Definition]:
    """The definitions of the tables in the newest snapshot."""
    lake.check()
    text, files = lake.snapshots.position(), DefinitionFiles(lake.store)
    if text is None:
        return {}
    files.read()
    position, found = Position.from_json(text), dict[Name, Definition]()
    for row in lake.snapshots.rows(position.ts):
        # At the named version and not at the newest: a consumer may be writing columns that no snapshot names
        # yet.
        held = lake.schema(row.path, row.version)
        found[row.schema, row.table], _ = files.find(row.path, held.equals, held.names, position)
    return found


class DeltaTarget(LakeTarget):
    """One target of Delta tables."""

    lake: DeltaLake

    def __init__(
        self,
        root: Path | Store,
        upkeep: Upkeep = NO_UPKEEP,
        consumer: str = "",
        mode: WriteMode | None = None,
    ) -> None:
        """`consumer`: its name, for a target in an object store."""
        lake = DeltaLake(root, consumer, mode)
        super().__init__(lake, upkeep, Tidying(lake, upkeep, self.dropped_versions).round)
