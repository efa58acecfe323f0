"""Columns, inside the parentheses of CREATE TABLE and in ALTER TABLE."""

from __future__ import annotations

from tidegate.tidb.sql.calls import Calls
from tidegate.tidb.sql.column_type import ColumnTypes
from tidegate.tidb.sql.constraints import Constraints
from tidegate.tidb.sql.cursor import Cursor, bare_value
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.literals import Literals
from tidegate.tidb.sql.nested import Expr
from tidegate.tidb.sql.time_calls import TimeCalls
from tidegate.tidb.sql.words import NOW


class Columns:
    """Reads columns, and lists of columns and constraints."""

    def __init__(
        self,
        cursor: Cursor,
        literals: Literals,
        expressions: Expressions,
        types: ColumnTypes,
        times: TimeCalls,
        calls: Calls,
        constraints: Constraints,
    ) -> None:
        self._cursor, self._literals, self._expressions = cursor, literals, expressions
        self._types, self._times, self._calls = types, times, calls
        self._constraints = constraints

    def elements(self) -> tuple[list[str], list[str]]:
        """The columns and the constraints of a list in parentheses, without their order relative to each
        other.
        """
        cursor = self._cursor
        columns: list[str] = []
        constraints: list[str] = []
        cursor.need("(")
        while True:
            if self._constraints.at_constraint():
                constraints.append(self._constraints.constraint())
            else:
                columns.append(self.column())
            if not cursor.take(","):
                break
        cursor.need(")")
        return columns, constraints

    # --- columns ----------------------------------------------------------------------------------------

    def column(self) -> str:
        """A column with its type and options."""
        cursor = self._cursor
        name = cursor.column_name()
        if cursor.take("SERIAL"):
            parts = [name, "BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE KEY"]
        else:
            parts = [name, self._types.column_type()]
        while (option := self._column_option()) is not None:
            parts.append(option)
        return " ".join(parts)

    def _column_option(self) -> str | None:
        cursor = self._cursor
        if cursor.take("NOT", "NULL"):
            return "NOT NULL"
        if word := cursor.take_any("NULL", "AUTO_INCREMENT"):
            return word
        if cursor.at_any("PRIMARY", "KEY"):
            return self._primary_key()
        if cursor.take("UNIQUE"):
            cursor.take("KEY")
            return "UNIQUE KEY" + self._global()
        if cursor.take("DEFAULT"):
            return f"DEFAULT {self._default_value()}"
        if cursor.take("SERIAL", "DEFAULT", "VALUE"):
            return "NOT NULL AUTO_INCREMENT UNIQUE KEY"
        if cursor.take("ON", "UPDATE"):
            return f"ON UPDATE {self._now() or cursor.fail('CURRENT_TIMESTAMP')}"
        if cursor.take("COMMENT"):
            return f"COMMENT {bare_value(cursor.string())}"
        if cursor.at_any("CONSTRAINT", "CHECK"):
            return self._column_check()
        if cursor.at_any("GENERATED", "AS"):
            return self._generated()
        if cursor.at("REFERENCES"):
            return self._constraints.references()
        return self._rare_option()

    def _rare_option(self) -> str | None:
        cursor = self._cursor
        if cursor.take("COLLATE"):
            return f"COLLATE {cursor.collation()}"
        if cursor.take("COLUMN_FORMAT"):
            return f"COLUMN_FORMAT {cursor.need_any('DEFAULT', 'FIXED', 'DYNAMIC')}"
        if cursor.take("STORAGE"):
            return f"STORAGE {cursor.need_any('DEFAULT', 'DISK', 'MEMORY')}"
        if cursor.take("SECONDARY_ENGINE_ATTRIBUTE"):
            cursor.take_equals()
            return f"SECONDARY_ENGINE_ATTRIBUTE = {cursor.plain_string()}"
        if cursor.take("AUTO_RANDOM"):
            bits = f"({', '.join(cursor.parenthesised(cursor.uint))})" if cursor.at("(") else ""
            return f"/*T![auto_rand] AUTO_RANDOM{bits} */"
        return None

    def _primary_key(self) -> str:
        cursor = self._cursor
        cursor.take("PRIMARY")
        cursor.need("KEY")
        kind = cursor.take_any("CLUSTERED", "NONCLUSTERED")
        return "PRIMARY KEY" + (f" /*T![clustered_index] {kind} */" if kind else "") + self._global()

    def _global(self) -> str:
        return " GLOBAL" if self._cursor.take_any("GLOBAL", "LOCAL") == "GLOBAL" else ""

    def _generated(self) -> str:
        cursor = self._cursor
        if cursor.take("GENERATED"):
            cursor.need("ALWAYS")
        cursor.need("AS", "(")
        text = self._expressions.expression()
        cursor.need(")")
        stored = cursor.take_any("VIRTUAL", "STORED") or "VIRTUAL"
        return f"GENERATED ALWAYS AS({text}) {stored}"

    def _column_check(self) -> str:
        cursor = self._cursor
        name = ""
        if cursor.take("CONSTRAINT") and not cursor.at("CHECK"):
            name = f"CONSTRAINT {cursor.name()} "
        check = self._constraints.check()
        if cursor.take("NOT", "NULL"):
            return f"{name}{check} ENFORCED NOT NULL"
        return f"{name}{check} {self._constraints.enforced()}"

    # --- defaults ---------------------------------------------------------------------------------------

    def _default_value(self) -> str:
        value = self._default_expr()
        return value.text if value.kind != "call" else f"({value.text})"

    def _default_expr(self) -> Expr:
        cursor = self._cursor
        if (now := self._now()) is not None:
            return Expr(now, "value")
        if cursor.at("("):
            with cursor.deeper():
                cursor.need("(")
                inner = self._default_in_parentheses()
                cursor.need(")")
                return inner
        if cursor.take_any("CURRENT_DATE", "CURDATE"):
            cursor.take("(", ")")
            return Expr("CURRENT_DATE()", "call")
        if cursor.at("NEXT", "VALUE"):
            return self._calls.next_value()
        if cursor.at_name() or (cursor.at("REPLACE") and cursor.ahead().key == "("):
            return self._default_call()
        return Expr(self._literals.signed_literal(), "value")

    def _default_in_parentheses(self) -> Expr:
        cursor = self._cursor
        if cursor.at_name() and cursor.ahead().key == ")":
            return Expr(cursor.name(), "column")
        return self._default_expr()

    def _default_call(self) -> Expr:
        found = self._calls.call()
        if found is None or found.kind != "call" or not found.text.endswith(")"):
            self._cursor.fail("a function")
        return found

    def _now(self) -> str | None:
        cursor = self._cursor
        word = cursor.token.key
        if word not in NOW or (word == "NOW" and cursor.ahead().key != "("):
            return None
        return "CURRENT_TIMESTAMP" + self._times.clock().removeprefix(word)
