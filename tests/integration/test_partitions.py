"""Partitions exchanged, truncated and reorganised under load: upstream, capture, Spark, Kafka.

Every change arrives once, as its table's, and who follows the messages ends with the upstream's rows.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.cluster import eventually
from tests.integration.running import Namespace
from tests.integration.small_tidb import PARTED, PLAIN, SCHEMA, Effect, SmallTidb
from tests.integration.validators import read_topic, validate
from tidegate.codec.base import describe
from tidegate.kvclient.pd import PdClient
from tidegate.tidb.sql.restore import outgoing

pytestmark = pytest.mark.integration

KEYS = {PARTED: ("id",), PLAIN: ("id",)}
SESSIONS = 3
COMMITS = 150


@pytest.fixture
def cluster(share: Callable[..., Namespace]) -> Namespace:
    return share(SCHEMA, options="&partition-num=3")


def move_partitions(tidb: SmallTidb) -> None:
    """Each of the three statements twice, so that what one leaves behind is the other's beginning; each time
    after the sessions have written a good deal, however long that takes."""
    for _ in range(2):
        written = len(tidb.commits)
        eventually("rows of all sessions", lambda written=written: len(tidb.commits) >= written + COMMITS)
        tidb.truncate("p0")
        tidb.exchange("p1")
        old = tuple(part.name for part in tidb.version.parts if part.low >= 200)
        tidb.reorganize(old, ((f"q{len(tidb.reported)}", 250), (f"r{len(tidb.reported)}", 300)))
        tidb.truncate(tidb.version.parts[-1].name)


def test_no_row_is_lost_or_given_to_the_wrong_table_while_partitions_move(cluster: Namespace) -> None:
    settings = cluster.settings()
    with PdClient(cluster.pd) as pd:
        tidb, done = SmallTidb(pd), threading.Event()
        cluster.create_feed("parts", "--config", str(settings))
        sessions = [
            threading.Thread(target=tidb.session, args=(random.Random(n), done.is_set))
            for n in range(SESSIONS)
        ]
        for session in sessions:
            session.start()
        try:
            move_partitions(tidb)
        finally:
            done.set()
            for session in sessions:
                session.join()
        cluster.wait_checkpoint(pd.tso(), "parts")
        contents = tidb.contents()
    cluster.stop()
    messages = [item for decoded in read_topic(cluster.uri).values() for item in describe(decoded)]
    rows = [item for item in messages if item["kind"] in ("insert", "update", "delete")]
    assert Counter(map(change, rows)) == tidb.expected()
    assert validate(cluster.uri, KEYS).faults == []
    reported = [(item["ts"], item["query"]) for item in messages if item["kind"] == "ddl"]
    assert Counter(reported) == Counter(
        {(effect.ts, outgoing(effect.query).text): 3 for effect in tidb.reported}
    )
    assert replay(rows, tidb.reported) == contents
    assert len(rows) > 200


def change(item: dict[str, Any]) -> tuple[int, str, int, int | None]:
    """A message as `SmallTidb.expected` has it."""
    image = item["new"] or item["old"]
    value = item["new"]["v"] if item["new"] else None
    return item["commit_ts"], f"{item['schema']}.{item['table']}", image["id"], value


def replay(rows: list[dict[str, Any]], reported: list[Effect]) -> dict[tuple[str, int], Any]:
    """The tables of somebody who applies the messages: rows up to a DDL, the DDL, rows after it."""
    found: dict[tuple[str, int], Any] = {}
    waiting = list(reported)
    for ts, table, row_id, value in [*sorted(map(change, rows)), (1 << 64, "", 0, None)]:
        while waiting and waiting[0].ts < ts:
            found = moved(found, waiting.pop(0))
        found.pop((table, row_id), None)
        if value is not None:
            found[table, row_id] = value
    return found


def moved(found: dict[tuple[str, int], Any], effect: Effect) -> dict[tuple[str, int], Any]:
    """Return the rows after the statement itself."""
    part = effect.part
    if part is None:
        return found
    other = {PARTED: PLAIN, PLAIN: PARTED} if effect.kind == "exchange" else {PARTED: "", PLAIN: PLAIN}
    return {
        (other[table] if part.holds(row_id) else table, row_id): value
        for (table, row_id), value in found.items()
        if other[table] or not part.holds(row_id)
    }
