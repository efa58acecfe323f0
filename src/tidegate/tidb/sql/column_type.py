"""The types of columns and of casts."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.lexer import REAL_AS_FLOAT, TokenKind

_INTEGERS: Final = {
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "MEDIUMINT": "MEDIUMINT",
    "MIDDLEINT": "MEDIUMINT",
    "INT": "INT",
    "INT1": "TINYINT",
    "INT2": "SMALLINT",
    "INT3": "MEDIUMINT",
    "INT4": "INT",
    "INT8": "BIGINT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
}
_FLOATS: Final = {
    "FLOAT": "FLOAT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "DOUBLE": "DOUBLE",
    "REAL": "DOUBLE",
}
_TEXTS: Final = {"TINYTEXT": "TINY", "TEXT": "", "MEDIUMTEXT": "MEDIUM", "LONGTEXT": "LONG"}
_BLOBS: Final = ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
_TIMES: Final = ("DATETIME", "TIMESTAMP", "TIME")
_FLOAT_DIGITS: Final = 24
_DOUBLE_DIGITS: Final = 53


class _Charset(NamedTuple):
    name: str
    binary: bool

    def written(self) -> str:
        """The text after a text type."""
        text = " BINARY" if self.binary and self.name != "binary" else ""
        return text + (f" CHARACTER SET {self.name.upper()}" if self.name and self.name != "binary" else "")


class ColumnTypes:
    """Reads types."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def column_type(self) -> str:
        """The type of a column."""
        cursor = self._cursor
        token = cursor.token
        if token.kind is not TokenKind.WORD or not token.key:
            cursor.fail("a type")
        for read in (self._number_type, self._text_type, self._other_type):
            if (found := read()) is not None:
                return found
        return cursor.fail("a type")

    # --- numbers ----------------------------------------------------------------------------------------

    def _number_type(self) -> str | None:
        cursor = self._cursor
        key = cursor.token.key
        if key in _INTEGERS:
            cursor.next()
            return _INTEGERS[key] + self._length() + self._number_options()
        if cursor.take_any("BOOL", "BOOLEAN"):
            return "TINYINT(1)" + self._number_options()
        if cursor.take_any("DECIMAL", "NUMERIC", "FIXED"):
            length, scale = self._precision()
            return "DECIMAL" + _precise(length, scale) + self._number_options()
        if key in _FLOATS:
            return self._float_type()
        if cursor.take("BIT"):
            return "BIT" + (self._length() or "(1)")
        return None

    def _float_type(self) -> str:
        cursor = self._cursor
        word = cursor.next().key
        kind = "FLOAT" if word == "REAL" and cursor.sql_mode & REAL_AS_FLOAT else _FLOATS[word]
        if word == "DOUBLE":
            cursor.take("PRECISION")
        length, scale = self._precision()
        if kind == "DOUBLE" and length and not scale:
            cursor.fail("digits behind the point as well")
        # In FLOAT(p) p is no length: it chooses between four bytes and eight.
        if kind == "FLOAT" and length and not scale and int(length) <= _DOUBLE_DIGITS:
            kind = "DOUBLE" if int(length) > _FLOAT_DIGITS else "FLOAT"
            length = ""
        return kind + _precise(length, scale) + self._number_options()

    def _length(self) -> str:
        cursor = self._cursor
        if not cursor.at("("):
            return ""
        cursor.need("(")
        length = cursor.uint()
        cursor.need(")")
        return f"({length})"

    def _precision(self) -> tuple[str, str]:
        cursor = self._cursor
        if not cursor.take("("):
            return "", ""
        length = cursor.uint()
        scale = cursor.uint() if cursor.take(",") else ""
        cursor.need(")")
        return length, scale

    def _number_options(self) -> str:
        unsigned = zerofill = False
        while word := self._cursor.take_any("UNSIGNED", "SIGNED", "ZEROFILL"):
            # ZEROFILL makes a number UNSIGNED as well.
            unsigned = unsigned or word != "SIGNED"
            zerofill = zerofill or word == "ZEROFILL"
        return (" UNSIGNED" if unsigned else "") + (" ZEROFILL" if zerofill else "")

    # --- text -------------------------------------------------------------------------------------------

    def _text_type(self) -> str | None:
        cursor = self._cursor
        if cursor.at("LONG"):
            return self._long_type()
        if (varying := self._char_word()) is not None:
            return self._char_type("VARCHAR" if varying else "CHAR")
        if cursor.take("BINARY"):
            return "BINARY" + self._length()
        if cursor.take("VARBINARY"):
            return "VARBINARY" + (self._length() or cursor.fail("a length"))
        key = cursor.token.key
        if key in _BLOBS:
            cursor.next()
            return key + (self._length() if key == "BLOB" else "")
        if key in _TEXTS:
            cursor.next()
            return self._lob(_TEXTS[key], self._length() if key == "TEXT" else "")
        if cursor.at_any("ENUM", "SET"):
            return self._members_type()
        return None

    def _char_word(self) -> bool | None:
        """Read the words for a text type of fixed or varying length; returns whether it varies."""
        cursor = self._cursor
        national = cursor.take("NATIONAL")
        if cursor.take_any("VARCHAR", "VARCHARACTER") or (not national and cursor.take("NVARCHAR")):
            return True
        if not national and cursor.take("NCHAR"):
            return bool(cursor.take_any("VARCHAR", "VARCHARACTER", "VARYING"))
        if cursor.take_any("CHAR", "CHARACTER"):
            return cursor.take("VARYING")
        return cursor.fail("CHAR or VARCHAR") if national else None

    def _char_type(self, kind: str) -> str:
        length = self._length()
        if kind == "VARCHAR" and not length:
            self._cursor.fail("a length")
        charset = self._charset_options()
        if charset.name == "binary":
            # TiDB has no text without a charset: it makes such a column one of bytes.
            kind = {"CHAR": "BINARY", "VARCHAR": "VARBINARY"}[kind]
        return kind + length + charset.written()

    def _long_type(self) -> str:
        cursor = self._cursor
        cursor.need("LONG")
        if cursor.take("VARBINARY"):
            return "MEDIUMBLOB"
        if not cursor.take_any("VARCHAR", "VARCHARACTER") and cursor.at_any("CHAR", "CHARACTER"):
            if cursor.ahead().key != "VARYING":
                return self._lob("MEDIUM", "")
            cursor.next()
            cursor.need("VARYING")
        return self._lob("MEDIUM", "")

    def _lob(self, size: str, length: str) -> str:
        charset = self._charset_options()
        return size + ("BLOB" if charset.name == "binary" else "TEXT") + length + charset.written()

    def _charset_options(self) -> _Charset:
        cursor = self._cursor
        if cursor.take("ASCII"):
            return _Charset("latin1", False)
        if cursor.take("BYTE"):
            return _Charset("binary", False)
        if cursor.take("BINARY"):
            return _Charset(cursor.charset() if cursor.take_charset_word() else "", True)
        if not cursor.take_charset_word():
            return _Charset("", False)
        name = cursor.charset()
        return _Charset(name, cursor.take("BINARY"))

    def _members_type(self) -> str:
        cursor = self._cursor
        kind = cursor.next().key
        members = ",".join(cursor.parenthesised(self._member))
        charset = self._charset_options()
        return f"{kind}({members})" + (" BINARY" if charset.binary and charset.name != "binary" else "")

    def _member(self) -> str:
        cursor = self._cursor
        token = cursor.token
        if token.kind is TokenKind.HEX:
            text = bytes.fromhex(cursor.next().text)
        elif token.kind is TokenKind.BIT:
            digits = cursor.next().text
            text = int(digits or "0", 2).to_bytes(-(-len(digits) // 8), "big")
        else:
            return cursor.plain(cursor.string().rstrip(" "))
        try:
            return cursor.plain(text.decode().rstrip(" "))
        except UnicodeDecodeError:
            return cursor.fail("text in UTF-8")

    # --- others -----------------------------------------------------------------------------------------

    def _other_type(self) -> str | None:
        cursor = self._cursor
        if key := cursor.take_any("DATE", "JSON"):
            return key
        if key := cursor.take_any(*_TIMES):
            return key + self._length()
        if cursor.take_any("YEAR", "SQL_TSI_YEAR"):
            length = self._length()
            if length not in ("", "(4)"):
                cursor.fail("YEAR or YEAR(4)")
            self._number_options()
            return "YEAR" + length
        if cursor.take("VECTOR"):
            if cursor.take("<"):
                cursor.need("FLOAT")
                cursor.need(">")
            return "VECTOR" + self._length()
        return None

    # --- casts ------------------------------------------------------------------------------------------

    def cast_type(self) -> str:
        """The type of a cast."""
        found = self._cast_type()
        return found + (" ARRAY" if self._cursor.take("ARRAY") else "")

    def _cast_type(self) -> str:
        cursor = self._cursor
        if cursor.take("BINARY"):
            return "BINARY" + self._length()
        if cursor.take_any("CHAR", "CHARACTER"):
            length = self._length()
            charset = self._charset_options()
            if charset.binary or charset.name == "binary":
                return "BINARY" + length
            return (
                "CHAR" + length + (f" CHARSET {charset.name.upper()}" if self._stated(charset.name) else "")
            )
        if cursor.take("DECIMAL"):
            return self._cast_decimal()
        if word := cursor.take_any("SIGNED", "UNSIGNED"):
            cursor.take_any("INT", "INTEGER")
            return word
        if word := cursor.take_any("DATETIME", "TIME"):
            length = self._length()
            return word + ("" if length == "(0)" else length)
        return self._cast_other()

    def _stated(self, charset: str) -> bool:
        return bool(charset) and charset != "utf8mb4"

    def _cast_decimal(self) -> str:
        length, scale = self._precision()
        length = length if length not in ("", "0") else "10" if not length else "0"
        if length == "0":
            return "DECIMAL"
        return f"DECIMAL({length}, {scale})" if scale not in ("", "0") else f"DECIMAL({length})"

    def _cast_other(self) -> str:
        cursor = self._cursor
        if word := cursor.take_any("DATE", "YEAR", "JSON", "DOUBLE"):
            return word
        if cursor.take("FLOAT"):
            length, _ = self._precision()
            if length and int(length) > _DOUBLE_DIGITS:
                cursor.fail("at most 53 digits")
            return "DOUBLE" if length and int(length) > _FLOAT_DIGITS else "FLOAT"
        if cursor.take("REAL"):
            return "FLOAT" if cursor.sql_mode & REAL_AS_FLOAT else "DOUBLE"
        if cursor.take("VECTOR"):
            self._length()
            return "VECTOR"
        return cursor.fail("a type to cast to")


def _precise(length: str, scale: str) -> str:
    return f"({length},{scale})" if scale else f"({length})" if length else ""
