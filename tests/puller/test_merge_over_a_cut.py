"""Regions are merged over a cut inside a table: its pieces stay as they are, and each has its rows once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.puller.test_puller import World, eventually, fail
from tests.puller.test_regions_in_trouble import AwakeClock
from tidegate.config.settings import SchedulerConfig
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.server.catalogue.stripes import Stripes, table_task
from tidegate.server.catalogue.table_cuts import find_cuts
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration

TABLE, ROWS = 20, 1000
CUT = keys.int_record(TABLE, 500)
SETTINGS = SchedulerConfig(enable_table_across_nodes=True, region_threshold=1, region_count_per_span=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    block_matcher.warm()
    store_kernels.warm()
    edges = [encode_bytes(key) for key in (keys.table_prefix(TABLE), CUT, keys.table_prefix(TABLE + 1))]
    upstream = EmbeddedUpstream(tmp_path / "upstream", boundaries=edges, stores=3)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, tmp_path / "events", random.Random(7), last_ts=pd.tso())
    pd.close()
    upstream.stop()


def work(world: World, transactions: int = 10) -> None:
    """Transactions with rows on both sides of the cut, some of them next to it."""
    for number in range(transactions):
        rows = [499, 500, *world.random.sample(range(ROWS), 4)]
        world.commit({keys.int_record(TABLE, row): b"%d-%d" % (number, row) for row in rows})


def test_a_merge_over_a_cut_neither_loses_nor_doubles_a_row(world: World) -> None:
    start = world.last_ts
    cuts = find_cuts(world.pd, {TABLE}, SETTINGS)
    assert cuts == (CUT.hex(),)
    pieces = [task.span for task in Stripes(1, map(bytes.fromhex, cuts)).begin([table_task(TABLE, start)])]
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, clock=AwakeClock(), on_failure=fail)
    for piece in pieces:
        puller.watch(piece, start)
    eventually(lambda: [one.regions for one in puller.status()] == [1, 1], "a region for each piece")

    def check() -> None:
        work(world)
        for piece in pieces:
            world.check(piece, start)

    check()
    operators, regions = world.upstream.operators, world.upstream.regions
    left, right = (regions.of_key(encode_bytes(keys.int_record(TABLE, row))) for row in (1, 501))
    merged = operators.merge(left.id, right.id, between=lambda: None)
    assert (merged.start, merged.end) == (left.start, right.end)
    check()
    # The cut stays where it is. It is not an edge of a region any more, and an update would find others.
    assert find_cuts(world.pd, {TABLE}, SETTINGS) == ()
    other = keys.int_record(TABLE, 300)
    operators.split_at([encode_bytes(other)])
    check()
    assert find_cuts(world.pd, {TABLE}, SETTINGS) == (other.hex(),)
    puller.close()
    store.close()
