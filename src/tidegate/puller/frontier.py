"""The smallest resolved ts of each span: one number per range, kept in arrays.

Every registered range of every span holds a *mark*; what is not registered holds one mark per span. Marks
rise by whole arrays (a tick of a server names thousands of regions) and the minimum of all spans is one
pass over the array, which for 10,000 ranges costs less than one heap operation in Python would for each of
them; no pass is made when no mark moved that held a minimum. The answer never goes back: a caller that
replaces marks makes the new one before it releases the old. Not thread-safe: the puller guards it with one
lock, held for microseconds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.model import timestamp
from tidegate.model.timestamp import Timestamp

_FREE: Final = np.uint64(timestamp.MAX)


class Frontier:
    """Marks with their span and ts."""

    def __init__(self) -> None:
        self._ts = np.full(64, _FREE, dtype=np.uint64)
        self._span = np.zeros(64, dtype=np.int64)
        self._unused = list(range(63, -1, -1))
        self._least = np.full(0, _FREE, dtype=np.uint64)
        self._stale = True
        """Whether a mark moved that may have held a minimum."""

    def hold(self, span: int, ts: Timestamp) -> int:
        """A new mark of span number `span` (small numbers from 0 on)."""
        if not self._unused:
            old = len(self._ts)
            self._ts = np.concatenate([self._ts, np.full(old, _FREE, dtype=np.uint64)])
            self._span = np.concatenate([self._span, np.zeros(old, dtype=np.int64)])
            self._unused = list(range(2 * old - 1, old - 1, -1))
        mark = self._unused.pop()
        self._ts[mark], self._span[mark] = ts, span
        self._stale = True
        return mark

    def release(self, mark: int) -> Timestamp:
        """Give a mark up; its last ts."""
        ts = int(self._ts[mark])
        self._ts[mark] = _FREE
        self._stale = True
        self._unused.append(mark)
        return ts

    def put(self, mark: int, ts: Timestamp | None) -> None:
        """Set a mark to any ts; None: it holds nothing back."""
        self._ts[mark] = _FREE if ts is None else ts
        self._stale = True

    def at(self, mark: int) -> Timestamp:
        """A mark's ts."""
        return int(self._ts[mark])

    def advance(self, marks: npt.NDArray[np.int64], resolved: npt.NDArray[np.uint64]) -> None:
        """Raise marks[i] to resolved[i]; a lower value does nothing. Equal marks must have equal values."""
        held = self._ts[marks]
        self._ts[marks] = np.where(held == _FREE, held, np.maximum(held, resolved))
        if not self._stale and len(self._least):
            spans = self._span[marks]
            self._stale = bool((held <= self._least[np.minimum(spans, len(self._least) - 1)]).any())

    def minima(self, spans: int) -> npt.NDArray[np.uint64]:
        """The least ts of each of the spans 0..spans-1; MAX for one without marks."""
        if self._stale or len(self._least) != spans:
            self._least = np.full(spans, _FREE, dtype=np.uint64)
            held = np.flatnonzero(self._ts != _FREE)
            np.minimum.at(self._least, self._span[held], self._ts[held])
            self._stale = False
        return self._least.copy()
