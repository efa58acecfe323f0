"""Stores that serve no regions: removed ones, TiFlash's, unknown ones; and those whose TiKV is too old."""

from collections.abc import Callable

import pytest

from tidegate.errors import InvalidInput
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pages import pages
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.stores import StoreGone, check_versions
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model.span import Span
from tidegate.proto import metapb_pb2 as metapb
from tidegate.tikv.server import EmbeddedUpstream


def tiflash(number: int, version: str = "v6.1.0") -> metapb.Store:
    labels = [metapb.StoreLabel(key="zone", value="a"), metapb.StoreLabel(key="engine", value="tiflash")]
    return metapb.Store(id=number, address="127.0.0.1:1", labels=labels, version=version)


def test_a_store_that_serves_no_regions_is_reported_at_once(upstream: EmbeddedUpstream) -> None:
    removed = metapb.Store(id=8, address="127.0.0.1:1", state=metapb.Tombstone, version="v5.0.0")
    upstream.faults.stores = {8: removed, 9: tiflash(9)}
    with PdClient(upstream.pd_addr, retry_s=86_400) as pd:
        for number, why in ((7, "PD does not know it"), (8, "it was removed"), (9, "it is TiFlash's")):
            with pytest.raises(StoreGone, match=why):
                pd.store_address(number)
        assert sorted(store.id for store in pd.stores()) == [1, 9]
        check_versions(pd.stores())


@pytest.mark.parametrize("version", ["6.5.10", "v7.1.5", "v7.4.0-alpha"])
def test_a_tikv_that_is_too_old_is_refused_with_the_oldest_that_will_do(version: str) -> None:
    with pytest.raises(InvalidInput, match=r"7\.5 is the oldest") as refused:
        check_versions([metapb.Store(id=4, address="tikv-4:20160", version=version)])
    assert f"store 4 at tikv-4:20160: {version}" in refused.value.render()


@pytest.mark.parametrize("version", ["v7.5.0", "8.5.3", "v8.5.0-alpha-12-gabc", "v10.0.1", "", "nightly"])
def test_newer_versions_and_unreadable_ones_are_let_pass(version: str) -> None:
    check_versions([metapb.Store(id=4, address="tikv-4:20160", version=version)])


Read = Callable[[PdClient], int]


@pytest.mark.parametrize(
    "read",
    [
        lambda pd: len(Snapshot(pd, pd.tso()).batch_get([b"a", b"x"])),
        lambda pd: sum(page.num_rows for page in pages(pd, Snapshot(pd, pd.tso()), Span(b"", b""))),
    ],
    ids=["keys", "pages"],
)
def test_reads_wait_for_a_region_to_have_a_leader(
    upstream: EmbeddedUpstream, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    with PdClient(upstream.pd_addr) as pd:
        writer = TwoPhase(pd, pd.tso(), b"a")
        writer.prewrite([Mutation(PUT, key, b"v") for key in (b"a", b"x")], Backoff())
        writer.commit([b"a", b"x"], pd.tso(), Backoff())
    upstream.faults.stores, upstream.faults.first_learner = {9: tiflash(9)}, 9
    upstream.faults.leaderless = frozenset(region.id for region in upstream.regions.all)
    with PdClient(upstream.pd_addr) as pd:
        waits = []

        def pause(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                upstream.faults.leaderless = frozenset()

        monkeypatch.setattr(pd, "pause", pause)
        assert read(pd) == 2
        assert len(waits) >= 3
