"""The schemas that Avro messages name, parsed for decoding: docs/formats/avro.md.

`record_of` parses the text of a schema from the registry once and checks that it is one TiCDC writes. Both
decoders use the result: the plain one and the compiled one (`bulk`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import DecodeError, member, wire_type
from tidegate.codec.protocols.avro.schema import BEFORE, CHECKSUMS, EXTENSION

MAX_FIELDS: Final = 8192
"""Members of one schema; TiDB's tables have at most 4096 columns."""
_EXTENSION: Final = "_tidb_"
_NO_KEYS: Final[frozenset[str]] = frozenset()
_MEMBERS: Final = {name: of_type for name, of_type, _ in (*EXTENSION, *CHECKSUMS)}


class Field(NamedTuple):
    """A member of a record: a column, or one of the members that TiDB's extension adds."""

    name: str
    of_type: str
    """Avro's primitive type, or `record`."""
    null: int
    """The number of the union's branch that means null; -1: the type is no union."""
    tidb_type: str
    """TiDB's type of the column; empty if the member is not a column."""
    allowed: tuple[str, ...] = ()
    """The elements of an enum or set, as `escaped_elem` writes them, but with plain commas."""
    scale: int = -1
    """Digits after the point of a decimal that comes as bytes; -1: it is none."""
    inner: Record | None = None


class Record(NamedTuple):
    """The parts of a schema that decoding needs."""

    schema: str
    table: str
    fields: tuple[Field, ...]


_CODE: Final = {
    "FLOAT": 4, "DOUBLE": 5, "BIT": 16, "DECIMAL": 246, "TEXT": 252, "BLOB": 252, "ENUM": 247, "SET": 248,
    "JSON": 245, "DATE": 10, "DATETIME": 12, "TIMESTAMP": 7, "TIME": 11, "YEAR": 13,
    "TiDBVECTORFloat32": 225, "INT": 3, "BIGINT": 8,
}  # fmt: skip
_AVRO_OF: Final = {
    3: ("int", "long"), 8: ("long", "string"), 4: ("float",), 5: ("double",), 16: ("bytes",),
    246: ("bytes", "string"), 13: ("int",),
}  # fmt: skip
"""The Avro types that a MySQL type code may have. Every other code comes as text, a BLOB as bytes."""


@lru_cache(maxsize=1024)
def record_of(text: str) -> Record:
    """Parse the text of a schema. Raises DecodeError if TiCDC would not write such a schema."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"its schema is not JSON: {error}") from None
    return _record(found)


def _record(found: Any, *, nested: bool = False) -> Record:
    if not isinstance(found, dict) or found.get("type") != "record":
        raise DecodeError("its schema is not a record's")
    namespace, fields = member(found, "namespace", str, ""), member(found, "fields", list)
    if len(fields) > MAX_FIELDS:
        raise DecodeError(f"its schema has {len(fields)} members")
    taken = tuple(_field(one, nested=nested) for one in fields)
    if len({one.name for one in taken}) < len(taken):
        raise DecodeError("its schema has two members of one name")
    made = Record(namespace.partition(".")[2], member(found, "name", str), taken)
    for one in taken:
        # The decoder reads the cells of the old image with the columns of the row, so both must be the same.
        if one.inner is not None and wire_columns(one.inner, _NO_KEYS) != wire_columns(made, _NO_KEYS):
            raise DecodeError(f"member {one.name!r} of its schema has other columns than the row")
    return made


def _field(found: Any, *, nested: bool) -> Field:
    if not isinstance(found, dict):
        raise DecodeError("a member of its schema is not an object")
    name, of_type, null = member(found, "name", str), found.get("type"), -1
    if isinstance(of_type, list):
        if len(of_type) != 2 or of_type.count("null") != 1:
            raise DecodeError(
                f"member {name[:100]!r} of its schema is a union of other than null and one type"
            )
        null = of_type.index("null")
        of_type = of_type[1 - null]
    if name == BEFORE and isinstance(of_type, dict) and not nested:
        return Field(name, "record", null, "", inner=_record(of_type, nested=True))
    if isinstance(of_type, str):
        if not name.startswith(_EXTENSION):
            raise DecodeError(f"member {name[:100]!r} of its schema has no TiDB type")
        if of_type not in ("string", "long", "int", "boolean") or of_type != _MEMBERS.get(name, of_type):
            raise DecodeError(f"member {name[:100]!r} of its schema is {of_type[:100]!r}")
        return Field(name, of_type, null, "")
    if not isinstance(of_type, dict):
        raise DecodeError(f"member {name[:100]!r} of its schema has no type")
    parameters = member(of_type, "connect.parameters", dict)
    tidb_type, base = member(parameters, "tidb_type", str), member(of_type, "type", str)
    code = _CODE.get(tidb_type.removesuffix(" UNSIGNED"))
    if code is None or base not in _AVRO_OF.get(code, ("bytes" if tidb_type == "BLOB" else "string",)):
        raise DecodeError(f"member {name[:100]!r} of its schema is {base[:100]!r} of {tidb_type[:100]!r}")
    allowed: tuple[str, ...] = ()
    if code in (247, 248):
        allowed = _split(member(parameters, "allowed", str, ""))
    scale = -1
    if code == 246 and base == "bytes":
        scale = member(of_type, "scale", int, 0)
        if not 0 <= scale <= 100:
            raise DecodeError(f"member {name[:100]!r} of its schema has the scale {scale}")
    return Field(name, base, null, tidb_type, allowed, scale)


def _split(allowed: str) -> tuple[str, ...]:
    """Split the elements of an enum or set at their commas; an escaped comma belongs to an element."""
    # NUL is the mark of an escaped comma during the split, so the text itself must have none.
    parts = [part.replace("\0", ",") for part in allowed.replace("\0", "").replace("\\,", "\0").split(",")]
    return tuple(parts)


def wire_column(field: Field, *, key: bool) -> WireColumn:
    """The column that a member describes. `key`: it belongs to the handle key."""
    code = _CODE[field.tidb_type.removesuffix(" UNSIGNED")]
    kind = wire_type(code, field.tidb_type.endswith(" UNSIGNED"), field.tidb_type == "BLOB")
    return WireColumn(field.name, kind, code, key, None, field.tidb_type)


@lru_cache(maxsize=1024)
def wire_columns(record: Record, keys: frozenset[str]) -> tuple[WireColumn, ...]:
    """The columns that a schema describes; `keys` names those of the handle key."""
    return tuple(wire_column(one, key=one.name in keys) for one in record.fields if one.tidb_type)
