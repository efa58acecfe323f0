"""Applies the user's `Rules` to rows and DDLs, before rows are merged and DDLs are planned. Pure.

    pieces   rows of tables that are followed, under their names at the target, without columns left out
    ddl      the event and the message under the same names; None if it concerns no table that is followed

Later stages see only names of the target. A DDL is judged when it is due: if it is refused, all rows before
it have been applied. `table_rules` says what the rules mean for a table, `selected_sql` rewrites SQL text,
`selection_refusals` has the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.codec.base import DdlMessage, WireColumn
from tidegate.consumer.ddl import sql_columns, sql_replay
from tidegate.consumer.ddl.ddl_plan import DROP_SCHEMA, EXCHANGE, REPARTITION
from tidegate.consumer.ddl.ddl_text import renamed_columns
from tidegate.consumer.engine.assembler import StagedPiece
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.position import Position, Source
from tidegate.consumer.selecting.rules import IGNORING, NO_RULES, Name, Rules, routed_schemas
from tidegate.consumer.selecting.selected_sql import Skip, SqlSelection
from tidegate.consumer.selecting.selection_refusals import (
    column_back,
    dotted,
    half_exchange,
    key_lost,
    keyless,
    mark_taken,
    marked_otherwise,
    moved_in,
    nothing_left,
    refused,
)
from tidegate.consumer.selecting.table_rules import TableRules
from tidegate.consumer.table import partition_spec, soft_delete
from tidegate.consumer.table.partition_spec import Spec
from tidegate.consumer.table.soft_delete import SoftDelete
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_filter import lower
from tidegate.tidb.table_info import is_base_table, table_schema

REMEMBERED: Final = 1 << 12
"""Sets of columns whose selection is cached; a full cache is emptied."""
_ABSENT: Final = 0
"""TiDB's state of a column that no session sees."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A DDL in the words of the target."""

    event: DdlEvent | None
    """None: the message has no header."""
    message: DdlMessage
    """Its query is rewritten if names or columns differ at the target."""
    queries: tuple[str, ...]
    """The statements for a target that runs SQL: the query, or a CREATE DATABASE for each routed schema."""
    drops: tuple[Name, ...] | None = None
    """The tables that DROP DATABASE removes under routes; None: another DDL, or no routes."""
    refusal: Fatal | None = None
    """Why no target can execute it."""
    sql_refusal: Fatal | None = None
    """Why its text cannot be run as SQL."""


