"""The kinds of change in event filters, with TiCDC's names (docs/filters.md).

TiCDC discards actions that are not here, independently of the filter. Source: TiCDC `pkg/filter/filter.go`,
`pkg/filter/utils.go`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidegate.config.values import nearest
from tidegate.errors import InvalidInput

INSERT_EVENT, UPDATE_EVENT, DELETE_EVENT = "insert", "update", "delete"
DML_EVENTS: Final = (INSERT_EVENT, UPDATE_EVENT, DELETE_EVENT)
ALL_DML: Final = "all dml"
ALL_DDL: Final = "all ddl"
ALTER_TABLE: Final = "alter table"
ALIASES: Final = {"create schema": "create database", "drop schema": "drop database"}

EVENT_OF_ACTION: Final = {
    1: "create database",
    2: "drop database",
    3: "create table",
    4: "drop table",
    5: "add column",
    6: "drop column",
    7: "create index",
    8: "drop index",
    9: "add foreign key",
    10: "drop foreign key",
    11: "truncate table",
    12: "modify column",
    13: "rebase auto id",
    14: "rename table",
    15: "set default value",
    17: "modify table comment",
    18: "rename index",
    19: "add table partition",
    20: "drop table partition",
    21: "create view",
    22: "modify table charset and collate",
    23: "truncate table partition",
    24: "drop view",
    25: "recover table",
    26: "modify schema charset and collate",
    32: "add primary key",
    33: "drop primary key",
    37: "add column",
    38: "drop column",
    41: "alter index visibility",
    42: "exchange table partition",
    47: "rename table",
    60: "create table",
    61: "multi schema change",
    64: "reorganize table partition",
    65: "alter ttl info",
    67: "alter ttl remove",
    71: "alter table partitioning",
    72: "remove table partitioning",
}
"""The event name of each of TiDB's action codes (docs/formats/ddl.md#the-jobs)."""

SCHEMA_ACTIONS: Final = frozenset({1, 2, 26})
"""Actions that concern a schema, not a table."""

_NOT_ALTER: Final = frozenset({*SCHEMA_ACTIONS, 3, 4, 11, 21, 24, 25, 60})
"""Actions that `alter table` does not include. It includes all others above."""

EVENT_NAMES: Final = tuple(
    dict.fromkeys([ALL_DML, ALL_DDL, *DML_EVENTS, ALTER_TABLE, *ALIASES, *EVENT_OF_ACTION.values()])
)
"""The names that `ignore-event` accepts."""


def ignored_operations(names: Iterable[str]) -> frozenset[str]:
    """The row operations that `ignore-event` names."""
    named = frozenset(names)
    # `all dml` wins over single names next to it.
    return frozenset(DML_EVENTS) if ALL_DML in named else named & frozenset(DML_EVENTS)


def ignored_actions(names: Iterable[str]) -> frozenset[int]:
    """The actions that `ignore-event` names."""
    named = {ALIASES.get(name, name) for name in names}
    return frozenset(
        action
        for action, event in EVENT_OF_ACTION.items()
        if event in named or ALL_DDL in named or (ALTER_TABLE in named and action not in _NOT_ALTER)
    )


def check_names(names: Iterable[str], where: str) -> None:
    """Raise InvalidInput for a name that is not an event."""
    for name in names:
        if name not in EVENT_NAMES:
            raise InvalidInput(
                f"[CDC:ErrInvalidIgnoreEventType]invalid ignore event type: '{name}'",
                where=where,
                fix=nearest(name, EVENT_NAMES, label="events"),
            )
