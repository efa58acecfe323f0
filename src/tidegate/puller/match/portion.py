"""The events and rows of one portion: scanned from messages, or loaded from a spilled log.

Rows are not copied: they point into the messages, or the log's chunk, which must stay valid until
`open_kernels.keep` has copied the prewrites that are still open. Both sources fill the same tables, so the
same kernels match spilled rows and live rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.errors import Retryable
from tidegate.kernel import address
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import scan_kernels, spill_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.addresses import Addresses
from tidegate.puller.match.matched import Message, Registration


class Portion:
    """The input tables. They grow to the size of the largest portion."""

    def __init__(self, addresses: Addresses, *, events: int, rows: int, lag: Timestamp = 0) -> None:
        """Make room for this many events and rows. `lag`: subtracted from every resolved ts in a message."""
        self._at = addresses.at
        self._lag = np.uint64(lag)
        self.events = np.zeros((events, k.EVENT_WORDS), dtype=np.uint64)
        self.rows = np.zeros((rows, k.ROW_WORDS), dtype=np.uint64)
        self.kept = np.zeros(rows, dtype=np.int64)
        """The kernels' list of rows that stay open; as long as `rows`."""

    def scan(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Read messages; returns the numbers of events and rows. Raises Retryable if one is malformed."""
        events, rows = self._scan(messages)
        if self._lag:
            times = self.events[:events, k.E_TS]
            # Unsigned: a ts below the lag becomes 0 and does not wrap around.
            times -= np.minimum(times, self._lag)
        return events, rows

    def _scan(self, messages: Sequence[Message]) -> tuple[int, int]:
        places = np.array([(pa.py_buffer(m).address, len(m)) for m in messages], dtype=np.int64).reshape(
            -1, 2
        )
        counts = np.zeros(len(k.SCANNED.fields), dtype=np.int64)
        while True:
            tables = scan_kernels.ScanTables(
                *(self._at(self.events), len(self.events)), *(self._at(self.rows), len(self.rows))
            )
            state = scan_kernels.scan(places, tables, address(counts))
            if state == k.GOOD:
                return int(counts[k.SCANNED_EVENTS]), int(counts[k.SCANNED_ROWS])
            if state == k.BAD:
                bad = counts[k.SCANNED_MESSAGE]
                raise Retryable(
                    "a change data message is malformed",
                    where=f"message {bad} of {len(messages)}, {len(messages[bad])} bytes",
                    why="it is not a ChangeDataEvent",
                    fix="nothing if it happens once: the stream is opened again",
                )
            # The scan begins again: rows of the old tables are not copied, because a table is full rarely.
            self._double()

    def _double(self) -> None:
        self.events = np.zeros((2 * len(self.events), k.EVENT_WORDS), dtype=np.uint64)
        self.rows = np.zeros((2 * len(self.rows), k.ROW_WORDS), dtype=np.uint64)
        self.kept = np.zeros(len(self.rows), dtype=np.int64)

    def load(self, chunk: k.U8, owner: Registration) -> Iterator[tuple[int, int, int]]:
        """Read a log's chunk as rows of `owner`, at a time as many as fit in the tables.

        Yields the numbers of events and rows, and the bytes that they use in the log.
        """
        at, found = 0, np.zeros(2, dtype=np.int64)
        while at < len(chunk):
            # `load` makes at most one event and one row of a record, so one bound holds for both.
            room = min(len(self.events), len(self.rows))
            tables = self._at(self.events), self._at(self.rows), room, address(found)
            played = spill_kernels.Played(owner.region_id, owner.request_id, *tables)
            end = spill_kernels.load(address(chunk), at, len(chunk), played)
            # The caller has kept its rows when it comes back, so the tables can be filled again.
            yield int(found[0]), int(found[1]), end - at
            at = end
