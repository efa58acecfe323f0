"""Which rows and messages are in a quarantine file already, so that a change that is read twice is kept once.

A file may have millions of entries. In memory each takes 12 bytes: its offset and its number in the message,
sorted by offset for each partition. New ones wait in a set until there are `FRESH_MAX` of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

BadPlace: TypeAlias = tuple[str, int, int, int]
"""Topic, partition, offset, and number within the message; the number -1 is the whole message."""
FRESH_MAX: Final = 10_000

_Offsets: TypeAlias = npt.NDArray[np.int64]
_Numbers: TypeAlias = npt.NDArray[np.int32]


def row_place(entry: Mapping[str, Any]) -> BadPlace:
    """Where the row or message of a quarantine entry is on the topic."""
    where = entry["where"]
    return where.get("topic", ""), where["partition"], where["offset"], where.get("seq", -1)


class KnownPlaces:
    """The places of entries; `len` is their number."""

    def __init__(self, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self._fresh = set[BadPlace]()
        # Not through `add`, which sorts again and again.
        read: dict[tuple[str, int], tuple[array[int], array[int]]] = {}
        for topic, partition, offset, number in map(row_place, entries):
            offsets, numbers = read.setdefault((topic, partition), (array("q"), array("i")))
            offsets.append(offset)
            numbers.append(number)
        self._sorted = {
            of: _sorted(np.array(offsets, np.int64), np.array(numbers, np.int32))
            for of, (offsets, numbers) in read.items()
        }

    def __len__(self) -> int:
        return len(self._fresh) + sum(len(offsets) for offsets, _ in self._sorted.values())

    def __contains__(self, place: BadPlace) -> bool:
        topic, partition, offset, number = place
        if place in self._fresh:
            return True
        if (topic, partition) not in self._sorted:
            return False
        offsets, numbers = self._sorted[topic, partition]
        begin, end = np.searchsorted(offsets, [offset, offset + 1])
        return bool((numbers[begin:end] == number).any())

    def add(self, places: Iterable[BadPlace]) -> None:
        """Add the places of new entries."""
        self._fresh.update(place for place in places if place not in self)
        if len(self._fresh) > FRESH_MAX:
            self._sort()

    def _sort(self) -> None:
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for topic, partition, offset, number in self._fresh:
            found.setdefault((topic, partition), []).append((offset, number))
        self._fresh.clear()
        for of, fresh in found.items():
            offsets, numbers = self._sorted.get(of, (np.zeros(0, np.int64), np.zeros(0, np.int32)))
            # Merged, because the others may be millions and are sorted already. None is in both. The numbers
            # of an offset need no order.
            new, number = np.array(sorted(fresh), np.int64).T
            at = np.searchsorted(offsets, new)
            self._sorted[of] = np.insert(offsets, at, new), np.insert(numbers, at, number)


def _sorted(offsets: _Offsets, numbers: _Numbers) -> tuple[_Offsets, _Numbers]:
    """The places in their order, each once."""
    order = np.lexsort((numbers, offsets))
    offsets, numbers = offsets[order], numbers[order]
    differs = np.ones(len(offsets), bool)
    differs[1:] = (offsets[1:] != offsets[:-1]) | (numbers[1:] != numbers[:-1])
    return offsets[differs], numbers[differs]
