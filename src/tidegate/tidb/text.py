"""The canonical text of a plain value, which dispatchers hash and canal-json sends.

The text by type: docs/formats/columns.md#canonical-text.
TiCDC calls it ColumnValueString. Floats that are not finite count as 0.
"""

from __future__ import annotations

import math

from tidegate.model.row import Value
from tidegate.model.schema import Kind
from tidegate.tidb.types import float as floats


def value_text(kind: Kind, value: Value) -> bytes:
    """The text of a value that is not NULL; strings and binary are their own bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return floats.fixed_text(value if math.isfinite(value) else 0.0, single=kind is Kind.FLOAT).encode()
    assert value is not None, "NULL has no text of its own"
    return str(value).encode()
