"""Logic and comparisons, parsed with the operator precedence of TiDB's grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.cursor import Cursor, quoted
from tidegate.tidb.sql.lexer import HIGH_NOT_PRECEDENCE, PIPES_AS_CONCAT, TokenKind
from tidegate.tidb.sql.nested import Expr
from tidegate.tidb.sql.operands import Operands, Subqueries

_LOGIC: Final = (("OR", "||"), ("XOR",), ("AND", "&&"))
"""Logical operators, the loosest first."""

_COMPARISONS: Final = {
    ">=": ">=",
    ">": ">",
    "<=": "<=",
    "<": "<",
    "!=": "!=",
    "<>": "!=",
    "=": "=",
    "<=>": "<=>",
}
_TESTS: Final = ("IN", "BETWEEN", "LIKE", "ILIKE", "REGEXP", "RLIKE")
"""Comparisons that NOT may be in front of."""


class Expressions:
    """Reads whole expressions.

    Each level of precedence calls the next one, and the last one is arithmetic (`operands`).
    """

    def __init__(self, cursor: Cursor, operands: Operands, subqueries: Subqueries) -> None:
        self._cursor, self._operands, self._subqueries = cursor, operands, subqueries

    # --- logic ------------------------------------------------------------------------------------------

    def expression(self) -> str:
        """The text of an expression as TiDB writes it."""
        return self.expr().text

    def expr(self) -> Expr:
        """An expression."""
        with self._cursor.deeper():
            return self._logic(0)

    def expressions(self) -> list[str]:
        """One or more expressions."""
        return self._cursor.listed(self.expression)

    def arguments(self) -> list[str]:
        """The arguments of a call, in parentheses; there may be none."""
        cursor = self._cursor
        cursor.need("(")
        if cursor.take(")"):
            return []
        found = self.expressions()
        cursor.need(")")
        return found

    def _logic(self, level: int) -> Expr:
        cursor = self._cursor
        if level == len(_LOGIC):
            return self._negation()
        words = _LOGIC[level]
        # In this mode `||` joins texts (`simple`).
        if level == 0 and cursor.sql_mode & PIPES_AS_CONCAT:
            words = words[:1]
        first = self._logic(level + 1)
        if not cursor.at_any(*words):
            return first
        parts = [first.text]
        while cursor.take_any(*words):
            parts += [f" {words[0]} ", self._logic(level + 1).text]
        return Expr("".join(parts), "operation")

    def _negation(self) -> Expr:
        cursor = self._cursor
        if cursor.at("NOT") and not cursor.sql_mode & HIGH_NOT_PRECEDENCE:
            negations = 0
            while cursor.take("NOT"):
                negations += 1
            operand = self._negation()
            # TiDB has one node for EXISTS and NOT EXISTS; a NOT before it only inverts its mark.
            if operand.kind == "exists":
                negated = operand.text.startswith("NOT ") != bool(negations % 2)
                return Expr(("NOT " if negated else "") + operand.text.removeprefix("NOT "), "exists")
            return Expr("NOT " * negations + operand.text, "operation")
        if cursor.token.kind is TokenKind.USER_VARIABLE and cursor.ahead().key == ":=":
            return self._assignment(self.expression)
        if cursor.at("MATCH", "("):
            return self._match()
        return self._comparison()

    def _assignment(self, value: Callable[[], str]) -> Expr:
        cursor = self._cursor
        name = quoted(cursor.next().text)
        cursor.need(":=")
        return Expr(f"@{name}:={value()}", "operation")

    def _match(self) -> Expr:
        cursor = self._cursor
        cursor.need("MATCH")
        columns = ",".join(cursor.parenthesised(cursor.column_name))
        cursor.need("AGAINST", "(")
        against = self._operands.bit_expression()
        mode = ""
        if cursor.take("IN", "BOOLEAN", "MODE"):
            mode = " IN BOOLEAN MODE"
        else:
            cursor.take("IN", "NATURAL", "LANGUAGE", "MODE")
            if cursor.take("WITH", "QUERY", "EXPANSION"):
                mode = " WITH QUERY EXPANSION"
        cursor.need(")")
        return Expr(f"MATCH ({columns}) AGAINST ({against}{mode})", "operation")

    # --- comparisons ------------------------------------------------------------------------------------

    def _comparison(self) -> Expr:
        cursor = self._cursor
        left = self._predicate()
        if not (cursor.token.key in _COMPARISONS or cursor.at("IS")):
            return left
        parts = [left.text]
        while True:
            if cursor.take("IS"):
                parts += [" IS", " NOT" if cursor.take("NOT") else ""]
                what = cursor.need_any("NULL", "TRUE", "FALSE", "UNKNOWN")
                parts.append(" NULL" if what == "UNKNOWN" else f" {what}")
            elif cursor.token.key in _COMPARISONS:
                parts += [_COMPARISONS[cursor.next().key], self._compared()]
            else:
                return Expr("".join(parts), "operation")

    def _compared(self) -> str:
        cursor = self._cursor
        if cursor.at_any("ANY", "SOME", "ALL") and cursor.ahead().key == "(":
            which = cursor.next().key
            return ("ALL " if which == "ALL" else "ANY ") + self._subqueries.subquery()
        if cursor.token.kind is TokenKind.USER_VARIABLE and cursor.ahead().key == ":=":
            return self._assignment(lambda: self._predicate().text).text
        return self._predicate().text

    def _predicate(self) -> Expr:
        cursor = self._cursor
        left = self._operands.bit_expr()
        negated = cursor.at("NOT") and cursor.ahead().key in _TESTS
        if negated:
            cursor.need("NOT")
        word = cursor.take_any(*_TESTS)
        if not word:
            if cursor.take("MEMBER", "OF"):
                cursor.need("(")
                array = self._operands.simple().text
                cursor.need(")")
                return Expr(f"{left.text} MEMBER OF ({array})", "operation")
            return left
        word = "REGEXP" if word == "RLIKE" else word
        return Expr(left.text + (" NOT " if negated else " ") + word + " " + self._tested(word), "operation")

    def _tested(self, word: str) -> str:
        cursor = self._cursor
        if word == "BETWEEN":
            least = self._operands.bit_expression()
            cursor.need("AND")
            with cursor.deeper():
                return f"{least} AND {self._predicate().text}"
        if word == "IN":
            return self._members()
        pattern = self._operands.simple().text
        if word != "REGEXP" and cursor.take("ESCAPE"):
            escape = cursor.string()
            if len(escape) > 1:
                cursor.fail("one character")
            # TiDB takes an empty one for the default, and does not write the default.
            pattern += "" if escape in ("", "\\") else f" ESCAPE {cursor.plain(escape)}"
        return pattern

    def _members(self) -> str:
        cursor = self._cursor
        cursor.need("(")
        if self._subqueries.at_query():
            text = f"({self._subqueries.query()})"
            cursor.need(")")
            return text
        first = self.expr()
        if first.kind == "subquery" and cursor.at_any("UNION", "EXCEPT", "INTERSECT", "ORDER", "LIMIT"):
            text = f"({self._subqueries.query(first.text)})"
            cursor.need(")")
            return text
        if first.kind == "subquery" and cursor.take(")"):
            return first.text
        parts = [first.text]
        while cursor.take(","):
            parts.append(self.expression())
        cursor.need(")")
        return f"({','.join(parts)})"
