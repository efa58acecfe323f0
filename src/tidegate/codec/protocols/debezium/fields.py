"""From the field of a Connect schema to a column, and from JSON values to the column's values.

A column's `type_name` is its field, as JSON: all that a message says about it. Without `tidb_type` (the TiDB
extension) bytes cannot be distinguished from text, decimals from doubles, or unsigned from signed numbers.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import orjson
import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import DecodeError, number, wire_type
from tidegate.codec.formats.mysql_type import code_of
from tidegate.codec.protocols.debezium import moments
from tidegate.tidb.types.float import fixed_text

MAX_FIELDS: Final = 16_384
"""How many parsed fields are cached: those of some hundred tables."""


class Form(StrEnum):
    """How a column's values are written in JSON."""

    NUMBER = "a number as it is"
    WRAPPED = "the signed number of an unsigned one's 64 bits"
    DECIMAL = "a float"
    BOOLEAN = "true or false"
    BITS = "Base64 of little-endian bytes"
    TEXT = "a string as it is"
    BYTES = "Base64"
    ENUM = "a name"
    SET = "names with commas"
    DAYS = "days since 1970"
    MILLISECONDS = "milliseconds since 1970"
    MICROSECONDS = "microseconds since 1970"
    TIME = "microseconds"
    ZONED = "text in UTC"


@dataclass(frozen=True, slots=True)
class Field:
    """The information in a field about its column."""

    code: int
    """MySQL's type code."""
    unsigned: bool
    binary: bool
    form: Form
    elems: tuple[str, ...]
    """The names of an enum or set."""
    size: int
    """Bytes of a BIT column's values."""

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the decoded column."""
        return wire_type(self.code, self.unsigned, self.binary)


_NAMED: Final = {
    "io.debezium.data.Bits": (16, Form.BITS),
    "io.debezium.data.Enum": (247, Form.ENUM),
    "io.debezium.data.EnumSet": (248, Form.SET),
    "io.debezium.time.Date": (10, Form.DAYS),
    "io.debezium.time.Timestamp": (12, Form.MILLISECONDS),
    "io.debezium.time.MicroTimestamp": (12, Form.MICROSECONDS),
    "io.debezium.time.ZonedTimestamp": (7, Form.ZONED),
    "io.debezium.time.MicroTime": (11, Form.TIME),
    "io.debezium.time.Year": (13, Form.NUMBER),
    "io.debezium.data.Json": (245, Form.TEXT),
    "io.debezium.data.TiDBVectorFloat32": (225, Form.TEXT),
}
_PLAIN: Final = {
    "boolean": (16, Form.BOOLEAN), "int16": (2, Form.NUMBER), "int32": (3, Form.NUMBER),
    "int64": (8, Form.NUMBER), "float": (4, Form.NUMBER), "double": (5, Form.NUMBER),
    "string": (15, Form.TEXT),
}  # fmt: skip
_TYPES_OF: Final = {
    Form.BOOLEAN: "boolean", Form.BITS: "bytes", Form.ENUM: "string", Form.SET: "string", Form.DAYS: "int32",
    Form.MILLISECONDS: "int64", Form.MICROSECONDS: "int64", Form.ZONED: "string", Form.TIME: "int64",
}  # fmt: skip
"""The Connect types of forms that have only one."""
_FORMS_OF_CODES: Final = {
    frozenset({1, 2, 3, 8, 9}): {Form.NUMBER}, frozenset({13}): {Form.NUMBER},
    frozenset({4, 5, 246}): {Form.NUMBER},
    frozenset({16}): {Form.BOOLEAN, Form.BITS}, frozenset({247}): {Form.ENUM}, frozenset({248}): {Form.SET},
    frozenset({10, 14}): {Form.DAYS}, frozenset({12}): {Form.MILLISECONDS, Form.MICROSECONDS},
    frozenset({7}): {Form.ZONED}, frozenset({11}): {Form.TIME},
}  # fmt: skip
_FORMS: Final = {code: forms for codes, forms in _FORMS_OF_CODES.items() for code in codes}


@lru_cache(MAX_FIELDS)
def field_of(text: str) -> Field:
    """Parse a field of a schema from its JSON. DecodeError if TiCDC writes no such field."""
    stated = orjson.loads(text)
    named, of_type, tidb = stated.get("name"), stated.get("type"), stated.get("tidb_type")
    found = (
        _NAMED.get(named)
        if isinstance(named, str)
        else _PLAIN.get(of_type)
        if isinstance(of_type, str)
        else None
    )
    if found is None or _TYPES_OF.get(found[1], of_type) != of_type:
        name = str(stated.get("field"))[:100]
        raise DecodeError(f"field {name!r} has the unknown type {str(named or of_type)[:100]!r}")
    code, form = found
    unsigned = binary = False
    if isinstance(tidb, str):
        code, unsigned, binary = code_of(tidb)
        if form not in _FORMS.get(code, {Form.TEXT}):
            raise DecodeError(f"field {str(stated.get('field'))[:100]!r} of {tidb[:100]!r} is {form}")
        form = _stated_form(code, unsigned, binary, form)
    parameters = stated.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    size = _size(parameters) if form is Form.BITS else 1
    return Field(code, unsigned, binary, form, _elements(form, parameters), size)


def _stated_form(code: int, unsigned: bool, binary: bool, form: Form) -> Form:
    """The form, if the field contains TiDB's type."""
    # Without the extension a decimal cannot be distinguished from a double, and is read as one.
    if code == 246:
        return Form.DECIMAL
    if form is Form.NUMBER and unsigned and code not in (4, 5):
        return Form.WRAPPED
    return Form.BYTES if binary and form is Form.TEXT else form


