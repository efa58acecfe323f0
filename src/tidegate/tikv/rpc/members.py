"""The members of the embedded PD: a gRPC server each behind a port of its own (`front`); the leader's serves.

A follower answers GetMembers, and refuses the rest as PD does (`ErrNotLeader`: UNAVAILABLE, "not leader").
All members are this process and one state: what can be tried with them is how a client finds a new leader.
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
    """Members 1 to n; member 1 leads at first. Thread-safe."""

    def __init__(self, new_server: NewServer, listen: Listen, tls: Tls | None = None) -> None:
        self._new_server, self._listen, self._tls = new_server, listen, tls
        self._lock = threading.Lock()
        self._servers: list[grpc.Server] = []
        self._fronts: list[Front] = []
        self._pages: list[PageServer] = []
        self._handlers: Sequence[grpc.GenericRpcHandler] = ()
        self.addresses: list[str] = []
        """`host:port` by member, the first at 0."""
        self.leader = 1
        """Its number."""

    def bind(self, addresses: Sequence[str]) -> None:
        """Take the addresses, of port 0 a free one. Raises InvalidInput when one is taken."""
        for address in addresses:
            front = Front(address)
            self._fronts.append(front)
            self.addresses.append(front.address)
            server = self._new_server((_LeaderOnly(self, len(self._servers) + 1),))
            self._listen(server, f"unix-abstract:{front.grpc}")
            self._servers.append(server)

    def serve(self, handlers: Sequence[grpc.GenericRpcHandler], page: Page) -> None:
        """Begin."""
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
        """Let another member lead. The old leader's connections are cut, as if it had been started anew."""
        with self._lock:
            if not 1 <= to <= len(self._servers):
                raise InvalidInput(f"PD has no member {to}", fix=f"name one of 1 to {len(self._servers)}")
            old, self.leader = self.leader, to
            if old == to:
                return
            self._servers[old - 1].stop(None).wait()
            server = self._new_server((_LeaderOnly(self, old),))
            self._listen(server, f"unix-abstract:{self._fronts[old - 1].grpc}")
            server.add_generic_rpc_handlers(tuple(self._handlers))
            server.start()
            self._servers[old - 1] = server

    def stop(self, grace_s: float) -> list[threading.Event]:
        """End all; an event each is set when its calls have ended."""
        with self._lock:
            ended = [server.stop(grace_s) for server in self._servers]
            for event in ended:
                event.wait()  # before the ports: what is answered within the grace still arrives
            for front in self._fronts:
                front.stop()
            for pages in self._pages:
                pages.stop()
            return ended


class _LeaderOnly(grpc.ServerInterceptor):
    """Refuses what a follower does not answer."""

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
