"""Whether the captures of a feed know the same DDL as its owner, and up to which ts their reports count.

    DDL that the owner reads --+
    KnownDdl of captures ------+--> they agree | one knows more: `lags` | one knows other DDL: `disagreement`

A part of `control.owner`, which changes it; others only read it. A capture that lacks a DDL reports its
ranges without the tables that the DDL adds. So its reports count only if its digest agrees with ours
(`control.ddl_log`), which covers the tables that are wanted below the DDL, too: what a capture has missed
while it had no ranges, or under an earlier owner, is noticed as soon as it reports. A capture that knows more
than we do is compared once we know as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.ddl_log import NOTHING, DdlLog, KnownDdl
from tidegate.model.timestamp import MAX


class DdlAgreement:
    """The comparison for one feed. `captures`: those with a granted range. Not thread-safe, no I/O."""

    def __init__(self, checkpoint: int, wanted: Iterable[SpanTask] = ()) -> None:
        """`wanted`: all spans that the feed wants at the checkpoint."""
        self._log = DdlLog(checkpoint, wanted)
        self._said: dict[str, tuple[KnownDdl, KnownDdl]] = {}
        """For each capture that knows DDL further than we do, the first and the furthest of its messages that
        are not compared yet.
        """
        self._others: dict[str, KnownDdl] = {}
        """For each capture that knows other DDL than we do, what it knows."""
        self._agreed: dict[str, int] = {}
        """For each capture, the ts after which it was found to know the same DDL as we do."""
        self._agreed_to: dict[str, int] = {}
        """For each capture, the ts up to which it was, in its present incarnation."""

    # --- what the owner learns -----------------------------------------------------------------------

    def begin(self, capture: str, captures: Set[str]) -> None:
        """A capture begins another incarnation; those that have no range any more are forgotten."""
        held: tuple[dict[str, Any], ...] = (self._said, self._others, self._agreed, self._agreed_to)
        for of_captures in held:
            for name in of_captures.keys() - captures:
                del of_captures[name]
        # The new incarnation may have opened its catalogue again: what the old one knew proves nothing.
        self._agreed_to.pop(capture, None)

    def learn(self, batches: Iterable[DdlBatch], known: int, captures: Set[str]) -> None:
        """Learn DDL, in order; all DDL up to `known` is known afterwards."""
        self._log.learn(batches, known)
        # We may know as much now as these captures did when they reported. Those that are still further come
        # back.
        waiting, self._said = self._said, {}
        for capture, (first, furthest) in waiting.items():
            self.receive(capture, first, captures)
            # If it were left out, its reports would count without a comparison until its next message.
            self.receive(capture, furthest, captures)

    def receive(self, capture: str, said: KnownDdl, captures: Set[str]) -> None:
        """Compare what a capture knows of DDL with ours, once we know as much."""
        if capture not in captures:
            return  # it only prepares: none of its reports count
        if said == NOTHING or self._log.has_forgotten(said):
            return
        if self._log.is_behind(said):
            # The first one is compared next, the furthest one covers all that was reported.
            first, furthest = self._said.get(capture, (said, said))
            self._said[capture] = first, said if said.upto >= furthest.upto else furthest
            return
        if self._log.agrees(said):
            # A late message may be from before they differed; it does not end a disagreement.
            if (other := self._others.get(capture)) is not None and said.upto < other.upto:
                return
            self._others.pop(capture, None)
            # Other captures may still report earlier DDL: forget only what all of them have passed.
            self._agreed[capture] = max(said.after, self._agreed.get(capture, 0))
            self._agreed_to[capture] = max(said.upto, self._agreed_to.get(capture, 0))
            self._log.forget(min(self._agreed.get(name, 0) for name in captures))
        else:
            self._others[capture] = said

    # --- what follows --------------------------------------------------------------------------------

    @property
    def disagreement(self) -> tuple[str, KnownDdl] | None:
        """A capture that knows other DDL than we do, and what it knows; None: there is none."""
        return next(iter(self._others.items()), None)

    @property
    def lags(self) -> bool:
        """Whether a capture knows DDL further than we do. If so, the caller reads DDL before the next tick,
        which may act on what that capture has reported.
        """
        return bool(self._said)

    @property
    def agreed_to(self) -> int:
        """The ts up to which reports count while a capture knows DDL further than we do.

        Its DDL is compared as a whole once we know as much. Until then its reports prove nothing above the
        last agreement, although we know the DDL there. Each report contains the capture's DDL, so a capture
        without known DDL has reported nothing.
        """
        return min((self._agreed_to.get(capture, 0) for capture in self._said), default=MAX)
