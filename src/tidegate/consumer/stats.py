"""What one run of the consumer has done so far: counted by the applier and its target, shown by the job."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.consumer.convert import Losses


@dataclass(slots=True)
class Stats:
    """What was done since the start."""

    rows: int = 0
    """Row changes taken, before the net effect."""
    commits: int = 0
    snapshots: int = 0
    ddls: int = 0
    missing_deletes: int = 0
    """Rows of tables without a key that were to be deleted and not found."""
    bad_rows: int = 0
    """Rows put into quarantine: they hold what their table's definition does not know."""
    losses: Losses = field(default_factory=Losses)
    guessed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By the table's name, what of it had to be guessed."""
    ignored: list[str] = field(default_factory=list)
    """Changes of columns that were not applied, in words; taken out when they are reported."""
