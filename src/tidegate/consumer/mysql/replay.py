"""SQL of the topic as statements at the target, and the tables that were there before the consumer.

A statement is run with the names that it has upstream. What a table looks like afterwards is read from the
server (`found`), not computed. A table that is there and none of the consumer's is adopted or refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.consumer import sql_replay
from tidegate.consumer.ddl_plan import Replay
from tidegate.consumer.definition import Definition
from tidegate.consumer.mysql import found
from tidegate.consumer.mysql.found import Found
from tidegate.consumer.mysql.literals import quoted
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.statements import (
    Again,
    AlterTable,
    CreateTable,
    RenameTable,
    Statement,
    create_schema,
)
from tidegate.consumer.mysql.tables import COLLATIONS, qualified
from tidegate.consumer.target import Name
from tidegate.errors import Fatal

_COLLATION: Final = re.compile(
    r"('(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`)|\b(" + "|".join(COLLATIONS) + r")\b", re.IGNORECASE
)
"""Quoted text, or the name of a collation that only TiDB and MySQL have."""


COPY: Final = (
    "if it holds a copy of the source's rows, taken at the changefeed's start-ts or later, start again with "
    "--adopt; else move it out of the way, or leave the table out with a [filter] rule"
)
"""What to do about a table that is there already."""


@dataclass(slots=True)
class Rendered:
    """What a statement of the topic takes at the target."""

    statements: list[Statement] = field(default_factory=list)
    read: dict[Name, bool] = field(default_factory=dict)
    """Tables whose definition is to be read when all has run, and whether they are adopted ones."""


class Tables:
    """The target's tables as its server says, this consumer's and others."""

    def __init__(self, progress: Progress, *, adopting: bool) -> None:
        self._hold, self._kept, self.adopting = progress.hold, progress.definitions, adopting

    def there(self, name: Name) -> bool:
        """Whether anything bears this name."""
        return found.there(self._hold.rows, name)

    def adopt(self, name: Name, version: int, keys: tuple[str, ...] = ()) -> Definition:
        """The definition of a table that is there and not ours; Fatal when it may not be written."""
        self._check(name)
        return found.adopted(self._look(name), name, version, keys)

    def read(self, name: Name, version: int, *, adopted: bool) -> Definition:
        """The definition of a table of ours as it is now."""
        seen = self._look(name)
        if adopted:
            return found.adopted(seen, name, version)
        if seen.engine != "InnoDB":
            raise Fatal(
                "a table is not InnoDB",
                where=f"table {'.'.join(name)}: {seen.kind.lower()} {seen.engine}",
                why="without transactions a batch could be written by halves",
                fix="ALTER TABLE .. ENGINE=InnoDB, and start again",
            )
        return found.made(seen, name, version)

    def rekeyed(self, held: Definition, keys: tuple[str, ...]) -> Definition:
        """A table of ours whose rows the topic tells apart by other columns than the target's own choice."""
        name = held.schema, held.table
        one = found.adopted if held.uniques else found.made
        return one(self._look(name), name, held.version, keys)

    def described(self, asked: Definition) -> Definition:
        """A table that is there, as a TableInfo of the topic says it looks."""
        name = asked.schema, asked.table
        taken = self.adopt(name, asked.version, asked.keys)
        here, wanted = ({column.name for column in one.columns} for one in (taken, asked))
        if here != wanted:
            raise Fatal(
                "a table that is there already is another than the source's",
                where=f"table {asked.name}, column {', '.join(sorted(here ^ wanted))}",
                why="only one of them has it",
                fix="give the table the columns that the source has at this ts, and start again",
            )
        return replace(asked, uniques=taken.uniques, generated=taken.generated)

    def others(self, schema: str, known: Iterable[Name]) -> list[Name]:
        """The tables and views of a schema that a DROP DATABASE must leave.

        Without --adopt those are all that are not ours, else only other consumers'.
        """
        if self.adopting:
            return [(schema, table) for table in self._kept.of_others(schema)]
        return [name for name in self.all(schema) if name not in set(known)]

    def all(self, schema: str) -> list[Name]:
        """All tables and views of a schema."""
        rows = self._hold.rows(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s ORDER BY 1", schema
        )
        return [(schema, table) for (table,) in rows]

    def droppable(self, name: Name) -> bool:
        """Whether a table that is not ours goes with a DROP TABLE: adopted later, it would have old rows."""
        return self.adopting and not self._kept.owner(*name)

    def _check(self, name: Name) -> None:
        if not self.adopting:
            raise Fatal(
                "a table that is to be written is there already",
                where=".".join(name),
                why="it is none of this consumer's: it was there before, or somebody has made it since",
                fix=COPY,
            )
        self._kept.check_owner(*name)

    def _look(self, name: Name) -> Found:
        seen = found.look(self._hold.rows, name)
        if seen is None:
            raise missing(name)
        return seen


def missing(name: Name) -> Fatal:
    """A table that must be there and is not."""
    return Fatal(
        "a table is not at the target",
        where=".".join(name),
        why="it was made before the changefeed's start, and messages tell neither lengths nor indexes",
        fix="load it there (its rows too, as of the changefeed's start-ts or later) and start again with "
        "--adopt, leave it out with a [filter] rule of a new changefeed, or write to a Delta target",
    )


