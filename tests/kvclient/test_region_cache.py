import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidegate.kvclient.region_cache import RegionCache, RegionInfo
from tidegate.tidb.memcomparable import encode_bytes


def regions_of(splits: list[bytes], version: int = 1, first_id: int = 1) -> list[RegionInfo]:
    bounds = [b"", *(encode_bytes(s) for s in sorted(set(splits))), b""]
    return [
        RegionInfo(first_id + at, start, end, version, 1, 10 + at, 1)
        for at, (start, end) in enumerate(itertools.pairwise(bounds))
    ]


class FakePd:
    def __init__(self, regions: list[RegionInfo]) -> None:
        self.regions, self.calls = regions, 0

    def scan(self, start: bytes, end: bytes, limit: int) -> list[RegionInfo]:
        self.calls += 1
        return [r for r in self.regions if r.end_key == b"" or r.end_key > start][:limit]


KEYS = st.binary(min_size=1, max_size=6)


@given(st.lists(KEYS, max_size=8), st.lists(KEYS, max_size=8), st.lists(KEYS, min_size=1, max_size=20))
def test_a_key_is_found_in_the_region_that_holds_it_also_after_splits(
    old: list[bytes], new: list[bytes], keys: list[bytes]
) -> None:
    pd = FakePd(regions_of(old))
    cache = RegionCache(pd.scan)
    for key in keys:
        assert cache.locate(key).contains(encode_bytes(key))
    pd.regions = regions_of(old + new, version=2, first_id=100)
    for region in pd.regions:
        cache.insert(region)
    for key in keys:
        found = cache.locate(key)
        assert found.contains(encode_bytes(key))
        assert found.epoch_version == 2


@given(st.lists(KEYS, max_size=8), st.lists(KEYS, min_size=1, max_size=30, unique=True))
def test_grouping_keeps_every_key_once_and_in_its_region(splits: list[bytes], keys: list[bytes]) -> None:
    cache = RegionCache(FakePd(regions_of(splits)).scan)
    groups = cache.group(keys)
    assert sorted(k for _, members in groups for k in members) == sorted(keys)
    assert all(region.contains(encode_bytes(k)) for region, members in groups for k in members)
    assert len({region.id for region, _ in groups}) == len(groups)


def test_a_known_region_is_not_asked_again_until_it_is_invalidated() -> None:
    pd = FakePd(regions_of([b"m"]))
    cache = RegionCache(pd.scan)
    cache.locate(b"a")
    cache.locate(b"z")
    assert pd.calls == 1
    cache.invalidate(cache.locate(b"a").id)
    cache.locate(b"a")
    assert pd.calls == 2


def test_a_new_leader_changes_nothing_else() -> None:
    cache = RegionCache(FakePd(regions_of([])).scan)
    before = cache.locate(b"a")
    cache.set_leader(before.id, 77, 7)
    after = cache.locate(b"a")
    assert (after.leader_peer_id, after.leader_store_id) == (77, 7)
    assert (after.start_key, after.end_key, after.epoch_version) == (b"", b"", 1)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4)), max_size=40
    ),
    st.lists(st.integers(1, 5), max_size=5),
)
def test_entries_never_overlap_nor_repeat_an_id_and_the_newest_stay(
    inserts: list[tuple[int, int, int, int]], gone: list[int]
) -> None:
    cache = RegionCache(lambda start, end, limit: [])
    for at, (low, width, number, version) in enumerate(inserts):
        before = list(cache._regions)
        region = RegionInfo(number, b"%02d" % low, b"%02d" % (low + width), version, 1, 1, 1)
        cache.insert(region)
        rivals = [
            r
            for r in before
            if r.id == number or (r.start_key < region.end_key and region.start_key < r.end_key)
        ]
        if all(r.epoch_version <= version for r in rivals):
            assert cache._regions == sorted(
                [r for r in before if r not in rivals] + [region], key=lambda r: r.start_key
            )
        else:
            assert cache._regions == before
        if at % 7 == 6 and gone:
            number = gone.pop()
            cache.set_leader(number, 8, 9)
            cache.invalidate(number)
            assert all(r.id != number for r in cache._regions)
        assert cache._starts == [r.start_key for r in cache._regions]
        assert cache._start_of == {r.id: r.start_key for r in cache._regions}
