"""The offsets that Spark stores in a query's checkpoint: JSON that names the reader, and a ts.

    {"tidegate": 1}                                       before the query has a reader
    {"tidegate": 1, "reader": "default/nightly", "instance": "9f...", "ts": 77, "tables": "shop.orders",
     "rows": "typed"}                                     the query has read all changes up to `ts`

The first number is the version of this format. Tables and rows are included because the reader on the server
has them from its first start: a query that is restarted with others is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import Fatal

INITIAL: Final = {"tidegate": 1}
"""Spark may ask for the initial offset again after a crash, so it must not depend on anything."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query is: an offset of Spark after the initial one."""

    reader: str
    """NAMESPACE/NAME"""
    instance: str
    ts: int
    tables: str
    rows: str

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position | None:
        """None for the initial offset. Raises Fatal for one that is not ours."""
        if offset == INITIAL:
            return None
        try:
            known = {name: offset[name] for name in ("reader", "instance", "ts", "tables", "rows")}
        except KeyError:
            known = {}
        if offset.get("tidegate") != INITIAL["tidegate"] or not known:
            raise Fatal(
                "the checkpoint holds an offset that this version cannot read",
                where=json.dumps(offset),
                fix="use the version that wrote it, or start with a new checkpoint",
            )
        return cls(**known)

    def offset(self, ts: int) -> dict[str, Any]:
        """The offset of the same reader at a ts."""
        return {
            **INITIAL,
            "reader": self.reader,
            "instance": self.instance,
            "ts": ts,
            "tables": self.tables,
            "rows": self.rows,
        }