class Selection:
    """The rules of one run, and what it knows about the tables that they concern."""

    def __init__(self, rules: Rules = NO_RULES, sources: Iterable[Source] = ()) -> None:
        """`sources`: as the position has them. Raises InvalidInput for a rule that cannot be read."""
        self._rules = TableRules(rules, sources)
        self._sql = SqlSelection(self._rules)
        self._marked: dict[Name, str] = {}
        """The column for the ts of a deletion, by the name at the target, of tables that had rows so far."""
        self._idle = not rules.selecting and not rules.partition_by
        self._kept: dict[tuple[Name, tuple[WireColumn, ...]], tuple[WireColumn, ...]] = {}

    def know(self, sources: Iterable[Source]) -> None:
        """Add the sources that a position has."""
        self._rules.know(sources)

    @property
    def soft_deletes(self) -> tuple[SoftDelete, ...]:
        """The rules for deleted rows."""
        return self._rules.soft_deletes

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that the position stores."""
        return self._rules.sources

    def soft_delete(self, name: Name) -> str:
        """The column for deleted rows that `pieces` has added to a table at the target; empty: none."""
        return self._marked.get(name, "")

    def partition_spec(self, name: Name) -> Spec:
        """The partition spec that the rules give a table, by its name at the target."""
        return self._rules.spec_at(name)

    @property
    def is_routed(self) -> bool:
        """Whether tables may have other names at the target."""
        return bool(self._rules.routes)

    def apart(self) -> Selection:
        """An independent copy, to ask about DDLs that may not be executed."""
        other = copy(self)
        other._rules = self._rules.apart()
        other._sql = SqlSelection(other._rules)
        return other

    # --- rows

    def pieces(
        self,
        pieces: Mapping[Name, Sequence[StagedPiece]],
        held: Collection[Name],
        aside: Callable[[Name], bool] = lambda name: False,
    ) -> Mapping[Name, Sequence[StagedPiece]]:
        """The rows that are applied, by name at the target; `held`: the tables at the target.

        `aside`: whether a table, by its name there, is left out.

        Raises Fatal if two tables would get one name, or a key would lose a column.
        """
        if self._idle:
            return pieces
        self._rules.forget(held)
        found = {}
        for source, part in pieces.items():
            # Names that are not claimed stay free: a table that is left out must not keep another one from
            # going to its name at the target.
            if self._rules.follows(*source) and not aside(self._rules.target(source)):
                name = self._rules.claim(source)
                found[name] = [self._piece(piece, source, name) for piece in part]
        return found

    def _piece(self, piece: StagedPiece, source: Name, name: Name) -> StagedPiece:
        columns = self._left(source, piece.segment.columns) if self._rules.columns else piece.segment.columns
        if mark := self._rules.column_for(source):
            # Checked for rows, too: the DDL that added the column may be from before the changefeed, or have
            # no header.
            if any(lower(column.name) == lower(mark) for column in piece.segment.columns):
                raise mark_taken(source, mark)
            if not any(column.key for column in columns):
                raise keyless(source)
            self._marked[name], columns = mark, (soft_delete.on_wire(mark), *columns)
        segment = replace(piece.segment, schema=name[0], table=name[1], columns=columns)
        return replace(piece, segment=segment)

    def _left(self, source: Name, columns: tuple[WireColumn, ...]) -> tuple[WireColumn, ...]:
        if (kept := self._kept.get((source, columns))) is not None:
            return kept
        if len(self._kept) >= REMEMBERED:
            self._kept.clear()
        kept = tuple(column for column in columns if not self._rules.hides(source, column.name))
        # Rows that differ in that column alone would get one key at the target, and overwrite each other.
        if lost := [column.name for column in columns if column.key and column not in kept]:
            raise key_lost(source, lost[0])
        if not kept:
            raise nothing_left(source)
        self._kept[source, columns] = kept
        return kept

    # --- DDL

    def ddl(self, event: DdlEvent | None, message: DdlMessage, held: Collection[Name]) -> Chosen | None:
        """A DDL in the words of the target; None if it concerns no table that is followed.

        `held`: the tables at the target. Raises Fatal only if two tables would get one name. A refusal is
        returned instead, because the user may have executed the DDL by hand.
        """
        if self._idle:
            return Chosen(event, message, (message.query,))
        self._rules.forget(held)
        if event is not None:
            return self._of_event(event, message, held)
        return self._of_text(message, held)

    def followed(self, part: Fetched) -> Fetched:
        """Return the part without the DDLs of tables that are not followed."""
        ddls = tuple(message for message in part.ddls if self._concerns(message))
        return part if len(ddls) == len(part.ddls) else replace(part, ddls=ddls)

    def _concerns(self, message: DdlMessage) -> bool:
        return not message.table or self._rules.follows(message.schema, message.table)

    def _of_event(self, event: DdlEvent, message: DdlMessage, held: Collection[Name]) -> Chosen | None:
        if not event.table:
            return self._of_schema(event, event.schema, event.action == DROP_SCHEMA, message, held)
        new, old = (event.schema, event.table), (event.old_schema, event.old_table)
        # Both names, because the rules may follow only one of them. Rows that a rename brings in were never
        # applied at the target.
        was, now = self._rules.follows(*old), self._rules.follows(*new)
        if event.action == EXCHANGE and was != now:
            return Chosen(event, message, (), refusal=half_exchange(old, new, message))
        # EXCHANGE is judged before this, because it moves rows without row events: to skip it would leave the
        # rows of one side wrong.
        if not now:  # a table that is renamed to a name not followed stays as it was
            return None
        if not was:
            return Chosen(event, message, (), refusal=moved_in(old, new, message))
        if (refusal := self._refusal(event, old, new) or self._mark_refusal(event, old, new)) is not None:
            return Chosen(event, message, (), refusal=refusal)
        exchanged = event.action == EXCHANGE
        rules = self._rules
        # An exchange keeps both tables, so each keeps its name. A rename frees the old name before the new
        # one is claimed.
        before, after = (rules.claim(old), rules.claim(new)) if exchanged else rules.pair(old, new)
        rewritten = replace(
            event,
            schema=after[0],
            table=after[1],
            old_schema=before[0],
            old_table=before[1],
            before=self._info(event.before, old),
            after=self._info(event.after, new),
        )
        query, sql_refusal = self._sql.query(message)
        rewritten_message = replace(message, schema=after[0], table=after[1], query=query)
        return Chosen(rewritten, rewritten_message, (query,), sql_refusal=sql_refusal)

    def _refusal(self, event: DdlEvent, old: Name, new: Name) -> Fatal | None:
        """Why a DDL cannot be executed without the columns that are left out."""
        if not self._rules.columns or event.after is None or not is_base_table(event.after):
            return None
        after = table_schema(event.schema, event.after, event.finished_ts)
        for at in after.handle_key:
            if self._rules.hides(new, after.columns[at].name):
                return key_lost(new, after.columns[at].name)
        if all(self._rules.hides(new, column.name) for column in after.columns):
            return nothing_left(new)
        if event.before is None or not is_base_table(event.before) or event.action == EXCHANGE:
            return None
        if event.before["id"] != event.after["id"] and event.action not in REPARTITION:
            return None  # a new table, without rows
        before = table_schema(event.old_schema, event.before, event.finished_ts)
        return self._returning(event, before, after, old, new)

    def _mark_refusal(self, event: DdlEvent, old: Name, new: Name) -> Fatal | None:
        """Why a table cannot keep its deleted rows after a DDL."""
        if not self._rules.soft_deletes or event.after is None or not is_base_table(event.after):
            return None
        mark = self._rules.column_for(new)
        if mark != self._rules.column_for(old):
            return marked_otherwise(old, new, f"{event.query[:200]} at ts {event.finished_ts}")
        if not mark:
            return None
        after = table_schema(event.schema, event.after, event.finished_ts)
        if any(lower(column.name) == lower(mark) for column in after.columns):
            return mark_taken(new, mark)
        return None if after.handle_key else keyless(new)

    def _returning(
        self, event: DdlEvent, before: TableSchema, after: TableSchema, old: Name, new: Name
    ) -> Fatal | None:
        """The refusal of a DDL after which a column is no longer left out: its old values are missing."""
        ids = {column.id: column for column in before.columns}
        names = {column.name.lower(): column for column in before.columns}
        renamed, stay = renamed_columns(event.query), {column.id for column in after.columns}
        for column in after.columns:
            was = ids.get(column.id)
            if was is None:
                was = names.get(renamed.get(column.name.lower(), column.name.lower()))
                was = None if was is not None and was.id in stay else was
            hides = self._rules.hides
            if was is not None and hides(old, was.name) and not hides(new, column.name):
                return column_back(event, f"{dotted(old)}.{was.name}", f"{dotted(new)}.{column.name}")
        return None

    def _info(self, info: dict[str, Any] | None, source: Name) -> dict[str, Any] | None:
        if info is None:
            return info
        if self._rules.columns:
            info = self._without_columns(info, source)
        if not is_base_table(info):
            return info
        if mark := self._rules.column_for(source):
            info = soft_delete.in_info(info, mark)
        spec = self._rules.spec_for(source)
        return partition_spec.in_info(info, spec) if spec else info

    def _without_columns(self, info: dict[str, Any], source: Name) -> dict[str, Any]:
        columns = [
            # The column stays in the list, because indexes and the handle name columns by their place in it.
            entry | {"state": _ABSENT} if self._rules.hides(source, entry["name"]["O"]) else entry
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
        """CREATE and DROP DATABASE, and other DDLs without a table; `options`: of CREATE DATABASE."""
        if schema and not self._rules.follows_schema(schema):
            return None
        if not self._rules.routes or not schema:
            return Chosen(event, message, (message.query,))
        targets = routed_schemas(schema, self._rules.routes)
        rewritten = replace(event, schema=targets[0], old_schema=targets[0]) if event is not None else None
        if drops:
            # Not the whole schema at the target: routes may have brought tables of other schemas into it.
            gone = self._rules.from_schema(schema)
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
                # Without routes and columns that are left out, nothing in the text has to be replaced, and
                # the server may understand it.
                refusal = refused(message, why) if self._rules.columns or self._rules.routes else None
                return Chosen(None, message, (message.query,), refusal=refusal)
            case statement:
                return self._of_statement(message, statement)

    def _of_statement(self, message: DdlMessage, statement: sql_replay.Replayed) -> Chosen | None:
        try:
            rewritten = self._sql.statement(message, statement)
        except Skip:
            return None
        except sql_columns.Refused as error:
            return Chosen(None, message, (message.query,), refusal=refused(message, str(error)))
        except Fatal as error:
            return Chosen(None, message, (message.query,), refusal=error)
        query = sql_replay.text_of(rewritten) if rewritten != statement else message.query
        schema, table = self._rules.target((message.schema, message.table))
        routed_message = replace(message, schema=schema, table=table, query=query)
        return Chosen(None, routed_message, (query,), sql_refusal=self._sql.no_text(message, statement))


def check_same_rules(held: Position, given: tuple[str, ...], target: str) -> None:
    """Raise InvalidInput if a target was filled under other rules; `held`: its position, or a write begun.

    Ignoring changes of columns from now on is allowed: no value is missing then. Partition specs are compared
    table by table (`partition_checks`), because they concern only tables that exist.
    """
    kept, given = partition_spec.without_specs(held.rules), partition_spec.without_specs(given)
    if given in (kept, (*kept, IGNORING)):
        return
    raise InvalidInput(
        "the target was filled under other rules",
        where=target,
        why=f"it was filled with {' '.join(kept) or 'no rule'}, and is given "
        f"{' '.join(given) or 'no rule'}: what was left out before would be missing",
        fix="give the rules that it was filled with, in their order, or start a new target",
    )
