"""The ranges of keys that an owner has granted: which capture has each, and how far it is durable there.

    grant --> running, reports (range, token, incarnation) --> durable, resolved: of all wanted keys

A part of `control.owner`, which changes it; others only read it. A report counts only if it comes from the
capture that has the range, under the present token and incarnation. While a wanted key is granted to no
capture, nothing counts as durable.

There may be thousands of ranges, and a capture usually reports all that it has, many times a second. So their
progress is in columns, one set for each capture: a report of all ranges is compared and taken as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import compress

from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeColumns, RangeProgress
from tidegate.model.span import Span


@dataclass(slots=True)
class CaptureRanges:
    """The ranges of one capture in the order of its grant, and the owner's knowledge of each, in columns."""

    incarnation: int
    granted: tuple[GrantedRange, ...]
    checkpoints: list[int]
    resolved: list[int]
    running: list[bool]
    places: dict[Span, int]
    """The place of each range in the columns."""

    def place(self, granted: GrantedRange) -> int | None:
        """The place of a range; None if it is not granted under this token."""
        found = self.places.get(granted.id)
        return found if found is not None and self.granted[found].token == granted.token else None

    def without(self, taken: Set[Span]) -> CaptureRanges:
        """The same without some ranges."""
        stays = [one.id not in taken for one in self.granted]
        granted = tuple(compress(self.granted, stays))
        return CaptureRanges(
            self.incarnation,
            granted,
            list(compress(self.checkpoints, stays)),
            list(compress(self.resolved, stays)),
            list(compress(self.running, stays)),
            _places(granted),
        )

    def report(self, said: RangeColumns) -> bool:
        """Take progress. False if some of it is of ranges that are not granted under that token.

        `checkpoints` is another list afterwards.
        """
        # A late report may be lower, but rows that were durable once stay durable.
        if len(said) == len(self.granted) and said.granted == self.granted:
            # The next report has the same objects (`messages.RANGES_REMEMBERED`), which are compared quickly.
            self.granted = said.granted
            self.checkpoints = list(map(max, self.checkpoints, said.checkpoints))
            self.resolved = list(map(max, self.resolved, said.resolved))
            return True
        counts, self.checkpoints = True, self.checkpoints.copy()
        for one, checkpoint, resolved in zip(said.granted, said.checkpoints, said.resolved, strict=True):
            place = self.place(one)
            if place is None:
                counts = False
                continue
            self.checkpoints[place] = max(checkpoint, self.checkpoints[place])
            self.resolved[place] = max(resolved, self.resolved[place])
        return counts


def _places(granted: Sequence[GrantedRange]) -> dict[Span, int]:
    found = {one.id: place for place, one in enumerate(granted)}
    assert len(found) == len(granted), "a range is granted once"
    return found


