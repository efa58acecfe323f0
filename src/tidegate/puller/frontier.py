"""The smallest resolved ts of each span: one mark per range, in arrays that compiled code works on.

Every registered range of a span holds a *mark*; all unregistered parts of the span together hold one more.
Marks are raised in arrays, because one message of a store names thousands of regions. The minimum of a span
never goes back: a caller that replaces a mark makes the new one before it releases the old. A mark contains a
serial number. A batch in progress may still name a mark that was released and whose place another mark uses
now; the serial number then differs, and the batch does not raise the new mark.

Cost: raising a mark takes a few nanoseconds, or a pass over 256 places if it was the smallest of its chunk;
the minimum of a span with 100,000 ranges is a pass over 400 chunks (`frontier_kernels`). Not thread-safe: the
puller guards it with one lock, held for microseconds.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.model.timestamp import Timestamp
from tidegate.puller import frontier_kernels as k

_CHUNK_MAX: Final = 256


class Frontier:
    """All marks, each with its span and ts."""

    def __init__(self) -> None:
        self._ts = np.full(64, k.FREE, dtype=np.uint64)
        self._owners = np.zeros((64, k.OWNER_WORDS), dtype=np.int64)
        self._places = 0
        self._chunks = np.zeros((16, k.CHUNK_WORDS), dtype=np.int64)
        self._chunk_least = np.full(16, k.FREE, dtype=np.uint64)
        self._chunk_count = 0
        self._idle: dict[int, list[int]] = {}  # chunks that no span uses, by size
        self._unused: dict[int, list[int]] = {}  # unused places of the spans' chunks, by span
        self._heads = np.full(16, -1, dtype=np.int64)
        self._stale = np.zeros(16, dtype=np.int64)
        self._least = np.full(16, k.FREE, dtype=np.uint64)

    def hold(self, span: int, ts: Timestamp) -> int:
        """Make a new mark for span number `span` (small numbers from 0 on)."""
        while span >= len(self._heads):
            self._heads = _doubled(self._heads, -1)
            self._stale = _doubled(self._stale, 0)
            self._least = _doubled(self._least, k.FREE)
        unused = self._unused.setdefault(span, [])
        if not unused:
            self._add_chunk(span, unused)
        place = unused.pop()
        self._chunks[self._owners[place, k.O_CHUNK], k.K_USED] += 1
        self._set(place, ts)
        return int(self._owners[place, k.O_SERIAL]) << k.SERIAL_AT | place

    def release(self, mark: int) -> Timestamp:
        """Release a mark and return its last ts. From now on `advance` ignores it."""
        place = self._place(mark)
        ts = int(self._ts[place])
        self._set(place, int(k.FREE))
        # From here on a batch that still names the mark finds another serial number and changes nothing.
        self._owners[place, k.O_SERIAL] += 1
        chunk = int(self._owners[place, k.O_CHUNK])
        span = int(self._chunks[chunk, k.K_SPAN])
        self._unused[span].append(place)
        self._chunks[chunk, k.K_USED] -= 1
        if not self._chunks[chunk, k.K_USED]:
            self._drop_chunk(span, chunk)
        return ts

    def put(self, mark: int, ts: Timestamp | None) -> None:
        """Set a mark to any ts; None: the mark no longer limits the span's minimum."""
        self._set(self._place(mark), int(k.FREE) if ts is None else ts)

    def at(self, mark: int) -> Timestamp:
        """The ts of a mark; MAX if it was released."""
        place = mark & k.PLACE
        same = self._owners[place, k.O_SERIAL] == mark >> k.SERIAL_AT
        return int(self._ts[place] if same else k.FREE)

    def advance(self, marks: npt.NDArray[np.int64], resolved: npt.NDArray[np.uint64]) -> None:
        """Raise marks[i] to resolved[i]. Lower values and released marks are ignored."""
        k.advance(marks, resolved, self._ts, self._owners, self._chunks, self._chunk_least, self._stale)

    def minima(self, spans: int) -> npt.NDArray[np.uint64]:
        """The smallest ts of each of the spans 0..spans-1; MAX for a span without marks."""
        known = min(spans, len(self._heads))
        k.minima(known, self._heads, self._chunks, self._chunk_least, self._stale, self._least)
        if known == spans:
            return self._least[:spans].copy()
        return np.concatenate([self._least, np.full(spans - known, k.FREE, dtype=np.uint64)])

    def below(self, span: int, ts: Timestamp) -> npt.NDArray[np.int64]:
        """The marks of a span below `ts`."""
        chunks, limit = self._chunks[: self._chunk_count, k.K_SPAN], np.uint64(ts)
        # Most chunks have no such mark, and their minimum says so. The places of an idle chunk are FREE.
        slow = (chunks == span) & (self._chunk_least[: self._chunk_count] < limit)
        if not slow.any():
            return np.empty(0, np.int64)
        owners, count = self._owners, self._places
        found = np.flatnonzero(slow[owners[:count, k.O_CHUNK]] & (self._ts[:count] < limit))
        marks: npt.NDArray[np.int64] = owners[found, k.O_SERIAL] << k.SERIAL_AT | found
        return marks

    def _place(self, mark: int) -> int:
        place = mark & k.PLACE
        assert self._owners[place, k.O_SERIAL] == mark >> k.SERIAL_AT, "the mark was released"
        return place

    def _set(self, place: int, ts: Timestamp) -> None:
        k.place_ts(self._ts, self._owners, self._chunks, self._chunk_least, self._stale, place, np.uint64(ts))

    def _add_chunk(self, span: int, unused: list[int]) -> None:
        """Add a chunk of places to a span: first a small one, because most spans have few ranges."""
        head = int(self._heads[span])
        # Four times the last one, so a small span has few places and a large one few chunks.
        size = 1 if head < 0 else min(_CHUNK_MAX, 4 * int(self._chunks[head, k.K_SIZE]))
        idle = self._idle.get(size)
        chunk = idle.pop() if idle else self._new_chunk(size)
        line = self._chunks[chunk]
        line[k.K_SPAN], line[k.K_NEXT] = span, head
        self._heads[span] = chunk
        first = int(line[k.K_FIRST])
        # Descending, because `pop` takes the last: a chunk fills from its beginning.
        unused += range(first + size - 1, first - 1, -1)

    def _new_chunk(self, size: int) -> int:
        chunk, self._chunk_count = self._chunk_count, self._chunk_count + 1
        if chunk >= len(self._chunks):
            self._chunks = np.vstack([self._chunks, np.zeros_like(self._chunks)])
            self._chunk_least = _doubled(self._chunk_least, k.FREE)
        first, self._places = self._places, self._places + size
        while self._places > len(self._ts):
            self._ts, self._owners = _doubled(self._ts, k.FREE), _doubled(self._owners, 0)
        self._owners[first : first + size, k.O_CHUNK] = chunk
        line = self._chunks[chunk]
        line[k.K_FIRST], line[k.K_SIZE], line[k.K_USED] = first, size, 0
        return chunk

    def _drop_chunk(self, span: int, chunk: int) -> None:
        """Take an empty chunk from a span for reuse by others, if it is the first of the span's chain."""
        # The chain has links in one direction only. An empty chunk in its middle stays, and its places are
        # used again.
        if self._heads[span] != chunk:
            return
        line = self._chunks[chunk]
        self._heads[span] = line[k.K_NEXT]
        first, size = int(line[k.K_FIRST]), int(line[k.K_SIZE])
        # Its places must not be given to this span any more: the chunk may belong to another span soon.
        self._unused[span] = [p for p in self._unused[span] if not first <= p < first + size]
        self._idle.setdefault(size, []).append(chunk)
        self._stale[span] = 1
        following = int(self._heads[span])
        if following < 0:
            del self._unused[span]
        elif not self._chunks[following, k.K_USED]:
            self._drop_chunk(span, following)


def _doubled(array: npt.NDArray[Any], fill: Any) -> npt.NDArray[Any]:
    return np.concatenate([array, np.full_like(array, fill)])
