"""How far large (pipelined) transactions have promised to commit later: the min_commit_ts of their primaries.

Their client raises it with each heartbeat, and so may who meets their locks; a commit below it is refused. So
the many locks of such a transaction need not hold the resolved ts at its start. Told after the primary's lock
is durable. (TiKV: storage/txn/txn_status_cache.rs.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

TXNS_MAX: Final = 10_000
"""Of more, those that were told first are forgotten: they hold the resolved ts where it is."""


class TxnStatusCache:
    """Of all stores of a cluster. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._known: OrderedDict[int, int] = OrderedDict()

    def update(self, start_ts: int, min_commit_ts: int) -> None:
        """The transaction cannot commit below `min_commit_ts` any more."""
        with self._mutex:
            self._known[start_ts] = max(min_commit_ts, self._known.pop(start_ts, 0))
            if len(self._known) > TXNS_MAX:
                self._known.popitem(last=False)

    def min_commit_ts(self, start_ts: int) -> int:
        """The least ts it may commit at; its start when nothing is known."""
        return max(start_ts, self._known.get(start_ts, 0))
