"""The stores of a cluster as PD knows them: ids, addresses, heartbeats.

Ids and addresses are durable, so after a restart a store has the same id and address. Heartbeats are kept in
memory, as in PD.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import InvalidInput
from tidegate.proto import metapb_pb2
from tidegate.tikv.engine import META, Engine
from tidegate.tikv.raft.region import STORE_ID

STORES_KEY: Final = b"pd/stores"
STORES_MAX: Final = 64
HEARTBEAT_S: Final = 3.0
"""How often a store reports (TiKV: 10 s)."""
VERSION: Final = "8.5.0"
"""The TiKV version that this upstream reports; clients enable features by it."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """One store. Times: `started` in unix seconds, `last_heartbeat` in unix nanoseconds, 0 for never."""

    id: int
    address: str = ""
    status_address: str = ""
    started: int = 0
    last_heartbeat: int = 0
    is_up: bool = False

    def message(self) -> metapb_pb2.Store:
        """The store in PD's answers. A store that is down stays Up for a long time, as in PD."""
        return metapb_pb2.Store(
            id=self.id,
            address=self.address,
            status_address=self.status_address,
            version=VERSION,
            start_timestamp=self.started,
            last_heartbeat=self.last_heartbeat,
        )


class Stores:
    """All stores. Thread-safe."""

    def __init__(self, engine: Engine, clock: Clock, count: int | None) -> None:
        """`count`: the number of stores of a new cluster; None: as stored, or 1 for a new cluster.

        Raises InvalidInput if the data directory has another number.
        """
        self._engine = engine
        self._clock = clock
        self._mutex = threading.Lock()
        stored = json.loads(engine.get(META, STORES_KEY) or b"[]")
        known = {int(number): address for number, address in stored}
        # Regions have peers on the stores of the first start; with others some would have no quorum.
        if known and count not in (None, len(known)):
            raise InvalidInput(
                f"this data directory is of a cluster of {len(known)} stores, not {count}",
                fix="leave --stores out, or give a new --data-dir",
            )
        wanted = len(known) or count or 1
        if not 0 < wanted <= STORES_MAX:
            raise InvalidInput(
                f"an upstream cannot have {wanted} stores", fix=f"give --stores 1 to {STORES_MAX}"
            )
        ids = [STORE_ID + i for i in range(wanted)]
        self._stores = {number: StoreInfo(number, known.get(number, "")) for number in ids}

    def __len__(self) -> int:
        return len(self._stores)

    def get(self, store_id: int) -> StoreInfo | None:
        """A store by its id."""
        return self._stores.get(store_id)

    def all(self) -> list[StoreInfo]:
        """All stores, by id."""
        return list(self._stores.values())

    def up(self) -> list[int]:
        """The ids of the stores that are up."""
        return [each.id for each in self.all() if each.is_up]

    def started(self, store_id: int, address: str, status_address: str = "") -> None:
        """Record that a store is up, and its address, durably."""
        now_s = self._clock.now_ms() // 1000
        with self._mutex:
            info = replace(
                self._stores[store_id],
                address=address,
                status_address=status_address,
                started=now_s,
                is_up=True,
            )
            self._stores[store_id] = info
            # A store keeps its address over restarts, as a real one does: clients cache it, and must find the
            # same store there.
            rows = [[each.id, each.address] for each in self._stores.values()]
            self._engine.write([(META, STORES_KEY, json.dumps(rows).encode())])
            self._engine.sync()
        self.heartbeat(store_id)

    def stopped(self, store_id: int) -> None:
        """Record that a store is down."""
        with self._mutex:
            self._stores[store_id] = replace(self._stores[store_id], is_up=False)

    def heartbeat(self, store_id: int) -> bool:
        """Record a heartbeat of a store; False if the store is unknown."""
        now_ns = self._clock.now_ms() * 1_000_000
        with self._mutex:
            known = self._stores.get(store_id)
            if known is not None:
                self._stores[store_id] = replace(known, last_heartbeat=now_ns)
        return known is not None