class GrantedRanges:
    """The granted ranges of one feed. Not thread-safe, no I/O."""

    def __init__(self, wanted: Span) -> None:
        """`wanted`: the part of the key space that the feed follows, all of which must be granted."""
        self.wanted = wanted
        self.captures: frozenset[str] = frozenset()
        """The captures that have a range."""
        self._held: dict[str, CaptureRanges] = {}
        """The ranges of each capture that has any."""
        self._holders: dict[Span, str] = {}
        """The capture of each range. A round grants to one capture after the other, and must not go through
        all captures for each range."""
        self._gap: Span | None = None
        self._gap_is_known = False
        """Whether `_gap` is `hole`. It is found when it is asked for: after all grants of a round, not after
        each, and not at each tick."""
        self._least: int | None = None
        """The least checkpoint of all ranges, cached until the next report or grant."""

    # --- what the owner learns -----------------------------------------------------------------------

    def grant(self, capture: str, incarnation: int, ranges: Sequence[GrantedRange]) -> None:
        """Grant a capture exactly these ranges for a new incarnation; the durable part of a range stays."""
        granted = tuple(ranges)
        places = _places(granted)
        # A range with other bounds begins at 0, until its processor reports. The owner's checkpoint does not
        # fall meanwhile.
        checkpoints = [0] * len(granted)
        taken: dict[str, set[Span]] = {}
        for place, new in enumerate(granted):
            if (holder := self._holders.get(new.id)) is None:
                continue
            held = self._held[holder]
            before = held.places[new.id]
            checkpoints[place] = held.checkpoints[before]
            if holder != capture:
                taken.setdefault(holder, set()).add(new.id)
            else:
                had = held.granted[before].token, held.incarnation
                assert had < (new.token, incarnation), "tokens and incarnations rise"
        # Other captures keep theirs: only this capture begins another incarnation.
        self._forget(capture)
        for giver, spans in taken.items():
            self._take(giver, spans)
        if granted:
            count = len(granted)
            self._held[capture] = CaptureRanges(
                incarnation, granted, checkpoints, [0] * count, [False] * count, places
            )
            self._holders.update(dict.fromkeys(places, capture))
        self._gap_is_known, self._least = False, None
        self.captures = frozenset(self._held)

    def _forget(self, capture: str) -> None:
        held = self._held.pop(capture, None)
        if held is not None and not self._held:
            # It was the last one, so all ranges that are left are its own.
            self._holders.clear()
        elif held is not None:
            for span in held.places:
                del self._holders[span]

    def _take(self, giver: str, spans: Set[Span]) -> None:
        """A capture that has not begun another incarnation yet loses ranges."""
        if len(spans) == len(self._held[giver].granted):
            del self._held[giver]
        else:
            self._held[giver] = self._held[giver].without(spans)

    def running(self, capture: str, incarnation: int, ranges: Iterable[GrantedRange]) -> None:
        """Note that a capture delivers these ranges now."""
        if (held := self._of(capture, incarnation)) is not None:
            for one in ranges:
                if (place := held.place(one)) is not None:
                    held.running[place] = True

    def report(self, capture: str, incarnation: int, progress: Iterable[RangeProgress]) -> bool:
        """Take the progress of ranges. Ranges under an old grant, or another capture's, do not count: then
        False.
        """
        said = RangeColumns.of(progress)
        held = self._of(capture, incarnation)
        if held is None:
            # An empty report claims nothing, so it is not one under an old grant.
            return not said
        before = held.checkpoints
        counts = held.report(said)
        if held.checkpoints != before:
            self._least = None
        return counts

    def _of(self, capture: str, incarnation: int) -> CaptureRanges | None:
        held = self._held.get(capture)
        return held if held is not None and held.incarnation == incarnation else None

    # --- what follows --------------------------------------------------------------------------------

    @property
    def are_running(self) -> bool:
        """Whether all of the wanted key space is granted, and all granted ranges are being delivered."""
        return self.hole is None and all(all(one.running) for one in self._held.values())

    @property
    def hole(self) -> Span | None:
        """The wanted key space from the first key that is granted to no capture; None: all is granted."""
        if not self._gap_is_known:
            self._gap, self._gap_is_known = self._find_gap(), True
        return self._gap

    def _find_gap(self) -> Span | None:
        at = self.wanted.start
        for span in sorted(self._holders, key=lambda one: one.start):
            # A gap. Ranges are in order of their starts, so no later one can fill it.
            if span.start > at:
                break
            if span.end == b"" or (self.wanted.end and span.end >= self.wanted.end):
                return None
            at = max(at, span.end)
        return Span(at, self.wanted.end)

    @property
    def durable(self) -> int:
        """The ts up to which every wanted key is durable, by reports; 0 while a part is granted to no
        capture.
        """
        if self.hole is not None:
            return 0
        if self._least is None:
            # docs/guarantees.md#after-resolved-r-no-row-at-or-below-r-appears-for-the-first-time: the slowest
            # range counts, whatever the others say.
            self._least = min(min(one.checkpoints) for one in self._held.values())
        return self._least

    @property
    def resolved(self) -> int:
        """The ts up to which all rows of the wanted key space were received."""
        return 0 if self.hole is not None else min(min(one.resolved) for one in self._held.values())

    @property
    def furthest(self) -> int:
        """The greatest ts up to which any range is durable; 0: nothing is granted."""
        return max((max(one.checkpoints) for one in self._held.values()), default=0)

    @property
    def slowest(self) -> str:
        """The capture whose range has the least checkpoint; empty: nothing is granted."""
        return min(self._held, key=lambda name: min(self._held[name].checkpoints), default="")

    def progress(self) -> list[tuple[str, Span, bool, int, int]]:
        """For people, in key order: capture, range, whether it runs, checkpoint and resolved ts."""
        found = [
            (name, *row)
            for name, one in self._held.items()
            for row in zip(one.places, one.running, one.checkpoints, one.resolved, strict=True)
        ]
        return sorted(found, key=lambda row: row[1].start)
