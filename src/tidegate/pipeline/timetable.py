"""Who gets a worker next, among all changefeeds. Pure: keys in, keys out, no clock.

Three kinds of work ask for the same workers. A changefeed begins (fence, read progress), which waits for its
sink and for nothing else; it delivers; or a share of its initial load is delivered, which takes seconds. Each
kind has a bound, so that none takes all the workers:

| work | at once |
|---|---|
| begin | `cores` in all |
| deliver | `cores` for each changefeed, or fewer if its sink takes no more; changefeeds in turns |
| load | `cores` in all |

With `2 * cores + 2` workers, deliveries have 2 for themselves, whatever begins and loads there are. On a
cluster a worker is a core: `cores - 2` begin, and as many load.

An address is *proven* by the last piece of work that ended there: it answered. At one that is not, one
changefeed begins and one delivers at a time, and those at others begin first. So a sink that is down holds
two workers at most, however many changefeeds wait for it; and those that it held when it went down. For those
there are spare workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Kind(Enum):
    """Of work."""

    BEGIN = "begin"
    DELIVER = "deliver"
    LOAD = "load"


def workers_for(cores: int) -> int:
    """How many there are: one that waits for a sink uses no core."""
    return 2 * cores + 2


def spares_for(cores: int) -> int:
    """How many more there may be once sinks do not answer."""
    return workers_for(cores)


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Key]):
    """A changefeed that is to begin."""

    key: Key
    address: str
    failures: int
    number: int

    @property
    def rank(self) -> tuple[int, int]:
        return self.failures, self.number


class Timetable(Generic[Key]):
    """What is under way, and who comes next."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._apart = cores
        """How many may begin, and how many may load, at once: some workers are left for deliveries."""
        self._begins: dict[Key, _Waiting[Key]] = {}
        self._loads: Counter[Key] = Counter()
        """Shares that wait."""
        self._out: Counter[tuple[Key, Kind]] = Counter()
        self._addresses: dict[Key, str] = {}
        self._proven: set[str] = set()
        self._served: dict[Key, int] = {}
        """When each had its last delivery, in numbers that rise."""
        self._number = 0

    def resize(self, cores: int) -> None:
        """So many workers there are now, all told, on a cluster."""
        self._cores = cores
        self._apart = max(1, cores - 2)

    def ask_begin(self, key: Key, address: str, failures: int) -> None:
        """It is to begin at a sink's address; `failures`: how often in a row it has failed before."""
        self._begins[key] = _Waiting(key, address, failures, self._next())
        self._addresses[key] = address

    def ask_load(self, key: Key) -> None:
        """A share of its load waits."""
        self._loads[key] += 1

    def next_begin(self) -> Key | None:
        """Who may begin now."""
        if self._under_way(Kind.BEGIN) >= self._apart:
            return None
        tried = self._tried(Kind.BEGIN)
        free = (one for one in self._begins.values() if one.address not in tried)
        found = min(free, key=lambda one: (one.address not in self._proven, *one.rank), default=None)
        return None if found is None else found.key

    def next_load(self) -> Key | None:
        """Of whose load a share may be given out now: whoever has the fewest out."""
        if self._under_way(Kind.LOAD) >= self._apart:
            return None
        return min(self._loads, key=lambda key: self._out[key, Kind.LOAD], default=None)

    def in_turn(self, keys: Collection[Key]) -> list[Key]:
        """Those who may have something to deliver, in the order in which they are looked at."""
        return sorted(keys, key=lambda key: self._served.get(key, 0))

    def room(self, key: Key, at_once: int) -> int:
        """How many more workers may deliver for it, if its sink takes so many `at_once`."""
        if self._addresses[key] in self._tried(Kind.DELIVER):
            return 0
        most = min(at_once, self._cores) if self._addresses[key] in self._proven else 1
        return max(0, most - self._out[key, Kind.DELIVER])

    def give(self, key: Key, kind: Kind) -> None:
        """A worker has a piece of it."""
        match kind:
            case Kind.BEGIN:
                del self._begins[key]
            case Kind.LOAD:
                self._loads -= Counter({key: 1})
            case Kind.DELIVER:
                self._served[key] = self._next()
        self._out[key, kind] += 1

    def answered(self, key: Key, *, well: bool) -> None:
        """A piece has ended; `well`: its sink has answered to the end. Say it at once: what others find at
        that address later counts more.
        """
        (self._proven.add if well else self._proven.discard)(self._addresses[key])

    def back(self, key: Key, kind: Kind) -> None:
        """The worker of a piece is done with it, or dead."""
        self._out[key, kind] -= 1
        if not self._out[key, kind]:
            del self._out[key, kind]

    def over(self, key: Key) -> None:
        """Nothing more of it is given out; what is out comes `back` all the same."""
        self._begins.pop(key, None)
        self._loads.pop(key, None)
        self._served.pop(key, None)

    def forget(self, key: Key) -> None:
        """It is over, and nothing of it is out."""
        del self._addresses[key]
        self._proven &= set(self._addresses.values())

    def has_out(self, key: Key) -> bool:
        """Whether any worker has a piece of it."""
        return any(key == one for one, _ in self._out)

    def _tried(self, kind: Kind) -> set[str]:
        """The addresses that are not proven, and where one has a piece of this kind."""
        return {self._addresses[key] for key, one in self._out if one is kind} - self._proven

    def _under_way(self, kind: Kind) -> int:
        return sum(count for (_, one), count in self._out.items() if one is kind)

    def _next(self) -> int:
        self._number += 1
        return self._number
