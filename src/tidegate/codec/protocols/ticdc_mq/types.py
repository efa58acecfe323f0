"""The type names of ticdc-mq: one for every MySQL type, unsigned or not, text or bytes.

The document shows `Long` and `Text`. The others follow the same rule: MySQL's own names of its type codes
(`MYSQL_TYPE_LONG`), with the SQL name where text and bytes share a code.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from tidegate.codec.formats.mysql_type import is_binary
from tidegate.model.schema import Column

_NUMBERS: Final = {1: "Tiny", 2: "Short", 9: "Int24", 3: "Long", 8: "LongLong"}
"""Types whose range depends on the sign."""
_TEXT_OR_BYTES: Final = {
    254: ("String", "Binary"), 15: ("Varchar", "Varbinary"), 253: ("VarString", "VarBinaryString"),
    249: ("TinyText", "TinyBlob"), 252: ("Text", "Blob"), 250: ("MediumText", "MediumBlob"),
    251: ("LongText", "LongBlob"),
}  # fmt: skip
_OTHERS: Final = {
    4: "Float", 5: "Double", 0: "Decimal", 246: "NewDecimal", 10: "Date", 14: "NewDate", 11: "Time",
    12: "DateTime", 7: "Timestamp", 13: "Year", 16: "Bit", 247: "Enum", 248: "Set", 245: "Json",
    225: "Vector", 255: "Geometry", 6: "Null",
}  # fmt: skip
UNSIGNED: Final = "Unsigned"

TYPES: Final = MappingProxyType(
    {name: (code, False, False) for code, name in (_NUMBERS | _OTHERS).items()}
    | {UNSIGNED + name: (code, True, False) for code, name in _NUMBERS.items()}
    | {text: (code, False, False) for code, (text, _) in _TEXT_OR_BYTES.items()}
    | {data: (code, False, True) for code, (_, data) in _TEXT_OR_BYTES.items()}
)
"""By name: (MySQL's type code, unsigned, bytes)."""


def type_name(column: Column) -> str:
    """The name of a column's type."""
    code = column.mysql_type
    if code in _TEXT_OR_BYTES:
        return _TEXT_OR_BYTES[code][is_binary(column)]
    if code in _NUMBERS:
        return (UNSIGNED if column.unsigned else "") + _NUMBERS[code]
    return _OTHERS[code]
