"""Golden datums and columns (`keys/datums`, `table_keys`, `row_values`) as stored values."""

from __future__ import annotations

import struct
from typing import Any

from tidegate.model.schema import Kind
from tidegate.tidb import row
from tidegate.tidb.datum import NULL, Datum
from tidegate.tidb.row import Stored
from tidegate.tidb.types import decimal, string, temporal

_KINDS = {
    "int": Kind.INT,
    "uint": Kind.UINT,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "decimal": Kind.DECIMAL,
    "bytes": Kind.BYTES,
    "string": Kind.STRING,
    "date": Kind.DATE,
    "datetime": Kind.DATETIME,
    "timestamp": Kind.TIMESTAMP,
    "time": Kind.TIME,
    "enum": Kind.ENUM,
    "set": Kind.SET,
    "bit": Kind.BIT,
    "null": Kind.INT,
}
UNKNOWN_WEIGHTS = ("gb18030_chinese_ci",)
"""Collations whose tables we do not have: keys under them can be read, not made."""


def known(item: dict[str, Any]) -> bool:
    """Whether our encoder can make its key."""
    return item.get("collation") not in UNKNOWN_WEIGHTS


def kind_of(item: dict[str, Any]) -> Kind:
    """The kind of a column that would hold it."""
    return _KINDS[item["t"]]


def key_datum(item: dict[str, Any]) -> Datum:
    """Return the datum in a key for this value."""
    if item["t"] == "null":
        return NULL
    stored = stored_of(item, in_key=True)
    assert stored is not None
    return row.to_key_datum(stored, kind_of(item))


def stored_of(item: dict[str, Any], *, in_key: bool = False) -> Stored:
    """The stored value; of a string in a key, its sort key."""
    match item["t"]:
        case "null":
            return None
        case "int" | "uint" | "enum" | "set":
            return int(item["v"])
        case "float":
            return float(struct.unpack(">f", bytes.fromhex(item["bits"]))[0])
        case "double":
            return float(struct.unpack(">d", bytes.fromhex(item["bits"]))[0])
        case "bytes":
            return bytes.fromhex(item["hex"])
        case "string":
            data = bytes.fromhex(item["hex"])
            return string.sort_key(data, item["collation"]) if in_key else data
        case "bit":
            return int(item["hex"], 16)
        case "time":
            return int(item["nanoseconds"])
        case "decimal":
            return decimal.encode(item["v"], item.get("precision", 0), item.get("frac", 0))
        case _:
            return temporal.pack(temporal.parse(item["v"]))
