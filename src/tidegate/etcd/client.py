"""Calls to an etcd cluster (v3 API), repeated at any of its endpoints until one answers or time is up.

etcd's own proto files are the reference for the meaning of a call (etcd 3.4 and later, `rpc.proto`,
`kv.proto`). Every call here is linearizable. Thread-safe; calls block.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.kvclient.channel import ChannelPool, at_end, beginning
from tidegate.proto import etcdserverpb_pb2 as pb
from tidegate.proto import etcdserverpb_pb2_grpc as rpc
from tidegate.tls import Tls

T = TypeVar("T")

CALL_S: Final = 3.0
"""The time limit of one attempt. etcd itself fails a request that it cannot commit after 5 to 7 s."""
PATIENCE_S: Final = 10.0
PAUSE_S: Final = 0.1
HURRY_S: Final = 0.5
RECONNECT_MS: Final = 500
"""The longest pause between two attempts to connect: while etcd is away nothing is delivered."""
READ_S: Final = 0.5
"""How long to wait, after the end of a stream, for messages that came before the end."""
ELSEWHERE: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""Status codes after which another endpoint, or the same one later, may answer."""
REFUSED: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})


DATABASE_FULL: Final = "database space exceeded"
"""The details of an answer if etcd's database is full (etcd `api/v3rpc/rpctypes/error.go`, `ErrGRPCNoSpace`).
The code alone, RESOURCE_EXHAUSTED, also means too many requests.
"""


class Unanswered(Exception):
    """An attempt that ended without an answer; etcd may have carried out the request or not."""


class DatabaseFull(Unanswered):
    """etcd has raised its NOSPACE alarm: it refuses writes until a person has freed space and disarmed it."""


class EtcdClient:
    """A client of one cluster at `endpoints` = `[http[s]://]host:port[,...]`.

    `tls`: the certificates for https, by default those of the environment (`tidegate.tls`). An endpoint
    without a scheme uses TLS if there are certificates. Raises InvalidInput for endpoints that cannot be
    used.
    """

    def __init__(self, endpoints: str, *, tls: Tls | None = None, patience_s: float | None = None) -> None:
        self.endpoints, secure = parse_endpoints(endpoints)
        known = tls or Tls.from_environment()
        if secure and known is None:
            raise InvalidInput(
                "an https endpoint of etcd needs certificates, and none are given",
                where=endpoints,
                fix="give --ca, and --cert and --key if etcd asks for them (tidegate --help)",
            )
        self._pool = ChannelPool(known if secure or secure is None else None, reconnect_ms=RECONNECT_MS)
        self._patience_s, self._call_s = PATIENCE_S if patience_s is None else patience_s, CALL_S
        self._lock = threading.Lock()
        self._at = 0
        self._closed = False

    @property
    def where(self) -> str:
        """All endpoints, for errors."""
        return ",".join(self.endpoints)

    def range(self, key: bytes, end: bytes = b"", *, limit: int = 0, revision: int = 0) -> pb.RangeResponse:
        """One key, or those in [key, end). `revision` 0: the latest."""
        request = pb.RangeRequest(key=key, range_end=end, limit=limit, revision=revision)
        found: pb.RangeResponse = self._ask(lambda at: self._pool.stub(at, rpc.KVStub).Range, request)
        return found

    def try_txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """One attempt at a transaction. Raises Unanswered; the next attempt goes to another endpoint."""
        found: pb.TxnResponse = self._attempt(
            lambda at: self._pool.stub(at, rpc.KVStub).Txn, request, self._call_s
        )
        return found

    def try_txns(self, requests: Sequence[pb.TxnRequest]) -> list[pb.TxnResponse | Unanswered]:
        """One attempt at several transactions at the same time; Unanswered in the place of a lost answer."""
        address = self._address()
        calls: list[Any] = []
        for request in requests:
            try:
                with beginning(address):
                    calls.append(
                        self._pool.stub(address, rpc.KVStub).Txn.future(request, timeout=self._call_s)
                    )
            except Retryable as error:
                calls.append(Unanswered(str(error)))
        # Only after all are sent: otherwise each would wait for the answer to the one before.
        return [self._collect(address, one) for one in calls]

    def _collect(self, address: str, call: Any) -> pb.TxnResponse | Unanswered:
        if isinstance(call, Unanswered):
            return call
        try:
            answer: pb.TxnResponse = call.result()
            return answer
        except grpc.FutureCancelledError as error:
            return Unanswered(str(error))
        except grpc.RpcError as error:
            try:
                raise self._failure(address, error) from error
            except Unanswered as unanswered:
                return unanswered

    def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        """Get a new lease: its id, and the TTL in seconds that etcd has chosen."""
        # Safe to repeat: if an answer is lost, its lease stays unused until its TTL ends.
        found = self._ask(
            lambda at: self._pool.stub(at, rpc.LeaseStub).LeaseGrant, pb.LeaseGrantRequest(TTL=ttl_s)
        )
        if found.error:
            raise Retryable("etcd grants no lease", where=self.where, why=found.error)
        return int(found.ID), int(found.TTL)

    def keep_alive(self, lease: int, timeout_s: float) -> int:
        """One attempt to renew a lease: its new TTL in seconds; 0: it has ended. Raises Unanswered."""

        def renew(address: str) -> Callable[..., pb.LeaseKeepAliveResponse]:
            stub = self._pool.stub(address, rpc.LeaseStub)

            return lambda request, timeout: _first(stub.LeaseKeepAlive(iter([request]), timeout=timeout))

        return int(self._attempt(renew, pb.LeaseKeepAliveRequest(ID=lease), timeout_s).TTL)

    def revoke(self, lease: int) -> None:
        """End a lease, which deletes its keys. A lease that has ended already is no error."""
        try:
            self._ask(
                lambda at: self._pool.stub(at, rpc.LeaseStub).LeaseRevoke, pb.LeaseRevokeRequest(ID=lease)
            )
        except LeaseGone:
            return

    def hurry(self) -> None:
        """Limit all later calls to one short attempt, because the process must end soon."""
        self._patience_s = 0.0
        self._call_s = HURRY_S

    def close(self) -> None:
        """End all calls."""
        # First, so that a call which the closing ends is not repeated.
        self._closed = True
        self._pool.close()

    def _ask(self, method: Callable[[str], Callable[..., T]], request: Message) -> T:
        """Repeat a request until it is answered. Only for requests that may be carried out twice."""
        return self.until_answered(lambda: self._attempt(method, request, self._call_s))

    def until_answered(self, attempt: Callable[[], T]) -> T:
        """Repeat attempts with pauses. Raises Retryable when `patience_s` is over."""
        end = time.monotonic() + self._patience_s
        while True:
            try:
                return attempt()
            except Unanswered as error:
                # No pause if there is no time for an attempt after it.
                if self._closed or time.monotonic() + PAUSE_S >= end:
                    raise self._gave_up(error) from error
            time.sleep(PAUSE_S)

    def _gave_up(self, error: Unanswered) -> Retryable:
        if isinstance(error, DatabaseFull):
            return Retryable(
                "etcd's database is full, and etcd refuses every write (alarm NOSPACE)",
                where=self.where,
                why=str(error),
                fix="run etcdctl compact REVISION, etcdctl defrag --cluster, then etcdctl alarm disarm; set "
                "--auto-compaction-mode and --auto-compaction-retention, or a greater --quota-backend-bytes",
            )
        return Retryable(
            "etcd does not answer",
            where=self.where,
            why=str(error),
            fix="check that most members of etcd run and can be reached; it is asked again",
        )

    def _address(self) -> str:
        with self._lock:
            return self.endpoints[self._at % len(self.endpoints)]

    def _attempt(self, method: Callable[[str], Callable[..., T]], request: Message, timeout_s: float) -> T:
        address = self._address()
        try:
            with beginning(address):
                return method(address)(request, timeout=timeout_s)
        except Retryable as error:
            raise Unanswered(str(error)) from error
        except grpc.RpcError as error:
            raise self._failure(address, error) from error

    def _failure(self, address: str, error: grpc.RpcError) -> Exception:
        """The exception for a call's error. If the endpoint may be at fault, the next call skips it."""
        code, details = error.code(), str(error.details())
        if code is grpc.StatusCode.NOT_FOUND:
            return LeaseGone("etcd has ended the lease", where=address, why=details)
        if code in REFUSED:
            return InvalidInput(
                "etcd refuses access",
                where=address,
                why=details,
                fix="use client certificates, or an etcd without users: Tidegate sends no password",
            )
        if code not in ELSEWHERE:
            return InvalidInput(
                "etcd refuses a request",
                where=address,
                why=f"{code.name}: {details}",
                fix="check the log of etcd",
            )
        with self._lock:
            # Several calls may fail here at once. Only the first one moves on, as two of them could come
            # back to it.
            if self.endpoints[self._at % len(self.endpoints)] == address:
                self._at += 1
        kind = DatabaseFull if DATABASE_FULL in details else Unanswered
        return kind(f"{address}: {code.name}: {details}")


