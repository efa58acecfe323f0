"""Voters, learners and joint changes: roles and epochs are TiKV's; what it refuses is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tikv.cluster import Client, Cluster
from tests.tikv.support import prewrite, put
from tidegate.errors import InvalidInput
from tidegate.tikv import keys
from tidegate.tikv.raft import region_change, region_meta
from tidegate.tikv.raft.conf_change import PeerChange, Wish, change_peers, described, leave_joint
from tidegate.tikv.raft.region import Peer, Region, Role

VOTER, LEARNER, REMOVE = Wish.VOTER, Wish.LEARNER, Wish.REMOVE
REGION = Region(5, b"c", b"p", 4, 7, (Peer(11, 1), Peer(12, 2), Peer(13, 3), Peer(14, 4, Role.LEARNER)), 2, 9)


def changed(region: Region, *changes: tuple[Wish, int]) -> Region:
    (now,) = change_peers(region, [PeerChange(*each) for each in changes], lambda: 77).now
    return now


def left(region: Region) -> Region:
    (now,) = leave_joint(region).now
    return now


@pytest.mark.parametrize(
    ("change", "peers"),
    [
        ((VOTER, 5), "1, 2, 3, 4 (learner), 5"),
        ((LEARNER, 5), "1, 2, 3, 4 (learner), 5 (learner)"),
        ((VOTER, 4), "1, 2, 3, 4"),
        ((LEARNER, 3), "1, 2, 3 (learner), 4 (learner)"),
        ((REMOVE, 4), "1, 2, 3"),
        ((REMOVE, 3), "1, 2, 4 (learner)"),
    ],
)
def test_a_simple_change_is_done_at_once_and_adds_one_to_conf_ver(
    change: tuple[Wish, int], peers: str
) -> None:
    now = changed(REGION, change)
    assert (described(now), now.version, now.conf_ver, now.term) == (peers, 4, 8, 9)
    kept = [peer.id for peer in now.peers if peer.id != 77]
    assert kept == [peer.id for peer in REGION.peers if now.peer_on(peer.store_id) is not None]


def test_conf_ver_grows_by_one_for_each_joint_change_and_each_that_ends() -> None:
    """Leaving the joint state ends the incoming and demoting roles."""
    joint = changed(REGION, (VOTER, 4), (LEARNER, 3), (LEARNER, 6), (VOTER, 5))
    assert described(joint) == "1, 2, 3 (demoting voter), 4 (incoming voter), 5 (incoming voter), 6 (learner)"
    assert (joint.conf_ver, joint.is_joint, joint.voters) == (11, True, (1, 2, 4, 5, 3))
    now = left(joint)
    assert described(now) == "1, 2, 3 (learner), 4, 5, 6 (learner)"
    assert (now.conf_ver, now.is_joint) == (14, False)
    roles = [peer.role for peer in joint.message.peers]
    assert roles == [0, 0, 3, 2, 1, 2], "as clients see them, in metapb's numbers"
    (low, high) = region_change.split(joint, [b"k"], lambda: 88).now
    assert [peer.role for peer in low.peers] == [peer.role for peer in high.peers]


def refused(reason: str, region: Region, *changes: tuple[Wish, int]) -> None:
    with pytest.raises(InvalidInput, match=reason):
        changed(region, *changes)


def test_what_tikv_refuses_is_refused() -> None:
    refused("has a voter on store 3 already", REGION, (VOTER, 3))
    refused("has a learner on store 4 already", REGION, (LEARNER, 4))
    refused("has no peer on store 8", REGION, (REMOVE, 8))
    refused("store 2 leads region 5", REGION, (REMOVE, 2))
    refused("store 2 leads region 5", REGION, (LEARNER, 2))
    refused(
        "voter on store 3 cannot be removed from region 5 in a joint change", REGION, (REMOVE, 3), (VOTER, 4)
    )
    refused("a request does not have one change for each store: 4, 4", REGION, (REMOVE, 4), (VOTER, 4))
    refused("a request does not have one change for each store: none", REGION)
    joint = changed(REGION, (LEARNER, 2), (VOTER, 4))
    refused("region 5 is in joint state", joint, (VOTER, 5))
    with pytest.raises(InvalidInput, match="store 2 leads region 5 and would be demoted"):
        leave_joint(joint)
    with pytest.raises(InvalidInput, match="region 5 is not in joint state"):
        leave_joint(REGION)
    with pytest.raises(InvalidInput, match="the peer of region 5 on store 4 is a learner"):
        region_change.transfer(REGION, 4)
    other = Region(6, b"p", b"", peers=(Peer(1, 1), Peer(2, 2), Peer(3, 3, Role.LEARNER), Peer(4, 4)))
    with pytest.raises(InvalidInput, match="have voters and learners on different stores"):
        region_change.prepare_merge(REGION, other)
    with pytest.raises(InvalidInput, match="region 5 is in joint state and cannot be merged"):
        region_change.prepare_merge(joint, other)


ROLES = st.dictionaries(st.integers(1, 6), st.sampled_from(Role), min_size=1).filter(
    lambda found: any(role is not Role.LEARNER for role in found.values())
)


@given(roles=ROLES, up=st.sets(st.integers(1, 6)))
def test_a_quorum_is_most_voters_before_and_most_after(roles: dict[int, Role], up: set[int]) -> None:
    peers = tuple(Peer(store + 10, store, role) for store, role in roles.items())
    region = Region(5, b"", b"", peers=peers, leader=0)

    def most(stores: Collection[int]) -> bool:
        return 2 * len(up & set(stores)) > len(stores)

    before = [store for store, role in roles.items() if role in (Role.VOTER, Role.DEMOTING_VOTER)]
    after = [store for store, role in roles.items() if role in (Role.VOTER, Role.INCOMING_VOTER)]
    assert region.has_quorum(up) is (most(before) and most(after))


def test_resolved_ts_with_learners(make: Callable[..., Cluster]) -> None:
    """TiKV's: a leader and a learner; the learner counts for nothing, also when it is gone."""
    cluster = make(stores=2)
    (region,) = cluster.regions.all
    now = cluster.operators.change_peers(region.id, [PeerChange(LEARNER, 2)])
    assert (described(now), now.conf_ver, now.leader) == ("1, 2 (learner)", region.conf_ver + 1, 1)
    client, other = Client(cluster), Client(cluster, store_id=2)
    feed, refused = client.register(1, now), other.register(1, now)
    client.until(lambda: feed.resolved_ts > 0)
    other.until(lambda: refused.error is not None)
    assert refused.error is not None
    assert refused.error.not_leader.leader == now.leader_peer
    cluster.stop_store(2)
    ts = cluster.txn(put(b"a"))
    client.until(lambda: feed.resolved_ts >= ts)
    other.close()
    client.close()


