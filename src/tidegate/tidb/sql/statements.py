"""The statements of data definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.alter_table import AlterTable
from tidegate.tidb.sql.columns import Columns
from tidegate.tidb.sql.constraints import Constraints
from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.operands import Subqueries
from tidegate.tidb.sql.options import Options
from tidegate.tidb.sql.partitions import Partitions
from tidegate.tidb.sql.sequences import SequenceOptions
from tidegate.tidb.sql.views import Views

_INDEX_KINDS: Final = ("UNIQUE", "SPATIAL", "FULLTEXT", "VECTOR", "COLUMNAR")


class Statements:
    """Reads whole statements."""

    def __init__(
        self,
        cursor: Cursor,
        subqueries: Subqueries,
        views: Views,
        columns: Columns,
        constraints: Constraints,
        options: Options,
        partitions: Partitions,
        alter_table: AlterTable,
        sequences: SequenceOptions,
    ) -> None:
        self._cursor, self._subqueries, self._views = cursor, subqueries, views
        self._columns, self._constraints, self._options = columns, constraints, options
        self._partitions, self._alter_table, self._sequences = partitions, alter_table, sequences

    def statements(self) -> list[str]:
        """All statements of the text."""
        cursor = self._cursor
        found: list[str] = []
        while True:
            while cursor.take(";"):
                pass
            if cursor.ended:
                return found
            found.append(self._statement())
            if not cursor.ended and not cursor.at(";"):
                cursor.fail("the end")

    def _statement(self) -> str:
        cursor = self._cursor
        readers: dict[str, Callable[[], str]] = {
            "CREATE": self._create,
            "ALTER": self._alter_any,
            "DROP": self._drop_any,
            "RENAME": self._rename_tables,
            "TRUNCATE": self._truncate,
            "RECOVER": self._recover,
            "FLASHBACK": self._flashback,
        }
        read = readers.get(cursor.token.key)
        return read() if read is not None else cursor.fail("a statement of data definition")

    # --- create -----------------------------------------------------------------------------------------

    def _create(self) -> str:
        cursor = self._cursor
        cursor.need("CREATE")
        if cursor.take("DATABASE"):
            exists = cursor.if_not_exists()
            parts = [f"CREATE DATABASE {exists}{cursor.name()}"]
            return "".join(parts + [f" {option.text}" for option in self._options.database_options()])
        if cursor.at("TABLE") or cursor.at("TEMPORARY") or cursor.at("GLOBAL", "TEMPORARY"):
            return self._create_table()
        if cursor.at("INDEX") or (cursor.at_any(*_INDEX_KINDS) and cursor.ahead().key == "INDEX"):
            return self._create_index()
        if cursor.take("SEQUENCE"):
            return self._create_sequence()
        if cursor.take("RESOURCE", "GROUP"):
            return self._sequences.resource_group("CREATE", cursor.if_not_exists())
        replace = "OR REPLACE " if cursor.take("OR", "REPLACE") else ""
        if cursor.take("PLACEMENT", "POLICY"):
            return self._sequences.placement_policy(f"CREATE {replace}", cursor.if_not_exists())
        return self._views.create_view(replace)

    def _create_table(self) -> str:
        cursor = self._cursor
        kind = ""
        if cursor.take("GLOBAL", "TEMPORARY"):
            kind = "GLOBAL TEMPORARY "
        elif cursor.take("TEMPORARY"):
            kind = "TEMPORARY "
        cursor.need("TABLE")
        parts = [f"CREATE {kind}TABLE {cursor.if_not_exists()}{cursor.table_name()}"]
        if cursor.at("LIKE") or cursor.at("(", "LIKE"):
            parts.append(self._like())
        else:
            self._table_body(parts)
        if cursor.take("ON", "COMMIT"):
            parts.append(f" ON COMMIT {cursor.need_any('DELETE', 'PRESERVE')} ROWS")
            cursor.need("ROWS")
        return "".join(parts)

    def _like(self) -> str:
        cursor = self._cursor
        opened = cursor.take("(")
        cursor.need("LIKE")
        text = f" LIKE {cursor.table_name()}"
        if opened:
            cursor.need(")")
        return text

    def _table_body(self, parts: list[str]) -> None:
        cursor = self._cursor
        if cursor.at("(") and not self._subqueries.at_query_in_parentheses() and cursor.ahead().key != "(":
            columns, constraints = self._columns.elements()
            parts.append(f" ({','.join([*columns, *constraints])})")
        parts += [f" {option.text}" for option in self._options.table_options(commas=True)]
        if cursor.at("PARTITION", "BY"):
            parts.append(f" {self._partitions.partition_by()}")
        duplicates = cursor.take_any("IGNORE", "REPLACE")
        said = cursor.take("AS")
        if self._subqueries.at_query() or cursor.at("("):
            parts.append((f" {duplicates}" if duplicates else "") + f" AS {self._subqueries.query()}")
        elif duplicates or said:
            cursor.fail("a query")

    def _create_index(self) -> str:
        cursor = self._cursor
        kind = cursor.take_any(*_INDEX_KINDS)
        cursor.need("INDEX")
        exists = cursor.if_not_exists()
        name = cursor.name()
        index_type = self._constraints.index_type()
        cursor.need("ON")
        table = cursor.table_name()
        parts = ", ".join(self._constraints.key_parts())
        options = self._options_after(index_type)
        text = f"CREATE {kind + ' ' if kind else ''}INDEX {exists}{name} ON {table} ({parts})"
        return text + (f" {options}" if options else "") + self._alter_table.lock_and_algorithm()

    def _options_after(self, index_type: str) -> str:
        """The options of an index; a type among them wins over the type before them."""
        options = self._constraints.index_options()
        return options if not index_type or "USING " in options else self._with_type(options, index_type)

    def _with_type(self, options: str, index_type: str) -> str:
        block = [options.split(" ", 1)[0]] if options.startswith("KEY_BLOCK_SIZE") else []
        rest = options.removeprefix(block[0]).strip() if block else options
        return " ".join(part for part in (*block, f"USING {index_type}", rest) if part)

    def _create_sequence(self) -> str:
        cursor = self._cursor
        parts = [
            f"CREATE SEQUENCE {cursor.if_not_exists()}{cursor.table_name()}",
            *self._sequences.sequence_options(),
        ]
        parts += [option.text for option in self._options.table_options(commas=True)]
        return " ".join(parts)

    # --- alter ------------------------------------------------------------------------------------------

    def _alter_any(self) -> str:
        cursor = self._cursor
        cursor.need("ALTER")
        if cursor.take("DATABASE"):
            return self._alter_database()
        if cursor.take("SEQUENCE"):
            exists = cursor.if_exists()
            return " ".join(
                [
                    f"ALTER SEQUENCE {exists}{cursor.table_name()}",
                    *self._sequences.sequence_options(altered=True),
                ]
            )
        if cursor.take("PLACEMENT", "POLICY"):
            self._sequences.placement_policy("ALTER ", cursor.if_exists())
            return ""
        if cursor.take("RESOURCE", "GROUP"):
            return self._sequences.resource_group("ALTER", cursor.if_exists())
        cursor.take("IGNORE")
        cursor.need("TABLE")
        return self._alter_table.alter_table()

    def _alter_database(self) -> str:
        cursor = self._cursor
        name = ""
        if cursor.at_name() and not self._at_database_option():
            name = f" {cursor.name()}"
        options = self._options.database_options()
        if not options:
            cursor.fail("an option of a database")
        if all(option.kind == "placement" for option in options):
            return ""
        return "".join([f"ALTER DATABASE{name}", *(f" {option.text}" for option in options)])

    def _at_database_option(self) -> bool:
        """Whether a word that may also be a name begins an option: it does if no other option follows it."""
        cursor = self._cursor
        if not cursor.at_any("CHARSET", "ENCRYPTION", "PLACEMENT"):
            return False
        following = cursor.ahead()
        return following.key not in ("CHARSET", "CHARACTER", "CHAR", "COLLATE", "DEFAULT", "PLACEMENT", "SET")

    # --- drop, rename, truncate -------------------------------------------------------------------------

    def _drop_any(self) -> str:
        cursor = self._cursor
        cursor.need("DROP")
        if cursor.take("DATABASE"):
            return f"DROP DATABASE {cursor.if_exists()}{cursor.name()}"
        if cursor.take("INDEX"):
            exists = "/*T! IF EXISTS  */" if cursor.if_exists() else ""
            name = cursor.name()
            cursor.need("ON")
            return (
                f"DROP INDEX {exists}{name} ON {cursor.table_name()}{self._alter_table.lock_and_algorithm()}"
            )
        if cursor.take("SEQUENCE"):
            return f"DROP SEQUENCE {cursor.if_exists()}{', '.join(cursor.listed(cursor.table_name))}"
        if cursor.take("PLACEMENT", "POLICY"):
            return f"/*T![placement] DROP PLACEMENT POLICY {cursor.if_exists()}{cursor.name()} */"
        if cursor.take("RESOURCE", "GROUP"):
            exists, name = cursor.if_exists(), self._sequences.group_name()
            return f"/*T![resource_group] DROP RESOURCE GROUP {exists}{name} */"
        if cursor.take("VIEW"):
            what = "VIEW"
        else:
            what = "GLOBAL TEMPORARY " if cursor.take("GLOBAL", "TEMPORARY") else ""
            what = "TEMPORARY " if not what and cursor.take("TEMPORARY") else what
            cursor.need_any("TABLE", "TABLES")
            what += "TABLE"
        text = f"DROP {what} {cursor.if_exists()}{', '.join(cursor.listed(cursor.table_name))}"
        cursor.take_any("RESTRICT", "CASCADE")
        return text

    def _rename_tables(self) -> str:
        cursor = self._cursor
        cursor.need("RENAME", "TABLE")
        return f"RENAME TABLE {', '.join(cursor.listed(self._renamed_table))}"

    def _renamed_table(self) -> str:
        cursor = self._cursor
        old = cursor.table_name()
        cursor.need("TO")
        return f"{old} TO {cursor.table_name()}"

    def _truncate(self) -> str:
        cursor = self._cursor
        cursor.need("TRUNCATE")
        cursor.take("TABLE")
        return f"TRUNCATE TABLE {cursor.table_name()}"

    # --- recover and flashback --------------------------------------------------------------------------

    def _recover(self) -> str:
        cursor = self._cursor
        cursor.need("RECOVER", "TABLE")
        if cursor.take("BY", "JOB"):
            return f"RECOVER TABLE BY JOB {cursor.uint()}"
        text = f"RECOVER TABLE {cursor.table_name()}"
        number = cursor.uint() if cursor.token.kind is TokenKind.INT else "0"
        return f"{text} {number}" if number != "0" else text

    def _flashback(self) -> str:
        cursor = self._cursor
        cursor.need("FLASHBACK")
        if cursor.take("CLUSTER"):
            return f"FLASHBACK CLUSTER{self._moment() or cursor.fail('TO TIMESTAMP or TO TSO')}"
        if cursor.take("DATABASE"):
            text = f"FLASHBACK DATABASE {cursor.name()}"
        else:
            cursor.need("TABLE")
            text = f"FLASHBACK TABLE {', '.join(cursor.listed(cursor.table_name))}"
        moment = self._moment()
        if not moment and cursor.take("TO"):
            moment = f" TO {cursor.name()}"
        return text + moment

    def _moment(self) -> str:
        cursor = self._cursor
        if cursor.at("TO", "TIMESTAMP") and cursor.ahead(2).kind is TokenKind.STRING:
            cursor.need("TO", "TIMESTAMP")
            return f" TO TIMESTAMP {self._sequences.bare_string()}"
        if cursor.at("TO", "TSO") and cursor.ahead(2).kind is TokenKind.INT:
            cursor.need("TO", "TSO")
            return f" TO TSO {cursor.uint()}"
        return ""
