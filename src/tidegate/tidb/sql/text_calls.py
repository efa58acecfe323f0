"""Calls about texts: parts of them, their characters, and functions that TiDB writes under another name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.cursor import Cursor, bare_value
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.nested import Expr
from tidegate.tidb.sql.operands import Operands

_RENAMED: Final = {"CHAR": "CHAR_FUNC", "INSERT": "INSERT_FUNC", "PASSWORD": "PASSWORD_FUNC"}
"""Functions that TiDB writes under names that other databases do not know."""


class TextCalls:
    """Reads calls about texts."""

    def __init__(self, cursor: Cursor, operands: Operands, expressions: Expressions) -> None:
        self._cursor, self._operands, self._expressions = cursor, operands, expressions
        self.own: Final[dict[str, Callable[[], Expr]]] = {
            "CHAR": self._char,
            "INSERT": self._renamed,
            "MID": self._substring,
            "PASSWORD": self._renamed,
            "POSITION": self._position,
            "SUBSTR": self._substring,
            "SUBSTRING": self._substring,
            "TRIM": self._trim,
            "WEIGHT_STRING": self._weight_string,
        }
        """The method that reads each of these calls, by its first word."""

    def _position(self) -> Expr:
        cursor = self._cursor
        cursor.need("POSITION", "(")
        what = self._operands.bit_expression()
        cursor.need("IN")
        text = f"POSITION({what} IN {self._expressions.expression()})"
        cursor.need(")")
        return Expr(text, "call")

    def _substring(self) -> Expr:
        cursor = self._cursor
        name = cursor.next().key
        cursor.need("(")
        parts = [self._expressions.expression()]
        if cursor.take("FROM"):
            parts.append(self._expressions.expression())
            if cursor.take("FOR"):
                parts.append(self._expressions.expression())
        else:
            while cursor.take(","):
                parts.append(self._expressions.expression())
        cursor.need(")")
        return Expr(f"{name}({', '.join(parts)})", "call")

    def _trim(self) -> Expr:
        cursor = self._cursor
        cursor.need("TRIM", "(")
        side = cursor.take_any("BOTH", "LEADING", "TRAILING")
        what = ""
        if side:
            what = cursor.value(" ") if cursor.at("FROM") else self._expressions.expression()
            cursor.need("FROM")
            text = f"TRIM({side} {what} FROM {self._expressions.expression()})"
        else:
            what = self._expressions.expression()
            text = (
                f"TRIM({what} FROM {self._expressions.expression()})"
                if cursor.take("FROM")
                else f"TRIM({what})"
            )
        cursor.need(")")
        return Expr(text, "call")

    def _weight_string(self) -> Expr:
        cursor = self._cursor
        cursor.need("WEIGHT_STRING", "(")
        text = self._expressions.expression()
        if cursor.take("AS"):
            kind = cursor.need_any("CHAR", "CHARACTER", "BINARY")
            cursor.need("(")
            text += f" AS {'BINARY' if kind == 'BINARY' else 'CHAR'}({cursor.uint()})"
            cursor.need(")")
        cursor.need(")")
        return Expr(f"WEIGHT_STRING({text})", "call")

    def _char(self) -> Expr:
        cursor = self._cursor
        cursor.need("CHAR", "(")
        parts = self._expressions.expressions()
        charset = cursor.charset() if cursor.take("USING") else ""
        cursor.need(")")
        if cursor.defect("CHAR()"):
            using = f" USING {charset}" if charset else ""
            return Expr(f"CHAR({', '.join(parts)}{using})", "call")
        parts.append(bare_value(charset) if charset else "NULL")
        return Expr(f"CHAR_FUNC({', '.join(parts)})", "call")

    def _renamed(self) -> Expr:
        cursor = self._cursor
        name = cursor.next().key
        if not cursor.defect(f"{name}()"):
            name = _RENAMED[name]
        return Expr(f"{name}({', '.join(self._expressions.arguments())})", "call")
