"""Sees every applied command of the subscribed regions, and hands them to the endpoint in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tidegate.tikv.raftstore import Command


class CdcObserver:
    """The raftstore's observer. Regions are switched on and off by the endpoint."""

    def __init__(self, deliver: Callable[[Sequence[Command]], None]) -> None:
        self._deliver = deliver
        self._mutex = threading.Lock()
        self._regions: frozenset[int] = frozenset()

    def observe(self, region_id: int) -> None:
        """From now on deliver the region's commands."""
        with self._mutex:
            self._regions |= {region_id}

    def ignore(self, region_id: int) -> None:
        """Deliver them no more."""
        with self._mutex:
            self._regions -= {region_id}

    def is_observing(self, region_id: int) -> bool:
        """Whether commands of the region are delivered."""
        return region_id in self._regions

    def on_applied(self, commands: Sequence[Command]) -> None:
        """Called on the apply thread, before the clients know."""
        regions = self._regions
        if not regions:
            return
        seen = [command for command in commands if command.region_id in regions]
        if seen:
            self._deliver(seen)
