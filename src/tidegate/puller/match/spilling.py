"""Chooses which registrations of a stream are spilled to disk, and performs the steps.

The kernels log only the records of marked registrations, so registrations are marked first. Records are
removed from the arena only after all of them are on disk. If the disk becomes full before that, the marks are
removed and nothing has changed. At every moment each row is in the arena, in the log, or in both.
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

    @property
    def is_used(self) -> bool:
        """Whether a registration is spilled."""
        return bool(self._folder.logs)

    def due_registrations(self) -> list[int]:
        """The numbers of registrations with a resolved ts that would pass one of their logged commits."""
        numbers: list[int] = np.flatnonzero(self._registrations.table[:, k.REG_DUE]).tolist()
        return numbers

    def due(self, number: int) -> tuple[Registration, SpillLog] | None:
        """The due registration with this number, and its log. If it has ended: None, and it is not due."""
        owner, log = self._registrations.owner(number), self._folder.logs.get(number)
        if owner is None or log is None or not self._registrations.is_live(owner):
            self._registrations.table[number, k.REG_DUE] = 0
            return None
        return owner, log

    def flush(self) -> None:
        """Write the log records in memory to disk. Raises DiskFull; then nothing has changed."""
        self._folder.flush(self._counts, len(self._registrations.table))

    def tend(self) -> None:
        """Remove logs of ended registrations, and flush once half of the log's memory is used."""
        table = self._registrations.table
        # A violation stops a registration inside the kernels, which know nothing of files.
        for number in list(self._folder.logs):
            if table[number, k.REG_STATE] == k.STOPPED:
                self.forget(number)
        # At half, because a full log interrupts `match` in the middle of a portion.
        if self._counts[k.C_LOG] > self._folder.room // 2:
            self.flush()

    def forget(self, number: int) -> None:
        """Unmark a spilled registration and delete its log."""
        self._registrations.unmark_spilled(number)
        self._folder.forget(number)

    def new_log(self, state: int, resolved: int) -> SpillLog:
        """An empty log that does not belong to a registration yet."""
        return self._folder.new_log(state, resolved)

    def put(self, number: int, log: SpillLog) -> None:
        """Spill a registration without rows in memory: assign the log to it, and mark it."""
        self._folder.logs[number] = log
        self._registrations.mark_spilled(number)

    def close(self) -> None:
        """Remove all logs."""
        self._folder.close()

    def spill_largest(self, limit: int) -> None:
        """Spill the registrations that hold most, until half of the limit is free.

        Half, because otherwise the next messages would cause another spill at once. Raises DiskFull; then no
        registration was spilled.
        """
        table, counts, open_rows = self._registrations.table, self._counts, self._pairing.open_rows
        # Rows of registrations that are already spilled may be only in the log's memory. A failure below
        # empties it, so they must be on disk first.
        self.flush()
        chosen: list[int] = []
        left = open_rows.live_bytes
        for number in np.argsort(table[:, k.REG_OPEN])[::-1].tolist():
            if left <= limit // 2 or table[number, k.REG_OPEN] == 0:
                break
            left -= int(table[number, k.REG_OPEN])
            chosen.append(number)
        try:
            for number in chosen:
                self.put(
                    number,
                    self.new_log(int(table[number, k.REG_STATE]), int(table[number, k.REG_RESOLVED])),
                )
            # Prewrites before the rows that wait for them: playback takes the log in order.
            self._log_all(spill_kernels.log_open, open_rows.arena, k.RECORD, int(counts[k.C_ARENA]))
            self._log_all(spill_kernels.log_waiting, open_rows.waiting, 0, int(counts[k.C_WAITING]))
            self.flush()
        except BaseException:
            counts[k.C_LOG] = 0
            for number in chosen:
                self.forget(number)
            raise
        # Only here are the records on disk, so that the arenas may lose them.
        open_rows.unpin()
        open_rows.compact()
        open_rows.compact_waiting(int(counts[k.C_WAITING]))

    def _log_all(self, log: LogKernel, arena: k.U8, at: int, end: int) -> None:
        """Run `log_open` or `log_waiting` over a whole arena; flush the log's memory when it is full."""
        folder, table = self._folder, self._registrations.table
        while at < end:
            memory = address(folder.memory), folder.room
            at = log(address(arena), at, end, address(table), *memory, address(self._counts))
            if at < end:
                if self._counts[k.C_LOG]:
                    self.flush()
                else:
                    # The log is empty, and still the next record does not fit.
                    folder.grow(0)
