"""The journal of DDLs at a target: what was about to be done, before it was done.

`_tidegate/ddl.jsonl` holds one line a DDL: its ts, names and text, the steps, the fingerprint of the table's
definition before it, and where the rows are that it takes out of sight. When a DDL comes again after a crash,
the table must be what the journal says it was; and a RECOVER TABLE finds the rows where a drop has left them.
In an object store the journal is a folder, and each line an object in it.
A line is durable before the first step; a torn last line is an intent that was never acted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidegate.codec.base import DdlMessage
from tidegate.errors import Fatal
from tidegate.sink.store import Store


@dataclass(frozen=True, slots=True)
class Going:
    """A table that a DDL drops or empties, and the version of its slot that still holds the rows."""

    table_id: int
    path: str
    version: int


class DdlJournal:
    """One target's journal; one process writes it."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def intend(
        self, message: DdlMessage, steps: Sequence[str], before: str | None, going: Sequence[Going]
    ) -> None:
        """Note a DDL durably; Fatal when it was noted before for a table that was another one then."""
        line: dict[str, Any] = {"ts": message.ts, "schema": message.schema, "table": message.table}
        line |= {"query": message.query}
        for known in self._lines():
            if all(known[name] == value for name, value in line.items()) and known["before"] != before:
                raise Fatal(
                    "a DDL is to run again on a table that is not what it was",
                    where=f"{message.schema}.{message.table} at ts {message.ts}",
                    why=f"definition {before}, the journal says {known['before']}",
                    fix=f"compare {self._store.uri(self._name)} with the table; "
                    "start a new target if in doubt",
                )
        dropped = [[one.table_id, one.path, one.version] for one in going]
        line |= {"steps": list(steps), "before": before, "dropped": dropped}
        self._store.append(self._name, orjson.dumps(line))

    def gone(self, since: int = 0) -> list[Going]:
        """What DDLs at or after ts `since` took out of sight, in the order it happened."""
        lines = [line for line in self._lines() if line["ts"] >= since]
        return [Going(*one) for line in lines for one in line.get("dropped", ())]

    def _lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self._store.lines(self._name)]
