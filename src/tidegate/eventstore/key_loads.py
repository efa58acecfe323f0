"""Which keys of a span have changed lately, and by how many bytes: for cuts by load.

    newest blocks of the span's segments --> a sample of their rows --> buckets of neighbouring keys

Only the last seconds count, even if the store holds more, such as for a changefeed that is far behind. A
caller that wants to know what lasts asks again later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.eventstore import store_view
from tidegate.eventstore.manifest import Manifest
from tidegate.eventstore.segment import Segment, SegmentInfo
from tidegate.model.timestamp import compose

BUCKETS_MAX: Final = 256
"""The most buckets of one answer."""
LATELY: Final = compose(30_000)
"""Older rows than this before the newest ones do not count: 30 s."""
BLOCKS_MAX: Final = 32
"""The most blocks that are read, each of 8 MiB at most; of more, some that are evenly spaced."""
ROWS_MAX: Final = 100_000
"""The most rows that are sorted. Sorting so many keys takes a tenth of a second."""
_TABLE_SIZE: Final = 9
"""The size of `t` and a table's id at the beginning of a key."""
KEY_WHOLE: Final = 64
"""A bucket that begins at a longer key begins at the shortest prefix which is above the key before it."""


@dataclass(frozen=True, slots=True)
class KeyLoads:
    """The changed bytes of neighbouring keys. Bucket i holds the keys from `starts[i]` to `starts[i + 1]`,
    the last one all that follow. Nothing below the first start has changed.
    """

    starts: tuple[bytes, ...] = ()
    """Ascending."""
    weights: tuple[int, ...] = ()
    """Bytes of keys, values and old values; as many as there are starts."""
    rows: int = 0
    """The number of rows that were looked at."""


def key_loads(store: Path, span_id: str) -> KeyLoads:
    """The loads of a span by key, as the newest rows in the store have them; empty if there are none.

    A row with much weight has a bucket of its own. Raises Retryable if the span has no manifest, and
    DamagedSegment.
    """
    keys: list[pa.Array] = []
    weights: list[npt.NDArray[np.int64]] = []
    manifest = store_view.read_manifest(store, span_id)
    chosen = _newest(manifest)
    share = ROWS_MAX / max(1, sum(info.blocks[index].rows for info, index in chosen))
    chance = np.random.default_rng(0)
    for batch in _batches(store / span_id, chosen):
        if share < 1:
            # At random, because a fixed step could meet only one kind of rows of transactions that are alike.
            places = np.flatnonzero(chance.random(batch.num_rows) < share)
            batch = batch.take(pa.array(places))
        keys.append(batch.column("key"))
        weights.append(_bytes_of(batch))
    return buckets(pa.chunked_array(keys, pa.binary()), np.concatenate(weights)) if keys else KeyLoads()


def buckets(keys: pa.ChunkedArray, weights: npt.NDArray[np.int64]) -> KeyLoads:
    """The buckets of some rows, given in any order; their weights are as equal as single keys allow."""
    if not len(keys):
        return KeyLoads()
    order = pc.sort_indices(keys)
    found, ordered = keys.take(order).combine_chunks(), weights[order.to_numpy()]
    is_other = pc.not_equal(found[1:], found[:-1]).to_numpy(zero_copy_only=False)
    firsts = np.concatenate(([0], 1 + np.flatnonzero(is_other)))
    each = np.add.reduceat(ordered, firsts)
    below = np.cumsum(each) - each
    parts = BUCKETS_MAX // 4
    edges = np.searchsorted(below, np.arange(parts) * (each.sum() / parts))
    # A key with more than such a part gets a bucket of its own, which its successor ends.
    heavy = np.flatnonzero(each * parts > each.sum())
    edges = np.unique(np.concatenate(([0], edges, heavy, heavy + 1, _tables(found.take(firsts)))))
    edges = edges[edges < len(each)]
    texts = [found[int(at)].as_py() for at in firsts[edges]]
    before = [found[int(at) - 1].as_py() if at else b"" for at in firsts[edges]]
    starts = tuple(map(_shortened, before, texts))
    return KeyLoads(starts, tuple(np.add.reduceat(each, edges).tolist()), len(keys))


def _tables(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The places at which the keys of another table begin; none if there are very many."""
    fronts = pc.binary_slice(keys, 0, _TABLE_SIZE)
    places = 1 + np.flatnonzero(pc.not_equal(fronts[1:], fronts[:-1]).to_numpy(zero_copy_only=False))
    return places if len(places) < BUCKETS_MAX // 4 else places[:0]


def _shortened(before: bytes, key: bytes) -> bytes:
    if len(key) <= KEY_WHOLE:
        return key
    pairs = enumerate(zip(before, key, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), len(before))
    return key[: max(KEY_WHOLE, same + 1)]


def _newest(manifest: Manifest) -> Sequence[tuple[SegmentInfo, int]]:
    """Some blocks with rows of the last seconds: a segment, and the index of the block in it."""
    since = max((info.last_ts for info in manifest.segments), default=0) - LATELY
    there = [
        (info, index)
        for info in manifest.segments
        for index, block in enumerate(info.blocks)
        if block.min_ts <= info.last_ts and block.max_ts > since
    ]
    return there[:: -(-len(there) // BLOCKS_MAX)] if there else []


def _batches(folder: Path, chosen: Sequence[tuple[SegmentInfo, int]]) -> Iterator[pa.RecordBatch]:
    opened: Segment | None = None
    for info, index in chosen:
        if opened is None or opened.info is not info:
            try:
                opened = Segment(folder, info)
            except FileNotFoundError:
                continue  # it was dropped or merged meanwhile; the others say enough
        yield opened.batch(index)


def _bytes_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    sizes = [pc.binary_length(batch.column(name)) for name in ("key", "value", "old_value")]
    columns = [one.to_numpy(zero_copy_only=False) for one in sizes]
    total: npt.NDArray[np.int64] = np.sum(columns, axis=0, dtype=np.int64)
    return total
