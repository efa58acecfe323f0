"""Which incarnations have changed since the last scan: cheap enough to be done a hundred times a second.

Rows of a changefeed may have become due when the manifest of one of its spans has changed, or a file of its
bounds. The store's page of floors shows changed manifests: one comparison of a few kilobytes serves all
changefeeds. A floor that only rises with time, without rows, makes nothing due.

The files of bounds cost two calls of the system. They are replaced while the changefeed has rows, so each
scan looks at those of changefeeds that had any in the last EAGER_S. Without rows they are replaced only if
spans are added or removed. So a scan looks at CALM_AT_ONCE of the others, in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from tidegate.eventstore import store_view
from tidegate.eventstore.floors import PageMark
from tidegate.pipeline.host.incarnation import Incarnation

EAGER_S: Final = 2.0
"""For this long after rows have come, or a bounds file was replaced, each scan looks at that file."""
CALM_AT_ONCE: Final = 20
"""The number of other bounds files that a scan looks at. With 200 changefeeds each has its turn after ten
scans.
"""


class DueScan:
    """Finds incarnations that have changed. For one thread."""

    def __init__(self) -> None:
        self._turn = 0
        """The place of the first incarnation whose turn it is."""
        self._pages: dict[str, PageMark | None] = {}
        """The mark of each store's page. Keys are strings: comparing `Path`s costs more than the rest."""

    def may_be_due(self, incarnations: Iterable[Incarnation], now: float) -> list[Incarnation]:
        """The incarnations of which rows may have become due since the last scan, and those whose time to
        be looked at has come (`looks_at`, monotonic like `now`).
        """
        there = list(incarnations)
        spans = {store: self._turned(store) for store in {one.store for one in there}}
        for gone in self._pages.keys() - spans.keys():
            del self._pages[gone]
        first = self._turn if self._turn < len(there) else 0
        self._turn = first + CALM_AT_ONCE
        return [
            one
            for place, one in enumerate(there)
            if self._may_be_due(one, spans[one.store], now, in_turn=first <= place < self._turn)
        ]

    def _turned(self, store: str) -> frozenset[str] | None:
        """The spans whose manifest has changed. None: it may be any of them."""
        before, mark = self._pages.get(store), store_view.page_mark(store)
        self._pages[store] = mark
        if mark is None:
            return None
        return frozenset() if mark == before else mark.changed_since(before)

    def _may_be_due(
        self, one: Incarnation, turned: frozenset[str] | None, now: float, *, in_turn: bool
    ) -> bool:
        assert one.backlog is not None
        has_rows = turned is None or not turned.isdisjoint(one.backlog.spans)
        # Looking at a bounds file is a system call, so only those with a reason are looked at, and a few in
        # turn.
        is_reported = (has_rows or in_turn or now < one.eager_until) and self._is_reported(one)
        if has_rows or is_reported:
            one.eager_until = now + EAGER_S
        return is_reported or has_rows or now >= one.looks_at

    @staticmethod
    def _is_reported(one: Incarnation) -> bool:
        """Whether its bounds file was replaced since the last look at it."""
        assert one.backlog is not None
        mark = one.bounds_mark
        with suppress(OSError):  # `Backlog.look` reads the file as well, and raises the error
            mark = one.backlog.bounds_mark()
        is_other, one.bounds_mark = mark != one.bounds_mark, mark
        return is_other
