"""A DDL event as steps at the target, rendered from the TableInfo before and after, not from SQL. Pure.

| event | steps |
|---|---|
| create table, create like, create tables | `Create` |
| drop table | `Drop`; drop schema: one `Drop` per table of it |
| truncate | `Create` again (a new table id, no rows) |
| rename | `Rename`, then `Rewrite` if columns changed too |
| add, drop, rename, modify, move columns | one `Rewrite`: each column from its source, or filled |
| index, comment, default, auto_increment | `Redefine`: the rows stay as they are |
| add, reorganize, remove partitions | `Redefine`: TiDB moves the rows, none changes |
| drop, truncate partition | `Prune`: the rows that lie there go |
| exchange partition | `Exchange`: the partition's rows and the table's change places |
| recover, flashback table | `Restore`: the rows as they were when the table was dropped or truncated |
| views, sequences, schemas | `Nothing`, with the reason |

Columns are paired by TiDB's column id; a MODIFY that needs new data gives the column a new id: then by name,
and a CHANGE that also renames by the names in its text. The rows of such a column are converted as TiDB does
(`modify`); the same id means that TiDB left the rows as they were.
What makes rows come or go without row events, and cannot be computed from what the target holds, is `Refuse`.
docs/ddl-at-targets.md is this table for users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from tidegate.codec.base import DdlMessage
from tidegate.consumer import sql_replay
from tidegate.consumer.convert import Losses, TargetColumn
from tidegate.consumer.definition import Definition, fill_value, from_info
from tidegate.consumer.modify import Change, change_of, known_zone
from tidegate.consumer.partitioning import Members, Unknowable, members
from tidegate.model.ddl import WITHOUT_VALIDATION, DdlEvent
from tidegate.mounter.ddl_renames import Name, names_in
from tidegate.tidb import table_info
from tidegate.tidb.table_info import is_base_table, table_schema

DROP_SCHEMA: Final = 2
DROP_PARTITION: Final = 20
TRUNCATE_PARTITION: Final = 23
RECOVER_TABLE: Final = 25
EXCHANGE: Final = 42
REPARTITION: Final = frozenset({71, 72})
"""ALTER TABLE PARTITION BY, REMOVE PARTITIONING: a new table id with the old rows."""
MISPLACED: Final = "tidegate_misplaced_rows"
"""Member of a TableInfo at the target: an EXCHANGE PARTITION WITHOUT VALIDATION has brought rows that lie in
a partition which their values do not name. What a partition holds can then not be computed any more."""
_UNCHECKED: Final = (
    "EXCHANGE PARTITION WITHOUT VALIDATION has brought rows that their values place in another partition"
)
REFUSED: Final = {
    62: "FLASHBACK CLUSTER changes rows of all tables without row events",
    63: "FLASHBACK DATABASE brings tables back without row events",
}


@dataclass(frozen=True, slots=True)
class Create:
    """An empty table; whatever stood under this name is gone."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class Drop:
    """The table is no longer named by snapshots from now on."""

    schema: str
    table: str


@dataclass(frozen=True, slots=True)
class Rename:
    """The same rows under another name."""

    schema: str
    table: str
    definition: Definition


@dataclass(frozen=True, slots=True)
class Source:
    """Where a column's values come from."""

    column: TargetColumn
    taken: TargetColumn | None
    """The column before, None: filled."""
    fill: pa.Scalar | None = None
    change: Change | None = None
    """How TiDB converted the rows, None: it left them as they were."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The same rows with other columns."""

    definition: Definition
    sources: tuple[Source, ...]
    in_place: bool
    """No stored value changes: the new columns are null in all rows and stand at the end."""


@dataclass(frozen=True, slots=True)
class Redefine:
    """The stored rows stay as they are; only what is known about the table changes."""

    definition: Definition
    why: str


@dataclass(frozen=True, slots=True)
class Prune:
    """The rows of some partitions are gone."""

    schema: str
    table: str
    members: Members


