import itertools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.errors import InvalidInput, Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.pd_calls import PdCalls
from tidegate.proto import keyspacepb_pb2 as keyspacepb
from tidegate.tikv.server import EmbeddedUpstream


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_timestamps_ascend_over_threads(pd: PdClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        lists = list(pool.map(lambda _: [pd.tso() for _ in range(100)], range(4)))
    assert all(one == sorted(one) for one in lists)
    assert len({ts for one in lists for ts in one}) == 400


def test_a_count_reserves_the_timestamps_before_the_answer(pd: PdClient) -> None:
    before, last = pd.tso(), pd.tso(count=50)
    assert last - before >= 50
    assert pd.tso() > last


def test_regions_tile_the_key_space(pd: PdClient) -> None:
    regions = pd.scan_regions(b"", b"", 100)
    assert len(regions) == 5
    assert regions[0].start_key == b""
    assert regions[-1].end_key == b""
    assert all(a.end_key == b.start_key for a, b in itertools.pairwise(regions))
    assert pd.region_of(regions[2].start_key) == regions[2]
    assert pd.store_address(regions[0].leader_store_id) == pd.upstream_info().store_address


def test_an_older_pd_is_asked_for_one_range_at_a_time(upstream: EmbeddedUpstream, pd: PdClient) -> None:
    regions = pd.scan_regions(b"", b"", 100)
    wanted = [(regions[0].start_key, regions[1].start_key), (regions[2].start_key, regions[4].start_key)]
    new = pd.scan_ranges(wanted, 100)
    upstream.faults.unknown_calls = frozenset({"BatchScanRegions"})
    try:
        with PdClient(upstream.pd_addr) as older:
            assert older.scan_ranges(wanted, 100) == older.scan_ranges(wanted, 100) == new
    finally:
        upstream.faults.clear()
    assert new == [regions[0], *regions[2:4]]


def test_a_service_holds_the_gc_safepoint(pd: PdClient) -> None:
    assert pd.update_service_gc_safepoint("tidegate-test", 60, 1000) <= 1000
    assert pd.gc_safe_point() <= 1000
    pd.update_service_gc_safepoint("tidegate-test", 0, 0)


def test_an_unreachable_pd_raises_a_retryable_error_within_the_budget(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the address."""
    waits: list[float] = []
    with PdClient(nobody, retry_s=0.5) as client:
        monkeypatch.setattr(PdCalls, "pause", lambda _, seconds: waits.append(seconds))
        with pytest.raises(Retryable) as caught:
            client.tso()
    assert "PD is unreachable" in caught.value.what
    assert nobody in str(caught.value)
    assert 0 < sum(waits) <= 0.5


def test_closing_wakes_those_who_wait(nobody: str) -> None:
    client = PdClient(nobody, retry_s=86_400)
    threading.Timer(0.2, client.close).start()
    with pytest.raises((Retryable, InvalidInput)):
        client.tso()


def test_a_manual_tso_moves_forward_only(manual_pd: PdClient) -> None:
    assert manual_pd.upstream_info().manual_tso
    assert manual_pd.advance_tso(1000) == 1000
    assert manual_pd.advance_tso(500) == 1000
    assert manual_pd.tso() == 1000


def test_a_tso_on_the_clock_cannot_be_moved(pd: PdClient) -> None:
    with pytest.raises(InvalidInput, match="follows the system's clock"):
        pd.advance_tso(1)


def test_no_address_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput):
        PdClient("")


def test_a_keyspace_is_known_by_its_name(tmp_path: Path) -> None:
    with (
        EmbeddedUpstream(tmp_path, api_version=2, keyspaces=["tenant"]) as running,
        PdClient(running.pd_addr) as pd,
    ):
        assert (pd.keyspaces.named("DEFAULT").id, pd.keyspaces.named("tenant").id) == (0, 1)
        with pytest.raises(InvalidInput, match=r"(?s)there is no keyspace 'nobody'.*--keyspace-id"):
            pd.keyspaces.named("nobody")
        running._keyspaces.all()[1].state = keyspacepb.DISABLED
        with pytest.raises(InvalidInput, match="keyspace 'tenant' is disabled"):
            pd.keyspaces.named("tenant")