def replayed(step: Replay, known: dict[Name, Definition], tables: Tables, *, begun: bool) -> Rendered:
    """The statements of one step, and `known` as it is afterwards but for what is to be read.

    `begun`: this very DDL was begun before a restart, so that what it names may have changed already.
    """
    made = Rendered()

    def held(name: Name) -> Definition:
        if (one := known.get(name)) is not None:
            return replace(one, info=None)  # it tells how the table was
        if begun and not tables.there(name):  # it has its new name, or is gone
            return _unread(name, adopted=True)
        if not tables.there(name):
            raise missing(name)
        return tables.adopt(name, step.ts)

    match step.statement:
        case sql_replay.CreateSchema(schema, options):
            made.statements = [create_schema(schema, with_collations(options))]
        case sql_replay.DropSchema(schema):
            made.statements = _drop_schema(schema, known, tables)
            for name in [name for name in known if name[0] == schema]:
                del known[name]
        case sql_replay.CreateTable(name, body, like):
            if name in known:
                raise Fatal(
                    "a table that is to be made is there already",
                    where=".".join(name),
                    why="it is this consumer's: the DDL that dropped it upstream is not on the topic",
                    fix=f"drop it and start again; or keep it, and start with --skip-ddl {step.ts}",
                )
            if not begun and tables.there(name):
                known[name] = tables.adopt(name, step.ts)
                return made
            text = f"LIKE {qualified(*like)}" if like is not None else with_collations(body)
            whole = f"CREATE TABLE {qualified(*name)} {text}"
            made.statements = [create_schema(name[0]), CreateTable(name, whole)]
            known[name] = _unread(name, adopted=False)
            made.read[name] = False
        case sql_replay.DropTables(names):
            gone = [name for name in names if name in known or tables.droppable(name)]
            made.statements = _drop(gone)
            for name in gone:
                known.pop(name, None)
        case sql_replay.Truncate(name):
            held(name)
            made.statements = [Again(f"TRUNCATE TABLE {qualified(*name)}")]
            known[name] = _unread(name, adopted=False)
            made.read[name] = False
        case sql_replay.RenameTables(pairs):
            for old, new in pairs:
                _renamed(old, new, held(old), known, made)
        case sql_replay.AlterTable(name, changes, new):
            table = held(name)
            known[name] = table
            made.read[name] = bool(table.uniques)
            if changes:
                made.statements = [AlterTable(name, with_collations(changes))]
            if new is not None and new != name:
                _renamed(name, new, table, known, made)
    return made


def after_skipped(step: Replay, known: dict[Name, Definition], tables: Tables) -> Rendered:
    """`known` after a statement that the user has run in other words (`--skip-ddl`)."""
    made, names = Rendered(), sql_replay.tables(step.statement)
    if isinstance(step.statement, sql_replay.DropSchema):
        names = [name for name in known if name[0] == step.statement.schema]
    for name in names:
        was = known.pop(name, None)
        if tables.there(name):
            known[name] = was or _unread(name, adopted=False)
            made.read[name] = was is not None and bool(was.uniques)
    return made


def with_collations(text: str) -> str:
    """SQL with the target's names of collations that TiDB calls otherwise."""
    return _COLLATION.sub(lambda one: one[1] or COLLATIONS[one[2].lower()], text)


def session(step: Replay) -> str:
    """How a session must be for a statement: CURRENT_TIMESTAMP as it was upstream, and the zone of texts."""
    zone = sql_replay.offset(step.time_zone, step.ts)
    return f"SET time_zone='{zone}', timestamp={(step.ts >> 18) / 1000:.3f}"


def _renamed(old: Name, new: Name, table: Definition, known: dict[Name, Definition], made: Rendered) -> None:
    known.pop(old, None)
    if new in known:
        raise Fatal(
            "a table gets the name of one that is there",
            where=f"{'.'.join(old)} to {'.'.join(new)}",
            why="it is this consumer's: the DDL that dropped or renamed it upstream is not on the topic",
            fix="drop it, and start again",
        )
    known[new] = replace(table, schema=new[0], table=new[1])
    made.statements += [create_schema(new[0]), RenameTable(old, new)]
    made.read.pop(old, None)
    made.read[new] = bool(table.uniques)


def _drop_schema(schema: str, known: dict[Name, Definition], tables: Tables) -> list[Statement]:
    """One statement in any case: after a restart, a list of several could not be told from what is left."""
    ours = [name for name in known if name[0] == schema]
    others = tables.others(schema, known)
    if not others:
        return [Again(f"DROP DATABASE IF EXISTS {quoted(schema)}")]
    unowned = [name for name in tables.all(schema) if tables.droppable(name)]
    return _drop(list(dict.fromkeys([*ours, *unowned])))


def _drop(names: list[Name]) -> list[Statement]:
    listed = ", ".join(qualified(*name) for name in sorted(names))
    return [Again(f"DROP TABLE IF EXISTS {listed}")] if names else []


def _unread(name: Name, *, adopted: bool) -> Definition:
    """A place for a definition that is read when the statement has run."""
    return Definition(*name, 0, 0, (), (), None, uniques=((),) if adopted else ())
