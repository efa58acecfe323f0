"""The form of a reader's rows at each ts: its tables' definitions, and where a query must stop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.config.sink_uri import ROWS
from tidegate.config.values import nearest
from tidegate.errors import InvalidInput
from tidegate.model.schema import TableSchema
from tidegate.mounter.columns import target_type
from tidegate.mounter.ddl_rules import SILENT
from tidegate.mounter.table_version import TableVersion
from tidegate.server.changefeeds.new_feed import NewFeed, Refused, split_tables
from tidegate.sink.reader.changes import OWN_COLUMNS, Definition, piece_schema
from tidegate.tidb import table_info


@dataclass(frozen=True, slots=True)
class Query:
    """The description of itself that a query sends with each request."""

    instance: str
    columns: pa.Schema | None
    """The columns that it expects in rows of one table; None: it takes rows of any table."""
    after_ddl: int
    """The ts of a DDL without row events that the query may pass, as its user has confirmed; 0: none."""


class History:
    """The definitions of one table in order of ts, from which follow the columns of its rows. Pure."""

    def __init__(self, known: Sequence[Definition], rule: str) -> None:
        schema, table = (part.strip("`").replace("``", "`").lower() for part in rule.split("`.`"))
        name = schema, table
        self._lines: list[tuple[int, pa.Schema | None, Definition]] = []
        for one in known:
            here = (one.schema.lower(), one.table.lower()) == name
            before = (one.old_schema.lower(), one.old_table.lower()) == name
            # Old names too, because a rename ends the table's rows under this name. Statements about a whole
            # schema count if they move rows.
            if here or before or (not one.table and one.schema.lower() == schema and one.action in SILENT):
                columns = None
                if here and one.info is not None:
                    columns = piece_schema(columns_of(table_info.table_schema(one.schema, one.info, one.ts)))
                self._lines.append((one.ts, columns, one))

    def after(self, ts: int) -> pa.Schema | None:
        """The columns of rows with commit ts above `ts`, up to the next change; None: there is no table."""
        found = None
        for at, columns, _ in self._lines:
            if at <= ts:
                found = columns
        return found

    def stop(self, after: int) -> int:
        """The ts of the first DDL above `after` whose two sides cannot be read together, because the columns
        differ or rows changed without row events; 0: there is none.
        """
        before = self.after(after)
        for at, columns, one in self._lines:
            # A batch has one set of columns, and after such a DDL the query must not continue unasked: it
            # lacks rows that no event brings.
            if at > after and (columns != before or one.action in SILENT):
                return at
        return 0

    def last(self, ts: int) -> Definition | None:
        """The last DDL at or before `ts`; None: there was none."""
        found = None
        for at, _, one in self._lines:
            if at <= ts and one.action:
                found = one
        return found

    def silent(self, ts: int) -> Definition | None:
        """The DDL at `ts` that removed rows, or restored some, without row events; None: there is none."""
        return next((one for at, _, one in self._lines if at == ts and one.action in SILENT), None)


def rules_of(tables: Sequence[str], rows: str) -> Sequence[str]:
    """The filter rules for a reader's tables; for typed rows one exact name. Raises InvalidInput."""
    if rows not in ROWS:
        raise InvalidInput(
            f"'{rows[:40]}' is not a kind of rows", where="option rows", fix=nearest(rows, ROWS)
        )
    if not tables or not all(tables):
        raise InvalidInput(
            "no table is named", where="option tables", fix='add .option("tables", "SCHEMA.TABLE")'
        )
    if rows == "generic":
        return tables
    if len(tables) > 1:
        raise InvalidInput(
            "typed rows are of one table",
            where=f"option tables: {', '.join(tables)[:200]}",
            fix='name one, or take .option("rows", "generic")',
        )
    schema, dot, table = tables[0].partition(".")
    if not (schema and dot and table) or set(tables[0]) & set("*?[]/!"):
        raise InvalidInput(
            f"'{tables[0][:200]}' is not the name of a table",
            where="option tables",
            fix='write SCHEMA.TABLE; patterns are for .option("rows", "generic")',
        )
    quoted = ("`" + part.strip("`").replace("`", "``") + "`" for part in (schema, table))
    return [".".join(quoted)]


