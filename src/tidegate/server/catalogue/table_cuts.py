"""Where large tables are cut into pieces, so that several tasks deliver one table: TiCDC's `[scheduler]`.

    enable-table-across-nodes   the switch
    region-threshold            a table with more regions is cut
    region-count-per-span       the approximate number of regions in a piece; PIECES pieces at most

Source: TiCDC's splitters by region count (tiflow `cdc/scheduler/internal/v3/keyspan`, ticdc
`maintainer/split`). As there, a table is cut at the edges of regions into pieces with equally many regions.
Unlike there, the cuts are chosen when the changefeed is created or these settings change, and then stay,
except that a hot table is cut by its load (`hot_cuts`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tidegate.config.settings import SchedulerConfig
from tidegate.config.values import TABLE_CUTS_MAX
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.tables.reader import region_starts
from tidegate.tidb import keys, memcomparable

PIECES: Final = 64
"""The most pieces of one table."""


def find_cuts(pd: PdClient, tables: Collection[int], settings: SchedulerConfig) -> tuple[str, ...]:
    """The cuts of the tables with these physical ids, by the regions that PD knows now; as `table_cuts`."""
    if not tables or not settings.enable_table_across_nodes:
        return ()
    hull = Span(keys.record_prefix(min(tables)), keys.table_prefix(max(tables) + 1))
    pd.regions.clear()  # cached regions may be old: what was one region may be a thousand now
    return tuple(key.hex() for key in chosen_cuts(region_starts(pd, hull), tables, settings))


def chosen_cuts(starts: Collection[bytes], tables: Collection[int], settings: SchedulerConfig) -> list[bytes]:
    """Chooses from the start keys of regions those at which pieces end; in ascending order.

    At most `TABLE_CUTS_MAX`: the tables with the most regions come first, and the rest stay whole.
    """
    wanted, edges = frozenset(tables), dict[int, list[bytes]]()
    for key in starts:
        if keys.is_record(key) and (table := memcomparable.decode_int(key, 1)) in wanted:
            edges.setdefault(table, []).append(key)
    found: list[bytes] = []
    for inside in sorted(edges.values(), key=len, reverse=True):
        regions = len(inside) + 1
        # The tables that follow have no more regions.
        if regions <= settings.region_threshold:
            break
        pieces = min(PIECES, -(-regions // settings.region_count_per_span))
        # One less, because the start of the first region is not inside.
        cuts = [inside[regions * piece // pieces - 1] for piece in range(1, pieces)]
        if len(found) + len(cuts) > TABLE_CUTS_MAX:
            break
        found += cuts
    return sorted(found)
