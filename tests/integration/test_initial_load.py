"""A feed that begins with the rows there are: load and stream joined at one ts, through kill and split."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.integration.cluster import Cluster, eventually
from tests.integration.test_kills import KEYS, newest
from tests.integration.validators import read_topic, validate
from tidegate.consumer.snapshots import open_snapshot
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.tables import read_rows, read_tables
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.sink.lakehouse.store import SNAPSHOTS
from tidegate.sink.lakehouse.tables import Lakehouse
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes

pytestmark = pytest.mark.integration

ACCOUNTS = 3000


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, options="&partition-num=3")
    yield running
    running.stop()


def rows_at(pd: PdClient, ts: int) -> Counter[str]:
    """How many rows each table has at a ts."""
    snapshot = Snapshot(pd, ts)
    return Counter(
        {table.name: sum(1 for _ in read_rows(snapshot, table)) for table in read_tables(snapshot)}
    )


def loaded_rows(uri: str, ts: int) -> Counter[str]:
    """Rows in the topic whose commit ts is the load's."""
    found: Counter[str] = Counter()
    for decoded in read_topic(uri).values():
        for table in decoded.rows:
            found[f"{table.schema}.{table.table}"] += table.commit_ts.tolist().count(ts)
    return +found


def test_a_load_is_joined_with_the_stream_through_a_kill_and_a_split(cluster: Cluster) -> None:
    cluster.start_upstream("--regions", "3")
    cluster.start_server()
    workload = cluster.start_workload(
        "--rate", "200", "--accounts", str(ACCOUNTS), "--ddl-every", "3000", "--seed", "5"
    )
    workload.wait_line(lambda line: line.get("event") == "ready")
    settings = cluster.folder / "feed.toml"
    settings.write_text('[tidegate]\nload-rows-per-second = 300\nstall-timeout = "1h"\n')
    cluster.create_feed("bank", "--initial-load", "--config", str(settings))

    def loaded() -> int:
        return int((cluster.feed()["tidegate"]["initial_load"] or {"rows": 0})["rows"])

    eventually("some rows of the load", lambda: 0 < loaded() < ACCOUNTS)
    # Until it is killed it must not come to an end, however slow this machine is.
    cluster.kill("driver", signal.SIGSTOP)
    cluster.start_consumer("--master", "workers[1]")
    follower = cluster.follow_load()
    follower.wait_line(lambda line: 0 < line["rows"] < ACCOUNTS)
    with PdClient(cluster.pd) as pd:
        tables = read_tables(Snapshot(pd, pd.tso()))
        middles = [encode_bytes(keys.int_record(table.id, ACCOUNTS // 2)) for table in tables]
        UpstreamControl(pd).split(0, middles)
    feed = cluster.feed()
    start_ts = feed["start_ts"]
    assert (feed["checkpoint_ts"], feed["tidegate"]["resolved_sent"]) == (start_ts, 0)
    cluster.kill("driver")
    follower.wait_line(lambda line: line["state"] == "done")
    assert cluster.feed()["tidegate"]["pipeline_starts"] == 2
    cluster.wait_checkpoint(start_ts + 1)
    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    cluster.wait_checkpoint(done["last_commit_ts"])
    eventually("the last commit in the tables", lambda: newest(cluster.lake) >= done["last_commit_ts"])
    balance = open_snapshot(cluster.lake).tables["bank.accounts"].to_arrow(["balance"]).schema.field(0).type
    assert balance == pa.decimal128(20, 4), "as the table was defined, not guessed from its rows"
    assert not (cluster.folder / "capture/feeds/default/bank/quarantine.jsonl").exists()
    named = sorted(set(Lakehouse(cluster.lake).read(SNAPSHOTS).column("ts").to_pylist()))
    assert named[0] >= start_ts
    for ts in {named[len(named) // 2], named[-1]}:
        outcome = cluster.compare(str(ts))
        assert outcome["equal"], outcome
    with PdClient(cluster.pd) as pd:
        expected = rows_at(pd, start_ts)
    cluster.stop()
    report = validate(cluster.uri, KEYS)
    assert report.faults == []
    assert report.duplicates == 0
    assert loaded_rows(cluster.uri, start_ts) == expected
    assert expected["bank.accounts"] == ACCOUNTS