@dataclass(frozen=True, slots=True)
class Exchange:
    """The rows of a partition of one table and all rows of another change places."""

    schema: str
    table: str
    members: Members
    other: Definition
    """The plain table, with the id it has from now on."""
    validated: bool = True
    """TiDB has checked that each row of the plain table belongs into the partition."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Where the rows of a dropped or truncated table still are."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Restore:
    """The table as it was when it was dropped, perhaps under another name."""

    definition: Definition
    dropped: Dropped


@dataclass(frozen=True, slots=True)
class Replay:
    """Run the topic's own SQL at a database; the target says what its tables look like then."""

    statement: sql_replay.Replayed
    query: str
    """As the topic has it, for people."""
    ts: int
    time_zone: str
    """Of the session that runs it: as `DdlEvent.time_zone`."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No effect on rows or columns."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Going on would make the target wrong."""

    why: str


REPEAT: Final = (
    "leave the table out with a [filter] rule of a new changefeed, and read that one into a new target"
)
"""What to do about rows that the target cannot be given."""
Step = Create | Drop | Rename | Rewrite | Redefine | Prune | Exchange | Restore | Replay | Nothing | Refuse
Known = dict[tuple[str, str], Definition]


def in_words(step: Step) -> str:
    """What a step does, for people."""
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


def plan(
    event: DdlEvent, tables: Iterable[Definition], dropped: Mapping[int, Dropped] | None = None
) -> list[Step]:
    """The steps of one event, given the target's tables before it.

    `dropped`: by TiDB's table id, tables that were dropped or truncated and can still be read.
    """
    known = {(table.schema, table.table): table for table in tables}
    if event.action in REFUSED:
        return [Refuse(REFUSED[event.action])]
    if event.action == DROP_SCHEMA:
        # In an order that a restart has, too: a database counts the steps that are done.
        return [Drop(*name) for name in sorted(known) if name[0] == event.schema] or [
            Nothing("the schema has no tables here")
        ]
    before, after = _base(event.before), _base(event.after)
    if after is None:
        if before is None:
            return [Nothing("no base table is concerned")]
        return (
            [Drop(event.schema, event.table)]
            if (event.schema, event.table) in known
            else [Nothing("not here")]
        )
    definition = from_info(event.schema, after, event.finished_ts, table=event.table)
    if event.action == RECOVER_TABLE:
        return [_restored(definition, dropped or {})]
    if event.action == EXCHANGE:
        return _exchanged(event, after, definition, known)
    if before is None or (before["id"] != after["id"] and event.action not in REPARTITION):
        return [Create(definition)]
    if event.action in (DROP_PARTITION, TRUNCATE_PARTITION):
        return [*_pruned(event, before, known), *_altered(event, before, definition, known)]
    return _altered(event, before, definition, known)


def _base(info: dict[str, Any] | None) -> dict[str, Any] | None:
    return info if info is not None and is_base_table(info) else None


def _restored(definition: Definition, dropped: Mapping[int, Dropped]) -> Step:
    found = dropped.get(definition.table_id)
    if found is None:
        return Refuse(
            "RECOVER or FLASHBACK TABLE brings rows back without row events, and the target does not hold "
            "them: the table was dropped before the target was begun, or longer ago than its retention"
        )
    return Restore(definition, found)


def _pruned(event: DdlEvent, before: dict[str, Any], known: Known) -> list[Step]:
    held = known.get((event.schema, event.table))
    if held is None:
        return []  # no row of it came by
    try:
        if held.info is not None and held.info.get(MISPLACED):
            raise Unknowable(_UNCHECKED)
        return [Prune(held.schema, held.table, members(before, held, event.removed_ids))]
    except Unknowable as error:
        return [Refuse(f"the partition's rows are removed without row events, and {error}")]


