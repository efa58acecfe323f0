"""The open rows of a stream: prewrites without their commit, and commits without their prewrite.

Open prewrites are records in an *arena*, found through a hash table. During a scan a commit may arrive before
its prewrite; it then waits in a second arena, `waiting`, until its registration is initialized.

An arena never grows in place. `compact` copies the live records to a new arena and retires the old one,
because changes that were matched in the current call still point into it. Retired arenas are kept until
`unpin`: if they were freed earlier, a change would be gathered from memory that is used for something
else. For the same reason `reclaim`, which reuses an empty arena from its beginning, is called only before the
first portion of a call.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidegate.kernel import address, buffer
from tidegate.puller.match import bucket_kernels, open_kernels, spill_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.addresses import Addresses, power_of_two
from tidegate.puller.match.registrations import Registrations
from tidegate.puller.match.spill import SpillLog

_TABLE: Final = 2048
_SPARE_BYTES: Final = 4 << 20
"""The room that an arena keeps when it releases the memory of a peak; enough for a few portions."""


class OpenRows:
    """The open rows of all registrations of a stream. `counts`: the kernels' counters."""

    def __init__(self, registrations: Registrations, counts: k.I64, addresses: Addresses) -> None:
        self._registrations, self._counts = registrations, counts
        self._addresses, self._at = addresses, addresses.at
        self.arena, self.waiting = buffer(1 << 16), buffer(1 << 12)
        self.table = bucket_kernels.hash_table(_TABLE)
        self.dead = np.zeros(k.FREE_LISTS, dtype=np.int64)
        """The free records of the arena, by size class."""
        self._retired: list[k.U8] = []
        counts[k.C_ARENA] = k.RECORD

    @property
    def live_bytes(self) -> int:
        """The bytes of prewrites that wait for their commit."""
        return int(self._counts[k.C_LIVE])

    def is_at_rest(self, limit: int) -> bool:
        """Whether open prewrites take at most `limit` bytes, and `give_back` would release no memory."""
        return self.live_bytes <= limit and not self._is_mostly_empty

    @property
    def _is_mostly_empty(self) -> bool:
        return len(self.arena) > 8 * (_SPARE_BYTES + self.live_bytes)

    def reclaim(self) -> None:
        """Reuse empty arenas from their beginning."""
        counts = self._counts
        # No chain leads into the arena, so it can be filled from its beginning.
        if not self._registrations.table[:, k.REG_WAITING].any():
            counts[k.C_WAITING] = 0
        # The lists of freed records would lead behind the new end, so they are emptied, too.
        if counts[k.C_LIVE] == 0:
            counts[k.C_ARENA], counts[k.C_ENDED] = k.RECORD, 0
            self.dead[:] = 0

    def release(self) -> None:
        """Free the space of matched prewrites for reuse. Their changes must have been gathered."""
        open_kernels.release(self._at(self.arena), self._at(self.dead), self._at(self._counts))

    def unpin(self) -> None:
        """Free the retired arenas. All changes that point into them must have been gathered."""
        self._retired.clear()
        self._addresses.forget()

    def make_room(self, rows: int, size: int) -> None:
        """Make room for `rows` rows in messages of `size` bytes, even if all of them stay open."""
        counts = self._counts
        # Only rows of a registration that scans can wait.
        if (self._registrations.table[:, k.REG_STATE] == k.SCANNING).any():
            need = int(counts[k.C_WAITING]) + size + (k.WAIT_RECORD + 8) * rows
            if need > len(self.waiting) - k.RECORD:
                self.compact_waiting(need)
        need = size + size // 8 + 2 * k.RECORD * rows  # sizes are rounded up, see `_class_of`
        if int(counts[k.C_ARENA]) + need > len(self.arena) - k.RECORD:
            self.compact(need)

    def compact(self, need: int = 0, *, drop_resolved: bool = False, victim: int = -1) -> None:
        """Copy the live records to a new arena with room for `need` more bytes.

        `drop_resolved`: drop prewrites that no commit can need any more. `victim`: the registration whose
        prewrites are dropped. Records of stopped registrations are always dropped.
        """
        counts, registrations = self._counts, self._registrations.table
        # Twice the need: the next compaction is then due only after as many bytes again, so its cost is
        # constant for each byte.
        arena = buffer(power_of_two(2 * (int(counts[k.C_LIVE]) + need) + k.RECORD))
        table = bucket_kernels.hash_table(max(_TABLE, 2 * int(counts[k.C_OPEN_ROWS])))
        # Replaced, not freed: changes of this call may point into it.
        self._retired += [self.arena]
        work = open_kernels.Compaction(
            old=self._at(self.arena),
            new=address(arena),
            table=bucket_kernels.table_address(table),
            free=self._at(self.dead),
            registrations=self._at(registrations),
            registration_count=len(registrations),
            drop_resolved=int(drop_resolved),
            victim=victim,
            counts=address(counts),
        )
        open_kernels.compact(work)
        self.arena, self.table = arena, table

    def compact_waiting(self, size: int) -> None:
        """Copy waiting rows, except those of stopped registrations, to an arena of at least 2 * `size`."""
        self._move_waiting(buffer(power_of_two(2 * size)))

    def forget_stopped(self) -> None:
        """Remove all rows of stopped registrations, so that their numbers can be reused."""
        self.compact()
        self._move_waiting(buffer(len(self.waiting)))

    def _move_waiting(self, fresh: k.U8) -> None:
        table = self._registrations.table
        open_kernels.compact_waiting(
            self._at(self.waiting), address(fresh), self._at(table), len(table), self._at(self._counts)
        )
        self._retired += [self.waiting]
        self.waiting = fresh

    def give_back(self) -> None:
        """Release memory that only a peak needed."""
        if self._is_mostly_empty:
            self.compact(_SPARE_BYTES)

    def shed(self, limit: int) -> None:
        """Drop prewrites, first of the registration that holds most, until at most `limit` bytes are left."""
        while self._counts[k.C_LIVE] > limit:
            # `_relieve` runs after the changes were copied. Without this each step would hold one more
            # arena.
            self.unpin()
            self.compact(drop_resolved=True, victim=int(self._registrations.table[:, k.REG_OPEN].argmax()))

    def double_table(self, rows: k.U64) -> None:
        """Double the hash table. `rows`: those of the current portion, to which its entries also refer."""
        table = bucket_kernels.hash_table(2 * bucket_kernels.table_room(self.table))
        open_kernels.rehash(
            self._at(self.table, bucket_kernels.table_address),
            bucket_kernels.table_address(table),
            self._at(rows),
            self._at(self.arena),
        )
        self.table = table

    def write_open(self, number: int, log: SpillLog) -> int:
        """Append the open prewrites of the only registration to a log; returns their bytes."""
        counts = self._counts
        self.compact(drop_resolved=True)
        # `log_open` takes only spilled registrations; the mark is never removed, because the tables of a
        # pass end here.
        self._registrations.mark_spilled(number)
        counts[k.C_LOG] = 0
        # A record's header in the log is 16 bytes longer than in the arena, and its padding is less than 8
        # bytes. So all records fit, and one call is enough.
        size = int(counts[k.C_ARENA]) + 32 * int(counts[k.C_OPEN_ROWS]) + 64
        memory = buffer(size)
        spill_kernels.log_open(
            self._at(self.arena),
            k.RECORD,
            int(counts[k.C_ARENA]),
            self._at(self._registrations.table),
            address(memory),
            size,
            address(counts),
        )
        used = int(counts[k.C_LOG])
        if used:
            log.append(memory[:used])
        return used
