"""Which incarnations have changed since the last scan: cheap enough to be done a hundred times a second.

Rows of a changefeed may have become due when the manifest of one of its spans has changed, or its bounds
file. The store's page of floors shows changed manifests: one comparison of a few kilobytes serves all
changefeeds. A floor that only rises with time, without rows, makes nothing due.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tidegate.eventstore import store_view
from tidegate.eventstore.floors import PageMark
from tidegate.pipeline.host.incarnation import Incarnation


class DueScan:
    """Finds incarnations that have changed. For one thread."""

    def __init__(self) -> None:
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
        return [one for one in there if self._may_be_due(one, spans[one.store], now)]

    def _turned(self, store: str) -> frozenset[str] | None:
        """The spans whose manifest has changed. None: it may be any of them."""
        before, mark = self._pages.get(store), store_view.page_mark(store)
        self._pages[store] = mark
        if mark is None:
            return None
        return frozenset() if mark == before else mark.changed_since(before)

    def _may_be_due(self, one: Incarnation, turned: frozenset[str] | None, now: float) -> bool:
        assert one.backlog is not None
        mark = one.bounds_mark
        with suppress(OSError):  # `Backlog.look` reads the file as well, and raises the error
            mark = one.backlog.bounds_mark()
        reported, one.bounds_mark = mark != one.bounds_mark, mark
        return reported or now >= one.looks_at or turned is None or not turned.isdisjoint(one.backlog.spans)
