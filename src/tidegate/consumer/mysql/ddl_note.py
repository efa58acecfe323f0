"""The note about DDLs at a target: which are done, and which statement of which DDL was begun. Pure.

{"done": [identities], "begun": null | {"name": identity, "query": SQL, "at": number, "evidence": [...]}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson


def begun_in(noted: str | None) -> str | None:
    """The SQL of the DDL that a note reports as begun; None: none was."""
    begun = orjson.loads(noted).get("begun") if noted else None
    return str(begun["query"]) if begun is not None else None


def without_begun(noted: str | None, attempted: str, *, known: bool) -> str | None:
    """A note without its unfinished DDL, whose tables are set aside; empty if there is no note.

    None: the DDL is not the one that was `attempted` (`DdlRun`), or it may have changed its tables. `known`:
    one of its tables is at the target.
    """
    held: dict[str, Any] = orjson.loads(noted) if noted else {}
    if (begun := held.get("begun")) is None:
        return noted or ""
    if begun["name"] != attempted or (known and not begun.get("whole")):
        return None
    return progress_text(held.get("done", []), None)


def progress_text(done: Sequence[str], begun: dict[str, Any] | None) -> str:
    """The note as text."""
    return orjson.dumps({"done": done, "begun": begun}).decode()
