"""Which unique indexes a table has at the target, in addition to its key.

Without watermarks a table with such an index is refused: partitions may be at different moments, so a row may
take a unique value that the row of another partition has not released yet. With watermarks such a table is
not spread over lanes, which do not wait for each other either.
"""

from __future__ import annotations

from tidegate.consumer.applying.target import Name
from tidegate.consumer.mysql import found
from tidegate.consumer.mysql.attempts import Attempts
from tidegate.consumer.mysql.found import Unique
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal


class UniqueChecks:
    """The checks of one target. Several threads may call."""

    def __init__(self, hold: Hold, attempts: Attempts, *, by_offset: bool) -> None:
        self._hold, self._attempts, self._by_offset = hold, attempts, by_offset
        self._seen: dict[Name, tuple[Definition, tuple[Unique, ...]]] = {}
        """The unique indexes of tables, with the definition for which the server was asked."""

    def check(self, table: Definition) -> None:
        """By offset: Fatal for a table that has another unique index than its key."""
        if not self._by_offset:
            return
        if others := [one.name for one in self._of(table) if set(one.columns) != set(table.keys)]:
            raise Fatal(
                "a table with a unique index in addition to its key cannot be written without watermarks",
                where=f"table {table.name}, index {', '.join(others)}",
                why="a row may take a unique value before the row of another partition releases it",
                fix="drop the index at the target, or read a topic with watermarks without --mode row",
            )

    def only_keyed(self, table: Definition) -> bool:
        """Whether a table's key is its only unique index, of whole columns without NULLs."""
        match self._of(table):
            case (one,):
                return one.whole and not one.nullable and set(one.columns) == set(table.keys)
        return False

    def _of(self, table: Definition) -> tuple[Unique, ...]:
        name = (table.schema, table.table)
        # By identity: each DDL makes another object, whose indexes are asked for again.
        if (kept := self._seen.get(name)) is None or kept[0] is not table:

            def ask(attempt: int) -> None:
                seen = found.look(self._hold.rows, name)
                self._seen[name] = table, seen.uniques if seen is not None else ()

            self._attempts.run_in_turn(ask)
        return self._seen[name][1]
