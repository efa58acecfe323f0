"""The registrations of a stream: a number in the kernels' table for each, and the index that finds it.

The number of a stopped registration is not free at once, because records and waiting rows of earlier messages
still contain it. If it were reused before these are removed, they would count as rows of the next
registration. Therefore `take_back` frees all stopped numbers together, after the caller has compacted the
open rows (`pairing`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.kernel import address
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import registration_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.addresses import Addresses
from tidegate.puller.match.matched import Registration


class Registrations:
    """All registrations of a stream. `table` is the kernels' table, which they also write."""

    def __init__(self, addresses: Addresses) -> None:
        self._at = addresses.at
        self.table: k.U64 = np.zeros((64, k.REGISTRATION_WORDS), dtype=np.uint64)
        self.index = k.registration_index(256)
        self._owners: dict[int, Registration] = {}
        self._free = list(range(63, -1, -1))

    @property
    def is_full(self) -> bool:
        """Whether `take_back` must be called before the next `add`."""
        return not self._free

    def add(
        self,
        request_id: int,
        region_id: int,
        span: int,
        mark: int,
        bounds: Span,
        checkpoint: Timestamp,
        *,
        records: bool = False,
    ) -> Registration:
        """Add a registration under a free number; for the arguments see `BlockMatcher.register`."""
        number = self._free.pop()
        # The kernels read these bytes by address as long as the registration exists.
        held = (pa.py_buffer(bounds.start), pa.py_buffer(bounds.end))
        line = self.table[number]
        line[:] = 0
        line[k.REG_STATE] = k.SCANNING
        line[k.REG_REGION], line[k.REG_REQUEST], line[k.REG_SPAN] = region_id, request_id, span
        line[k.REG_MARK] = mark
        line[k.REG_CHECKPOINT], line[k.REG_RESOLVED] = checkpoint, checkpoint
        line[k.REG_FROM], line[k.REG_FROM_SIZE] = address(held[0]), len(bounds.start)
        line[k.REG_TO], line[k.REG_TO_SIZE] = address(held[1]), len(bounds.end)
        line[k.REG_RECORDS] = records
        registration = Registration(number, request_id, region_id, span, mark, bounds, held)
        self._owners[number] = registration
        self._enter(number)
        return registration

    def owner(self, number: int) -> Registration | None:
        """The registration with a number, even if it is stopped; None if there is none."""
        return self._owners.get(number)

    def is_live(self, registration: Registration) -> bool:
        """Whether the registration is initialized and has not ended."""
        number = registration.number
        return bool(self.table[number, k.REG_STATE] == k.LIVE) and self._owners.get(number) is registration

    def stop(self, registration: Registration) -> bool:
        """Ignore rows that still arrive for it. False: its number has already been freed."""
        # The number may belong to another registration by now, which must not be stopped.
        if self._owners.get(registration.number) is not registration:
            return False
        self.table[registration.number, k.REG_STATE] = k.STOPPED
        self.unmark_spilled(registration.number)
        return True

    def restore(self, registration: Registration, state: int, resolved: Timestamp) -> None:
        """Set the state and resolved ts that the registration had when its log began."""
        number = registration.number
        self.table[number, k.REG_STATE], self.table[number, k.REG_RESOLVED] = state, resolved

    def mark_spilled(self, number: int) -> None:
        """From now on the kernels log its rows and resolved ts instead of matching them."""
        self.table[number, k.REG_SPILLED] = 1
        self.table[number, k.REG_DUE] = self.table[number, k.REG_LEAST] = 0

    def unmark_spilled(self, number: int) -> None:
        """From now on the kernels match its rows and resolved ts."""
        self.table[number, k.REG_SPILLED] = self.table[number, k.REG_DUE] = self.table[
            number, k.REG_LEAST
        ] = 0

    def take_back(self) -> list[int]:
        """Free and return the numbers of stopped registrations; double the table if these are few.

        No record or waiting row may contain one of them any more.
        """
        stopped: list[int] = np.flatnonzero(self.table[:, k.REG_STATE] == k.STOPPED).tolist()
        for number in stopped:
            self.unmark_spilled(number)
            self.table[number, k.REG_STATE] = k.FREE
            self._owners.pop(number, None)
        self._free = list(stopped)
        if 2 * len(self._free) < len(self.table):
            old = len(self.table)
            self.table = np.vstack([self.table, np.zeros_like(self.table)])
            self._free += range(2 * old - 1, old - 1, -1)
        # A new index instead of removals: a place that becomes free would cut off the searches that pass
        # it.
        self.index = k.registration_index(4 * len(self.table))
        for number in self._owners:
            self._enter(number)
        return stopped

    def _enter(self, number: int) -> None:
        registration_kernels.index_registration(
            self._at(self.index, k.index_address), self._at(self.table), number
        )
