"""Source and target at one ts, over the embedded upstream."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.consumer.logs import BANK, bank_topic, snapshots
from tests.consumer.memory_topic import consume
from tidegate.cli.main import app
from tidegate.consumer.comparison import Source, compare, differences
from tidegate.consumer.snapshots import open_snapshot
from tidegate.kvclient.pd import PdClient
from tidegate.sink.lakehouse.tables import Lakehouse
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.changelog import read_log
from tidegate.workload.load import Loader


def test_differing_rows_are_shown_with_their_side() -> None:
    here = pa.table({"id": [1, 2, 3], "v": ["a", "b", None]})
    there = pa.table({"id": [3, 2, 4], "v": [None, "x", "d"]})
    count, shown = differences(here, there, ["id"], 10)
    assert count == 4
    assert [(found["side"], found["row"]["id"]) for found in shown] == [
        ("source", 1),
        ("source", 2),
        ("target", 2),
        ("target", 4),
    ]
    assert differences(here, here.take([2, 0, 1]), ["id"], 10) == (0, ())


@pytest.mark.integration
def test_the_bank_is_equal_and_one_changed_row_is_found(
    manual_upstream: EmbeddedUpstream, manual_pd: PdClient, tmp_path: Path
) -> None:
    line, target = snapshots()[4], tmp_path / "target"
    Loader(manual_pd).load(read_log(BANK, until=line.ts))
    consume(bank_topic("open-protocol", 4), target, until=line.ts, size=500)
    verdicts = list(compare(Source(manual_pd, line.ts), open_snapshot(target)))
    assert {verdict.table for verdict in verdicts} == set(line.tables)
    assert all(verdict.equal for verdict in verdicts), verdicts
    lake, table = Lakehouse(target), open_snapshot(target).tables["bank.accounts"]
    row = table.to_arrow().slice(0, 1)
    other = row.set_column(row.column_names.index("owner"), "owner", pa.array(["somebody else"]))
    lake.merge("bank/accounts", other, row.select(["id"]).slice(0, 0), ["id"])
    arguments = ["compare", "--pd", manual_upstream.pd_addr, "--target", f"delta://{target}", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, "a version that no snapshot names is not read"
    assert json.loads(done.output)["equal"] is True
    named = [replace(r, ts=r.ts + 1, version=lake.version(r.path)) for r in lake.snapshots.rows()]
    position = lake.snapshots.position()
    assert position is not None
    lake.snapshots.publish(line.ts + 1, named, position)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    wrong = [found for found in json.loads(done.output)["tables"] if not found["equal"]]
    assert [(found["table"], found["differing"]) for found in wrong] == [("bank.accounts", 2)]
    assert [found["side"] for found in wrong[0]["differences"]] == ["source", "target"]
