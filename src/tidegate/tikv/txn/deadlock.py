"""Who waits for whom: a graph of transactions, and the cycle that one more edge would close. Thread-safe.

One detector serves all stores of an upstream (TiKV has one leader for the cluster). An edge is "`txn` waits
for `holder` at a key"; it is removed when the waiting ends, however it ends. The transaction whose edge
would close a cycle is the victim. (TiKV: server/lock_manager/deadlock.rs.)
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass

from tidegate.proto import kvrpcpb_pb2 as pb


@dataclass(frozen=True, slots=True)
class Edge:
    """`txn` waits for `holder` to let go of the raw key."""

    txn: int
    holder: int
    key: bytes
    since: float

    def entry(self) -> pb.WaitForEntry:
        """As clients see it."""
        waited = int((time.monotonic() - self.since) * 1000)
        return pb.WaitForEntry(
            txn=self.txn,
            wait_for_txn=self.holder,
            key=self.key,
            key_hash=key_hash(self.key),
            wait_time=waited,
        )


def key_hash(raw: bytes) -> int:
    """64 bits that stand for a key in a deadlock report. Not TiKV's farmhash: compare only with our own."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


class DeadlockDetector:
    """The wait-for graph."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._edges: dict[int, list[Edge]] = {}

    def wait(self, edge: Edge) -> pb.Deadlock | None:
        """Add an edge; or, when it would close a cycle, leave it out and say which."""
        with self._mutex:
            chain = self._path(edge.holder, edge.txn)
            if chain is None:
                self._edges.setdefault(edge.txn, []).append(edge)
                return None
        last = chain[-1] if chain else edge
        return pb.Deadlock(
            lock_ts=edge.holder,
            lock_key=edge.key,
            deadlock_key_hash=key_hash(last.key),
            deadlock_key=last.key,
            wait_chain=[each.entry() for each in (*chain, edge)],
        )

    def _path(self, origin: int, target: int) -> list[Edge] | None:
        """Edges from `origin` to `target`; None when there is no way."""
        came: dict[int, Edge | None] = {origin: None}
        ahead = [origin]
        while ahead:
            txn = ahead.pop()
            if txn == target:
                break
            for edge in self._edges.get(txn, ()):
                if edge.holder not in came:
                    came[edge.holder] = edge
                    ahead.append(edge.holder)
        if target not in came:
            return None
        path: list[Edge] = []
        step = came[target]
        while step is not None:
            path.append(step)
            step = came[step.txn]
        return path[::-1]

    def done(self, edge: Edge) -> None:
        """The waiting is over."""
        with self._mutex:
            left = [each for each in self._edges.get(edge.txn, ()) if each is not edge]
            if left:
                self._edges[edge.txn] = left
            else:
                self._edges.pop(edge.txn, None)

    def entries(self) -> list[pb.WaitForEntry]:
        """Everybody who waits."""
        with self._mutex:
            return [edge.entry() for edges in self._edges.values() for edge in edges]
