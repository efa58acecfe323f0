"""Which addresses of sinks answer, judged by the deliveries that are out there. Pure, without a clock.

    proven    the last piece of work that ended there got its answers, no worker has been stuck there since,
              and no deliveries have waited there for `SILENT_MAX_S` without an answer or a sign of life
    silent    it is proven, and owes answers: it has got `UNANSWERED_MAX` deliveries since its last answer, or
              one and has given no answer for `SILENT_S`
    trusted   it is proven and not silent, and its last answer is the latest of all, or less than `SILENT_S`
              old, or later than the time since when others are silent

A worker counts as stuck only after more than a second. Until then a sink that has just gone down looks like
one that is slow. So the last free workers are for addresses that show at this moment that they answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

UNANSWERED_MAX: Final = 2
"""Several changefeeds may have rows at the same moment, so a time alone would come too late."""
SILENT_S: Final = 0.1
"""About as long as a small piece takes. An address where many changefeeds deliver answers more often."""
SILENT_MAX_S: Final = 3.0
"""Longer than it takes until a worker that knows its sink counts as stuck (`connected_worker.STUCK_S`,
`signs_of_life.WATCH_S`). Deliveries that are the first of their worker do not count as stuck before this.
"""
ASKED_S: Final = 1.0
"""Most addresses that answer at all do so within this time."""


@dataclass(slots=True)
class _Owed:
    """The answers that an address with deliveries out owes."""

    deliveries: int
    """How many it has got since its last answer."""
    since: float
    """When it got the first of them."""
    alive_at: float = float("-inf")
    """When a worker there gave its last sign of life."""


class Addresses:
    """The addresses at which work has ended, or deliveries are out."""

    def __init__(self) -> None:
        self._now = 0.0
        self._proven: set[str] = set()
        self._owed: dict[str, _Owed] = {}
        """By address, if a delivery is out there."""
        self._answered_at: dict[str, float] = {}
        self._latest = ""
        """The proven address whose last answer is the latest of all."""

    def tick(self, now: float) -> None:
        """Set the time, in monotonic seconds, and doubt the addresses that have been silent for too long."""
        self._now = now
        for address, owed in self._owed.items():
            # The workers there may all be at their first piece, and such a one counts as stuck only at an
            # address that is not proven. Without this rule nobody would ever doubt the address.
            if owed.deliveries and now - max(owed.since, owed.alive_at) >= SILENT_MAX_S:
                self.doubt(address)

    def given(self, address: str) -> None:
        """A delivery was given out at an address."""
        owed = self._owed.setdefault(address, _Owed(0, self._now))
        # An earlier piece may still be out, so the last answer may be old.
        if not owed.deliveries:
            owed.since = self._now
        owed.deliveries += 1

    def answered(self, address: str, *, well: bool) -> None:
        """A piece of work has ended at an address. The latest result counts."""
        if not well:
            self.doubt(address)
            return
        self._proven.add(address)
        self._answered_at[address] = self._now
        self._latest = address
        if address in self._owed:
            self._owed[address] = _Owed(0, self._now)

    def alive(self, address: str) -> None:
        """A worker at an address is busy with a long piece, and has given a sign of life."""
        if address in self._owed:
            self._owed[address].alive_at = self._now

    def none_out(self, address: str) -> None:
        """No delivery is out at an address any more; those that ended without an answer had dead workers."""
        self._owed.pop(address, None)

    def doubt(self, address: str) -> None:
        """An address is not proven any more."""
        self._proven.discard(address)
        if address == self._latest:
            self._latest = max(self._proven, key=self._answered_at.__getitem__, default="")

    def keep(self, used: Collection[str]) -> None:
        """Forget all other addresses. Otherwise those of changefeeds that are gone would pile up."""
        for address in [one for one in self._answered_at if one not in used]:
            self.doubt(address)
            del self._answered_at[address]

    def is_proven(self, address: str) -> bool:
        """Whether an address is proven."""
        return address in self._proven

    def is_silent(self, address: str) -> bool:
        """Whether the workers there may wait in vain, although none of them counts as stuck yet."""
        owed = self._owed.get(address)
        if owed is None or not owed.deliveries:
            return False
        # Busy with long pieces. Otherwise the others at the address would wait for the end of one of them.
        if owed.alive_at > owed.since:
            return False
        return owed.deliveries >= UNANSWERED_MAX or self._now - owed.since >= SILENT_S

    def is_trusted(self, address: str) -> bool:
        """Whether an address shows that it answers now."""
        if address not in self._proven or self.is_silent(address):
            return False
        silent = (
            owed.since for one, owed in self._owed.items() if self.is_silent(one) and one in self._proven
        )
        # Addresses that went down together with the silent ones have not answered since.
        since = max(silent, default=self._now)
        return address == self._latest or self._answered_at[address] > min(since, self._now - SILENT_S)

    def age_s(self, address: str) -> float:
        """The age of the last answer of an address, in seconds. 0 if it is trusted."""
        if self.is_trusted(address):
            return 0.0
        return self._now - self._answered_at.get(address, float("-inf"))

    def is_one_asked(self) -> bool:
        """Whether an address that is not trusted has got a delivery within `ASKED_S`, and owes the answer."""
        lately = self._now - ASKED_S
        asked = (one for one, owed in self._owed.items() if owed.deliveries and owed.since > lately)
        return any(not self.is_trusted(one) for one in asked)

    def is_another_proven(self, address: str) -> bool:
        """Whether an address other than this one is proven."""
        return len(self._proven) > (address in self._proven)
