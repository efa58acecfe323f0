"""A table's encode plan: what `codec.kernels` needs to know of one table version under given options.

A plan is made once per table version and options, and kept while the table lives. Constants lie in one
run of bytes; pieces point into it by offset until `Plan.bind` gives them an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tidegate.codec import canal_json, kernels, open_protocol
from tidegate.codec.assemble import BINARY_FLAG, BLOB_TYPES, HANDLE_KEY_FLAG
from tidegate.codec.base import OPEN_PROTOCOL, CodecOptions
from tidegate.codec.json_text import easy_string, std_string
from tidegate.kernel import address, buffer
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.model.slots import DELETE, INSERT, UPDATE

Int64s = npt.NDArray[np.int64]
NEW, OLD = 0, 1

_NUMBERS: Final = {
    Kind.INT: kernels.INT,
    Kind.YEAR: kernels.INT,
    Kind.UINT: kernels.UINT,
    Kind.ENUM: kernels.UINT,
    Kind.SET: kernels.UINT,
    Kind.BIT: kernels.UINT,
}
_TEXTS: Final = {
    Kind.DECIMAL: kernels.DECIMAL,
    Kind.DATE: kernels.DATE,
    Kind.DATETIME: kernels.DATETIME,
    Kind.TIMESTAMP: kernels.DATETIME,
    Kind.TIME: kernels.TIME,
    Kind.JSON: kernels.JSON,
    Kind.VECTOR: kernels.VECTOR,
}
_WITH_FSP: Final = (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
_OPERATIONS: Final = (INSERT, UPDATE, DELETE)


@dataclass(frozen=True, slots=True)
class Shape:
    """How one column's values are written: form, its parameter, whether in quotes."""

    form: int
    param: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan with addresses; `owners` keep the memory alive while a kernel runs."""

    pieces: Int64s
    """Per operation 1..3: address and number of its pieces (index 0 unused)."""
    key_head: int
    key_head_length: int
    owners: tuple[npt.NDArray[np.generic], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One table version under one set of options."""

    constants: bytes
    stamps: tuple[int, ...]
    """Offsets in `constants` where canal-json's build time stands, `stamp_digits` long."""
    stamp_digits: int
    pieces: Int64s
    """int64[pieces, PIECE_WORDS], those of one operation in a row."""
    first: tuple[int, ...]
    """Per operation 0..3 the number of its first piece; then the number of pieces."""
    fixed: Int64s
    """Per operation the bound of everything but values of variable size."""
    typical: Int64s
    """Per operation a guess of the same, for sizing the buffer."""
    variables: Int64s
    """Count, then (column, growth) of the columns of variable size."""
    key_head: tuple[int, int]
    """Offset and length of open-protocol's `,"scm":..,"tbl":..`."""
    quoted: bool
    """Whether Go's table of printable characters is needed."""
    json_columns: bool
    zoned: tuple[int, ...]
    """TIMESTAMP columns."""

    def bind(self, build_ms: int) -> Bound:
        """The plan over memory of its own, with the build time written in."""
        data = buffer(len(self.constants))
        data[: len(self.constants)] = np.frombuffer(self.constants, dtype=np.uint8)
        stamp = np.frombuffer(b"%d" % build_ms, dtype=np.uint8)
        for offset in self.stamps:
            data[offset : offset + len(stamp)] = stamp
        pieces = self.pieces.copy()
        pieces[:, kernels.P_CONST // 8] += address(data)
        pieces[:, kernels.P_OPEN // 8] += address(data)
        table = np.zeros(8, dtype=np.int64)
        for op in _OPERATIONS:
            table[2 * op] = address(pieces) + kernels.PIECE_BYTES * self.first[op]
            table[2 * op + 1] = self.first[op + 1] - self.first[op]
        return Bound(table, address(data) + self.key_head[0], self.key_head[1], (data, pieces, table))


@dataclass(slots=True)
class _Builder:
    """Writes the pieces of one operation after the other; text waits until a value follows it."""

    constants: bytearray = field(default_factory=bytearray)
    pieces: list[list[int]] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    waiting: int = 0

    def text(self, data: bytes) -> None:
        """Bytes to be copied as they are."""
        self.constants += data

    def stamp(self, digits: int) -> None:
        """Room for the build time."""
        self.stamps.append(len(self.constants))
        self.constants += b"0" * digits

    def piece(self, form: int, cell: int = 0, image: int = NEW, param: int = 0, quoted: bool = False) -> None:
        """The waiting text, then a value."""
        words = [self.waiting, len(self.constants) - self.waiting, form, cell, image, param, int(quoted)]
        self.pieces.append(words + [0] * (kernels.PIECE_WORDS - len(words)))
        self.waiting = len(self.constants)

    def flush(self) -> None:
        """The waiting text alone."""
        if len(self.constants) > self.waiting:
            self.piece(kernels.CONSTANT)

    def only_changed(self, opening: bytes, close: int) -> None:
        """Make the last piece one that is left out when its value did not change."""
        at = len(self.constants)
        self.constants += opening
        self.waiting = len(self.constants)
        self.pieces[-1][7:11] = [1, at, len(opening), close]


def open_shape(column: Column, flag: int) -> Shape:
    """How open-protocol writes a column (facts 1.5)."""
    if column.kind in _NUMBERS:
        return Shape(_NUMBERS[column.kind], 0, False)
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        single = column.kind is Kind.FLOAT
        return Shape(kernels.FLOAT_JSON if single else kernels.DOUBLE_JSON, 0, False)
    if column.kind in _TEXTS:
        return _text_shape(column, std=1)
    if column.mysql_type in BLOB_TYPES:
        return Shape(kernels.BASE64, 0, True)
    return Shape(kernels.QUOTED if flag & BINARY_FLAG else kernels.TEXT, 1, True)


def canal_shape(column: Column) -> Shape:
    """How canal-json writes a column (facts 2.3)."""
    if column.kind in _NUMBERS:
        return Shape(_NUMBERS[column.kind], 0, True)
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        single = column.kind is Kind.FLOAT
        return Shape(kernels.FLOAT_FIXED if single else kernels.DOUBLE_FIXED, 0, True)
    if column.kind in _TEXTS:
        return _text_shape(column, std=0)
    return Shape(kernels.LATIN1 if canal_json.is_binary(column) else kernels.TEXT, 0, True)


def _text_shape(column: Column, std: int) -> Shape:
    param = max(column.decimal, 0) if column.kind in _WITH_FSP else std
    return Shape(_TEXTS[column.kind], param, True)


class _OpenPlan:
    """Open-protocol's pieces of a table."""

    def __init__(self, builder: _Builder, table: TableSchema, options: CodecOptions) -> None:
        self._builder, self._table, self._options = builder, table, options
        pairs = zip(table.columns, table.ticdc_flags, strict=True)
        self.shapes = [open_shape(column, flag) for column, flag in pairs]
        self._sorted = open_protocol.sorted_columns(table)

    def operation(self, op: int) -> None:
        """All pieces of one operation."""
        if op == DELETE:
            only_key = self._options.delete_only_output_handle_key_columns
            flags = self._table.ticdc_flags
            shown = [i for i in self._sorted if not only_key or flags[i] & HANDLE_KEY_FLAG]
            self._image(b'{"d":{', shown, OLD)
            self._builder.text(b"}}}")
        else:
            self._image(b'{"u":{', self._sorted, NEW)
            if op == UPDATE and self._options.open_output_old_value:
                self._before()
            else:
                self._builder.text(b"}}}")
        self._builder.flush()

    def _before(self) -> None:
        if not self._options.only_output_updated_columns:
            self._image(b'}},"p":{', self._sorted, OLD)
            self._builder.text(b"}}}")
            return
        self._builder.text(b"}}")
        self._builder.flush()
        for i in self._sorted:
            self._cell(b",", i, OLD)
            self._builder.only_changed(b',"p":{', ord("}"))
        self._builder.text(b"}")
        self._builder.piece(kernels.GROUP_END)
        self._builder.text(b"}")

    def _image(self, opening: bytes, shown: Sequence[int], image: int) -> None:
        for i in shown:
            self._cell(opening, i, image)
            opening = b"},"

    def _cell(self, before: bytes, i: int, image: int) -> None:
        column, flag, shape = self._table.columns[i], self._table.ticdc_flags[i], self.shapes[i]
        mark = b',"h":true' if flag & HANDLE_KEY_FLAG else b""
        head = b'%s:{"t":%d%s,"f":%d,"v":' % (std_string(column.name.encode()), column.mysql_type, mark, flag)
        self._builder.text(before + head + (b'"' if shape.quoted else b""))
        self._builder.piece(shape.form, i, image, shape.param, shape.quoted)


class _CanalPlan:
    """Canal-json's pieces of a table."""

    def __init__(self, builder: _Builder, table: TableSchema, options: CodecOptions, digits: int) -> None:
        self._builder, self._table, self._options, self._digits = builder, table, options, digits
        self.shapes = [canal_shape(column) for column in table.columns]

    def operation(self, op: int) -> None:
        """All pieces of one operation."""
        builder, options = self._builder, self._options
        image = OLD if op == DELETE else NEW
        only_key = op == DELETE and options.delete_only_output_handle_key_columns
        flags = self._table.ticdc_flags
        shown = [i for i, flag in enumerate(flags) if not only_key or flag & HANDLE_KEY_FLAG]
        builder.text(canal_json.head(self._table) + (b"", b"INSERT", b"UPDATE", b"DELETE")[op] + b'","es":')
        builder.piece(kernels.MILLISECONDS)
        builder.text(b',"ts":')
        builder.stamp(self._digits)
        builder.text(b',"sql":"","sqlType":')
        self._java_types(shown, image)
        types = canal_json.CanalJsonEncoder(options).mysql_types(self._table, shown)
        builder.text(b',"mysqlType":' + types + b',"old":')
        self._old(op)
        builder.text(b',"data":[{')
        self._image(shown, image)
        builder.text(b"}]")
        if options.enable_tidb_extension:
            builder.text(b',"_tidb":{"commitTs":')
            builder.piece(kernels.COMMIT_TS)
            builder.text(b"}")
        builder.text(b"}")
        builder.flush()

    def _old(self, op: int) -> None:
        if op != UPDATE:
            self._builder.text(b"null")
            return
        everything = range(len(self._table.columns))
        self._builder.text(b"[{")
        if self._options.only_output_updated_columns or self._options.content_compatible:
            self._builder.flush()
            for i in everything:
                self._builder.text(b",")
                self._cell(i, OLD)
                self._builder.only_changed(b"", 0)
            self._builder.piece(kernels.GROUP_END)
        else:
            self._image(everything, OLD)
        self._builder.text(b"}]")

    def _image(self, shown: Sequence[int], image: int) -> None:
        for number, i in enumerate(shown):
            self._builder.text(b"," if number else b"")
            self._cell(i, image)

    def _cell(self, i: int, image: int) -> None:
        shape = self.shapes[i]
        self._builder.text(easy_string(self._table.columns[i].name.encode()) + b':"')
        self._builder.piece(shape.form, i, image, shape.param, quoted=True)

    def _java_types(self, shown: Sequence[int], image: int) -> None:
        if not shown:
            self._builder.text(b"null")
            return
        opening = b"{"
        for i in shown:
            column = self._table.columns[i]
            self._builder.text(opening + easy_string(column.name.encode()) + b":")
            plain = canal_json.java_type(column, None)
            if column.unsigned and column.mysql_type in canal_json.PROMOTED:
                limit, promoted = canal_json.PROMOTED[column.mysql_type]
                words = (int.from_bytes(b"%d" % code, "little") for code in (plain, promoted))
                normal, high = words
                self._builder.piece(
                    kernels.PROMOTED, i, image, limit.bit_length() << 32 | normal << 16 | high
                )
            else:
                self._builder.text(b"%d" % plain)
            opening = b","
        self._builder.text(b"}")


_plans: WeakKeyDictionary[TableSchema, dict[tuple[CodecOptions, int], Plan]] = WeakKeyDictionary()
MAX_PLANS: Final = 16
"""Plans kept for one table version (options and length of the build time differ)."""


def plan_of(table: TableSchema, options: CodecOptions, build_ms: int) -> Plan:
    """The plan of a table version, made once."""
    digits = len(str(build_ms))
    plans = _plans.setdefault(table, {})
    plan = plans.get((options, digits))
    if plan is None:
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plan = plans[options, digits] = _make(table, options, digits)
    return plan


def _make(table: TableSchema, options: CodecOptions, digits: int) -> Plan:
    builder = _Builder()
    is_open = options.protocol == OPEN_PROTOCOL
    maker = _OpenPlan(builder, table, options) if is_open else _CanalPlan(builder, table, options, digits)
    first = [0, 0]
    for op in _OPERATIONS:
        maker.operation(op)
        first.append(len(builder.pieces))
    head = _key_head(table)
    builder.text(head)
    pieces = np.array(builder.pieces, dtype=np.int64).reshape(-1, kernels.PIECE_WORDS)
    parts = [pieces[first[op] : first[op + 1]] for op in range(4)]
    forms = [shape.form for shape in maker.shapes]
    growing = [
        (i, kernels.VALUE_FACTOR[form]) for i, form in enumerate(forms) if form in kernels.VALUE_FACTOR
    ]
    return Plan(
        constants=bytes(builder.constants),
        stamps=tuple(builder.stamps),
        stamp_digits=digits,
        pieces=pieces,
        first=tuple(first),
        fixed=np.array([_fixed(part) for part in parts], dtype=np.int64),
        typical=np.array([_typical(part) for part in parts], dtype=np.int64),
        variables=np.array([len(growing), *(word for pair in growing for word in pair)], dtype=np.int64),
        key_head=(len(builder.constants) - len(head), len(head)),
        quoted=kernels.QUOTED in forms,
        json_columns=kernels.JSON in forms,
        zoned=tuple(i for i, column in enumerate(table.columns) if column.kind is Kind.TIMESTAMP),
    )


def _key_head(table: TableSchema) -> bytes:
    schema = b',"scm":' + std_string(table.schema.encode()) if table.schema else b""
    return schema + (b',"tbl":' + std_string(table.table.encode()) if table.table else b"")


def _fixed(part: Int64s) -> int:
    """The bound of an operation without what values of variable size need per byte, and the framing."""
    sizes = sum(kernels.FIXED_SIZE.get(int(piece[2]), 64) + 4 for piece in part)
    return int(part[:, 1].sum() + part[:, 9].sum()) + sizes + 128


def _typical(part: Int64s) -> int:
    return int(part[:, 1].sum() + part[:, 9].sum()) + 12 * len(part) + 8
