"""Numbers, strings and other literals, as TiDB writes their values."""

from __future__ import annotations

import math
from typing import Final

from tidegate.tidb.sql.cursor import Cursor, bare_value, int_of
from tidegate.tidb.sql.lexer import TokenKind

_DIGITS_PER_WORD: Final = 9
_WORDS: Final = 9
"""A decimal has at most nine words of nine digits."""

_NUMBERS: Final = (TokenKind.INT, TokenKind.DECIMAL, TokenKind.FLOAT)


class Literals:
    """Reads literals."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def at_number(self) -> bool:
        """Whether a number without a sign comes next."""
        return self._cursor.token.kind in _NUMBERS

    def number(self) -> str:
        """A number without a sign."""
        cursor = self._cursor
        if not self.at_number():
            cursor.fail("a number")
        token = cursor.next()
        if token.kind is TokenKind.FLOAT:
            return self._float(token.text)
        if token.kind is TokenKind.INT and (number := int_of(token.text)) is not None:
            return str(number)
        return self._decimal(token.text)

    def _float(self, text: str) -> str:
        number = float(text)
        if math.isinf(number):
            self._cursor.fail("a number that a double holds")
        digits, _, exponent = f"{number!r}".partition("e")
        if not exponent or "." in digits:
            digits, exponent = _scientific(number)
        sign = "-" if int(exponent) < 0 else "+"
        return f"{digits}e{sign}{abs(int(exponent)):02d}"

    def _decimal(self, text: str) -> str:
        whole, _, fraction = text.partition(".")
        whole = whole.lstrip("0")
        words = -(-len(whole) // _DIGITS_PER_WORD)
        if words > _WORDS:
            self._cursor.fail("a decimal of at most 81 digits")
        # The whole part takes its words first. TiDB cuts off the digits for which no word is left.
        fraction = fraction[: (_WORDS - words) * _DIGITS_PER_WORD]
        return (whole or "0") + (f".{fraction}" if fraction else "")

    def literal(self) -> str | None:
        """A literal, if one comes next."""
        cursor = self._cursor
        if self.at_number():
            return self.number()
        token = cursor.token
        if token.kind is TokenKind.STRING:
            return cursor.value(self._joined_strings())
        if token.kind is TokenKind.CHARSET:
            return self._introduced()
        if token.kind in (TokenKind.HEX, TokenKind.BIT):
            cursor.next()
            return _hex(token.text) if token.kind is TokenKind.HEX else _bits(token.text)
        return cursor.take_any("NULL", "TRUE", "FALSE") or None

    def _joined_strings(self) -> str:
        cursor = self._cursor
        parts = [cursor.string()]
        while cursor.token.kind is TokenKind.STRING:
            parts.append(cursor.string())
        return "".join(parts)

    def _introduced(self) -> str:
        cursor = self._cursor
        charset = cursor.next().text
        token = cursor.token
        if token.kind in (TokenKind.HEX, TokenKind.BIT):
            cursor.next()
            return _hex(token.text) if token.kind is TokenKind.HEX else _bits(token.text)
        return f"_{charset.upper()}{bare_value(cursor.string())}"

    def signed_literal(self) -> str:
        """A literal, or a number with a sign."""
        cursor = self._cursor
        if sign := cursor.take_any("+", "-"):
            return sign + self.number()
        return self.literal() or cursor.fail("a value")


def _scientific(number: float) -> tuple[str, str]:
    """The shortest digits of a float with one digit before the point, and the exponent."""
    digits, _, exponent = f"{number:.17e}".partition("e")
    # 17 digits identify every double, so one of the turns finds the number.
    for places in range(17):
        digits, _, exponent = f"{number:.{places}e}".partition("e")
        if float(f"{digits}e{exponent}") == number:
            break
    return digits, exponent


def _hex(digits: str) -> str:
    return f"x'{digits.lower()}'"


def _bits(digits: str) -> str:
    return f"b'{digits.lstrip('0') or ('0' if digits else '')}'"
