"""Expressions, parsed with the operator precedence of TiDB's grammar."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple

from tidegate.tidb.sql.cursor import MAX_DEPTH, quoted
from tidegate.tidb.sql.lexer import HIGH_NOT_PRECEDENCE, PIPES_AS_CONCAT, TokenKind
from tidegate.tidb.sql.literals import Literals
from tidegate.tidb.sql.words import UNITS


class Expr(NamedTuple):
    """An expression as TiDB writes it."""

    text: str
    kind: str = ""
    """The kind: `value`, `column`, `call`, `exists`, `subquery`, `row`, `operation`, `mod` ..."""
    parts: tuple[str, ...] = ()
    """The members of a row."""


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

_BITS: Final = (("|",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%", "DIV", "MOD"), ("^",))
_WRITTEN: Final = {"DIV": " DIV ", "MOD": "%"}


class Expressions(Literals, ABC):
    """Reads expressions. `Functions` and `Queries` implement its abstract methods.

    A long class, because each level of precedence calls the next one, and the last one the first.
    """

    @abstractmethod
    def call(self) -> Expr | None:
        """A function or another construct that begins with a word, if one comes next."""

    @abstractmethod
    def at_query(self) -> bool:
        """Whether a query without parentheses comes next."""

    @abstractmethod
    def query(self, first: str = "") -> str:
        """A query; with `first`, one whose first part in parentheses was already read."""

    # --- logic ------------------------------------------------------------------------------------------

    def expression(self) -> str:
        """The text of an expression as TiDB writes it."""
        return self.expr().text

    def expr(self) -> Expr:
        """An expression."""
        with self.deeper():
            return self._logic(0)

    def expressions(self) -> list[str]:
        """One or more expressions."""
        return self.listed(self.expression)

    def _logic(self, level: int) -> Expr:
        if level == len(_LOGIC):
            return self._negation()
        words = _LOGIC[level]
        # In this mode `||` joins texts (`simple`).
        if level == 0 and self.sql_mode & PIPES_AS_CONCAT:
            words = words[:1]
        first = self._logic(level + 1)
        if not self.at_any(*words):
            return first
        parts = [first.text]
        while self.take_any(*words):
            parts += [f" {words[0]} ", self._logic(level + 1).text]
        return Expr("".join(parts), "operation")

    def _negation(self) -> Expr:
        if self.at("NOT") and not self.sql_mode & HIGH_NOT_PRECEDENCE:
            negations = 0
            while self.take("NOT"):
                negations += 1
            operand = self._negation()
            # TiDB has one node for EXISTS and NOT EXISTS; a NOT before it only inverts its mark.
            if operand.kind == "exists":
                negated = operand.text.startswith("NOT ") != bool(negations % 2)
                return Expr(("NOT " if negated else "") + operand.text.removeprefix("NOT "), "exists")
            return Expr("NOT " * negations + operand.text, "operation")
        if self.token.kind is TokenKind.USER_VARIABLE and self.ahead().key == ":=":
            return self._assignment(self.expression)
        if self.at("MATCH", "("):
            return self._match()
        return self._comparison()

    def _assignment(self, value: Callable[[], str]) -> Expr:
        name = quoted(self.next().text)
        self.need(":=")
        return Expr(f"@{name}:={value()}", "operation")

    def _match(self) -> Expr:
        self.need("MATCH")
        columns = ",".join(self.parenthesised(self.column_name))
        self.need("AGAINST", "(")
        against = self.bit_expression()
        mode = ""
        if self.take("IN", "BOOLEAN", "MODE"):
            mode = " IN BOOLEAN MODE"
        else:
            self.take("IN", "NATURAL", "LANGUAGE", "MODE")
            if self.take("WITH", "QUERY", "EXPANSION"):
                mode = " WITH QUERY EXPANSION"
        self.need(")")
        return Expr(f"MATCH ({columns}) AGAINST ({against}{mode})", "operation")

    # --- comparisons ------------------------------------------------------------------------------------

    def _comparison(self) -> Expr:
        left = self._predicate()
        if not (self.token.key in _COMPARISONS or self.at("IS")):
            return left
        parts = [left.text]
        while True:
            if self.take("IS"):
                parts += [" IS", " NOT" if self.take("NOT") else ""]
                what = self.need_any("NULL", "TRUE", "FALSE", "UNKNOWN")
                parts.append(" NULL" if what == "UNKNOWN" else f" {what}")
            elif self.token.key in _COMPARISONS:
                parts += [_COMPARISONS[self.next().key], self._compared()]
            else:
                return Expr("".join(parts), "operation")

    def _compared(self) -> str:
        if self.at_any("ANY", "SOME", "ALL") and self.ahead().key == "(":
            which = self.next().key
            return ("ALL " if which == "ALL" else "ANY ") + self.subquery()
        if self.token.kind is TokenKind.USER_VARIABLE and self.ahead().key == ":=":
            return self._assignment(lambda: self._predicate().text).text
        return self._predicate().text

    def _predicate(self) -> Expr:
        left = self.bit_expr()
        negated = self.at("NOT") and self.ahead().key in ("IN", "BETWEEN", "LIKE", "ILIKE", "REGEXP", "RLIKE")
        if negated:
            self.need("NOT")
        word = self.take_any("IN", "BETWEEN", "LIKE", "ILIKE", "REGEXP", "RLIKE")
        if not word:
            if self.take("MEMBER", "OF"):
                self.need("(")
                array = self.simple().text
                self.need(")")
                return Expr(f"{left.text} MEMBER OF ({array})", "operation")
            return left
        word = "REGEXP" if word == "RLIKE" else word
        return Expr(left.text + (" NOT " if negated else " ") + word + " " + self._tested(word), "operation")

    def _tested(self, word: str) -> str:
        if word == "BETWEEN":
            least = self.bit_expression()
            self.need("AND")
            with self.deeper():
                return f"{least} AND {self._predicate().text}"
        if word == "IN":
            return self._members()
        pattern = self.simple().text
        if word != "REGEXP" and self.take("ESCAPE"):
            escape = self.string()
            if len(escape) > 1:
                self.fail("one character")
            pattern += "" if escape in ("", "\\") else f" ESCAPE {self.plain(escape)}"
        return pattern

    def _members(self) -> str:
        self.need("(")
        if self.at_query():
            text = f"({self.query()})"
            self.need(")")
            return text
        first = self.expr()
        if first.kind == "subquery" and self.at_any("UNION", "EXCEPT", "INTERSECT", "ORDER", "LIMIT"):
            text = f"({self.query(first.text)})"
            self.need(")")
            return text
        if first.kind == "subquery" and self.take(")"):
            return first.text
        parts = [first.text]
        while self.take(","):
            parts.append(self.expression())
        self.need(")")
        return f"({','.join(parts)})"

    # --- arithmetic -------------------------------------------------------------------------------------

    def bit_expression(self) -> str:
        """The text of an expression without comparisons and logic, as TiDB writes it."""
        return self.bit_expr().text

    def bit_expr(self, level: int = 0) -> Expr:
        """An expression without comparisons and logic."""
        if level == len(_BITS):
            return self.simple()
        words = _BITS[level]
        left = self.bit_expr(level + 1)
        if not self.at_any(*words):
            return left
        self._check_mod(left)
        parts = [left.text]
        moves = 0
        while word := self.take_any(*words):
            if word in ("+", "-") and self.at("INTERVAL") and not self._at_interval_function():
                moves = self._nested(moves)
                parts = [self._moved("ADD" if word == "+" else "SUB", "".join(parts))]
                continue
            right = self.bit_expr(level + 1)
            self._check_mod(right)
            parts += [_WRITTEN.get(word, word), right.text]
        return Expr("".join(parts), "call" if len(parts) == 1 else "operation")

    def _nested(self, times: int) -> int:
        """Count one more function around the expression that was read: TiDB writes some operators as
        functions.
        """
        if times >= MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} such operators in a row")
        return times + 1

    def _check_mod(self, operand: Expr) -> None:
        if operand.kind == "mod":
            self.defect("MOD() next to an operator")

    def _at_interval_function(self) -> bool:
        return self.ahead().key == "(" and not self._interval_unit_follows()

    def _interval_unit_follows(self) -> bool:
        """Whether a time unit follows the parentheses of INTERVAL (...); looks at each token once."""
        depth, index = 0, self._place + 1
        while index < len(self._tokens):
            key = self._tokens[index].key
            depth += (key == "(") - (key == ")")
            index += 1
            if depth == 0:
                return self._tokens[min(index, len(self._tokens) - 1)].key in UNITS
        return False

    def _moved(self, direction: str, moment: str) -> str:
        self.need("INTERVAL")
        amount = self.expression()
        return f"DATE_{direction}({moment}, INTERVAL {amount} {self.unit()})"

    def unit(self) -> str:
        """A unit of time."""
        unit = UNITS.get(self.token.key) or self.fail("a unit of time")
        self.next()
        return unit

    # --- operands ---------------------------------------------------------------------------------------

    def simple(self) -> Expr:
        """An expression without binary operators, except COLLATE and concatenation."""
        with self.deeper():
            left = self._collated()
            if self.sql_mode & PIPES_AS_CONCAT:
                times = 0
                while self.take("||"):
                    times = self._nested(times)
                    left = Expr(f"CONCAT({left.text}, {self._collated().text})", "call")
            return left

    def _collated(self) -> Expr:
        inner = self._unary()
        if not self.at("COLLATE"):
            return inner
        self._check_mod(inner)
        parts = [inner.text]
        while self.take("COLLATE"):
            parts.append(f" COLLATE {self.collation()}")
        return Expr("".join(parts), "operation")

    def _unary(self) -> Expr:
        if sign := self.take_any("-", "+", "~", "!"):
            return self._signed(sign)
        if self.at("NOT") and self.sql_mode & HIGH_NOT_PRECEDENCE:
            self.need("NOT")
            return self._signed("!")
        if self.take("BINARY"):
            with self.deeper():
                return Expr(f"BINARY {self._collated().text}", "operation")
        return self._primary()

    def _signed(self, sign: str) -> Expr:
        with self.deeper():
            operand = self._collated()
        self._check_mod(operand)
        return Expr(sign + operand.text, "operation")

    def _primary(self) -> Expr:
        if (literal := self.literal()) is not None:
            return Expr(literal, "value")
        if self.at("("):
            return self._parentheses()
        token = self.token
        if token.kind is TokenKind.USER_VARIABLE:
            return Expr(f"@{quoted(self.next().text)}", "variable")
        if token.kind is TokenKind.SYSTEM_VARIABLE:
            return Expr(self._system_variable(), "variable")
        if (found := self.call()) is not None:
            return found
        return self._column()

    def _column(self) -> Expr:
        column = self.column_name()
        arrow = self.take_any("->", "->>")
        if not arrow:
            return Expr(column, "column")
        extracted = f"JSON_EXTRACT({column}, {self.value(self.string())})"
        return Expr(f"JSON_UNQUOTE({extracted})" if arrow == "->>" else extracted, "call")

    def _system_variable(self) -> str:
        name = self.next().text.lower()
        scope, dot, rest = name.partition(".")
        if dot and scope in ("global", "instance", "session", "local"):
            return f"@@{'SESSION' if scope == 'local' else scope.upper()}.{quoted(rest)}"
        return f"@@{quoted(name)}"

    def _parentheses(self) -> Expr:
        with self.deeper():
            if self.at_query_in_parentheses():
                return Expr(self.subquery(), "subquery")
            self.need("(")
            first = self.expr()
            if first.kind == "subquery" and self.at_any("UNION", "EXCEPT", "INTERSECT", "ORDER", "LIMIT"):
                text = self.query(first.text)
                self.need(")")
                return Expr(f"({text})", "subquery")
            parts = [first.text]
            while self.take(","):
                parts.append(self.expression())
            self.need(")")
            if len(parts) > 1:
                return Expr(f"ROW({','.join(parts)})", "row", tuple(parts))
            return Expr(f"({first.text})", "subquery" if first.kind == "subquery" else "parentheses")

    def at_query_in_parentheses(self) -> bool:
        """Whether a query in a single pair of parentheses comes next."""
        if not self.at("("):
            return False
        key = self.ahead().key
        return key in ("SELECT", "WITH", "TABLE") or (key == "VALUES" and self.ahead(2).key == "ROW")

    def subquery(self) -> str:
        """A query in parentheses; further pairs of parentheses are dropped."""
        self.need("(")
        with self.deeper():
            if not self.at("("):
                text = self.query()
            else:
                text = self.subquery()
                if self.at(")"):
                    self.need(")")
                    return text
                text = self.query(text)
        self.need(")")
        return f"({text})"
