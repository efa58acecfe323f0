"""Splits a statement into tokens, as TiDB's scanner does.

Comments are dropped, except those whose content is part of the statement: `/*! ... */`, `/*T! ... */` and
`/*T![feature] ... */` of a known feature. A word next to a dot is always a name. Each character is examined a
bounded number of times.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from tidegate.errors import InvalidInput
from tidegate.tidb.sql.words import ALIASES, FEATURES, charset_name

MAX_TEXT: Final = 16 * 1024 * 1024
"""The most characters of a statement. TiDB accepts at most 6 MiB for a job by default."""

ANSI_QUOTES: Final = 1 << 2
PIPES_AS_CONCAT: Final = 1 << 1
IGNORE_SPACE: Final = 1 << 3
NO_BACKSLASH_ESCAPES: Final = 1 << 20
HIGH_NOT_PRECEDENCE: Final = 1 << 29
REAL_AS_FLOAT: Final = 1 << 0


class ParseError(InvalidInput):
    """The text is not a statement of the grammar that is known here."""


class TokenKind(Enum):
    """The kind of a token."""

    WORD = auto()
    QUOTED = auto()
    """A name in backquotes; in double quotes under ANSI_QUOTES."""
    STRING = auto()
    CHARSET = auto()
    """An introducer such as _utf8mb4; also `N` before a string."""
    INT = auto()
    DECIMAL = auto()
    FLOAT = auto()
    HEX = auto()
    BIT = auto()
    USER_VARIABLE = auto()
    SYSTEM_VARIABLE = auto()
    HINT = auto()
    SIGN = auto()
    END = auto()


class SqlToken(NamedTuple):
    """One token."""

    kind: TokenKind
    text: str
    """Its content, without quotes and with escapes resolved."""
    key: str
    """The keyword that it may be, or the sign; empty if it can be neither."""
    at: int
    """Its offset in the text."""
    called: bool = False
    """Whether a parenthesis follows without a space."""


_SPACE: Final = re.compile(r"(?:[ \t\n\r\v\f]+|#[^\n]*|--(?=[ \t\n\r\v\f]|\Z)[^\n]*)+")
_WORD: Final = re.compile(r"[0-9A-Za-z_$\u0080-\U0010ffff]+")
_BACKQUOTED: Final = re.compile(r"`([^`]*(?:``[^`]*)*)`")
_STRINGS: Final = {
    "'": re.compile(r"'([^'\\]*(?:(?:\\.|'')[^'\\]*)*)'", re.DOTALL),
    '"': re.compile(r'"([^"\\]*(?:(?:\\.|"")[^"\\]*)*)"', re.DOTALL),
}
_PLAIN_STRINGS: Final = {
    "'": re.compile(r"'([^']*(?:''[^']*)*)'"),
    '"': re.compile(r'"([^"]*(?:""[^"]*)*)"'),
}
_HEX: Final = re.compile(r"[xX]'([0-9a-fA-F]*)'|0[xX]([0-9a-fA-F]+)(?![0-9])")
_BITS: Final = re.compile(r"[bB]'([01]*)'|0b([01]+)(?![0-9])")
_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FEATURE: Final = re.compile(r"\[([0-9A-Za-z_$]+(?:,[0-9A-Za-z_$]+)*)\]")
_VERSION: Final = re.compile(r"[0-9]{5}")
_VARIABLE: Final = re.compile(r"[0-9A-Za-z_$.\u0080-\U0010ffff]+")
_SCOPE: Final = re.compile(r"(?:global|session|local|instance)\.", re.IGNORECASE)
_SIGNS: Final = ("<=>", "->>", "<=", ">=", "!=", "<>", "<<", ">>", "||", "&&", ":=", "->")
_ESCAPED: Final = {"n": "\n", "0": "\0", "b": "\b", "Z": "\x1a", "r": "\r", "t": "\t", "%": "\\%", "_": "\\_"}
_DIGITS: Final = frozenset("0123456789")
_SPACES: Final = " \t\n\r\v\f"
_PAIRS: Final = {quote: re.compile(rf"\\(.)|{quote}{quote}", re.DOTALL) for quote in "'\""}


def tokens(text: str, sql_mode: int = 0) -> list[SqlToken]:
    """The tokens of a text, followed by an END."""
    if len(text) > MAX_TEXT:
        raise ParseError("a statement is too long", why=f"{len(text)} characters, at most {MAX_TEXT}")
    return _Scanner(text, sql_mode).run()


class _Scanner:
    def __init__(self, text: str, sql_mode: int) -> None:
        self._text = text
        self._mode = sql_mode
        self._at = 0
        self._found: list[SqlToken] = []
        self._in_comment = False
        self._dotted = False

    def run(self) -> list[SqlToken]:
        """All tokens."""
        while True:
            if space := _SPACE.match(self._text, self._at):
                self._at = space.end()
            if self._at >= len(self._text):
                self._add(TokenKind.END, "", "", self._at)
                return self._found
            self._one()

    def _one(self) -> None:
        text, at = self._text, self._at
        char = text[at]
        if char in "'\"":
            self._string(at)
        elif char == "`":
            self._name(at)
        elif char == "@":
            self._variable(at)
        elif text.startswith("/*", at):
            self._comment(at)
        elif char == "*":
            self._star(at)
        elif char in _DIGITS or (char == "." and text[at + 1 : at + 2] in _DIGITS and not self._dotted):
            self._number(at)
        elif word := _WORD.match(text, at):
            self._word(word)
        else:
            self._sign(at)

    def _add(self, kind: TokenKind, text: str, key: str, end: int, *, called: bool = False) -> None:
        self._found.append(SqlToken(kind, text, key, self._at, called))
        self._at = end

    def _error(self, what: str) -> ParseError:
        return ParseError(what, where=f"character {self._at}", why=self._text[self._at : self._at + 40])

    # --- words ------------------------------------------------------------------------------------------

    def _word(self, word: re.Match[str]) -> None:
        text, at = word[0], self._at
        following = self._text[word.end() : word.end() + 1]
        if following == "'":
            if text in "nN":
                return self._add(TokenKind.CHARSET, "utf8", "", word.end())
            if text in "xX":
                return self._literal(TokenKind.HEX, _HEX, at)
            if text in "bB":
                return self._literal(TokenKind.BIT, _BITS, at)
        if text[0] == "_" and (charset := charset_name(text[1:])) is not None:
            return self._add(TokenKind.CHARSET, charset, "", word.end())
        self._identifier(text, at, word.end())
        return None

    def _identifier(self, text: str, at: int, end: int) -> None:
        following = self._text[end : end + 1]
        if self._mode & IGNORE_SPACE and following and following in _SPACES:
            rest = _SPACE.match(self._text, end)
            following = self._text[rest.end() : rest.end() + 1] if rest else following
        self._dotted = self._text[end : end + 1] == "."
        is_name = self._dotted or (at > 0 and self._after_dot(at))
        # Next to a dot a word is a name, even if it is reserved, as in TiDB's lexer.
        key = "" if is_name or not text.isascii() else text.upper()
        self._add(TokenKind.WORD, text, ALIASES.get(key, key), end, called=following == "(")

    def _after_dot(self, at: int) -> bool:
        before = at - 1
        # With a limit: a text of words far apart would otherwise take quadratic time.
        while before > 0 and self._text[before] == " " and at - before < 64:
            before -= 1
        return self._text[before] == "."

    def _name(self, at: int) -> None:
        name = _BACKQUOTED.match(self._text, at)
        if name is None:
            raise self._error("a quoted name does not end")
        self._dotted = self._text[name.end() : name.end() + 1] == "."
        self._add(TokenKind.QUOTED, name[1].replace("``", "`"), "", name.end())

    def _variable(self, at: int) -> None:
        system = self._text.startswith("@@", at)
        start = at + 1 + system
        prefix = _SCOPE.match(self._text, start) if system else None
        scope = prefix[0] if prefix else ""
        kind = TokenKind.SYSTEM_VARIABLE if system else TokenKind.USER_VARIABLE
        start += len(scope)
        char = self._text[start : start + 1]
        if char and char in "'\"`":
            quoted = _BACKQUOTED if char == "`" else self._quotes()[char]
            found = quoted.match(self._text, start)
            if found is None:
                raise self._error("a variable's name does not end")
            text = found[1].replace("``", "`") if char == "`" else self._unescaped(found[1], char)
            return self._add(kind, scope + text, "", found.end())
        word = _VARIABLE.match(self._text, start)
        if word is None:
            return self._add(TokenKind.SIGN, "@", "@", at + 1)
        return self._add(kind, scope + word[0], "", word.end())

    # --- literals ---------------------------------------------------------------------------------------

    def _quotes(self) -> dict[str, re.Pattern[str]]:
        return _PLAIN_STRINGS if self._mode & NO_BACKSLASH_ESCAPES else _STRINGS

    def _unescaped(self, text: str, quote: str) -> str:
        if self._mode & NO_BACKSLASH_ESCAPES or "\\" not in text:
            return text.replace(quote * 2, quote)
        return _PAIRS[quote].sub(lambda m: quote if m[1] is None else _ESCAPED.get(m[1], m[1]), text)

    def _string(self, at: int) -> None:
        quote = self._text[at]
        found = self._quotes()[quote].match(self._text, at)
        if found is None:
            raise self._error("a string does not end")
        text = self._unescaped(found[1], quote)
        if quote == '"' and self._mode & ANSI_QUOTES:
            self._dotted = self._text[found.end() : found.end() + 1] == "."
            return self._add(TokenKind.QUOTED, text, "", found.end())
        return self._add(TokenKind.STRING, text, "", found.end())

    def _literal(self, kind: TokenKind, pattern: re.Pattern[str], at: int) -> None:
        found = pattern.match(self._text, at)
        if found is None:
            raise self._error("a literal is not closed or has wrong digits")
        digits = found[1]
        if digits is None:
            # `0x1` is the byte 01, but a string x'1' is refused.
            digits = found[2].zfill(len(found[2]) + len(found[2]) % 2) if kind is TokenKind.HEX else found[2]
        elif kind is TokenKind.HEX and len(digits) % 2:
            raise self._error("a hexadecimal string has an odd number of digits")
        self._add(kind, digits, "", found.end())

    def _number(self, at: int) -> None:
        text = self._text
        # After a name and a dot, digits begin a name as well: `t.1a`.
        if self._dotted and (word := _WORD.match(text, at)):
            return self._identifier(word[0], at, word.end())
        # First, because `0x1F` and `0b1` begin like the number 0.
        for kind, pattern in ((TokenKind.HEX, _HEX), (TokenKind.BIT, _BITS)):
            if pattern.match(text, at):
                return self._literal(kind, pattern, at)
        number = _NUMBER.match(text, at)
        word = _WORD.match(text, at)
        if number is None:
            raise self._error("a number has wrong digits")
        if number[1]:
            return self._add(TokenKind.FLOAT, number[0], "", number.end())
        if "." in number[0]:
            return self._add(TokenKind.DECIMAL, number[0], "", number.end())
        # A name may begin with digits; only `1e5` is a number, which was taken above.
        if word is not None and word.end() > number.end():
            return self._identifier(word[0], at, word.end())
        return self._add(TokenKind.INT, number[0], "", number.end())

    # --- signs and comments -----------------------------------------------------------------------------

    def _star(self, at: int) -> None:
        if self._in_comment and self._text.startswith("*/", at):
            self._in_comment = False
            self._at = at + 2
            return
        self._dotted = False
        self._add(TokenKind.SIGN, "*", "*", at + 1)

    def _sign(self, at: int) -> None:
        # The first match is the longest: in `_SIGNS` no sign comes before a longer one that begins with it.
        sign = next((s for s in _SIGNS if self._text.startswith(s, at)), self._text[at])
        if len(sign) == 1 and sign not in "()+-*/%,.;=<>!~^&|?{}":
            raise self._error("a character that means nothing")
        self._add(TokenKind.SIGN, sign, sign, at + len(sign))

    def _comment(self, at: int) -> None:
        text = self._text
        opened = self._opened(at)
        if opened:
            self._in_comment, self._at = True, opened
            return
        end = text.find("*/", at + 2)
        if end < 0:
            raise self._error("a comment does not end")
        if text.startswith("/*+", at) and self._found and self._found[-1].key == "SELECT":
            self._add(TokenKind.HINT, text[at + 3 : end], "", end + 2)
        else:
            self._at = end + 2

    def _opened(self, at: int) -> int:
        """The offset of the content of a comment that is part of the statement; 0 for any other comment."""
        if self._text.startswith("/*!", at):
            version = _VERSION.match(self._text, at + 3)
            return version.end() if version else at + 3
        if not self._text.startswith("/*T!", at):
            return 0
        feature = _FEATURE.match(self._text, at + 4)
        if feature is None:
            return at + 4
        # As in TiDB: the content counts only for a server that knows all of the features.
        return feature.end() if all(name in FEATURES for name in feature[1].split(",")) else 0
