"""Decides which changefeed gets a worker next. Pure: keys in, keys out; the caller gives the time.

Three kinds of work compete for the same workers. A changefeed begins (fence, read progress), which only waits
for its sink; it delivers; or it delivers a share of its initial load, which takes seconds. Each kind has a
bound, so that no kind takes all workers:

| work | at once |
|---|---|
| begin | `cores` in all; one less if it has failed, and its address is not proven |
| deliver | `cores` for each changefeed, or fewer if its sink takes no more; changefeeds in turns |
| load | `cores` in all |

With `2 * cores + 2` workers, 2 workers are always left for deliveries. On a cluster, each worker has one
core: there, at most `cores - 2` changefeeds begin at once, and as many load.

At an address of a sink that is not *proven* (`addresses`), only one changefeed begins and one delivers at a
time, and changefeeds at proven addresses begin first. So a sink that is down occupies at most two workers, no
matter how many changefeeds wait for it, and in addition the workers that are stuck there: those that were
using it when it went down, and one more each time the last one is stuck as well, because the trouble may be
that of one changefeed. Spare workers replace those that are stuck.

It takes more than a second until a worker counts as stuck. Until then, changefeeds at a sink that has just
gone down would take all workers. So a *silent* address leaves the last `cores` free workers to others while
another address is proven. One that answers is not silent for long, and may have all workers.

Many sinks may go down together, and owe few answers each. So from when a worker is stuck, the addresses that
are not *trusted* leave `LEFT` of the workers that are not stuck to those that are. Nor do they get more of
them, stuck ones included, than there may be spare workers, except one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from tidegate.pipeline.host.addresses import Addresses

Key = TypeVar("Key", bound=Hashable)

LEFT: Final = 2
"""How many workers the addresses that are not trusted leave to the others; one, if no delivery is out at the
address that asks. Fewer if most workers are stuck, and no spare ones have come: one of three, none of two.
"""
ASKED_S: Final = 1.0
"""The time for an answer to a delivery beyond these bounds. Then another address may be asked. Most addresses
that answer at all do so within this time.
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
        self._address_of: dict[Key, str] = {}
        self._addresses = Addresses()
        self._unanswered_max = spares_for(cores)
        """How many deliveries may be stuck or at addresses that are not trusted, except one at a time."""
        self._stuck: set[Key] = set()
        """The changefeeds with a stuck delivery."""
        self._in_trouble = False
        """Whether a delivery is stuck, or out at an address that is not proven any more."""
        self._counted: tuple[int, int] | None = None
        """The last result of `_unanswered`, unless something has changed since."""
        self._asked, self._asked_at = "", float("-inf")
        """The address that was last asked beyond the bounds (`_room_without_trust`), and when."""
        self._may_ask: set[str] = set()
        """The addresses that would be asked so by their next delivery."""
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
        # A cluster has no spare ones, and as few workers as this bound would then leave many of them idle.
        self._unanswered_max = cores

    def tick(self, now: float) -> None:
        """Set the time, in monotonic seconds. It may be some hundredths of a second late."""
        self._addresses.tick(now)
        delivering = (key for key, kind in self._out if kind is WorkKind.DELIVER)
        self._in_trouble = bool(self._stuck or self._not_proven(delivering))
        if not self._in_trouble:
            self._addresses.calm()
            self._may_ask.clear()
        self._counted = None

    def ask_begin(self, key: Key, address: str, failures: int) -> None:
        """A changefeed waits to begin at a sink's address. `failures`: its consecutive failures before."""
        self._begins[key] = _Waiting(key, address, failures, self._next())
        self._address_of[key] = address

    def ask_load(self, key: Key) -> None:
        """A share of a changefeed's load waits."""
        self._loads[key] += 1

    def next_begin(self) -> Key | None:
        """The changefeed that may begin now; None: none."""
        under_way, proven = self._under_way(WorkKind.BEGIN), self._addresses.is_proven
        if under_way >= self._apart:
            return None
        tried = self._tried(WorkKind.BEGIN)
        # An address that is not proven gets one try at a time, so a sink that is down holds one worker.
        free = [one for one in self._begins.values() if one.address not in tried]
        # If many sinks are down, those that have failed there must not hold all places for as long as that.
        if under_way >= max(1, self._apart - 1):
            free = [one for one in free if proven(one.address) or not one.failures]
        # docs/guarantees.md#trouble-of-one-changefeed-does-not-spread-to-others: then by failures, so that a
        # feed whose own spec is at fault comes after those that have not failed.
        found = min(free, key=lambda one: (not proven(one.address), *one.rank), default=None)
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
        served, last = self._served, self._not_proven(self._stuck)
        # While many wait for answers, only one more address is asked at a time (`_room_without_trust`). One
        # that has answered lately will do so again more likely than others.
        short = self._in_trouble and sum(self._unanswered()) >= self._unanswered_max
        ages = {key: self._addresses.age_s(self._address_of[key]) if short else 0.0 for key in keys}
        return sorted(keys, key=lambda key: (self._address_of[key] in last, ages[key], served.get(key, 0)))

    def room(self, key: Key, at_once: int, free: int) -> int:
        """How many more workers may deliver for a changefeed. `at_once`: how many its sink takes in all.
        `free`: how many workers are free; with 0, the answer is for a worker that is yet to come.
        """
        if self._address_of[key] in self._tried(WorkKind.DELIVER):
            return 0
        # The first delivery proves the address; only then more workers go there.
        address = self._address_of[key]
        most = min(at_once, self._cores) if self._addresses.is_proven(address) else 1
        more = most - self._out[key, WorkKind.DELIVER]
        if free and self._addresses.is_another_proven(address):
            # The next one there may be stuck as well, so a few workers are left for addresses that answer.
            if left := self._left_by(address):
                more = min(more, free - left)
            # Only in trouble: in turns is fairer while all answer, however long that takes them.
            if more > 0 and self._in_trouble and not self._addresses.is_trusted(address):
                more = min(more, self._room_without_trust(address, free))
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
                self._addresses.given(self._address_of[key])
                if self._address_of[key] in self._may_ask:
                    self._asked, self._asked_at = self._address_of[key], self._addresses.now
                    self._may_ask.clear()
        self._out[key, kind] += 1
        self._counted = None

    def doubt(self, key: Key) -> None:
        """A worker is stuck with a delivery of this changefeed: its address is not proven any more.

        Otherwise, the other changefeeds at the address would take a worker each, and the spare workers too,
        until the first of them is given up.
        """
        self._addresses.doubt(self._address_of[key])
        self._stuck.add(key)
        self._in_trouble, self._counted = True, None

    def alive(self, key: Key) -> None:
        """A worker with a long delivery of this changefeed has given a sign of life."""
        self._addresses.alive(self._address_of[key])
        self._counted = None

    def answered(self, key: Key, *, well: bool) -> None:
        """A piece has ended. `well`: its sink has answered until the end.

        Call it as soon as the result is known, because the latest result at an address counts.
        """
        self._addresses.answered(self._address_of[key], well=well)
        self._counted = None
        self._stuck.discard(key)

    def back(self, key: Key, kind: WorkKind) -> None:
        """The worker of a piece has finished it, or is dead."""
        self._out[key, kind] -= 1
        self._counted = None
        # `has_out` and `_tried` look at the keys alone, so a count of 0 must not stay.
        if not self._out[key, kind]:
            del self._out[key, kind]
            self._stuck.discard(key)
            # A delivery may also end without an answer, because its worker is dead.
            if kind is WorkKind.DELIVER and not self._delivers_at(self._address_of[key]):
                self._addresses.none_out(self._address_of[key])

    def over(self, key: Key) -> None:
        """Give out no more pieces of a changefeed. Pieces that are out still come `back`."""
        # Its address stays until `forget`, because pieces that are out may still be `answered`.
        self._begins.pop(key, None)
        self._loads.pop(key, None)
        self._served.pop(key, None)

    def forget(self, key: Key) -> None:
        """Forget a changefeed that is over and has no piece out."""
        del self._address_of[key]
        self._addresses.keep(set(self._address_of.values()))

    def is_proven(self, key: Key) -> bool:
        """Whether the address of a changefeed is proven."""
        return self._addresses.is_proven(self._address_of[key])

    def others_answer(self, key: Key) -> bool:
        """Whether an address other than that of a changefeed is proven."""
        return self._addresses.is_another_proven(self._address_of[key])

    def has_out(self, key: Key) -> bool:
        """Whether any worker has a piece of it."""
        return any(key == one for one, _ in self._out)

    def _tried(self, kind: WorkKind) -> set[str]:
        """The addresses that are not proven and already have a piece of this kind out. A stuck one does not
        count: if the trouble is that of one changefeed, another one can show that the address answers.
        """
        return self._not_proven(key for key, one in self._out if one is kind and key not in self._stuck)

    def _not_proven(self, keys: Iterable[Key]) -> set[str]:
        """The addresses of these changefeeds that are not proven."""
        found = {self._address_of[key] for key in keys}
        return {address for address in found if not self._addresses.is_proven(address)}

    def _left_by(self, address: str) -> int:
        """How many free workers an address leaves to others: none, if it answers and no worker is stuck."""
        if self._addresses.is_proven(address):
            return self._reserve if self._addresses.is_silent(address) else 0
        stuck = sum(self._address_of[key] == address for key in self._stuck)
        return (0, self._reserve, self._reserve_more)[min(stuck, 2)]

    def _room_without_trust(self, address: str, free: int) -> int:
        """How many more workers an address that is not trusted may have."""
        stuck, held = self._unanswered()
        moving = free + sum(self._out.values()) - stuck
        delivers = self._delivers_at(address)
        # Without a delivery there, nobody finds out whether it answers. Its first one may take all but one.
        left = LEFT if delivers else 1
        # A third of them at most, or a changefeed might wait in vain while stuck workers are not replaced.
        more = moving - min(left, self._reserve, moving // 3) - held
        more = min(more, self._unanswered_max - stuck - held)
        self._may_ask.discard(address)
        # Otherwise an address that answers might wait until those that do not are given up.
        waited_s = self._addresses.now - self._asked_at
        if more <= 0 and not delivers and (waited_s >= ASKED_S or not self._addresses.owes(self._asked)):
            self._may_ask.add(address)
            return 1
        return more

    def _unanswered(self) -> tuple[int, int]:
        """How many deliveries are stuck, and how many others are at addresses that are not trusted."""
        if self._counted is None:
            trusts = self._addresses.is_trusted
            moving = {key: count for (key, kind), count in self._out.items() if kind is WorkKind.DELIVER}
            stuck = sum(moving.pop(key, 0) for key in self._stuck)
            held = sum(count for key, count in moving.items() if not trusts(self._address_of[key]))
            self._counted = stuck, held
        return self._counted

    def _delivers_at(self, address: str) -> bool:
        """Whether a delivery is out at an address."""
        delivering = (key for key, kind in self._out if kind is WorkKind.DELIVER)
        return any(self._address_of[key] == address for key in delivering)

    def _under_way(self, kind: WorkKind) -> int:
        return sum(count for (_, one), count in self._out.items() if one is kind)

    def _next(self) -> int:
        self._number += 1
        return self._number
