"""The initial load of a feed of keys, task by task: what is there at its ts, once, though interrupted."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.topic import read_committed
from tests.pipeline.recorded import begin

from tidegate.codec.protocols.kv_json.plain import KeyChange, decode, partition_of
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.config.values import TXN_MODE
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.load import LoadPlan, LoadQueue
from tidegate.control.metadata import FeedId, grant_key
from tidegate.errors import Fenced
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import PUT, Mutation, Transaction
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.model import block
from tidegate.model.key_range import KeyRange
from tidegate.model.progress import load_progress
from tidegate.model.span import Span
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.work import Lease, Load, LoadReport
from tidegate.pipeline.worker import load_task
from tidegate.pipeline.worker.load_task import load
from tidegate.server.catalogue.key_tracker import KeyTracker
from tidegate.server.delivery.initial_load import plan_load
from tidegate.tidb.memcomparable import encode_bytes

pytestmark = pytest.mark.integration

PARTITIONS = 3
KEYS = [b"key/%03d" % n for n in range(1000)]


class KeyFeed:
    """A feed of the keys below `key/`, as far as a load needs one."""

    def __init__(self, folder: Path, sink_uri: str) -> None:
        self._folder, self.sink_uri = folder, sink_uri
        # A name of its own: the progress topic of a feed outlives it on the broker.
        self._name = "keys-" + os.urandom(4).hex()
        self.feed_dir = folder / self._name
        self.feed_dir.mkdir()
        own = {"kv_mode": TXN_MODE, "key_prefix": b"key/".hex(), "initial_load": True}
        self._config = merge_config({"tidegate": own}, parse_sink_uri(sink_uri))

    def plan(self, pd: PdClient, ts: int) -> LoadPlan:
        tracker = KeyTracker(KeyRange.of(self._config).span, TXN_MODE, ts)
        tracker.begin(ts, ts)
        spans = {task.id: {"start_ts": ts} for task in tracker.initial}
        bounds = {"bound": ts, "ddl_span": tracker.initial[0].id, "spans": spans}
        (self.feed_dir / "bounds.json").write_text(json.dumps(bounds))
        return plan_load(pd, ts, tracker.initial, self.feed_dir)

    def incarnation(self, number: int) -> tuple[FeedSpec, str]:
        """Granted, and the ones before it fenced."""
        with sqlite3.connect(self._folder / "metadata.db") as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB)")
            everything = (GrantedRange(Span(b"", b""), (1, 1)),)
            grant = Grant("one", (1, 1), number, 4, everything)
            row = grant_key(1, FeedId("default", self._name), "here"), grant.to_bytes()
            connection.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", row)
        reported = {
            "cluster_id": 1,
            "namespace": "default",
            "id": self._name,
            "sink_uri": self.sink_uri,
            "config": self._config.to_json(),
            "token": [1, 1],
            "instance": "one",
            "incarnation": number,
            "slots": 4,
            "capture": "here",
            "ranges": [["", ""]],
            "givers": {},
            "store_dir": str(self._folder),
            "metadata": str(self._folder / "metadata.db"),
            "socket_path": "",
            "load": True,
        }
        path = self.feed_dir / grant.spec_file
        path.write_text(json.dumps(reported))
        spec = FeedSpec.load(path)
        begin(spec)
        return spec, str(path)


def run(path: str, pd: PdClient, plan: LoadPlan, queue: LoadQueue, rows: int = 0) -> list[LoadReport]:
    """One task with all that is left."""
    share = queue.take(1)
    reports = load(Load(path, pd.address, plan.ts, tuple(share), rows, 0, Lease(0, 1), cpu_s=600))
    queue.settle([(one.report.span, one.rows, one.left_from) for one in reports], share)
    return reports


def on_topic(uri: str) -> list[tuple[int, KeyChange]]:
    """All changes, each with its partition; there is nothing else."""
    sink = parse_sink_uri(uri)
    found = [
        (partition, one)
        for partition, messages in read_committed(sink.bootstrap, sink.topic).items()
        for message in messages
        for one in decode(message.key(), message.value())
    ]
    changes = [(partition, one) for partition, one in found if isinstance(one, KeyChange)]
    assert len(changes) == len(found)
    return changes


def test_a_load_of_keys_resumes_with_the_ranges_that_are_not_done(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str], pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_task, "TASK_S", 600)  # rows end it, not a slow machine
    before = Transaction(pd)
    before.write(Mutation(PUT, key, key * 2) for key in (*KEYS, b"key", b"key0"))
    before.commit()
    UpstreamControl(pd).split(0, [encode_bytes(KEYS[300]), encode_bytes(KEYS[700])])
    ts = pd.tso()
    after = Transaction(pd)
    after.put(KEYS[5], b"later")
    after.delete(KEYS[800])
    after.commit()
    feed = KeyFeed(tmp_path, f"kafka://{kafka}/{new_topic(PARTITIONS)}")
    plan = feed.plan(pd, ts)
    assert [one.span.start for one in plan.ranges] == [b"key/", KEYS[300], KEYS[700]]
    _, old_path = feed.incarnation(1)
    old = LoadQueue(plan, {})
    whole, part = run(old_path, pd, plan, old, rows=500)
    assert (whole.rows, whole.left_from) == (300, None)
    assert part.rows == 200, "as many as its share of the pace leaves, though a page has more"
    spec, path = feed.incarnation(2)
    with pytest.raises(Fenced):
        run(old_path, pd, plan, old)
    begun = load_progress(spec.sink.fence(spec.writers, spec.prove), spec.instance, ts)
    queue = LoadQueue(plan, {name: (one.rows, one.left_from) for name, one in begun.items()})
    assert (queue.state(1).done, queue.state(1).rows) == (1, 300 + part.rows)
    again = run(path, pd, plan, queue)
    assert [(one.rows, one.read_rows, one.left_from) for one in again] == [
        (400, 400 - part.rows, None),
        (300, 300, None),
    ]
    assert queue.state(1).finished
    found = on_topic(feed.sink_uri)
    assert all(number == partition_of(one.key, PARTITIONS) for number, one in found)
    pairs = Snapshot(pd, ts).scan(Span(b"key/", b"key0"))
    assert sorted((one for _, one in found), key=lambda one: one.key) == [
        KeyChange(ts, block.OP_PUT, key, value) for key, value in pairs
    ]
    assert [one.key for _, one in sorted(found, key=lambda pair: pair[1].key)] == KEYS
