"""The parser's position in a statement, and how the smallest parts are rewritten.

All parts of the parser read through one cursor. They make no tree: each method reads a part of the grammar
and returns that part as TiDB's parser restores it. Methods that cannot continue raise `ParseError`; no other
error leaves the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from tidegate.tidb.sql.lexer import ParseError, SqlToken, TokenKind
from tidegate.tidb.sql.words import RESERVED, UNITS, charset_name

MAX_DEPTH: Final = 64
"""How deeply parentheses, functions, queries and joins may be nested."""

MAX_UINT64: Final = (1 << 64) - 1
MAX_INT64: Final = (1 << 63) - 1


class Cursor:
    """A position in the tokens of a statement.

    exact: write exactly the bytes that TiDB writes, even if they are another statement; `defects` then lists
    why. Otherwise such parts are written so that they keep their meaning.
    """

    def __init__(self, found: list[SqlToken], *, charset: str, sql_mode: int, exact: bool) -> None:
        self._tokens = found
        self.place = 0
        """The number of tokens that were read."""
        self._depth = 0
        self.introducer = f"_{charset.upper()}"
        """The word before a string that names the statement's character set."""
        self.sql_mode = sql_mode
        self.exact = exact
        self.defects: list[str] = []

    # --- looking ----------------------------------------------------------------------------------------

    @property
    def token(self) -> SqlToken:
        """The next token."""
        return self._tokens[self.place]

    @property
    def ended(self) -> bool:
        """Whether nothing comes next."""
        return self.token.kind is TokenKind.END

    def ahead(self, steps: int = 1) -> SqlToken:
        """The token `steps` after the next one; the END if there are fewer."""
        return self._tokens[min(self.place + steps, len(self._tokens) - 1)]

    def at(self, *keys: str) -> bool:
        """Whether the next tokens are these keywords or signs, in order."""
        # Nearly all calls end here: a part of the grammar asks for one word after the other.
        if self._tokens[self.place].key != keys[0]:
            return False
        last = len(self._tokens) - 1
        return all(self._tokens[min(self.place + step, last)].key == key for step, key in enumerate(keys))

    def at_any(self, *keys: str) -> bool:
        """Whether the next token is one of these keywords or signs."""
        return self.token.key in keys

    # --- reading ----------------------------------------------------------------------------------------

    def fail(self, wanted: str) -> NoReturn:
        """Raise ParseError: the statement does not match the grammar."""
        token = self.token
        seen = repr(token.text[:40]) if token.kind is not TokenKind.END else "the end"
        raise ParseError(
            "a statement cannot be read", where=f"character {token.at}", why=f"{seen}, not {wanted}"
        )

    def next(self) -> SqlToken:
        """Read one token, whatever it is."""
        token = self.token
        if token.kind is TokenKind.END:
            self.fail("a token")
        self.place += 1
        return token

    def take(self, *keys: str) -> bool:
        """Read these keywords or signs if they come next, all of them or none."""
        if not self.at(*keys):
            return False
        self.place += len(keys)
        return True

    def take_any(self, *keys: str) -> str:
        """Read one of these keywords or signs if it comes next; returns which, or an empty text."""
        key = self.token.key
        if not key or key not in keys:
            return ""
        self.place += 1
        return key

    def need(self, *keys: str) -> None:
        """Read these keywords or signs; ParseError if others come next."""
        if not self.take(*keys):
            self.fail(" ".join(keys))

    def need_any(self, *keys: str) -> str:
        """Read one of these keywords or signs; ParseError if another comes next."""
        return self.take_any(*keys) or self.fail(" or ".join(keys))

    def listed(self, item: Callable[[], str]) -> list[str]:
        """One or more items separated by commas."""
        found = [item()]
        while self.take(","):
            found.append(item())
        return found

    def parenthesised(self, item: Callable[[], str]) -> list[str]:
        """One or more items separated by commas, in parentheses."""
        self.need("(")
        found = self.listed(item)
        self.need(")")
        return found

    def if_exists(self) -> str:
        """IF EXISTS, if it comes next."""
        return "IF EXISTS " if self.take("IF", "EXISTS") else ""

    def if_not_exists(self) -> str:
        """IF NOT EXISTS, if it comes next."""
        return "IF NOT EXISTS " if self.take("IF", "NOT", "EXISTS") else ""

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Read something nested one level deeper."""
        if self._depth >= MAX_DEPTH:
            self.fail(f"a statement nested at most {MAX_DEPTH} deep")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def defect(self, what: str) -> bool:
        """Note that TiDB writes another statement here; returns whether to write the intended one instead."""
        self.defects.append(what)
        return not self.exact

    # --- names ------------------------------------------------------------------------------------------

    def at_name(self) -> bool:
        """Whether a name comes next."""
        token = self.token
        return token.kind is TokenKind.QUOTED or (token.kind is TokenKind.WORD and token.key not in RESERVED)

    def identifier(self) -> str:
        """A name without quotes, in its original case."""
        if not self.at_name():
            self.fail("a name")
        return self.next().text

    def name(self) -> str:
        """A name in backquotes."""
        return quoted(self.identifier())

    def dotted_name(self, most: int) -> str:
        """A name with up to `most` parts."""
        parts = [self.name()]
        while len(parts) < most and self.at("."):
            self.need(".")
            parts.append(self.name())
        return ".".join(parts)

    def table_name(self) -> str:
        """A table, with or without its schema."""
        return self.dotted_name(2)

    def column_name(self) -> str:
        """A column, with or without its table and schema."""
        return self.dotted_name(3)

    def string_or_name(self) -> str:
        """The content of a string or a name."""
        return self.next().text if self.token.kind is TokenKind.STRING else self.identifier()

    def charset(self) -> str:
        """The name of a character set."""
        if self.take("BINARY"):
            return "binary"
        return charset_name(self.string_or_name()) or self.fail("a character set that TiDB has")

    def collation(self) -> str:
        """The name of a collation."""
        if self.take("BINARY"):
            return "binary"
        name = self.string_or_name().lower()
        return name.replace("utf8mb3_", "utf8_", 1) if name.startswith("utf8mb3_") else name

    def take_charset_word(self) -> bool:
        """Read CHARSET, CHARACTER SET or CHAR SET if it comes next."""
        return self.take("CHARSET") or self.take("CHARACTER", "SET") or self.take("CHAR", "SET")

    # --- units of time ----------------------------------------------------------------------------------

    def unit(self) -> str:
        """A unit of time."""
        unit = UNITS.get(self.token.key) or self.fail("a unit of time")
        self.next()
        return unit

    def at_interval_function(self) -> bool:
        """Whether the INTERVAL that comes next is the function, and not an amount of time."""
        return self.ahead().key == "(" and not self._interval_unit_follows()

    def _interval_unit_follows(self) -> bool:
        """Whether a time unit follows the parentheses of INTERVAL (...); looks at each token once."""
        depth, index = 0, self.place + 1
        while index < len(self._tokens):
            key = self._tokens[index].key
            depth += (key == "(") - (key == ")")
            index += 1
            if depth == 0:
                return self._tokens[min(index, len(self._tokens) - 1)].key in UNITS
        return False

    # --- literals ---------------------------------------------------------------------------------------

    def string(self) -> str:
        """The content of a string."""
        if self.token.kind is not TokenKind.STRING:
            self.fail("a string")
        return self.next().text

    def plain(self, text: str) -> str:
        """Quote the string of an option. TiDB does not escape backslashes, so they escape what follows."""
        if "\\" in text and self.defect("backslashes in a string"):
            text = text.replace("\\", "\\\\")
        return bare_string(text)

    def plain_string(self) -> str:
        """Read the string of an option; returns it quoted."""
        return self.plain(self.string())

    def value(self, text: str) -> str:
        """A string as a value, in the statement's character set."""
        return self.introducer + bare_value(text)

    def uint(self) -> str:
        """A whole number."""
        if self.token.kind is not TokenKind.INT:
            self.fail("a whole number")
        number = int_of(self.next().text)
        return str(number) if number is not None else self.fail("a number of at most 64 bits")

    def signed(self) -> str:
        """A whole number with an optional sign."""
        sign = self.take_any("+", "-")
        number = self.uint()
        # The least number is one further from zero than the greatest.
        if int(number) > MAX_INT64 + (sign == "-"):
            self.fail("a number of at most 63 bits")
        return f"-{number}" if sign == "-" and number != "0" else number

    def take_equals(self) -> None:
        """Read the `=` that options may have before their value."""
        self.take("=")


def quoted(name: str) -> str:
    """A name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def bare_string(text: str) -> str:
    """A string in quotes, without escaping backslashes."""
    return "'" + text.replace("'", "''") + "'"


def bare_value(text: str) -> str:
    """A string as a value, without its character set."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def int_of(digits: str) -> int | None:
    """The number that these digits represent; None if it has more than 64 bits."""
    digits = digits.lstrip("0") or "0"
    # 2**64 has 20 digits. Python's `int` is slow for a long text, and refuses a very long one.
    if len(digits) > 20:
        return None
    return number if (number := int(digits)) <= MAX_UINT64 else None
