"""The steps (`ddl_steps`) of a DDL that is known only by its SQL text. Pure.

Topics that TiCDC writes do not have the header `tidegate-ddl`, which carries the TableInfo before and after
(`ddl_plan`). Many DDLs can then only be refused, or learned from the rows that follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tidegate.codec.base import DdlMessage
from tidegate.consumer.ddl import sql_replay
from tidegate.consumer.ddl.ddl_plan import DROP_PARTITION, EXCHANGE, RECOVER_TABLE, TRUNCATE_PARTITION
from tidegate.consumer.ddl.ddl_steps import (
    Create,
    Drop,
    Known,
    Nothing,
    Redefine,
    Refuse,
    Rename,
    Replay,
    Rewrite,
    Source,
    Step,
)
from tidegate.consumer.ddl.ddl_text import NAME, QUALIFIED, renamed, unquoted, without_comments
from tidegate.consumer.table.definition import Definition
from tidegate.mounter.ddl_renames import Name

_DROP_SCHEMA: Final = re.compile(rf"\s*drop\s+(?:database|schema)\s+(?:if\s+exists\s+)?{NAME}", re.IGNORECASE)
_DROP_TABLE: Final = re.compile(r"\s*drop\s+table\b", re.IGNORECASE)
_TRUNCATE: Final = re.compile(r"\s*truncate\b", re.IGNORECASE)

_MODIFY: Final = re.compile(r"\s*alter\s+table\b.*\b(?:modify|change)\b", re.IGNORECASE | re.DOTALL)

DROP_TABLE: Final = 4
TRUNCATE_TABLE: Final = 11
MODIFY_COLUMN: Final = 12
KEPT: Final = "a column was modified, and no message has its types: rows from before keep the values they had"
_MOVES_BY_ACTION: Final = {
    DROP_PARTITION: "DROP PARTITION removes rows",
    TRUNCATE_PARTITION: "TRUNCATE PARTITION removes rows",
    EXCHANGE: "EXCHANGE PARTITION moves rows",
    RECOVER_TABLE: "RECOVER TABLE brings rows back",
    62: "FLASHBACK CLUSTER changes rows",
    63: "FLASHBACK DATABASE brings rows back",
}
_MOVES_ROWS: Final = {
    re.compile(rf"\s*{statement}", re.IGNORECASE | re.DOTALL): what
    for statement, what in (
        (rf"alter\s+table\s+{QUALIFIED}\s+drop\s+partition\b", "DROP PARTITION removes rows"),
        (rf"alter\s+table\s+{QUALIFIED}\s+truncate\s+partition\b", "TRUNCATE PARTITION removes rows"),
        (rf"alter\s+table\s+{QUALIFIED}\s+exchange\s+partition\b", "EXCHANGE PARTITION moves rows"),
        (r"recover\s+table\b", "RECOVER TABLE brings rows back"),
        (r"flashback\b", "FLASHBACK brings rows back"),
    )
}
"""Statements that change rows without row events."""


def plan_without_header(message: DdlMessage, tables: Iterable[Definition]) -> list[Step]:
    """The steps of a DDL known only by its SQL text; columns are learnt from the rows that follow.

    Drop schema and drop, truncate and rename table are executed; a DDL that moves rows is refused. A modified
    column is noted in the definition: TiDB may have converted older rows, which stay as they are here. The
    action of the message decides if the protocol sends it, otherwise the text without its comments. The
    default of an added column for older rows is in no message: the column stays NULL in them.
    """
    known = {(table.schema, table.table): table for table in tables}
    name, text, action = (message.schema, message.table), without_comments(message.query), message.action
    moves = _MOVES_BY_ACTION.get(action) if action is not None else None
    moves = moves or next((what for statement, what in _MOVES_ROWS.items() if statement.match(text)), None)
    # Before all others: a DROP PARTITION that passed as an ALTER would leave the partition's rows for ever.
    if moves is not None:
        return [Refuse(f"{moves} without row events, and the message has no header that describes the table")]
    if (schema := _DROP_SCHEMA.match(text)) is not None:
        dropped = unquoted(schema.group(1), schema.group(2))
        return [Drop(*held) for held in known if held[0] == dropped] or [
            Nothing("the schema has no tables here")
        ]
    if pairs := renamed(text):
        return _renamed_by_text(message, pairs, known)
    if action == DROP_TABLE or _DROP_TABLE.match(text):
        return [Drop(*name)] if name in known else [Nothing("not here")]
    if (action == TRUNCATE_TABLE or _TRUNCATE.match(text)) and name in known:
        # The columns are those from before: a TRUNCATE changes none, and the message has none.
        return [Create(replace(known[name], version=message.ts))]
    held = known.get(name)
    if held is not None and held.info is None and (action == MODIFY_COLUMN or _MODIFY.match(text)):
        notes = dict.fromkeys([*held.guessed, KEPT])
        return [Redefine(replace(held, version=message.ts, guessed=tuple(notes)), KEPT)]
    return [Nothing("no header: columns are learnt from the rows that follow")]


def plan_replay(message: DdlMessage, time_zone: str) -> list[Step]:
    """The step of a DDL known only by its SQL text, at a target that runs SQL (`Target.replays_sql`)."""
    match sql_replay.read(message.query, message.schema):
        case sql_replay.Ignored(why):
            return [Nothing(why)]
        case sql_replay.Unknown(why):
            return [Refuse(f"{why}, and the message has no header that describes the table")]
        case statement:
            return [Replay(statement, message.query, message.ts, time_zone)]


def _renamed_by_text(message: DdlMessage, pairs: list[tuple[Name, Name]], known: Known) -> list[Step]:
    """The renames in their order: a later one may take a name that an earlier one has freed."""
    known, steps = dict(known), list[Step]()
    for (old_schema, old), (schema, new) in pairs:
        source, target = (old_schema or message.schema, old), (schema or message.schema, new)
        held = known.pop(source, None)
        if held is None:
            continue
        # The DDL that freed the name is not on the topic. Its rows and those of the other table would be in
        # one.
        if target in known:
            return [Refuse(f"{held.name} gets the name of a table that is still there: {'.'.join(target)}")]
        known[target] = replace(held, schema=target[0], table=target[1], version=message.ts)
        steps.append(Rename(*source, known[target]))
    return steps or [Nothing("not here")]


def regrown(held: Definition, grown: Definition) -> Rewrite:
    """The step for a guessed table whose rows need wider types or more columns; the values stay."""
    sources = tuple(Source(column, held.column(column.name)) for column in grown.columns)
    return Rewrite(grown, sources, in_place=False)