def test_joint_confchange(make: Callable[..., Cluster]) -> None:
    """TiKV's: the resolved ts advances without a minority and through a demotion, and stops when a quorum of
    the voters before or after is lost, although the leader is alive; then it resumes where it was.
    """
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    assert region.leader == 1
    client = Client(cluster)
    feed = client.register(1, region)

    def advances() -> None:
        ts = cluster.txn(put(b"k1"))
        client.until(lambda: feed.resolved_ts >= ts)

    advances()
    cluster.stop_store(2)
    advances()
    with pytest.raises(InvalidInput, match="would have no quorum"):
        cluster.operators.change_peers(region.id, [PeerChange(LEARNER, 3)])
    cluster.start_store(2)
    cluster.operators.change_peers(region.id, [PeerChange(LEARNER, 3)])
    advances()
    swap = [PeerChange(LEARNER, 2), PeerChange(VOTER, 3)]
    joint = cluster.operators.change_peers(region.id, swap, stay=True)
    assert described(joint) == "1, 2 (demoting voter), 3 (incoming voter)"
    assert joint.conf_ver == region.conf_ver + 3
    advances()
    stored = region_meta.load(cluster.engine, [], 3).by_id[region.id]
    assert (stored, stored.message) == (joint, joint.message), "as it is after a restart"

    cluster.stop_store(2)  # 1 and 3 are most of the voters after, 1 alone is not most of those before
    client.until(lambda: feed.error is not None)
    assert feed.error is not None
    assert feed.error.HasField("not_leader")
    assert not feed.error.not_leader.HasField("leader")
    lost = cluster.regions.by_id[region.id]
    assert (lost.leader, lost.peers) == (0, joint.peers)
    assert cluster.regions.refusal(joint) is not None, "what is under way is refused"
    with pytest.raises(InvalidInput, match="has no leader"):
        cluster.operators.leave_joint(region.id)

    cluster.start_store(2)
    cluster.operators.resume()
    again = cluster.regions.by_id[region.id]
    client.close()
    client = Client(cluster, store_id=again.leader)
    feed = client.register(2, again, feed.resolved_ts)
    advances()
    if again.leader == 2:
        cluster.operators.transfer(region.id, 1)
    now = cluster.operators.leave_joint(region.id)
    assert (described(now), now.conf_ver) == ("1, 2 (learner), 3", joint.conf_ver + 2)
    client.close()


def test_a_learner_moves_as_a_learner_and_never_becomes_leader(
    make: Callable[..., Cluster],
) -> None:
    """Scatter and elections pass it over."""
    cluster = make(stores=4)
    (region,) = cluster.regions.all
    cluster.operators.change_peers(region.id, [PeerChange(LEARNER, 2)])
    moved = cluster.operators.move(region.id, 2, 4)
    assert described(moved) == "1, 3, 4 (learner)"
    cluster.operators.transfer(region.id, 3)
    cluster.operators.change_peers(region.id, [PeerChange(VOTER, 2)])
    cluster.stop_store(3)
    assert cluster.regions.by_id[region.id].leader in (1, 2)
    assert not cluster.call(prewrite(10, put(b"a")), b"a").errors


def test_rows_of_peers_without_a_role_are_voters(make: Callable[..., Cluster]) -> None:
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    cf, key, row = region_meta.row(region)
    assert row is not None
    old = row.replace(b", 0]", b"]")
    assert old != row
    cluster.engine.write([(cf, key, old)])
    assert region_meta.load(cluster.engine, [], 3).all == (replace(region),)
    assert cluster.regions.of_key(keys.encode(b"a")) == region
