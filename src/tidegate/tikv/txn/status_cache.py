"""The min_commit_ts of the primaries of large (pipelined) transactions.

The transaction's client raises it with each heartbeat, and readers that find its locks may raise it, too; a
commit below it is refused. Therefore the many locks of such a transaction need not hold the resolved ts at
its start_ts. The cache is updated only after the primary's lock is durable. (TiKV:
storage/txn/txn_status_cache.rs.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

TXNS_MAX: Final = 10_000
"""Beyond this number the entries updated longest ago are dropped; these transactions then hold the resolved
ts at their start_ts."""


class TxnStatusCache:
    """The cache, shared by all stores of a cluster. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._known: OrderedDict[int, int] = OrderedDict()

    def update(self, start_ts: int, min_commit_ts: int) -> None:
        """Record that the transaction can no longer commit below `min_commit_ts`."""
        with self._mutex:
            self._known[start_ts] = max(min_commit_ts, self._known.pop(start_ts, 0))
            if len(self._known) > TXNS_MAX:
                self._known.popitem(last=False)

    def min_commit_ts(self, start_ts: int) -> int:
        """The smallest ts at which it may commit; its start_ts if nothing is known."""
        return max(start_ts, self._known.get(start_ts, 0))
