"""Decides which changefeed gets a worker next. Pure: keys in, keys out; the caller gives the time.

Three kinds of work compete for the same workers. A changefeed begins (fence, read progress), which only waits
for its sink; it delivers; or it delivers a share of its initial load, which takes seconds. Each kind has a
bound, so that no kind takes all workers:

| work | at once |
|---|---|
| begin | `cores` in all |
| deliver | `cores` for each changefeed, or fewer if its sink takes no more; changefeeds in turns |
| load | `cores` in all |

With `2 * cores + 2` workers, 2 workers are always left for deliveries. On a cluster, each worker has one
core: there, at most `cores - 2` changefeeds begin at once, and as many load.

An address of a sink is *proven* if the last piece of work that ended there got its answers, and no worker has
been stuck there since. At an address that is not proven, only one changefeed begins and one delivers at a
time, and changefeeds at proven addresses begin first. So a sink that is down occupies at most two workers, no
matter how many changefeeds wait for it, and in addition the workers that are stuck there: those that were
using it when it went down, and one more each time the last one is stuck as well, because the trouble may be
that of one changefeed. Spare workers replace those that are stuck.

A worker counts as stuck only after more than a second. Until then, changefeeds at a sink that has just gone
down would take all workers. So an address is *silent* if it has got `UNANSWERED_MAX` deliveries since its
last answer, or one and has given no answer for `SILENT_S`. A silent one leaves the last `cores` free workers
to others while another address is proven. One that answers is not silent for long, and may have all workers.
After `SILENT_MAX_S` a worker there would be stuck, so its workers are only busy with long pieces, and it does
not count as silent any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

UNANSWERED_MAX: Final = 2
"""Several changefeeds may have rows at the same moment, so a time alone would come too late."""
SILENT_S: Final = 0.1
"""About as long as a small piece takes. An address where many changefeeds deliver answers more often."""
SILENT_MAX_S: Final = 3.0
"""Longer than it takes until a worker counts as stuck (`connected_worker.STUCK_S`, `signs_of_life.WATCH_S`),
which ends the proof of its address. One that is still proven has workers that give signs of life.
"""


class WorkKind(Enum):
    """The kinds of work."""

    BEGIN = "begin"
    DELIVER = "deliver"
    LOAD = "load"


def workers_for(cores: int) -> int:
    """How many workers a machine has. More than cores: a worker that waits for its sink uses no core."""
    return 2 * cores + 2


def spares_for(cores: int) -> int:
    """How many spare workers a machine may have in addition, when sinks do not answer."""
    return workers_for(cores)


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Key]):
    """A changefeed that waits to begin."""

    key: Key
    address: str
    failures: int
    number: int

    @property
    def rank(self) -> tuple[int, int]:
        return self.failures, self.number


@dataclass(slots=True)
class _Owed:
    """The answers that an address with deliveries out owes."""

    deliveries: int
    """How many it has got since its last answer."""
    since: float
    """When it got the first of them."""


class Timetable(Generic[Key]):
    """The work that is out, and the choice of the next."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._apart = cores
        """How many may begin at once, and how many may load. The other workers are left for deliveries."""
        self._reserve = cores
        """How many free workers an address with a stuck worker, or a silent one, leaves to the others."""
        # Not more: while loads have `cores` workers as well, one there must still get a worker now and then.
        self._reserve_more = cores + 1
        """The same if several are stuck there: it is less likely that the next one is not."""
        self._begins: dict[Key, _Waiting[Key]] = {}
        self._loads: Counter[Key] = Counter()
        """The number of waiting shares of each changefeed's load."""
        self._out: Counter[tuple[Key, WorkKind]] = Counter()
        self._addresses: dict[Key, str] = {}
        self._proven: set[str] = set()
        self._stuck: set[Key] = set()
        """The changefeeds with a stuck delivery."""
        self._now = 0.0
        self._owed: dict[str, _Owed] = {}
        """By address, of those with a delivery out."""
        self._served: dict[Key, int] = {}
        """The number of each changefeed's last delivery. Numbers rise, so the smallest waits longest."""
        self._number = 0

    def resize(self, cores: int) -> None:
        """Set the number of workers of a cluster, which has one worker for each core."""
        self._cores = cores
        # At least one, or a cluster of one or two cores would begin nothing at all.
        self._apart = max(1, cores - 2)
        # There are no more workers than cores, so that as many as on one machine would be all.
        self._reserve = min(2, cores - 1)
        self._reserve_more = max(self._reserve, cores // 2)

    def tick(self, now: float) -> None:
        """Set the time, in monotonic seconds. It may be some hundredths of a second late."""
        self._now = now

    def ask_begin(self, key: Key, address: str, failures: int) -> None:
        """A changefeed waits to begin at a sink's address. `failures`: its consecutive failures before."""
        self._begins[key] = _Waiting(key, address, failures, self._next())
        self._addresses[key] = address

    def ask_load(self, key: Key) -> None:
        """A share of a changefeed's load waits."""
        self._loads[key] += 1

    def next_begin(self) -> Key | None:
        """The changefeed that may begin now; None: none."""
        if self._under_way(WorkKind.BEGIN) >= self._apart:
            return None
        tried = self._tried(WorkKind.BEGIN)
        # An address that is not proven gets one try at a time, so a sink that is down holds one worker.
        free = (one for one in self._begins.values() if one.address not in tried)
        # docs/guarantees.md#trouble-of-one-changefeed-does-not-spread-to-others: then by failures, so that a
        # feed whose own spec is at fault comes after those that have not failed.
        found = min(free, key=lambda one: (one.address not in self._proven, *one.rank), default=None)
        return None if found is None else found.key

    def next_load(self) -> Key | None:
        """The changefeed that may get a worker for its load now: the one with the fewest shares out, and
        among those the one that has waited longest.
        """
        if self._under_way(WorkKind.LOAD) >= self._apart:
            return None
        # First by the shares that are out and not in turns: shares take seconds, so a load that has no worker
        # must not wait for one that has several. Then in turns: while loads make way, only one share is out
        # at a time, and the load that begins first would have all of them until it ends.
        return min(self._loads, key=lambda key: self._out[key, WorkKind.LOAD], default=None)

    def in_turn(self, keys: Collection[Key]) -> list[Key]:
        """Sort changefeeds by their turn: the one whose last delivery is oldest comes first, those at
        addresses with a stuck worker come last.

        Those at an address that is only not proven do not: their delivery is what would prove it.
        """
        served, last = self._served, {self._addresses[key] for key in self._stuck} - self._proven
        return sorted(keys, key=lambda key: (self._addresses[key] in last, served.get(key, 0)))

    def room(self, key: Key, at_once: int, free: int) -> int:
        """How many more workers may deliver for a changefeed. `at_once`: how many its sink takes in all.
        `free`: how many workers are free; with 0, the answer is for a worker that is yet to come.
        """
        if self._addresses[key] in self._tried(WorkKind.DELIVER):
            return 0
        # The first delivery proves the address; only then more workers go there.
        most = min(at_once, self._cores) if self._addresses[key] in self._proven else 1
        more = most - self._out[key, WorkKind.DELIVER]
        # The next one there may be stuck as well, so a few workers are left for addresses that answer.
        address = self._addresses[key]
        if free and self._proven - {address} and (left := self._left_by(address)):
            more = min(more, free - left)
        return max(0, more)

    def give(self, key: Key, kind: WorkKind) -> None:
        """A worker has got a piece of a changefeed."""
        match kind:
            case WorkKind.BEGIN:
                del self._begins[key]
            case WorkKind.LOAD:
                # Back in at the end, so that `next_load` takes turns. Not at 0: it chooses among all keys.
                if left := self._loads.pop(key) - 1:
                    self._loads[key] = left
            case WorkKind.DELIVER:
                self._served[key] = self._next()
                owed = self._owed.setdefault(self._addresses[key], _Owed(0, self._now))
                # An earlier piece may still be out, so the last answer may be old.
                if not owed.deliveries:
                    owed.since = self._now
                owed.deliveries += 1
        self._out[key, kind] += 1

    def doubt(self, key: Key) -> None:
        """A worker is stuck with a delivery of this changefeed: its address is not proven any more.

        Otherwise, the other changefeeds at the address would take a worker each, and the spare workers too,
        until the first of them is given up.
        """
        self._proven.discard(self._addresses[key])
        self._stuck.add(key)

    def answered(self, key: Key, *, well: bool) -> None:
        """A piece has ended. `well`: its sink has answered until the end.

        Call it as soon as the result is known, because the latest result at an address counts.
        """
        address = self._addresses[key]
        (self._proven.add if well else self._proven.discard)(address)
        if well and address in self._owed:
            self._owed[address] = _Owed(0, self._now)
        self._stuck.discard(key)

    def back(self, key: Key, kind: WorkKind) -> None:
        """The worker of a piece has finished it, or is dead."""
        self._out[key, kind] -= 1
        # `has_out` and `_tried` look at the keys alone, so a count of 0 must not stay.
        if not self._out[key, kind]:
            del self._out[key, kind]
            self._stuck.discard(key)
            # A delivery may also end without an answer, because its worker is dead.
            if kind is WorkKind.DELIVER and not self._delivers_at(self._addresses[key]):
                self._owed.pop(self._addresses[key], None)

    def over(self, key: Key) -> None:
        """Give out no more pieces of a changefeed. Pieces that are out still come `back`."""
        # Its address stays until `forget`, because pieces that are out may still be `answered`.
        self._begins.pop(key, None)
        self._loads.pop(key, None)
        self._served.pop(key, None)

    def forget(self, key: Key) -> None:
        """Forget a changefeed that is over and has no piece out."""
        del self._addresses[key]
        # Otherwise addresses of changefeeds that are gone would pile up.
        self._proven &= set(self._addresses.values())

    def is_proven(self, key: Key) -> bool:
        """Whether the address of a changefeed is proven."""
        return self._addresses[key] in self._proven

    def others_answer(self, key: Key) -> bool:
        """Whether an address other than that of a changefeed is proven."""
        return bool(self._proven - {self._addresses[key]})

    def has_out(self, key: Key) -> bool:
        """Whether any worker has a piece of it."""
        return any(key == one for one, _ in self._out)

    def _tried(self, kind: WorkKind) -> set[str]:
        """The addresses that are not proven and already have a piece of this kind out. A stuck one does not
        count: if the trouble is that of one changefeed, another one can show that the address answers.
        """
        trying = (key for key, one in self._out if one is kind and key not in self._stuck)
        return {self._addresses[key] for key in trying} - self._proven

    def _left_by(self, address: str) -> int:
        """How many free workers an address leaves to others: none, if it answers and no worker is stuck."""
        if address in self._proven:
            return self._reserve if self._is_silent(address) else 0
        stuck = sum(self._addresses[key] == address for key in self._stuck)
        return (0, self._reserve, self._reserve_more)[min(stuck, 2)]

    def _is_silent(self, address: str) -> bool:
        """Whether its workers may wait in vain, although none of them counts as stuck yet."""
        owed = self._owed.get(address)
        if owed is None or not owed.deliveries:
            return False
        silent_s = self._now - owed.since
        return silent_s < SILENT_MAX_S and (owed.deliveries >= UNANSWERED_MAX or silent_s >= SILENT_S)

    def _delivers_at(self, address: str) -> bool:
        """Whether a delivery is out at an address."""
        delivering = (key for key, kind in self._out if kind is WorkKind.DELIVER)
        return any(self._addresses[key] == address for key in delivering)

    def _under_way(self, kind: WorkKind) -> int:
        return sum(count for (_, one), count in self._out.items() if one is kind)

    def _next(self) -> int:
        self._number += 1
        return self._number
