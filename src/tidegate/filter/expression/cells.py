"""The cells that an expression reads: columns of some rows of one image, as numpy and Arrow arrays.

Each column is converted once and cached, even if several expressions use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.filter.expression import plain
from tidegate.filter.expression.typed import Beyond
from tidegate.kernel import address, buffer
from tidegate.model.cells import NULL, Image
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.kernels import column as column_kernels
from tidegate.tidb.kernels.column import Text
from tidegate.tidb.kernels.json import JSON_GROWTH, STACK_WORDS
from tidegate.tidb.kernels.text import CellWords
from tidegate.tidb.types import temporal

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


class Cells:
    """The cells of `rows` (int64[n]; None: all rows) of an image. Each of these rows must have the image."""

    def __init__(self, table: TableSchema, image: Image, rows: Int64s | None, time_zone: str) -> None:
        self._table, self._image, self._rows, self._zone = table, image, rows, time_zone
        self._known: dict[tuple[str, int], Any] = {}

    def __len__(self) -> int:
        return len(self._image.words) if self._rows is None else len(self._rows)

    def column(self, position: int) -> Column:
        """A column of the table."""
        return self._table.columns[position]

    def _words(self, position: int) -> tuple[Int64s, npt.NDArray[np.int32]]:
        """The two words of a column's cells, contiguous."""
        key = ("words", position)
        if key not in self._known:
            words, sizes = self._image.words[:, position], self._image.sizes[:, position]
            if self._rows is not None:
                words, sizes = words[self._rows], sizes[self._rows]
            # Kernels get an address and read one word after another; they know no strides.
            self._known[key] = np.ascontiguousarray(words), np.ascontiguousarray(sizes)
        found: tuple[Int64s, npt.NDArray[np.int32]] = self._known[key]
        return found

    def nulls(self, position: int) -> Bools:
        """In which rows a column is NULL."""
        return np.equal(self._words(position)[1], NULL)

    def integers(self, position: int, *, unsigned: bool = False) -> npt.NDArray[Any]:
        """The values as integers: integers, numbers of enums, masks of sets, nanoseconds. int64 or uint64."""
        words = self._words(position)[0]
        return words.view(np.uint64) if unsigned else words

    def floats(self, position: int) -> npt.NDArray[np.float64]:
        """The values of a FLOAT or DOUBLE column."""
        words = np.where(self.nulls(position), 0, self._words(position)[0])
        return words.view(np.float64)

    def decimals(self, position: int, scale: int) -> npt.NDArray[Any]:
        """Decimals in units of 10**-scale: int64 if all fit, otherwise Python ints. Raises Beyond if one has
        more digits.
        """
        key = ("decimals", position)
        if key not in self._known:
            self._known[key] = self._decimals(position, scale)
        found: npt.NDArray[Any] = self._known[key]
        return found

    def _decimals(self, position: int, scale: int) -> npt.NDArray[Any]:
        words, sizes = self._words(position)
        n = len(words)
        numbers, valid = buffer(16 * n), np.empty(n, dtype=np.uint8)
        if column_kernels.decimals(
            n, address(words), address(sizes), scale, address(numbers), address(valid)
        ):
            raise Beyond
        pairs = numbers[: 16 * n].view(np.int64).reshape(n, 2)
        # A NULL gets the sign of its low half, so that it does not force the slow form.
        low, high = pairs[:, 0], np.where(valid == 0, pairs[:, 0] >> 63, pairs[:, 1])
        if (high == low >> 63).all():
            return np.where(valid == 0, 0, low)
        units: npt.NDArray[Any] = high.astype(np.object_) * (1 << 64) + low.view(np.uint64).astype(np.object_)
        units[valid == 0] = 0
        return units

    def texts(self, position: int) -> pa.Array:
        """Texts, binaries, or the names of enums and sets. Empty for NULL."""
        key = ("texts", position)
        if key not in self._known:
            column = self.column(position)
            made = self._names if column.kind in (Kind.ENUM, Kind.SET) else self._bytes
            self._known[key] = made(position)
        return self._known[key]

    def raw(self, position: int) -> pa.Array:
        """The bytes to which the cells point, as they are stored. Empty for NULL."""
        return self._bytes(position)

    def json(self, position: int) -> pa.Array:
        """The texts of JSON values. Empty for NULL."""
        key = ("json", position)
        if key not in self._known:
            self._known[key] = self._written(position, Text.JSON, JSON_GROWTH)
        return self._known[key]

    def _bytes(self, position: int) -> pa.Array:
        return self._written(position, Text.BYTES, 1)

    def _written(self, position: int, what: Text, growth: int) -> pa.Array:
        words, sizes = self._words(position)
        n = len(words)
        room = int(sizes[sizes != NULL].sum(dtype=np.int64)) * growth
        # Arrow's offsets have 32 bits.
        if room > np.iinfo(np.int32).max:
            raise Beyond
        out, ends = buffer(room), np.empty(n + 1, dtype=np.int32)
        valid, stack = np.empty(n, dtype=np.uint8), np.empty(STACK_WORDS, dtype=np.int64)
        column = column_kernels.Column(address(out), address(ends), address(valid))
        cells = CellWords(address(words), address(sizes), 1)
        used = column_kernels.texts(int(what), 0, n, cells, column, address(stack), 0)
        held = [None, pa.py_buffer(ends), pa.py_buffer(out[:used])]
        return pa.Array.from_buffers(pa.binary(), n, held)

    def _names(self, position: int) -> pa.Array:
        """The names of enums or sets, made once for each distinct number."""
        column = self.column(position)
        numbers = np.where(self.nulls(position), 0, self._words(position)[0]).view(np.uint64)
        different, at = np.unique(numbers, return_inverse=True)
        names = pa.array([plain.names(column, int(number)) for number in different], pa.binary())
        return names.take(pa.array(at))

    def moments(self, position: int) -> Int64s:
        """Packed times. TIMESTAMPs are converted to the feed's time zone, once for each distinct value."""
        key = ("moments", position)
        if key not in self._known:
            self._known[key] = self._moments(position)
        found: Int64s = self._known[key]
        return found

    def _moments(self, position: int) -> Int64s:
        packed = self._words(position)[0]
        if self.column(position).kind is not Kind.TIMESTAMP or self._zone.upper() == "UTC":
            return packed
        zone = temporal.zone(self._zone)
        # The word of a NULL has no meaning and may be no time at all. 0, the zero time, is never converted.
        different, at = np.unique(np.where(self.nulls(position), 0, packed), return_inverse=True)
        moved = [temporal.pack(temporal.in_zone(int(word), zone)) for word in different]
        return np.array(moved, dtype=np.int64)[at]
