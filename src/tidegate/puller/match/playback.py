"""Matches the log of a spilled registration, in as many passes as the memory bound requires.

Each pass reads the whole log with its own `Pairing` and matches one share of the keys, so the prewrites that
are open at once fit the bound. It does not touch the stream's tables. The prewrites that a pass leaves open
go to a new log, `rest`, because the stream may have no room for them either. A pass emits no mark: until the
last pass a change at or below the resolved ts may still be emitted, and after the mark no such change may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tidegate.model.timestamp import Timestamp
from tidegate.puller.match.matched import Happening, Matched, Note, Registration
from tidegate.puller.match.matcher import Violation
from tidegate.puller.match.pairing import NO_MARKS, NO_TS, Pairing
from tidegate.puller.match.recycler import Recycler
from tidegate.puller.match.spill import DamagedLogError, SpillLog

PLAYED: Final = 4096
"""The number of a log's rows that are matched at once."""


class Playback:
    """The playback of one registration's log. After all of `matched`, `rest` has `left` bytes."""

    def __init__(
        self,
        owner: Registration,
        log: SpillLog,
        rest: SpillLog,
        *,
        checkpoint: Timestamp,
        passes: int,
        slabs: Recycler,
        trust_empty: bool,
    ) -> None:
        """`checkpoint`: the one `owner` was registered with. `slabs`, `trust_empty`: those of its stream."""
        self._owner, self._log, self._rest = owner, log, rest
        self._checkpoint, self._passes = checkpoint, passes
        self._slabs, self._trust_empty = slabs, trust_empty
        self.left = 0

    def matched(self) -> Iterator[Matched]:
        """Changes, chunk by chunk. After a result with a note (VIOLATED) the caller ends the registration.

        A damaged log counts as a commit without its prewrite: the registration is made again, and its scan
        delivers every change. Raises DiskFull: then the caller plays the log back again, and changes are
        emitted twice.
        """
        try:
            for number in range(self._passes):
                yield from self._pass(number)
        except DamagedLogError:
            missing = Violation.PREWRITE_MISSING
            lost = Note(Happening.VIOLATED, self._owner, violation=missing, commit_ts=self._rest.resolved)
            yield Matched([], [lost], NO_MARKS, NO_TS, 0, 0)

    def _pass(self, number: int) -> Iterator[Matched]:
        owner = self._owner
        pairing = Pairing(
            self._slabs,
            trust_empty=self._trust_empty,
            events=PLAYED,
            rows=PLAYED,
            key_share=(number, self._passes),
        )
        one = pairing.registrations.add(
            owner.request_id, owner.region_id, owner.span, owner.mark, owner.bounds, self._checkpoint
        )
        # As it was when the log began, because the log's first rows are judged by that state.
        pairing.registrations.restore(one, self._log.state, self._log.resolved)
        for chunk in self._log.chunks():
            pairing.begin()
            pairing.feed_log(chunk, one)
            matched = pairing.take_changes()
            broken = [note for note in matched.notes if note.happening is Happening.VIOLATED]
            # The first violation ends the registration. INITIALIZED was already reported when it was
            # logged.
            matched.notes = [replace(note, registration=owner) for note in broken[:1]]
            yield matched
        # No two passes have a prewrite of the same transaction and key, so the order of their prewrites in
        # `rest` does not matter.
        self.left += pairing.open_rows.write_open(one.number, self._rest)
