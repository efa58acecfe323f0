"""Addresses of the tables that the kernels work on, and sizes of tables that grow.

numpy takes a microsecond to find an array's address, and a small batch needs dozens. So an address is cached
until `forget`. The array is kept with it, because otherwise another array could get the same `id`, and the
cache would return an address of freed memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tidegate.kernel import address
from tidegate.puller.match import table_kernels as k

Table = TypeVar("Table", bound=np.ndarray)


class Addresses:
    """The addresses of one matcher's tables. `forget` also releases tables that were replaced."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int]] = {}

    def at(self, table: Table, find: Callable[[Table], int] = address) -> int:
        """The table's address; computed by `find` if it is not cached."""
        known = self._known.get(id(table))
        if known is None:
            known = self._known[id(table)] = (table, find(table))
        return known[1]

    def forget(self) -> None:
        """Drop all cached addresses."""
        self._known.clear()


def longer(table: k.U64, rows: int) -> k.U64:
    """The table, or a copy of it with room for `rows`."""
    if len(table) >= rows:
        return table
    copy = np.zeros((power_of_two(rows), table.shape[1]), dtype=np.uint64)
    copy[: len(table)] = table
    return copy


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
