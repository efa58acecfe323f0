"""A table that is too hot for one capture is cut while it is written to, and two captures deliver it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_capture import Running, check_order, wait_for
from tests.server.test_captures import Start, reached, start
from tests.server.test_sharing import fenced, shares
from tests.small_tables import ID, SmallTables, text

from tidegate.errors import Retryable
from tidegate.eventstore.key_loads import KeyLoads
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import span_id
from tidegate.server.captures.key_loads_client import KeyLoadsClient
from tidegate.tidb import keys

pytestmark = pytest.mark.integration
__all__ = ["fenced", "start"]

QUICK = {
    "tidegate.control.outbox.SYNC_S": 0.5,
    "tidegate.server.processor.span_loads.WEIGH_S": 0.5,
    "tidegate.server.owner.delivered_spans.WORTH": 1.0,
    "tidegate.server.owner.sharing.BALANCE_S": 1.0,
    "tidegate.server.changefeeds.recuts.LOOK_S": 0.3,
    "tidegate.server.catalogue.hot_cuts.LOOKS_HOT": 3,
    "tidegate.server.catalogue.hot_cuts.ROWS_MIN": 20,
}
"""Loads are measured and looked at every few tenths of a second, however small they are."""


def delivered_by(running: Running) -> int:
    """The number of captures that deliver pieces of the hot table; 0 while it is whole, or not delivered."""
    if not shares(running):
        return 0
    own: dict[str, Any] = running.feed("one")["tidegate"]
    tables = (own["cut_tables"] or {}).get("tables", [])
    return max((one["captures"] for one in tables if one["table"] == "shop.hot"), default=0)


def asked(running: Running, span: str, folder: Path, cluster: int = 0) -> KeyLoads:
    """Ask a capture over HTTP which keys of a span have changed, as an owner does."""
    cluster = cluster or running.capture.cluster
    client = KeyLoadsClient("owner", cluster, folder, lambda capture: running.address, None)
    return asyncio.run(client.ask("another", span))


def changed_rows(running: Running, spans: Sequence[str], folder: Path) -> int:
    """The rows that a capture has of the spans."""
    rows = 0
    for span in spans:
        with contextlib.suppress(Retryable):  # it never had this one
            rows += asked(running, span, folder).rows
    return rows


@pytest.mark.slow
def test_a_hot_table_is_cut_and_spreads_and_its_rows_arrive_once(
    start: Start, pd: PdClient, fenced: list[set[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in QUICK.items():
        monkeypatch.setattr(name, value)
    shop = SmallTables(pd, "shop", {"hot": [ID, text("v")], "cold": [ID, text("v")]})
    first, second = start("a"), start("b")
    on = {"scheduler": {"enable_table_across_nodes": True}, "tidegate": {"retention": "1m"}}
    assert first.create("one", replica_config=on)["http"] == 200
    wait_for(lambda: len(shares(first)) == 2, "each has a table")
    over, changes, chance = threading.Event(), [0], random.Random(3)

    def write() -> None:
        while not over.wait(0.05):
            handles = chance.sample(range(100_000), 50)
            shop.put("hot", {handle: (handle, "v" * 30) for handle in handles})
            changes[0] += len(handles)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: delivered_by(first) == 2, "pieces of the table are at both captures")
        cuts = [bytes.fromhex(cut) for cut in first.feed("one")["config"]["tidegate"]["table_cuts"]]
        pieces = list(map(span_id, keys.record_span(shop.tables["hot"].id).cut_at(cuts)))
        for each in (first, second):
            wait_for(lambda one=each: changed_rows(one, pieces, tmp_path), "rows of pieces")  # type: ignore[misc]
    finally:
        over.set()
        writer.join()
    for span, cluster in ((pieces[0], 1), ("../..", 0)):
        with pytest.raises(Retryable, match="answers 400"):
            asked(first, span, tmp_path, cluster)
    own = first.feed("one")["tidegate"]
    assert own["table_cuts"] >= 2
    assert "shop.hot had" in own["cuts_chosen"]["why"]
    assert first.feed("one")["state"] == "normal"
    last = pd.tso()
    wait_for(lambda: reached(first) >= last, "all is delivered")

    first.stop()  # what it has stored is all that the next owner knows
    wait_for(lambda: second.capture.ready, "the next owner")
    changes[0] += 40
    shop.put("hot", {handle: (handle, "w") for handle in range(0, 80_000, 2_000)})
    last = pd.tso()
    wait_for(lambda: reached(second) >= last, "it delivers the pieces")
    assert second.feed("one")["tidegate"]["cuts_chosen"] == own["cuts_chosen"]
    assert check_order(second.lines("one"))[0] == changes[0]
