"""Regions: an id, a key range, an epoch and one peer; and how the key space is split at first start."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tidegate.errors import InvalidInput
from tidegate.proto import errorpb_pb2, kvrpcpb_pb2, metapb_pb2
from tidegate.tikv import keys

STORE_ID: Final = 1
FIRST_REGION_ID: Final = 2
_SIGN: Final = 1 << 63
_FIRST_SPLIT_TABLE: Final = 118
_SPLIT_HANDLE: Final = 100


@dataclass(frozen=True, slots=True)
class Region:
    """A range of encoded keys [start, end); empty bounds are infinity."""

    id: int
    start: bytes
    end: bytes
    version: int = 1
    conf_ver: int = 1
    message: metapb_pb2.Region = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        assert not self.end or self.start < self.end
        message = metapb_pb2.Region(
            id=self.id,
            start_key=self.start,
            end_key=self.end,
            region_epoch=metapb_pb2.RegionEpoch(conf_ver=self.conf_ver, version=self.version),
            peers=[self.peer()],
        )
        object.__setattr__(self, "message", message)

    def peer(self) -> metapb_pb2.Peer:
        """The only peer, hence the leader."""
        return metapb_pb2.Peer(id=self.id + (1 << 32), store_id=STORE_ID)

    def contains(self, key: bytes) -> bool:
        """Whether an encoded key lies in the range."""
        return self.start <= key and (not self.end or key < self.end)


def split_keys(count: int) -> list[bytes]:
    """`count` - 1 encoded keys where tables of a TiDB cluster are likely to have rows.

    The first user tables of a new cluster have ids from 118 on, mostly every second one. Split points go
    from table to table, alternately inside the rows and at the table's start, so that tables of several
    regions and regions of several tables occur.
    """
    found = []
    for i in range(count - 1):
        table = _FIRST_SPLIT_TABLE + 2 * i
        key = b"t" + (table + _SIGN).to_bytes(8, "big")
        if i % 2 == 0:
            key += b"_r" + (_SPLIT_HANDLE + _SIGN).to_bytes(8, "big")
        found.append(keys.encode(key))
    return found


def split(boundaries: Sequence[bytes]) -> list[Region]:
    """The regions that ascending encoded boundaries make; n boundaries make n + 1 regions."""
    if any(left >= right for left, right in pairwise(boundaries)) or b"" in boundaries:
        raise InvalidInput("region split keys must ascend and not be empty")
    starts = [b"", *boundaries]
    ends = [*boundaries, b""]
    return [
        Region(FIRST_REGION_ID + i, start, end)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


class RegionTable:
    """The regions that tile the key space, by id and by key. Fixed for a data directory."""

    def __init__(self, regions: Sequence[Region]) -> None:
        assert regions[0].start == b""
        assert regions[-1].end == b""
        assert all(left.end == right.start for left, right in pairwise(regions))
        self.all = tuple(regions)
        self.by_id = {region.id: region for region in regions}
        self._starts = [region.start for region in regions]

    def of_key(self, key: bytes) -> Region:
        """The region of an encoded key."""
        return self.all[bisect.bisect_right(self._starts, key) - 1]

    def before(self, key: bytes) -> Region | None:
        """The region before the one of `key`."""
        at = bisect.bisect_right(self._starts, key) - 1
        return self.all[at - 1] if at else None

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        """Regions that overlap [start, end) in order; at most `limit` of them when it is positive."""
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, end) if end else len(self.all)
        found = self.all[first : max(last, first)]
        return list(found[:limit] if limit > 0 else found)

    def check(self, context: kvrpcpb_pb2.Context) -> Region | errorpb_pb2.Error:
        """The region a request is for, or why it cannot be served."""
        region = self.by_id.get(context.region_id)
        if region is None:
            missing = errorpb_pb2.RegionNotFound(region_id=context.region_id)
            return errorpb_pb2.Error(
                message=f"region {context.region_id} not found", region_not_found=missing
            )
        if context.peer.store_id not in (STORE_ID, 0):
            other = errorpb_pb2.StoreNotMatch(
                request_store_id=context.peer.store_id, actual_store_id=STORE_ID
            )
            return errorpb_pb2.Error(message="this store has another id", store_not_match=other)
        if context.region_epoch.version != region.version:
            stale = errorpb_pb2.EpochNotMatch(current_regions=[region.message])
            return errorpb_pb2.Error(message="the region's epoch is another", epoch_not_match=stale)
        return region


def key_not_in_region(key: bytes, region: Region) -> errorpb_pb2.Error:
    """The region error for a raw key outside its region."""
    outside = errorpb_pb2.KeyNotInRegion(
        key=key, region_id=region.id, start_key=region.start, end_key=region.end
    )
    return errorpb_pb2.Error(message="the key is not in the region", key_not_in_region=outside)
