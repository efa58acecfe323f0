"""Columns and constraints, inside the parentheses of CREATE TABLE and in ALTER TABLE."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import bare_value
from tidegate.tidb.sql.expressions import Expr
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.queries import Queries

_NOW: Final = ("CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "NOW")
_INDEX_TYPES: Final = ("BTREE", "HASH", "RTREE", "HYPO", "HNSW", "INVERTED")
_OPTION_ORDER: Final = (
    "primary",
    "block",
    "type",
    "parser",
    "comment",
    "global",
    "split",
    "visible",
    "engine",
    "where",
)
"""The order in which TiDB writes the options of an index."""


class Columns(Queries):
    """Reads columns and constraints.

    A long class, because columns and constraints share checks, references and the parts of an index.
    """

    def if_exists(self) -> str:
        """IF EXISTS, if it comes next."""
        return "IF EXISTS " if self.take("IF", "EXISTS") else ""

    def if_not_exists(self) -> str:
        """IF NOT EXISTS, if it comes next."""
        return "IF NOT EXISTS " if self.take("IF", "NOT", "EXISTS") else ""

    def elements(self) -> tuple[list[str], list[str]]:
        """The columns and the constraints of a list in parentheses, without their order relative to each
        other.
        """
        columns: list[str] = []
        constraints: list[str] = []
        self.need("(")
        while True:
            if self.at_constraint():
                constraints.append(self.constraint())
            else:
                columns.append(self.column())
            if not self.take(","):
                break
        self.need(")")
        return columns, constraints

    # --- columns ----------------------------------------------------------------------------------------

    def column(self) -> str:
        """A column with its type and options."""
        name = self.column_name()
        if self.take("SERIAL"):
            parts = [name, "BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE KEY"]
        else:
            parts = [name, self.column_type()]
        while (option := self._column_option()) is not None:
            parts.append(option)
        return " ".join(parts)

    def _column_option(self) -> str | None:
        if self.take("NOT", "NULL"):
            return "NOT NULL"
        if word := self.take_any("NULL", "AUTO_INCREMENT"):
            return word
        if self.at_any("PRIMARY", "KEY"):
            return self._primary_key()
        if self.take("UNIQUE"):
            self.take("KEY")
            return "UNIQUE KEY" + self._global()
        if self.take("DEFAULT"):
            return f"DEFAULT {self._default_value()}"
        if self.take("SERIAL", "DEFAULT", "VALUE"):
            return "NOT NULL AUTO_INCREMENT UNIQUE KEY"
        if self.take("ON", "UPDATE"):
            return f"ON UPDATE {self._now() or self.fail('CURRENT_TIMESTAMP')}"
        if self.take("COMMENT"):
            return f"COMMENT {bare_value(self.string())}"
        if self.at_any("CONSTRAINT", "CHECK"):
            return self._column_check()
        if self.at_any("GENERATED", "AS"):
            return self._generated()
        if self.at("REFERENCES"):
            return self._references()
        return self._rare_option()

    def _rare_option(self) -> str | None:
        if self.take("COLLATE"):
            return f"COLLATE {self.collation()}"
        if self.take("COLUMN_FORMAT"):
            return f"COLUMN_FORMAT {self.need_any('DEFAULT', 'FIXED', 'DYNAMIC')}"
        if self.take("STORAGE"):
            return f"STORAGE {self.need_any('DEFAULT', 'DISK', 'MEMORY')}"
        if self.take("SECONDARY_ENGINE_ATTRIBUTE"):
            self.take_equals()
            return f"SECONDARY_ENGINE_ATTRIBUTE = {self.plain_string()}"
        if self.take("AUTO_RANDOM"):
            bits = f"({', '.join(self.parenthesised(self.uint))})" if self.at("(") else ""
            return f"/*T![auto_rand] AUTO_RANDOM{bits} */"
        return None

    def _primary_key(self) -> str:
        self.take("PRIMARY")
        self.need("KEY")
        kind = self.take_any("CLUSTERED", "NONCLUSTERED")
        return "PRIMARY KEY" + (f" /*T![clustered_index] {kind} */" if kind else "") + self._global()

    def _global(self) -> str:
        return " GLOBAL" if self.take_any("GLOBAL", "LOCAL") == "GLOBAL" else ""

    def _generated(self) -> str:
        if self.take("GENERATED"):
            self.need("ALWAYS")
        self.need("AS", "(")
        text = self.expression()
        self.need(")")
        stored = self.take_any("VIRTUAL", "STORED") or "VIRTUAL"
        return f"GENERATED ALWAYS AS({text}) {stored}"

    def _column_check(self) -> str:
        name = ""
        if self.take("CONSTRAINT") and not self.at("CHECK"):
            name = f"CONSTRAINT {self.name()} "
        check = self._check()
        if self.take("NOT", "NULL"):
            return f"{name}{check} ENFORCED NOT NULL"
        return f"{name}{check} {self._enforced()}"

    def _check(self) -> str:
        self.need("CHECK", "(")
        text = self.expression()
        self.need(")")
        return f"CHECK({text})"

    def _enforced(self) -> str:
        if self.take("NOT", "ENFORCED"):
            return "NOT ENFORCED"
        self.take("ENFORCED")
        return "ENFORCED"

    # --- defaults ---------------------------------------------------------------------------------------

    def _default_value(self) -> str:
        value = self._default_expr()
        return value.text if value.kind != "call" else f"({value.text})"

    def _default_expr(self) -> Expr:
        if (now := self._now()) is not None:
            return Expr(now, "value")
        if self.at("("):
            with self.deeper():
                self.need("(")
                inner = self._default_in_parentheses()
                self.need(")")
                return inner
        if self.take_any("CURRENT_DATE", "CURDATE"):
            self.take("(", ")")
            return Expr("CURRENT_DATE()", "call")
        if self.at("NEXT", "VALUE"):
            return self.next_value()
        if self.at_name() or (self.at("REPLACE") and self.ahead().key == "("):
            return self._default_call()
        return Expr(self.signed_literal(), "value")

    def _default_in_parentheses(self) -> Expr:
        if self.at_name() and self.ahead().key == ")":
            return Expr(self.name(), "column")
        return self._default_expr()

    def _default_call(self) -> Expr:
        found = self.call()
        if found is None or found.kind != "call" or not found.text.endswith(")"):
            self.fail("a function")
        return found

    def _now(self) -> str | None:
        word = self.token.key
        if word not in _NOW or (word == "NOW" and self.ahead().key != "("):
            return None
        return "CURRENT_TIMESTAMP" + self.clock().removeprefix(word)

    # --- constraints ------------------------------------------------------------------------------------

    def at_constraint(self) -> bool:
        """Whether a constraint comes next and not a column."""
        if self.at_any("CONSTRAINT", "PRIMARY", "FULLTEXT", "KEY", "INDEX", "UNIQUE", "FOREIGN", "CHECK"):
            return True
        return self.at_any("VECTOR", "COLUMNAR") and self.ahead().key == "INDEX"

    def constraint(self) -> str:
        """A constraint or an index."""
        name = ""
        if self.take("CONSTRAINT") and self.at_name():
            name = self.name()
        if self.at("CHECK"):
            lead = f"CONSTRAINT {name} " if name else ""
            return f"{lead}{self._check()} {self._enforced()}"
        if self.take("FOREIGN", "KEY"):
            return self._foreign_key(name)
        return self._index(name)

    def _index(self, name: str) -> str:
        if self.take("PRIMARY"):
            self.need("KEY")
            words = "PRIMARY KEY"
        elif word := self.take_any("UNIQUE", "FULLTEXT"):
            self.take_any("KEY", "INDEX")
            words = word
        elif word := self.take_any("VECTOR", "COLUMNAR"):
            self.need("INDEX")
            words = f"{word} INDEX"
        else:
            self.need_any("KEY", "INDEX")
            words = "INDEX"
        if words.endswith("INDEX") and self.if_not_exists():
            words += " IF NOT EXISTS"
        own, kind = self._index_name_and_type()
        name = name or own
        text = f"{words} {name}" if name else words
        text += f"({', '.join(self.key_parts())})"
        options = self.index_options(kind)
        return f"{text} {options}" if options else text

    def _index_name_and_type(self) -> tuple[str, str]:
        name = self.name() if self.at_name() else ""
        if self.take("USING") or (name and self.take("TYPE")):
            return name, self.need_any(*_INDEX_TYPES)
        return name, ""

    def key_parts(self) -> list[str]:
        """The columns and expressions of a key."""
        return self.parenthesised(self._key_part)

    def _key_part(self) -> str:
        if self.take("("):
            text = f"({self.expression()})"
            self.need(")")
        else:
            text = self.column_name()
            if self.take("("):
                length = self.uint()
                self.need(")")
                text += f"({length})" if length != "0" else ""
        if self.take("DESC"):
            return f"{text} DESC"
        self.take("ASC")
        return text

    def index_type(self) -> str:
        """USING or TYPE and the type of an index, if they come next."""
        return self.need_any(*_INDEX_TYPES) if self.take_any("USING", "TYPE") else ""

    def index_options(self, kind: str = "") -> str:
        """The options of an index. `kind`: the type before its columns; it wins over one in the options."""
        found: dict[str, str] = {}
        while self._index_option(found):
            pass
        if kind:
            found["type"] = f"USING {kind}"
        return " ".join(found[key] for key in _OPTION_ORDER if found.get(key))

    def _index_option(self, found: dict[str, str]) -> bool:
        if word := self.take_any("CLUSTERED", "NONCLUSTERED"):
            found["primary"] = f"/*T![clustered_index] {word} */"
        elif self.take("KEY_BLOCK_SIZE"):
            self.take_equals()
            size = self.uint()
            found["block"] = f"KEY_BLOCK_SIZE={size}" if size != "0" else found.get("block", "")
        elif kind := self.index_type():
            found["type"] = f"USING {kind}"
        elif self.take("WITH", "PARSER"):
            found["parser"] = f"WITH PARSER {self.name()}"
        elif self.take("COMMENT"):
            text = self.string()
            found["comment"] = f"COMMENT {self.plain(text)}" if text else found.get("comment", "")
        elif word := self.take_any("VISIBLE", "INVISIBLE"):
            found["visible"] = word
        elif word := self.take_any("GLOBAL", "LOCAL"):
            if word == "GLOBAL":
                found["global"] = "/*T![global_index] GLOBAL */"
        else:
            return self._newer_index_option(found)
        return True

    def _newer_index_option(self, found: dict[str, str]) -> bool:
        if self.take("PRE_SPLIT_REGIONS"):
            self.take_equals()
            found["split"] = f"/*T![pre_split] PRE_SPLIT_REGIONS = {self._split_option()} */"
        elif self.take("SECONDARY_ENGINE_ATTRIBUTE"):
            self.take_equals()
            found["engine"] = f"SECONDARY_ENGINE_ATTRIBUTE = {self.plain_string()}"
        elif self.take("WHERE"):
            found["where"] = f"WHERE {self.expression()}"
        else:
            return False
        return True

    def _split_option(self) -> str:
        if self.token.kind is TokenKind.INT:
            return self.uint()
        self.need("(")
        if self.take("BY"):
            rows = self.listed(lambda: f"({','.join(self.parenthesised(self.expression))})")
            text = f"BY {','.join(rows)}"
        else:
            self.need("BETWEEN")
            least = ",".join(self.parenthesised(self.expression))
            self.need("AND")
            most = ",".join(self.parenthesised(self.expression))
            self.need("REGIONS")
            text = f"BETWEEN ({least}) AND ({most}) REGIONS {self.uint()}"
        self.need(")")
        return f"({text})"

    # --- foreign keys -----------------------------------------------------------------------------------

    def _foreign_key(self, name: str) -> str:
        exists = self.if_not_exists()
        own = self.name() if self.at_name() else ""
        name = name or own
        lead = f"CONSTRAINT {name} " if name else "CONSTRAINT "
        return f"{lead}FOREIGN KEY {exists}({', '.join(self.key_parts())}) {self._references()}"

    def _references(self) -> str:
        self.need("REFERENCES")
        text = f"REFERENCES {self.table_name()}"
        text += f"({', '.join(self.key_parts())})" if self.at("(") else ""
        if self.take("MATCH"):
            text += f" MATCH {self.need_any('FULL', 'PARTIAL', 'SIMPLE')}"
        found: dict[str, str] = {}
        # `ON UPDATE CURRENT_TIMESTAMP` is an option of the column, and not part of the reference.
        while self.at("ON", "DELETE") or (self.at("ON", "UPDATE") and not self._at_on_update_now()):
            self.need("ON")
            event = self.next().key
            if event in found:
                self.fail("ON DELETE and ON UPDATE once each")
            found[event] = f" ON {event} {self._reference_option()}"
        return text + found.get("DELETE", "") + found.get("UPDATE", "")

    def _at_on_update_now(self) -> bool:
        return self.ahead(2).key in _NOW

    def _reference_option(self) -> str:
        if word := self.take_any("RESTRICT", "CASCADE"):
            return word
        if self.take("SET"):
            return f"SET {self.need_any('NULL', 'DEFAULT')}"
        self.need("NO", "ACTION")
        return "NO ACTION"
