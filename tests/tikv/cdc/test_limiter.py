"""How fast incremental scans may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tikv.cluster import Client, Cluster
from tests.tikv.support import put
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.tikv.cdc.limiter import Limiter


def test_scans_of_a_store_are_rate_limited_and_end_when_deregistered(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(b"m")
    low, high = cluster.regions.all
    cluster.txn(*(put(b"a%02d" % number, bytes(2000)) for number in range(40)))  # three events
    cluster.endpoint._scans.limiter = Limiter(1.0)
    client = Client(cluster)
    feeds = [client.register(number, low) for number in range(1, 5)]  # as many as scan at once
    client.until(lambda: all(feed.rows for feed in feeds))
    last = client.register(9, high)
    for number in range(1, 5):
        stop = cdc.ChangeDataRequest(request_id=number, deregister=cdc.ChangeDataRequest.Deregister())
        cluster.endpoint.request(client.connection, stop)
    client.until(lambda: last.initialized)
    assert [(len(feed.rows), feed.initialized) for feed in feeds] == [(17, False)] * 4, "one event of each"
    client.close()


def test_what_scans_have_not_used_lasts_for_a_tenth_of_a_second() -> None:
    now = 50.0
    limiter = Limiter(1000.0, lambda: now)
    assert limiter.charge(100) == 0.0
    assert limiter.charge(500) == pytest.approx(0.5)
    assert limiter.charge(500) == pytest.approx(1.0), "the next sender waits for what was sent"
    now += 1.0
    assert limiter.charge(0) == pytest.approx(0.0)
    now += 60.0
    assert limiter.charge(200) == pytest.approx(0.1)
