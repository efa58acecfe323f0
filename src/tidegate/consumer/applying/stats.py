"""Counters of one run of the consumer: the applier and its target count, the job reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.consumer.table.convert import Losses


@dataclass(slots=True)
class Stats:
    """Counters since the start of the run."""

    rows: int = 0
    """Row changes taken, before the net effect."""
    commits: int = 0
    snapshots: int = 0
    ddls: int = 0
    missing_deletes: int = 0
    """Rows of tables without a key that had to be deleted and were not found."""
    bad_rows: int = 0
    """Quarantined rows: they have values that their table's definition does not allow."""
    losses: Losses = field(default_factory=Losses)
    guessed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By the table's name, what had to be guessed about it."""
    ignored: list[str] = field(default_factory=list)
    """Changes of columns that were not applied, in words; removed when they are reported."""
