"""The statements of data definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.alter_table import AlterTable
from tidegate.tidb.sql.cursor import quoted
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.sequences import SequenceOptions

_INDEX_KINDS: Final = ("UNIQUE", "SPATIAL", "FULLTEXT", "VECTOR", "COLUMNAR")


class Statements(SequenceOptions, AlterTable):
    """Reads whole statements."""

    def statements(self) -> list[str]:
        """All statements of the text."""
        found: list[str] = []
        while True:
            while self.take(";"):
                pass
            if self.ended:
                return found
            found.append(self._statement())
            if not self.ended and not self.at(";"):
                self.fail("the end")

    def _statement(self) -> str:
        readers: dict[str, Callable[[], str]] = {
            "CREATE": self._create,
            "ALTER": self._alter_any,
            "DROP": self._drop_any,
            "RENAME": self._rename_tables,
            "TRUNCATE": self._truncate,
            "RECOVER": self._recover,
            "FLASHBACK": self._flashback,
        }
        read = readers.get(self.token.key)
        return read() if read is not None else self.fail("a statement of data definition")

    # --- create -----------------------------------------------------------------------------------------

    def _create(self) -> str:
        self.need("CREATE")
        if self.take("DATABASE"):
            exists = self.if_not_exists()
            parts = [f"CREATE DATABASE {exists}{self.name()}"]
            return "".join(parts + [f" {option.text}" for option in self.database_options()])
        if self.at("TABLE") or self.at("TEMPORARY") or self.at("GLOBAL", "TEMPORARY"):
            return self._create_table()
        if self.at("INDEX") or (self.at_any(*_INDEX_KINDS) and self.ahead().key == "INDEX"):
            return self._create_index()
        if self.take("SEQUENCE"):
            return self._create_sequence()
        if self.take("RESOURCE", "GROUP"):
            return self.resource_group("CREATE", self.if_not_exists())
        replace = "OR REPLACE " if self.take("OR", "REPLACE") else ""
        if self.take("PLACEMENT", "POLICY"):
            return self.placement_policy(f"CREATE {replace}", self.if_not_exists())
        return self._create_view(replace)

    def _create_table(self) -> str:
        kind = ""
        if self.take("GLOBAL", "TEMPORARY"):
            kind = "GLOBAL TEMPORARY "
        elif self.take("TEMPORARY"):
            kind = "TEMPORARY "
        self.need("TABLE")
        parts = [f"CREATE {kind}TABLE {self.if_not_exists()}{self.table_name()}"]
        if self.at("LIKE") or self.at("(", "LIKE"):
            parts.append(self._like())
        else:
            self._table_body(parts)
        if self.take("ON", "COMMIT"):
            parts.append(f" ON COMMIT {self.need_any('DELETE', 'PRESERVE')} ROWS")
            self.need("ROWS")
        return "".join(parts)

    def _like(self) -> str:
        opened = self.take("(")
        self.need("LIKE")
        text = f" LIKE {self.table_name()}"
        if opened:
            self.need(")")
        return text

    def _table_body(self, parts: list[str]) -> None:
        if self.at("(") and not self.at_query_in_parentheses() and self.ahead().key != "(":
            columns, constraints = self.elements()
            parts.append(f" ({','.join([*columns, *constraints])})")
        parts += [f" {option.text}" for option in self.table_options(commas=True)]
        if self.at("PARTITION", "BY"):
            parts.append(f" {self.partition_by()}")
        duplicates = self.take_any("IGNORE", "REPLACE")
        said = self.take("AS")
        if self.at_query() or self.at("("):
            parts.append((f" {duplicates}" if duplicates else "") + f" AS {self.query()}")
        elif duplicates or said:
            self.fail("a query")

    def _create_index(self) -> str:
        kind = self.take_any(*_INDEX_KINDS)
        self.need("INDEX")
        exists = self.if_not_exists()
        name = self.name()
        index_type = self.index_type()
        self.need("ON")
        table = self.table_name()
        parts = ", ".join(self.key_parts())
        options = self._options_after(index_type)
        text = f"CREATE {kind + ' ' if kind else ''}INDEX {exists}{name} ON {table} ({parts})"
        return text + (f" {options}" if options else "") + self.lock_and_algorithm()

    def _options_after(self, index_type: str) -> str:
        """The options of an index; a type among them wins over the type before them."""
        options = self.index_options()
        return options if not index_type or "USING " in options else self._with_type(options, index_type)

    def _with_type(self, options: str, index_type: str) -> str:
        block = [options.split(" ", 1)[0]] if options.startswith("KEY_BLOCK_SIZE") else []
        rest = options.removeprefix(block[0]).strip() if block else options
        return " ".join(part for part in (*block, f"USING {index_type}", rest) if part)

    def _create_view(self, replace: str) -> str:
        algorithm = "UNDEFINED"
        if self.take("ALGORITHM"):
            self.need("=")
            algorithm = self.need_any("UNDEFINED", "MERGE", "TEMPTABLE")
        definer = "CURRENT_USER"
        if self.take("DEFINER"):
            self.need("=")
            definer = self._user()
        security = self.need_any("DEFINER", "INVOKER") if self.take("SQL", "SECURITY") else "DEFINER"
        self.need("VIEW")
        view = self.table_name()
        columns = f" ({','.join(self.parenthesised(self.name))})" if self.at("(") else ""
        self.need("AS")
        query = self.query()
        check = ""
        if self.take("WITH"):
            check = " WITH LOCAL CHECK OPTION" if self.need_any("CASCADED", "LOCAL") == "LOCAL" else ""
            self.need("CHECK", "OPTION")
        return (
            f"CREATE {replace}ALGORITHM = {algorithm} DEFINER = {definer} SQL SECURITY {security} "
            f"VIEW {view}{columns} AS {query}{check}"
        )

    def _user(self) -> str:
        if self.take("CURRENT_USER"):
            self.take("(", ")")
            return "CURRENT_USER"
        user = self.string_or_name()
        host = "%"
        if self.token.kind is TokenKind.USER_VARIABLE:
            host = self.next().text.lower()
        elif self.take("@"):
            host = self.string_or_name().lower()
        return f"{quoted(user)}@{quoted(host)}" if host else quoted(user)

    def _create_sequence(self) -> str:
        parts = [f"CREATE SEQUENCE {self.if_not_exists()}{self.table_name()}", *self.sequence_options()]
        parts += [option.text for option in self.table_options(commas=True)]
        return " ".join(parts)

    # --- alter ------------------------------------------------------------------------------------------

    def _alter_any(self) -> str:
        self.need("ALTER")
        if self.take("DATABASE"):
            return self._alter_database()
        if self.take("SEQUENCE"):
            exists = self.if_exists()
            return " ".join(
                [f"ALTER SEQUENCE {exists}{self.table_name()}", *self.sequence_options(altered=True)]
            )
        if self.take("PLACEMENT", "POLICY"):
            self.placement_policy("ALTER ", self.if_exists())
            return ""
        if self.take("RESOURCE", "GROUP"):
            return self.resource_group("ALTER", self.if_exists())
        self.take("IGNORE")
        self.need("TABLE")
        return self.alter_table()

    def _alter_database(self) -> str:
        name = ""
        if self.at_name() and not self._at_database_option():
            name = f" {self.name()}"
        options = self.database_options()
        if not options:
            self.fail("an option of a database")
        if all(option.kind == "placement" for option in options):
            return ""
        return "".join([f"ALTER DATABASE{name}", *(f" {option.text}" for option in options)])

    def _at_database_option(self) -> bool:
        """Whether a word that may also be a name begins an option: it does if no other option follows it."""
        if not self.at_any("CHARSET", "ENCRYPTION", "PLACEMENT"):
            return False
        following = self.ahead()
        return following.key not in ("CHARSET", "CHARACTER", "CHAR", "COLLATE", "DEFAULT", "PLACEMENT", "SET")

    # --- drop, rename, truncate -------------------------------------------------------------------------

    def _drop_any(self) -> str:
        self.need("DROP")
        if self.take("DATABASE"):
            return f"DROP DATABASE {self.if_exists()}{self.name()}"
        if self.take("INDEX"):
            exists = "/*T! IF EXISTS  */" if self.if_exists() else ""
            name = self.name()
            self.need("ON")
            return f"DROP INDEX {exists}{name} ON {self.table_name()}{self.lock_and_algorithm()}"
        if self.take("SEQUENCE"):
            return f"DROP SEQUENCE {self.if_exists()}{', '.join(self.listed(self.table_name))}"
        if self.take("PLACEMENT", "POLICY"):
            return f"/*T![placement] DROP PLACEMENT POLICY {self.if_exists()}{self.name()} */"
        if self.take("RESOURCE", "GROUP"):
            return f"/*T![resource_group] DROP RESOURCE GROUP {self.if_exists()}{self.group_name()} */"
        if self.take("VIEW"):
            what = "VIEW"
        else:
            what = "GLOBAL TEMPORARY " if self.take("GLOBAL", "TEMPORARY") else ""
            what = "TEMPORARY " if not what and self.take("TEMPORARY") else what
            self.need_any("TABLE", "TABLES")
            what += "TABLE"
        text = f"DROP {what} {self.if_exists()}{', '.join(self.listed(self.table_name))}"
        self.take_any("RESTRICT", "CASCADE")
        return text

    def _rename_tables(self) -> str:
        self.need("RENAME", "TABLE")
        return f"RENAME TABLE {', '.join(self.listed(self._renamed_table))}"

    def _renamed_table(self) -> str:
        old = self.table_name()
        self.need("TO")
        return f"{old} TO {self.table_name()}"

    def _truncate(self) -> str:
        self.need("TRUNCATE")
        self.take("TABLE")
        return f"TRUNCATE TABLE {self.table_name()}"

    # --- recover and flashback --------------------------------------------------------------------------

    def _recover(self) -> str:
        self.need("RECOVER", "TABLE")
        if self.take("BY", "JOB"):
            return f"RECOVER TABLE BY JOB {self.uint()}"
        text = f"RECOVER TABLE {self.table_name()}"
        number = self.uint() if self.token.kind is TokenKind.INT else "0"
        return f"{text} {number}" if number != "0" else text

    def _flashback(self) -> str:
        self.need("FLASHBACK")
        if self.take("CLUSTER"):
            return f"FLASHBACK CLUSTER{self._moment() or self.fail('TO TIMESTAMP or TO TSO')}"
        if self.take("DATABASE"):
            text = f"FLASHBACK DATABASE {self.name()}"
        else:
            self.need("TABLE")
            text = f"FLASHBACK TABLE {', '.join(self.listed(self.table_name))}"
        moment = self._moment()
        if not moment and self.take("TO"):
            moment = f" TO {self.name()}"
        return text + moment

    def _moment(self) -> str:
        if self.at("TO", "TIMESTAMP") and self.ahead(2).kind is TokenKind.STRING:
            self.need("TO", "TIMESTAMP")
            return f" TO TIMESTAMP {self.bare_string()}"
        if self.at("TO", "TSO") and self.ahead(2).kind is TokenKind.INT:
            self.need("TO", "TSO")
            return f" TO TSO {self.uint()}"
        return ""
