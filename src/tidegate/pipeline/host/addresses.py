"""Which addresses of sinks answer, judged by the deliveries that are out there. Pure, without a clock.

    proven    the last piece of work that ended there got its answers, no worker has been stuck there since,
              and no deliveries have waited there for `SILENT_MAX_S` without an answer or a sign of life
    silent    it is proven, and owes answers: it has got `UNANSWERED_MAX` deliveries since its last answer, or
              one and has given no answer for `SILENT_S`
    trusted   it is proven, and has answered, or a worker there has given a sign of life, since the trouble
              began: since the first of the deliveries was given out that made an address doubtful

Sinks may go down together, and a worker counts as stuck only after more than a second. So while there is
trouble, an address that has not answered since may be the next one whose workers wait in vain.
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
        self._trouble_since = float("inf")
        """When the trouble began. Infinite: there is none."""

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
        owed = self._owed.get(address)
        since = owed.since if owed is not None and owed.deliveries else self._now
        self._trouble_since = min(self._trouble_since, since)

    def calm(self) -> None:
        """The trouble is over."""
        self._trouble_since = float("inf")

    def keep(self, used: Collection[str]) -> None:
        """Forget all other addresses. Otherwise those of changefeeds that are gone would pile up."""
        for address in [one for one in self._answered_at if one not in used]:
            self._proven.discard(address)
            del self._answered_at[address]

    def is_proven(self, address: str) -> bool:
        """Whether an address is proven."""
        return address in self._proven

    def is_silent(self, address: str) -> bool:
        """Whether the workers there may wait in vain, although none of them counts as stuck yet."""
        if not self.owes(address):
            return False
        owed = self._owed[address]
        # Busy with long pieces. Otherwise the others at the address would wait for the end of one of them.
        if owed.alive_at > owed.since:
            return False
        return owed.deliveries >= UNANSWERED_MAX or self._now - owed.since >= SILENT_S

    def owes(self, address: str) -> bool:
        """Whether a delivery that has no answer yet is out at an address."""
        owed = self._owed.get(address)
        return owed is not None and owed.deliveries > 0

    def is_trusted(self, address: str) -> bool:
        """Whether an address has shown in the trouble that it answers."""
        owed = self._owed.get(address)
        shown_at = max(self._answered_at.get(address, 0.0), float("-inf") if owed is None else owed.alive_at)
        return address in self._proven and shown_at > self._trouble_since

    def age_s(self, address: str) -> float:
        """The age of the last answer of an address, in seconds. 0 if it is trusted."""
        if self.is_trusted(address):
            return 0.0
        return self._now - self._answered_at.get(address, float("-inf"))

    @property
    def now(self) -> float:
        """The time of the last `tick`."""
        return self._now

    def is_another_proven(self, address: str) -> bool:
        """Whether an address other than this one is proven."""
        return len(self._proven) > (address in self._proven)
