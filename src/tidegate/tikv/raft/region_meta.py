"""Regions on disk: one row each in the meta column family, and the ids that were allocated.

Row: key `region/` + id (8 bytes) -> JSON [start, end, version, conf_ver, [[peer, store, role], ...], leader,
term, merging, flashback]. All rows of a change are written in one batch, so the regions still tile the key
space after a kill.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Final

from tidegate.tikv.engine import META, Engine
from tidegate.tikv.mvcc import Change
from tidegate.tikv.raft.region import Peer, Region, Role, split
from tidegate.tikv.raft.region_change import RegionChange
from tidegate.tikv.raft.region_table import RegionTable

PREFIX: Final = b"region/"
OLD_KEY: Final = b"pd/regions"
"""The row of all regions in the old format, from versions in which regions could not change."""
IDS_KEY: Final = b"pd/ids"
IDS_STEP: Final = 1000


def row(region: Region) -> Change:
    """A region's row."""
    peers = [[peer.id, peer.store_id, peer.role] for peer in region.peers]
    members = [
        region.start.hex(),
        region.end.hex(),
        region.version,
        region.conf_ver,
        peers,
        region.leader,
        region.term,
        region.merging,
        region.flashback,
    ]
    return META, _key(region.id), json.dumps(members).encode()


def rows(change: RegionChange) -> list[Change]:
    """The changes of rows for a region change."""
    return [*((META, _key(region.id), None) for region in change.gone), *(row(each) for each in change.now)]


def load(engine: Engine, boundaries: Sequence[bytes], stores: int = 1) -> RegionTable:
    """The regions of a data directory; at its first start those between `boundaries`."""
    found = _stored(engine)
    if not found:
        old = engine.get(META, OLD_KEY)
        if old is None:
            found = split(boundaries, stores)
        else:
            found = [
                Region(number, bytes.fromhex(start), bytes.fromhex(end), version, conf_ver)
                for number, start, end, version, conf_ver in json.loads(old)
            ]
        # In one write. After a crash there is one form or the other, never both.
        engine.write([*(row(each) for each in found), (META, OLD_KEY, None)])
        engine.sync()
    return RegionTable(sorted(found, key=lambda region: region.start))


def has_regions(engine: Engine) -> bool:
    """Whether the data directory was used before."""
    return engine.get(META, OLD_KEY) is not None or bool(_stored(engine))


def _stored(engine: Engine) -> list[Region]:
    found = []
    cursor = engine.cursor(META, upper=PREFIX[:-1] + bytes([PREFIX[-1] + 1]))
    cursor.seek(PREFIX)
    while cursor.valid():
        number = int.from_bytes(cursor.key()[len(PREFIX) :], "big")
        start, end, version, conf_ver, peers, *others = json.loads(cursor.value())
        found.append(
            Region(
                number,
                bytes.fromhex(start),
                bytes.fromhex(end),
                version,
                conf_ver,
                tuple(Peer(number, store, *map(Role, role)) for number, store, *role in peers),
                *others,
            )
        )
        cursor.next()
    return found


def _key(region_id: int) -> bytes:
    return PREFIX + region_id.to_bytes(8, "big")


class Ids:
    """Allocates ids for regions and peers; no id is ever used twice in a cluster. Thread-safe."""

    def __init__(self, engine: Engine, regions: RegionTable) -> None:
        self._engine = engine
        self._mutex = threading.Lock()
        stored = int.from_bytes(engine.get(META, IDS_KEY) or b"", "big")
        # A data directory from before this bound has regions with ids, and no bound.
        self._last = self._bound = max(stored, *regions.by_id)

    def new(self) -> int:
        """Allocate the next id."""
        with self._mutex:
            if self._last >= self._bound:
                self._bound = self._last + IDS_STEP
                # Durable before an id below the bound is given out: after a crash, ids begin at the bound.
                self._engine.write([(META, IDS_KEY, self._bound.to_bytes(8, "big"))])
                self._engine.sync()
            self._last += 1
            return self._last
