"""The form of debezium's row messages for one table, and how columns are made from their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import DecodeError, RowKey
from tidegate.codec.decoding.template import CellForm, Pieces, Route, Template
from tidegate.codec.formats.json_text import raw_string
from tidegate.codec.kernels import connect_kernels, decode_kernels, template_kernels
from tidegate.codec.protocols.debezium import fields, schema
from tidegate.codec.protocols.debezium.fields import Form, field_of
from tidegate.codec.protocols.debezium.plain import AFTER_TS, HEAD, OPENINGS, START_TS, after_ms
from tidegate.kernel import PAD, address
from tidegate.model.cells import DELETE, INSERT, UPDATE

Wrong = npt.NDArray[np.uint8]
_MOMENT_TEXT: Final = 32
_DECIMAL_TEXT: Final = 352


def templates(key: RowKey) -> list[Template]:
    """TiCDC's layout. It includes the schema: messages with another schema, or none, are decoded plainly.

    The fields of `source` that the new architecture adds, for the extension and for transactions, are
    optional. A table with virtual columns has fields of columns that no message contains. Its messages are
    decoded plainly, too, because these fields cannot be derived from the columns of the first message.
    """
    n = len(key.columns)
    names = [raw_string(column.name.encode()) for column in key.columns]
    stated = [column.type_name.encode() for column in key.columns]
    prefix = schema.prefix(key.schema, key.table)
    source_end = b"}}" + schema.value_schema(prefix, b",".join(stated))
    end = schema.SOURCE_END + schema.BEHIND_SOURCE + b"}"
    keyed = [i for i, column in enumerate(key.columns) if column.key]
    key_end = b"}" + schema.key_schema(prefix, b",".join(stated[i] for i in keyed)) + b"}"

    def image(
        opening: bytes, shown: list[int], base: int, close: bytes, form: int = template_kernels.CELL
    ) -> tuple[Pieces, bytes]:
        found: Pieces = []
        for i in shown:
            found.append((opening + names[i] + b":", form, base + i))
            opening = b","
        return found, (close if found else opening + close)

    def value(op: int) -> Pieces:
        found: Pieces = [
            (HEAD, template_kernels.NUMBER, 0),
            (after_ms(key.schema, key.table), template_kernels.TIMESTAMP, 0),
            (START_TS, template_kernels.OPTIONAL, 0),
            (AFTER_TS, template_kernels.NUMBER, 0),
        ]
        opening = OPENINGS[op]
        if op == UPDATE:
            cells, opening = image(opening + b'"before":{', list(range(n)), n, b'},"after":{')
            found += cells
        cells, close = image(opening, list(range(n)), n if op == DELETE else 0, source_end)
        more_fields: Pieces = [
            (one, template_kernels.OPTIONAL_TEXT, 0) for one in (schema.IDS, schema.START_TS)
        ]
        return [
            *found,
            *cells,
            (close, template_kernels.TEXT_ALONE, 0),
            *more_fields,
            (end, template_kernels.END, op),
        ]

    # The key repeats cells of the value. Both are written to the same cells; the value is read last and
    # overwrites them.
    meta, close = image(b'{"payload":{', keyed, 0, key_end, template_kernels.SEEN)
    return [
        Template(
            key, ([*meta, (close, template_kernels.END, 0)], *(value(op) for op in (INSERT, UPDATE, DELETE)))
        )
    ]


ROUTE = Route(
    (
        (HEAD, template_kernels.NUMBER),
        (b',"snapshot":"false","db":', template_kernels.STRING),
        (b',"table":', template_kernels.STRING),
    ),
    lambda key: HEAD + b"0" + after_ms(key.schema, key.table),
)


# --- columns


def cells(column: WireColumn) -> CellForm:
    """How messages contain the values of a column, and how the column is made from them."""
    form = field_of(column.type_name).form
    if form in _NUMBERS:
        return CellForm(False, decode_kernels.TEXT, *_NUMBERS[form])
    return CellForm(True, *_STRINGS[form])


def _decimals(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
    """Doubles as texts; minus zero becomes zero."""
    doubles = np.ascontiguousarray(pc.fill_null(found, 0.0).to_numpy(zero_copy_only=False) + 0.0)
    valid, wrong = _valid(found), np.zeros(len(found), np.uint8)
    out, ends = np.empty(_DECIMAL_TEXT * len(found) + PAD, np.uint8), np.zeros(len(found) + 1, np.int32)
    size = connect_kernels.decimal_texts(
        len(found), address(doubles), address(valid), address(out), address(ends) + 4
    )
    return _texts(found, ends, out[:size]), wrong


def _moments(form: int) -> Callable[[pa.Array, WireColumn], tuple[pa.Array, Wrong]]:

    def converted(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
        numbers = np.ascontiguousarray(pc.fill_null(found, 0).to_numpy(zero_copy_only=False))
        valid, wrong = _valid(found), np.zeros(len(found), np.uint8)
        out, ends = np.empty(_MOMENT_TEXT * len(found) + PAD, np.uint8), np.zeros(len(found) + 1, np.int32)
        size = connect_kernels.moment_texts(
            len(found),
            address(numbers),
            address(valid),
            form,
            address(out),
            address(ends) + 4,
            address(wrong),
        )
        return _texts(found, ends, out[:size]), wrong

    return converted


def _valid(found: pa.Array) -> Wrong:
    return np.ascontiguousarray(found.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)


def _texts(like: pa.Array, ends: npt.NDArray[np.int32], data: Wrong) -> pa.Array:
    mask = like.is_valid().buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(
        pa.string(), len(like), [mask, pa.py_buffer(ends), pa.py_buffer(data.tobytes())]
    )


def _wrapped(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
    """The unsigned numbers with the same bits."""
    return found.view(pa.uint64()), np.zeros(len(found), np.uint8)


def _booleans(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
    """0 for `false` and 1 for `true`; anything else is wrong."""
    true, false = pc.equal(found, "true"), pc.equal(found, "false")
    return true.cast(pa.uint64()), _not(pc.or_(true, false))


def _bits(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
    """Numbers from little-endian bytes; another length is wrong."""
    n, wrong, out = len(found), np.zeros(len(found), np.uint8), np.empty(len(found), np.uint64)
    _, ends, data = found.buffers()
    connect_kernels.bits_numbers(
        n,
        address(ends) + 4 * found.offset,
        address(data),
        field_of(column.type_name).size,
        address(out),
        address(wrong),
    )
    valid = _valid(found)
    return pa.array(out, mask=valid == 0), wrong & valid


def _enums(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
    """Numbers of an enum's names; 0 for the empty name, unless an element has an empty name."""
    elems = field_of(column.type_name).elems
    at = pc.index_in(found, value_set=pa.array(elems, pa.string()))
    empty = pc.equal(found, "")
    numbers = pc.if_else(
        pc.is_valid(at),
        pc.add(at.cast(pa.int64()), 1),
        pc.if_else(empty, pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())),
    )
    missing = pc.and_(found.is_valid(), pc.is_null(numbers))
    return numbers.cast(pa.uint64()), _flags(missing)


