"""`spark.readStream.format("tidegate")` against a capture: the real commands, Spark, kills, DDL."""

from __future__ import annotations

import base64
import json
import random
import re
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.integration.cluster import PATIENCE_S, Cluster, eventually
from tests.small_tables import ID, SmallTables, number, text
from tidegate.kvclient.pd import PdClient

pytestmark = pytest.mark.integration

OWN = ["_tidegate_op", "_tidegate_commit_ts", "_tidegate_seq"]


class Shop:
    """A capture, and tables whose every change is noted."""

    def __init__(self, cluster: Cluster, pd: PdClient) -> None:
        self.cluster, self.pd = cluster, pd
        self.tables = SmallTables(
            pd,
            "shop",
            {
                "acc": [ID, number("n")],
                "log": [ID, text("t")],
                "few": [ID, number("n")],
                "own": [ID, number("n")],
                "new": [ID, number("n")],
                "gone": [ID, number("n")],
                "come": [ID, number("n")],
            },
        )

    def call(self, path: str, **body: Any) -> dict[str, Any]:
        answer = httpx.post(f"http://{self.cluster.server}/api/v2{path}", json=body, timeout=60)
        found: dict[str, Any] = answer.json()
        return found | {"http": answer.status_code}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    cluster = Cluster(tmp_path_factory.mktemp("readers"), "127.0.0.1:1")
    try:
        cluster.start_upstream()
        cluster.start_server()
        with PdClient(cluster.pd) as pd:
            yield Shop(cluster, pd)
    finally:
        cluster.stop()


