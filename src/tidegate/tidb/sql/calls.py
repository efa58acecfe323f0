"""Function calls and other expressions that begin with a word, each as TiDB writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.aggregates import Aggregates
from tidegate.tidb.sql.column_type import ColumnTypes
from tidegate.tidb.sql.cursor import Cursor, bare_value
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.nested import Expr
from tidegate.tidb.sql.operands import Subqueries
from tidegate.tidb.sql.text_calls import TextCalls
from tidegate.tidb.sql.time_calls import TimeCalls
from tidegate.tidb.sql.words import RESERVED

_OPTIONAL_BRACES: Final = ("CURRENT_USER", "CURRENT_DATE", "CURRENT_ROLE", "UTC_DATE", "TIDB_CURRENT_TSO")
_CLOCKS: Final = (
    "CURRENT_TIME",
    "CURRENT_TIMESTAMP",
    "LOCALTIME",
    "LOCALTIMESTAMP",
    "UTC_TIME",
    "UTC_TIMESTAMP",
)
_RESERVED_FUNCTIONS: Final = frozenset(("DATABASE", "IF", "LEFT", "REPEAT", "REPLACE", "RIGHT"))
"""Reserved words that are functions when a parenthesis follows."""

_DATE_LITERALS: Final = ("DATE", "TIME", "TIMESTAMP")
_ODBC_LITERALS: Final = {"d": "DATE", "t": "TIME", "ts": "TIMESTAMP"}
_ATOMS: Final = ("value", "column", "call", "variable", "parentheses", "subquery")


class Calls:
    """Reads expressions that begin with a word."""

    def __init__(
        self,
        cursor: Cursor,
        expressions: Expressions,
        subqueries: Subqueries,
        types: ColumnTypes,
        times: TimeCalls,
        texts: TextCalls,
        aggregates: Aggregates,
    ) -> None:
        self._cursor, self._expressions, self._subqueries = cursor, expressions, subqueries
        self._types, self._times, self._aggregates = types, times, aggregates
        self._own: Final[dict[str, Callable[[], Expr]]] = {
            **times.own,
            **texts.own,
            "BINARY": self._no_call,
            "CASE": self._case,
            "CAST": self._cast,
            "CONVERT": self._convert,
            "DEFAULT": self._default,
            "EXISTS": self._exists,
            "LASTVAL": self._sequence,
            "MOD": self._mod,
            "NEXTVAL": self._sequence,
            "ROW": self._row,
            "SETVAL": self._sequence,
            "VALUES": self._values,
        }

    def call(self) -> Expr | None:
        """A function or another construct that begins with a word, if one comes next."""
        cursor = self._cursor
        token = cursor.token
        if token.kind is TokenKind.SIGN:
            return self._sign_call(token.key)
        if token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
            return None
        own = self._own.get(token.key)
        # A word that is not reserved is the name of a column unless a parenthesis follows.
        if own is not None and (token.key in RESERVED or cursor.ahead().key == "("):
            return own()
        if token.key in _DATE_LITERALS and cursor.ahead().kind is TokenKind.STRING:
            return Expr(f"{cursor.next().key} {bare_value(cursor.string())}", "call")
        if token.key in _OPTIONAL_BRACES:
            return self._optional_braces()
        if token.key in _CLOCKS:
            return Expr(self._times.clock(), "call")
        if (found := self._aggregates.call()) is not None:
            return found
        if cursor.ahead().key == "(" and (token.key in _RESERVED_FUNCTIONS or cursor.at_name()):
            name = cursor.next().text.upper()
            return Expr(f"{name}({', '.join(self._expressions.arguments())})", "call")
        return self._schema_function()

    def _no_call(self) -> Expr:
        self._cursor.fail("an expression")

    def _sign_call(self, sign: str) -> Expr | None:
        cursor = self._cursor
        if sign == "?":
            cursor.next()
            return Expr("?", "value")
        if sign != "{":
            return None
        cursor.need("{")
        name = cursor.identifier()
        inner = self._expressions.expr()
        cursor.need("}")
        literal = _ODBC_LITERALS.get(name)
        if literal is None:
            return inner
        return Expr(f"{literal} {inner.text.removeprefix(cursor.introducer)}", "call")

    def _schema_function(self) -> Expr | None:
        cursor = self._cursor
        if not (cursor.at_name() and cursor.ahead().key == "." and cursor.ahead(3).key == "("):
            if cursor.at("NEXT", "VALUE", "FOR"):
                return self.next_value()
            return None
        schema = cursor.name()
        cursor.need(".")
        name = cursor.name()
        return Expr(f"{schema}.{name}({', '.join(self._expressions.arguments())})", "call")

    def next_value(self) -> Expr:
        """NEXT VALUE FOR a sequence."""
        cursor = self._cursor
        cursor.need("NEXT", "VALUE", "FOR")
        return Expr(f"NEXTVAL({cursor.table_name()})", "call")

    def _optional_braces(self) -> Expr:
        cursor = self._cursor
        name = cursor.next().key
        cursor.take("(", ")")
        return Expr(f"{name}()", "call")

    # --- calls with a syntax of their own ---------------------------------------------------------------

    def _case(self) -> Expr:
        cursor = self._cursor
        cursor.need("CASE")
        parts = ["CASE"]
        if not cursor.at("WHEN"):
            parts.append(f" {self._expressions.expression()}")
        while cursor.take("WHEN"):
            parts.append(f" WHEN {self._expressions.expression()}")
            cursor.need("THEN")
            parts.append(f" THEN {self._expressions.expression()}")
        if cursor.take("ELSE"):
            parts.append(f" ELSE {self._expressions.expression()}")
        cursor.need("END")
        return Expr("".join(parts) + " END", "call")

    def _cast(self) -> Expr:
        cursor = self._cursor
        cursor.need("CAST", "(")
        inner = self._expressions.expression()
        cursor.need("AS")
        text = f"CAST({inner} AS {self._types.cast_type()})"
        cursor.need(")")
        return Expr(text, "call")

    def _convert(self) -> Expr:
        cursor = self._cursor
        cursor.need("CONVERT", "(")
        inner = self._expressions.expression()
        if cursor.take("USING"):
            text = f"CONVERT({inner} USING {bare_value(cursor.charset())})"
        else:
            cursor.need(",")
            text = f"CONVERT({inner}, {self._types.cast_type()})"
        cursor.need(")")
        return Expr(text, "call")

    def _default(self) -> Expr:
        cursor = self._cursor
        cursor.need("DEFAULT", "(")
        column = cursor.column_name()
        cursor.need(")")
        return Expr(f"DEFAULT({column})", "call")

    def _values(self) -> Expr:
        cursor = self._cursor
        cursor.need("VALUES", "(")
        column = cursor.column_name()
        cursor.need(")")
        return Expr(f"VALUES({column})", "call")

    def _exists(self) -> Expr:
        self._cursor.need("EXISTS")
        return Expr(f"EXISTS {self._subqueries.subquery()}", "exists")

    def _mod(self) -> Expr:
        cursor = self._cursor
        cursor.need("MOD", "(")
        left = self._expressions.expr()
        cursor.need(",")
        right = self._expressions.expr()
        cursor.need(")")
        if left.kind not in _ATOMS or right.kind not in _ATOMS:
            cursor.defect("MOD() of operations")
        if not cursor.exact:
            return Expr(f"MOD({left.text}, {right.text})", "call")
        return Expr(f"{left.text}%{right.text}", "mod")

    def _row(self) -> Expr:
        cursor = self._cursor
        cursor.need("ROW", "(")
        parts = self._expressions.expressions()
        cursor.need(")")
        if len(parts) < 2:
            cursor.fail("a row of two or more")
        return Expr(f"ROW({','.join(parts)})", "row", tuple(parts))

    def _sequence(self) -> Expr:
        cursor = self._cursor
        name = cursor.next().key
        cursor.need("(")
        text = cursor.table_name()
        if name == "SETVAL":
            cursor.need(",")
            text += f", {cursor.signed()}"
        cursor.need(")")
        return Expr(f"{name}({text})", "call")
