"""The calls of `pdpb.PD` about regions: queries, splits and scattering.

This PD sees region changes at once, unless its view is held (a fault). Then it answers with the old regions,
like a PD whose heartbeats are late.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.proto import metapb_pb2
from tidegate.proto import pdpb_pb2 as pb
from tidegate.tikv.faults import Faults
from tidegate.tikv.pd.operators import Operators
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_table import RegionState, RegionTable

NO_LEADER = metapb_pb2.Peer()
FAR_PEER = 1 << 40
"""The ids of invented learner peers begin here."""


class PdRegions:
    """PD's view of the regions. Thread-safe."""

    def __init__(
        self, table: RegionTable, operators: Operators, header: pb.ResponseHeader, faults: Faults
    ) -> None:
        self._table = table
        self._faults = faults
        self._operators = operators
        self._header = header
        self._held: RegionState | None = None

    @property
    def view(self) -> RegionState:
        """The regions as PD reports them."""
        return self._held or self._table.state

    @property
    def is_held(self) -> bool:
        """Whether PD reports an old view."""
        return self._held is not None

    def hold(self) -> None:
        """Keep reporting the current view."""
        # States are immutable, so the old one costs nothing and cannot change while it is reported.
        self._held = self._table.state

    def release(self) -> None:
        """Report the actual regions again."""
        self._held = None

    def at(self, key: bytes) -> pb.GetRegionResponse:
        """The region of an encoded key."""
        return self._response(self.view.of_key(key))

    def before(self, key: bytes) -> pb.GetRegionResponse:
        """The region before the one of an encoded key."""
        return self._response(self.view.before(key))

    def by_id(self, region_id: int) -> pb.GetRegionResponse:
        """A region by its id; an answer without a region if there is none."""
        return self._response(self.view.by_id.get(region_id))

    def scan(self, start: bytes, end: bytes, limit: int) -> pb.ScanRegionsResponse:
        """Regions that overlap [start, end), in order."""
        found = self.view.scan(start, end, limit)
        return pb.ScanRegionsResponse(
            header=self._header,
            region_metas=[self._message(each) for each in found],
            # As PD: the list has a leader for each region, and an empty one where it knows none.
            leaders=[self._leader(each) or NO_LEADER for each in found],
            regions=[self._with_leader(each) for each in found],
        )

    def batch_scan(self, ranges: Sequence[pb.KeyRange], limit: int) -> pb.BatchScanRegionsResponse:
        """Regions that overlap any of the ascending ranges, each once."""
        view = self.view
        found: dict[int, Region] = {}
        for wanted in ranges:
            found |= {each.id: each for each in view.scan(wanted.start_key, wanted.end_key, limit)}
            if 0 < limit <= len(found):
                break
        listed = list(found.values())[: limit if limit > 0 else None]
        return pb.BatchScanRegionsResponse(
            header=self._header, regions=[self._with_leader(each) for each in listed]
        )

    def query(self, request: pb.QueryRegionRequest) -> pb.QueryRegionResponse:
        """The regions of many keys and ids; unknown ids are left out, keys are answered in order."""
        view = self.view
        of_keys = [view.of_key(key) for key in request.keys]
        before = [view.before(key) for key in request.prev_keys]
        by_id = [view.by_id.get(number) for number in request.ids]
        response = pb.QueryRegionResponse(
            header=self._header,
            key_id_map=[each.id for each in of_keys],
            prev_key_id_map=[0 if each is None else each.id for each in before],
        )
        for each in (*of_keys, *before, *by_id):
            if each is not None and each.id not in response.regions_by_id:
                found = response.regions_by_id[each.id]
                found.region.CopyFrom(self._message(each))
                if (leader := self._leader(each)) is not None:
                    found.leader.CopyFrom(leader)
        return response

    def split(self, at: Sequence[bytes]) -> list[int]:
        """Split the regions that hold these encoded keys; returns the ids of the regions that begin there."""
        return [region.id for region in self._operators.split_at(at)]

    def scatter(self, region_ids: Sequence[int]) -> int:
        """Spread the leaders of regions over the stores; returns the percentage of regions that exist."""
        found = [self._table.by_id[number] for number in region_ids if number in self._table.by_id]
        for i, region in enumerate(sorted(found, key=lambda each: each.start)):
            stores = sorted(region.voters)
            self._operators.transfer(region.id, stores[i % len(stores)])
        return 100 * len(found) // max(1, len(region_ids))

    def _response(self, region: Region | None) -> pb.GetRegionResponse:
        if region is None:
            return pb.GetRegionResponse(header=self._header)
        return pb.GetRegionResponse(
            header=self._header, region=self._message(region), leader=self._leader(region)
        )

    def _with_leader(self, region: Region) -> pb.Region:
        return pb.Region(region=self._message(region), leader=self._leader(region))

    def _leader(self, region: Region) -> metapb_pb2.Peer | None:
        return None if region.id in self._faults.leaderless else region.leader_peer

    def _message(self, region: Region) -> metapb_pb2.Region:
        store = self._faults.first_learner
        if not store:
            return region.message
        reported = metapb_pb2.Region()
        reported.CopyFrom(region.message)
        del reported.peers[:]
        # First in the list, to catch clients that take the first peer for one that serves them.
        reported.peers.add(id=FAR_PEER + region.id, store_id=store, role=metapb_pb2.Learner)
        reported.peers.extend(region.message.peers)
        return reported