class Query:
    """A query as a process; what it has written is what its checkpoint vouches for."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder, self.options = folder, options
        self.process: subprocess.Popen[str] | None = None
        self._batches: set[str] = set()
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.integration.stream_query", str(self.folder)]
        self.process = subprocess.Popen(
            [*command, json.dumps(self.options)], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        """Why it has ended by itself."""
        assert self.process is not None
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return str(json.loads(out.splitlines()[-1])["stopped"])

    def begun(self) -> bool:
        return (self.folder / "checkpoint" / "commits" / "0").exists()

    def rows(self) -> list[dict[str, Any]]:
        """Each file is read once: Spark changes none, and tests look often."""
        log = self.folder / "rows" / "_spark_metadata"
        found = {one.name for one in log.iterdir() if not one.name.startswith(".")} if log.exists() else set()
        for batch in found - self._batches:
            lines = (log / batch).read_text().splitlines()[1:]
            for name in {json.loads(line)["path"].removeprefix("file://") for line in lines}:
                if name not in self._rows:
                    self._rows[name] = pq.read_table(name).to_pylist()
        self._batches |= found
        return [row for name in sorted(self._rows) for row in self._rows[name]]


class Writer(threading.Thread):
    """Changes of `acc` at random until it is stopped; `made` has what must be read of each."""

    def __init__(self, shop: Shop, seed: int) -> None:
        super().__init__(daemon=True)
        self._shop, self._random = shop, random.Random(seed)
        self.made: list[tuple[str, int, int, int | None]] = []
        self.state: dict[int, int] = {}
        self.ended, self.turn = threading.Event(), threading.Lock()
        self.wide = False

    def run(self) -> None:
        while not self.ended.wait(0.1):
            with self.turn:
                self.change()

    def change(self) -> None:
        tables, chosen = self._shop.tables, self._random
        if self.state and chosen.random() < 0.3:
            gone = chosen.sample(sorted(self.state), min(3, len(self.state)))
            ts = tables.delete("acc", gone)
            self.made += [("delete", ts, one, self.state.pop(one)) for one in gone]
            return
        rows = {chosen.randrange(200): chosen.randrange(1000) for _ in range(20)}
        ts = tables.put("acc", {one: (one, n, 7) if self.wide else (one, n) for one, n in rows.items()})
        for one, n in rows.items():
            op = "update" if one in self.state else "insert"
            self.made.append((op, ts, one, n))
        self.state |= rows


def test_each_change_is_read_once_despite_kills_and_ddl_stops_the_query(shop: Shop, tmp_path: Path) -> None:
    query, writer = Query(tmp_path, server=shop.cluster.server, tables="shop.acc"), Writer(shop, 7)
    query.start()
    eventually("batch 0", query.begun)
    writer.start()
    eventually("rows", lambda: len(query.rows()) > 100)
    query.kill()
    shop.cluster.kill("puller")
    query.start()
    seen = len(query.rows())
    eventually("more rows", lambda: len(query.rows()) > seen + 100)
    shop.cluster.kill("driver")
    shop.cluster.kill("server")
    shop.cluster.start_server()
    seen = len(query.rows())
    eventually("more rows after a restart", lambda: len(query.rows()) > seen + 100)
    with writer.turn:
        add = "alter table acc add column z int"
        finished_ts = shop.tables.ddl(lambda it: it.add_column("acc", add, number("z")))
        writer.wide = True
    assert "z int32 is new" in (said := query.last_words())
    assert "ADD COLUMN" in said
    rows_before = query.rows()
    assert max(row["_tidegate_commit_ts"] for row in rows_before) <= finished_ts
    query.start()
    eventually("rows of the new form", lambda: any("z" in row for row in query.rows()))
    writer.ended.set()
    writer.join()
    eventually("all rows", lambda: len(query.rows()) >= len(writer.made))
    query.kill()
    rows = query.rows()
    found = [(row["_tidegate_op"], row["_tidegate_commit_ts"], row["id"], row["n"]) for row in rows]
    assert Counter(found) == Counter(writer.made)
    assert {"z" in row for row in rows if row["_tidegate_commit_ts"] <= finished_ts} == {False}
    assert {row.get("z") for row in rows if row["_tidegate_commit_ts"] > finished_ts} >= {7}
    last = {row["id"]: row for row in sorted(rows, key=lambda row: row["_tidegate_seq"])}
    assert {one: row["n"] for one, row in last.items() if row["_tidegate_op"] != "delete"} == writer.state
    listed = shop.cluster.run("changefeed", "list", "--server", shop.cluster.server)
    assert re.search(r"^default/reader-\w{8}  +reader  +normal", listed, re.MULTILINE)


def test_rows_of_any_table_come_with_their_ddl_up_to_when_the_query_began(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    begun = shop.pd.tso()
    shop.tables.put("log", {1: (1, b"one"), 2: (2, b"two")})
    shop.tables.put("few", {1: (1, 5)})
    shop.tables.put("log", {1: (1, b"uno")})
    shop.tables.ddl(lambda it: it.add_column("few", "alter table few add column m int", number("m")))
    shop.tables.put("few", {2: (2, 6, 7)})
    shop.tables.delete("log", [2])

    def once() -> list[Any]:
        rows = spark.readStream.format("tidegate").options(
            server=shop.cluster.server, tables="shop.log,shop.few", rows="generic", reader="any"
        ).option("start-ts", begun)  # fmt: skip
        written = rows.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
        read = (
            spark.read.parquet(str(tmp_path / "rows")).orderBy("_tidegate_seq", "_tidegate_table").collect()
        )
        return [
            (row["_tidegate_table"], row["_tidegate_op"], row["_tidegate_row"], row["_tidegate_ddl"])
            for row in read
        ]

    expected = [
        ("log", "insert", {"id": "1", "t": "one"}, None),
        ("log", "insert", {"id": "2", "t": "two"}, None),
        ("few", "insert", {"id": "1", "n": "5"}, None),
        ("log", "update", {"id": "1", "t": "uno"}, None),
        ("few", "ddl", None, "ALTER TABLE `few` ADD COLUMN `m` INT"),
        ("few", "insert", {"id": "2", "n": "6", "m": "7"}, None),
        ("log", "delete", {"id": "2", "t": "two"}, None),
    ]
    found = once()
    assert [one for one in found if one[0] == "few"] == [one for one in expected if one[0] == "few"]
    assert sorted(found, key=repr_of) == sorted(expected, key=repr_of)
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    shop.tables.put("log", {3: (3, b"three")})
    assert len(once()) == 8


def test_a_new_query_of_what_is_available_ends_and_resumes_the_next_time(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    """Its reader begins after the moment up to which it reads."""

    def once() -> int:
        rows = spark.readStream.format("tidegate").options(server=shop.cluster.server, tables="shop.new")
        written = rows.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
        return (
            sum(1 for _ in (tmp_path / "rows").glob("*.parquet"))
            and spark.read.parquet(str(tmp_path / "rows")).count()
        )

    assert once() == 0
    shop.tables.put("new", {1: (1, 1), 2: (2, 2)})
    assert once() == 2
    assert once() == 2


def test_what_is_there_can_be_read_though_its_changefeed_has_failed(shop: Shop) -> None:
    """Another table takes the name of the reader's: what that has to do with its rows nobody can tell."""
    made = shop.call("/readers", name="failed", tables=["shop.gone"], rows="typed")
    known = {"instance": made["instance"], "columns": columns(shop, "shop.gone")}
    shop.tables.put("gone", {1: (1, 1), 2: (2, 2)})
    shop.tables.ddl(lambda it: it.rename_table("gone", "away", "rename table gone to away"))
    shop.tables.ddl(lambda it: it.rename_table("come", "gone", "rename table come to gone"))
    eventually("it fails", lambda: shop.cluster.feed("failed")["state"] == "failed")

    def latest(start: int) -> dict[str, Any]:
        return shop.call("/readers/failed/latest", **known, start=start, wait_ms=500)

    upto = latest(made["ts"])["upto"]
    plan = shop.call("/readers/failed/plan", **known, start=made["ts"], end=upto)
    _, read = pieces(shop, plan["parts"][0]["ticket"])
    assert [row["id"] for one in read for row in one.to_pylist()] == [1, 2]
    assert "RENAME" in latest(upto)["error_msg"].upper()


