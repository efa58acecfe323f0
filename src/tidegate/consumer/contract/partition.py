"""The state of one partition in a check."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Partition:
    """The messages of one partition, summed up. Each checker writes its own fields; all of them read."""

    number: int
    topic: str
    partition: int
    began: int
    """Messages at or below this ts may have been there before the check began."""
    resolved: int = 0
    """The last Resolved; `ResolvedMarks` writes it."""
    ddl: int = 0
    """The greatest ts of a DDL. `Ddls` writes it, and `table_ddl` if only DDLs of the row's table count."""
    table_ddl: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """The epoch of each table's last alignment mark; `Alignments` writes it."""
    highest: int = 0
    """The greatest ts of a row at its first appearance; `Changes` writes it and `table_highest`."""
    table_highest: dict[str, int] = field(default_factory=dict)
