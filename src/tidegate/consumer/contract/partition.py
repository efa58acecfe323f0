"""What a check knows of one partition."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Partition:
    """What has come of it so far. Each judge writes its own fields; all of them read."""

    number: int
    topic: str
    partition: int
    began: int
    """What is at or below it may have appeared before we began."""
    resolved: int = 0
    """The last one; `ResolvedMarks` writes it."""
    ddl: int = 0
    """The greatest ts of a DDL; `Ddls` writes it, and by table `table_ddl` where that is what counts."""
    table_ddl: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """By table the epoch of its last alignment mark; `Alignments` writes it."""
    highest: int = 0
    """Of rows at their first appearance; `Changes` writes it and `table_highest`."""
    table_highest: dict[str, int] = field(default_factory=dict)
