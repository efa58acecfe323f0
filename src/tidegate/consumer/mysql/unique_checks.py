"""Refuses a table that cannot be written by offset: one with another unique index than its key.

Without watermarks, partitions may be at different moments. A row may then take a unique value that the row of
another partition has not released yet.
"""

from __future__ import annotations

from tidegate.consumer.applying.target import Name
from tidegate.consumer.mysql import found
from tidegate.consumer.mysql.attempts import Attempts
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal


class UniqueChecks:
    """The checks of one target. Several threads may call."""

    def __init__(self, hold: Hold, attempts: Attempts, *, by_offset: bool) -> None:
        self._hold, self._attempts, self._by_offset = hold, attempts, by_offset
        self._only_keyed: dict[Name, Definition] = {}
        """Tables without another unique index than their key, with the definition for which that was
        checked."""

    def check(self, table: Definition) -> None:
        """By offset: Fatal for a table that has another unique index than its key."""
        name = (table.schema, table.table)
        # By identity: each DDL makes another object, whose indexes are checked again.
        if not self._by_offset or self._only_keyed.get(name) is table:
            return

        def ask(attempt: int) -> None:
            seen = found.look(self._hold.rows, name)
            others = [one.name for one in seen.uniques if set(one.columns) != set(table.keys)] if seen else []
            if others:
                raise Fatal(
                    "a table with a unique index in addition to its key cannot be written without watermarks",
                    where=f"table {table.name}, index {', '.join(others)}",
                    why="a row may take a unique value before the row of another partition releases it",
                    fix="drop the index at the target, or read a topic with watermarks without --mode row",
                )

        self._attempts.run_in_turn(ask)
        self._only_keyed[name] = table
