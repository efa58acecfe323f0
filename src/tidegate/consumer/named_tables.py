"""The tables of a target's snapshot and their versions, for readers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidegate.consumer.iceberg import snapshots as iceberg
from tidegate.consumer.iceberg.scheme import BUCKETS, SCHEME
from tidegate.consumer.mysql.session import SCHEMES as DATABASES
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class NamedTable:
    """One table of a snapshot."""

    name: str
    """`schema.table` at the source."""
    where: str
    """Delta: the table's directory. Iceberg: its name in the catalog; in a bucket the file of its newest
    metadata.
    """
    version: int
    """Delta: the table's version. Iceberg: the id of its snapshot."""


def named_tables(target: str | Path, at: int | None = None) -> tuple[int, list[NamedTable]]:
    """The ts of the newest snapshot with ts <= `at` (None: the newest of all), and its tables by name.

    InvalidInput when there is none, or the target has none to read by.
    """
    if str(target).partition("://")[0] in DATABASES:
        raise InvalidInput(
            "a database has no snapshots to read by",
            where="--target",
            why="its tables hold one state only, the newest",
            fix="query its tables; with --atomicity global every reader sees whole transactions",
        )
    scheme = str(target).partition("://")[0]
    if scheme in (SCHEME, BUCKETS):
        held = iceberg.open_snapshot(target, at)
        made = [
            NamedTable(
                name, table.metadata if scheme == BUCKETS else ".".join(table.identifier), table.snapshot_id
            )
            for name, table in held.tables.items()
        ]
        return held.ts, sorted(made, key=lambda table: table.name)
    found = open_snapshot(target, at)
    tables = [NamedTable(name, str(table.path), table.version) for name, table in found.tables.items()]
    return found.ts, sorted(tables, key=lambda table: table.name)
