"""Epochs at splits, merges, transfers and changes of peers are TiKV's; what cannot be is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvalidInput
from tidegate.tikv.raft import conf_change
from tidegate.tikv.raft import region_change as change
from tidegate.tikv.raft.conf_change import PeerChange, Wish
from tidegate.tikv.raft.region import FIRST_TERM, Peer, Region, split
from tidegate.tikv.raft.region_table import RegionTable

PEERS = (Peer(11, 1), Peer(12, 2), Peer(13, 3))
REGION = Region(5, b"c", b"p", version=4, conf_ver=7, peers=PEERS, leader=2, term=9)


def epoch(region: Region) -> tuple[int, int]:
    return region.version, region.conf_ver


def test_a_split_into_n_adds_n_minus_1_and_the_rightmost_part_keeps_the_id() -> None:
    made = change.split(REGION, [b"k", b"f", b"f", b"c", b"z"], itertools.count(100).__next__)
    left, middle, right = made.now
    assert [(each.start, each.end) for each in made.now] == [(b"c", b"f"), (b"f", b"k"), (b"k", b"p")]
    assert (right.id, right.term, right.peers) == (5, 9, PEERS)
    assert {epoch(each) for each in made.now} == {(6, 7)}
    assert (left.id, left.peers) == (100, (Peer(101, 1), Peer(102, 2), Peer(103, 3)))
    assert (middle.id, middle.leader, middle.term) == (104, 2, FIRST_TERM)
    assert made.gone == ()


def test_a_merge_raises_the_sources_epoch_and_then_the_targets_above_both() -> None:
    target = Region(6, b"p", b"", version=2, conf_ver=3, peers=(Peer(1, 3), Peer(2, 1), Peer(3, 2)), leader=1)
    (source,) = change.prepare_merge(REGION, target).now
    assert (epoch(source), source.merging) == ((5, 8), 6)
    merged = change.commit_merge(source, target)
    (now,) = merged.now
    assert (now.id, now.start, now.end, epoch(now), now.leader) == (6, b"c", b"", (6, 3), 1)
    assert merged.gone == (source,)
    (back,) = change.rollback_merge(source).now
    assert (epoch(back), back.merging) == ((6, 8), 0)


def test_a_transfer_raises_the_term_alone() -> None:
    (moved,) = change.transfer(REGION, 3).now
    assert (moved.leader, moved.term, epoch(moved)) == (3, 10, (4, 7))
    assert moved.leader_peer is not None
    assert moved.leader_peer.id == 13
    (none,) = change.transfer(REGION, 0).now
    assert (none.leader_peer, none.term) == (None, 10)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda: change.split(REGION, [b"c", b"p", b"z"], lambda: 1), "no valid key found for split"),
        (lambda: change.prepare_merge(REGION, REGION), "cannot be merged into itself"),
        (lambda: change.prepare_merge(REGION, Region(6, b"q", b"")), "5 and 6 are not neighbours"),
        (lambda: change.prepare_merge(REGION, Region(6, b"p", b"")), "peers on different stores"),
        (lambda: change.prepare_merge(Region(7, b"c", b""), Region(6, b"", b"b")), "are not neighbours"),
        (lambda: change.rollback_merge(REGION), "region 5 is not being merged"),
        (lambda: change.transfer(REGION, 9), "region 5 has no peer on store 9"),
        (lambda: change.present(RegionTable([Region(2, b"", b"")]), 3), "there is no region 3"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(wrong: object, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        wrong()  # type: ignore[operator]


def test_a_region_that_is_being_merged_is_left_alone() -> None:
    (source,) = change.prepare_merge(REGION, Region(6, b"p", b"", peers=PEERS)).now
    for wrong in (
        lambda: change.split(source, [b"f"], lambda: 1),
        lambda: conf_change.change_peers(source, [PeerChange(Wish.VOTER, 4)], lambda: 1),
        lambda: change.prepare_merge(source, Region(6, b"p", b"", peers=PEERS)),
    ):
        with pytest.raises(InvalidInput, match="region 5: it is being merged into region 6"):
            wrong()


@given(st.data())
def test_the_table_tiles_the_key_space_through_any_splits_and_merges(data: st.DataObject) -> None:
    ids = itertools.count(1000).__next__
    table = RegionTable(split([b"\x40", b"\x80", b"\xc0"], stores=3))
    seen: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        region = data.draw(st.sampled_from(table.all))
        if data.draw(st.booleans()):
            cuts = data.draw(st.lists(st.binary(min_size=1, max_size=2), min_size=1, max_size=4))
            try:
                made = change.split(region, cuts, ids)
            except InvalidInput:
                continue
        else:
            other = table.of_key(region.end) if region.end else table.before(region.start)
            if other is None or set(other.stores) != set(region.stores):
                continue
            prepared = change.prepare_merge(region, other)
            table.replace(prepared.before, prepared.now)
            made = change.commit_merge(*prepared.now, other)
        table.replace(made.before, made.now)
        assert table.all[0].start == b""
        assert table.all[-1].end == b""
        assert all(left.end == right.start for left, right in itertools.pairwise(table.all))
        for region in made.now:
            assert region.version > seen.get(region.id, 0), "a region's version only grows"
            seen[region.id] = region.version
            assert table.of_key(region.start) is region
