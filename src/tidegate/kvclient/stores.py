"""Decides which of a cluster's stores can be read, and whether their TiKV version has change streams. Pure.

PD lists TiFlash's stores, too: they are learners of regions, never lead one, and have none of TiKV's
services. A removed store stays in PD's list as a tombstone for a long time. (client-go: internal/locate.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tidegate.errors import InvalidInput, Retryable
from tidegate.proto import metapb_pb2 as metapb

OLDEST_TIKV: Final = (7, 5)
"""The first long-term release with `ChangeData.EventFeedV2`: one stream for all regions of a store."""
ENGINE: Final = "engine"
COLUMNAR: Final = ("tiflash", "tiflash_compute")


class StoreGone(Retryable):
    """PD knows no TiKV store with this id; the caller must ask PD for the region again."""


def unfit(store: metapb.Store) -> str:
    """The reason why regions cannot be read at a store; empty if they can."""
    if store.state == metapb.Tombstone:
        return "it was removed from the cluster"
    if any(label.key == ENGINE and label.value in COLUMNAR for label in store.labels):
        return "it is TiFlash's"
    return "" if store.address else "it has no address"


def check_versions(stores: Iterable[metapb.Store]) -> None:
    """Raise InvalidInput if one of the TiKV stores is too old to have change streams.

    A version that cannot be parsed is accepted; if the store is too old, opening its stream fails.
    """
    old = [store for store in stores if not unfit(store) and _is_old(store.version)]
    if old:
        shown = ", ".join(f"store {store.id} at {store.address}: {store.version}" for store in old[:3])
        raise InvalidInput(
            f"the cluster's TiKV is too old: {'.'.join(map(str, OLDEST_TIKV))} is the oldest that works",
            where=shown + (f", and {len(old) - 3} more" if len(old) > 3 else ""),
            why="it has no EventFeedV2, the change stream of many regions at once",
            fix="upgrade TiKV, then create the changefeed",
        )


def _is_old(version: str) -> bool:
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})\.", version)
    return found is not None and (int(found[1]), int(found[2])) < OLDEST_TIKV
