"""Subqueries, operands, and the operators of arithmetic, which bind closer than comparisons."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import MAX_DEPTH, Cursor, quoted
from tidegate.tidb.sql.lexer import HIGH_NOT_PRECEDENCE, PIPES_AS_CONCAT, TokenKind
from tidegate.tidb.sql.literals import Literals
from tidegate.tidb.sql.nested import Expr, Nested

_BITS: Final = (("|",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%", "DIV", "MOD"), ("^",))
_WRITTEN: Final = {"DIV": " DIV ", "MOD": "%"}


class Subqueries:
    """Reads queries inside of expressions."""

    def __init__(self, cursor: Cursor, nested: Nested) -> None:
        self._cursor, self._nested = cursor, nested

    def query(self, first: str = "") -> str:
        """A query; with `first`, one whose first part in parentheses was already read."""
        return self._nested.queries.query(first)

    def at_query(self) -> bool:
        """Whether a query without parentheses comes next."""
        cursor = self._cursor
        return cursor.at_any("SELECT", "WITH", "TABLE") or cursor.at("VALUES", "ROW")

    def at_query_in_parentheses(self) -> bool:
        """Whether a query in a single pair of parentheses comes next."""
        cursor = self._cursor
        if not cursor.at("("):
            return False
        key = cursor.ahead().key
        return key in ("SELECT", "WITH", "TABLE") or (key == "VALUES" and cursor.ahead(2).key == "ROW")

    def subquery(self) -> str:
        """A query in parentheses; further pairs of parentheses are dropped."""
        cursor = self._cursor
        cursor.need("(")
        with cursor.deeper():
            if not cursor.at("("):
                text = self.query()
            else:
                text = self.subquery()
                if cursor.at(")"):
                    cursor.need(")")
                    return text
                text = self.query(text)
        cursor.need(")")
        return f"({text})"


class Operands:
    """Reads operands, and what arithmetic makes of them.

    Each level of precedence calls the next one, and the last one reads an operand.
    """

    def __init__(self, cursor: Cursor, literals: Literals, subqueries: Subqueries, nested: Nested) -> None:
        self._cursor, self._literals, self._subqueries = cursor, literals, subqueries
        self._nested = nested

    # --- arithmetic -------------------------------------------------------------------------------------

    def bit_expression(self) -> str:
        """The text of an expression without comparisons and logic, as TiDB writes it."""
        return self.bit_expr().text

    def bit_expr(self, level: int = 0) -> Expr:
        """An expression without comparisons and logic."""
        cursor = self._cursor
        if level == len(_BITS):
            return self.simple()
        words = _BITS[level]
        left = self.bit_expr(level + 1)
        if not cursor.at_any(*words):
            return left
        self._check_mod(left)
        parts = [left.text]
        moves = 0
        while word := cursor.take_any(*words):
            if word in ("+", "-") and cursor.at("INTERVAL") and not cursor.at_interval_function():
                moves = self._repeated(moves)
                # TiDB writes `+ INTERVAL` as a function, so all that was read before it becomes its first
                # argument.
                parts = [self._moved("ADD" if word == "+" else "SUB", "".join(parts))]
                continue
            right = self.bit_expr(level + 1)
            self._check_mod(right)
            parts += [_WRITTEN.get(word, word), right.text]
        return Expr("".join(parts), "call" if len(parts) == 1 else "operation")

    def _repeated(self, times: int) -> int:
        """Count one more function around the expression that was read: TiDB writes some operators as
        functions.
        """
        if times >= MAX_DEPTH:
            self._cursor.fail(f"at most {MAX_DEPTH} such operators in a row")
        return times + 1

    def _check_mod(self, operand: Expr) -> None:
        # TiDB writes MOD(a, b) as `a%b` without parentheses; next to an operator that is another expression.
        if operand.kind == "mod":
            self._cursor.defect("MOD() next to an operator")

    def _moved(self, direction: str, moment: str) -> str:
        cursor = self._cursor
        cursor.need("INTERVAL")
        amount = self._nested.expressions.expression()
        return f"DATE_{direction}({moment}, INTERVAL {amount} {cursor.unit()})"

    # --- operands ---------------------------------------------------------------------------------------

    def simple(self) -> Expr:
        """An expression without binary operators, except COLLATE and concatenation."""
        cursor = self._cursor
        with cursor.deeper():
            left = self._collated()
            if cursor.sql_mode & PIPES_AS_CONCAT:
                times = 0
                while cursor.take("||"):
                    times = self._repeated(times)
                    left = Expr(f"CONCAT({left.text}, {self._collated().text})", "call")
            return left

    def _collated(self) -> Expr:
        cursor = self._cursor
        inner = self._unary()
        if not cursor.at("COLLATE"):
            return inner
        self._check_mod(inner)
        parts = [inner.text]
        while cursor.take("COLLATE"):
            parts.append(f" COLLATE {cursor.collation()}")
        return Expr("".join(parts), "operation")

    def _unary(self) -> Expr:
        cursor = self._cursor
        if sign := cursor.take_any("-", "+", "~", "!"):
            return self._signed(sign)
        if cursor.at("NOT") and cursor.sql_mode & HIGH_NOT_PRECEDENCE:
            cursor.need("NOT")
            return self._signed("!")
        if cursor.take("BINARY"):
            with cursor.deeper():
                return Expr(f"BINARY {self._collated().text}", "operation")
        return self._primary()

    def _signed(self, sign: str) -> Expr:
        with self._cursor.deeper():
            operand = self._collated()
        self._check_mod(operand)
        return Expr(sign + operand.text, "operation")

    def _primary(self) -> Expr:
        cursor = self._cursor
        if (literal := self._literals.literal()) is not None:
            return Expr(literal, "value")
        if cursor.at("("):
            return self._parentheses()
        token = cursor.token
        if token.kind is TokenKind.USER_VARIABLE:
            return Expr(f"@{quoted(cursor.next().text)}", "variable")
        if token.kind is TokenKind.SYSTEM_VARIABLE:
            return Expr(self._system_variable(), "variable")
        if (found := self._nested.calls.call()) is not None:
            return found
        return self._column()

    def _column(self) -> Expr:
        cursor = self._cursor
        column = cursor.column_name()
        arrow = cursor.take_any("->", "->>")
        if not arrow:
            return Expr(column, "column")
        extracted = f"JSON_EXTRACT({column}, {cursor.value(cursor.string())})"
        return Expr(f"JSON_UNQUOTE({extracted})" if arrow == "->>" else extracted, "call")

    def _system_variable(self) -> str:
        name = self._cursor.next().text.lower()
        scope, dot, rest = name.partition(".")
        if dot and scope in ("global", "instance", "session", "local"):
            return f"@@{'SESSION' if scope == 'local' else scope.upper()}.{quoted(rest)}"
        return f"@@{quoted(name)}"

    def _parentheses(self) -> Expr:
        cursor = self._cursor
        with cursor.deeper():
            if self._subqueries.at_query_in_parentheses():
                return Expr(self._subqueries.subquery(), "subquery")
            cursor.need("(")
            first = self._nested.expressions.expr()
            if first.kind == "subquery" and cursor.at_any("UNION", "EXCEPT", "INTERSECT", "ORDER", "LIMIT"):
                text = self._subqueries.query(first.text)
                cursor.need(")")
                return Expr(f"({text})", "subquery")
            parts = [first.text]
            while cursor.take(","):
                parts.append(self._nested.expressions.expression())
            cursor.need(")")
            if len(parts) > 1:
                return Expr(f"ROW({','.join(parts)})", "row", tuple(parts))
            return Expr(f"({first.text})", "subquery" if first.kind == "subquery" else "parentheses")
