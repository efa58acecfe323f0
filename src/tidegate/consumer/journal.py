"""The journal of DDLs at a target: what was about to be done, before it was done.

`_tidegate/ddl.jsonl` holds one line a DDL: its ts, names and text, the steps, the fingerprint of the table's
definition before it, and where the rows are that it takes out of sight. When a DDL comes again after a crash,
the table must be what the journal says it was; and a RECOVER TABLE finds the rows where a drop has left them.
A line is durable before the first step; a torn last line is an intent that was never acted on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tidegate.codec.base import DdlMessage
from tidegate.errors import Fatal


@dataclass(frozen=True, slots=True)
class Going:
    """A table that a DDL drops or empties, and the version of its slot that still holds the rows."""

    table_id: int
    path: str
    version: int


class DdlJournal:
    """One target's journal; one process writes it."""

    def __init__(self, file: Path) -> None:
        self._file = file

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
                    fix=f"compare {self._file} with the table; start a new target if in doubt",
                )
        dropped = [[one.table_id, one.path, one.version] for one in going]
        line |= {"steps": list(steps), "before": before, "dropped": dropped}
        append_durably(self._file, orjson.dumps(line) + b"\n")

    def gone(self, since: int = 0) -> list[Going]:
        """What DDLs at or after ts `since` took out of sight, in the order it happened."""
        lines = [line for line in self._lines() if line["ts"] >= since]
        return [Going(*one) for line in lines for one in line.get("dropped", ())]

    def _lines(self) -> list[dict[str, Any]]:
        if not self._file.exists():
            return []
        return [orjson.loads(line) for line in self._file.read_bytes().split(b"\n")[:-1] if line]


def write_durably(file: Path, data: bytes) -> None:
    """Replace a file: whoever reads it finds the old bytes or the new."""
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)


def append_durably(file: Path, data: bytes) -> None:
    """Append a line; a torn last line of an earlier crash is cut off first."""
    with file.open("ab+") as out:
        out.seek(0)
        whole = out.read()
        if whole and not whole.endswith(b"\n"):
            out.truncate(whole.rfind(b"\n") + 1)
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