def _sets(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
    """Masks of a set's names; each distinct text is parsed once."""
    elems = field_of(column.type_name).elems
    encoded = pc.dictionary_encode(found)
    masks: list[int | None] = []
    for text in encoded.dictionary.to_pylist():
        try:
            masks.append(fields.mask_of(column, elems, text))
        except DecodeError:
            masks.append(None)
    numbers = pa.array(masks, pa.uint64()).take(encoded.indices)
    return numbers, _flags(pc.and_(found.is_valid(), pc.is_null(numbers)))


_ZONED_TEXT: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"


def _zoned(found: pa.Array, column: WireColumn) -> tuple[pa.Array, Wrong]:
    """`YYYY-MM-DD hh:mm:ss[.f..]` of a timestamp in UTC."""
    sound = pc.match_substring_regex(found, _ZONED_TEXT)
    texts = pc.utf8_replace_slice(pc.utf8_slice_codeunits(found, 0, -1), 10, 11, " ")
    return texts, _not(sound)


def _not(sound: pa.Array) -> Wrong:
    return _flags(pc.invert(pc.fill_null(sound, True)))


def _flags(found: Any) -> Wrong:
    return np.ascontiguousarray(found.to_numpy(zero_copy_only=False)).view(np.uint8)


_I64: Final = pa.int64()
_NUMBERS: Final[dict[Form, tuple[Any, ...]]] = {
    Form.NUMBER: (),
    Form.WRAPPED: (_I64, _wrapped),
    Form.DECIMAL: (pa.float64(), _decimals),
    Form.BOOLEAN: (pa.string(), _booleans),
    Form.DAYS: (_I64, _moments(connect_kernels.DATES)),
    Form.MILLISECONDS: (_I64, _moments(connect_kernels.EPOCH_MS)),
    Form.MICROSECONDS: (_I64, _moments(connect_kernels.EPOCH_US)),
    Form.TIME: (_I64, _moments(connect_kernels.CLOCK)),
}
"""Forms without quotes: the type as which the values are read, and the function that makes the column."""
_STRINGS: Final[dict[Form, tuple[Any, ...]]] = {
    Form.TEXT: (decode_kernels.TEXT,),
    Form.BYTES: (decode_kernels.BASE64,),
    Form.BITS: (decode_kernels.BASE64, pa.binary(), _bits),
    Form.ENUM: (decode_kernels.TEXT, pa.string(), _enums),
    Form.SET: (decode_kernels.TEXT, pa.string(), _sets),
    Form.ZONED: (decode_kernels.TEXT, pa.string(), _zoned),
}
"""Forms in quotes: the content of the quotes, the type and the function as above."""
