"""The bytes of text that kernels compare and write, by name.

numba compiles a module's constants into the code, so a name costs nothing. A `*_TEXT` constant is a
short text as one little-endian word, for a single store or comparison.
"""

from __future__ import annotations

from typing import Final

BELL: Final = 7
BACKSPACE: Final = 8
TAB: Final = 9
NEWLINE: Final = 10
VERTICAL_TAB: Final = 11
FORM_FEED: Final = 12
CARRIAGE_RETURN: Final = 13
SPACE: Final = ord(" ")
"""The first byte that is no control character."""
QUOTE: Final = ord('"')
APOSTROPHE: Final = ord("'")
OPEN_PARENTHESIS: Final = ord("(")
CLOSE_PARENTHESIS: Final = ord(")")
PLUS: Final = ord("+")
COMMA: Final = ord(",")
MINUS: Final = ord("-")
POINT: Final = ord(".")
SLASH: Final = ord("/")
ZERO: Final = ord("0")
NINE: Final = ord("9")
COLON: Final = ord(":")
LESS: Final = ord("<")
EQUALS: Final = ord("=")
"""Base64's padding."""
UPPER_A: Final = ord("A")
UPPER_E: Final = ord("E")
UPPER_T: Final = ord("T")
UPPER_U: Final = ord("U")
OPEN_BRACKET: Final = ord("[")
BACKSLASH: Final = ord("\\")
CLOSE_BRACKET: Final = ord("]")
LOWER_A: Final = ord("a")
LOWER_B: Final = ord("b")
LOWER_C: Final = ord("c")
LOWER_D: Final = ord("d")
LOWER_E: Final = ord("e")
LOWER_F: Final = ord("f")
LOWER_N: Final = ord("n")
LOWER_R: Final = ord("r")
LOWER_T: Final = ord("t")
LOWER_U: Final = ord("u")
LOWER_V: Final = ord("v")
LOWER_X: Final = ord("x")
UNDERSCORE: Final = ord("_")
OPEN_BRACE: Final = ord("{")
CLOSE_BRACE: Final = ord("}")
DEL: Final = 127
"""The only control character above the printable ones."""
NOT_ASCII: Final = 0x80
"""Bytes from here on belong to characters of several bytes."""


def word_of(text: str) -> int:
    """A text of at most 7 ASCII characters as a little-endian word."""
    assert len(text) < 8, text
    return int.from_bytes(text.encode("ascii"), "little")


NULL_TEXT: Final = word_of("null")
SQL_NULL_TEXT: Final = word_of("NULL")
SQL_BINARY_TEXT: Final = word_of("_binary")
TRUE_TEXT: Final = word_of("true")
FALS_TEXT: Final = word_of("false"[:4])
"""The first four bytes of `false`."""
ESCAPED_U_TEXT: Final = word_of("\\u")
TWO_BACKSLASHES: Final = word_of("\\\\")
U000_TEXT: Final = word_of("u000")
ESCAPED_20_TEXT: Final = word_of("\\u20")
E_MINUS_TEXT: Final = word_of("e-")
YPE_TEXT: Final = word_of("ype")
TWO_ZEROS: Final = word_of("00")
TWO_EQUALS: Final = word_of("==")
REPLACEMENT: Final = int.from_bytes("\ufffd".encode(), "little")
"""U+FFFD in UTF-8, for bytes that are no text."""
LINE_BREAK_LEAD: Final = int.from_bytes("\u2028".encode()[:2], "little")
LINE_SEPARATOR: Final = "\u2028".encode()[2]
PARAGRAPH_SEPARATOR: Final = "\u2029".encode()[2]
"""U+2028 and U+2029 in UTF-8: two bytes that they share, and the third of each."""
