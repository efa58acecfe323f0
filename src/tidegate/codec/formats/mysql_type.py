"""MySQL's types as text, as in canal-json's `mysqlType`: the short form, the full form, and parsing them.

See docs/formats/canal-json.md#values.
"""

from __future__ import annotations

from typing import Final

from tidegate.model.schema import Column, Kind

_NAMES: Final = {
    1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint", 4: "float", 5: "double", 0: "decimal",
    246: "decimal", 10: "date", 14: "date", 12: "datetime", 7: "timestamp", 11: "time", 13: "year", 16: "bit",
    245: "json", 247: "enum", 248: "set", 254: "char", 15: "varchar", 253: "var_string", 249: "tinytext",
    252: "text", 250: "mediumtext", 251: "longtext", 225: "vector", 255: "geometry", 6: "null",
}  # fmt: skip
_DEFAULT_LENGTH: Final = {
    1: (4, 0), 2: (6, 0), 9: (9, 0), 3: (11, 0), 8: (20, 0), 4: (12, -1), 5: (22, -1), 246: (10, 0),
    16: (1, 0),     13: (4, 0), 254: (1, 0), 15: (5, 0), 253: (5, 0), 7: (19, 0), 12: (19, 0), 11: (10, 0),
}  # fmt: skip
"""(flen, decimal) to use for -1, as in TiDB's GetDefaultFieldLengthAndDecimal."""

_ELEM_ESCAPES: Final = str.maketrans({"\0": "\\0", "'": "''", "\n": "\\n", "\r": "\\r"})
_BIT, _YEAR = 16, 13


def is_binary(column: Column) -> bool:
    """Whether values are bytes and not text: string types of charset binary."""
    return column.kind in (Kind.STRING, Kind.BYTES) and column.charset == "binary"


def base_name(code: int, charset: str) -> str:
    """The name of a type code without attributes, for text or for bytes."""
    name = _NAMES[code]
    if charset != "binary":
        return name
    if code in (249, 250, 251, 252):
        return name.replace("text", "blob")
    return name.replace("char", "binary") if code in (15, 254) else name


def _attributes(column: Column) -> str:
    code = column.mysql_type
    text = " unsigned" if column.unsigned and code not in (_BIT, _YEAR) else ""
    return text + (" zerofill" if column.flag & 64 and code != _YEAR else "")


def long_name(column: Column) -> str:
    """The name of a column's type without attributes."""
    return base_name(column.mysql_type, column.charset)


def default_length(code: int) -> tuple[int, int]:
    """TiDB's length and decimals of a type for which the user gave none; -1: there are none."""
    return _DEFAULT_LENGTH.get(code, (-1, 0))


def short_type(column: Column) -> str:
    """The name, followed by ` unsigned` and ` zerofill` if they apply."""
    return base_name(column.mysql_type, column.charset) + _attributes(column)


def compact_type(column: Column) -> str:
    """TiDB's description of the type (`content-compatible`): with lengths, members and display widths."""
    return base_name(column.mysql_type, column.charset) + _suffix(column) + _attributes(column)


def _suffix(column: Column) -> str:
    code = column.mysql_type
    length, decimals = _DEFAULT_LENGTH.get(code, (-1, 0))
    shown_length = length if column.flen == -1 else column.flen
    shown_decimals = decimals if column.decimal == -1 else column.decimal
    # As `isDecimalNotDefault` in TiDB's `FieldType.CompactStr`.
    has_decimals = column.decimal not in (decimals, 0, -1)
    match code:
        case 247 | 248:
            return "('" + "','".join(elem.translate(_ELEM_ESCAPES) for elem in column.elems) + "')"
        case 7 | 11 | 12:
            return f"({shown_decimals})" if has_decimals else ""
        case 4 | 5:
            return f"({shown_length},{shown_decimals})" if has_decimals else ""
        case 246:
            return f"({shown_length},{shown_decimals})"
        case 1 | 2 | 3 | 8 | 9 | 13 | 15 | 16 | 253 | 254:
            return f"({shown_length})"
        case 225:
            return f"({column.flen})" if column.flen != -1 else ""
    return ""


_CODES: Final = (
    {name: code for code, name in _NAMES.items() if code not in (0, 14)}
    | {"binary": 254, "varbinary": 15, "tinyblob": 249, "blob": 252, "mediumblob": 250, "longblob": 251}
    | {"integer": 3, "numeric": 246}
)
_BINARY: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})


def code_of(type_name: str) -> tuple[int, bool, bool]:
    """(type code, unsigned, binary) of a type in either form. Raises ValueError for an unknown name."""
    name = type_name.partition("(")[0].partition(" ")[0].lower()
    if name not in _CODES:
        raise ValueError(f"unknown mysqlType {type_name[:100]!r}")
    # Behind the parentheses: an element of an enum may have the word in it.
    outside = type_name.rpartition(")")[2] if "(" in type_name else type_name
    return _CODES[name], " unsigned" in outside, name in _BINARY
