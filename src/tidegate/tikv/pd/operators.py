"""Operators on regions, as PD has them: split, merge, transfer, move, change peers.

Each consists of one or more admin commands, and waits until they are applied. An impossible operator raises
InvalidInput and changes nothing. If a stop or a kill interrupts a merge between its two halves, the next
start completes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidegate.errors import InvalidInput, Retryable
from tidegate.tikv.pd.stores import Stores
from tidegate.tikv.raft import conf_change, region_change
from tidegate.tikv.raft.conf_change import PeerChange, Wish
from tidegate.tikv.raft.raftstore import Command, Decide, Raftstore
from tidegate.tikv.raft.region import Region, Role
from tidegate.tikv.raft.region_change import NewId, RegionChange
from tidegate.tikv.raft.region_table import RegionTable

WAIT_S: Final = 30.0
"""The timeout of one admin command, which waits behind the queued commands."""


class Operators:
    """The operators. Thread-safe; each call returns when its operator is complete."""

    def __init__(self, raftstore: Raftstore, stores: Stores, new_id: NewId) -> None:
        self._raftstore = raftstore
        self._regions: RegionTable = raftstore.regions
        self._stores = stores
        self._new_id = new_id

    def split(self, region_id: int, at: Sequence[bytes]) -> tuple[Region, ...]:
        """Split a region at encoded keys; returns its parts from left to right."""
        return self._run(lambda table: region_change.split(self._led(table, region_id), at, self._new_id)).now

    def split_at(self, at: Sequence[bytes]) -> list[Region]:
        """Split the regions that hold these encoded keys; returns the regions that then begin at the keys.

        All keys of a region are one command, as in TiKV's batch split: a command costs a sync of the disk.
        """
        wanted = sorted(set(at))
        while parts := self._to_split(wanted):  # again, if a region was split or merged meanwhile
            for region_id, cuts in parts.items():
                self.split(region_id, cuts)
        return [self._regions.of_key(key) for key in wanted]

    def _to_split(self, at: Iterable[bytes]) -> dict[int, list[bytes]]:
        """By region the keys inside it, at which no region begins yet."""
        found: dict[int, list[bytes]] = {}
        for key in at:
            region = self._regions.of_key(key)
            if key and region.start != key:
                found.setdefault(region.id, []).append(key)
        return found

    def merge(self, source_id: int, target_id: int, between: Callable[[], None] | None = None) -> Region:
        """Merge a region into its neighbour; returns the target after the merge.

        The source's peers are first moved to the target's stores. `between` is called while the source
        accepts no writes.
        """
        source, target = (self._led(self._regions, each) for each in (source_id, target_id))
        # Peers are moved before the source stops accepting writes, because each move takes several commands.
        if set(source.stores) != set(target.stores):
            region_change.neighbours(source, target)
            self._gather(source_id, target)
        self._run(
            lambda table: region_change.prepare_merge(
                self._led(table, source_id), self._led(table, target_id)
            )
        )
        if between is not None:
            between()
        return self.commit_merge(source_id)

    def prepare_merge(self, source_id: int, target_id: int) -> Region:
        """The first half of a merge; returns the source after it."""
        return self._run(
            lambda table: region_change.prepare_merge(
                self._led(table, source_id), self._led(table, target_id)
            )
        ).now[0]

    def commit_merge(self, source_id: int) -> Region:
        """The second half of a merge; returns the target after it."""

        def decide(table: RegionTable) -> RegionChange:
            source = region_change.present(table, source_id)
            return region_change.commit_merge(source, region_change.present(table, source.merging))

        return self._run(decide).now[0]

    def rollback_merge(self, source_id: int) -> Region:
        """Undo a prepared merge; returns the source after it."""
        return self._run(
            lambda table: region_change.rollback_merge(region_change.present(table, source_id))
        ).now[0]

    def transfer(self, region_id: int, store_id: int) -> Region:
        """Transfer the leadership of a region to another store; does nothing if it already leads."""
        region = region_change.present(self._regions, region_id)
        if self._stores.get(store_id) is None:
            known = ", ".join(str(each.id) for each in self._stores.all())
            raise InvalidInput(f"there is no store {store_id}", fix=f"name one of these: {known}")
        if region.leader == store_id:
            return region

        def decide(table: RegionTable) -> RegionChange:
            if store_id not in self._stores.up():
                raise InvalidInput(f"store {store_id} is down", fix="start it, or name another one")
            return region_change.transfer(region_change.present(table, region_id), store_id)

        return self._run(decide).now[0]

    def move(self, region_id: int, source: int, target: int) -> Region:
        """Move a peer from one store to another. If it is the leader, the new peer becomes the leader."""
        if self._stores.get(target) is None:
            known = ", ".join(str(each.id) for each in self._stores.all())
            raise InvalidInput(f"there is no store {target}", fix=f"name one of these: {known}")
        if target not in self._stores.up():
            raise InvalidInput(f"store {target} is down", fix="start it, or name another one")
        region = region_change.present(self._regions, region_id)
        peer = region.peer_on(source)
        wish = Wish.LEARNER if peer is not None and peer.role is Role.LEARNER else Wish.VOTER
        come, go = PeerChange(wish, target), PeerChange(Wish.REMOVE, source)
        # Both steps are computed on the present region first: if the second one is impossible, the first must
        # not be done.
        conf_change.change_peers(region, [come], lambda: 0)
        if peer is None:
            conf_change.change_peers(region, [go], lambda: 0)
        self._change(region_id, [come])
        # The new peer leads before the old one goes, so the region is never without a leader.
        if region_change.present(self._regions, region_id).leader == source:
            self.transfer(region_id, target)
        return self._change(region_id, [go])

    def change_peers(self, region_id: int, changes: Sequence[PeerChange], stay: bool = False) -> Region:
        """Make stores voters or learners of a region, or remove their peers; several through a joint state.

        `stay`: remain in the joint state until `leave_joint`.
        """
        for each in changes:
            if each.wish is not Wish.REMOVE and self._stores.get(each.store_id) is None:
                known = ", ".join(str(store.id) for store in self._stores.all())
                raise InvalidInput(f"there is no store {each.store_id}", fix=f"name one of these: {known}")
        now = self._change(region_id, changes)
        return now if stay or not now.is_joint else self.leave_joint(region_id)

    def leave_joint(self, region_id: int) -> Region:
        """End a region's joint state."""
        return self._run(lambda table: conf_change.leave_joint(self._led(table, region_id))).now[0]

    def elect(self, store_id: int) -> list[Region]:
        """After a store stopped: regions that it led, or that lost their quorum, get another leader or none.

        Regions may split and merge meanwhile, so this repeats until no such region is left. Returns the
        changed regions.
        """
        changed: list[Region] = []
        up = self._stores.up()
        while lost := [
            region.id
            for region in self._regions.all
            if region.leader and (region.leader == store_id or not region.has_quorum(up))
        ]:
            for region_id in lost:
                changed += self._elect(region_id)
        return changed

    def resume(self) -> None:
        """At a start: complete interrupted merges, and elect leaders for regions without one."""
        for region in self._regions.all:
            if region.merging:
                self._carry_on(region.id)
        up = self._stores.up()
        for region in self._regions.all:
            if region.leader not in up and (region.leader or region.has_quorum(up)):
                self._elect(region.id)

    # --- parts ---

    def _carry_on(self, source_id: int) -> None:
        """Complete a prepared merge, unless another thread has already ended it."""
        try:
            self.commit_merge(source_id)
        except InvalidInput:
            source = self._regions.by_id.get(source_id)
            if source is not None and source.merging:
                raise

    def _elect(self, region_id: int) -> tuple[Region, ...]:
        """Elect another leader for a region, if the region still exists."""
        try:
            return self._run(lambda table: self._election(table, region_id)).now
        except InvalidInput:
            if region_id in self._regions.by_id:
                raise
            return ()

    def _election(self, table: RegionTable, region_id: int) -> RegionChange:
        region = region_change.present(table, region_id)
        up = self._stores.up()
        alive = [store_id for store_id in region.voters if store_id in up]
        # The first one that is up: in a joint state `voters` has those last that will be demoted.
        return region_change.transfer(region, alive[0] if region.has_quorum(up) else 0)

    def _led(self, table: RegionTable, region_id: int) -> Region:
        region = region_change.present(table, region_id)
        if not region.leader:
            raise InvalidInput(
                f"region {region_id} has no leader", why="its stores are down", fix="start one of them"
            )
        return region

    def _change(self, region_id: int, changes: Sequence[PeerChange]) -> Region:
        def decide(table: RegionTable) -> RegionChange:
            change = conf_change.change_peers(self._led(table, region_id), changes, self._new_id)
            (now,) = change.now
            if not now.has_quorum(self._stores.up()):
                raise InvalidInput(
                    f"region {region_id} would have no quorum",
                    why=f"its peers would be {conf_change.described(now)}, and stores are down",
                    fix="start these first",
                )
            return change

        return self._run(decide).now[0]

    def _gather(self, source_id: int, target: Region) -> None:
        """Move the source's peers to the target's stores."""
        missing = [store for store in target.stores if store not in self._regions.by_id[source_id].stores]
        for store in self._regions.by_id[source_id].stores:
            if store not in target.stores and missing:
                self.move(source_id, store, missing.pop())

    def _run(self, decide: Decide) -> RegionChange:
        done = threading.Event()
        failed: list[Exception | None] = []

        def applied(error: Exception | None) -> None:
            failed.append(error)
            done.set()

        # `decide` is called when the command's turn comes, so it sees the regions as earlier commands have
        # left them.
        command = Command(0, (), on_applied=applied, admin=decide)
        self._raftstore.propose(command)
        # The command stays in the queue: it may still be applied after this error.
        if not done.wait(WAIT_S):
            raise Retryable("a region command was not applied in time", why=f"it waits for {WAIT_S:g} s")
        if failed[0] is not None:
            raise failed[0]
        assert command.change is not None
        return command.change
