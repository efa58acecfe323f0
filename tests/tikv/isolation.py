"""Snapshot isolation, checked from a history of concurrent transactions of every kind.

Clients run transactions of random reads and writes; each commits in one of the ways the store offers. Two
rules make a history right:

- a transaction read, of every key, the value of the newest transaction that committed at or below its start;
- of two committed transactions that wrote the same key, one committed at or before the other began to claim
  it (its start; for a key locked pessimistically the for_update_ts of the lock).
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.tikv.cluster import Cluster
from tests.tikv.support import commit, pessimistic_lock, prewrite, put, rollback
from tidegate.proto import kvrpcpb_pb2 as pb

KEYS = [b"a", b"b", b"m", b"y", b"z"]
"""Each with the seed after it: runs over one store do not meet."""
KINDS = ("two-phase", "async", "one-phase", "pessimistic")
HELD = pb.PrewriteRequest.DO_PESSIMISTIC_CHECK


@dataclass
class Txn:
    """One transaction as its client saw it. `commit_ts` 0: it did not commit."""

    start_ts: int
    kind: str
    reads: dict[bytes, bytes] = field(default_factory=dict)
    writes: dict[bytes, bytes] = field(default_factory=dict)
    claimed: int = 0
    commit_ts: int = 0


class Client:
    """Runs transactions one after the other and keeps their history."""

    def __init__(self, cluster: Cluster, seed: int, number: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed * 1000 + number)
        self.keys = [b"%b%d" % (key, seed) for key in KEYS]
        self.history: list[Txn] = []

    def run(self, transactions: int) -> None:
        for number in range(transactions):
            txn = Txn(self.cluster.tso.get(), self.rng.choice(KINDS))
            self.history.append(txn)
            for raw in self.rng.sample(self.keys, self.rng.randrange(3)):
                txn.reads[raw] = self.read(raw, txn.start_ts)
            wanted = sorted(self.rng.sample(self.keys, self.rng.randrange(1, 3)))
            value = b"%d-%d" % (txn.start_ts, number)
            txn.claimed = txn.start_ts
            if txn.kind == "pessimistic" and not self.lock(txn, wanted):
                continue
            txn.writes = dict.fromkeys(wanted, value)
            txn.commit_ts = self.write(txn)

    def read(self, raw: bytes, ts: int) -> bytes:
        while True:
            answer = self.cluster.call(pb.GetRequest(key=raw, version=ts), raw)
            if not answer.HasField("error"):
                return bytes(answer.value)
            time.sleep(0.0005)  # its owner finishes it

    def lock(self, txn: Txn, wanted: list[bytes]) -> bool:
        txn.claimed = self.cluster.tso.get()
        for raw in wanted:
            request = pessimistic_lock(
                txn.start_ts, txn.claimed, raw, primary=wanted[0], wait_timeout=5000, lock_ttl=60_000
            )
            if self.cluster.call(request, raw).errors:
                self.give_up(txn, wanted)
                return False
        return True

    def give_up(self, txn: Txn, wanted: list[bytes]) -> None:
        for group in self.cluster.each_region(wanted):
            unlock = pb.PessimisticRollbackRequest(
                start_version=txn.start_ts, for_update_ts=txn.claimed, keys=group
            )
            self.cluster.call(unlock, group[0])
            self.cluster.call(rollback(txn.start_ts, *group), group[0])

    def write(self, txn: Txn) -> int:
        groups = self.cluster.each_region(list(txn.writes))
        primary = groups[0][0]
        more: dict[str, Any] = {"lock_ttl": 60_000, "primary": primary}
        if txn.kind == "pessimistic":
            more["for_update_ts"] = txn.claimed
        elif txn.kind == "one-phase" and len(groups) == 1:
            more["try_one_pc"] = True
        elif txn.kind != "two-phase":
            more |= {"use_async_commit": True, "secondaries": [key for key in txn.writes if key != primary]}
        least = 0
        for group in groups:
            request = prewrite(txn.start_ts, *(put(key, txn.writes[key]) for key in group), **more)
            if txn.kind == "pessimistic":
                request.pessimistic_actions.extend([HELD] * len(group))
            answer = self.cluster.call(request, group[0])
            if answer.errors:
                self.give_up(txn, list(txn.writes))
                return 0
            if answer.one_pc_commit_ts:
                return int(answer.one_pc_commit_ts)
            least = max(least, answer.min_commit_ts)
        commit_ts = least or self.cluster.tso.get()
        for group in groups:
            done = self.cluster.call(commit(txn.start_ts, commit_ts, *group), group[0])
            assert not done.HasField("error"), done
        return commit_ts


def run(cluster: Cluster, seed: int, clients: int = 8, transactions: int = 20) -> list[Txn]:
    """The history of so many clients at once."""
    made = [Client(cluster, seed, number) for number in range(clients)]
    threads = [threading.Thread(target=client.run, args=(transactions,)) for client in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = [txn for client in made for txn in client.history]
    assert len(history) == clients * transactions, "a client failed"
    return history


def violations(history: list[Txn]) -> list[str]:
    """Return the violations of snapshot isolation in a history."""
    found = []
    committed = sorted((txn for txn in history if txn.commit_ts), key=lambda txn: txn.commit_ts)
    for txn in history:
        for raw, seen in txn.reads.items():
            expected = b""
            for other in committed:
                if other.commit_ts <= txn.start_ts and raw in other.writes:
                    expected = other.writes[raw]
            if seen != expected:
                found.append(f"{txn.start_ts} read {seen!r} at {raw!r}, not {expected!r}")
    for at, later in enumerate(committed):
        for earlier in committed[:at]:
            both = earlier.writes.keys() & later.writes.keys()
            if both and earlier.commit_ts > later.claimed:
                found.append(f"{later.start_ts} ({later.kind}) wrote {both} over {earlier.commit_ts}")
    return found
