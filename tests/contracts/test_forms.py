"""A recorded log through the pipeline into sinks that are not Kafka: each form and domain, and a kill."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contracts import sqlite_sink
from tests.contracts.map_sink import MapSink, Versions
from tests.contracts.sqlite_sink import SqliteSink, SqliteWriter
from tests.pipeline.recorded import RecordedFeed, begin
from tidegate.config.values import TXN_MODE
from tidegate.eventstore.store import EventStore
from tidegate.model.block import ENTRY_SCHEMA, OP_DELETE, OP_PUT
from tidegate.model.span import Span, span_id
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import open_worker
from tidegate.sink import registry
from tidegate.sink.base import Domain, Form
from tidegate.tidb import keys
from tidegate.workload.changelog import Txn

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
KEYS_URI = "kafka://127.0.0.1:1/t?protocol=kv-json"
ALL_KEYS = Span(b"m", b"u")
"""TiDB's metadata, and the records and indexes of all tables."""


class Killed(Exception):
    """The process ends here."""


class KeyFeed(RecordedFeed):
    """The log as a changefeed of keys gets it: in one span, with every key."""

    def _take(self, txn: Txn) -> None:
        self.last_ts = txn.commit_ts
        rows = self.rows.setdefault(0, [])
        for change in txn.mutations:
            if change.op not in ("put", "insert", "delete"):
                continue
            old, op = self.values.get(change.key, b""), OP_DELETE if change.op == "delete" else OP_PUT
            self.values[change.key] = change.value
            rows.append((txn.commit_ts, txn.start_ts, op, change.key, change.value, old))

    def write(self, incarnation: int = 1, slots: int = 4, settings: dict[str, Any] | None = None) -> Path:
        keys_of = {"kv_mode": TXN_MODE, "start_key": ALL_KEYS.start.hex(), "end_key": ALL_KEYS.end.hex()}
        return super().write(incarnation, slots, {"tidegate": keys_of})

    def _fill(self) -> dict[str, dict[str, Any]]:
        if not self.store_dir.exists():
            store = EventStore(self.store_dir, memory_bytes=self.store_bytes)
            span = store.open_span(ALL_KEYS)
            columns = list(zip(*self.rows[0], strict=True))
            batch = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
            span.append(pa.RecordBatch.from_arrays(batch, schema=ENTRY_SCHEMA))
            span.seal(self.last_ts + 1)
            store.publish()
            store.close()
        known = {"start": "", "end": "", "physical_id": 0, "start_ts": self.start_ts}
        return {span_id(ALL_KEYS): known}


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


def check_every_ts(versions: Versions, rows: list[tuple[Any, ...]]) -> None:
    """The map equals upstream at some twenty commit ts, and at the last."""
    now: dict[bytes, bytes] = {}
    commits = sorted({row[0] for row in rows})
    some = {*commits[:: len(commits) // 20], commits[-1]}
    for at, (ts, _, op, key, value, _) in enumerate(rows):
        now[key] = value
        if op != OP_PUT:
            del now[key]
        if ts in some and (at + 1 == len(rows) or rows[at + 1][0] > ts):
            assert versions.at(ts) == now


def test_a_map_of_all_records_is_upstream_at_every_ts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, versions = RecordedFeed(tmp_path, BANK, URI, UPTO), Versions()
    monkeypatch.setitem(registry.SINKS, "kafka", lambda one: MapSink(one, versions))
    rows = deliver(feed, 1)
    assert versions.written == rows == sum(len(one) for one in versions.keys.values())
    assert deliver(feed, 2) == 0
    users = [row for table, found in feed.rows.items() if table < 1 << 40 for row in found]
    users.sort(key=lambda row: row[0])
    assert rows == len(users)
    check_every_ts(versions, users)
    assert all(keys.is_record(key) for key in versions.keys)


def test_a_map_of_all_keys_has_metadata_and_indexes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, versions = KeyFeed(tmp_path, BANK, KEYS_URI, UPTO), Versions()
    monkeypatch.setitem(registry.SINKS, "kafka", lambda one: MapSink(one, versions))
    rows = deliver(feed, 1)
    assert versions.written == rows == len(feed.rows[0]) == sum(map(len, versions.keys.values()))
    assert deliver(feed, 2) == 0
    check_every_ts(versions, feed.rows[0])
    found = set(versions.keys)
    assert any(key[:1] == b"m" for key in found)
    assert any(key[:1] == b"t" and not keys.is_record(key) for key in found)
    assert any(keys.is_record(key) for key in found)
