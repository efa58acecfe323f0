"""Who owns the feeds of a cluster: the capture whose key is the oldest (etcd's `concurrency.Election`).

Each candidate has a key of its own under its lease. The owner is the one with the least create revision; the
key's revision is the owner_rev, which grows from owner to owner, since a key that comes later has a greater
one. A key that is the least stays so until it is deleted, so that a write which is guarded by it is the
owner's, whatever the writer believes: when the lease ends, the key goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.control.metadata import ROOT
from tidegate.errors import Retryable
from tidegate.etcd.client import EtcdClient
from tidegate.proto import etcdserverpb_pb2 as pb

META: Final = "__cdc_meta__"
"""As TiCDC calls what belongs to no namespace."""


def owner_prefix(cluster: int) -> str:
    """Of the candidates' keys."""
    return f"{ROOT}/{cluster}/{META}/owner/"


def capture_prefix(cluster: int) -> str:
    """Of the captures' keys."""
    return f"{ROOT}/{cluster}/{META}/capture/"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One that stands, or is the owner."""

    capture: str
    key: str
    revision: int


class Election:
    """Blocks as `EtcdClient` does."""

    def __init__(self, client: EtcdClient, cluster: int, lease: int, capture: str) -> None:
        self._client, self._prefix, self._lease = client, owner_prefix(cluster), lease
        self._capture = capture
        self.key = f"{self._prefix}{lease:x}"

    def stand(self) -> None:
        """Put our key, once."""
        put_leased(self._client, self.key, self._capture.encode(), self._lease)

    def owner(self) -> Candidate | None:
        """Who is the owner now; None: nobody stands."""
        prefix = self._prefix.encode()
        found = self._client.range(prefix, prefix[:-1] + b"0").kvs
        least = min(found, key=lambda kv: int(kv.create_revision), default=None)
        if least is None:
            return None
        return Candidate(least.value.decode(), least.key.decode(), int(least.create_revision))


def drained_prefix(cluster: int) -> str:
    """Of the keys of captures that are to be given nothing."""
    return f"{ROOT}/{cluster}/{META}/drained/"


def put_leased(client: EtcdClient, key: str, value: bytes, lease: int) -> None:
    """Create a key that goes with the lease; one that is there stays as it is. Raises Retryable."""
    absent = pb.Compare(target=pb.Compare.CREATE, key=key.encode(), create_revision=0)
    put = pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=value, lease=lease))
    look = pb.RequestOp(request_range=pb.RangeRequest(key=key.encode()))
    request = pb.TxnRequest(compare=[absent], success=[put], failure=[look])
    answer = client.until_answered(lambda: client.try_txn(request))
    if answer.succeeded:
        return
    (held,) = answer.responses[0].response_range.kvs
    if int(held.lease) != lease:
        raise Retryable(
            "Another capture has this name.",
            where=key,
            why=f"its session is {int(held.lease):x}; perhaps it is our last one, which has not ended yet",
            fix="wait until it ends; if it stays, two captures have copies of one data folder: replace one",
        )
