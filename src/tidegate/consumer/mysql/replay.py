"""Turns SQL of the topic into statements at the target, and handles tables that existed before the consumer.

A statement runs with the names that it has upstream. The columns of a table afterwards are read from the
server (`found`), not computed. An existing table that is not the consumer's is adopted or refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.consumer.applying.target import Name
from tidegate.consumer.ddl import sql_replay
from tidegate.consumer.ddl.ddl_steps import Replay
from tidegate.consumer.mysql import exchange, found
from tidegate.consumer.mysql.dialect import COLLATIONS, Dialect
from tidegate.consumer.mysql.found import Found
from tidegate.consumer.mysql.literals import quoted
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.statements import (
    AlterTable,
    CreateTable,
    ExchangePartition,
    RenameTable,
    Repeatable,
    Statement,
    create_schema,
)
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal
from tidegate.model.timestamp import physical_ms

_COLLATION: Final = re.compile(
    r"('(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`)|\b(" + "|".join(COLLATIONS) + r")\b", re.IGNORECASE
)
"""Quoted text, or the name of a collation that only TiDB and MySQL have."""


COPY: Final = (
    "if it holds a copy of the source's rows, taken at the changefeed's start-ts or later, start again with "
    "--adopt; else move it out of the way, or leave the table out with a [filter] rule"
)
"""The advice for a table that exists already."""


@dataclass(slots=True)
class Rendered:
    """The statements at the target for one statement of the topic."""

    statements: list[Statement] = field(default_factory=list)
    read: dict[Name, bool] = field(default_factory=dict)
    """Tables whose definition must be read after all statements, and whether they are adopted ones."""


class Tables:
    """The tables in the target's server: this consumer's and others."""

    def __init__(self, progress: Progress, *, adopting: bool) -> None:
        self._hold, self._kept, self.adopting = progress.hold, progress.definitions, adopting

    @property
    def dialect(self) -> Dialect:
        """The kind of the server."""
        return self._hold.dialect

    def there(self, name: Name) -> bool:
        """Whether any object has this name."""
        return found.there(self._hold.rows, name)

    def adopt(self, name: Name, version: int, keys: tuple[str, ...] = ()) -> Definition:
        """The definition of an existing table that becomes ours; Fatal when it may not be written."""
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
                fix="run ALTER TABLE .. ENGINE=InnoDB, and start again",
            )
        return found.made(seen, name, version)

    def rekeyed(self, held: Definition, keys: tuple[str, ...]) -> Definition:
        """The definition of a table of ours, if the topic identifies rows by other columns than we chose."""
        name = held.schema, held.table
        one = found.adopted if held.uniques else found.made
        return one(self._look(name), name, held.version, keys)

    def described(self, asked: Definition) -> Definition:
        """The definition of an existing table for which the topic has a TableInfo."""
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
        """The tables and views of a schema that a DROP DATABASE must not drop.

        Without --adopt those are all that are not ours, otherwise only those of other consumers.
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
        """Whether a DROP TABLE drops a table that is not ours: adopted later, it would have old rows."""
        return self.adopting and not self._kept.owner(*name)

    def partition_name(self, name: Name, partition: str, change: str = "exchanged") -> str:
        """See `exchange.partition_name`."""
        return exchange.partition_name(self._hold.rows, self.dialect, name, partition, change)

    def _check(self, name: Name) -> None:
        if not self.adopting:
            raise Fatal(
                "a table that is to be written is there already",
                where=".".join(name),
                why="it is none of this consumer's: it existed before, or another program has made it since",
                fix=COPY,
            )
        self._kept.check_owner(*name)

    def _look(self, name: Name) -> Found:
        seen = found.look(self._hold.rows, name)
        if seen is None:
            raise missing(name)
        return seen


def missing(name: Name) -> Fatal:
    """The error for a table that must exist and does not."""
    return Fatal(
        "a table is not at the target",
        where=".".join(name),
        why="it was made before the changefeed's start, and messages have neither lengths nor indexes",
        fix="load it there (its rows too, as of the changefeed's start-ts or later) and start again with "
        "--adopt, leave it out with a [filter] rule of a new changefeed, or write to a Delta target",
    )


