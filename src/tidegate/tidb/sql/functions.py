"""Function calls and other expressions that begin with a word, each as TiDB writes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.column_type import ColumnTypes
from tidegate.tidb.sql.cursor import bare_value
from tidegate.tidb.sql.expressions import Expr
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.words import RESERVED, TIMESTAMP_UNITS, UNITS

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

_RENAMED: Final = {"CHAR": "CHAR_FUNC", "INSERT": "INSERT_FUNC", "PASSWORD": "PASSWORD_FUNC"}
"""Functions that TiDB writes under names that other databases do not know."""

_AGGREGATES: Final = {
    "AVG": "AVG",
    "BIT_AND": "BIT_AND",
    "BIT_OR": "BIT_OR",
    "BIT_XOR": "BIT_XOR",
    "COUNT": "COUNT",
    "GROUP_CONCAT": "GROUP_CONCAT",
    "JSON_ARRAYAGG": "JSON_ARRAYAGG",
    "JSON_OBJECTAGG": "JSON_OBJECTAGG",
    "MAX": "MAX",
    "MIN": "MIN",
    "STD": "STDDEV_POP",
    "STDDEV": "STDDEV_POP",
    "STDDEV_POP": "STDDEV_POP",
    "STDDEV_SAMP": "STDDEV_SAMP",
    "SUM": "SUM",
    "VARIANCE": "VAR_POP",
    "VAR_POP": "VAR_POP",
    "VAR_SAMP": "VAR_SAMP",
}

_WINDOW_FUNCTIONS: Final = frozenset(
    (
        "CUME_DIST",
        "DENSE_RANK",
        "FIRST_VALUE",
        "LAG",
        "LAST_VALUE",
        "LEAD",
        "NTH_VALUE",
        "NTILE",
        "PERCENT_RANK",
        "RANK",
        "ROW_NUMBER",
    )
)

_DATE_LITERALS: Final = ("DATE", "TIME", "TIMESTAMP")
_ODBC_LITERALS: Final = {"d": "DATE", "t": "TIME", "ts": "TIMESTAMP"}
_ATOMS: Final = ("value", "column", "call", "variable", "parentheses", "subquery")


class Functions(ColumnTypes):
    """Reads expressions that begin with a word. `Queries` implements its abstract methods.

    A long class, because it is a list: one short method for each function that has a syntax of its own.
    """

    @abstractmethod
    def window(self) -> str:
        """The definition of a window, after OVER."""

    @abstractmethod
    def order_by(self) -> str:
        """ORDER BY and its items."""

    def call(self) -> Expr | None:
        """A function or another construct that begins with a word, if one comes next."""
        token = self.token
        if token.kind is TokenKind.SIGN:
            return self._sign_call(token.key)
        if token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
            return None
        own = self._own_calls().get(token.key)
        if own is not None and (token.key in RESERVED or self.ahead().key == "("):
            return own()
        if token.key in _DATE_LITERALS and self.ahead().kind is TokenKind.STRING:
            return Expr(f"{self.next().key} {bare_value(self.string())}", "call")
        if token.key in _OPTIONAL_BRACES:
            return self._optional_braces()
        if token.key in _CLOCKS:
            return Expr(self.clock(), "call")
        if token.key in _WINDOW_FUNCTIONS and self.ahead().key == "(":
            return self._window_function()
        if token.key in _AGGREGATES and token.called:
            return self._aggregate()
        if self.ahead().key == "(" and (token.key in _RESERVED_FUNCTIONS or self.at_name()):
            name = self.next().text.upper()
            return Expr(f"{name}({', '.join(self._arguments())})", "call")
        return self._schema_function()

    def _own_calls(self) -> dict[str, Callable[[], Expr]]:
        return {
            "ADDDATE": self._date_move,
            "BINARY": self._no_call,
            "CASE": self._case,
            "CAST": self._cast,
            "CHAR": self._char,
            "CONVERT": self._convert,
            "DATE_ADD": self._date_move,
            "DATE_SUB": self._date_move,
            "DEFAULT": self._default,
            "EXISTS": self._exists,
            "EXTRACT": self._extract,
            "GET_FORMAT": self._get_format,
            "INSERT": self._renamed,
            "INTERVAL": self._interval,
            "LASTVAL": self._sequence,
            "MOD": self._mod,
            "NEXTVAL": self._sequence,
            "PASSWORD": self._renamed,
            "POSITION": self._position,
            "ROW": self._row,
            "SETVAL": self._sequence,
            "SUBDATE": self._date_move,
            "MID": self._substring,
            "SUBSTR": self._substring,
            "SUBSTRING": self._substring,
            "TIMESTAMPADD": self._timestamp,
            "TIMESTAMPDIFF": self._timestamp,
            "TRIM": self._trim,
            "VALUES": self._values,
            "WEIGHT_STRING": self._weight_string,
        }

    def _no_call(self) -> Expr:
        self.fail("an expression")

    def _sign_call(self, sign: str) -> Expr | None:
        if sign == "?":
            self.next()
            return Expr("?", "value")
        if sign != "{":
            return None
        self.need("{")
        name = self.identifier()
        inner = self.expr()
        self.need("}")
        literal = _ODBC_LITERALS.get(name)
        if literal is None:
            return inner
        return Expr(f"{literal} {inner.text.removeprefix(self._introducer)}", "call")

    def _arguments(self) -> list[str]:
        self.need("(")
        if self.take(")"):
            return []
        found = self.expressions()
        self.need(")")
        return found

    def _schema_function(self) -> Expr | None:
        if not (self.at_name() and self.ahead().key == "." and self.ahead(3).key == "("):
            if self.at("NEXT", "VALUE", "FOR"):
                return self.next_value()
            return None
        schema = self.name()
        self.need(".")
        name = self.name()
        return Expr(f"{schema}.{name}({', '.join(self._arguments())})", "call")

    def next_value(self) -> Expr:
        """NEXT VALUE FOR a sequence."""
        self.need("NEXT", "VALUE", "FOR")
        return Expr(f"NEXTVAL({self.table_name()})", "call")

    # --- times ------------------------------------------------------------------------------------------

    def _optional_braces(self) -> Expr:
        name = self.next().key
        self.take("(", ")")
        return Expr(f"{name}()", "call")

    def clock(self) -> str:
        """CURRENT_TIMESTAMP and the like."""
        name = self.next().key
        if not self.take("("):
            return f"{name}()"
        digits = self.uint() if not self.at(")") else ""
        self.need(")")
        return f"{name}({digits})"

    def _date_move(self) -> Expr:
        token = self.next()
        self.need("(")
        moment = self.expression()
        self.need(",")
        if self.at("INTERVAL") and not self._at_interval_function():
            self.need("INTERVAL")
            moved = f"{self.expression()} {self.unit()}"
        elif token.key in ("ADDDATE", "SUBDATE"):
            moved = f"{self.expression()} DAY"
        else:
            self.fail("INTERVAL")
        self.need(")")
        return Expr(f"{token.key}({moment}, INTERVAL {moved})", "call")

    def _interval(self) -> Expr:
        if self._at_interval_function():
            self.need("INTERVAL")
            return Expr(f"INTERVAL({', '.join(self._arguments())})", "call")
        self.need("INTERVAL")
        amount = self.expression()
        unit = self.unit()
        self.need("+")
        return Expr(f"DATE_ADD({self.bit_expr(4).text}, INTERVAL {amount} {unit})", "call")

    def _extract(self) -> Expr:
        self.need("EXTRACT", "(")
        unit = self.unit()
        self.need("FROM")
        text = f"EXTRACT({unit} FROM {self.expression()})"
        self.need(")")
        return Expr(text, "call")

    def _timestamp(self) -> Expr:
        name = self.next().key
        self.need("(")
        if self.token.key not in TIMESTAMP_UNITS:
            self.fail("a unit of time")
        parts = [UNITS[self.next().key]]
        for _ in range(2):
            self.need(",")
            parts.append(self.expression())
        self.need(")")
        return Expr(f"{name}({', '.join(parts)})", "call")

    def _get_format(self) -> Expr:
        self.need("GET_FORMAT", "(")
        what = self.need_any("DATE", "DATETIME", "TIME", "TIMESTAMP")
        self.need(",")
        how = self.expression()
        self.need(")")
        return Expr(f"GET_FORMAT({'DATETIME' if what == 'TIMESTAMP' else what}, {how})", "call")

    # --- strings ----------------------------------------------------------------------------------------

    def _position(self) -> Expr:
        self.need("POSITION", "(")
        what = self.bit_expression()
        self.need("IN")
        text = f"POSITION({what} IN {self.expression()})"
        self.need(")")
        return Expr(text, "call")

    def _substring(self) -> Expr:
        name = self.next().key
        self.need("(")
        parts = [self.expression()]
        if self.take("FROM"):
            parts.append(self.expression())
            if self.take("FOR"):
                parts.append(self.expression())
        else:
            while self.take(","):
                parts.append(self.expression())
        self.need(")")
        return Expr(f"{name}({', '.join(parts)})", "call")

    def _trim(self) -> Expr:
        self.need("TRIM", "(")
        side = self.take_any("BOTH", "LEADING", "TRAILING")
        what = ""
        if side:
            what = self.value(" ") if self.at("FROM") else self.expression()
            self.need("FROM")
            text = f"TRIM({side} {what} FROM {self.expression()})"
        else:
            what = self.expression()
            text = f"TRIM({what} FROM {self.expression()})" if self.take("FROM") else f"TRIM({what})"
        self.need(")")
        return Expr(text, "call")

    def _weight_string(self) -> Expr:
        self.need("WEIGHT_STRING", "(")
        text = self.expression()
        if self.take("AS"):
            kind = self.need_any("CHAR", "CHARACTER", "BINARY")
            self.need("(")
            text += f" AS {'BINARY' if kind == 'BINARY' else 'CHAR'}({self.uint()})"
            self.need(")")
        self.need(")")
        return Expr(f"WEIGHT_STRING({text})", "call")

    def _char(self) -> Expr:
        self.need("CHAR", "(")
        parts = self.expressions()
        charset = self.charset() if self.take("USING") else ""
        self.need(")")
        if self.defect("CHAR()"):
            using = f" USING {charset}" if charset else ""
            return Expr(f"CHAR({', '.join(parts)}{using})", "call")
        parts.append(bare_value(charset) if charset else "NULL")
        return Expr(f"CHAR_FUNC({', '.join(parts)})", "call")

    def _renamed(self) -> Expr:
        name = self.next().key
        if not self.defect(f"{name}()"):
            name = _RENAMED[name]
        return Expr(f"{name}({', '.join(self._arguments())})", "call")

    # --- others -----------------------------------------------------------------------------------------

    def _case(self) -> Expr:
        self.need("CASE")
        parts = ["CASE"]
        if not self.at("WHEN"):
            parts.append(f" {self.expression()}")
        while self.take("WHEN"):
            parts.append(f" WHEN {self.expression()}")
            self.need("THEN")
            parts.append(f" THEN {self.expression()}")
        if self.take("ELSE"):
            parts.append(f" ELSE {self.expression()}")
        self.need("END")
        return Expr("".join(parts) + " END", "call")

    def _cast(self) -> Expr:
        self.need("CAST", "(")
        inner = self.expression()
        self.need("AS")
        text = f"CAST({inner} AS {self.cast_type()})"
        self.need(")")
        return Expr(text, "call")

    def _convert(self) -> Expr:
        self.need("CONVERT", "(")
        inner = self.expression()
        if self.take("USING"):
            text = f"CONVERT({inner} USING {bare_value(self.charset())})"
        else:
            self.need(",")
            text = f"CONVERT({inner}, {self.cast_type()})"
        self.need(")")
        return Expr(text, "call")

    def _default(self) -> Expr:
        self.need("DEFAULT", "(")
        column = self.column_name()
        self.need(")")
        return Expr(f"DEFAULT({column})", "call")

    def _values(self) -> Expr:
        self.need("VALUES", "(")
        column = self.column_name()
        self.need(")")
        return Expr(f"VALUES({column})", "call")

    def _exists(self) -> Expr:
        self.need("EXISTS")
        return Expr(f"EXISTS {self.subquery()}", "exists")

    def _mod(self) -> Expr:
        self.need("MOD", "(")
        left = self.expr()
        self.need(",")
        right = self.expr()
        self.need(")")
        if left.kind not in _ATOMS or right.kind not in _ATOMS:
            self.defect("MOD() of operations")
        if not self.exact:
            return Expr(f"MOD({left.text}, {right.text})", "call")
        return Expr(f"{left.text}%{right.text}", "mod")

    def _row(self) -> Expr:
        self.need("ROW", "(")
        parts = self.expressions()
        self.need(")")
        if len(parts) < 2:
            self.fail("a row of two or more")
        return Expr(f"ROW({','.join(parts)})", "row", tuple(parts))

    def _sequence(self) -> Expr:
        name = self.next().key
        self.need("(")
        text = self.table_name()
        if name == "SETVAL":
            self.need(",")
            text += f", {self.signed()}"
        self.need(")")
        return Expr(f"{name}({text})", "call")

    # --- aggregates and windows -------------------------------------------------------------------------

    def _aggregate(self) -> Expr:
        name = _AGGREGATES[self.next().key]
        self.need("(")
        distinct = False
        while word := self.take_any("DISTINCT", "DISTINCTROW", "ALL"):
            distinct = distinct or word != "ALL"
        if name == "COUNT" and self.take("*"):
            text = "1"
        else:
            parts = self.expressions()
            if name == "JSON_OBJECTAGG" and len(parts) != 2:
                self.fail("a key and a value")
            text = ", ".join(parts)
        text = ("DISTINCT " if distinct else "") + text
        if name == "GROUP_CONCAT":
            text += f" {self.order_by()}" if self.at("ORDER") else ""
            separator = self.string() if self.take("SEPARATOR") else ","
            text += f" SEPARATOR {bare_value(separator)}"
        self.need(")")
        return self._over(f"{name}({text})", needed=False)

    def _window_function(self) -> Expr:
        name = self.next().key
        self.need("(")
        parts = [] if self.at(")") else self.expressions()
        self.need(")")
        text = f"{name}({', '.join(parts)})"
        if self.take("FROM", "LAST"):
            text += " FROM LAST"
        else:
            self.take("FROM", "FIRST")
        if self.take("IGNORE", "NULLS"):
            text += " IGNORE NULLS"
        else:
            self.take("RESPECT", "NULLS")
        return self._over(text, needed=True)

    def _over(self, text: str, *, needed: bool) -> Expr:
        if not self.at("OVER") and not needed:
            return Expr(text, "call")
        self.need("OVER")
        return Expr(f"{text} OVER {self.window()}", "call")
