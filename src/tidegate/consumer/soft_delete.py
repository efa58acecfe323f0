"""A column of the target that says when a row was deleted, instead of the row's removal. Pure.

    NULL               the row is there upstream
    2024-05-01 10:...  UTC, milliseconds: the commit of the transaction that deleted it

The moment and not a flag: rows that were deleted long ago can be found and removed by it. A DATETIME and not
a TIMESTAMP: no session's time zone changes it, and it has no end in 2038.

The column is the table's first. Columns that are added upstream then still stand at the end, where a file of
a lakehouse table need not be written again for them.

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
"""Of a TableInfo at the target: the column's name."""
COLUMN_ID: Final = ID_MAX
"""TiDB numbers the columns of a table from 1 on."""
DATETIME: Final = 12
FSP: Final = 3
"""Digits of the second: a commit ts has milliseconds."""
_WIDTH: Final = len("2024-05-01 10:20:30.") + FSP
_BINARY: Final = 128
"""The flag that TiDB gives a DATETIME."""
_RULE: Final = re.compile(r"\s*(.+)\.(?:`((?:[^`]|``)+)`|([\w$]+))\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """One rule: the tables that keep their deleted rows, and the column that says so."""

    tables: TableFilter
    column: str

    @classmethod
    def of(cls, text: str) -> SoftDelete:
        """Read `schema.table.column`; wildcards for schema and table. InvalidInput if it is none."""
        found = _RULE.fullmatch(text)
        if found is None or "." not in found[1] or text.lstrip().startswith("!"):
            raise InvalidInput(
                f"the rule {text!r} of --soft-delete cannot be read",
                why="it is not the name of a table and of a new column, with '.' between them",
                fix="write SCHEMA.TABLE.COLUMN, for example 'shop.orders.deleted_at' or '*.*.deleted_at'",
            )
        return cls(TableFilter([found[1]]), (found[2] or found[3]).replace("``", "`"))


def column_for(schema: str, table: str, rules: Iterable[SoftDelete]) -> str:
    """The column of a table of the source, by the first rule that matches; empty: its rows are removed."""
    return next((rule.column for rule in rules if rule.tables.matches(schema, table)), "")


def on_wire(name: str) -> WireColumn:
    """The column, as if the topic had it."""
    return WireColumn(name, pa.string(), DATETIME, key=False)


def in_info(info: dict[str, Any], name: str) -> dict[str, Any]:
    """A base table's TableInfo with the column.

    A deleted row keeps its values, so that another row may have one that is unique upstream: no index but
    that of the key is unique.
    """
    described = table_schema("", info, 0)
    key = {described.columns[at].offset for at in described.handle_key}
    columns = [_column(name), *(one | {"offset": one["offset"] + 1} for one in info.get("cols") or [])]
    indexes = [_index(one, key) for one in info.get("index_info") or []]
    return info | {"cols": columns, "index_info": indexes, MEMBER: name}


def _index(index: dict[str, Any], key: set[int]) -> dict[str, Any]:
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
    """When each transaction was committed, as the topic writes a DATETIME."""
    ms = (commit_ts >> np.uint64(LOGICAL_BITS)).astype(np.int64).astype("datetime64[ms]")
    texts = np.char.replace(np.datetime_as_string(ms), "T", " ")
    return pa.array(texts.tolist(), pa.string())
