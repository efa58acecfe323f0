"""Every recorded DDL job through a whole capture: what is sent, what is followed, whose rows are whose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.mounter.golden_ddl import unescaped
from tests.server.recorded_ddl import Recorded
from tests.server.test_capture import Running, check_order, wait_for

from tidegate.eventstore import store_view
from tidegate.kvclient.pd import PdClient
from tidegate.server.catalogue import catalogues
from tidegate.server.catalogue.catalogues import DDL_SPAN_ID
from tidegate.server.processor import reader_floor, upkeep
from tidegate.tidb.sql.restore import outgoing
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.load import Loader

pytestmark = pytest.mark.integration

CASES = ("basic", "multi_schema_change", "partitions", "views_sequences", "table_options")
FEEDS: dict[str, dict[str, Any]] = {"one": {}, "striped": {"ids_per_stripe": 16}}
"""The same tables, each in a span of its own, and 16 ids together."""
RECOVER_SCHEMA = "FLASHBACK DATABASE `d_vs`"
AFTER_RECOVERY = "CREATE TABLE `d_vs`.`after_flash` (`id` INT PRIMARY KEY)"


@pytest.fixture(autouse=True)
def quick_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogues are saved and files removed within seconds, not minutes."""
    for name, seconds in (("FLOOR_S", 0.2), ("DROP_AFTER_S", 0.4)):
        monkeypatch.setattr(reader_floor, name, seconds)
    monkeypatch.setattr(catalogues, "SAVE_REST", 1)
    monkeypatch.setattr(upkeep, "SWEEP_S", 0.4)


@pytest.fixture
def capture(manual_upstream: EmbeddedUpstream, tmp_path: Path) -> Iterator[Running]:
    running = Running(manual_upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    yield running
    running.stop()


@pytest.mark.slow
def test_events_spans_and_rows_of_every_recorded_job(
    capture: Running, manual_pd: PdClient, manual_upstream: EmbeddedUpstream
) -> None:
    log = Recorded(CASES)
    Loader(manual_pd).load([log.base])
    for name, settings in FEEDS.items():
        made = capture.create(name, start_ts=log.base.commit_ts, replica_config={"tidegate": settings})
        assert made["http"] == 200, made
    cut = len(log.txns) // 3
    Loader(manual_pd).load(log.txns[:cut])
    for name in FEEDS:
        capture.wait_checkpoint(name, log.txns[cut - 1].commit_ts)
    Loader(manual_pd).load(log.txns[cut : 2 * cut])
    capture.stop()  # in the midst of DDL that is not delivered yet
    Loader(manual_pd).load(log.txns[2 * cut :])
    again = Running(manual_upstream.pd_addr, capture.data_dir, capture.out)
    try:
        end = manual_pd.advance_tso(log.txns[-1].commit_ts + 10)
        for name in FEEDS:
            again.wait_checkpoint(name, end)
            delivered = again.lines(name)
            check_order(delivered)
            check_rows(log, delivered)
            emitted = [(line["ddl"], unescaped(line["query"])) for line in delivered if "ddl" in line]
            beyond = [query for ts, query in emitted if query in (RECOVER_SCHEMA, AFTER_RECOVERY)]
            assert beyond == [RECOVER_SCHEMA, AFTER_RECOVERY]
            expected = [(ts, unescaped(outgoing(query).text)) for ts, query in log.emitted]
            assert [item for item in emitted if item[1] not in beyond] == expected
        check_spans(again)
        # The progress of spans that have ended goes; of a stripe it is needed when a table comes to it.
        wait_for(lambda: any("forgotten" in line for line in again.lines("one")), "progress forgotten")
        assert not any("forgotten" in line for line in again.lines("striped"))
    finally:
        again.stop()


def check_rows(log: Recorded, delivered: list[dict[str, Any]]) -> None:
    """Each row that counts once, as its table's; none of the others."""
    found = {line["key"]: line["table"] for line in delivered if "row" in line}
    expected = {row.key.hex(): row.table for row in log.rows if row.table}
    by_key = {row.key.hex(): row for row in log.rows}
    wrong = [
        (by_key[key], found.get(key, "not delivered"))
        for key in found.keys() | expected.keys()
        if found.get(key) != expected.get(key)
    ]
    assert not wrong, sorted(wrong, key=lambda pair: pair[0].ts)[:10]


def check_spans(running: Running) -> None:
    """Nothing is followed but the tables there are and the DDL; soon nothing else is kept."""
    processors = running.capture.processor_registry.processors.values()
    tables, stripes = sorted(({*one.machine.spans.ids} for one in processors), key=len, reverse=True)
    assert 0 < len(stripes) < len(tables)
    held = running.capture.spans.held
    assert held == {*tables, *stripes, DDL_SPAN_ID}
    store = next(iter(processors)).node.paths.store

    def stored() -> bool:
        folders = {path.name for path in store.iterdir() if path.is_dir()} - {"spill"}
        return folders == set(store_view.read_frontier(store)) == held

    wait_for(stored, "files and floors of ended spans removed")
