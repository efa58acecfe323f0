"""Regions tile the key space."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvalidInput
from tidegate.proto import errorpb_pb2, kvrpcpb_pb2, metapb_pb2
from tidegate.tikv import keys
from tidegate.tikv.raft.region import Region, split, split_keys
from tidegate.tikv.raft.region_table import RegionTable

TABLE = RegionTable(split([b"d", b"k", b"t"]))
BOUND = st.sampled_from([b"", b"a", b"d", b"e", b"k", b"m", b"t", b"z"])


@given(BOUND)
def test_a_key_has_one_region(key: bytes) -> None:
    holders = [region for region in TABLE.all if region.contains(key)]
    assert holders == [TABLE.of_key(key)]
    before = TABLE.before(key)
    assert before is None or before.end == holders[0].start


@given(BOUND, BOUND, st.integers(-1, 3))
def test_a_scan_finds_what_overlaps(start: bytes, end: bytes, limit: int) -> None:
    if end and end <= start:
        return
    overlapping = [r for r in TABLE.all if (not end or r.start < end) and (not r.end or start < r.end)]
    assert TABLE.scan(start, end, limit) == overlapping[: limit if limit > 0 else None]


def test_split_keys_make_as_many_regions_as_asked_over_tables_and_rows() -> None:
    table = RegionTable(split(split_keys(6)))
    assert len(table.all) == 6
    raw = [keys.decode(region.start)[9:] for region in table.all[1:]]
    assert [bool(rest) for rest in raw] == [True, False, True, False, True]
    assert split(split_keys(1)) == [Region(2, b"", b"")]


def test_boundaries_must_ascend() -> None:
    for wrong in ([b"b", b"a"], [b""], [b"a", b"a"]):
        with pytest.raises(InvalidInput):
            split(wrong)


@pytest.mark.parametrize(
    ("region_id", "version", "store", "field"),
    [
        (99, 1, 1, "region_not_found"),
        (2, 5, 1, "epoch_not_match"),
        (2, 1, 7, "store_not_match"),
    ],
)
def test_a_request_for_another_region_epoch_or_store_is_refused(
    region_id: int, version: int, store: int, field: str
) -> None:
    context = kvrpcpb_pb2.Context(
        region_id=region_id,
        region_epoch=metapb_pb2.RegionEpoch(version=version),
        peer=metapb_pb2.Peer(store_id=store),
    )
    answer = TABLE.check(context, 1)
    assert isinstance(answer, errorpb_pb2.Error)
    assert answer.HasField(field)
    context.region_id, context.region_epoch.version, context.peer.store_id = 3, 1, 1
    assert TABLE.check(context, 1) == TABLE.by_id[3]
