"""What the user's `Rules` make of rows and DDLs, before anything is settled or planned. Pure.

    pieces   of tables that are followed, under their names at the target, without columns that are left out
    ddl      the event and the message in the same words; None: it says nothing about what is followed

What follows knows the target's names alone. A DDL is judged when it is due: if it is refused, all rows before
it are applied. `sources` says from which table each one at the target came: two of them must not meet,
and DROP DATABASE needs it. It is kept with the position.

Bounds: `sources` has one entry for each table at the target, and none without a route.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from tidegate.codec.base import DdlMessage, WireColumn
from tidegate.consumer import soft_delete, sql_columns, sql_replay
from tidegate.consumer.assembler import Piece
from tidegate.consumer.ddl_plan import DROP_SCHEMA, EXCHANGE, REPARTITION, renamed_columns
from tidegate.consumer.fetched import Fetched
from tidegate.consumer.position import Position, Source
from tidegate.consumer.rules import IGNORING, NO_RULES, Name, Rules, routed, routed_schemas
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_filter import lower
from tidegate.tidb.table_info import is_base_table, table_schema

T = TypeVar("T")

REMEMBERED: Final = 1 << 12
"""Sets of columns of which it is remembered what is left; then it begins again."""
_ABSENT: Final = 0
"""TiDB's state of a column that nobody sees."""
_NEW_TARGET: Final = "start a new target with rules that say otherwise"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A DDL in the words of the target."""

    event: DdlEvent | None
    """None: the message has no header."""
    message: DdlMessage
    """Its query is the routed text, where names or columns were replaced in it."""
    queries: tuple[str, ...]
    """What a target runs that runs SQL: the query; of CREATE DATABASE, one for each schema it leads to."""
    drops: tuple[Name, ...] | None = None
    """The tables that DROP DATABASE takes away under a route; None: it is none, or there is no route."""
    refusal: Fatal | None = None
    """Why it cannot be done at any target."""
    sql_refusal: Fatal | None = None
    """Why its text cannot be run."""


class _Skip(Exception):
    """A text says nothing about what is followed."""


class Selection:
    """The rules of one run, and what it knows of the tables that they concern."""

    def __init__(self, rules: Rules = NO_RULES, sources: Iterable[Source] = ()) -> None:
        """`sources`: as the position has them. Raises InvalidInput for a rule that cannot be read."""
        self._tables, self._columns, self._routes = rules.tables(), rules.columns(), rules.routes()
        self.soft_deletes = rules.soft_deletes()
        self._marked: dict[Name, str] = {}
        """By names at the target, the columns that say when a row was deleted: of tables with rows so far."""
        self._idle = not rules.selecting
        self._sources: dict[Name, tuple[Name, Name]] = {}
        """By a name at the target in lower case, that name and the source's."""
        self.know(sources)
        self._kept: dict[tuple[Name, tuple[WireColumn, ...]], tuple[WireColumn, ...]] = {}

    # --- what came from where

    def know(self, sources: Iterable[Source]) -> None:
        """Go on from a position."""
        for schema, table, from_schema, from_table in sources:
            self._sources[_folded((schema, table))] = (schema, table), (from_schema, from_table)

    @property
    def sources(self) -> tuple[Source, ...]:
        """What the position keeps."""
        return tuple((*name, *source) for name, source in sorted(self._sources.values()))

    def _forget(self, held: Collection[Name]) -> None:
        """A table that is gone frees its name."""
        self._sources = {key: pair for key, pair in self._sources.items() if pair[0] in held}

    def _claim(self, source: Name) -> Name:
        """A followed table's name at the target. Fatal when another table of the source has it."""
        name = routed(source, self._routes)
        if self._routes:
            _, other = self._sources.setdefault(_folded(name), (name, source))
            if _folded(other) != _folded(source):
                raise Fatal(
                    "two tables of the source would meet in one table at the target",
                    where=f"{_words(other)} and {_words(source)}, both to {_words(name)}",
                    why="their rows could not be told apart, and a DDL of one would change the other",
                    fix="start a new target with a --route that leads one of them elsewhere, or --exclude it",
                )
            self._sources[_folded(name)] = name, source
        return name

    def _column_for(self, source: Name) -> str:
        return soft_delete.column_for(*source, self.soft_deletes)

    def soft_delete(self, name: Name) -> str:
        """The column that `pieces` has given to a table at the target; empty: none."""
        return self._marked.get(name, "")

    def follows(self, schema: str, table: str) -> bool:
        """Whether a table is applied."""
        return self._tables is None or self._tables.matches(schema, table)

    def _follows_schema(self, schema: str) -> bool:
        return self._tables is None or self._tables.matches_schema(schema)

    def apart(self) -> Selection:
        """A copy that learns for itself: to ask about DDLs that may not be executed."""
        other = copy(self)
        other._sources = dict(self._sources)
        return other

    # --- rows

    def pieces(
        self, pieces: Mapping[Name, Sequence[Piece]], held: Collection[Name]
    ) -> Mapping[Name, Sequence[Piece]]:
        """The rows that are applied, by the target's names; `held`: the tables at the target.

        Fatal when two tables would meet, and when a key would lose a column.
        """
        if self._idle:
            return pieces
        self._forget(held)
        found = {}
        for source, part in pieces.items():
            if self.follows(*source):
                name = self._claim(source)
                found[name] = [self._piece(piece, source, name) for piece in part]
        return found

    def _piece(self, piece: Piece, source: Name, name: Name) -> Piece:
        columns = self._left(source, piece.segment.columns) if self._columns else piece.segment.columns
        if mark := self._column_for(source):
            if any(lower(column.name) == lower(mark) for column in piece.segment.columns):
                raise _mark_taken(source, mark)
            if not any(column.key for column in columns):
                raise _keyless(source)
            self._marked[name], columns = mark, (soft_delete.on_wire(mark), *columns)
        segment = replace(piece.segment, schema=name[0], table=name[1], columns=columns)
        return replace(piece, segment=segment)

    def _left(self, source: Name, columns: tuple[WireColumn, ...]) -> tuple[WireColumn, ...]:
        if (kept := self._kept.get((source, columns))) is not None:
            return kept
        if len(self._kept) >= REMEMBERED:
            self._kept.clear()
        kept = tuple(column for column in columns if not self._hides(source, column.name))
        if lost := [column.name for column in columns if column.key and column not in kept]:
            raise _key_lost(source, lost[0])
        if not kept:
            raise _nothing_left(source)
        self._kept[source, columns] = kept
        return kept

    def _hides(self, source: Name, column: str) -> bool:
        return self._columns.matches(*source, column)

    # --- DDL

    def ddl(self, event: DdlEvent | None, message: DdlMessage, held: Collection[Name]) -> Chosen | None:
        """A DDL in the target's words; None when it concerns nothing that is followed.

        `held`: the tables at the target. Nothing is raised but Fatal for two tables that meet: what is
        refused may have been done by hand.
        """
        if self._idle:
            return Chosen(event, message, (message.query,))
        self._forget(held)
        if event is not None:
            return self._of_event(event, message, held)
        return self._of_text(message, held)

    def followed(self, part: Fetched) -> Fetched:
        """What was fetched, without the DDLs whose messages name a table that is not followed."""
        ddls = tuple(message for message in part.ddls if self._concerns(message))
        return part if len(ddls) == len(part.ddls) else replace(part, ddls=ddls)

    def _concerns(self, message: DdlMessage) -> bool:
        return not message.table or self.follows(message.schema, message.table)

    def _of_event(self, event: DdlEvent, message: DdlMessage, held: Collection[Name]) -> Chosen | None:
        if not event.table:
            return self._of_schema(event, event.schema, event.action == DROP_SCHEMA, message, held)
        new, old = (event.schema, event.table), (event.old_schema, event.old_table)
        was, now = self.follows(*old), self.follows(*new)
        if event.action == EXCHANGE and was != now:
            return Chosen(event, message, (), refusal=_half_exchange(old, new, message))
        if not now:  # a table that moves out of what is followed stays as it was
            return None
        if not was:
            return Chosen(event, message, (), refusal=_moved_in(old, new, message))
        if (refusal := self._refusal(event, old, new) or self._mark_refusal(event, old, new)) is not None:
            return Chosen(event, message, (), refusal=refusal)
        exchanged = event.action == EXCHANGE
        before, after = (self._claim(old), self._claim(new)) if exchanged else self._pair(old, new)
        rewritten = replace(
            event,
            schema=after[0],
            table=after[1],
            old_schema=before[0],
            old_table=before[1],
            before=self._info(event.before, old),
            after=self._info(event.after, new),
        )
        query, refused = self._query(message)
        rewritten_message = replace(message, schema=after[0], table=after[1], query=query)
        return Chosen(rewritten, rewritten_message, (query,), sql_refusal=refused)

    def _pair(self, old: Name, new: Name) -> tuple[Name, Name]:
        """The target's names of a table before and after a DDL. A rename may lead from a name to itself."""
        before = self._target(old)
        _, known = self._sources.get(_folded(before), (before, None))
        if known is not None and _folded(known) == _folded(old) and before == self._target(new):
            del self._sources[_folded(before)]
        return before, self._claim(new)

    def _refusal(self, event: DdlEvent, old: Name, new: Name) -> Fatal | None:
        """Why a DDL cannot be had without the columns that are left out."""
        if not self._columns or event.after is None or not is_base_table(event.after):
            return None
        after = table_schema(event.schema, event.after, event.finished_ts)
        for at in after.handle_key:
            if self._hides(new, after.columns[at].name):
                return _key_lost(new, after.columns[at].name)
        if all(self._hides(new, column.name) for column in after.columns):
            return _nothing_left(new)
        if event.before is None or not is_base_table(event.before) or event.action == EXCHANGE:
            return None
        if event.before["id"] != event.after["id"] and event.action not in REPARTITION:
            return None  # a new table, without rows
        before = table_schema(event.old_schema, event.before, event.finished_ts)
        return self._returning(event, before, after, old, new)

    def _mark_refusal(self, event: DdlEvent, old: Name, new: Name) -> Fatal | None:
        """Why a table cannot keep its deleted rows after a DDL."""
        if not self.soft_deletes or event.after is None or not is_base_table(event.after):
            return None
        mark = self._column_for(new)
        if mark != self._column_for(old):
            return _marked_otherwise(old, new, f"{event.query[:200]} at ts {event.finished_ts}")
        if not mark:
            return None
        after = table_schema(event.schema, event.after, event.finished_ts)
        if any(lower(column.name) == lower(mark) for column in after.columns):
            return _mark_taken(new, mark)
        return None if after.handle_key else _keyless(new)

    def _returning(
        self, event: DdlEvent, before: TableSchema, after: TableSchema, old: Name, new: Name
    ) -> Fatal | None:
        """A column that was left out and is not any more: its values are not at the target."""
        ids = {column.id: column for column in before.columns}
        names = {column.name.lower(): column for column in before.columns}
        renamed, stay = renamed_columns(event.query), {column.id for column in after.columns}
        for column in after.columns:
            was = ids.get(column.id)
            if was is None:
                was = names.get(renamed.get(column.name.lower(), column.name.lower()))
                was = None if was is not None and was.id in stay else was
            if was is not None and self._hides(old, was.name) and not self._hides(new, column.name):
                return _column_back(event, f"{_words(old)}.{was.name}", f"{_words(new)}.{column.name}")
        return None

    def _info(self, info: dict[str, Any] | None, source: Name) -> dict[str, Any] | None:
        if info is None:
            return info
        if self._columns:
            info = self._without_columns(info, source)
        mark = self._column_for(source)
        return soft_delete.in_info(info, mark) if mark and is_base_table(info) else info

    def _without_columns(self, info: dict[str, Any], source: Name) -> dict[str, Any]:
        columns = [
            entry | {"state": _ABSENT} if self._hides(source, entry["name"]["O"]) else entry
            for entry in info.get("cols") or []
        ]
        return info | {"cols": columns}

    def _of_schema(
        self,
        event: DdlEvent | None,
        schema: str,
        drops: bool,
        message: DdlMessage,
        held: Collection[Name],
        options: str = "",
    ) -> Chosen | None:
        """CREATE and DROP DATABASE, and what else concerns no table; `options`: of CREATE DATABASE."""
        if schema and not self._follows_schema(schema):
            return None
        if not self._routes or not schema:
            return Chosen(event, message, (message.query,))
        targets = routed_schemas(schema, self._routes)
        rewritten = replace(event, schema=targets[0], old_schema=targets[0]) if event is not None else None
        if drops:
            gone = {name for name, source in self._sources.values() if lower(source[0]) == lower(schema)}
            return Chosen(rewritten, message, (), drops=tuple(sorted(gone & set(held))))
        queries = tuple(
            sql_replay.text_of(sql_replay.CreateSchema(target, options)) for target in targets if options
        )
        return Chosen(rewritten, replace(message, schema=targets[0]), queries)

    # --- DDL by its text

    def _of_text(self, message: DdlMessage, held: Collection[Name]) -> Chosen | None:
        match sql_replay.read(message.query, message.schema):
            case sql_replay.CreateSchema(schema, options):
                return self._of_schema(None, schema, False, message, held, options)
            case sql_replay.DropSchema(schema):
                return self._of_schema(None, schema, True, message, held)
            case sql_replay.Ignored(_):
                return None
            case sql_replay.Unknown(why):
                if not self._concerns(message):
                    return None
                refusal = _refused(message, why) if self._columns or self._routes else None
                return Chosen(None, message, (message.query,), refusal=refusal)
            case statement:
                return self._of_statement(message, statement)

    def _of_statement(self, message: DdlMessage, statement: sql_replay.Replayed) -> Chosen | None:
        try:
            rewritten = self._statement(message, statement)
        except _Skip:
            return None
        except sql_columns.Refused as error:
            return Chosen(None, message, (message.query,), refusal=_refused(message, str(error)))
        except Fatal as error:
            return Chosen(None, message, (message.query,), refusal=error)
        query = sql_replay.text_of(rewritten) if rewritten != statement else message.query
        schema, table = self._target((message.schema, message.table))
        routed_message = replace(message, schema=schema, table=table, query=query)
        return Chosen(None, routed_message, (query,), sql_refusal=self._no_text(message, statement))

    def _no_text(self, message: DdlMessage, statement: sql_replay.Replayed) -> Fatal | None:
        """Why a text cannot be run as SQL: the column for deleted rows is not in it."""
        if any(self._column_for(name) for name in _names_in(statement)):
            return _refused(message, "--soft-delete needs the DDL header, which the message does not have")
        return None

    def _query(self, message: DdlMessage) -> tuple[str, Fatal | None]:
        """The text of a DDL whose header says all; it may yet be run. And why it cannot be."""
        statement = sql_replay.read(message.query, message.schema)
        if isinstance(statement, sql_replay.Ignored | sql_replay.Unknown):
            return message.query, None
        try:
            rewritten = self._statement(message, statement)
        except _Skip:
            return "", None
        except sql_columns.Refused as error:
            return message.query, _refused(message, str(error))
        except Fatal as error:
            return message.query, error
        return sql_replay.text_of(rewritten) if rewritten != statement else message.query, None

    def _statement(self, message: DdlMessage, statement: sql_replay.Replayed) -> sql_replay.Replayed:
        """The statement in the target's words. Raises _Skip, Refused and Fatal."""
        match statement:
            case sql_replay.CreateTable(name, _, like):
                return self._created(statement, name, like)
            case sql_replay.DropTables(names):
                kept = [name for name in names if self.follows(*name)]
                return sql_replay.DropTables(tuple(map(self._target, _some(kept))))
            case sql_replay.Truncate(name):
                self._check_followed(name)
                return sql_replay.Truncate(self._target(name))
            case sql_replay.RenameTables(pairs):
                within = [pair for pair in pairs if self._moves_within(*pair, message)]
                return sql_replay.RenameTables(tuple(self._pair(*pair) for pair in _some(within)))
            case sql_replay.AlterTable(name, _, renamed):
                return self._altered(statement, name, renamed, message)
            case _:
                return statement

    def _check_followed(self, source: Name) -> None:
        if not self.follows(*source):
            raise _Skip

    def _target(self, source: Name) -> Name:
        return routed(source, self._routes)

    def _moves_within(self, old: Name, new: Name, message: DdlMessage) -> bool:
        if self.follows(*new) and not self.follows(*old):
            raise _moved_in(old, new, message)
        if self.follows(*new) and self._column_for(old) != self._column_for(new):
            raise _marked_otherwise(old, new, f"{message.query[:200]} at ts {message.ts}")
        return self.follows(*new)

    def _created(self, made: sql_replay.CreateTable, name: Name, like: Name | None) -> sql_replay.Replayed:
        self._check_followed(name)
        if like is not None:
            if not self.follows(*like):
                raise sql_columns.Refused(f"it is made like {_words(like)}, which is not at the target")
            if self._columns.of_table(*like) != self._columns.of_table(*name):
                raise sql_columns.Refused(
                    f"it is made like {_words(like)}, of which other columns are left out"
                )
            return replace(made, name=self._claim(name), like=self._target(like))
        self._check_names(made.body, name)
        rewritten = sql_columns.without_columns(made, lambda column: self._hides(name, column))
        return replace(rewritten, name=self._claim(name))

    def _altered(
        self, made: sql_replay.AlterTable, name: Name, renamed: Name | None, message: DdlMessage
    ) -> sql_replay.Replayed:
        if not self._moves_within(name, renamed or name, message):
            raise _Skip
        self._check_names(made.changes, name)
        if renamed is not None and self._columns.of_table(*name) != self._columns.of_table(*renamed):
            raise sql_columns.Refused(f"other columns are left out of {_words(renamed)}")
        rewritten = sql_columns.without_columns(made, lambda column: self._hides(name, column))
        assert isinstance(rewritten, sql_replay.AlterTable)
        if not rewritten.changes and renamed is None:
            raise _Skip
        if renamed is None:
            return replace(rewritten, name=self._claim(name))
        before, after = self._pair(name, renamed)
        return replace(rewritten, name=before, renamed=after if after != before else None)

    def _check_names(self, text: str, name: Name) -> None:
        if self._target(name) != name:
            sql_columns.check_unqualified(text)


