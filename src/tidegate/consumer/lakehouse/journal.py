"""The journal of DDLs at a target: each DDL is noted before it is executed.

`_tidegate/ddl.jsonl` holds one line for each DDL: its ts, names and text, the steps, the fingerprint of the
table's definition before it, and where the rows are that it drops. When a DDL is executed again after a
crash, the table must still be the one in the journal. A RECOVER TABLE finds there the rows that a drop has
left. In an object store the journal is a folder, and each line an object in it. A line is durable before the
first step; a torn last line belongs to a DDL of which no step was executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidegate.codec.base import DdlMessage
from tidegate.errors import Fatal
from tidegate.sink.lakehouse.store import Store


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that a DDL drops or empties, and the version of its folder that still holds the rows."""

    table_id: int
    path: str
    version: int


class DdlJournal:
    """One target's journal; one process writes it."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def intend(
        self, message: DdlMessage, steps: Sequence[str], before: str | None, going: Sequence[DroppedTable]
    ) -> None:
        """Note a DDL durably; Fatal when it was noted before, and the table's definition was another then."""
        line: dict[str, Any] = {"ts": message.ts, "schema": message.schema, "table": message.table}
        line |= {"query": message.query}
        for known in self._lines():
            if all(known[name] == value for name, value in line.items()) and known["before"] != before:
                raise Fatal(
                    "a DDL has to run again, but its table has changed since",
                    where=f"{message.schema}.{message.table} at ts {message.ts}",
                    why=f"definition {before}, the journal says {known['before']}",
                    fix=f"compare {self._store.uri(self._name)} with the table; "
                    "start a new target if in doubt",
                )
        dropped = [[one.table_id, one.path, one.version] for one in going]
        line |= {"steps": list(steps), "before": before, "dropped": dropped}
        self._store.append(self._name, orjson.dumps(line))

    def gone(self, since: int = 0) -> list[DroppedTable]:
        """The tables that DDLs at or after ts `since` dropped or emptied, in the order it happened."""
        lines = [line for line in self._lines() if line["ts"] >= since]
        return [DroppedTable(*one) for line in lines for one in line.get("dropped", ())]

    def _lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self._store.lines(self._name)]
