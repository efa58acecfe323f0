"""The network side of the upstream's stores: a gRPC server for each running store, with its services.

    start: listen -> make the node -> it can lead regions -> serve ... --> kill, or refuse

A store that starts again listens at the address that it had, as a restarted TiKV does, because clients keep
the addresses that they know. `server.EmbeddedUpstream` decides when a store starts and stops, one at a time.
"""

from __future__ import annotations

import threading

import grpc

from tidegate.errors import InvalidInput
from tidegate.proto import cdcpb_pb2, tikvpb_pb2
from tidegate.tikv.node import Shared, StoreNode
from tidegate.tikv.pd.stores import StoreInfo, Stores
from tidegate.tikv.raft.region import STORE_ID
from tidegate.tikv.rpc.change_data_service import ChangeDataService
from tidegate.tikv.rpc.grpc_server import new_server
from tidegate.tikv.rpc.handlers import health, service
from tidegate.tikv.rpc.listener import Listener
from tidegate.tikv.rpc.tikv_service import TikvService


class StoreServers:
    """The servers of the stores that run. Not thread-safe."""

    def __init__(
        self, shared: Shared, stores: Stores, listener: Listener, host: str, first_port: int = 0
    ) -> None:
        """`first_port`: the port of the first store, which the others follow; 0: each has a free port."""
        self._shared, self._stores, self._listener = shared, stores, listener
        self._host, self._first_port = host, first_port
        self._servers: dict[int, grpc.Server] = {}

    def start(self, info: StoreInfo, status_address: str) -> None:
        """Make the node of a store that is down, and serve it. Raises InvalidInput if it cannot listen."""
        server = new_server()
        address = self._listen(server, info)
        node = StoreNode(info.id, self._shared)
        server.add_generic_rpc_handlers(
            (
                service(tikvpb_pb2, "Tikv", TikvService(node.store, self._shared.cluster_id)),
                service(cdcpb_pb2, "ChangeData", ChangeDataService(node.endpoint)),
                health(),
            )
        )
        node.start()
        self._stores.started(info.id, address, status_address)  # from now on it can become a leader
        server.start()
        self._servers[info.id] = server

    def kill(self, store_id: int) -> None:
        """End a store's server and node. Calls under way end without an answer."""
        ended = self._servers.pop(store_id).stop(None)
        self._shared.nodes[store_id].stop()
        ended.wait()

    def refuse(self, grace_s: float) -> list[threading.Event]:
        """Refuse new calls at all stores. Each event is set when the calls of one server have ended."""
        return [server.stop(grace_s) for server in self._servers.values()]

    def _listen(self, server: grpc.Server, info: StoreInfo) -> str:
        """Bind a store's server to its former address; at a new one if it had none or that is in use."""
        if self._first_port:
            port = self._first_port + info.id - STORE_ID
            return self._listener.bind(server, f"{self._host}:{port}", "choose another --store-port")
        if info.address:
            try:
                return self._listener.bind(server, info.address, "")
            except InvalidInput:
                return self._listener.bind(server, f"{self._host}:0", "")
        return self._listener.bind(server, f"{self._host}:0", "")
