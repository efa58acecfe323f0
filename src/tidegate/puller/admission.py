"""Limits the incremental scans that the puller requests from a store at once, and orders those that wait.

A store scans a few regions at a time and rejects requests beyond its queue; a request sent too early only
occupies its memory (tikv#16035). Therefore at most `SCANS_PER_STORE` registrations of a store are between
their request and INITIALIZED. Urgent ones (close behind the present) go first, otherwise in order of arrival.
Pure; owned by the puller's coordinator. Source: ticdc `logservice/logpuller`, region request workers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from tidegate.model.timestamp import Timestamp, physical_ms

T = TypeVar("T")

SCANS_PER_STORE: Final = 64
URGENT_LAG_MS: Final = 600_000
"""Ranges that lag at most this far behind the newest range are scanned before the others."""


class Urgency:
    """Decides which ranges are close behind the newest range that was registered."""

    def __init__(self) -> None:
        self._newest: Timestamp = 0

    def is_urgent(self, resolved: Timestamp) -> bool:
        """Whether a range that is registered from this ts is scanned before ranges that lag far."""
        self._newest = max(self._newest, resolved)
        return physical_ms(self._newest) - physical_ms(resolved) <= URGENT_LAG_MS


@dataclass(slots=True)
class _Store(Generic[T]):
    urgent: deque[T] = field(default_factory=deque)
    others: deque[T] = field(default_factory=deque)
    scanning: set[T] = field(default_factory=set)


class Admission(Generic[T]):
    """The queues of all stores. Entries are compared by their own hash and equality."""

    def __init__(self, scans_per_store: int = SCANS_PER_STORE) -> None:
        self._limit = scans_per_store
        self._stores: dict[int, _Store[T]] = {}

    def wait(self, store_id: int, entry: T, urgent: bool) -> None:
        """Queue an entry for a store."""
        store = self._stores.setdefault(store_id, _Store())
        (store.urgent if urgent else store.others).append(entry)

    def next(self, store_id: int) -> T | None:
        """Start the next scan and return its entry; None if the limit is reached or no entry waits."""
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
        """Remove an entry whose scan has ended, or that need not be scanned; an unknown entry is ignored."""
        store = self._stores.get(store_id)
        if store is None:
            return
        # The usual case, and cheap. Only an entry that never came to its scan is searched for in the
        # queues.
        if entry in store.scanning:
            store.scanning.discard(entry)
            return
        for line in (store.urgent, store.others):
            if entry in line:
                line.remove(entry)

    def drop(self, store_id: int) -> list[T]:
        """Forget a store that is gone. Returns its entries that were waiting."""
        store = self._stores.pop(store_id, None)
        return [] if store is None else [*store.urgent, *store.others]
