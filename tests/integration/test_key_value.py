"""Feeds of keys without tables, transactional and raw: upstream, pullers, Spark, Kafka, at every Resolved.

Both begin with the keys there are. While they are written a region splits and both pullers are killed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fixtures.topic import read_committed
from tests.integration.cluster import Cluster, eventually
from tidegate.codec.protocols.kv_json.plain import KeyChange, KeyResolved, decode, partition_of
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.config.values import RAW_MODE
from tidegate.errors import TidegateError
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import Transaction
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.key_range import front_of
from tidegate.model.span import Span
from tidegate.model.timestamp import physical_ms
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.tidb.memcomparable import encode_bytes

pytestmark = pytest.mark.integration

TXN = Span(b"txn/", b"txn0")
DEFAULT, TENANT = (front_of(RAW_MODE, number) for number in (0, 1))
PARTITIONS = 3
TTL_S = 100_000
"""Longer than any machine takes for this test."""
Partition = list[KeyChange | KeyResolved]


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, options=f"&partition-num={PARTITIONS}")
    running.uri = running.uri.replace("protocol=open-protocol&", "")  # as TiKV-CDC's users leave it out
    yield running
    running.stop()


class RawClient:
    """Raw writes of API V2, in one keyspace."""

    def __init__(self, pd: PdClient, front: bytes) -> None:
        self._requester, self._front = RegionRequester(pd), front

    def call(self, method: str, key: bytes, **fields: object) -> object:
        request = getattr(kvrpcpb, f"{method}Request")(key=self._front + key, **fields)
        request.context.api_version = kvrpcpb.V2
        answer = self._requester.at_key(self._front + key, method, request, Backoff(20_000))
        assert not answer.error, answer.error
        return answer

    def count_up(self, key: bytes) -> None:
        """Raise a counter by compare and swap, however many others do so, too."""
        while True:
            found = self.call("RawGet", key)
            before = None if found.not_found else found.value  # type: ignore[attr-defined]
            after = b"%d" % (int(before or b"0") + 1)
            fields = {"previous_not_exist": before is None, "previous_value": before or b""}
            request = kvrpcpb.RawCASRequest(key=self._front + key, value=after, **fields)
            request.context.api_version = kvrpcpb.V2
            answer = self._requester.at_key(request.key, "RawCompareAndSwap", request, Backoff(20_000))
            if answer.succeed:
                return


def at_once(works: list[Callable[[], None]]) -> None:
    """Run each in a thread; the first failure is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


def transactions(pd: PdClient, seed: int, count: int) -> None:
    """Random puts and deletes of a few keys at a time, until so many have been committed."""
    chance, number = random.Random(seed), 0
    while number < count:
        transaction = Transaction(pd)
        for key in {b"txn/%03d" % chance.randrange(60) for _ in range(5)}:
            if chance.random() < 0.25:
                transaction.delete(key)
            else:
                transaction.put(key, b"%d-%d" % (seed, number) * chance.randrange(1, 80))
        with suppress(TidegateError):  # a conflict with others
            transaction.commit()
            number += 1


def trouble(cluster: Cluster, pd: PdClient, raw: RawClient) -> None:
    """In the midst of the counting: a region of raw keys splits, and every puller is killed."""
    eventually("some counting", lambda: int(raw.call("RawGet", b"k3").value or b"0") > 8)  # type: ignore[attr-defined]
    UpstreamControl(pd).split(0, [encode_bytes(TENANT + b"k35")])
    pullers = cluster.pids("puller")
    for pid in pullers:
        os.kill(pid, signal.SIGKILL)
    eventually("new pullers", lambda: len(set(cluster.pids("puller")) - set(pullers)) == len(pullers))


def topic(uri: str) -> dict[int, Partition]:
    """All messages of a topic, decoded, by partition."""
    parsed = parse_sink_uri(uri)
    found = read_committed(parsed.bootstrap, parsed.topic)
    return {p: [one for m in messages for one in decode(m.key(), m.value())] for p, messages in found.items()}


def changes_of(found: dict[int, Partition]) -> list[KeyChange]:
    """All changes, after a look at what every partition promises."""
    changes = []
    for number, partition in found.items():
        resolved, last = 0, dict[bytes, int]()
        for one in partition:
            if isinstance(one, KeyResolved):
                assert one.ts >= resolved
                resolved = one.ts
                continue
            assert one.commit_ts > resolved, "a change first seen after its Resolved"
            assert one.commit_ts > last.get(one.key, 0), "changes of a key out of order, or doubled"
            assert number == partition_of(one.key, PARTITIONS)
            last[one.key] = one.commit_ts
            changes.append(one)
    return changes


def state_at(changes: list[KeyChange], ts: int) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for change in sorted(changes, key=lambda c: c.commit_ts):
        if change.commit_ts <= ts:
            state.pop(change.key, None)
            if change.op == OP_PUT:
                state[change.key] = change.value
    return state


