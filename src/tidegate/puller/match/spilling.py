"""Which registrations of a stream go to disk, and the steps that bring them there.

The kernels log the records of marked slots, so slots are marked first. Records leave the arena only after all
of them are on disk. On a full disk before that the marks are taken back, and nothing has changed: no row is
ever in neither place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegate.kernel import address
from tidegate.puller.match import spill_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.matched import Registration
from tidegate.puller.match.pairing import Pairing
from tidegate.puller.match.spill import SpillFolder, SpillLog

LogKernel = Callable[[int, int, int, int, int, int, int], int]


class Spilling:
    """The spilled registrations of a stream: their marks in `pairing`, and their logs in `folder`."""

    def __init__(self, pairing: Pairing, folder: SpillFolder) -> None:
        self._pairing, self._folder = pairing, folder
        self._counts, self._registrations = pairing.counts, pairing.registrations

    def due_slots(self) -> list[int]:
        """Slots of registrations whose resolved ts would pass one of their logged commits."""
        slots: list[int] = np.flatnonzero(self._registrations.slots[:, k.S_DUE]).tolist()
        return slots

    def due(self, slot: int) -> tuple[Registration, SpillLog] | None:
        """The registration of a due slot, and its log; None, and due no longer, if it has ended meanwhile."""
        owner, log = self._registrations.owner(slot), self._folder.logs.get(slot)
        if owner is None or log is None or not self._registrations.is_live(owner):
            self._registrations.slots[slot, k.S_DUE] = 0
            return None
        return owner, log

    def flush(self) -> None:
        """Write what was logged in memory to disk. Raises DiskFull; then nothing has changed."""
        self._folder.flush(self._counts, len(self._registrations.slots))

    def tend(self) -> None:
        """Remove logs of registrations that have ended, and write what was logged once it is much."""
        slots = self._registrations.slots
        for slot in list(self._folder.logs):
            if slots[slot, k.S_STATE] == k.STOPPED:
                self.forget(slot)
        if self._counts[k.C_LOG] > self._folder.room // 2:
            self.flush()

    def forget(self, slot: int) -> None:
        """A registration is not spilled any more, whatever its log has."""
        self._registrations.unmark_spilled(slot)
        self._folder.forget(slot)

    def new_log(self, state: int, resolved: int) -> SpillLog:
        """An empty log, of no slot yet."""
        return self._folder.new_log(state, resolved)

    def put(self, slot: int, log: SpillLog) -> None:
        """Spill a registration of which nothing is in memory to a log."""
        self._folder.logs[slot] = log
        self._registrations.mark_spilled(slot)

    def close(self) -> None:
        """Remove what is on disk."""
        self._folder.close()

    def spill_largest(self, limit: int) -> None:
        """Spill registrations, those that hold most, until half of the limit is free.

        Half, so that the next messages do not make it spill again at once. Raises DiskFull.
        """
        slots, counts, open_rows = self._registrations.slots, self._counts, self._pairing.open_rows
        self.flush()
        chosen: list[int] = []
        left = open_rows.live_bytes
        for slot in np.argsort(slots[:, k.S_OPEN])[::-1].tolist():
            if left <= limit // 2 or slots[slot, k.S_OPEN] == 0:
                break
            left -= int(slots[slot, k.S_OPEN])
            chosen.append(slot)
        try:
            for slot in chosen:
                self.put(slot, self.new_log(int(slots[slot, k.S_STATE]), int(slots[slot, k.S_RESOLVED])))
            self._log_all(spill_kernels.log_open, open_rows.arena, k.RECORD, int(counts[k.C_ARENA]))
            self._log_all(spill_kernels.log_waiting, open_rows.waiting, 0, int(counts[k.C_WAITING]))
            self.flush()
        except BaseException:
            counts[k.C_LOG] = 0
            for slot in chosen:
                self.forget(slot)
            raise
        open_rows.let_go()
        open_rows.compact()
        open_rows.compact_waiting(int(counts[k.C_WAITING]))

    def _log_all(self, log: LogKernel, arena: k.U8, at: int, end: int) -> None:
        """Run one of the kernels that log an arena's records of spilled slots, to its end."""
        folder, slots = self._folder, self._registrations.slots
        while at < end:
            memory = address(folder.memory), folder.room
            at = log(address(arena), at, end, address(slots), *memory, address(self._counts))
            if at < end:
                if self._counts[k.C_LOG]:
                    self.flush()
                else:
                    folder.grow(0)
