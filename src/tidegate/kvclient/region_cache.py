"""A cache of the regions by key; an entry stays until a store's error corrects it.

Thread-safe. Called by `region_request`; loads from PD through a given function. An epoch error drops the
entry or replaces it by the regions that the store named; a leader error replaces only the leader.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from tidegate.errors import Retryable
from tidegate.tidb.memcomparable import encode_bytes


@dataclass(frozen=True, slots=True)
class RegionInfo:
    """One region as PD or a store described it; keys are memcomparable-encoded, empty = infinity.

    `leader_peer_id` and `leader_store_id` are 0 if it has no leader.
    """

    id: int
    start_key: bytes
    end_key: bytes
    epoch_version: int
    conf_ver: int
    leader_peer_id: int
    leader_store_id: int

    def contains(self, encoded_key: bytes) -> bool:
        """Whether the encoded key is in the region."""
        return self.start_key <= encoded_key and (self.end_key == b"" or encoded_key < self.end_key)


LOAD_REGIONS: Final = 64
"""The number of regions fetched from PD at once, from the missing key on."""
MAX_REGIONS: Final = 200_000
"""When the cache would exceed this many entries (about 100 MiB), it is emptied first."""


class RegionCache:
    """Regions by start key; entries never overlap."""

    def __init__(self, load: Callable[[bytes, bytes, int], list[RegionInfo]]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._starts: list[bytes] = []
        self._regions: list[RegionInfo] = []
        self._start_of: dict[int, bytes] = {}

    def locate(self, key: bytes) -> RegionInfo:
        """The region of a raw key; asks PD if it is not cached. Raises Retryable if PD knows none."""
        return self._locate(encode_bytes(key))

    def locate_start(self, key: bytes) -> RegionInfo:
        """The region of a raw key, where an empty key means minus infinity."""
        return self._locate(encode_bytes(key) if key else b"")

    def group(self, keys: Iterable[bytes]) -> list[tuple[RegionInfo, list[bytes]]]:
        """Group raw keys by region; the order within a region is kept."""
        groups: dict[int, tuple[RegionInfo, list[bytes]]] = {}
        region: RegionInfo | None = None
        for key in keys:
            encoded = encode_bytes(key)
            # The next key is often in the same region, and then no search is needed.
            if region is None or not region.contains(encoded):
                region = self._locate(encoded)
            groups.setdefault(region.id, (region, []))[1].append(key)
        return list(groups.values())

    def invalidate(self, region_id: int) -> None:
        """Forget a region: the next `locate` asks PD."""
        with self._lock:
            at = self._at(region_id)
            if at >= 0:
                del self._starts[at], self._regions[at], self._start_of[region_id]

    def set_leader(self, region_id: int, peer_id: int, store_id: int) -> None:
        """Set a region's leader, as a store reported it."""
        with self._lock:
            at = self._at(region_id)
            if at >= 0:
                region = self._regions[at]
                self._regions[at] = replace(region, leader_peer_id=peer_id, leader_store_id=store_id)

    def insert(self, region: RegionInfo) -> None:
        """Add a region and drop the entries that overlap it; ignored if one of those is newer."""
        with self._lock:
            self._insert(region)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear()

    def __len__(self) -> int:
        return len(self._regions)

    def _locate(self, encoded: bytes) -> RegionInfo:
        with self._lock:
            found = self._find(encoded)
        if found is not None:
            return found
        # Without the lock, because PD may be slow and other keys are cached.
        loaded = self._load(encoded, b"", LOAD_REGIONS)
        with self._lock:
            if len(self._regions) + len(loaded) > MAX_REGIONS:
                self._clear()
            for region in loaded:
                self._insert(region)
        for region in loaded:
            if region.contains(encoded):
                return region
        raise Retryable("PD knows no region for a key", why=f"encoded key {encoded.hex()}")

    def _find(self, encoded: bytes) -> RegionInfo | None:
        at = bisect_right(self._starts, encoded) - 1
        if at >= 0 and self._regions[at].contains(encoded):
            return self._regions[at]
        return None

    def _clear(self) -> None:
        self._starts, self._regions, self._start_of = [], [], {}

    def _at(self, region_id: int) -> int:
        """The index of a region; -1 if it is not cached."""
        start = self._start_of.get(region_id)
        return -1 if start is None else bisect_right(self._starts, start) - 1

    def _insert(self, region: RegionInfo) -> None:
        known = self._at(region.id)
        # PD may answer with an older state than a store has already reported.
        if known >= 0 and self._regions[known].epoch_version > region.epoch_version:
            return
        first = bisect_right(self._starts, region.start_key) - 1
        # The region that begins before may reach into this one; if it does not, the next is the first.
        if first < 0 or not _overlaps(self._regions[first], region):
            first += 1
        last = first
        while last < len(self._regions) and _overlaps(self._regions[last], region):
            # Nothing is dropped yet: a newer neighbour proves that this answer is out of date.
            if self._regions[last].epoch_version > region.epoch_version:
                return
            last += 1
        for gone in self._regions[first:last]:
            del self._start_of[gone.id]
        self._regions[first:last] = [region]
        self._starts[first:last] = [region.start_key]
        other = self._at(region.id)  # the same region as it was before its range changed
        if other >= 0:
            del self._regions[other], self._starts[other]
        self._start_of[region.id] = region.start_key


def _overlaps(a: RegionInfo, b: RegionInfo) -> bool:
    return (b.end_key == b"" or a.start_key < b.end_key) and (a.end_key == b"" or b.start_key < a.end_key)
