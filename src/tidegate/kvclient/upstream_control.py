"""Commands for the embedded upstream only: split, merge and move regions, and inject faults.

Called by `tidegate upstream region` and `tidegate upstream fault`. Raises InvalidInput with the upstream's
own reason, and on a real cluster, which has no such commands.
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
"""The timeout of one command, which waits until earlier writes have been applied."""


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A region after a command; its bounds are encoded keys; `leader_store` 0: no leader."""

    id: int
    start_key: bytes
    end_key: bytes
    version: int
    conf_ver: int
    leader_store: int
    term: int
    stores: tuple[int, ...]
    roles: tuple[str, ...]
    """The roles of the peers on `stores`: voter, learner, incoming voter, demoting voter."""


class UpstreamControl:
    """Sends the commands through an open client of PD."""

    def __init__(self, pd: PdClient) -> None:
        self._pd = pd

    def split(self, region_id: int, at: Sequence[bytes]) -> list[RegionStatus]:
        """Split a region at encoded keys, by default in its middle; region 0: those that hold the keys."""
        return self._regions("Split", pb.SplitRequest(region_id=region_id, keys=at))

    def merge(self, source_id: int, target_id: int = 0) -> list[RegionStatus]:
        """Merge a region into a neighbour; target 0: the next region, or for the last one the one before."""
        return self._regions("Merge", pb.MergeRequest(source_id=source_id, target_id=target_id))

    def transfer(self, region_id: int, store_id: int) -> list[RegionStatus]:
        """Transfer the leadership of a region to another store."""
        return self._regions("Transfer", pb.TransferRequest(region_id=region_id, store_id=store_id))

    def move(self, region_id: int, from_store: int, to_store: int) -> list[RegionStatus]:
        """Move a region's peer from one store to another."""
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
        """Change peers on these stores, several through a joint state. Without any, leave that state."""
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
        """Set one field of `FaultRequest`, or none; returns all active faults as (name, value)."""
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
        self._pd.upstream_info()  # InvalidInput on a real cluster; waits for an upstream that is starting
        address = self._pd.leader_address
        stub = self._pd.channels.stub(address, tidegate_pb2_grpc.UpstreamStub)
        try:
            return getattr(stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidInput(str(error.details())) from error
            raise unavailable(f"the upstream did not carry out {method}", address, error) from error