def _exchanged(event: DdlEvent, after: dict[str, Any], made: Definition, known: Known) -> list[Step]:
    """The event has the plain table as it was on its old side, the partitioned as it is on its new one."""
    other, held = known.get((event.old_schema, event.old_table)), known.get((event.schema, event.table))
    why = "rows move between two tables without row events, and "
    if held is None or other is None or held.info is None:
        return [Refuse(f"{why}one of the two is not at the target: it is filtered out, or had no row yet")]
    gone = set(table_info.physical_ids(held.info)) - set(table_info.physical_ids(after))
    if len(gone) != 1:
        return [Refuse(f"{why}{len(gone)} partitions of {held.name} have left it, not one")]
    if [(c.name, c.type) for c in held.columns] != [(c.name, c.type) for c in other.columns]:
        return [Refuse(f"{why}their columns differ at the target")]
    if bool(held.keys) != bool(other.keys):
        return [Refuse(f"{why}only one of them has a key at the target")]
    (new_id,) = gone
    info = other.info | {"id": new_id} if other.info is not None else None
    other = replace(other, table_id=new_id, version=event.finished_ts, info=info)
    try:
        if held.info.get(MISPLACED):
            raise Unknowable(_UNCHECKED)
        chosen = members(held.info, held, gone)
    except Unknowable as error:
        return [Refuse(f"{why}{error}")]
    validated = not event.query.endswith(WITHOUT_VALIDATION)
    return [
        Redefine(made, "columns are as before"),
        Exchange(held.schema, held.table, chosen, other, validated),
    ]


def _altered(event: DdlEvent, before: dict[str, Any], after: Definition, known: Known) -> list[Step]:
    held = _held(event, before, known)
    if held is None:
        # First heard of by this DDL: the topic began after the table's creation and no row of it came by.
        return [Create(after)]
    if held.info is not None and held.info.get(MISPLACED) and event.action not in REPARTITION:
        after = misplaced(after)
    steps: list[Step] = []
    if (held.schema, held.table) != (after.schema, after.table):
        other = known.get((after.schema, after.table))
        if other is not None and other.table_id and other.table_id != held.table_id:
            return [Refuse(f"{held.name} gets the name of a table with other rows (id {other.table_id})")]
        steps.append(Rename(held.schema, held.table, after))
    sources = _sources(event, before, held, after)
    refused = [
        f"column {s.column.name}: {s.change.refusal}" for s in sources if s.change and s.change.refusal
    ]
    if refused:
        return [Refuse(f"its rows are converted without row events, and {'; '.join(refused)}")]
    if not _same_columns(held, after, sources):
        steps.append(Rewrite(after, sources, _in_place(held, after, sources)))
    elif not steps:
        steps.append(Redefine(after, "columns are as before"))
    return steps


def held_before(event: DdlEvent, known: Mapping[tuple[str, str], Definition]) -> Definition | None:
    """The table at the target that an event changes; of an EXCHANGE, the partitioned one."""
    if event.action == EXCHANGE:
        return known.get((event.schema, event.table))
    before = _base(event.before)
    return _held(event, before, dict(known)) if before is not None else None


def _held(event: DdlEvent, before: dict[str, Any], known: Known) -> Definition | None:
    """The table at the target: by TiDB's id, which no rename changes; by name where no id is known."""
    by_id = next((one for one in known.values() if one.table_id == before["id"]), None)
    return by_id or known.get((event.old_schema, event.old_table))


def misplaced(made: Definition) -> Definition:
    """The definition of a table with rows in partitions that their values do not name."""
    return replace(made, info={**made.info, MISPLACED: True}) if made.info is not None else made


def _sources(
    event: DdlEvent, before: dict[str, Any], held: Definition, after: Definition
) -> tuple[Source, ...]:
    assert after.info is not None
    described = table_schema(after.schema, after.info, after.version).columns
    old = {column.id: column for column in table_schema(held.schema, before, after.version).columns}
    named = {column.name.lower(): column for column in old.values()}
    kept = {column.id for column in described}
    renamed = renamed_columns(event.query)
    zone = known_zone(event.time_zone)
    sources = []
    for column, new in zip(after.columns, described, strict=True):
        was = old.get(new.id)
        if was is None:
            was = named.get(renamed.get(new.name.lower(), new.name.lower()))
            # One that goes on under its own id is another column.
            was = None if was is not None and was.id in kept else was
        taken = held.column(was.name) if was is not None else None
        fill = None if taken is not None else fill_value(new, column, Losses())
        change = change_of(was, new, zone) if taken is not None and was is not None else None
        sources.append(Source(column, taken, fill, change))
    return tuple(sources)


