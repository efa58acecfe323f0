"""The verdicts of changefeeds' table rules on the tables of one catalogue, kept once for each distinct
filter.

Changefeeds with equal rules (and equal `force-replicate`) share their verdicts. Each verdict is two bits of
`TableVersion.verdicts`, so it exists exactly as long as the version. A version is judged when its verdict is
first needed. If there are many, they are judged together: 100,000 names take about half a second.

Not thread-safe: callers hold the lock of the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from tidegate.filter.feed import FeedFilter
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb.table_filter import TableFilter

_BITS: Final = 2
_MASK: Final = 3
_OTHER, _FOLLOWED, _LEFT_OUT = 1, 2, 3
"""0: not judged yet. Other: its name does not pass, or it is a view."""


class Verdicts:
    """The verdicts of one distinct filter. `SharedVerdicts` makes it."""

    def __init__(self, tables: TableFilter, place: int, *, force_replicate: bool) -> None:
        self.tables = tables
        """The rules. They are shared like the verdicts, so a name is matched once for all changefeeds."""
        self.place = place
        """The number of its two bits in a version."""
        self._shift = place * _BITS
        self._force = force_replicate

    def follows(self, table: TableVersion) -> bool:
        """As `FeedFilter.follows`."""
        return self._of(table) == _FOLLOWED

    def leaves_out(self, table: TableVersion) -> bool:
        """As `FeedFilter.leaves_out`."""
        return self._of(table) == _LEFT_OUT

    def split(self, tables: Sequence[TableVersion]) -> tuple[list[TableVersion], list[TableVersion]]:
        """The tables that are followed, and the tables that are left out because they have no handle key."""
        shift = self._shift
        self._judge([table for table in tables if not table.verdicts >> shift & _MASK])
        verdicts = [table.verdicts >> shift & _MASK for table in tables]
        followed = [table for table, verdict in zip(tables, verdicts, strict=True) if verdict == _FOLLOWED]
        left_out = [table for table, verdict in zip(tables, verdicts, strict=True) if verdict == _LEFT_OUT]
        return followed, left_out

    def clear(self, tables: Iterable[TableVersion]) -> None:
        """Clear the verdicts of an earlier filter that had the same bits."""
        mask = ~(_MASK << self._shift)
        for table in tables:
            table.verdicts &= mask

    def _of(self, table: TableVersion) -> int:
        if not table.verdicts >> self._shift & _MASK:
            self._judge([table])
        return table.verdicts >> self._shift & _MASK

    def _judge(self, tables: Sequence[TableVersion]) -> None:
        if not tables:
            return
        passes = self.tables.judge([table.full_name for table in tables]).tolist()
        for table, passing in zip(tables, passes, strict=True):
            verdict = _OTHER
            if passing and not table.is_view:
                verdict = _FOLLOWED if table.eligible or self._force else _LEFT_OUT
            # Only set bits: a version with several partitions may occur several times in `tables`.
            table.verdicts |= verdict << self._shift


class SharedVerdicts:
    """The verdicts of all filters over one catalogue. When no changefeed uses a filter, its bits
    are reused.
    """

    def __init__(self, versions: Callable[[], Iterable[TableVersion]]) -> None:
        """`versions`: every version that the catalogue keeps."""
        self._versions = versions
        self._held: WeakValueDictionary[Hashable, Verdicts] = WeakValueDictionary()
        self._used: set[int] = set()
        """Places that a filter has used, so that versions may still have its bits."""

    def of(self, feed_filter: FeedFilter) -> Verdicts:
        """The verdicts of a filter, shared with all equal filters."""
        found = self._held.get(feed_filter.table_key)
        if found is not None:
            return found
        taken = {verdicts.place for verdicts in self._held.values()}
        # The lowest free one, so that the bits of a version stay few: they are one Python integer.
        place = next(place for place in range(len(taken) + 1) if place not in taken)
        found = Verdicts(feed_filter.tables, place, force_replicate=feed_filter.force_replicate)
        # Only then: to clear bits means to walk over every version of every table.
        if place in self._used:
            found.clear(self._versions())
        self._used.add(place)
        self._held[feed_filter.table_key] = found
        return found
