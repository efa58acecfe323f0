"""Writers unlike the bank: transactions that choose their commit_ts, and those a lock cleaner may harm."""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random
from typing import Final

from tidegate.errors import TidegateError
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase, WriteConflict
from tidegate.model.span import Span
from tidegate.proto import kvrpcpb_pb2 as pb

SELF_TIMED: Final = 3
CONTRARY: Final = 2
TTL_MS: Final = 3000
"""The lifetime of prewritten locks; a writer that holds them longer may be ended."""
CLEAN_S: Final = 0.02
"""Between two rounds of the cleaner."""


class SelfTimed:
    """Transactions of one key that choose their own commit_ts, as the bank's never do; a few side by side."""

    def __init__(self, pd: PdClient, seed: int, stop: threading.Event) -> None:
        self._pd, self._stop = pd, stop
        self._threads = [
            threading.Thread(target=self._run, args=(Random(10 * seed + number),), daemon=True)
            for number in range(SELF_TIMED)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)

    def _run(self, random: Random) -> None:
        requester = RegionRequester(self._pd)
        while not self._stop.is_set():
            table = (random.randrange(145, 165) + (1 << 63)).to_bytes(8, "big")
            key = b"t" + table + b"_r%03d" % random.randrange(40)
            try:
                self._write(requester, key, random)
            except TidegateError:
                continue

    def _write(self, requester: RegionRequester, key: bytes, random: Random) -> None:
        start_ts = self._pd.tso()
        one_pc, deleting = random.random() < 0.5, random.random() < 0.2
        mutation = pb.Mutation(
            op=pb.Del if deleting else pb.Put, key=key, value=b"" if deleting else b"%d" % start_ts
        )
        request = pb.PrewriteRequest(
            mutations=[mutation],
            primary_lock=key,
            start_version=start_ts,
            lock_ttl=500,
            use_async_commit=True,
            try_one_pc=one_pc,
        )
        response = requester.at_key(key, "KvPrewrite", request, Backoff(3000))
        if response.errors:
            self._stop.wait(0.02)
        elif not response.one_pc_commit_ts and response.min_commit_ts:
            done = pb.CommitRequest(start_version=start_ts, keys=[key], commit_version=response.min_commit_ts)
            requester.at_key(key, "KvCommit", done, Backoff(3000))


class Contrary:
    """Transactions that a hasty lock cleaner damages, and our cleaner, which looks at all locks all the time.

    - Pessimistic ones whose claims are always too old, and whose primary moves to another key before they are
      prewritten. Nobody else writes their keys: a conflict means that the cleaner has ended a live one.
    - Async commits that fell back to two phases: some are then committed so, the others are `abandoned`, and
      nobody may commit these.
    """

    def __init__(self, pd: PdClient, seed: int, stop: threading.Event) -> None:
        self._pd, self._stop = pd, stop
        self.done: Counter[str] = Counter()
        self.findings: list[str] = []
        self._rounds = 0
        self.abandoned: set[int] = set()
        """Their start_ts."""
        self._threads = [
            threading.Thread(target=self._run, args=(number, Random(20 * seed + number)), daemon=True)
            for number in range(CONTRARY)
        ]
        self._threads.append(threading.Thread(target=self._clean, daemon=True))
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for all."""
        for thread in self._threads:
            thread.join(60)

    def _clean(self) -> None:
        resolver = LockResolver(RegionRequester(self._pd))
        while not self._stop.wait(CLEAN_S):
            try:
                resolver.resolve_span(Span(b"t", b"u"), self._pd.tso(), Backoff(3000))
                self._rounds += 1
            except TidegateError:
                continue

    def _run(self, number: int, random: Random) -> None:
        serial = 0
        while not self._stop.is_set():
            serial += 1
            keys = [_key(random, b"_c%d-%d-%d" % (number, serial, at)) for at in range(2)]
            deed = random.choice((self._move_primary, self._fall_back))
            try:
                deed(keys, random)
            except TidegateError:
                continue

    def _move_primary(self, keys: list[bytes], _: Random) -> None:
        first, second = keys
        born = time.monotonic()
        start_ts = self._pd.tso()
        claims = TwoPhase(self._pd, start_ts, first, for_update_ts=start_ts, ttl_ms=1)
        claims.pessimistic_lock(keys, Backoff(3000))
        claims = TwoPhase(self._pd, start_ts, second, for_update_ts=self._pd.tso(), ttl_ms=1)
        claims.pessimistic_lock([second, first], Backoff(3000))
        seen = self._rounds
        while self._rounds < seen + 2 and not self._stop.wait(0.005):
            pass
        began = time.monotonic()
        # A lock's lifetime counts from the transaction's start, and on a busy machine the rounds take long.
        ttl_ms = TTL_MS + round(1000 * (began - born))
        txn = TwoPhase(self._pd, start_ts, second, for_update_ts=claims.for_update_ts, ttl_ms=ttl_ms)
        try:
            # The primary first: a cleaner that finds the other key's lock looks there, at a claim that is too
            # old, and ends the transaction rightly.
            for key in (second, first):
                txn.prewrite([Mutation(PUT, key, b"%d" % start_ts)], Backoff(3000), pessimistic=keys)
        except WriteConflict as conflict:
            if time.monotonic() - began < TTL_MS / 1000:
                self.findings.append(f"a live transaction was ended: {conflict.render()}")
            return
        txn.commit([second, first], self._pd.tso(), Backoff(3000))
        self.done["moved primary"] += 1

    def _fall_back(self, keys: list[bytes], random: Random) -> None:
        primary, other = keys
        start_ts = self._pd.tso()
        if abandoned := random.random() < 0.5:
            self.abandoned.add(start_ts)
        requester = RegionRequester(self._pd)
        for key, highest in ((primary, 1 << 62), (other, start_ts)):
            request = pb.PrewriteRequest(
                mutations=[pb.Mutation(op=pb.Put, key=key, value=b"%d" % start_ts)],
                primary_lock=primary,
                start_version=start_ts,
                lock_ttl=1 if abandoned else TTL_MS,
                use_async_commit=True,
                secondaries=[other] if key == primary else [],
                max_commit_ts=highest,
            )
            if requester.at_key(key, "KvPrewrite", request, Backoff(3000)).errors:
                return
        if not abandoned:
            TwoPhase(self._pd, start_ts, primary).commit(keys, self._pd.tso(), Backoff(3000))
        self.done["abandoned" if abandoned else "fell back"] += 1


def _key(random: Random, end: bytes) -> bytes:
    table = (random.randrange(145, 165) + (1 << 63)).to_bytes(8, "big")
    return b"t" + table + end
