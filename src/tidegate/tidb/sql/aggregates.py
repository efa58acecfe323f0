"""Calls of aggregates and of functions over windows."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import Cursor, bare_value
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.nested import Expr
from tidegate.tidb.sql.windows import Windows

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


class Aggregates:
    """Reads calls of aggregates and of functions over windows."""

    def __init__(self, cursor: Cursor, expressions: Expressions, windows: Windows) -> None:
        self._cursor, self._expressions, self._windows = cursor, expressions, windows

    def call(self) -> Expr | None:
        """Such a call, if one comes next."""
        token = self._cursor.token
        if token.key in _WINDOW_FUNCTIONS and self._cursor.ahead().key == "(":
            return self._window_function()
        if token.key in _AGGREGATES and token.called:
            return self._aggregate()
        return None

    def _aggregate(self) -> Expr:
        cursor = self._cursor
        name = _AGGREGATES[cursor.next().key]
        cursor.need("(")
        distinct = False
        while word := cursor.take_any("DISTINCT", "DISTINCTROW", "ALL"):
            distinct = distinct or word != "ALL"
        if name == "COUNT" and cursor.take("*"):
            text = "1"
        else:
            parts = self._expressions.expressions()
            if name == "JSON_OBJECTAGG" and len(parts) != 2:
                cursor.fail("a key and a value")
            text = ", ".join(parts)
        text = ("DISTINCT " if distinct else "") + text
        if name == "GROUP_CONCAT":
            text += f" {self._windows.order_by()}" if cursor.at("ORDER") else ""
            separator = cursor.string() if cursor.take("SEPARATOR") else ","
            text += f" SEPARATOR {bare_value(separator)}"
        cursor.need(")")
        return self._over(f"{name}({text})", needed=False)

    def _window_function(self) -> Expr:
        cursor = self._cursor
        name = cursor.next().key
        cursor.need("(")
        parts = [] if cursor.at(")") else self._expressions.expressions()
        cursor.need(")")
        text = f"{name}({', '.join(parts)})"
        if cursor.take("FROM", "LAST"):
            text += " FROM LAST"
        else:
            cursor.take("FROM", "FIRST")
        if cursor.take("IGNORE", "NULLS"):
            text += " IGNORE NULLS"
        else:
            cursor.take("RESPECT", "NULLS")
        return self._over(text, needed=True)

    def _over(self, text: str, *, needed: bool) -> Expr:
        cursor = self._cursor
        if not cursor.at("OVER") and not needed:
            return Expr(text, "call")
        cursor.need("OVER")
        return Expr(f"{text} OVER {self._windows.window()}", "call")
