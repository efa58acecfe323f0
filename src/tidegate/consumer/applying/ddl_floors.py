"""The last DDL of each table, so that rows from before it are not applied after it.

This concerns topics that are read by offset: a producer that restarts sends rows again after a DDL that
followed them. Meanwhile the table may have been dropped, or another table may have its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.consumer.applying.changes import Staged, without_repeats
from tidegate.consumer.applying.target import Name
from tidegate.consumer.engine.row_clock import Clock
from tidegate.consumer.selecting.selection import Chosen
from tidegate.consumer.table.definition import Definition

MAX_DDL_FLOORS: Final = 1024
"""Tables whose last DDL is remembered. A producer that restarts repeats only what came since its
checkpoint."""


class DdlFloors:
    """The ts of the last DDL, by table, for the newest `MAX_DDL_FLOORS`."""

    def __init__(self, clock: Clock | None) -> None:
        """`clock`: how rows of a topic that is read by offset say their ts; None: nothing is discarded."""
        self._clock = clock
        self._ts: dict[Name, int] = {}
        """The newest entry is last, so the oldest is evicted first."""

    @property
    def entries(self) -> tuple[tuple[str, str, int], ...]:
        """Schema, table and ts of each. Part of the position."""
        return tuple((*name, ts) for name, ts in self._ts.items())

    def know(self, kept: Sequence[tuple[str, str, int]]) -> None:
        """Resume with the entries of a stored position."""
        self._ts = {(schema, table): ts for schema, table, ts in kept}

    def fresh(self, name: Name, known: Definition | None, staged: list[Staged]) -> list[Staged]:
        """Discard rows that are older than the last DDL of their table; `known`: its definition."""
        if self._clock is None:
            return staged
        version = known.version if known is not None else 0
        return without_repeats(staged, max(version, self._ts.get(name, 0)), self._clock)

    def executed(
        self, chosen: Chosen, before: Mapping[Name, Definition], now: Mapping[Name, Definition]
    ) -> None:
        """Remember the ts of an executed DDL for each table that it changed, named or renamed.

        `before`, `now`: the definitions around the DDL.
        """
        if self._clock is None:
            return
        message = chosen.message
        about = {name for name in before.keys() | now.keys() if before.get(name) is not now.get(name)}
        about |= {(message.schema, message.table)} if message.table else set()
        if (event := chosen.event) is not None and event.table:
            # Rows from before a rename that are sent again have the old name.
            about |= {(event.old_schema, event.old_table)}
        for name in sorted(about):
            # Removed first, so that the new entry comes last.
            self._ts.pop(name, None)
            self._ts[name] = message.ts
        while len(self._ts) > MAX_DDL_FLOORS:
            del self._ts[next(iter(self._ts))]
