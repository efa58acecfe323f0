"""A recorded log through the pipeline into sinks that are not Kafka: each form and domain, and a kill."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.contracts import sqlite_sink
from tests.contracts.map_sink import MapSink, Versions
from tests.contracts.sqlite_sink import SqliteSink, SqliteWriter
from tests.pipeline.recorded import RecordedFeed, begin
from tidegate.model.block import OP_PUT
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import open_worker
from tidegate.sink import registry
from tidegate.sink.base import Domain, Form
from tidegate.tidb import keys

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"


class Killed(Exception):
    """The process ends here."""


def last_of_each(feed: RecordedFeed) -> dict[bytes, tuple[int, bool]]:
    """Per record key the ts of its last change, and whether it is there then."""
    users = [row for table, rows in feed.rows.items() if table < 1 << 40 for row in rows]
    return {key: (ts, op == OP_PUT) for ts, _, op, key, _, _ in sorted(users, key=lambda row: row[0])}


def deliver(feed: RecordedFeed, incarnation: int) -> int:
    """One incarnation delivers all that is left; how many entries that was."""
    spec = FeedSpec.load(feed.write(incarnation))
    starts = begin(spec).starts
    found = [Range(span, after, feed.last_ts) for span, after in starts.items() if after < feed.last_ts]
    return sum(report.rows for report in open_worker(LocalAccess(spec)).deliver(found)) if found else 0


@pytest.mark.parametrize("form", [Form.ARROW, Form.ROWS])
@pytest.mark.parametrize("domain", list(Domain))
def test_a_sql_sink_ends_equal_despite_kills_between_transactions(
    domain: Domain, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no transaction in pieces: of a commit ts all is in one commit, of the table or of the feed."""
    feed, path = RecordedFeed(tmp_path, BANK, URI, UPTO), tmp_path / "sink.db"
    monkeypatch.setitem(registry.SINKS, "kafka", lambda one: SqliteSink(one, path, domain, form))
    monkeypatch.setattr(sqlite_sink, "DUE_ROWS", 20)
    monkeypatch.setattr(SqliteWriter, "room", 1 << 12)
    commit: Any = SqliteWriter.commit
    commits: list[set[tuple[str, int]]] = []
    left = [0]

    def counted(self: SqliteWriter, progress: dict[str, bytes]) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        commits.append({("" if domain is not Domain.ROW else name, ts) for name, _, ts, *_ in self._held})
        commit(self, progress)

    monkeypatch.setattr(SqliteWriter, "commit", counted)
    for incarnation, kill in enumerate((2, 3, 7, 20), 1):
        left[0] = kill
        with pytest.raises(Killed):
            deliver(feed, incarnation)
    assert deliver(feed, 5) > 0
    assert deliver(feed, 6) == 0
    assert len(commits) > 50
    assert max(Counter(one for together in commits for one in together).values()) == 1
    connection = sqlite3.connect(path)
    state = Counter(ts for (ts,) in connection.execute("SELECT ts FROM state"))
    assert state == Counter(ts for ts, lives in last_of_each(feed).values() if lives)
    history = connection.execute("SELECT name, key, ts FROM history ORDER BY n").fetchall()
    assert len(set(history)) > 1000
    order: dict[Any, list[int]] = {}
    for name, key, ts in history:
        group = {Domain.ROW: (name, key), Domain.TABLE: name, Domain.FEED: ""}[domain]
        order.setdefault(group, []).append(ts)
    assert all(one == sorted(one) for one in order.values())
    assert max(Counter(history).values()) <= 2, "an update of a key is a delete and an insert at most"


def test_a_map_of_all_keys_is_upstream_at_every_ts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, versions = RecordedFeed(tmp_path, BANK, URI, UPTO), Versions()
    monkeypatch.setitem(registry.SINKS, "kafka", lambda one: MapSink(one, versions))
    rows = deliver(feed, 1)
    assert versions.written == rows == sum(len(one) for one in versions.keys.values())
    assert deliver(feed, 2) == 0
    users = [row for table, found in feed.rows.items() if table < 1 << 40 for row in found]
    users.sort(key=lambda row: row[0])
    assert rows == len(users)
    now: dict[bytes, bytes] = {}
    commits = sorted({row[0] for row in users})
    some = set(commits[:: len(commits) // 20])
    for at, (ts, _, op, key, value, _) in enumerate(users):
        now[key] = value
        if op != OP_PUT:
            del now[key]
        if ts in some and (at + 1 == len(users) or users[at + 1][0] > ts):
            assert versions.at(ts) == now
    assert versions.at(feed.last_ts) == now
    assert all(keys.is_record(key) for key in now)
