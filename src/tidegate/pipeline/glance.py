"""What has changed since the last glance, for all incarnations at once: cheap enough for a hundred a second.

Rows of a changefeed may have become due when the manifest of one of its spans is another one, which the
store's page of floors says (one comparison of a few kilobytes for all changefeeds), or when its bounds file
is another one. Floors that rise with time alone make nothing due.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tidegate.eventstore import store_view
from tidegate.eventstore.floors import PageMark
from tidegate.pipeline.incarnation import Incarnation


class Glance:
    """For one thread."""

    def __init__(self) -> None:
        self._pages: dict[str, PageMark | None] = {}
        """By store. Not by `Path`: to compare two of those costs more than the rest of a glance."""

    def stirred(self, incarnations: Iterable[Incarnation], now: float) -> list[Incarnation]:
        """Those that something may be due of since the last glance, or that are to be looked at anyway
        (`looks_at`, monotonic like `now`).
        """
        there = list(incarnations)
        spans = {store: self._turned(store) for store in {one.store for one in there}}
        for gone in self._pages.keys() - spans.keys():
            del self._pages[gone]
        return [one for one in there if self._is_stirred(one, spans[one.store], now)]

    def _turned(self, store: str) -> frozenset[str] | None:
        """The spans that have another manifest; None: any may."""
        before, mark = self._pages.get(store), store_view.page_mark(store)
        self._pages[store] = mark
        if mark is None:
            return None
        return frozenset() if mark == before else mark.stirred_since(before)

    def _is_stirred(self, one: Incarnation, turned: frozenset[str] | None, now: float) -> bool:
        assert one.backlog is not None
        mark = one.bounds_mark
        with suppress(OSError):  # what is wrong with it the look will say
            mark = one.backlog.bounds_mark()
        reported, one.bounds_mark = mark != one.bounds_mark, mark
        return reported or now >= one.looks_at or turned is None or not turned.isdisjoint(one.backlog.spans)
