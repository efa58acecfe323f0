"""Raise marks, and find the smallest mark of each span: chunks of marks with their minimum, chained by span.

A chunk holds marks of one span only, in a range of places. When a mark rises, the chunk's minimum is computed
again only if the mark was that minimum; this is one pass over at most 256 places. The minimum of a span is
computed over its chunks only when it is requested and the minimum of one of its chunks has changed.
"""

from __future__ import annotations

import numpy as np

from tidegate.kernel import kernel
from tidegate.model import timestamp
from tidegate.puller.match.table_kernels import I64, U64

FREE = np.uint64(timestamp.MAX)
"""The ts of an unused place, which does not limit the minimum."""

SERIAL_AT, PLACE = 32, 0xFFFFFFFF
"""A mark has the serial number of its place from this bit on, and the place below it."""

CHUNK_WORDS = 5
K_FIRST, K_SIZE, K_SPAN, K_NEXT, K_USED = range(CHUNK_WORDS)
"""A chunk: its first place, how many it has, its span, the span's next chunk (-1: none), places in use."""

OWNER_WORDS = 2
O_SERIAL, O_CHUNK = range(OWNER_WORDS)
"""The owner of a place: the serial number of its mark, and the chunk to which the place belongs."""


# The arrays are arguments of their own. A call needs 0.7 us to unpack a tuple of arrays, so one that sets a
# single place would take twice as long.
@kernel
def place_ts(
    ts: U64, owners: I64, chunks: I64, chunk_least: U64, stale: I64, place: int, value: np.uint64
) -> None:
    """Set a place to any ts.

    Reads the chunk of the place. Writes `ts`, and if the chunk's minimum changed, `chunk_least` and the
    span's flag in `stale`. Bound: the places of one chunk, at most 256. Twin: the dictionary in
    `tests.puller.test_frontier.test_any_mix_of_moves_is_answered_as_a_plain_dictionary_does`.
    """
    ts[place] = value
    chunk = owners[place, O_CHUNK]
    least = FREE
    for i in range(chunks[chunk, K_FIRST], chunks[chunk, K_FIRST] + chunks[chunk, K_SIZE]):
        least = min(least, ts[i])
    if least != chunk_least[chunk]:
        chunk_least[chunk] = least
        stale[chunks[chunk, K_SPAN]] = 1


@kernel
def advance(
    marks: I64, resolved: U64, ts: U64, owners: I64, chunks: I64, chunk_least: U64, stale: I64
) -> None:
    """Raise marks; a mark with an older serial, an unused place or a lower ts changes nothing.

    Reads marks and serials. Writes `ts`, the minimum of chunks that rose, and `stale` for their spans. Bound:
    256 places for each mark. Twin: the dictionary in
    `tests.puller.test_frontier.test_any_mix_of_moves_is_answered_as_a_plain_dictionary_does`. Trick: a chunk
    is scanned only if the mark that rose was its minimum.
    """
    for n in range(len(marks)):
        place = marks[n] & PLACE
        # The mark was released while the batch was under way, and its place may have a new owner.
        if owners[place, O_SERIAL] != marks[n] >> SERIAL_AT:
            continue
        held = ts[place]
        if held == FREE or resolved[n] <= held:
            continue
        ts[place] = resolved[n]
        chunk = owners[place, O_CHUNK]
        if held == chunk_least[chunk]:
            least = FREE
            for i in range(chunks[chunk, K_FIRST], chunks[chunk, K_FIRST] + chunks[chunk, K_SIZE]):
                least = min(least, ts[i])
            # Another mark of the chunk may have the same ts; then the minimum stays.
            if least != held:
                chunk_least[chunk] = least
                stale[chunks[chunk, K_SPAN]] = 1


@kernel
def minima(spans: int, heads: I64, chunks: I64, chunk_least: U64, stale: I64, least: U64) -> None:
    """Bring the minimum of each span up to date.

    Reads the minima of chunks. Writes `least`, and clears `stale`. Bound: the chunks of spans that are stale.
    Twin: the dictionary in
    `tests.puller.test_frontier.test_the_minimum_of_each_span_is_that_of_a_plain_dictionary`. Trick: a span
    is skipped if no minimum of its chunks has changed.
    """
    for span in range(spans):
        if stale[span] == 0:
            continue
        stale[span] = 0
        found, chunk = FREE, heads[span]
        # Each chunk keeps its minimum, so a span costs a step for each chunk and not for each mark.
        while chunk >= 0:
            found = min(found, chunk_least[chunk])
            chunk = chunks[chunk, K_NEXT]
        least[span] = found


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    ts, one = np.full(4, FREE, np.uint64), np.zeros(4, np.int64)
    owners, chunks = np.zeros((4, OWNER_WORDS), np.int64), np.zeros((1, CHUNK_WORDS), np.int64)
    heads = np.full(4, -1, np.int64)
    place_ts(ts, owners, chunks, ts, one, 0, FREE)
    advance(one[:1], ts[:1], ts, owners, chunks, ts, one)
    minima(1, heads, chunks, ts, one, ts)
