"""Changes of a region's peers and their roles: `ChangePeerV2` of TiKV, simple and joint. Pure.

A single change is simple and takes effect at once. Several changes at once make the region *joint*: a new
voter is Incoming, a voter that becomes a learner is Demoting, and every decision of the region needs a
majority of the old voters and a majority of the new ones. Leaving the joint state turns Incoming peers into
voters and Demoting peers into learners.

| wish | is not a peer | is a learner | is a voter |
|---|---|---|---|
| voter | Voter; joint: Incoming | Voter; joint: Incoming | refused |
| learner | Learner | refused | Learner; joint: Demoting |
| remove | refused | gone | gone; joint: refused, it must be demoted first |

`conf_ver` rises by one for each change, and when the joint state is left, by one for each Incoming or
Demoting peer. (TiKV: raftstore/src/store/fsm/apply.rs exec_change_peer_v2, peer.rs check_conf_change.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

from tidegate.errors import InvalidInput
from tidegate.tikv.raft.region import JOINT, Peer, Region, Role
from tidegate.tikv.raft.region_change import CommandKind, NewId, RegionChange, listed, settled


class Wish(StrEnum):
    """The wanted role of a store's peer."""

    VOTER = "voter"
    LEARNER = "learner"
    REMOVE = "remove"


class PeerChange(NamedTuple):
    """The change of one store's peer."""

    wish: Wish
    store_id: int


_LEFT: Final = {Role.INCOMING_VOTER: Role.VOTER, Role.DEMOTING_VOTER: Role.LEARNER}


def change_peers(region: Region, changes: Sequence[PeerChange], new_id: NewId) -> RegionChange:
    """One change, or several, which make the region joint. Raises InvalidInput if TiKV refuses it."""
    settled(region, "change peers of")
    if region.is_joint:
        raise InvalidInput(
            f"region {region.id} is in joint state",
            why=f"its peers are {described(region)}",
            fix="let it leave that first (`region peers --leave`)",
        )
    stores = [each.store_id for each in changes]
    if not stores or len(set(stores)) < len(stores):
        raise InvalidInput(
            f"a request does not have one change for each store: {listed(stores) or 'none'}",
            where=f"region {region.id}",
        )
    joint = len(changes) > 1
    peers = {peer.store_id: peer for peer in region.peers}
    for each in changes:
        peer = _changed(region, each, joint, new_id)
        if peer is None:
            del peers[each.store_id]
        else:
            peers[each.store_id] = peer
    return _now(region, peers.values(), len(changes))


def leave_joint(region: Region) -> RegionChange:
    """End the joint state."""
    if not region.is_joint:
        raise InvalidInput(
            f"region {region.id} is not in joint state", why=f"its peers are {described(region)}"
        )
    leader = region.peer_on(region.leader)
    # A learner cannot lead, and this peer becomes one.
    if leader is not None and leader.role is Role.DEMOTING_VOTER:
        raise InvalidInput(
            f"store {region.leader} leads region {region.id} and would be demoted",
            fix="transfer the leader first",
        )
    peers = [peer._replace(role=_LEFT.get(peer.role, peer.role)) for peer in region.peers]
    return _now(region, peers, sum(peer.role in JOINT for peer in region.peers))


def described(region: Region) -> str:
    """The peers as text: `1, 2, 3 (learner)`."""
    found = sorted(region.peers, key=lambda peer: peer.store_id)
    return ", ".join(
        f"{peer.store_id}" + ("" if peer.role is Role.VOTER else f" ({peer.role.words})") for peer in found
    )


def _now(region: Region, peers: Iterable[Peer], changes: int) -> RegionChange:
    # By the number of changes, as TiKV counts: clients compare the whole epoch.
    now = replace(region, peers=tuple(peers), conf_ver=region.conf_ver + changes)
    return RegionChange(CommandKind.CHANGE_PEERS, (region,), (now,))


def _changed(region: Region, change: PeerChange, joint: bool, new_id: NewId) -> Peer | None:
    """The store's peer after a change; None: it is removed."""
    peer = region.peer_on(change.store_id)
    match change.wish:
        case Wish.VOTER:
            return _voter(region, peer, change.store_id, joint, new_id)
        case Wish.LEARNER:
            return _learner(region, peer, change.store_id, joint, new_id)
        case Wish.REMOVE:
            _may_go(region, peer, change.store_id, joint)
            return None


def _voter(region: Region, peer: Peer | None, store_id: int, joint: bool, new_id: NewId) -> Peer:
    role = Role.INCOMING_VOTER if joint else Role.VOTER
    if peer is None:
        return Peer(new_id(), store_id, role)
    if peer.role is Role.VOTER:
        raise InvalidInput(f"region {region.id} has a voter on store {store_id} already")
    return peer._replace(role=role)


def _learner(region: Region, peer: Peer | None, store_id: int, joint: bool, new_id: NewId) -> Peer:
    if peer is None:
        return Peer(new_id(), store_id, Role.LEARNER)
    if peer.role is Role.LEARNER:
        raise InvalidInput(f"region {region.id} has a learner on store {store_id} already")
    # In a joint change the leader may be demoted: it still leads, and `leave_joint` refuses until it has
    # transferred.
    if not joint:
        _follows(region, store_id)
    return peer._replace(role=Role.DEMOTING_VOTER if joint else Role.LEARNER)


def _may_go(region: Region, peer: Peer | None, store_id: int, joint: bool) -> None:
    if peer is None:
        raise InvalidInput(
            f"region {region.id} has no peer on store {store_id}",
            why=f"its peers are on {described(region)}",
        )
    _follows(region, store_id)
    if joint and peer.role is Role.VOTER:
        raise InvalidInput(
            f"the voter on store {store_id} cannot be removed from region {region.id} in a joint change",
            fix="make it a learner in this one, and remove it then",
        )


def _follows(region: Region, store_id: int) -> None:
    if store_id == region.leader:
        raise InvalidInput(f"store {store_id} leads region {region.id}", fix="transfer the leader first")
