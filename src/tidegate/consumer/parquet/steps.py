"""The steps of DDLs at a change log: how they change the tables, and what the log says of them.

A log keeps no rows to change. It notes what a reader must do to the rows that it has built from the log, and
from then on rows of the table have the columns of another definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidegate.consumer.applying.change_rows import check_columns
from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.applying.target import Name
from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.ddl.ddl_steps import Step
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.table.definition import Definition
from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse.tables import table_path

DROPPED_MAX: Final = 1_000
"""How many dropped or truncated tables can still be restored; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class LogTable:
    """One table of the log."""

    definition: Definition
    path: str
    """The folder of its files, below the target's root."""
    number: int
    """The number of its definition's file."""


class LogSteps:
    """Executes the steps of DDLs: changes the log's tables. Several threads may change different tables."""

    def __init__(
        self,
        files: DefinitionFiles,
        stats: Stats,
        tables: dict[Name, LogTable],
        check_folder: Callable[[str], None],
    ) -> None:
        """`tables`: those of the target, which steps change. `check_folder`: raises if a folder is not the
        log's.
        """
        self._files, self._stats, self._tables, self._check_folder = files, stats, tables, check_folder
        self.dropped: list[int] = []
        """The ids of tables that were dropped or truncated, the newest last."""

    def execute(self, step: Step) -> None:
        """Execute one step."""
        match step:
            case ddl_steps.Create(made):
                # TRUNCATE is a create over the old table.
                self._drop((made.schema, made.table))
                self._know(made)
            case ddl_steps.Drop(schema, table):
                self._drop((schema, table))
            case ddl_steps.Rename(schema, table, made):
                self._tables.pop((schema, table))
                self._know(made)
            case ddl_steps.Rewrite(made, _, _) | ddl_steps.Redefine(made, _):
                self._know(made)
            case ddl_steps.Exchange(_, _, _, other, _):
                self._know(other)
            case ddl_steps.Restore(made, _):
                self.dropped.remove(made.table_id)
                self._know(made)
            case ddl_steps.Prune(_, _, _) | ddl_steps.Nothing(_):
                pass
            case ddl_steps.Replay():
                raise AssertionError("a log runs no SQL")
            case ddl_steps.Refuse(why):
                raise AssertionError(f"refused before any step: {why}")

    def _drop(self, name: Name) -> None:
        held = self._tables.pop(name, None)
        if held is not None and held.definition.table_id:
            # RECOVER TABLE names the id. A table without one was guessed from its rows, and no DDL can bring
            # it back.
            self.dropped.append(held.definition.table_id)
            del self.dropped[:-DROPPED_MAX]

    def _know(self, made: Definition) -> None:
        """Store the definition, durable before any manifest that needs it."""
        check_columns(made)
        if made.soft_delete:
            raise InvalidInput(
                "--soft-delete is not for a change log",
                where=f"table {made.name}",
                why="a change log keeps each deleted row in any case, with the ts of its deletion",
                fix="leave --soft-delete out",
            )
        name, path = (made.schema, made.table), table_path(made.schema, made.table)
        # Only for a new name: a table of the log has its folder already, and its files are the log's own.
        if name not in self._tables:
            self._check_folder(path)
        if made.guessed:
            self._stats.guessed[made.name] = made.guessed
        self._tables[name] = LogTable(made, path, self._files.keep(path, made))


def in_log(step: Step, tables: Mapping[Name, LogTable]) -> dict[str, Any]:
    """A step as the log notes it: `do` is its kind, then the table, then what a reader needs to follow it.

    `tables`: those after the step, for the version of the table's definition.
    """
    match step:
        case ddl_steps.Create(made):
            return {"do": "create", **_named(made, tables)}
        case ddl_steps.Drop(schema, table):
            return {"do": "drop", "schema": schema, "table": table}
        case ddl_steps.Rename(schema, table, made):
            to = {"to_schema": made.schema, "to_table": made.table, "version": _version(made, tables)}
            return {"do": "rename", "schema": schema, "table": table, **to}
        case ddl_steps.Rewrite(made, sources, _):
            return {
                "do": "columns",
                **_named(made, tables),
                "columns": [_column(source) for source in sources],
            }
        case ddl_steps.Redefine(made, why):
            return {"do": "redefine", **_named(made, tables), "why": why}
        case ddl_steps.Prune(schema, table, members):
            return {"do": "prune", "schema": schema, "table": table, "partitions": members.names}
        case ddl_steps.Exchange(schema, table, members, other, _):
            named = {"do": "exchange", "schema": schema, "table": table, "partitions": members.names}
            return named | {"with_schema": other.schema, "with_table": other.table}
        case ddl_steps.Restore(made, _):
            return {"do": "restore", **_named(made, tables)}
        case ddl_steps.Nothing(why) | ddl_steps.Refuse(why):
            return {"do": "nothing", "why": why}
        case ddl_steps.Replay():
            raise AssertionError("a log runs no SQL")


def _named(made: Definition, tables: Mapping[Name, LogTable]) -> dict[str, Any]:
    named = {"schema": made.schema, "table": made.table, "table_id": made.table_id}
    return named | {"version": _version(made, tables)}


def _version(made: Definition, tables: Mapping[Name, LogTable]) -> int:
    return tables[made.schema, made.table].number


def _column(source: ddl_steps.Source) -> dict[str, Any]:
    """A column after ALTER TABLE: the column that it was; or, of a new one, the value that old rows get."""
    named: dict[str, Any] = {"name": source.column.name, "type": str(source.column.type)}
    if source.taken is None:
        return named | {"from": None, "fill": _text(source.fill)}
    # TiDB has converted the values, for example by MODIFY COLUMN to a shorter text.
    return named | {"from": source.taken.name, "converted": source.change is not None}


def _text(value: pa.Scalar | None) -> str | None:
    if value is None or not value.is_valid:
        return None
    if pa.types.is_binary(value.type):
        return str(value.as_py().hex())
    if pa.types.is_list(value.type):
        return str(value.as_py())
    return str(pa.array([value.as_py()], value.type).cast(pa.string())[0].as_py())