def replayed(step: Replay, known: dict[Name, Definition], tables: Tables, *, begun: bool) -> Rendered:
    """The statements of one step; `known` becomes what it is afterwards, except for what must be read.

    `begun`: this DDL was begun before a restart, so the tables that it names may have changed already.
    """
    made = Rendered()

    def held(name: Name) -> Definition:
        if (one := known.get(name)) is not None:
            return replace(one, info=None)  # the TableInfo describes the table before this statement
        if begun and not tables.there(name):  # it has its new name, or was dropped
            return _unread(name, adopted=True)
        if not tables.there(name):
            raise missing(name)
        return tables.adopt(name, step.ts)

    match step.statement:
        case sql_replay.CreateSchema(schema, options):
            made.statements = [create_schema(schema, with_collations(options, tables.dialect))]
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
            # If the DDL was begun, the table may be the one that it made before the crash.
            if not begun and tables.there(name):
                known[name] = tables.adopt(name, step.ts)
                return made
            text = f"LIKE {qualified(*like)}" if like is not None else with_collations(body, tables.dialect)
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
            made.statements = [Repeatable(f"TRUNCATE TABLE {qualified(*name)}")]
            known[name] = _unread(name, adopted=False)
            made.read[name] = False
        case sql_replay.RenameTables(pairs):
            for old, new in pairs:
                _renamed(old, new, held(old), known, made)
        case sql_replay.AlterTable(name, changes, new):
            table = held(name)
            known[name] = table
            made.read[name] = bool(table.uniques)
            # TiDB and MariaDB spread rows by KEY in different ways: the partition of the name has other rows.
            for partition in exchange.truncated(changes):
                tables.partition_name(name, partition, "truncated")
            if changes:
                made.statements = [AlterTable(name, with_collations(changes, tables.dialect))]
            if new is not None and new != name:
                _renamed(name, new, table, known, made)
        case sql_replay.ExchangePartition(name, partition, other):
            for one in (name, other):
                if not tables.there(one):
                    raise missing(one)
                known[one] = held(one)
                made.read[one] = False
            exchange.check_movable(known[name], known[other])
            made.statements = [ExchangePartition(name, tables.partition_name(name, partition), other)]
    return made


def after_skipped(step: Replay, known: dict[Name, Definition], tables: Tables) -> Rendered:
    """The result, and `known`, after a statement that was run by hand (`--skip-ddl`)."""
    made, names = Rendered(), sql_replay.tables(step.statement)
    if isinstance(step.statement, sql_replay.DropSchema):
        names = [name for name in known if name[0] == step.statement.schema]
    for name in names:
        was = known.pop(name, None)
        if tables.there(name):
            known[name] = was or _unread(name, adopted=False)
            made.read[name] = was is not None and bool(was.uniques)
    return made


def with_collations(text: str, dialect: Dialect) -> str:
    """SQL with the target's names for collations whose names differ in TiDB."""
    if dialect is not Dialect.MARIADB:
        return text
    return _COLLATION.sub(lambda one: one[1] or COLLATIONS[one[2].lower()], text)


def session(step: Replay) -> str:
    """Sets up a session for a statement: CURRENT_TIMESTAMP as it was upstream, and the zone of texts."""
    zone = sql_replay.offset(step.time_zone, step.ts)
    return f"SET time_zone='{zone}', timestamp={physical_ms(step.ts) / 1000:.3f}"


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
    # If a table is renamed twice in a statement, only its last name is there to be read.
    made.read.pop(old, None)
    made.read[new] = bool(table.uniques)


def _drop_schema(schema: str, known: dict[Name, Definition], tables: Tables) -> list[Statement]:
    """One statement in any case: after a restart, the position in a list of several would not be known."""
    ours = [name for name in known if name[0] == schema]
    others = tables.others(schema, known)
    if not others:
        return [Repeatable(f"DROP DATABASE IF EXISTS {quoted(schema)}")]
    unowned = [name for name in tables.all(schema) if tables.droppable(name)]
    return _drop(list(dict.fromkeys([*ours, *unowned])))


def _drop(names: list[Name]) -> list[Statement]:
    listed = ", ".join(qualified(*name) for name in sorted(names))
    return [Repeatable(f"DROP TABLE IF EXISTS {listed}")] if names else []


def _unread(name: Name, *, adopted: bool) -> Definition:
    """A placeholder for a definition that is read after the statement has run."""
    return Definition(*name, 0, 0, (), (), None, uniques=((),) if adopted else ())
