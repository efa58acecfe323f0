"""The last rows that the manifests of many spans name: enough to see which spans have no rows to deliver.

    a manifest is read --> note --> floors rise --> without_rows: those whose manifest need not be read again

Most spans of a changefeed are idle: their floors rise, and their manifests stay as they are. To look at a
thousand files to learn that costs ten times as much as the rest of a tick, and one comparison of arrays
answers the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidegate.eventstore.manifest import Manifest, StoreFrontier
from tidegate.model.timestamp import MAX
from tidegate.model.ts_by_span import Places, SpanOrder, TsArray


class LastRows:
    """The content of manifests when each was read last, for the spans of an order. Not thread-safe."""

    def __init__(self, order: SpanOrder) -> None:
        self.order = order
        self._versions: TsArray = np.zeros(len(order), np.uint64)
        # No ts is above that, so a span whose manifest was not read yet may have rows.
        self._last: TsArray = np.full(len(order), MAX, np.uint64)
        self._dropped_to: TsArray = np.zeros(len(order), np.uint64)

    def in_order(self, order: SpanOrder) -> LastRows:
        """The notes for the spans of another order; there is none about a span that is only in that one.

        Notes are about a span's id. So they hold whichever tables of a span are wanted, and also if the span
        was removed in between: no other manifest ever has the same version (`eventstore.records`).
        """
        if order is self.order:
            return self
        found, places = LastRows(order), {name: place for place, name in enumerate(self.order.names)}
        before = np.fromiter((places.get(name, -1) for name in order.names), np.intp, len(order))
        now = np.flatnonzero(before >= 0)
        found._versions[now] = self._versions[before[now]]
        found._last[now] = self._last[before[now]]
        found._dropped_to[now] = self._dropped_to[before[now]]
        return found

    def note(self, place: int, manifest: Manifest) -> None:
        """Note a manifest that was just read. `place`: that of its span in the order."""
        self._versions[place] = manifest.version
        self._last[place] = max((one.last_ts for one in manifest.segments), default=0)
        self._dropped_to[place] = manifest.dropped_to

    def without_rows(self, frontier: StoreFrontier, places: Places, after: TsArray) -> npt.NDArray[np.bool_]:
        """For each of some spans, whether it certainly has no row above `after`, up to its floor.

        `places`: [some], those of the spans in the order. `after`: [some]. A span of which rows above `after`
        were dropped is not among them, nor is one whose floor names another manifest than the one noted.

        If it names that one, the rows up to the floor are known: a version always means the same content, and
        the floor was written when that content had every row up to it. No later change of the file makes this
        untrue (`eventstore.manifest`), so the file need not be read again.
        """
        # docs/guarantees.md#a-loss-of-power-costs-a-pull-and-nothing-else: a floor counts only with the
        # manifest that it names.
        is_named = frontier.versions_of(self.order)[places] == self._versions[places]
        found: npt.NDArray[np.bool_] = is_named & (self._last[places] <= after)
        return found & (self._dropped_to[places] <= after)
