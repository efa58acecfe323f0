"""The regions that tile the key space, by id and by key; and the refusal of requests for wrong regions.

Threads read the table without a lock, because a change makes a new state and replaces the old one in one
step. Only the apply thread changes it, after the change is durable and observers were notified. Refusals are
TiKV's, in TiKV's order (raftstore/src/store/peer.rs, util.rs): store, region, leader, peer, term, epoch.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidegate.proto import errorpb_pb2, kvrpcpb_pb2
from tidegate.tikv.raft.region import Region


class RegionError(Exception):
    """A request's region has changed; `error` is for the client."""

    def __init__(self, error: errorpb_pb2.Error) -> None:
        super().__init__(error.message)
        self.error = error


class RegionState(NamedTuple):
    """All regions at one moment, in key order."""

    regions: tuple[Region, ...]
    starts: list[bytes]
    by_id: Mapping[int, Region]

    def of_key(self, key: bytes) -> Region:
        """The region of an encoded key."""
        return self.regions[bisect.bisect_right(self.starts, key) - 1]

    def before(self, key: bytes) -> Region | None:
        """The region before the region of `key`; None if there is none."""
        at = bisect.bisect_right(self.starts, key) - 1
        return self.regions[at - 1] if at else None

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        """Regions that overlap [start, end) in order; at most `limit` of them if it is positive."""
        first = bisect.bisect_right(self.starts, start) - 1
        last = bisect.bisect_left(self.starts, end) if end else len(self.regions)
        # Cut before the copy: a caller that walks through 100,000 regions gets a page of them at a time.
        last = min(last, first + limit) if limit > 0 else last
        return list(self.regions[first : max(last, first)])


def _state(regions: Sequence[Region]) -> RegionState:
    assert regions[0].start == b""
    assert regions[-1].end == b""
    assert all(left.end == right.start for left, right in pairwise(regions))
    by_id = {region.id: region for region in regions}
    assert len(by_id) == len(regions)
    return RegionState(tuple(regions), [region.start for region in regions], by_id)