def _size(parameters: dict[str, Any]) -> int:
    length = str(parameters.get("length"))
    # `isdigit` also accepts digits of other scripts.
    if not length.isascii() or not length.isdigit() or len(length) > 2 or not 1 <= int(length) <= 64:
        raise DecodeError(f"a column of bits has the length {length[:100]!r}")
    return (int(length) + 7) // 8


def _elements(form: Form, parameters: dict[str, Any]) -> tuple[str, ...]:
    if form not in (Form.ENUM, Form.SET):
        return ()
    allowed = parameters.get("allowed")
    if not isinstance(allowed, str):
        raise DecodeError("an enum or set does not list its elements")
    # The names of a set have no commas: its values are lists with commas, so MySQL refuses such names.
    if form is Form.SET:
        return tuple(allowed.split(","))
    # A comma inside an element is preceded by a backslash.
    return tuple(name.replace("\0", ",") for name in allowed.replace("\\,", "\0").split(","))


def wire_column(name: str, text: str, key: bool) -> WireColumn:
    """The column that a field describes."""
    field = field_of(text)
    return WireColumn(name, field.type, field.code, key, None, text)


# --- values


def value_of(column: WireColumn, value: Any) -> Any:
    """A JSON value as the column's value. DecodeError or ValueError if it does not fit the column."""
    if value is None:
        return None
    field = field_of(column.type_name)
    match field.form:
        case Form.NUMBER:
            return number(column, value)
        case Form.WRAPPED:
            return unwrapped(_integer(column, value))
        case Form.DECIMAL:
            return decimal_text(float(_number(column, value)))
        case Form.BOOLEAN:
            if not isinstance(value, bool):
                raise DecodeError(f"column {column.name!r} holds {type(value).__name__}, not a boolean")
            return int(value)
        case Form.DAYS:
            return moments.date_of(_integer(column, value))
        case Form.MILLISECONDS:
            return moments.datetime_of(_integer(column, value), 3)
        case Form.MICROSECONDS:
            return moments.datetime_of(_integer(column, value), 6)
        case Form.TIME:
            return moments.time_of(_integer(column, value))
    if not isinstance(value, str):
        raise DecodeError(f"column {column.name!r} holds {type(value).__name__}, not a string")
    return _of_text(column, field, value)


def _of_text(column: WireColumn, field: Field, text: str) -> Any:
    match field.form:
        case Form.BITS:
            data = base64.b64decode(text, validate=True)
            if len(data) != field.size:
                raise DecodeError(f"column {column.name!r} holds {len(data)} bytes of bits, not {field.size}")
            return int.from_bytes(data, "little")
        case Form.BYTES:
            return base64.b64decode(text, validate=True)
        case Form.ENUM:
            return index_of(column, field.elems, text)
        case Form.SET:
            return mask_of(column, field.elems, text)
        case Form.ZONED:
            return moments.timestamp_of(text)
    return text


def index_of(column: WireColumn, elems: tuple[str, ...], name: str) -> int:
    """The number of an enum's element; 0 for the empty name, unless an element has an empty name."""
    # Searched first even for the empty name, because it may be that of an element.
    if name in elems:
        return elems.index(name) + 1
    if name:
        raise DecodeError(f"column {column.name!r} holds {name[:100]!r}, which is none of its elements")
    return 0


def mask_of(column: WireColumn, elems: tuple[str, ...], names: str) -> int:
    """The mask of a set's elements; 0 for the empty text."""
    mask = 0
    for name in names.split(",") if names else ():
        if name not in elems:
            raise DecodeError(f"column {column.name!r} holds {name[:100]!r}, which is none of its elements")
        mask |= 1 << elems.index(name)
    if mask >> 64:
        raise DecodeError(f"column {column.name!r} holds an element beyond the 64 a set may have")
    return mask


def decimal_text(value: float) -> str:
    """A decimal from the float that the message has for it."""
    # `+ 0.0` turns -0.0 into 0.0: a decimal has no negative zero.
    return fixed_text(value + 0.0, single=False)


def unwrapped(value: int) -> int:
    """The unsigned number with the same 64 bits."""
    return value & ((1 << 64) - 1)


def _number(column: WireColumn, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DecodeError(f"column {column.name!r} holds {type(value).__name__}, not a number")
    return value


def _integer(column: WireColumn, value: Any) -> int:
    found = _number(column, value)
    if not isinstance(found, int) or not -(1 << 63) <= found < 1 << 63:
        raise DecodeError(f"column {column.name!r}: {found} is no integer of 64 bits")
    return found
