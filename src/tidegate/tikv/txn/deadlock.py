"""Deadlock detection: a graph of waiting transactions; finds cycles that a new edge closes. Thread-safe.

One detector serves all stores of an upstream (in TiKV the leader of one region detects for the cluster). An
edge means that `txn` waits for `holder` at a key; it is removed when the wait ends for any reason. The
transaction whose edge would close a cycle is the victim. (TiKV: server/lock_manager/deadlock.rs.)
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass

from tidegate.proto import kvrpcpb_pb2 as pb


@dataclass(frozen=True, slots=True)
class Edge:
    """`txn` waits until `holder` releases the lock on the raw key."""

    txn: int
    holder: int
    key: bytes
    since: float

    def entry(self) -> pb.WaitForEntry:
        """The edge as kvrpcpb's WaitForEntry."""
        waited = int((time.monotonic() - self.since) * 1000)
        return pb.WaitForEntry(
            txn=self.txn,
            wait_for_txn=self.holder,
            key=self.key,
            key_hash=key_hash(self.key),
            wait_time=waited,
        )


def key_hash(raw: bytes) -> int:
    """A key's 64-bit hash in a deadlock report. Not TiKV's farmhash: compare it only with our own."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


class DeadlockDetector:
    """The wait-for graph."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._edges: dict[int, list[Edge]] = {}

    def wait(self, edge: Edge) -> pb.Deadlock | None:
        """Add an edge. If it would close a cycle, do not add it, and return the cycle."""
        with self._mutex:
            chain = self._path(edge.holder, edge.txn)
            if chain is None:
                self._edges.setdefault(edge.txn, []).append(edge)
                return None
        # The key that the victim itself has locked: it is what the last transaction of the chain waits for.
        last = chain[-1] if chain else edge
        return pb.Deadlock(
            lock_ts=edge.holder,
            lock_key=edge.key,
            deadlock_key_hash=key_hash(last.key),
            deadlock_key=last.key,
            wait_chain=[each.entry() for each in (*chain, edge)],
        )

    def _path(self, origin: int, target: int) -> list[Edge] | None:
        """The edges from `origin` to `target`; None if there is no path."""
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
        """Remove an edge, because its wait has ended."""
        with self._mutex:
            # By identity: two requests of a transaction may wait for one holder at one key, and only one wait
            # has ended.
            left = [each for each in self._edges.get(edge.txn, ()) if each is not edge]
            if left:
                self._edges[edge.txn] = left
            else:
                self._edges.pop(edge.txn, None)

    def entries(self) -> list[pb.WaitForEntry]:
        """All edges."""
        with self._mutex:
            return [edge.entry() for edges in self._edges.values() for edge in edges]
