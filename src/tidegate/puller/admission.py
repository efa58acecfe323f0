"""How many incremental scans are asked of a store at once, and which of those that wait goes next.

A store scans a few regions at a time and refuses more than it can remember; what it was asked for too early
only lies in its memory (tikv#16035). So at most `SCANS_PER_STORE` registrations of a store are between their
request and INITIALIZED; urgent ones (close behind the present) go first, in order of arrival. Pure; owned by
the puller's coordinator. Source: ticdc `logservice/logpuller`, region request workers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from tidegate.model.timestamp import Timestamp, physical_ms

T = TypeVar("T")

SCANS_PER_STORE: Final = 64
URGENT_LAG_MS: Final = 600_000
"""Ranges that lag less behind the newest are scanned before the others."""


class Urgency:
    """Which ranges are close behind the newest that was registered."""

    def __init__(self) -> None:
        self._newest: Timestamp = 0

    def is_urgent(self, resolved: Timestamp) -> bool:
        """Whether a range that is registered from here goes before those that lag far."""
        self._newest = max(self._newest, resolved)
        return physical_ms(self._newest) - physical_ms(resolved) <= URGENT_LAG_MS


@dataclass(slots=True)
class _Store(Generic[T]):
    urgent: deque[T] = field(default_factory=deque)
    others: deque[T] = field(default_factory=deque)
    scanning: set[T] = field(default_factory=set)


class Admission(Generic[T]):
    """Queues of all stores. Entries are told apart by identity or their own hash."""

    def __init__(self, scans_per_store: int = SCANS_PER_STORE) -> None:
        self._limit = scans_per_store
        self._stores: dict[int, _Store[T]] = {}

    def wait(self, store_id: int, entry: T, urgent: bool) -> None:
        """Put an entry in line."""
        store = self._stores.setdefault(store_id, _Store())
        (store.urgent if urgent else store.others).append(entry)

    def next(self, store_id: int) -> T | None:
        """The next entry, which scans from now on; None while as many scan as may, or nobody waits."""
        store = self._stores.get(store_id)
        if store is None or len(store.scanning) >= self._limit:
            return None
        line = store.urgent or store.others
        if not line:
            return None
        entry = line.popleft()
        store.scanning.add(entry)
        return entry

    def done(self, store_id: int, entry: T) -> None:
        """An entry does not scan any more, or will not; harmless when it is not known."""
        store = self._stores.get(store_id)
        if store is None:
            return
        if entry in store.scanning:
            store.scanning.discard(entry)
            return
        for line in (store.urgent, store.others):
            if entry in line:
                line.remove(entry)

    def drop(self, store_id: int) -> list[T]:
        """The store is gone: forget all its entries; those that waited."""
        store = self._stores.pop(store_id, None)
        return [] if store is None else [*store.urgent, *store.others]