def check_same_rules(held: Position, given: tuple[str, ...], target: str) -> None:
    """InvalidInput when a target was filled under other rules; `held`: its position, or a write begun.

    Changes of columns may be ignored from now on: nothing is missing then.
    """
    if given in (held.rules, (*held.rules, IGNORING)):
        return
    raise InvalidInput(
        "the target was filled under other rules",
        where=target,
        why=f"it was filled with {' '.join(held.rules) or 'no rule'}, and is given "
        f"{' '.join(given) or 'no rule'}: what was left out before would be missing",
        fix="give the rules that it was filled with, in their order, or start a new target",
    )


def _some(found: list[T]) -> list[T]:
    if not found:
        raise _Skip
    return found


def _folded(name: Name) -> Name:
    return lower(name[0]), lower(name[1])


def _words(name: Name) -> str:
    return ".".join(name)


def _moved_in(old: Name, new: Name, message: DdlMessage) -> Fatal:
    return Fatal(
        "a table moves into what is followed",
        where=f"{_words(old)} to {_words(new)} at ts {message.ts}: {message.query[:200]}",
        why=f"the rules leave {_words(old)} out, so that its earlier rows are not at the target",
        fix=f"start a new target with rules that follow {_words(old)} too, or that leave {_words(new)} out",
    )


