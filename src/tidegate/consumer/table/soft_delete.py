"""A column of the target that records when a row was deleted; the row itself stays. Pure.

    NULL               the row exists upstream
    2024-05-01 10:...  UTC, milliseconds: the commit of the transaction that deleted it

A moment and not a flag, so that rows that were deleted long ago can be found and removed. A DATETIME and not
a TIMESTAMP, because no session's time zone changes it, and it does not end in 2038.

The column is the table's first one. Columns added upstream then still come last, so that the files of a
lakehouse table need not be rewritten for them.

`selection` adds the column to definitions and to rows of the tables that the rules name, and `net_effect`
fills it. A target sees a nullable column like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.errors import InvalidInput
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.tidb.definition_limits import ID_MAX
from tidegate.tidb.table_filter import TableFilter
from tidegate.tidb.table_info import PUBLIC, table_schema

MEMBER: Final = "tidegate_soft_delete"
"""The member of a TableInfo at the target that names the column."""
COLUMN_ID: Final = ID_MAX
"""TiDB numbers the columns of a table from 1 on, so it does not reach this id."""
DATETIME: Final = 12
FSP: Final = 3
"""Digits of the second: a commit ts has milliseconds."""
_WIDTH: Final = len("2024-05-01 10:20:30.") + FSP
_BINARY: Final = 128
"""The flag that TiDB gives a DATETIME."""
_RULE: Final = re.compile(r"\s*(.+)\.(?:`((?:[^`]|``)+)`|([\w$]+))\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """One rule: tables that keep their deleted rows, and the column for the moment of deletion."""

    tables: TableFilter
    column: str

    @classmethod
    def of(cls, text: str) -> SoftDelete:
        """Parse `schema.table.column`; wildcards for schema and table. InvalidInput if it is malformed."""
        found = _RULE.fullmatch(text)
        if found is None or "." not in found[1] or text.lstrip().startswith("!"):
            raise InvalidInput(
                f"the rule {text!r} of --soft-delete cannot be read",
                why="it is not the name of a table and of a new column, with '.' between them",
                fix="write SCHEMA.TABLE.COLUMN, for example 'shop.orders.deleted_at' or '*.*.deleted_at'",
            )
        return cls(TableFilter([found[1]]), (found[2] or found[3]).replace("``", "`"))


def column_for(schema: str, table: str, rules: Iterable[SoftDelete]) -> str:
    """The column of a source table, by the first rule that matches; empty: deleted rows are removed."""
    return next((rule.column for rule in rules if rule.tables.matches(schema, table)), "")


def on_wire(name: str) -> WireColumn:
    """The column as if the topic had it."""
    return WireColumn(name, pa.string(), DATETIME, key=False)


def in_info(info: dict[str, Any], name: str) -> dict[str, Any]:
    """A base table's TableInfo with the column added.

    A deleted row keeps its values, and upstream another row may take its unique values. So only the index of
    the key stays unique.
    """
    described = table_schema("", info, 0)
    # Before the column is added, because that moves all offsets by one.
    key = {described.columns[at].offset for at in described.handle_key}
    columns = [_column(name), *(one | {"offset": one["offset"] + 1} for one in info.get("cols") or [])]
    indexes = [_index(one, key) for one in info.get("index_info") or []]
    return info | {"cols": columns, "index_info": indexes, MEMBER: name}


def _index(index: dict[str, Any], key: set[int]) -> dict[str, Any]:
    # A deleted row that comes back replaces the one that was kept, which is found by its key.
    stays = index["is_primary"] or {part["offset"] for part in index["idx_cols"]} == key
    parts = [part | {"offset": part["offset"] + 1} for part in index["idx_cols"]]
    return index | {"idx_cols": parts, "is_unique": bool(index["is_unique"] and stays)}


def _column(name: str) -> dict[str, Any]:
    of_type = {
        "Tp": DATETIME,
        "Flag": _BINARY,
        "Flen": _WIDTH,
        "Decimal": FSP,
        "Charset": "binary",
        "Collate": "binary",
        "Elems": None,
    }
    return {
        "id": COLUMN_ID,
        "name": {"O": name, "L": name.lower()},
        "offset": 0,
        "type": of_type,
        "state": PUBLIC,
        "default": None,
        "origin_default": None,
    }


def moments(commit_ts: npt.NDArray[np.uint64]) -> pa.Array:
    """The commit time of each transaction, as the topic writes a DATETIME."""
    ms = (commit_ts >> np.uint64(LOGICAL_BITS)).astype(np.int64).astype("datetime64[ms]")
    texts = np.char.replace(np.datetime_as_string(ms), "T", " ")
    return pa.array(texts.tolist(), pa.string())
