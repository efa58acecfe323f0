"""Finds topics on which nothing fails and from which nevertheless nothing will be applied. Pure.

The consumer applies a row only when a watermark covers it, so a topic that is read without any error can
still keep the target unchanged for ever. Each sign is reported once, as an error that says what to do:

| sign | reported |
|---|---|
| written without what the protocol needs for watermarks: no message can be one | at the first such rows |
| some partitions have a watermark, others have none | read to the end `PATIENCE_S` after the first watermark
|
| no watermark in any partition | `PATIENCE_S` after rows were read to the end of the topic |
| an empty topic | after `STALL_S` |
| the lowest watermark does not advance | after `STALL_S`; again when it has advanced in between |
| no message of `MANY_BAD` can be decoded: the wrong protocol | at once |

The first two and the last can never pass by themselves: `lasting`. They end a run with `until`, and the last
ends any run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.codec import registry
from tidegate.consumer.engine.fetched import Fetched
from tidegate.errors import InvalidInput
from tidegate.model.timestamp import readable

PATIENCE_S: Final = 10.0
"""Seconds in which a running changefeed sends many watermarks to every partition."""
STALL_S: Final = 30.0
MANY_BAD: Final = 20


@dataclass(slots=True)
class _PartitionState:
    """The state of one partition in this run."""

    watermark: int
    end_since: float | None = None
    """When it was first read to its end."""
    end_last: float = float("-inf")
    """When it was last read to its end."""


@dataclass(slots=True)
class _Counts:
    messages: int = 0
    rows: int = 0
    bad: int = 0
    why: str = ""
    """The reason why the first bad message is bad."""
    unmarked: bool = False
    """Whether rows were written without what their protocol needs for watermarks."""


@dataclass(slots=True)
class StallDetector:
    """Watches one source on its way into one target; times are monotonic seconds given by the caller."""

    topic: str
    protocol: str
    watermarks: Mapping[int, int]
    """The watermarks in the target's position, 0 for a fresh target."""
    until: int | None
    began: float
    by_offset: bool = False
    """Whether there are no watermarks to wait for."""
    lasting: InvalidInput | None = None
    """A sign that cannot pass by itself, if there is one."""
    present: dict[str, InvalidInput] = field(default_factory=dict)
    """The signs that hold now, by kind."""
    _reported: set[str] = field(default_factory=set)
    _partitions: dict[int, _PartitionState] = field(init=False)
    _counts: _Counts = field(default_factory=_Counts)
    _fresh: bool = field(init=False)
    _marked: float | None = None
    """When the first watermark of any partition was seen in this run."""
    _moved: float = field(init=False)
    _lowest: int = field(init=False)
    _lacking: tuple[int, ...] = ()
    _lacking_since: float = 0.0

    def __post_init__(self) -> None:
        self._partitions = {number: _PartitionState(ts) for number, ts in self.watermarks.items()}
        self._fresh = not any(self.watermarks.values())
        self._moved, self._lowest = self.began, min(self.watermarks.values())

    def join(self, numbers: Iterable[int]) -> None:
        """Add partitions that are read from now on."""
        self._partitions |= {number: _PartitionState(0) for number in numbers}
        # The new partitions have no watermark yet, so the patience with silent ones begins again.
        self._marked = None

    def leave(self, numbers: Iterable[int]) -> None:
        """Remove partitions that are not read any more."""
        for number in numbers:
            del self._partitions[number]

    def saw(self, fetched: Iterable[Fetched], at_end: Iterable[int], now: float) -> None:
        """Take the results of one round; `at_end`: the partitions that are read to their ends."""
        counts = self._counts
        for part in fetched:
            seen = self._partitions[part.partition]
            seen.watermark = max([seen.watermark, *(ts for ts, _ in part.resolved)])
            counts.messages += part.messages
            counts.rows += sum(segment.rows for segment in part.segments) + len(part.ddls)
            counts.bad += len(part.bad)
            counts.why = counts.why or next((message.why for message in part.bad), "")
            counts.unmarked = counts.unmarked or part.unmarked
        for number in at_end:
            seen = self._partitions[number]
            seen.end_since = now if seen.end_since is None else seen.end_since
            seen.end_last = now
        if self._marked is None and any(seen.watermark for seen in self._partitions.values()):
            self._marked = now
        lowest = min(seen.watermark for seen in self._partitions.values())
        if lowest > self._lowest:
            self._lowest, self._moved = lowest, now
            # It has moved, so another stall is news.
            self._reported.discard("stalled")

    def lacks(self, numbers: Iterable[int], now: float) -> None:
        """Take the partitions on which the copy of a DDL is missing now."""
        found = tuple(numbers)
        if found != self._lacking:
            self._lacking, self._lacking_since = found, now
            self._reported.discard("lacking")

    def unreachable(self, now: float) -> None:
        """The broker does not answer: restart the times, because missing messages are no sign meanwhile."""
        self._moved = now
        for seen in self._partitions.values():
            seen.end_since, seen.end_last = None, float("-inf")

    def news(self, now: float) -> list[InvalidInput]:
        """The signs that have newly appeared. Also updates `present` and `lasting`."""
        self.present = {}
        for kind, sign in (_SIGNS_BY_OFFSET if self.by_offset else _SIGNS).items():
            found = sign(self, now)
            if found is not None:
                self.present[kind] = found
        self.lasting = next((self.present[kind] for kind in _LASTING if kind in self.present), None)
        fresh = [found for kind, found in self.present.items() if kind not in self._reported]
        self._reported |= self.present.keys()
        return fresh

    @property
    def unreadable(self) -> bool:
        """Whether the topic has another protocol: then its messages do not belong into quarantine."""
        return "unreadable" in self.present

    # --- the signs

    def _unreadable(self, now: float) -> InvalidInput | None:
        counts = self._counts
        # A single message that can be decoded shows that the protocol is right, and so does a target that was
        # filled before.
        if not self._fresh or counts.bad < MANY_BAD or counts.bad < counts.messages:
            return None
        return InvalidInput(
            f"none of {counts.bad} messages can be decoded as {self.protocol}",
            where=f"topic {self.topic}",
            why=counts.why,
            fix="check protocol=... in --source; `tidegate peek SOURCE --from-beginning` shows the messages",
        )

    def _unmarked(self, now: float) -> InvalidInput | None:
        unmarked = registry.codec(self.protocol).unmarked
        if unmarked is None or not self._counts.unmarked:
            return None
        # The position may have a watermark from before, if the extension was switched off since. Then it is a
        # stall.
        if any(seen.watermark for seen in self._partitions.values()):
            return None
        return InvalidInput(
            "the topic has no watermarks, so nothing can be applied",
            where=f"topic {self.topic}, {self._counts.messages} messages read",
            why=unmarked.why,
            fix="start a new target with --mode row, which applies changes as it reads them, not by "
            f"transaction; or create a changefeed with {unmarked.option} in its sink URI, into a new topic, "
            "and read that one",
        )

    def _silent_partitions(self, now: float) -> InvalidInput | None:
        # All of them silent is another sign (`_no_watermark`): then the partitions' number is not the cause.
        silent = [number for number, seen in self._partitions.items() if not seen.watermark]
        if not silent or len(silent) == len(self._partitions):
            return None
        # The copies of one broadcast become readable one after the other. So a partition lacks it for certain
        # only if it is read to its end `PATIENCE_S` after the first watermark.
        if self._marked is None:
            return None
        if any(self._partitions[number].end_last < self._marked + PATIENCE_S for number in silent):
            return None
        others = len(self._partitions) - len(silent)
        tail = min(silent) == others
        return InvalidInput(
            f"partition {_listed(silent)} of the topic has no watermark, so nothing can be applied",
            where=f"topic {self.topic} of {len(self._partitions)} partitions",
            why="the other partitions have watermarks: "
            + (
                "the changefeed writes fewer partitions than the topic has"
                if tail
                else "messages are missing"
            ),
            fix=f"add partition-num={others} to --source, as in the changefeed's sink URI"
            if tail
            else "read a topic that one changefeed has written from its beginning",
        )

    def _no_watermark(self, now: float) -> InvalidInput | None:
        waiting = not any(seen.watermark for seen in self._partitions.values())
        if not waiting or not self._counts.rows or self._counts.unmarked:
            return None
        # A partition that was only just read may have its watermark ahead.
        if not all(self._read_for(number, PATIENCE_S, now) for number in self._partitions):
            return None
        unmarked = registry.codec(self.protocol).unmarked
        option = f", with {unmarked.option} in its sink URI" if unmarked is not None else ""
        return InvalidInput(
            "the topic has no watermark yet, so nothing can be applied",
            where=f"topic {self.topic}, {self._counts.messages} messages read",
            why="a running changefeed sends watermarks to every partition many times a second",
            fix=f"check that the changefeed runs (`tidegate changefeed list`){option}",
        )

    def _empty(self, now: float) -> InvalidInput | None:
        # Without any message nothing has moved, so `_moved` is the start, or the end of an outage.
        if self._counts.messages or not self._fresh or now - self._moved < STALL_S:
            return None
        return InvalidInput(
            "the topic has no messages",
            where=f"topic {self.topic}",
            why=f"nothing came in {STALL_S:.0f} s, and a running changefeed sends watermarks all the time",
            fix="check --source, and that the changefeed runs (`tidegate changefeed list`)",
        )

    def _stalled(self, now: float) -> InvalidInput | None:
        # 0: some partition had no watermark yet, for which there are other signs.
        if not self._lowest or now - self._moved < STALL_S:
            return None
        behind = [number for number, seen in self._partitions.items() if seen.watermark == self._lowest]
        short = f"; --until is {self.until}" if self.until is not None else ""
        return InvalidInput(
            f"no new watermark has come for {STALL_S:.0f} s",
            where=f"topic {self.topic}, partition {_listed(behind)} at {self._lowest} "
            f"({readable(self._lowest)}){short}",
            why="the changefeed has stopped, waits for something, or its sink is in trouble",
            fix="see `tidegate changefeed list`; the consumer continues as soon as watermarks come",
        )

    def _lacks_copies(self, now: float) -> InvalidInput | None:
        if not self._lacking or now - self._lacking_since < STALL_S:
            return None
        return InvalidInput(
            f"a DDL has no copy on partition {_listed(list(self._lacking))}, so nothing behind it is applied",
            where=f"topic {self.topic} of {len(self._partitions)} partitions",
            why="the changefeed sends a DDL to each partition that it writes; it has stopped in between, or "
            "writes fewer partitions",
            fix="see that the changefeed runs; if it writes fewer partitions, begin a new target with its "
            "partition-num=N in --source",
        )

    def _read_for(self, number: int, seconds: float, now: float) -> bool:
        """Whether at least so many seconds have passed since a partition was first read to its end."""
        since = self._partitions[number].end_since
        return since is not None and now - since >= seconds


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"


_SIGNS: Final[Mapping[str, Callable[[StallDetector, float], InvalidInput | None]]] = {
    "unreadable": StallDetector._unreadable,
    "no extension": StallDetector._unmarked,
    "silent partitions": StallDetector._silent_partitions,
    "no watermark": StallDetector._no_watermark,
    "empty": StallDetector._empty,
    "stalled": StallDetector._stalled,
}
_SIGNS_BY_OFFSET: Final = {
    "unreadable": StallDetector._unreadable,
    "lacking": StallDetector._lacks_copies,
}
_LASTING: Final = ("unreadable", "no extension", "silent partitions")