class RegionTable:
    """The current regions."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.state = _state(regions)
        """The current state. The object itself never changes."""

    @property
    def all(self) -> tuple[Region, ...]:
        """All regions in key order."""
        return self.state.regions

    @property
    def by_id(self) -> Mapping[int, Region]:
        """All regions by id."""
        return self.state.by_id

    def of_key(self, key: bytes) -> Region:
        """The region of an encoded key."""
        return self.state.of_key(key)

    def before(self, key: bytes) -> Region | None:
        """The region before the one of `key`."""
        return self.state.before(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        """Regions that overlap [start, end) in order; at most `limit` of them if it is positive."""
        return self.state.scan(start, end, limit)

    def replace(self, before: Iterable[Region], now: Iterable[Region]) -> None:
        """Replace neighbours by `now`, which covers the same keys. Only the apply thread calls it."""
        old, new = {region.id for region in before}, sorted(now, key=lambda region: region.start)
        regions, starts, by_id = self.state
        first = bisect.bisect_left(starts, new[0].start)
        last = first + len(old)
        assert {region.id for region in regions[first:last]} == old
        assert regions[last - 1].end == new[-1].end
        assert all(left.end == right.start for left, right in pairwise(new))
        ids = {number: region for number, region in by_id.items() if number not in old}
        ids |= {region.id: region for region in new}
        # A new object in one assignment: readers take no lock, and must see starts and regions of one moment.
        self.state = RegionState(
            (*regions[:first], *new, *regions[last:]),
            [*starts[:first], *(region.start for region in new), *starts[last:]],
            ids,
        )

    def check(
        self, context: kvrpcpb_pb2.Context, store_id: int, flashback: bool = False
    ) -> Region | errorpb_pb2.Error:
        """The region of a request to a store, or the error why it cannot be served.

        `flashback`: the request belongs to a flashback.
        """
        peer = context.peer
        if peer.store_id not in (store_id, 0):
            other = errorpb_pb2.StoreNotMatch(request_store_id=peer.store_id, actual_store_id=store_id)
            return errorpb_pb2.Error(message="this store has another id", store_not_match=other)
        region = self.state.by_id.get(context.region_id)
        if region is None or region.leader != store_id:
            return self._elsewhere(context.region_id, region, store_id)
        if peer.id and region.leader_peer is not None and peer.id != region.leader_peer.id:
            wrong = errorpb_pb2.MismatchPeerId(request_peer_id=peer.id, store_peer_id=region.leader_peer.id)
            return errorpb_pb2.Error(message="this store's peer has another id", mismatch_peer_id=wrong)
        # As in TiKV's `check_term` (components/raftstore/src/store/util.rs), a term that is one behind is
        # accepted.
        if context.term and context.term + 1 < region.term:
            return stale_command()
        if context.region_epoch.version != region.version:
            return self.epoch_not_match(region, context.region_epoch.version)
        if region.flashback and not flashback:
            return flashback_in_progress(region)
        return region

    def check_capture(self, region_id: int, version: int, store_id: int) -> Region | errorpb_pb2.Error:
        """The region of a registration at a store, or the error why the store cannot send its changes."""
        region = self.state.by_id.get(region_id)
        if region is None or region.leader != store_id:
            return self._elsewhere(region_id, region, store_id)
        if region.version != version:
            return self.epoch_not_match(region, version)
        if region.flashback:
            return flashback_in_progress(region)
        return region

    def refusal(self, was: Region) -> errorpb_pb2.Error | None:
        """The error if a write accepted for the region `was` can no longer be applied; otherwise None."""
        now = self.state.by_id.get(was.id)
        if now is was and not was.merging:
            return None
        if now is None:
            return region_not_found(was.id)
        if now.term != was.term:
            return stale_command()
        if now.version != was.version:
            return self.epoch_not_match(now, was.version)
        if now.flashback != was.flashback:
            return flashback_in_progress(now) if now.flashback else flashback_not_prepared(now)
        if now.merging:
            merging = errorpb_pb2.ProposalInMergingMode(region_id=now.id)
            return errorpb_pb2.Error(
                message=f"region {now.id} is being merged", proposal_in_merging_mode=merging
            )
        return None

    def epoch_not_match(self, region: Region, version: int) -> errorpb_pb2.Error:
        """The error, with the current region and those on its left split off since `version`."""
        found = [region.message]
        state = self.state
        at = bisect.bisect_right(state.starts, region.start) - 1
        # Each part that was split off has raised the version by one, so there are no more parts than that.
        for _ in range(max(0, min(region.version - version, at))):
            at -= 1
            if state.regions[at].version <= version:
                break
            found.append(state.regions[at].message)
        return errorpb_pb2.Error(
            message=f"region {region.id} is at version {region.version}, not {version}",
            epoch_not_match=errorpb_pb2.EpochNotMatch(current_regions=found),
        )

    def _elsewhere(self, region_id: int, region: Region | None, store_id: int) -> errorpb_pb2.Error:
        if region is None or region.peer_on(store_id) is None:
            return region_not_found(region_id)
        return not_leader(region)


def region_not_found(region_id: int) -> errorpb_pb2.Error:
    """The store has no peer of the region."""
    missing = errorpb_pb2.RegionNotFound(region_id=region_id)
    return errorpb_pb2.Error(message=f"region {region_id} not found", region_not_found=missing)


def not_leader(region: Region) -> errorpb_pb2.Error:
    """Another peer leads the region, or no peer."""
    other = errorpb_pb2.NotLeader(region_id=region.id, leader=region.leader_peer)
    return errorpb_pb2.Error(message=f"peer is not leader for region {region.id}", not_leader=other)


def stale_command() -> errorpb_pb2.Error:
    """The leader changed during the request."""
    return errorpb_pb2.Error(message="stale command", stale_command=errorpb_pb2.StaleCommand())


def max_ts_not_synced(region: Region) -> errorpb_pb2.Error:
    """The leader is new and has no timestamp from PD yet."""
    return errorpb_pb2.Error(
        message=f"max timestamp of region {region.id} is not synced with PD",
        max_timestamp_not_synced=errorpb_pb2.MaxTimestampNotSynced(),
    )


def flashback_in_progress(region: Region) -> errorpb_pb2.Error:
    """The region serves only a flashback."""
    held = errorpb_pb2.FlashbackInProgress(region_id=region.id, flashback_start_ts=region.flashback)
    return errorpb_pb2.Error(
        message=f"region {region.id} is in flashback progress", flashback_in_progress=held
    )


def flashback_not_prepared(region: Region) -> errorpb_pb2.Error:
    """The second phase of a flashback was requested without the first."""
    missing = errorpb_pb2.FlashbackNotPrepared(region_id=region.id)
    return errorpb_pb2.Error(
        message=f"region {region.id} is not prepared for the flashback", flashback_not_prepared=missing
    )


def server_is_busy(reason: str) -> errorpb_pb2.Error:
    """The client should retry later."""
    return errorpb_pb2.Error(message=reason, server_is_busy=errorpb_pb2.ServerIsBusy(reason=reason))


def key_not_in_region(key: bytes, region: Region) -> errorpb_pb2.Error:
    """The region error for a raw key outside its region."""
    outside = errorpb_pb2.KeyNotInRegion(
        key=key, region_id=region.id, start_key=region.start, end_key=region.end
    )
    return errorpb_pb2.Error(message="the key is not in the region", key_not_in_region=outside)
