"""Reads at one timestamp: get, batch get, scan. They resolve blocking locks and retry when a region moved.

A read sees every transaction with commit_ts <= ts and nothing else. If a live transaction may still commit
at or below `ts`, the read waits for it, within the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tidegate.errors import Fatal, Retryable
from tidegate.kvclient.backoff import DEFAULT_BUDGET_MS, Backoff, Cause
from tidegate.kvclient.lock_resolver import LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.kvclient.region_request import RegionMoved, RegionRequester, TooLarge
from tidegate.model.span import Span
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.tidb.memcomparable import decode_bytes

PAGE_ROWS: Final = 1024
LARGE_PAGE_BYTES: Final = 4 << 20
"""A page of at least this size may have been cut short by the store, so the scan continues behind it."""
BATCH_KEYS: Final = 1024
PAGE_MAX: Final = 1 << 20
"""The most pairs of a page. Halved if they do not fit into a message, doubled again after a page that did."""
IGNORED_MAX: Final = 1024
"""The most start ts of pushed transactions that a snapshot remembers; older ones are checked again."""


class Snapshot:
    """The store as it was at `ts`. Not thread-safe; cheap to make.

    `keyspace_id`: the keyspace (API V2) of the keys to read, each of which begins with its four bytes of mode
    and keyspace; -1: keys of API V1 or TiDB's.
    """

    def __init__(
        self, pd: PdClient, ts: int, *, budget_ms: int = DEFAULT_BUDGET_MS, keyspace_id: int = -1
    ) -> None:
        self.ts = ts
        self._pd = pd
        self._requester = RegionRequester(pd, keyspace_id)
        self._resolver = LockResolver(self._requester)
        self._ignored: list[int] = []
        self._budget_ms = budget_ms
        self._page_max = PAGE_MAX

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""
        backoff = Backoff(self._budget_ms)
        while True:
            # Made again in each round: its context names the transactions that were pushed meanwhile.
            request = kvrpcpb.GetRequest(context=self._context(), key=key, version=self.ts)
            response = self._requester.at_key(key, "KvGet", request, backoff)
            if response.HasField("error"):
                self._resolve_locks([response.error], backoff)
                continue
            return None if response.not_found else bytes(response.value)

    def batch_get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of the keys that exist."""
        found: dict[bytes, bytes] = {}
        wanted = list(keys)
        for at in range(0, len(wanted), BATCH_KEYS):
            self._batch_get(wanted[at : at + BATCH_KEYS], found, Backoff(self._budget_ms))
        return found

    def scan(
        self, span: Span, limit: int | None = None, *, page_rows: int = PAGE_ROWS
    ) -> Iterator[tuple[bytes, bytes]]:
        """Key and value pairs of the span in key order, at most `limit`; fetched page by page."""
        at, left = span.start, limit
        while left is None or left > 0:
            want = page_rows if left is None else min(page_rows, left)
            pairs, next_start = self.page(at, span.end, want)
            yield from pairs
            left = None if left is None else left - len(pairs)
            if next_start is None:
                return
            at = next_start

    def page(self, start: bytes, end: bytes, limit: int) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """One page from one region, and the key where the next page begins (None: the scan is done)."""
        backoff = Backoff(self._budget_ms)
        most = limit
        while True:
            limit = min(most, self._page_max)
            region, request = self.scan_request(start, end, limit)
            try:
                response = self._requester.send(region, "KvScan", request, backoff)
            except RegionMoved:
                continue
            except TooLarge as error:
                if limit == 1:
                    raise _one_too_large(start, error) from error
                # Remembered for later pages: neighbouring values are often of the same size.
                self._page_max = limit // 2
                continue
            errors = [p.error for p in response.pairs if p.HasField("error")]
            if response.HasField("error"):
                errors.append(response.error)
            if errors:
                self._resolve_locks(errors, backoff)
                continue
            # Large values may be only in a part of the span, so pages grow again.
            self._page_max = min(2 * self._page_max, PAGE_MAX)
            pairs = [(bytes(p.key), bytes(p.value)) for p in response.pairs]
            size = sum(len(key) + len(value) for key, value in pairs)
            last = pairs[-1][0] if pairs else b""
            return pairs, following(last, len(pairs), size, limit, request.end_key, end)

    def scan_request(self, start: bytes, end: bytes, limit: int) -> tuple[RegionInfo, kvrpcpb.ScanRequest]:
        """The region of `start`, and the request for a page from it, which ends at the region's end."""
        region = self._pd.regions.locate_start(start)
        region_end = decode_bytes(region.end_key)[0] if region.end_key else b""
        # Empty means no end, so it must not win the minimum.
        stop = min(e for e in (end, region_end) if e) if end or region_end else b""
        request = kvrpcpb.ScanRequest(
            context=self._context(), start_key=start, limit=limit, version=self.ts, end_key=stop
        )
        self._requester.fill_context(request.context, region)
        return region, request

    def _batch_get(self, keys: list[bytes], found: dict[bytes, bytes], backoff: Backoff) -> None:
        def send(region: RegionInfo, members: list[bytes]) -> None:
            while True:
                request = kvrpcpb.BatchGetRequest(context=self._context(), keys=members, version=self.ts)
                response = self._requester.send(region, "KvBatchGet", request, backoff)
                errors = [p.error for p in response.pairs if p.HasField("error")]
                if response.HasField("error"):
                    errors.append(response.error)
                if not errors:
                    found.update((bytes(p.key), bytes(p.value)) for p in response.pairs)
                    return
                self._resolve_locks(errors, backoff)

        self._requester.by_region(keys, backoff, send)

    def _resolve_locks(self, errors: list[kvrpcpb.KeyError], backoff: Backoff) -> None:
        """Resolve the locks that blocked a read, and wait for live ones. Raises Retryable on other errors."""
        locks = []
        for error in errors:
            if not error.HasField("locked"):
                raise Retryable("a read failed", where=f"ts {self.ts}", why=str(error))
            locks.append(error.locked)
        ignorable, wait_ms = self._resolver.resolve(locks, self.ts, backoff)
        # A transaction that drops out here is only checked again.
        self._ignored = [*self._ignored, *ignorable][-IGNORED_MAX:]
        if wait_ms:
            lock = locks[0]
            where = f"key {lock.key.hex()}, start_ts {lock.lock_version}, reading at {self.ts}"
            self._pd.pause(backoff.next(Cause.LOCK, where=where))

    def _context(self) -> kvrpcpb.Context:
        return kvrpcpb.Context(resolved_locks=self._ignored)


def _one_too_large(start: bytes, error: TooLarge) -> Fatal:
    return Fatal(
        "a single key and its value are larger than a message may be",
        where=f"the first key from {start.hex()} on; {error.where}",
        why=error.why,
        fix="shorten the value upstream: TiDB writes none above its txn-entry-size-limit",
    )


def following(last: bytes, pairs: int, size: int, limit: int, stop: bytes, end: bytes) -> bytes | None:
    """The key where a scan up to `end` continues after a page up to `stop`; None if it is done.

    `last`, `pairs`, `size`: the page's last key, number of pairs, and bytes. A large page may end before its
    limit.
    """
    if pairs and (pairs == limit or size >= LARGE_PAGE_BYTES):
        return last + b"\x00"
    return stop if stop and stop != end else None
