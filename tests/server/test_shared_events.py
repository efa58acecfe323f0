"""Feeds at different places share one store of events, of which nobody's part is lost or pulled twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, check_order, wait_for, work
from tests.small_tables import ID, SmallTables, number

from tidegate.control.barrier import SpanTask
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import Dispatch, Header, Wish
from tidegate.control.metadata import FeedId
from tidegate.control.processor import Processor
from tidegate.eventstore import store_view
from tidegate.eventstore.manifest import StoreFrontier
from tidegate.eventstore.order import Entry, block_of
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.model.span import Span, span_id
from tidegate.server.catalogue.catalogues import DDL_SPAN_ID
from tidegate.server.processor.arrivals import Arrivals
from tidegate.server.pulling.puller_process import store_dir
from tidegate.server.pulling.spans import OwnerOf
from tidegate.tidb import keys, record
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank", "capture"]

SPAN = Span(b"a", b"b")


@pytest.fixture(autouse=True)
def segments_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FLOOR_S", 0.1), ("DROP_AFTER_S", 0.2)):
        monkeypatch.setattr(f"tidegate.server.processor.reader_floor.{name}", seconds)
    for name, seconds in (("SAVE_REST", 1), ("RENAME_S", 0.1)):
        monkeypatch.setattr(f"tidegate.server.catalogue.catalogues.{name}", seconds)
    monkeypatch.setattr("tidegate.server.changefeeds.housekeeping.HOUSEKEEPING_S", 0.1)
    monkeypatch.setattr("tidegate.server.processor.upkeep.UPKEEP_S", 0.1)


def dropped(capture: Running, ts: int) -> bool:
    """Whether all the store holds at or below `ts` is gone."""
    store = store_dir(capture.data_dir, capture.capture.cluster)
    manifests = [store_view.read_manifest(store, line.span) for line in capture.capture.spans.status]
    return all(segment.min_ts > ts for each in manifests for segment in each.segments)


def delivered(capture: Running, name: str) -> set[Any]:
    lines = capture.lines(name)
    check_order(lines)
    rows = {(line["row"], line["key"]) for line in lines if "row" in line}
    return rows | {line["ddl"] for line in lines if "ddl" in line}


def begin_two(capture: Running, bank: BankWorkload, pd: PdClient) -> int:
    """The feeds `one` and `two`, of the same tables, which have both delivered some rows; their start ts."""
    start_ts = pd.tso()
    for name in ("one", "two"):
        assert capture.create(name, start_ts=start_ts)["http"] == 200
    work(bank, 60)
    for name in ("one", "two"):
        capture.wait_checkpoint(name, pd.tso())
    return start_ts


def test_delivered_events_are_pulled_again_whole_once_a_feed_needs_them(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    """A puller that dies resumes where it was. A resumed feed needs rows that one that ran on has released, a
    new one begins before all that is kept; meanwhile the others lose nothing.
    """
    start_ts = begin_two(capture, bank, pd)
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    work(bank, 160)
    passed = pd.tso()
    capture.wait_checkpoint("two", passed)
    wait_for(lambda: dropped(capture, passed), "the segments to go")
    died = capture.capture.pullers.processes["tidb"].pid
    os.kill(died, signal.SIGKILL)
    wait_for(lambda: capture.capture.pullers.processes["tidb"].pid != died, "another puller")
    work(bank, 20)
    capture.wait_checkpoint("two", pd.tso())
    wait_for(lambda: sum(line.rows for line in capture.capture.spans.status) < 100, "its status")

    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    capture.wait_checkpoint("one", passed)
    assert capture.create("three", start_ts=start_ts)["http"] == 200
    work(bank, 40)
    end = pd.tso()
    # The others' spans advanced meanwhile.
    assert "span begins earlier now" in (capture.data_dir / "puller.log").read_text()
    for name in ("one", "two", "three"):
        capture.wait_checkpoint(name, end)
        capture.wait_state(name, "normal")
    kept = [delivered(capture, name) for name in ("one", "two", "three")]
    assert kept[0] == kept[1] == kept[2]


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["its sink is down", "its pipeline is stopped"])
def test_a_stalled_feed_makes_way_before_the_others_stall(
    upstream: EmbeddedUpstream,
    bank: BankWorkload,
    pd: PdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    """Its undelivered rows would fill the event store, and its tables are theirs, too."""
    monkeypatch.setattr("tidegate.server.pulling.spans.STALLED_S", 4.0)
    capture = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out", event_store_bytes=1_600_000)
    try:
        begin_two(capture, bank, pd)
        broken = capture.out / "one.broken"
        if trouble == "its sink is down":
            broken.touch()
        else:
            os.kill(capture.pipeline_pid("one"), signal.SIGSTOP)
        spans = capture.capture.spans
        # The store is no longer full once the changefeed has made way, which may be while this writes.
        wait_for(
            lambda: (
                spans.filling
                or "changefeed stopped to free event store space" in caplog.text
                or work(bank, 100)
            ),
            "the event store to fill up",
        )
        passed = pd.tso()
        wait_for(lambda: "changefeed stopped to free event store space" in caplog.text, "it to make way")
        one = FeedId("default", "one")
        wait_for(lambda: not any(one in holders for holders in spans._holders.values()), "it to release all")
        assert OwnerOf(one) in spans._holders[DDL_SPAN_ID], "its owner's catalogue continues"
        wait_for(lambda: dropped(capture, passed), "the segments to go")
        if broken.exists():
            assert capture.feed("one")["checkpoint_ts"] < passed
        work(bank, 200)
        capture.wait_checkpoint("two", pd.tso())
        assert "given up" not in (capture.data_dir / "puller.log").read_text()
        broken.unlink(missing_ok=True)
        for name in ("one", "two"):
            capture.wait_checkpoint(name, pd.tso())
        assert delivered(capture, "one") == delivered(capture, "two")
    finally:
        capture.stop()


def opened(store: Path, span: str, *, bound: int) -> tuple[Processor, Arrivals]:
    """One span, wanted above 100; DDL is known up to 200."""
    header = Header(1, "default/one", "one", 1, "here", 1, 1)
    machine = Processor(header)
    everything = GrantedRange(Span(b"", b""), (1, 1))
    machine.receive(Dispatch(header, Wish.RUN, 1, (everything,), bound, 100, load=False))
    machine.open(100, [SpanTask(span, SPAN, 1, 100)], [], 200)
    arrivals = Arrivals(machine, store, span, store_view.read_manifest)
    arrivals.check_beginning_of({span})
    return machine, arrivals


def advance(arrivals: Arrivals, frontier: StoreFrontier) -> None:
    arrivals.advance_idle(frontier, arrivals.lifted(frontier))


def test_nothing_counts_as_received_while_the_beginning_is_missing(tmp_path: Path) -> None:
    """Also while the bound leaves nothing to deliver, as it does when a feed is resumed."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(150)
    span.seal(180)
    store.publish()
    machine, arrivals = opened(tmp_path, span.id, bound=100)

    def received() -> int:
        advance(arrivals, arrivals.frontier())
        machine.resolve(arrivals.frontier(), arrivals.lacking)
        return machine.spans.resolved

    assert received() == 100
    before = EventStore(tmp_path / "backfill")
    pulled = before.open_span(SPAN)
    pulled.begin(100)
    pulled.seal(150)
    assert span.prepend(pulled, 100, 150)
    assert received() == 180


