"""The statements of a DDL's steps at the target, rendered from definitions. Pure.

Steps that run SQL of the topic are rendered by `replay`.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.consumer.applying.target import Name
from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.ddl.ddl_steps import REPEAT
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.statements import (
    AlterTable,
    CreateTable,
    DeleteRows,
    Recast,
    RenameTable,
    Repeatable,
    Statement,
    SwapRows,
    create_schema,
)
from tidegate.consumer.mysql.tables import added_columns, alterations, create_table, qualified, recasts
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal


def statements(
    step: ddl_steps.Step, known: dict[Name, Definition], dialect: Dialect = Dialect.MARIADB
) -> list[Statement]:
    """The statements of a step; `known` is changed to what it is after it. Fatal when the target cannot do
    it.
    """
    match step:
        case ddl_steps.Create(made):
            held = known.get((made.schema, made.table))
            known[made.schema, made.table] = made
            return _created(made, held, dialect)
        case ddl_steps.Drop(schema, table):
            return (
                [Repeatable(f"DROP TABLE IF EXISTS {qualified(schema, table)}")]
                if known.pop((schema, table), None)
                else []
            )
        case ddl_steps.Rename(schema, table, made):
            held, new = known.pop((schema, table)), (made.schema, made.table)
            moved = replace(held, schema=made.schema, table=made.table)
            known[new] = made if held.arrow_schema == made.arrow_schema else moved
            changes = alterations(moved, made, None, dialect=dialect) if known[new] is made else []
            first: list[Statement] = [create_schema(made.schema), RenameTable((schema, table), new)]
            return [*first, *(AlterTable(new, text) for text in changes)]
        case ddl_steps.Rewrite(made, sources, _):
            name = made.schema, made.table
            filled = recasts(sources)
            texts = alterations(known[name], made, sources, filled, dialect=dialect)
            known[name] = made
            # The old column is dropped or renamed only after the new one is filled: until then a restart can
            # convert its values again.
            first = [AlterTable(name, added_columns(made, filled, dialect))] if filled else []
            return [*first, *_recasts(name, sources, filled), *(AlterTable(name, text) for text in texts)]
        case ddl_steps.Redefine(made, _):
            name = made.schema, made.table
            texts = alterations(known[name], made, None, dialect=dialect)
            known[name] = made
            return [AlterTable(name, text) for text in texts]
        case ddl_steps.Nothing(_):
            return []
        case ddl_steps.Prune(schema, table, members):
            return [DeleteRows((schema, table), members)]
        case ddl_steps.Exchange(schema, table, members, other, validated):
            held, new = known[schema, table], (other.schema, other.table)
            known[new] = other
            stored = tuple(one for one in held.columns if one.name not in held.generated)
            return [SwapRows((schema, table), members, new, stored, validated)]
        case ddl_steps.Restore(made, _):
            raise refused(made.name, "rows that a database has dropped do not come back")
        case ddl_steps.Replay(query=query):
            raise AssertionError(f"see `replay`: {query}")
        case ddl_steps.Refuse(why):
            raise AssertionError(f"refused before any step: {why}")


def _recasts(name: Name, sources: tuple[ddl_steps.Source, ...], filled: dict[str, str]) -> list[Recast]:
    return [
        Recast(name, one.taken.name, filled[one.column.name], one.change)
        for one in sources
        if one.taken is not None and one.change is not None and one.column.name in filled
    ]


def _created(made: Definition, held: Definition | None, dialect: Dialect) -> list[Statement]:
    text = create_table(made, dialect)
    if held is not None and create_table(held, dialect) == text:
        return [Repeatable(f"TRUNCATE TABLE {qualified(made.schema, made.table)}")]
    gone: list[Statement] = []
    if held is not None:
        gone = [Repeatable(f"DROP TABLE IF EXISTS {qualified(held.schema, held.table)}")]
    return [create_schema(made.schema), *gone, CreateTable((made.schema, made.table), text)]


def refused(where: str, why: str) -> Fatal:
    """The error for a step that a database cannot execute."""
    return Fatal("a DDL cannot be replayed at the target", where=where, why=why, fix=REPEAT)
