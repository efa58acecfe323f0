"""The steps (`ddl_steps`) of a DDL event, computed from the TableInfo before and after, not from SQL. Pure.

| event | steps |
|---|---|
| create table, create like, create tables | `Create` |
| drop table | `Drop`; drop schema: one `Drop` per table of it |
| truncate | `Create` again (a new table id, no rows) |
| rename | `Rename`, then `Rewrite` if columns changed too |
| add, drop, rename, modify, move columns | one `Rewrite`: each column is copied from its source, or filled |
| index, comment, default, auto_increment | `Redefine`: the rows stay as they are |
| add, reorganize, remove partitions | `Redefine`: TiDB moves rows between partitions and changes none |
| drop, truncate partition | `Prune`: the rows of the partition are removed |
| exchange partition | `Exchange`: the rows of the partition and those of the table change places |
| recover, flashback table | `Restore`: the rows as they were when the table was dropped or truncated |
| views, sequences, schemas | `Nothing`, with the reason |

Columns before and after are paired by TiDB's column id. A MODIFY that needs new data gives the column a new
id: then they are paired by name, and by the names in the text for a CHANGE that also renames. Only the values
of a column with a new id are converted, as TiDB converts them (`modify`).
A DDL that adds or removes rows without row events is `Refuse` if the result cannot be computed from what the
target holds. docs/ddl-at-targets.md has this table for users; `ddl_text_plan` plans DDLs without a header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tidegate.consumer.ddl.ddl_steps import (
    Create,
    Drop,
    Dropped,
    Exchange,
    Known,
    Nothing,
    Prune,
    Redefine,
    Refuse,
    Rename,
    Restore,
    Rewrite,
    Source,
    Step,
)
from tidegate.consumer.ddl.ddl_text import renamed_columns
from tidegate.consumer.table.convert import Losses
from tidegate.consumer.table.definition import Definition, fill_value, from_info
from tidegate.consumer.table.modify import change_of, known_zone
from tidegate.consumer.table.partitioning import NotComputable, members
from tidegate.model.ddl import WITHOUT_VALIDATION, DdlEvent
from tidegate.tidb import table_info
from tidegate.tidb.table_info import is_base_table, table_schema

DROP_SCHEMA: Final = 2
DROP_PARTITION: Final = 20
TRUNCATE_PARTITION: Final = 23
RECOVER_TABLE: Final = 25
EXCHANGE: Final = 42
REPARTITION: Final = frozenset({71, 72})
"""ALTER TABLE PARTITION BY and REMOVE PARTITIONING give the old rows a new table id."""
MISPLACED: Final = "tidegate_misplaced_rows"
"""Member of a TableInfo at the target: an EXCHANGE PARTITION WITHOUT VALIDATION has brought rows into a
partition to which their values do not belong. The rows of a partition can then no longer be computed."""
_UNCHECKED: Final = (
    "EXCHANGE PARTITION WITHOUT VALIDATION has brought rows that their values place in another partition"
)
REFUSED: Final = {
    62: "FLASHBACK CLUSTER changes rows of all tables without row events",
    63: "FLASHBACK DATABASE brings tables back without row events",
}


def plan(
    event: DdlEvent, tables: Iterable[Definition], dropped: Mapping[int, Dropped] | None = None
) -> list[Step]:
    """The steps of one event.

    `tables` are those at the target before it; `dropped` has the tables that were dropped or truncated and
    can still be read, by TiDB's table id.
    """
    known = {(table.schema, table.table): table for table in tables}
    if event.action in REFUSED:
        return [Refuse(REFUSED[event.action])]
    if event.action == DROP_SCHEMA:
        # Sorted, so that a restart plans the same order: a database target records how many steps are done.
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
    # Before the case of a new table, like which it looks: its rows would be lost.
    if event.action == RECOVER_TABLE:
        return [_restored(definition, dropped or {})]
    if event.action == EXCHANGE:
        return _exchanged(event, after, definition, known)
    # Another id is another table, without rows: TRUNCATE. Only a new partitioning keeps rows under a new id.
    if before is None or (before["id"] != after["id"] and event.action not in REPARTITION):
        return [Create(definition)]
    if event.action in (DROP_PARTITION, TRUNCATE_PARTITION):
        # Rows go while the table still has the definition by which their partitions are computed.
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
        return []  # the target has no rows of this table
    try:
        if held.info is not None and held.info.get(MISPLACED):
            raise NotComputable(_UNCHECKED)
        return [Prune(held.schema, held.table, members(before, held, event.removed_ids))]
    except NotComputable as error:
        return [Refuse(f"the partition's rows are removed without row events, and {error}")]


def _exchanged(event: DdlEvent, after: dict[str, Any], made: Definition, known: Known) -> list[Step]:
    """The steps of EXCHANGE PARTITION.

    The old side of the event is the plain table before it, the new side the partitioned table after it.
    """
    other, held = known.get((event.old_schema, event.old_table)), known.get((event.schema, event.table))
    why = "rows move between two tables without row events, and "
    if held is None or other is None or held.info is None:
        return [Refuse(f"{why}one of the two is not at the target: it is filtered out, or had no row yet")]
    # TiDB exchanges the two physical ids, so the id that has left the partitioned table is the partition's.
    gone = set(table_info.physical_ids(held.info)) - set(table_info.physical_ids(after))
    if len(gone) != 1:
        return [Refuse(f"{why}{len(gone)} partitions of {held.name} have left it, not one")]
    # TiDB has compared the two tables upstream. Here one of them may still have columns that were guessed
    # from rows.
    if [(c.name, c.type) for c in held.columns] != [(c.name, c.type) for c in other.columns]:
        return [Refuse(f"{why}their columns differ at the target")]
    # Rows without a key have an id of the consumer's own (`ROWID`), which rows with a key lack.
    if bool(held.keys) != bool(other.keys):
        return [Refuse(f"{why}only one of them has a key at the target")]
    if held.soft_delete or other.soft_delete:
        # They are at the target alone: they could have the key of a row that moves, or belong to no partition
        # that it moves to.
        return [Refuse(f"{why}deleted rows that were kept (--soft-delete) are in one of them")]
    # Later DDLs find the plain table by the id that the partition had.
    (new_id,) = gone
    info = other.info | {"id": new_id} if other.info is not None else None
    other = replace(other, table_id=new_id, version=event.finished_ts, info=info)
    try:
        if held.info.get(MISPLACED):
            raise NotComputable(_UNCHECKED)
        chosen = members(held.info, held, gone)
    except NotComputable as error:
        return [Refuse(f"{why}{error}")]
    # The mounter writes this text, so the words are exactly these, and the last ones.
    validated = not event.query.endswith(WITHOUT_VALIDATION)
    return [
        # First, because the exchange may mark this definition: rows may be in a partition to which they do
        # not belong.
        Redefine(made, "columns are as before"),
        Exchange(held.schema, held.table, chosen, other, validated),
    ]


def _altered(event: DdlEvent, before: dict[str, Any], after: Definition, known: Known) -> list[Step]:
    held = _held(event, before, known)
    if held is None:
        # The target does not know the table: the topic began after its creation, and no row of it has come.
        return [Create(after)]
    if held.info is not None and held.info.get(MISPLACED) and event.action not in REPARTITION:
        after = misplaced(after)
    steps: list[Step] = []
    # The rename comes first: the steps after it find the table by its new name.
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
    """The table at the target that an event changes; for an EXCHANGE the partitioned one."""
    if event.action == EXCHANGE:
        return known.get((event.schema, event.table))
    before = _base(event.before)
    return _held(event, before, dict(known)) if before is not None else None


def _held(event: DdlEvent, before: dict[str, Any], known: Known) -> Definition | None:
    """The table at the target: found by TiDB's id, which no rename changes, otherwise by name."""
    # A table that rows alone have made has no id (0), so only its name can find it.
    by_id = next((one for one in known.values() if one.table_id == before["id"]), None)
    return by_id or known.get((event.old_schema, event.old_table))


def misplaced(made: Definition) -> Definition:
    """The definition, marked: some rows are in partitions to which their values do not belong."""
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
            # A column that keeps its own id is a different one, and not the source of this one.
            was = None if was is not None and was.id in kept else was
        taken = held.column(was.name) if was is not None else None
        fill = None if taken is not None else fill_value(new, column, Losses())
        change = change_of(was, new, zone) if taken is not None and was is not None else None
        sources.append(Source(column, taken, fill, change))
    return tuple(sources)


def _same_columns(held: Definition, after: Definition, sources: tuple[Source, ...]) -> bool:
    # Enum and set values are stored as names, so new elements change no stored value. A guessed column (no
    # elements) holds numbers instead, and must be rewritten once its elements are known.
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
        # Rows without a key are compared by their whole content, so a new column changes each of them.
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
