"""The changes of regions: split, merge, leader transfer, flashback; with exactly TiKV's epochs. Pure.

Changes of peers are in `conf_change`.

| change | version | conf_ver | term |
|---|---|---|---|
| split into n, the rightmost keeps the id | + (n - 1), all parts | same | same; new parts at the first |
| prepare merge (source) | + 1 | + 1 | |
| commit merge (target) | max(both) + 1 | | |
| roll back merge (source) | + 1 | | |
| leader transfer | | | + 1 |
| k changes of peers | | + k | |
| prepare, finish flashback | | | |

(TiKV: raftstore/src/store/fsm/apply.rs exec_batch_split, exec_prepare_merge, exec_commit_merge.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tidegate.errors import InvalidInput
from tidegate.tikv.raft.region import FIRST_TERM, Peer, Region, Role
from tidegate.tikv.raft.region_table import RegionTable

NewId = Callable[[], int]
"""A function that returns a number that was never used before."""


class CommandKind(StrEnum):
    """The kind of an admin command."""

    SPLIT = "split"
    PREPARE_MERGE = "prepare merge"
    COMMIT_MERGE = "commit merge"
    ROLLBACK_MERGE = "roll back merge"
    TRANSFER = "transfer leader"
    CHANGE_PEERS = "change peers"
    PREPARE_FLASHBACK = "prepare flashback"
    FINISH_FLASHBACK = "finish flashback"


@dataclass(frozen=True, slots=True)
class RegionChange:
    """Regions before and after; both cover the same keys. The first of `before` is the command's own."""

    kind: CommandKind
    before: tuple[Region, ...]
    now: tuple[Region, ...]

    @property
    def gone(self) -> tuple[Region, ...]:
        """The regions that no longer exist afterwards."""
        left = {region.id for region in self.now}
        return tuple(region for region in self.before if region.id not in left)


def split(region: Region, at: Sequence[bytes], new_id: NewId) -> RegionChange:
    """Split at encoded keys. Keys outside or at the region's start are ignored; one must remain."""
    settled(region, "split")
    cuts = sorted({key for key in at if region.contains(key) and key != region.start})
    if not cuts:
        raise InvalidInput(
            "no valid key found for split",
            where=f"region {region.id}",
            fix="name keys inside the region, above its start (`region list` shows its range)",
        )
    version = region.version + len(cuts)
    parts = []
    # The rightmost part keeps the id, as in TiKV with `right-derive-when-split`, which is the default.
    for start, end in zip([region.start, *cuts[:-1]], cuts, strict=True):
        number = new_id()
        peers = tuple(Peer(new_id(), peer.store_id, peer.role) for peer in region.peers)
        parts.append(Region(number, start, end, version, region.conf_ver, peers, region.leader, FIRST_TERM))
    return RegionChange(
        CommandKind.SPLIT, (region,), (*parts, replace(region, start=cuts[-1], version=version))
    )


def prepare_merge(source: Region, target: Region) -> RegionChange:
    """The first half of a merge: the source accepts no writes until the merge is committed or rolled back."""
    settled(source, "merge")
    settled(target, "merge into")
    neighbours(source, target)
    if set(source.stores) != set(target.stores):
        raise InvalidInput(
            f"regions {source.id} and {target.id} have their peers on different stores",
            why=f"stores {listed(source.stores)} and {listed(target.stores)}",
            fix="move the peers first (`region move`)",
        )
    for each in (source, target):
        if each.is_joint:
            raise InvalidInput(
                f"region {each.id} is in joint state and cannot be merged",
                fix="let it leave that first (`region peers --leave`)",
            )
    if any(_role_on(source, store) is not _role_on(target, store) for store in source.stores):
        raise InvalidInput(
            f"regions {source.id} and {target.id} have voters and learners on different stores",
            fix="make them alike first (`region peers`)",
        )
    # conf_ver rises too, as in TiKV, so that a change of peers that was requested before is refused during
    # the merge.
    now = replace(source, version=source.version + 1, conf_ver=source.conf_ver + 1, merging=target.id)
    return RegionChange(CommandKind.PREPARE_MERGE, (source,), (now,))


def neighbours(source: Region, target: Region) -> None:
    """Raises InvalidInput unless one region begins where the other ends."""
    if source.id == target.id:
        raise InvalidInput(
            f"region {source.id} cannot be merged into itself", fix="name the region next to it"
        )
    if not (source.end and source.end == target.start) and not (target.end and target.end == source.start):
        raise InvalidInput(
            f"regions {source.id} and {target.id} are not neighbours",
            fix="name two regions of which one begins where the other ends (`region list`)",
        )


def commit_merge(source: Region, target: Region) -> RegionChange:
    """The second half of a merge: the target gets the source's keys, and the source ceases to exist."""
    assert source.merging == target.id
    low, high = (source, target) if source.start < target.start else (target, source)
    # Above both, so that requests for either of the old regions are refused.
    version = max(source.version, target.version) + 1
    now = replace(target, start=low.start, end=high.end, version=version)
    return RegionChange(CommandKind.COMMIT_MERGE, (target, source), (now,))


def rollback_merge(source: Region) -> RegionChange:
    """Undo a prepared merge: the source accepts writes again."""
    if not source.merging:
        raise InvalidInput(f"region {source.id} is not being merged")
    return RegionChange(
        CommandKind.ROLLBACK_MERGE, (source,), (replace(source, version=source.version + 1, merging=0),)
    )


def transfer(region: Region, store_id: int) -> RegionChange:
    """Make another store the leader; 0: no store can lead."""
    if store_id and region.peer_on(store_id) is None:
        raise InvalidInput(
            f"region {region.id} has no peer on store {store_id}",
            why=f"its peers are on {listed(region.stores)}",
            fix="transfer to one of these, or move a peer there first (`region move`)",
        )
    if store_id and store_id not in region.voters:
        raise InvalidInput(
            f"the peer of region {region.id} on store {store_id} is a learner",
            why=f"its voters are on {listed(region.voters)}",
            fix="transfer to one of these, or make it a voter first (`region peers --voter`)",
        )
    return RegionChange(
        CommandKind.TRANSFER, (region,), (replace(region, leader=store_id, term=region.term + 1),)
    )


def flashback(region: Region, start_ts: int) -> RegionChange:
    """From now on the region serves only the flashback `start_ts`; 0: it serves everything again."""
    if start_ts:
        settled(region, "flash back")
    kind = CommandKind.PREPARE_FLASHBACK if start_ts else CommandKind.FINISH_FLASHBACK
    return RegionChange(kind, (region,), (replace(region, flashback=start_ts),))


def present(table: RegionTable, region_id: int) -> Region:
    """A region by its id. Raises InvalidInput if there is none."""
    region = table.by_id.get(region_id)
    if region is None:
        raise InvalidInput(f"there is no region {region_id}", fix="see `tidegate upstream region list`")
    return region


def settled(region: Region, wish: str) -> None:
    """Raises InvalidInput while the region is being merged or flashed back."""
    if region.merging:
        raise InvalidInput(
            f"cannot {wish} region {region.id}: it is being merged into region {region.merging}",
            fix="wait until the merge is done",
        )
    if region.flashback:
        raise InvalidInput(
            f"cannot {wish} region {region.id}: it is in flashback", fix="wait until the flashback is done"
        )


def _role_on(region: Region, store_id: int) -> Role | None:
    peer = region.peer_on(store_id)
    return None if peer is None else peer.role


def listed(stores: Sequence[int]) -> str:
    """Store ids as text for a message."""
    return ", ".join(str(each) for each in sorted(stores))
