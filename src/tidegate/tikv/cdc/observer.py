"""Passes every applied command of the subscribed regions to the endpoint, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.tikv.raft.raftstore import Command


class CdcObserver:
    """The observer of one store. Its endpoint chooses the regions."""

    def __init__(self, deliver: Callable[[Sequence[Command]], None]) -> None:
        self._deliver = deliver
        self._regions: set[int] = set()

    def observe(self, region_id: int) -> None:
        """Deliver the region's commands from now on."""
        self._regions.add(region_id)

    def ignore(self, region_id: int) -> None:
        """Stop delivering the region's commands."""
        self._regions.discard(region_id)

    def is_observing(self, region_id: int) -> bool:
        """Whether commands of the region are delivered."""
        return region_id in self._regions

    def on_applied(self, commands: Sequence[Command]) -> None:
        """Called by the apply thread, before the clients get their answers."""
        if not self._regions:
            return
        seen = [command for command in commands if self._concerns(command)]
        if seen:
            self._deliver(seen)

    def _concerns(self, command: Command) -> bool:
        if command.change is None:
            return command.region_id in self._regions
        return any(region.id in self._regions for region in command.change.before)
