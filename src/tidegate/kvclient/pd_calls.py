"""Calls to PD: which member serves, retries with back-off, and PD's errors translated.

`PdClient` is composed of it. Only the leader among PD's members serves: it is looked up at the first call and
again after every failure, among the given addresses and those that PD has named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc

from tidegate.errors import InvalidInput, Retryable, TidegateError
from tidegate.kvclient.backoff import Backoff, Cause
from tidegate.kvclient.channel import ChannelPool, address_of, beginning, is_transient, unavailable
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.proto import pdpb_pb2_grpc
from tidegate.tls import Tls

T = TypeVar("T")
CALL_TIMEOUT_S: Final = 3.0
MEMBERS_MAX: Final = 16
"""PD addresses learned; a cluster has three to seven members."""


class PdCalls:
    """Calls to the PD cluster at `addr` = `host:port[,host:port...]`. Thread-safe.

    A call retries with back-off for at most `retry_s` seconds, then raises Retryable ("PD is unreachable").
    `tls`: the certificates, by default those of the environment (`tidegate.tls`).
    """

    def __init__(self, addr: str, retry_s: float, tls: Tls | None) -> None:
        """Raises InvalidInput if `addr` names no address, or asks for TLS and there is no certificate."""
        self._endpoints = [address_of(a) for a in addr.split(",") if a.strip()]
        if not self._endpoints:
            raise InvalidInput("no PD address is given", fix="give --pd HOST:PORT")
        tls = tls or Tls.from_environment()
        if tls is None and "https://" in addr:
            raise InvalidInput(
                "TLS needs the certificate of the cluster's CA",
                where=addr,
                fix="run tidegate --ca CA.pem [--cert CERT.pem --key KEY.pem] COMMAND",
            )
        self._learned: list[str] = []
        self.channels = ChannelPool(tls)
        self._retry_ms = int(retry_s * 1000)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._leader: str | None = None
        self.known_cluster_id = 0
        """The cluster id of PD's first answer; 0 before it. A request's header carries it."""

    @property
    def address(self) -> str:
        """The addresses as given, for messages."""
        return ",".join(self._endpoints)

    @property
    def leader_address(self) -> str:
        """`host:port` of the member that serves."""
        return self.call("GetMembers", lambda address: address)

    @property
    def cluster_id(self) -> int:
        """PD's cluster id; asked once."""
        if not self.known_cluster_id:
            self.call("GetMembers", lambda address: address)
        return self.known_cluster_id

    def pause(self, seconds: float) -> None:
        """Wait. Raises Retryable as soon as the client is closed."""
        if self._closed.wait(seconds):
            raise Retryable("the client was closed while it waited", where=self.address)

    def end(self) -> None:
        """Try no call again; callers that wait get Retryable."""
        self._closed.set()

    def unary(self, method: str, request: Any) -> Any:
        """Make one call to PD: set the header, retry, and translate PD's own errors."""
        return self.call(method, lambda address: self._ask(address, method, request))

    def _ask(self, address: str, method: str, request: Any) -> Any:
        request.header.cluster_id = self.known_cluster_id
        stub = self.channels.stub(address, pdpb_pb2_grpc.PDStub)
        response = getattr(stub, method)(request, timeout=CALL_TIMEOUT_S)
        raise_pd_error(method, address, response.header)
        return response

    def unary_if_known(self, method: str, request: Any) -> Any:
        """As `unary`, for a call that an older PD may not know; returns None then."""

        def attempt(address: str) -> Any:
            try:
                return self._ask(address, method, request)
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    return None
                raise

        return self.call(method, attempt)

    def call(self, method: str, attempt: Callable[[str], T]) -> T:
        """Run `attempt(leader address)` with retries within the budget."""
        backoff = Backoff(self._retry_ms)
        while True:
            try:
                with beginning(self.address):
                    return attempt(self._leader_address())
            except grpc.RpcError as error:
                if not is_transient(error):
                    raise _refused(method, self.address, error) from error
                failure: TidegateError = unavailable(f"PD is unreachable ({method})", self.address, error)
            except Retryable as error:
                failure = error
            # The error of the call, not that of a wait, says what happened.
            if self._closed.is_set():
                raise failure
            with self._lock:
                # Whatever failed, another member may be the leader by now.
                self._leader = None
            try:
                wait = backoff.next(Cause.PD)
            except Retryable:
                raise failure from None
            self.pause(wait)

    def _leader_address(self) -> str:
        with self._lock:
            if self._leader is not None:
                return self._leader
        last: grpc.RpcError | None = None
        for address in [*self._endpoints, *self._learned]:
            stub = self.channels.stub(address, pdpb_pb2_grpc.PDStub)
            try:
                response = stub.GetMembers(pdpb.GetMembersRequest(), timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                last = error
                continue
            return self._adopt(address, response)
        assert last is not None
        raise last

    def _adopt(self, asked: str, response: pdpb.GetMembersResponse) -> str:
        """Remember the leader, the members and the cluster id of a GetMembers answer.

        The address that answered stays the leader's if the leader lists it, even if it lists another first.
        """
        cluster_id = int(response.header.cluster_id)
        with self._lock:
            # Not retried: changes of two clusters must never be mixed in one event store.
            if self.known_cluster_id and cluster_id != self.known_cluster_id:
                raise InvalidInput(
                    "PD answers for another cluster than before",
                    where=asked,
                    why=f"cluster id {cluster_id}, before {self.known_cluster_id}",
                    fix="check the PD address",
                )
            self.known_cluster_id = cluster_id
            members = [address_of(url) for member in response.members for url in member.client_urls]
            # The given addresses stay first: they may reach PD where the addresses that it names for itself
            # do not.
            self._learned = [each for each in members if each not in self._endpoints][:MEMBERS_MAX]
            urls = list(response.leader.client_urls)
            leader = address_of(urls[0]) if urls else asked
            self._leader = asked if asked in [address_of(u) for u in urls] else leader
            return self._leader


def raise_pd_error(method: str, address: str, header: pdpb.ResponseHeader) -> None:
    """Raise Retryable if the header of an answer has an error."""
    if header.HasField("error") and header.error.type != pdpb.OK:
        raise Retryable(f"PD refused {method}", where=address, why=header.error.message)


def _refused(method: str, address: str, error: grpc.RpcError) -> InvalidInput:
    code = error.code() if isinstance(error, grpc.Call) else None
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    if code == grpc.StatusCode.UNIMPLEMENTED and method == "LoadKeyspace":
        return InvalidInput(
            "this PD has no keyspaces", where=address, fix="leave --keyspace out; they come with API V2"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return InvalidInput(
            f"the upstream does not offer {method}",
            where=address,
            fix="use an upstream that `tidegate upstream run` started",
        )
    if code == grpc.StatusCode.FAILED_PRECONDITION and method == "AdvanceTso":
        return InvalidInput(
            "this upstream's TSO follows the system's clock",
            where=address,
            fix="start the upstream with `--tso manual`, which recorded logs need",
        )
    return InvalidInput(f"PD refused {method}", where=address, why=f"{code}: {details}")
