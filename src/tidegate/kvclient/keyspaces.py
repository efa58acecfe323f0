"""The keyspaces of API V2, as PD keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc

from tidegate.errors import InvalidInput
from tidegate.kvclient.pd_calls import CALL_TIMEOUT_S, PdCalls, raise_pd_error
from tidegate.proto import keyspacepb_pb2 as keyspacepb
from tidegate.proto import keyspacepb_pb2_grpc
from tidegate.proto import pdpb_pb2 as pdpb

TSO_GROUP: Final = "tso_keyspace_group_id"
"""The member of a keyspace's configuration that names its group of TSO servers."""


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace of API V2, as PD keeps it."""

    id: int
    name: str
    tso_group: int
    """The group of TSO servers that gives it timestamps; 0 is the group whose timestamps PD itself gives."""


class Keyspaces:
    """The keyspaces of one cluster. Thread-safe."""

    def __init__(self, calls: PdCalls) -> None:
        self._calls = calls

    def named(self, name: str) -> Keyspace:
        """A keyspace of API V2. Raises InvalidInput if PD has none of that name, or it is not enabled."""
        request = keyspacepb.LoadKeyspaceRequest(name=name)

        def attempt(address: str) -> keyspacepb.KeyspaceMeta:
            request.header.cluster_id = self._calls.known_cluster_id
            stub = self._calls.channels.stub(address, keyspacepb_pb2_grpc.KeyspaceStub)
            response = stub.LoadKeyspace(request, timeout=CALL_TIMEOUT_S)
            if response.header.error.type == pdpb.ENTRY_NOT_FOUND:
                raise InvalidInput(
                    f"there is no keyspace '{name}'",
                    where=f"PD at {address}",
                    why=response.header.error.message,
                    fix="check the name, or give --keyspace-id",
                )
            raise_pd_error("LoadKeyspace", address, response.header)
            found: keyspacepb.KeyspaceMeta = response.keyspace
            return found

        found = self._calls.call("LoadKeyspace", attempt)
        if found.state != keyspacepb.ENABLED:
            raise InvalidInput(
                f"keyspace '{name}' is {keyspacepb.KeyspaceState.Name(found.state).lower()}",
                where=f"PD at {self._calls.address}",
                fix="enable it, or choose another keyspace",
            )
        return _keyspace(found)

    def of_id(self, keyspace_id: int) -> Keyspace | None:
        """A keyspace by its id; None if PD has none with it, or does not know keyspaces."""
        # PD has no call for one id. A list that begins at the id has it first, or begins with a larger one.
        request = keyspacepb.GetAllKeyspacesRequest(start_id=keyspace_id, limit=1)

        def attempt(address: str) -> keyspacepb.GetAllKeyspacesResponse:
            request.header.cluster_id = self._calls.known_cluster_id
            stub = self._calls.channels.stub(address, keyspacepb_pb2_grpc.KeyspaceStub)
            try:
                response = stub.GetAllKeyspaces(request, timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    return keyspacepb.GetAllKeyspacesResponse()
                raise
            raise_pd_error("GetAllKeyspaces", address, response.header)
            found: keyspacepb.GetAllKeyspacesResponse = response
            return found

        found = self._calls.call("GetAllKeyspaces", attempt).keyspaces
        # The list may begin with a larger id.
        return next((_keyspace(each) for each in found if each.id == keyspace_id), None)


def _keyspace(found: keyspacepb.KeyspaceMeta) -> Keyspace:
    group = found.config.get(TSO_GROUP, "")
    return Keyspace(int(found.id), found.name, int(group) if group.isdigit() else 0)
