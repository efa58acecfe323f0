"""Elects the owner of a cluster's feeds: the capture with the oldest key (etcd's `concurrency.Election`).

Each candidate has a key of its own under its lease. The owner is the candidate with the least create
revision, which is its owner_rev. owner_rev grows from owner to owner, because a later key has a greater
revision. The oldest key stays the oldest until it is deleted, and it is deleted when its lease ends. So a
write that is guarded by the key comes from the owner, even if the writer does not know whether it still is
the owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.control.metadata import ROOT
from tidegate.errors import Retryable
from tidegate.etcd.client import EtcdClient
from tidegate.proto import etcdserverpb_pb2 as pb

META: Final = "__cdc_meta__"
"""TiCDC's name for keys that belong to no namespace."""


def owner_prefix(cluster: int) -> str:
    """The prefix of the candidates' keys."""
    return f"{ROOT}/{cluster}/{META}/owner/"


def capture_prefix(cluster: int) -> str:
    """The prefix of the captures' keys."""
    return f"{ROOT}/{cluster}/{META}/capture/"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate, which may be the owner."""

    capture: str
    key: str
    revision: int


class Election:
    """One candidate's part in the election. All calls block as those of `EtcdClient`."""

    def __init__(self, client: EtcdClient, cluster: int, lease: int, capture: str) -> None:
        self._client, self._prefix, self._lease = client, owner_prefix(cluster), lease
        self._capture = capture
        self.key = f"{self._prefix}{lease:x}"

    def stand(self) -> None:
        """Become a candidate by writing our key, or do nothing if it is there."""
        put_leased(self._client, self.key, self._capture.encode(), self._lease)

    def step_down(self, revision: int) -> None:
        """Delete our key of this revision. Another `stand` makes us the last in the row of candidates."""
        # Only the key of this revision, because a repeated attempt may arrive after we stand again.
        mine = pb.Compare(target=pb.Compare.CREATE, key=self.key.encode(), create_revision=revision)
        delete = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=self.key.encode()))
        request = pb.TxnRequest(compare=[mine], success=[delete])
        self._client.until_answered(lambda: self._client.try_txn(request))

    def owner(self) -> Candidate | None:
        """The current owner; None: there is no candidate."""
        prefix = self._prefix.encode()
        # `0` is the character after `/`, so this is the range of all keys with the prefix.
        found = self._client.range(prefix, prefix[:-1] + b"0").kvs
        # The create revision does not change when a value is written again, so a candidate keeps its place.
        least = min(found, key=lambda kv: int(kv.create_revision), default=None)
        if least is None:
            return None
        return Candidate(least.value.decode(), least.key.decode(), int(least.create_revision))


def drained_prefix(cluster: int) -> str:
    """The prefix of the keys of captures that get no ranges."""
    return f"{ROOT}/{cluster}/{META}/drained/"


def put_leased(client: EtcdClient, key: str, value: bytes, lease: int) -> None:
    """Create a key that ends with the lease; an existing key stays as it is. Raises Retryable."""
    absent = pb.Compare(target=pb.Compare.CREATE, key=key.encode(), create_revision=0)
    put = pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=value, lease=lease))
    look = pb.RequestOp(request_range=pb.RangeRequest(key=key.encode()))
    request = pb.TxnRequest(compare=[absent], success=[put], failure=[look])
    # The answer may be lost after the key was made. The retry then finds it with our own lease, and
    # succeeds.
    answer = client.until_answered(lambda: client.try_txn(request))
    if answer.succeeded:
        return
    (held,) = answer.responses[0].response_range.kvs
    if int(held.lease) != lease:
        raise Retryable(
            "another capture has this name",
            where=key,
            why=f"its session is {int(held.lease):x}; it may be the previous session of this capture",
            fix="wait until it ends; if it stays, two captures have copies of one data folder: replace one",
        )
