"""The steps of which a DDL consists at a target: data alone.

`ddl_plan` computes them from an event, `ddl_text_plan` from SQL text; each target executes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidegate.consumer.ddl import sql_replay
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.modify import Change
from tidegate.consumer.table.partitioning import Members


@dataclass(frozen=True, slots=True)
class Create:
    """Create an empty table; a table that had this name is gone."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove a table: later snapshots do not have it."""

    schema: str
    table: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Give a table another name; its rows stay."""

    schema: str
    table: str
    definition: Definition


@dataclass(frozen=True, slots=True)
class Source:
    """Where a column's values come from."""

    column: TargetColumn
    taken: TargetColumn | None
    """The column before; None: every row gets `fill`."""
    fill: pa.Scalar | None = None
    change: Change | None = None
    """How TiDB converted the values; None: it did not change them."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Give the same rows other columns."""

    definition: Definition
    sources: tuple[Source, ...]
    in_place: bool
    """No stored value changes: the new columns are NULL in all rows and come last."""


@dataclass(frozen=True, slots=True)
class Redefine:
    """Keep the stored rows; only the definition of the table changes."""

    definition: Definition
    why: str


@dataclass(frozen=True, slots=True)
class Prune:
    """Remove the rows of some partitions."""

    schema: str
    table: str
    members: Members


@dataclass(frozen=True, slots=True)
class Exchange:
    """Exchange the rows of a partition of one table with all rows of another table."""

    schema: str
    table: str
    members: Members
    other: Definition
    """The plain table, with the id that it has afterwards."""
    validated: bool = True
    """TiDB has checked that each row of the plain table belongs to the partition."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Where the rows of a dropped or truncated table can still be read."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring a table back as it was when it was dropped, perhaps under another name."""

    definition: Definition
    dropped: Dropped


@dataclass(frozen=True, slots=True)
class Replay:
    """Run the SQL of the topic at a database, and read from the database what its tables are afterwards."""

    statement: sql_replay.Replayed
    query: str
    """The text as it is on the topic, for messages."""
    ts: int
    time_zone: str
    """The time zone of the session that runs it, as in `DdlEvent.time_zone`."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No effect on rows or columns."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop: executing the DDL would make the target wrong."""

    why: str


REPEAT: Final = (
    "leave the table out with a [filter] rule of a new changefeed, and read that one into a new target"
)
"""The advice for rows that the target cannot get."""
Step = Create | Drop | Rename | Rewrite | Redefine | Prune | Exchange | Restore | Replay | Nothing | Refuse
Known = dict[tuple[str, str], Definition]
"""The tables at the target by schema and name."""


def in_words(step: Step) -> str:
    """Describe a step, for people."""
    match step:
        case Create(made):
            return f"create {made.name}"
        case Drop(schema, table):
            return f"drop {schema}.{table}"
        case Rename(schema, table, made):
            return f"rename {schema}.{table} to {made.name}"
        case Rewrite(made, _, _):
            return f"alter {made.name}"
        case Redefine(made, why):
            return f"{made.name}: {why}"
        case Prune(schema, table, rows):
            return f"remove the rows of partition {', '.join(rows.names)} of {schema}.{table}"
        case Exchange(schema, table, rows, other, _):
            return f"exchange partition {', '.join(rows.names)} of {schema}.{table} with {other.name}"
        case Restore(made, _):
            return f"restore {made.name}"
        case Replay(_, query, _, _):
            return f"run {query[:200]}"
        case Nothing(why):
            return f"nothing: {why}"
        case Refuse(why):
            return f"refused: {why}"
