"""The schemas over time: the names of each, and the tables of those that were dropped. Pure.

A schema may be dropped, recovered and dropped again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from tidegate.mounter.schema_image import Dropped
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb.table_filter import is_system_schema

DROPPED_TABLES_MAX: Final = 10_000
"""How many tables of dropped schemas are kept in case a schema is recovered."""


class Schemas:
    """All schemas of a catalogue, by id."""

    def __init__(self) -> None:
        self._names: dict[int, list[tuple[int, str | None]]] = {}
        """(ts, name from then on) of each, in order; None: dropped."""
        self._changed: deque[tuple[int, int]] = deque()
        """(ts, schema id) of each created, renamed or dropped schema, in order. Used by `forget`."""
        self._dropped: dict[int, list[Dropped]] = {}
        """In order of ts."""

    def add(self, schema_id: int, name: str, since: int) -> None:
        """Add a schema that exists where the catalogue begins."""
        self._names[schema_id] = [(since, name)]

    def add_dropped(self, schema_id: int, dropped: Dropped) -> None:
        """Add a schema that was dropped before the catalogue begins."""
        self._dropped[schema_id] = [dropped]

    def change(self, ts: int, schema_id: int, name: str | None, tables: Iterable[TableVersion]) -> None:
        """A schema is created or renamed at `ts`; None: dropped, with these tables."""
        if name is None:
            self._remember(schema_id, Dropped(ts, tuple(tables)))
        self._names.setdefault(schema_id, []).append((ts, name))
        self._changed.append((ts, schema_id))

    def _remember(self, schema_id: int, dropped: Dropped) -> None:
        # Taken out and put in again: the dict is then in order of the last drop, and its first entry is the
        # oldest.
        line = self._dropped.pop(schema_id, [])
        self._dropped[schema_id] = [*line, dropped]
        while sum(len(e.tables) for line in self._dropped.values() for e in line) > DROPPED_TABLES_MAX:
            oldest = next(iter(self._dropped))
            del self._dropped[oldest][0]
            if not self._dropped[oldest]:
                del self._dropped[oldest]

    def name(self, schema_id: int) -> str | None:
        """The newest name of a schema."""
        line = self._names.get(schema_id)
        return line[-1][1] if line else None

    def of_users(self) -> list[str]:
        """The names of the user schemas that exist after the last change, sorted."""
        names = (line[-1][1] for line in self._names.values())
        return sorted(name for name in names if name and not is_system_schema(name))

    def dropped_with(self, schema_id: int) -> tuple[TableVersion, ...] | None:
        """The tables of a schema when it was last dropped. None if they are not known."""
        line = self._dropped.get(schema_id)
        return line[-1].tables if line else None

    def names_at(self, ts: int) -> dict[int, str]:
        """The schemas that exist at `ts`."""
        return {number: name for number, line in self._names.items() if (name := _name_at(line, ts))}

    def dropped_at(self, ts: int) -> dict[int, Dropped]:
        """The last drop of each schema up to `ts`."""
        return {number: entry for number, line in self._dropped.items() if (entry := _dropped_at(line, ts))}

    def forget(self, ts: int) -> None:
        """Drop names and dropped tables that nothing after `ts` needs."""
        while self._changed and self._changed[0][0] <= ts:
            _, schema_id = self._changed.popleft()
            self._forget(schema_id, ts)

    def _forget(self, schema_id: int, ts: int) -> None:
        line = self._names.get(schema_id, [])
        # The last name up to `ts` stays, because it still holds after it.
        while len(line) > 1 and line[1][0] <= ts:
            del line[0]
        if line and line[0][0] <= ts and line[0][1] is None:
            del self._names[schema_id]
        dropped = self._dropped.get(schema_id, [])
        while len(dropped) > 1 and dropped[1].ts <= ts:
            del dropped[0]


def _name_at(line: list[tuple[int, str | None]], ts: int) -> str | None:
    return next((name for since, name in reversed(line) if since <= ts), None)


def _dropped_at(line: list[Dropped], ts: int) -> Dropped | None:
    return next((entry for entry in reversed(line) if entry.ts <= ts), None)
