"""The members of the embedded PD: a gRPC server each, behind its own port (`front`). The leader serves.

A follower answers GetMembers and refuses other calls as PD does (`ErrNotLeader`: UNAVAILABLE, "not leader").
All members are in this process and share one state; they exist to test how a client finds a new leader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from tidegate.errors import InvalidInput
from tidegate.tikv.rpc.front import Front
from tidegate.tikv.rpc.http_pages import Page, PageServer
from tidegate.tls import Tls

_EVERYONE: Final = ("/pdpb.PD/GetMembers", "/grpc.health.v1.Health/Check")

NewServer = Callable[[Sequence[grpc.ServerInterceptor]], grpc.Server]
Listen = Callable[[grpc.Server, str], object]


class PdMembers:
    """Members 1 to n; at first member 1 is the leader. Thread-safe."""

    def __init__(self, new_server: NewServer, listen: Listen, tls: Tls | None = None) -> None:
        self._new_server, self._listen, self._tls = new_server, listen, tls
        self._lock = threading.Lock()
        self._servers: list[grpc.Server] = []
        self._fronts: list[Front] = []
        self._pages: list[PageServer] = []
        self._handlers: Sequence[grpc.GenericRpcHandler] = ()
        self.addresses: list[str] = []
        """`host:port` of each member, in the order of their numbers."""
        self.leader = 1
        """The number of the leader."""

    def bind(self, addresses: Sequence[str]) -> None:
        """Listen at the addresses; port 0 means a free port. Raises InvalidInput if one is in use."""
        for address in addresses:
            front = Front(address)
            self._fronts.append(front)
            self.addresses.append(front.address)
            server = self._new_server((_LeaderOnly(self, len(self._servers) + 1),))
            self._listen(server, f"unix-abstract:{front.grpc}")
            self._servers.append(server)

    def serve(self, handlers: Sequence[grpc.GenericRpcHandler], page: Page) -> None:
        """Begin to serve."""
        self._handlers = handlers
        for server, front in zip(self._servers, self._fronts, strict=True):
            server.add_generic_rpc_handlers(tuple(handlers))
            server.start()
            self._pages.append(PageServer(front.http, page, self._tls))
            front.start()

    def server(self, member: int) -> grpc.Server:
        """A member's gRPC server."""
        return self._servers[member - 1]

    def transfer(self, to: int) -> None:
        """Make another member the leader. The old leader's connections are cut, as after a restart of it."""
        with self._lock:
            if not 1 <= to <= len(self._servers):
                raise InvalidInput(f"PD has no member {to}", fix=f"name one of 1 to {len(self._servers)}")
            # Changed first: a client whose connection is cut must not find that the old leader still leads.
            old, self.leader = self.leader, to
            if old == to:
                return
            self._servers[old - 1].stop(None).wait()
            server = self._new_server((_LeaderOnly(self, old),))
            # The same name: the member's front still passes connections to it.
            self._listen(server, f"unix-abstract:{self._fronts[old - 1].grpc}")
            server.add_generic_rpc_handlers(tuple(self._handlers))
            server.start()
            self._servers[old - 1] = server

    def stop(self, grace_s: float) -> list[threading.Event]:
        """Stop all members. Returns an event for each, which is set when its calls have ended."""
        with self._lock:
            ended = [server.stop(grace_s) for server in self._servers]
            for event in ended:
                event.wait()  # before the ports are closed, so answers within the grace period still arrive
            for front in self._fronts:
                front.stop()
            for pages in self._pages:
                pages.stop()
            return ended


class _LeaderOnly(grpc.ServerInterceptor):
    """Refuses the calls that a follower does not serve."""

    def __init__(self, members: PdMembers, member: int) -> None:
        self._members, self._member = members, member

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = continuation(handler_call_details)
        if (
            handler is None
            or self._member == self._members.leader
            or handler_call_details.method in _EVERYONE
        ):
            return handler
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(_not_leader, handler.request_deserializer, handler.response_serializer)


def _not_leader(_: Any, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")
