"""Calls about times: clocks, moved dates, units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.nested import Expr
from tidegate.tidb.sql.operands import Operands
from tidegate.tidb.sql.words import TIMESTAMP_UNITS, UNITS


class TimeCalls:
    """Reads calls about times."""

    def __init__(self, cursor: Cursor, operands: Operands, expressions: Expressions) -> None:
        self._cursor, self._operands, self._expressions = cursor, operands, expressions
        self.own: Final[dict[str, Callable[[], Expr]]] = {
            "ADDDATE": self._date_move,
            "DATE_ADD": self._date_move,
            "DATE_SUB": self._date_move,
            "EXTRACT": self._extract,
            "GET_FORMAT": self._get_format,
            "INTERVAL": self._interval,
            "SUBDATE": self._date_move,
            "TIMESTAMPADD": self._timestamp,
            "TIMESTAMPDIFF": self._timestamp,
        }
        """The method that reads each of these calls, by its first word."""

    def clock(self) -> str:
        """CURRENT_TIMESTAMP and the like."""
        cursor = self._cursor
        name = cursor.next().key
        if not cursor.take("("):
            return f"{name}()"
        digits = cursor.uint() if not cursor.at(")") else ""
        cursor.need(")")
        return f"{name}({digits})"

    def _date_move(self) -> Expr:
        cursor = self._cursor
        token = cursor.next()
        cursor.need("(")
        moment = self._expressions.expression()
        cursor.need(",")
        if cursor.at("INTERVAL") and not cursor.at_interval_function():
            cursor.need("INTERVAL")
            moved = f"{self._expressions.expression()} {cursor.unit()}"
        elif token.key in ("ADDDATE", "SUBDATE"):
            moved = f"{self._expressions.expression()} DAY"
        else:
            cursor.fail("INTERVAL")
        cursor.need(")")
        return Expr(f"{token.key}({moment}, INTERVAL {moved})", "call")

    def _interval(self) -> Expr:
        cursor = self._cursor
        if cursor.at_interval_function():
            cursor.need("INTERVAL")
            return Expr(f"INTERVAL({', '.join(self._expressions.arguments())})", "call")
        cursor.need("INTERVAL")
        amount = self._expressions.expression()
        unit = cursor.unit()
        cursor.need("+")
        return Expr(f"DATE_ADD({self._operands.bit_expr(4).text}, INTERVAL {amount} {unit})", "call")

    def _extract(self) -> Expr:
        cursor = self._cursor
        cursor.need("EXTRACT", "(")
        unit = cursor.unit()
        cursor.need("FROM")
        text = f"EXTRACT({unit} FROM {self._expressions.expression()})"
        cursor.need(")")
        return Expr(text, "call")

    def _timestamp(self) -> Expr:
        cursor = self._cursor
        name = cursor.next().key
        cursor.need("(")
        if cursor.token.key not in TIMESTAMP_UNITS:
            cursor.fail("a unit of time")
        parts = [UNITS[cursor.next().key]]
        for _ in range(2):
            cursor.need(",")
            parts.append(self._expressions.expression())
        cursor.need(")")
        return Expr(f"{name}({', '.join(parts)})", "call")

    def _get_format(self) -> Expr:
        cursor = self._cursor
        cursor.need("GET_FORMAT", "(")
        what = cursor.need_any("DATE", "DATETIME", "TIME", "TIMESTAMP")
        cursor.need(",")
        how = self._expressions.expression()
        cursor.need(")")
        return Expr(f"GET_FORMAT({'DATETIME' if what == 'TIMESTAMP' else what}, {how})", "call")
