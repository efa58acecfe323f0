"""The registrations of a stream: a slot in the kernels' table for each, and the index that finds it.

A slot of a stopped registration is not free at once, because records and waiting rows of earlier messages
name their slot. If the slot were used again before those are removed, they would count as rows of the next
registration. So slots are taken back all together, by `take_back`, after the caller has compacted the open
rows (`pairing`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.kernel import address
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import slot_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.addresses import Addresses
from tidegate.puller.match.matched import Registration


class Registrations:
    """Who is registered. `slots` is the table of the kernels, which also write to it."""

    def __init__(self, addresses: Addresses) -> None:
        self._at = addresses.at
        self.slots: k.U64 = np.zeros((64, k.SLOT_WORDS), dtype=np.uint64)
        self.index = k.slot_index(256)
        self._owners: dict[int, Registration] = {}
        self._free = list(range(63, -1, -1))

    @property
    def is_full(self) -> bool:
        """Whether `take_back` comes before the next `add`."""
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
        """Take a free slot; for the arguments see `BlockMatcher.register`."""
        slot = self._free.pop()
        held = (pa.py_buffer(bounds.start), pa.py_buffer(bounds.end))
        line = self.slots[slot]
        line[:] = 0
        line[k.S_STATE] = k.SCANNING
        line[k.S_REGION], line[k.S_REQUEST], line[k.S_SPAN] = region_id, request_id, span
        line[k.S_MARK] = mark
        line[k.S_CHECKPOINT], line[k.S_RESOLVED] = checkpoint, checkpoint
        line[k.S_FROM], line[k.S_FROM_SIZE] = address(held[0]), len(bounds.start)
        line[k.S_TO], line[k.S_TO_SIZE] = address(held[1]), len(bounds.end)
        line[k.S_RECORDS] = records
        registration = Registration(slot, request_id, region_id, span, mark, bounds, held)
        self._owners[slot] = registration
        self._enter(slot)
        return registration

    def owner(self, slot: int) -> Registration | None:
        """The registration that has a slot, stopped or not."""
        return self._owners.get(slot)

    def is_live(self, registration: Registration) -> bool:
        """Whether it is initialized and has not ended."""
        slot = registration.slot
        return bool(self.slots[slot, k.S_STATE] == k.LIVE) and self._owners.get(slot) is registration

    def stop(self, registration: Registration) -> bool:
        """Drop rows that still come for it; False: its slot has been taken back already."""
        if self._owners.get(registration.slot) is not registration:
            return False
        self.slots[registration.slot, k.S_STATE] = k.STOPPED
        self.unmark_spilled(registration.slot)
        return True

    def restore(self, registration: Registration, state: int, resolved: Timestamp) -> None:
        """Continue it where another matcher had it when its log began."""
        slot = registration.slot
        self.slots[slot, k.S_STATE], self.slots[slot, k.S_RESOLVED] = state, resolved

    def mark_spilled(self, slot: int) -> None:
        """From now on the kernels log what comes for it, instead of matching it."""
        self.slots[slot, k.S_SPILLED] = 1
        self.slots[slot, k.S_DUE] = self.slots[slot, k.S_LEAST] = 0

    def unmark_spilled(self, slot: int) -> None:
        """From now on the kernels match what comes for it."""
        self.slots[slot, k.S_SPILLED] = self.slots[slot, k.S_DUE] = self.slots[slot, k.S_LEAST] = 0

    def take_back(self) -> list[int]:
        """Free the slots that are stopped, and double the table if they are few; returns the freed slots.

        No record or waiting row may name one of them any more.
        """
        stopped: list[int] = np.flatnonzero(self.slots[:, k.S_STATE] == k.STOPPED).tolist()
        for slot in stopped:
            self.unmark_spilled(slot)
            self.slots[slot, k.S_STATE] = k.FREE
            self._owners.pop(slot, None)
        self._free = list(stopped)
        if 2 * len(self._free) < len(self.slots):
            old = len(self.slots)
            self.slots = np.vstack([self.slots, np.zeros_like(self.slots)])
            self._free += range(2 * old - 1, old - 1, -1)
        self.index = k.slot_index(4 * len(self.slots))
        for slot in self._owners:
            self._enter(slot)
        return stopped

    def _enter(self, slot: int) -> None:
        slot_kernels.index_slot(self._at(self.index, k.index_address), self._at(self.slots), slot)