def renamed_columns(query: str) -> dict[str, str]:
    """The old name by the new of each CHANGE COLUMN in a statement, in lower case."""
    return {_unquoted(*found[2:]).lower(): _unquoted(*found[:2]).lower() for found in _CHANGE.findall(query)}


def _same_columns(held: Definition, after: Definition, sources: tuple[Source, ...]) -> bool:
    # Enum and set values are stored as names, so changed elements change nothing; guessed ones are numbers.
    if len(held.columns) != len(after.columns) or bool(held.keys) != bool(after.keys):
        return False
    return all(
        source.taken is not None
        and source.change is None
        and (source.taken.name, source.taken.type) == (source.column.name, source.column.type)
        and source.taken == held.columns[at]
        and (source.taken.elems != () or source.column.elems == ())
        for at, source in enumerate(sources)
    )


def _in_place(held: Definition, after: Definition, sources: tuple[Source, ...]) -> bool:
    kept, added = sources[: len(held.columns)], sources[len(held.columns) :]
    return (
        bool(held.keys)
        and bool(after.keys)
        and _same_columns(held, Definition(*_head(after, len(kept))), kept)
        and all(source.fill is not None and not source.fill.is_valid for source in added)
    )


def _head(after: Definition, count: int) -> tuple[Any, ...]:
    return (
        after.schema,
        after.table,
        after.table_id,
        after.version,
        after.columns[:count],
        after.keys,
        after.info,
    )


# --- topics without the header `tidegate-ddl` (TiCDC's)

_NAME: Final = r"(?:`((?:[^`]|``)+)`|([\w$]+))"
_QUALIFIED: Final = rf"(?:{_NAME}\s*\.\s*)?{_NAME}"
_DROP_SCHEMA: Final = re.compile(
    rf"\s*drop\s+(?:database|schema)\s+(?:if\s+exists\s+)?{_NAME}", re.IGNORECASE
)
_CHANGE: Final = re.compile(rf"\bchange\s+(?:column\s+)?(?:if\s+exists\s+)?{_NAME}\s+{_NAME}", re.IGNORECASE)
_DROP_TABLE: Final = re.compile(r"\s*drop\s+table\b", re.IGNORECASE)
_TRUNCATE: Final = re.compile(r"\s*truncate\b", re.IGNORECASE)
_RENAME: Final = re.compile(
    rf"\s*alter\s+table\s+{_QUALIFIED}\s+rename(?!\s+(?:index|key|column))\s*(?:to|as)?\s+{_QUALIFIED}\s*;?\s*$",
    re.IGNORECASE,
)


_MODIFY: Final = re.compile(r"\s*alter\s+table\b.*\b(?:modify|change)\b", re.IGNORECASE | re.DOTALL)

DROP_TABLE: Final = 4
TRUNCATE_TABLE: Final = 11
MODIFY_COLUMN: Final = 12
KEPT: Final = (
    "a column was modified, and no message tells its types: rows from before keep the values they had"
)
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
        (rf"alter\s+table\s+{_QUALIFIED}\s+drop\s+partition\b", "DROP PARTITION removes rows"),
        (rf"alter\s+table\s+{_QUALIFIED}\s+truncate\s+partition\b", "TRUNCATE PARTITION removes rows"),
        (rf"alter\s+table\s+{_QUALIFIED}\s+exchange\s+partition\b", "EXCHANGE PARTITION moves rows"),
        (r"recover\s+table\b", "RECOVER TABLE brings rows back"),
        (r"flashback\b", "FLASHBACK brings rows back"),
    )
}
"""What changes rows without row events."""