def _first(call: Any) -> Any:
    """The first message of a stream. Raises grpc.RpcError, and Unanswered if the stream ends without one.

    A thread reads it, because gRPC may never complete a receive (`kvclient.channel.at_end`).
    """
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            came.put(next(call))
        except (grpc.RpcError, StopIteration) as error:
            came.put(error)

    def ended() -> None:
        # Give the reader time: gRPC returns messages that arrived before the end first.
        threading.Timer(READ_S, came.put, [Unanswered("the stream ended without an answer")]).start()

    at_end(call, ended)
    threading.Thread(target=read, name="etcd lease", daemon=True).start()
    found = came.get()
    call.cancel()
    if isinstance(found, StopIteration):
        raise Unanswered("the stream ended without an answer")
    if isinstance(found, Exception):
        raise found
    return found


class LeaseGone(Fenced):
    """The lease does not exist any more."""


def parse_endpoints(text: str) -> tuple[tuple[str, ...], bool | None]:
    """`host:port` of each endpoint, and whether they use TLS; None: not given. Raises InvalidInput."""
    found, schemes = [], set()
    for one in filter(None, (each.strip().rstrip("/") for each in text.split(","))):
        scheme, _, address = one.rpartition("://")
        host, _, port = address.rpartition(":")
        if (
            scheme not in ("", "http", "https")
            or not host
            or not port.isdecimal()
            or "@" in host
            or "/" in address
        ):
            raise InvalidInput(
                "this is not an endpoint of etcd",
                where=one if "@" not in one else "an endpoint with a user name",
                fix="give http://HOST:PORT, https://HOST:PORT or HOST:PORT, several with commas between them",
            )
        found.append(address)
        schemes.add(scheme)
    if not found or len(schemes) > 1:
        raise InvalidInput(
            "the endpoints of etcd are missing"
            if not found
            else "the endpoints of etcd differ in http and https",
            where=text,
            fix="give --etcd http://HOST:PORT[,http://HOST:PORT...]",
        )
    return tuple(found), {"": None, "http": False, "https": True}[schemes.pop()]