def test_keys_arrive_as_upstream_has_them_at_every_resolved_ts(cluster: Cluster) -> None:
    cluster.start_upstream("--regions", "3", "--api-version", "2", "--keyspace", "tenant")
    cluster.start_server()
    raw_uri, txn_uri = (cluster.uri.replace("?", f"-{mode}?", 1) for mode in ("raw", "txn"))
    keys = ("--start-key", "k", "--end-key", "m", "--format", "raw")
    from_first = cluster.folder / "from_first.toml"
    from_first.write_text("check-gc-safe-point = false\n")
    with PdClient(cluster.pd) as pd:
        transactions(pd, 100, 12)
        before_s = int(time.time())
        RawClient(pd, TENANT).call("RawPut", b"k0", value=b"before", ttl=TTL_S)
    for name, uri, *options in (
        ("raw", raw_uri, "--kv-mode", "rawkv", "--keyspace", "tenant", *keys, "--start-ts", "1"),
        ("txn", txn_uri, "--kv-mode", "txnkv", "--key-prefix", b"txn/".hex(), "--initial-load"),
    ):
        if name == "raw":
            options += ["--config", str(from_first)]
        create = ("changefeed", "create", "--server", cluster.server, "-c", name, "--sink-uri", uri)
        cluster.run(*create, *options)
        if name == "raw":
            cluster.run(*create, *options[:2], "--keyspace", "nobody", expect=2)
            cluster.run(*create, *options, "--keyspace-id", "7", expect=2)
    with PdClient(cluster.pd) as pd:
        began = cluster.feed("txn")["start_ts"]
        raw = RawClient(pd, TENANT)
        UpstreamControl(pd).split(0, [encode_bytes(TENANT + b"k5"), encode_bytes(b"txn/030")])
        raw.call("RawPut", b"a", value=b"outside")
        RawClient(pd, DEFAULT).call("RawPut", b"k1", value=b"another's")
        raw.call("RawPut", b"k1", value=b"for a while", ttl=TTL_S)
        after_s = int(time.time())
        raw.call("RawPut", b"k2", value=b"")
        raw.call("RawDelete", b"k2")
        at_once(
            [lambda: [raw.count_up(b"k%d" % n) for _ in range(15) for n in (3, 7)] and None] * 3
            + [lambda seed=seed: transactions(pd, seed, 25) for seed in range(3)]  # type: ignore[misc]
            + [lambda: trouble(cluster, pd, raw)]
        )
        raw.call("RawDelete", b"k7")
        end = pd.tso()
        for name in ("txn", "raw"):
            cluster.wait_checkpoint(end, name)
        assert cluster.feed("raw")["task_status"][0]["table_ids"] == []
        assert cluster.feed("raw")["config"]["tidegate"]["keyspace_id"] == 1
        # A topic has an end only when nobody writes Resolved any more.
        cluster.children.pop("server").end()
        txn = topic(txn_uri)
        txn_changes = changes_of(txn)
        marks = sorted({one.ts for part in txn.values() for one in part if isinstance(one, KeyResolved)})
        for ts in [*marks[:: max(1, len(marks) // 12)], marks[-1]]:
            assert state_at(txn_changes, ts) == dict(Snapshot(pd, ts).scan(TXN))
        loaded = {change.key: change.value for change in txn_changes if change.commit_ts == began}
        assert loaded == dict(Snapshot(pd, began).scan(TXN))
        assert len(loaded) > 20
        assert marks[0] >= began
        assert len(txn_changes) > 150
        raw_found = topic(raw_uri)
        changes = changes_of(raw_found)
    history: dict[bytes, list[tuple[int, bytes]]] = {}
    for change in sorted(changes, key=lambda c: c.commit_ts):
        history.setdefault(change.key, []).append((change.op, change.value))
    assert history[b"k0"] == [(OP_PUT, b"before")]
    assert history[b"k1"] == [(OP_PUT, b"for a while")]
    # A scan does not send overwritten values: it has only the newest version of raw keys.
    assert history.pop(b"k2") in ([(OP_PUT, b""), (OP_DELETE, b"")], [(OP_DELETE, b"")])
    assert history[b"k7"].pop() == (OP_DELETE, b"")
    for key in (b"k3", b"k7"):
        assert {op for op, _ in history[key]} <= {OP_PUT}
        counted = [int(value) for _, value in history[key]]
        assert counted == sorted(set(counted)), "in order, each once"
    assert history[b"k3"][-1] == (OP_PUT, b"45")
    assert history.keys() == {b"k0", b"k1", b"k3", b"k7"}
    expiries = {change.key: change.expires for change in changes if change.expires}
    assert expiries.keys() == {b"k0", b"k1"}
    assert before_s + TTL_S <= expiries[b"k0"] <= expiries[b"k1"] <= after_s + TTL_S + 1
    last = max(one.ts for part in raw_found.values() for one in part if isinstance(one, KeyResolved))
    assert physical_ms(last) <= int(time.time() * 1000) - 3000, "the safe interval of raw keys"