def _half_exchange(old: Name, new: Name, message: DdlMessage) -> Fatal:
    return Fatal(
        "rows move between a table that is followed and one that is not",
        where=f"{_words(old)} and {_words(new)} at ts {message.ts}: {message.query[:200]}",
        why="EXCHANGE PARTITION moves them without row events",
        fix="start a new target with rules that follow both tables, or neither",
    )


def _names_in(statement: sql_replay.Replayed) -> list[Name]:
    """The tables that a statement changes."""
    match statement:
        case sql_replay.CreateTable(name) | sql_replay.Truncate(name) | sql_replay.AlterTable(name):
            return [name]
        case sql_replay.DropTables(names):
            return list(names)
        case sql_replay.RenameTables(pairs):
            return [name for pair in pairs for name in pair]
        case _:
            return []


def _mark_taken(source: Name, column: str) -> Fatal:
    return Fatal(
        "the column for deleted rows is there upstream",
        where=f"table {_words(source)}, column {column}",
        why="the moment of a deletion would be written over its values",
        fix=f"{_NEW_TARGET}: another name in --soft-delete, or rename the column upstream before",
    )


def _keyless(source: Name) -> Fatal:
    return Fatal(
        "a table without a key cannot keep its deleted rows",
        where=f"table {_words(source)}",
        why="a row that comes back and a deleted one could not be distinguished",
        fix=f"{_NEW_TARGET}: a --soft-delete that does not name the table, or --exclude it",
    )