def plan_without_header(message: DdlMessage, tables: Iterable[Definition]) -> list[Step]:
    """The steps of a DDL known only by its SQL text; columns are learnt from the rows that follow.

    Recognised: drop schema, drop, truncate and rename table; refused: what moves rows. A modified column is
    said: TiDB may have converted older rows, and they stay as they are here. The message's action
    counts where the protocol sends it, else the text without its comments. An added column's default for
    older rows is not in any message: it stays null there.
    """
    known = {(table.schema, table.table): table for table in tables}
    name, text, action = (message.schema, message.table), without_comments(message.query), message.action
    moves = _MOVES_BY_ACTION.get(action) if action is not None else None
    moves = moves or next((what for statement, what in _MOVES_ROWS.items() if statement.match(text)), None)
    if moves is not None:
        return [Refuse(f"{moves} without row events, and the message has no header that tells of the table")]
    if (schema := _DROP_SCHEMA.match(text)) is not None:
        dropped = _unquoted(schema.group(1), schema.group(2))
        return [Drop(*held) for held in known if held[0] == dropped] or [
            Nothing("the schema has no tables here")
        ]
    if pairs := renamed(text):
        return _renamed_by_text(message, pairs, known)
    if action == DROP_TABLE or _DROP_TABLE.match(text):
        return [Drop(*name)] if name in known else [Nothing("not here")]
    if (action == TRUNCATE_TABLE or _TRUNCATE.match(text)) and name in known:
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
            return [Refuse(f"{why}, and the message has no header that tells of the table")]
        case statement:
            return [Replay(statement, message.query, message.ts, time_zone)]


_COMMENTS: Final = re.compile(
    r"""('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)"""
    r"|/\*(?:!\d*|T!(?:\[[^\]]*\])?)(.*?)\*/|/\*.*?\*/|(?:--(?=\s|$)|\#)[^\n]*",
    re.DOTALL,
)
"""Quoted text (group 1), comments that TiDB executes (group 2: their content), and plain comments."""


def without_comments(query: str) -> str:
    """A statement with a space for each comment, and without the marks of comments that TiDB executes."""
    return _COMMENTS.sub(lambda found: found.group(1) or f" {found.group(2) or ''} ", query).strip()


def _unquoted(quoted: str | None, plain: str | None) -> str:
    return _plain(quoted) if quoted else plain or ""


def _plain(quoted: str) -> str:
    return quoted.replace("``", "`")


def renamed(query: str) -> list[tuple[Name, Name]]:
    """The old and the new name of each table that a statement renames; empty: it renames none."""
    text = without_comments(query)
    return names_in(text) or _altered_name(text)


def _altered_name(query: str) -> list[tuple[Name, Name]]:
    """The names in ALTER TABLE .. RENAME, as `names_in` has those of RENAME TABLE."""
    found = _RENAME.match(query)
    if found is None:
        return []
    parts = found.groups()
    old_schema, old, schema, new = (_unquoted(*parts[at : at + 2]) for at in range(0, len(parts), 2))
    return [((old_schema, old), (schema, new))]


def _renamed_by_text(message: DdlMessage, pairs: list[tuple[Name, Name]], known: Known) -> list[Step]:
    """One step after the other: a later one may take a name that an earlier one has freed."""
    known, steps = dict(known), list[Step]()
    for (old_schema, old), (schema, new) in pairs:
        source, target = (old_schema or message.schema, old), (schema or message.schema, new)
        held = known.pop(source, None)
        if held is None:
            continue
        if target in known:
            return [Refuse(f"{held.name} gets the name of a table that is still there: {'.'.join(target)}")]
        known[target] = replace(held, schema=target[0], table=target[1], version=message.ts)
        steps.append(Rename(*source, known[target]))
    return steps or [Nothing("not here")]


def regrown(held: Definition, grown: Definition) -> Rewrite:
    """A guessed table of which rows show more than was known: the values stay, under wider types."""
    sources = tuple(Source(column, held.column(column.name)) for column in grown.columns)
    return Rewrite(grown, sources, in_place=False)
