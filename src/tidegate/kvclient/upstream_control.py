"""Orders to the embedded upstream alone: regions split, merged, moved; and what shall go wrong.

Called by `tidegate upstream region` and `tidegate upstream fault`. Raises InvalidInput with the upstream's
own reason, and on a real cluster, which offers none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from tidegate.errors import InvalidInput
from tidegate.kvclient.channel import unavailable
from tidegate.kvclient.pd import PdClient
from tidegate.proto import tidegate_pb2 as pb
from tidegate.proto import tidegate_pb2_grpc

TIMEOUT_S: Final = 60.0
"""For one order; it waits behind what is being applied."""


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A region as it is after an order; bounds are encoded keys, `leader_store` 0 for none."""

    id: int
    start_key: bytes
    end_key: bytes
    version: int
    conf_ver: int
    leader_store: int
    term: int
    stores: tuple[int, ...]
    roles: tuple[str, ...]
    """Of the peers on `stores`: voter, learner, incoming voter, demoting voter."""


class UpstreamControl:
    """Orders over an open client of PD."""

    def __init__(self, pd: PdClient) -> None:
        self._pd = pd

    def split(self, region_id: int, at: Sequence[bytes]) -> list[RegionStatus]:
        """Split a region at encoded keys, in its middle without any; region 0: wherever the keys are."""
        return self._regions("Split", pb.SplitRequest(region_id=region_id, keys=at))

    def merge(self, source_id: int, target_id: int = 0) -> list[RegionStatus]:
        """Merge a region into a neighbour; 0: the next one, or the one before the last."""
        return self._regions("Merge", pb.MergeRequest(source_id=source_id, target_id=target_id))

    def transfer(self, region_id: int, store_id: int) -> list[RegionStatus]:
        """Let another store lead a region."""
        return self._regions("Transfer", pb.TransferRequest(region_id=region_id, store_id=store_id))

    def move(self, region_id: int, from_store: int, to_store: int) -> list[RegionStatus]:
        """Move a region's peer."""
        request = pb.MoveRequest(region_id=region_id, from_store=from_store, to_store=to_store)
        return self._regions("Move", request)

    def change_peers(
        self,
        region_id: int,
        voters: Sequence[int] = (),
        learners: Sequence[int] = (),
        removed: Sequence[int] = (),
        stay: bool = False,
    ) -> list[RegionStatus]:
        """Change the peers on these stores, several by way of a joint state; without any leave it."""
        request = pb.ChangePeersRequest(region_id=region_id, stay=stay)
        for wish, stores in (
            (pb.ChangePeersRequest.VOTER, voters),
            (pb.ChangePeersRequest.LEARNER, learners),
            (pb.ChangePeersRequest.REMOVE, removed),
        ):
            for store_id in stores:
                request.changes.add(wish=wish, store_id=store_id)
        return self._regions("ChangePeers", request)

    def fault(self, **setting: Any) -> list[tuple[str, str]]:
        """Set one field of `FaultRequest`, or none; all faults that are on, name and value."""
        found = self._ask("Fault", pb.FaultRequest(**setting))
        return [(each.name, each.value) for each in found.faults]

    def _regions(self, method: str, request: Any) -> list[RegionStatus]:
        return [
            RegionStatus(
                each.id,
                each.start_key,
                each.end_key,
                each.version,
                each.conf_ver,
                each.leader_store,
                each.term,
                tuple(each.stores),
                tuple(peer.role for peer in each.peers),
            )
            for each in self._ask(method, request).regions
        ]

    def _ask(self, method: str, request: Any) -> Any:
        self._pd.upstream_info()  # InvalidInput on a real cluster, patience with one that is about to start
        address = self._pd.leader_address
        stub = self._pd.channels.stub(address, tidegate_pb2_grpc.UpstreamStub)
        try:
            return getattr(stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidInput(str(error.details())) from error
            raise unavailable(f"the upstream did not carry out {method}", address, error) from error