def _marked_otherwise(old: Name, new: Name, where: str) -> Fatal:
    return Fatal(
        "a table would keep its deleted rows in another way",
        where=f"{_words(old)} to {_words(new)}: {where}",
        why="--soft-delete names another column for them, or none, and deleted rows would come to life",
        fix=f"{_NEW_TARGET}: a --soft-delete that says the same of both tables",
    )


def _key_lost(source: Name, column: str) -> Fatal:
    return Fatal(
        "a column of a key cannot be left out",
        where=f"table {_words(source)}, column {column}",
        why="a row is found at the target by its key",
        fix=f"{_NEW_TARGET}: leave the column out of --drop-column, or --exclude the table",
    )


def _nothing_left(source: Name) -> Fatal:
    return Fatal(
        "no column of a table is left",
        where=f"table {_words(source)}",
        why="--drop-column names all of them",
        fix=f"{_NEW_TARGET}: --exclude the table",
    )


def _column_back(event: DdlEvent, old: str, new: str) -> Fatal:
    return Fatal(
        "a column that was left out comes into view",
        where=f"{old} to {new} at ts {event.finished_ts}: {event.query[:200]}",
        why="its earlier values are not at the target",
        fix=f"{_NEW_TARGET}: keep the column under its old name, or leave it out under its new one, too",
    )


def _refused(message: DdlMessage, why: str) -> Fatal:
    return Fatal(
        "a DDL cannot be rewritten under the rules for names and columns",
        where=f"ts {message.ts}: {message.query[:1000]}",
        why=why,
        fix="start a new target with other rules for the table: --exclude it, for example",
    )
