"""The ranges of keys that an owner has granted: which capture has each, and how far it is durable there.

    grant --> running, reports (range, token, incarnation) --> durable, resolved: of all wanted keys

A part of `control.owner`, which changes it; others only read it. A report counts only if it comes from the
capture that has the range, under the present token and incarnation. While a wanted key is granted to no
capture, nothing counts as durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeProgress
from tidegate.model.span import Span


@dataclass(slots=True)
class RangeOfCapture:
    """The owner's knowledge of a granted range."""

    capture: str
    granted: GrantedRange
    incarnation: int
    checkpoint: int
    resolved: int = 0
    running: bool = False


class GrantedRanges:
    """The granted ranges of one feed. Not thread-safe, no I/O."""

    def __init__(self, wanted: Span) -> None:
        """`wanted`: the part of the key space that the feed follows, all of which must be granted."""
        self.wanted = wanted
        self.captures: frozenset[str] = frozenset()
        """The captures that have a range."""
        self._ranges: dict[Span, RangeOfCapture] = {}
        self._spans: dict[str, dict[Span, None]] = {}
        """The ranges of each capture. A round grants to one capture after the other, and must not go through
        all ranges for each of them."""
        self._gap: Span | None = None
        self._gap_is_known = False
        """Whether `_gap` is `hole`. It is found when it is asked for: after all grants of a round, not after
        each, and not at each tick."""
        self._least: int | None = None
        """The least checkpoint of all ranges, cached until the next report or grant."""

    # --- what the owner learns -----------------------------------------------------------------------

    def grant(self, capture: str, incarnation: int, ranges: Sequence[GrantedRange]) -> None:
        """Grant a capture exactly these ranges for a new incarnation; the durable part of a range stays."""
        held, before = self._ranges, self._spans.pop(capture, {})
        known = {one.id: held[one.id].checkpoint for one in ranges if one.id in held}
        assert all(
            (one.granted.token, one.incarnation) < (new.token, incarnation) or one.capture != capture
            for new in ranges
            if (one := held.get(new.id)) is not None
        ), "tokens and incarnations rise"
        # Other captures keep theirs: only this capture begins another incarnation.
        for span in before:
            del held[span]
        for new in ranges:
            if (giver := held.get(new.id)) is not None and giver.capture != capture:
                self._take_from(giver.capture, new.id)
            # A range with other bounds begins at 0, until its processor reports. The owner's checkpoint does
            # not fall meanwhile.
            held[new.id] = RangeOfCapture(capture, new, incarnation, known.get(new.id, 0))
        if ranges:
            self._spans[capture] = dict.fromkeys(new.id for new in ranges)
        self._gap_is_known, self._least = False, None
        self.captures = frozenset(self._spans)

    def _take_from(self, giver: str, span: Span) -> None:
        """A capture that has not begun another incarnation yet loses a range."""
        del self._spans[giver][span]
        if not self._spans[giver]:
            del self._spans[giver]

    def running(self, capture: str, incarnation: int, ranges: Iterable[GrantedRange]) -> None:
        """Note that a capture delivers these ranges now."""
        for one in ranges:
            if (known := self._of(capture, incarnation, one)) is not None:
                known.running = True

    def report(self, capture: str, incarnation: int, progress: Iterable[RangeProgress]) -> bool:
        """Take the progress of ranges. Ranges under an old grant, or another capture's, do not count: then
        False.
        """
        counts = True
        for one in progress:
            known = self._of(capture, incarnation, GrantedRange(one.id, one.token))
            if known is None:
                counts = False
                continue
            # A late report may be lower, but rows that were durable once stay durable.
            if one.checkpoint_ts > known.checkpoint:
                known.checkpoint, self._least = one.checkpoint_ts, None
            known.resolved = max(one.resolved_ts, known.resolved)
        return counts

    def _of(self, capture: str, incarnation: int, granted: GrantedRange) -> RangeOfCapture | None:
        known = self._ranges.get(granted.id)
        mine = known is not None and (known.capture, known.incarnation) == (capture, incarnation)
        return known if mine and known is not None and known.granted == granted else None

    # --- what follows --------------------------------------------------------------------------------

    @property
    def are_running(self) -> bool:
        """Whether all of the wanted key space is granted, and all granted ranges are being delivered."""
        return self.hole is None and all(one.running for one in self._ranges.values())

    @property
    def hole(self) -> Span | None:
        """The wanted key space from the first key that is granted to no capture; None: all is granted."""
        if not self._gap_is_known:
            self._gap, self._gap_is_known = self._find_gap(), True
        return self._gap

    def _find_gap(self) -> Span | None:
        at = self.wanted.start
        for span in sorted(self._ranges, key=lambda one: one.start):
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
            self._least = min(one.checkpoint for one in self._ranges.values())
        return self._least

    @property
    def resolved(self) -> int:
        """The ts up to which all rows of the wanted key space were received."""
        return 0 if self.hole is not None else min(one.resolved for one in self._ranges.values())

    @property
    def furthest(self) -> int:
        """The greatest ts up to which any range is durable; 0: nothing is granted."""
        return max((one.checkpoint for one in self._ranges.values()), default=0)

    @property
    def slowest(self) -> str:
        """The capture whose range has the least checkpoint; empty: nothing is granted."""
        found = min(self._ranges.values(), key=lambda one: one.checkpoint, default=None)
        return found.capture if found is not None else ""

    def progress(self) -> list[tuple[str, Span, bool, int, int]]:
        """For people, in key order: capture, range, whether it runs, checkpoint and resolved ts."""
        found = sorted(self._ranges.items(), key=lambda one: one[0].start)
        return [(one.capture, span, one.running, one.checkpoint, one.resolved) for span, one in found]
