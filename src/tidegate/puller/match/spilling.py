"""Which registrations of a stream go to disk, and the steps that bring them there.

The kernels log the records of marked registrations, so registrations are marked first. Records leave the
arena only after all of them are on disk. If the disk is full before that, the marks are taken back, and
nothing has changed: no row is ever in neither place.
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
        """Numbers of registrations whose resolved ts would pass one of their logged commits."""
        numbers: list[int] = np.flatnonzero(self._registrations.table[:, k.REG_DUE]).tolist()
        return numbers

    def due(self, number: int) -> tuple[Registration, SpillLog] | None:
        """The due registration of this number, and its log; None, and due no longer, if it has ended."""
        owner, log = self._registrations.owner(number), self._folder.logs.get(number)
        if owner is None or log is None or not self._registrations.is_live(owner):
            self._registrations.table[number, k.REG_DUE] = 0
            return None
        return owner, log

    def flush(self) -> None:
        """Write what was logged in memory to disk. Raises DiskFull; then nothing has changed."""
        self._folder.flush(self._counts, len(self._registrations.table))

    def tend(self) -> None:
        """Remove logs of registrations that have ended, and write what was logged once it is much."""
        table = self._registrations.table
        for number in list(self._folder.logs):
            if table[number, k.REG_STATE] == k.STOPPED:
                self.forget(number)
        if self._counts[k.C_LOG] > self._folder.room // 2:
            self.flush()

    def forget(self, number: int) -> None:
        """A registration is not spilled any more, whatever its log has."""
        self._registrations.unmark_spilled(number)
        self._folder.forget(number)

    def new_log(self, state: int, resolved: int) -> SpillLog:
        """An empty log, of no registration yet."""
        return self._folder.new_log(state, resolved)

    def put(self, number: int, log: SpillLog) -> None:
        """Spill a registration of which nothing is in memory to a log."""
        self._folder.logs[number] = log
        self._registrations.mark_spilled(number)

    def close(self) -> None:
        """Remove what is on disk."""
        self._folder.close()

    def spill_largest(self, limit: int) -> None:
        """Spill registrations, those that hold most, until half of the limit is free.

        Half, so that the next messages do not make it spill again at once. Raises DiskFull.
        """
        table, counts, open_rows = self._registrations.table, self._counts, self._pairing.open_rows
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
            self._log_all(spill_kernels.log_open, open_rows.arena, k.RECORD, int(counts[k.C_ARENA]))
            self._log_all(spill_kernels.log_waiting, open_rows.waiting, 0, int(counts[k.C_WAITING]))
            self.flush()
        except BaseException:
            counts[k.C_LOG] = 0
            for number in chosen:
                self.forget(number)
            raise
        open_rows.let_go()
        open_rows.compact()
        open_rows.compact_waiting(int(counts[k.C_WAITING]))

    def _log_all(self, log: LogKernel, arena: k.U8, at: int, end: int) -> None:
        """Run one of the kernels that log an arena's records of spilled registrations, to its end."""
        folder, table = self._folder, self._registrations.table
        while at < end:
            memory = address(folder.memory), folder.room
            at = log(address(arena), at, end, address(table), *memory, address(self._counts))
            if at < end:
                if self._counts[k.C_LOG]:
                    self.flush()
                else:
                    folder.grow(0)