def repr_of(row: Any) -> str:
    return json.dumps(row, sort_keys=True)


def columns(shop: Shop, table: str) -> str:
    found = shop.call("/readers/columns", tables=[table], rows="typed", start_ts=0)
    assert found["http"] == 200
    return str(found["columns"])


def pieces(shop: Shop, ticket: str, past: int = 0) -> tuple[int, list[pa.Table]]:
    """Return what an executor gets that has a ticket and nothing else."""
    answer = httpx.get(
        f"http://{shop.cluster.server}/api/v2/readers/changes",
        params={"past": past}, headers={"Authorization": f"Ticket {ticket}"}, timeout=60,
    )  # fmt: skip
    found, data = list[pa.Table](), answer.content
    while answer.status_code == 200:
        _, length = struct.unpack(">QQ", data[:16])
        if not length:
            assert not data[16:]
            break
        found.append(pa.ipc.open_stream(data[16 : 16 + length]).read_all())
        data = data[16 + length :]
    return answer.status_code, found


def test_a_reader_is_taken_up_once_and_led_by_its_query_alone(shop: Shop) -> None:
    ask = {"name": "led", "tables": ["shop.own"], "rows": "typed"}
    made = shop.call("/readers", **ask)
    assert made == shop.call("/readers", **ask), "a query that was killed before its first offset was stored"
    assert shop.call("/readers", **ask, start_ts=made["ts"] - 1)["http"] == 400
    assert shop.call("/readers", **ask | {"tables": ["shop.few"]})["http"] == 400
    known, start = {"instance": made["instance"], "columns": columns(shop, "shop.own")}, made["ts"]
    ts = shop.tables.put("own", {1: (1, 1), 2: (2, 1)})

    def latest() -> dict[str, Any]:
        return shop.call("/readers/led/latest", **known, start=start, wait_ms=1000)

    upto = eventually("rows", lambda: (found := latest()["upto"]) > start and found)
    assert upto >= ts
    plan = shop.call("/readers/led/plan", **known, start=start, end=upto)
    (ticket,) = (part["ticket"] for part in plan["parts"])
    status, read = pieces(shop, ticket)
    assert (status, sum(len(one) for one in read)) == (200, 2)
    assert pieces(shop, ticket) == (status, read), "as often as Spark likes"
    body = base64.urlsafe_b64decode(ticket.partition(".")[0])
    forged = base64.urlsafe_b64encode(body.replace(str(start).encode(), b"1")).decode()
    for bad in (f"{forged}.{ticket.partition('.')[2]}", ticket[:-1], "x", ticket.partition(".")[0]):
        assert pieces(shop, bad)[0] == 400
    assert shop.call("/readers/led/latest", **known | {"instance": "other"}, start=start)["http"] == 400
    assert shop.call("/readers/led/commit", **known, ts=upto)["http"] == 200
    assert pieces(shop, ticket)[0] == 400, "an older checkpoint gets an error, never a gap"
    assert "restored" in shop.call("/readers/led/latest", **known, start=start)["error_msg"]
    assert "its query has read" in shop.call("/readers", **ask)["error_msg"]
    shown = shop.cluster.feed("led")
    assert shown["tidegate"]["reader"]["done_ts"] == upto
    assert shown["checkpoint_ts"] >= upto

    server = ["--server", shop.cluster.server, "-c", "led"]
    shop.cluster.run("changefeed", "pause", *server)
    start = upto
    assert "paused" in latest()["waits"]
    shop.cluster.run(
        "changefeed",
        "update",
        *server,
        "--target-ts",
        str(shop.pd.tso() + (1 << 40)),
        "--no-confirm",
        expect=2,
    )
    shop.cluster.run(
        "changefeed", "resume", *server, "--overwrite-checkpoint-ts", str(start), "--no-confirm", expect=2
    )
    shop.cluster.run("changefeed", "resume", *server)
    shop.tables.put("own", {3: (3, 1)})
    eventually("it continues", lambda: latest()["upto"] > start)
    shop.cluster.run("changefeed", "remove", *server)
    assert "does not exist any more" in latest()["error_msg"]
    uri = "reader:?rows=typed&hold=1&max-kept=1"
    assert shop.call("/changefeeds", changefeed_id="x", sink_uri=uri)["http"] == 400
