"""Which worker writes in which slot of an incarnation. Pure.

A slot is leased to a worker until it ends, or until another one needs the slot while the first has no work of
the incarnation. Two workers that took turns in a slot would each close the other's writer at the sink, and
open their own: slower than most pieces of work.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from tidegate.pipeline.work import Lease

Who = TypeVar("Who", bound=Hashable)


class Leases(Generic[Who]):
    """Of one incarnation."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held: dict[Who, Lease] = {}
        """By whom; who had work last is the last."""
        self._number = 0

    def lease(self, who: Who, busy: Collection[Who]) -> Lease | None:
        """A slot for a worker that gets work; None: those `busy` with the incarnation have them all."""
        mine = self._held.pop(who, None) or self._new(busy)
        if mine is not None:
            self._held[who] = mine
        return mine

    def stands(self, lease: Lease) -> bool:
        """Whether somebody has it."""
        return lease in self._held.values()

    def end(self, who: Who) -> None:
        """It is dead, or has nothing to say any more; its slot is free."""
        self._held.pop(who, None)

    def _new(self, busy: Collection[Who]) -> Lease | None:
        taken = {lease.slot for lease in self._held.values()}
        slot = next((slot for slot in range(self._slots) if slot not in taken), None)
        if slot is None:
            holder = next((one for one in self._held if one not in busy), None)
            if holder is None:
                return None
            slot = self._held.pop(holder).slot
        self._number += 1
        return Lease(slot, self._number)
