"""Up to which ts spans are received, for many spans at once.

A changefeed of tables that are far apart has up to a thousand spans, and looks at all of them at each tick.
One call for each span takes milliseconds, one array of all takes microseconds. A reader that looks at the
same spans again and again therefore keeps a `SpanOrder`, and a frontier that has its ts in an array returns
those of an order with one gather. `ts_of` also takes any other mapping, span by span.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tidegate.model.timestamp import Timestamp

TsArray = npt.NDArray[np.uint64]
"""[spans]: a ts for each span of an order."""
Places = npt.NDArray[np.intp]
"""[spans]: a place in some other array for each span of an order."""


class SpanOrder:
    """Span ids in one fixed order, which names the rows of arrays. Equal only to itself."""

    __slots__ = ("__weakref__", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(self.names)


class PlacesOf:
    """The places of spans in an array that others keep; those of each order are looked up once.

    Thread-safe: two threads at worst look up the same order.
    """

    def __init__(self, places: Mapping[str, int]) -> None:
        """`places`: span id -> place, never changed. A span that is missing has place 0."""
        self.by_name = places
        self._known: WeakKeyDictionary[SpanOrder, Places] = WeakKeyDictionary()

    def of(self, order: SpanOrder) -> Places:
        """The place of each span of an order."""
        found = self._known.get(order)
        if found is None:
            get = self.by_name.get
            found = np.fromiter((get(name, 0) for name in order.names), np.intp, len(order))
            self._known[order] = found
        return found


class TsBySpan(Mapping[str, Timestamp]):
    """Span id -> ts, also for all spans of an order at once. A span without a ts is missing."""

    @abstractmethod
    def ts_of(self, order: SpanOrder) -> TsArray:
        """The ts of each span of an order; 0 for one that has none. The caller may change the array."""


def ts_of(frontier: Mapping[str, Timestamp], order: SpanOrder) -> TsArray:
    """The ts of each span of an order; 0 for one that has none. The caller may change the array."""
    if isinstance(frontier, TsBySpan):
        return frontier.ts_of(order)
    return np.fromiter((frontier.get(name, 0) for name in order.names), np.uint64, len(order))