def columns_of(table: TableSchema) -> pa.Schema:
    """A table's columns with the types that they have in rows."""
    return pa.schema([(column.name, target_type(column)) for column in table.columns])


def begin_reader(new: NewFeed, tables: Sequence[TableVersion], ts: int) -> list[Definition]:
    """The tables of a new reader at its start ts. Raises InvalidInput if a reader of typed rows has no table,
    or if the table has a column with one of our names.
    """
    followed, ineligible = split_tables(tables, new.config)
    found = [
        Definition(ts, -1, one.schema, one.table, one.schema, one.table, 0, "", one.info())
        for one in followed
        if not one.is_view
    ]
    if new.uri.option("rows") == "typed":
        rule = new.config.filter.rules[0]
        columns = History(found, rule).after(ts)
        if columns is None:
            raise no_table(rule, ineligible)
        _check_names(columns, rule)
    return found


def _check_names(columns: pa.Schema, name: str) -> None:
    clash = [name for name in OWN_COLUMNS.names if columns.names.count(name) > 1]
    if clash:
        raise InvalidInput(
            f"the table has a column named {clash[0]}",
            where=f"table {name}",
            why="typed rows have a column of that name with another meaning",
            fix='rename the column, or take .option("rows", "generic")',
        )


def check_columns(history: History, asked: Query, start: int, *, replay: bool = False) -> None:
    """Raises Refused if rows after `start` do not have the form that the query expects."""
    columns, ddl = history.after(start), history.last(start)
    silent = history.silent(start)
    if silent is not None and asked.after_ddl != start and not replay:
        raise Refused(
            "CDC:ErrReaderDDL",
            f"{silent.schema}.{silent.table or '*'} changes after ts {start} without row events: "
            f"{silent.query[:500]}",
            why=f"everything up to ts {start} is done, and this statement then moved rows as a whole",
            fix="do the same at your target, then start the query again with "
            f'.option("after-ddl", "{start}")',
        )
    if columns is None:
        if asked.after_ddl == start:
            return
        raise Refused(
            "CDC:ErrReaderDDL",
            f"the table is not there after ts {start}: {ddl.query[:500] if ddl else 'it has no definition'}",
            fix="remove the reader's changefeed, and start another query",
        )
    if asked.columns is None or not asked.columns.equals(columns):
        last = f"{ddl.query[:500]}" if ddl is not None else "as it was at the reader's start"
        raise Refused(
            "CDC:ErrReaderDDL",
            f"the table has other columns after ts {start} than the query takes: {last}",
            where=_difference(asked.columns, columns),
            why=f"everything up to ts {start} is done; later rows have the other columns",
            fix="restart the query: it continues with the new columns; if it stops here again, there "
            'are several changes ahead: add .option("reader", NAME), with the name that `tidegate changefeed '
            "list` shows",
        )


def _difference(asked: pa.Schema | None, columns: pa.Schema) -> str:
    mine = {one.name: str(one.type) for one in asked or ()}
    theirs = {one.name: str(one.type) for one in columns}
    differences = [f"{name} {theirs[name]} is new" for name in theirs if name not in mine]
    differences += [f"{name} is gone" for name in mine if name not in theirs]
    differences += [
        f"{name} was {mine[name]}, is {theirs[name]}"
        for name in mine
        if theirs.get(name, mine[name]) != mine[name]
    ]
    return "; ".join(differences[:10]) or "their order"


def no_table(name: str, ineligible: Sequence[TableVersion]) -> Refused:
    """The error for a table that does not exist or is not followed."""
    why = "it has no usable key" if ineligible else "no table of that name is there"
    return Refused(
        "CDC:ErrTableIneligible" if ineligible else "CDC:ErrAPIInvalidParam",
        f"{name} cannot be read",
        where="option tables",
        why=why,
        fix="name a table with a primary key, or with a unique key of columns that are not null"
        if ineligible
        else "write SCHEMA.TABLE as TiDB has it; a start-ts must be after the table was made",
    )
