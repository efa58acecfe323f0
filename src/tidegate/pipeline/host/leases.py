"""Which worker writes in which slot of an incarnation. Pure.

A worker keeps its slot until the worker ends, or until another worker needs a slot while this one has no work
of the incarnation. If two workers took turns in a slot, each would fence the other's writer and open its own,
which takes longer than most pieces of work.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from tidegate.pipeline.exchange.work import Lease

Who = TypeVar("Who", bound=Hashable)


class Leases(Generic[Who]):
    """The leases of one incarnation."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held: dict[Who, Lease] = {}
        """The lease of each worker. The worker that got work last is the last one."""
        self._number = 0

    def lease(self, who: Who, busy: Collection[Who]) -> Lease | None:
        """A slot for a worker that gets work. None if workers `busy` with the incarnation have all slots."""
        mine = self._held.pop(who, None) or self._new(busy)
        if mine is not None:
            # Put back at the end of the order. So `_new` takes the slot of the idle worker whose last work
            # is oldest.
            self._held[who] = mine
        return mine

    def is_held(self, lease: Lease) -> bool:
        """Whether a worker has this lease now."""
        return lease in self._held.values()

    def end(self, who: Who) -> None:
        """Free the slot of a worker that is dead or disconnected."""
        self._held.pop(who, None)

    def _new(self, busy: Collection[Who]) -> Lease | None:
        taken = {lease.slot for lease in self._held.values()}
        slot = next((slot for slot in range(self._slots) if slot not in taken), None)
        if slot is None:
            holder = next((one for one in self._held if one not in busy), None)
            if holder is None:
                return None
            slot = self._held.pop(holder).slot
        # The slot may have had a holder before. A number is never used twice, so that holder opens a new
        # writer if it gets the slot back, and does not use the one that was fenced.
        self._number += 1
        return Lease(slot, self._number)
