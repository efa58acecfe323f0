"""The keys that a merge changes: which files may have them, by bounds, and which rows of a file do. Pure.

Iceberg and Delta share it. The caller knows the bounds that a file's metadata have for each key column.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.applying.net_effect import factorize

Numbers = npt.NDArray[np.int64]
Bounds = Callable[[int], tuple[Any, Any]]
"""The least and the greatest value that a file has in the n-th key column; None: not known."""


class ChangedKeys:
    """The keys of one merge."""

    def __init__(self, keys: pa.Table) -> None:
        """`keys`: distinct, without NULL, in the types of data files."""
        self._keys = keys
        first = keys[0]
        self._numbers: Numbers | None = None
        """The sorted keys, if the first column has numbers of at most 64 bits."""
        self._sorted: Sequence[Any] | Numbers
        if pa.types.is_integer(first.type):
            values = first.to_numpy().astype(np.int64)
            self._order = np.argsort(values, kind="stable")
            self._sorted = self._numbers = values[self._order]
        else:
            values = first.to_pylist()
            self._order = np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)
            self._sorted = [values[at] for at in self._order]

    @property
    def columns(self) -> pa.Schema:
        """The columns of the key."""
        return self._keys.schema

    def may_be_within(self, bounds: Bounds) -> bool:
        """Whether some key is within the bounds of a file's columns."""
        low, high = bounds(0)
        begin = 0 if low is None else bisect_left(self._sorted, low)
        end = len(self._sorted) if high is None else bisect_right(self._sorted, high)
        if begin >= end:
            return False
        if self._keys.num_columns == 1:
            return True
        # Only keys within the bounds of the first column are compared in the others.
        near = self._keys.take(pa.array(self._order[begin:end]))
        within = np.ones(near.num_rows, np.bool_)
        for at in range(1, self._keys.num_columns):
            low, high = bounds(at)
            column = near[at]
            if low is not None:
                within &= pc.greater_equal(column, pa.scalar(low, column.type)).to_numpy()
            if high is not None:
                within &= pc.less_equal(column, pa.scalar(high, column.type)).to_numpy()
        return bool(within.any())

    def found_in(self, rows: pa.Table) -> Numbers:
        """For each row, the index of its key; -1: its key is not among them."""
        held = rows.select(self._keys.column_names)
        if self._keys.num_columns == 1:
            if self._numbers is not None and rows.num_rows and not held[0].null_count:
                return self._number_found_in(held[0].to_numpy().astype(np.int64, copy=False), self._numbers)
            found = pc.index_in(held[0], value_set=self._keys[0].combine_chunks())
            return np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)
        codes = factorize(pa.concat_tables([self._keys, held]))
        mine = codes[: self._keys.num_rows]
        place = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        place[mine] = np.arange(len(mine))
        return place[codes[self._keys.num_rows :]]

    def _number_found_in(self, held: Numbers, keys: Numbers) -> Numbers:
        """The same for a key of one number. Compares only keys within the bounds of the rows."""
        begin, end = np.searchsorted(keys, held.min()), np.searchsorted(keys, held.max(), side="right")
        near, order = keys[begin:end], self._order[begin:end]
        found = np.full(len(held), -1, np.int64)
        # Compacted files are sorted by the key. A search for each key is cheaper there than for each row.
        if (held[1:] > held[:-1]).all():
            place = np.searchsorted(held, near)
            same = held[place] == near
            found[place[same]] = order[same]
        elif len(near):
            at = pc.fill_null(pc.index_in(pa.array(held), value_set=pa.array(near)), -1).to_numpy()
            found[at >= 0] = order[at[at >= 0]]
        return found