def test_a_restarted_or_later_kept_span_is_not_taken_for_an_idle_one(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    span.append(block_of([Entry(110, 109, 1, b"k", b"", b"")]))
    span.seal(120)
    store.publish()
    machine, arrivals = opened(tmp_path, span.id, bound=200)
    before = store_view.read_frontier(tmp_path)
    span.drop_below(115)
    advance(arrivals, before)
    assert machine.spans.durable(span.id) == 100
    span.begin(50)
    advance(arrivals, before)
    assert machine.spans.durable(span.id) == 100
    span.seal(120)
    store.publish()
    advance(arrivals, store_view.read_frontier(tmp_path))
    assert machine.spans.durable(span.id) == 120
    store.close()


def test_a_lock_delays_only_feeds_that_want_a_table_of_its_region(
    upstream: EmbeddedUpstream, capture: Running, pd: PdClient
) -> None:
    """Although their tables share a stripe. A feed that comes to want the table waits from then on."""
    shop = SmallTables(pd, "shop", {"orders": [ID, number("v")], "users": [ID, number("v")]})
    users = shop.tables["users"]
    UpstreamControl(pd).split(0, [encode_bytes(keys.table_prefix(users.id))])
    for name, rule in (("one", "shop.o*"), ("two", "shop.users")):
        settings = {"filter": {"rules": [rule]}, "tidegate": {"ids_per_stripe": 512}}
        assert capture.create(name, replica_config=settings, start_ts=shop.made_ts)["http"] == 200
    shop.put("users", {1: (1, 1)})
    first = shop.put("orders", {1: (1, 1)})
    for name in ("one", "two"):
        capture.wait_checkpoint(name, first)

    key, value = record.encode(users, (2, 2))
    held = TwoPhase(pd, pd.tso(), key, ttl_ms=600_000)
    held.prewrite([Mutation(PUT, key, value)], Backoff())
    locked = pd.tso()
    shop.put("users", {3: (3, 3)})
    capture.wait_checkpoint("one", shop.put("orders", {2: (2, 2)}))
    shop.ddl(lambda c: c.add_column("orders", "alter table orders add w int", number("w")))
    capture.wait_checkpoint("one", shop.put("orders", {3: (3, 3, 3)}))
    assert capture.feed("two")["checkpoint_ts"] < locked
    # The region may be registered again from its resolved ts.
    assert capture.capture.reactor.history.needs(-1)[FeedId("default", "one")] < locked
    assert f"span {keys_of_stripe(users.id)}" in capture.feed("two")["tidegate"]["waiting_for"]

    made = shop.ddl(
        lambda c: c.create_table("oxen", "create table oxen (id bigint primary key)", [ID], ["id"])
    )
    shop.put("oxen", {4: (4,)})
    last = shop.put("orders", {4: (4, 4, 4)})
    wait_for(lambda: capture.feed("one")["checkpoint_ts"] >= made - 1, "all up to the DDL")
    assert [line for line in capture.lines("one") if line.get("row", 0) > made] == []
    held.rollback([key], Backoff())
    for name in ("one", "two"):
        capture.wait_checkpoint(name, last)
    assert [of_table(capture, "one", table) for table in ("shop.orders", "shop.oxen")] == [4, 1]
    assert of_table(capture, "two", "shop.users") == 2
    for name in ("one", "two"):
        check_order(capture.lines(name))


def keys_of_stripe(table: int) -> str:
    return span_id(keys.stripe_span(table, 512))


def of_table(capture: Running, name: str, table: str) -> int:
    return len([line for line in capture.lines(name) if line.get("table") == table])
