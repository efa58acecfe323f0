"""The promises of docs/formats/change-feed.md, for any script of transactions and registrations.

Each example runs a script on the real store with its CDC endpoint, keeps all that was sent to each
registration, in order, and asks one promise of it.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tikv.cluster import WAIT_S, Client, Cluster
from tests.tikv.support import commit, delete, prewrite, put, rollback
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.tikv import keys
from tidegate.tikv.cdc import ticker
from tidegate.tikv.raft.region import Region

NAMES = (b"a", b"b", b"c", b"d")
SOME = st.sets(st.sampled_from(NAMES), min_size=1, max_size=3).map(sorted)
STEP = st.one_of(
    st.tuples(st.sampled_from(["txn", "remove", "one-phase", "late one-phase", "async", "open"]), SOME),
    st.tuples(st.sampled_from(["commit", "roll back", "congest", "stall"]), st.none()),
    st.tuples(st.just("register"), st.sampled_from(["all", "now", "before the last", "at the last"])),
    st.tuples(st.just("register"), st.sampled_from(["all", "now"])),
    st.tuples(st.just("scan slowly"), st.booleans()),
    st.tuples(st.just("split"), st.sampled_from(NAMES[1:])),
)
SCRIPT = st.lists(STEP, min_size=5, max_size=16)
STALL_S = 0.01
"""Some ticks and some transactions long."""
ROW = cdc.Event
Item = tuple[str, Any]


@dataclass
class Trace:
    """Events of one registration, in order: ("rows", of one event), ("resolved", ts), ("error", why)."""

    region: Region
    checkpoint_ts: int
    items: list[Item] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[bool, Any]]:
        """All rows, each with whether INITIALIZED was before it."""
        live = False
        for row in self.events_rows():
            yield live, row
            live = live or row.type == ROW.INITIALIZED

    def events_rows(self) -> Iterator[Any]:
        for kind, what in self.items:
            if kind == "rows":
                yield from what

    def live_events(self) -> Iterator[list[Any]]:
        live = False
        for kind, what in self.items:
            if kind == "rows":
                if live:
                    yield what
                live = live or any(row.type == ROW.INITIALIZED for row in what)


class Run:
    """A script on a store, and what came of it. Its keys are its own."""

    numbers = itertools.count(1)

    def __init__(self, cluster: Cluster, script: list[tuple[str, Any]]) -> None:
        self.cluster = cluster
        self.prefix = b"p%06d-" % next(Run.numbers)
        self.committed: dict[tuple[bytes, int], int] = {}
        self.groups: dict[tuple[str, int], list[set[bytes]]] = {}
        """(PREWRITE or COMMIT, start_ts) -> the keys of each command."""
        self.one_phase: set[int] = set()
        self.open: list[tuple[int, list[bytes]]] = []
        self.traces: dict[tuple[int, int], Trace] = {}
        self.client = Client(cluster)
        for kind, what in script:
            self.step(kind, what)
        while self.open:
            self.step("commit", None)
        self.finish()

    def step(self, kind: str, what: Any) -> None:
        cluster = self.cluster
        if kind == "register":
            self.register(what)
        elif kind == "congest":
            cluster.endpoint.congest(0)
        elif kind == "stall":
            cluster.endpoint._tasks.put(lambda: time.sleep(STALL_S))
        elif kind == "scan slowly":
            cluster.faults.scan_delay_s = 0.004 if what else 0.0
        elif kind == "apply slowly":
            cluster.faults.apply_delay_s = 0.005 if what else 0.0
        elif kind == "split":
            cluster.operators.split_at([keys.encode(self.prefix + what)])
        elif kind in ("commit", "roll back"):
            if self.open:
                self.close(*self.open.pop(0), commits=kind == "commit")
        else:
            locked = {key for _, held in self.open for key in held}
            free = [key for key in (self.prefix + name for name in what) if key not in locked]
            if free:
                self.write(kind, free)

    def write(self, kind: str, names: list[bytes]) -> None:
        start_ts = self.cluster.tso.get()
        mutations = [delete(key) if kind == "remove" else put(key, b"%d" % start_ts) for key in names]
        groups = self.cluster.each_region(names)
        more: dict[str, Any] = {"lock_ttl": 60_000, "primary": groups[0][0]}
        if kind == "late one-phase":
            time.sleep(STALL_S)  # resolved ts go by its start
        if kind in ("one-phase", "late one-phase") and len(groups) == 1:
            answer = self.cluster.call(prewrite(start_ts, *mutations, try_one_pc=True, **more), names[0])
            assert answer.one_pc_commit_ts
            self.one_phase.add(start_ts)
            self.committed |= {(key, answer.one_pc_commit_ts): start_ts for key in names}
            self.groups["COMMITTED", start_ts] = [set(names)]
            return
        if kind == "async":
            more |= {
                "use_async_commit": True,
                "secondaries": [key for key in names if key != groups[0][0]],
            }
        for group in groups:
            mine = [each for each in mutations if each.key in group]
            assert not self.cluster.call(prewrite(start_ts, *mine, **more), group[0]).errors
            self.groups.setdefault(("PREWRITE", start_ts), []).append(set(group))
        if kind == "open":
            self.open.append((start_ts, names))
        else:
            self.close(start_ts, names, commits=True)

    def close(self, start_ts: int, names: list[bytes], commits: bool) -> None:
        commit_ts = self.cluster.tso.get()
        for group in self.cluster.each_region(names):
            request = commit(start_ts, commit_ts, *group) if commits else rollback(start_ts, *group)
            assert not self.cluster.call(request, group[0]).HasField("error")
            if commits:
                self.groups.setdefault(("COMMIT", start_ts), []).append(set(group))
                self.committed |= {(key, commit_ts): start_ts for key in group}

    def register(self, where: str) -> None:
        commits = sorted(ts for _, ts in self.committed)
        checkpoint = 0
        if where == "now":
            checkpoint = self.cluster.tso.get()
        elif where == "before the last" and commits:
            checkpoint = commits[-1] - 1
        elif where == "at the last" and commits:
            checkpoint = commits[-1]
        request_id = len(self.traces) + 1
        low, high = keys.encode(self.prefix), keys.encode(self.prefix + b"\xff")
        for region in self.cluster.regions.scan(low, high, 0):
            self.traces[request_id, region.id] = Trace(region, checkpoint)
            self.client.register(
                request_id, region, checkpoint, live_committed=True, start_key=low, end_key=high
            )

    def finish(self) -> None:
        """Wait until every registration has ended or all is sent, and sort what was sent."""
        self.cluster.faults.scan_delay_s = 0.0
        last = self.cluster.tso.get()
        self.client.until(
            lambda: all(
                feed.error is not None or feed.resolved_ts >= last for feed in self.client.feeds.values()
            )
        )
        self.see_the_rest()
        self.client.close()
        for message in self.client.messages:
            for event in message.events:
                trace = self.traces[event.request_id, event.region_id]
                if event.HasField("error"):
                    trace.items.append(("error", event.error))
                else:
                    trace.items.append(("rows", list(event.entries.entries)))
            for region_id in message.resolved_ts.regions:
                mark = message.resolved_ts
                self.traces[mark.request_id, region_id].items.append(("resolved", mark.ts))

    def see_the_rest(self) -> None:
        """Take everything that scans of ended registrations, or a tick, may still send."""
        deadline = time.monotonic() + WAIT_S
        while self.cluster.endpoint._scans.count and time.monotonic() < deadline:
            time.sleep(0.0005)
        (region, *_) = self.cluster.regions.scan(keys.encode(self.prefix), b"", 1)
        probe = len(self.traces) + 1
        self.traces[probe, region.id] = Trace(region, self.cluster.tso.get())
        feed = self.client.register(
            probe, region, self.traces[probe, region.id].checkpoint_ts, live_committed=True
        )
        self.client.until(lambda: feed.resolved_ts > 0)


Promise = Callable[[Run, Trace], None]


def asked(cluster: Cluster, script: list[tuple[str, Any]], promise: Promise) -> None:
    run = Run(cluster, [("txn", list(NAMES[:2])), ("register", "all"), *script])
    for trace in run.traces.values():
        promise(run, trace)


EXAMPLES = settings(
    max_examples=50,
    deadline=None,
    # These replace those of the profile. A busy machine is no failure.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def cluster(make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A store that sends a resolved ts at every tick, also one that has not advanced."""
    monkeypatch.setattr(ticker, "REPEAT_S", 0.0)
    return make()


def is_commit(row: Any) -> bool:
    return bool(row.type in (ROW.COMMIT, ROW.COMMITTED))


@EXAMPLES
@given(script=SCRIPT)
def test_a_resolved_ts_follows_every_commit_up_to_it_and_precedes_the_rest(
    cluster: Cluster, script: list[tuple[str, Any]]
) -> None:
    """After a mark only greater commits; before it all commits up to it."""

    def promise(run: Run, trace: Trace) -> None:
        reported, resolved = set[tuple[bytes, int]](), 0
        for kind, what in trace.items:
            if kind == "rows":
                for row in filter(is_commit, what):
                    assert row.commit_ts > resolved
                    reported.add((row.key, row.commit_ts))
            elif kind == "resolved":
                resolved = max(resolved, what)
                for key, ts in run.committed:
                    if trace.checkpoint_ts < ts <= resolved and trace.region.contains(keys.encode(key)):
                        assert (key, ts) in reported

    live = [("register", "all"), ("txn", [b"a"]), ("late one-phase", [b"b"])]
    in_memory = [("apply slowly", True), ("one-phase", [b"c"]), ("apply slowly", False)]
    behind = [("stall", None), ("txn", [b"d"]), ("late one-phase", [b"a"])]
    asked(cluster, [*script, *live, *in_memory, *behind], promise)


@EXAMPLES
@given(script=SCRIPT)
def test_resolved_ts_begin_and_scan_rows_end_with_initialized(
    cluster: Cluster, script: list[tuple[str, Any]]
) -> None:
    def promise(run: Run, trace: Trace) -> None:
        initialized = 0
        for kind, what in trace.items:
            if kind == "resolved":
                assert initialized
            for row in what if kind == "rows" else ():
                if row.type == ROW.COMMITTED and initialized:
                    assert row.start_ts in run.one_phase, "a row of the scan"
                initialized += row.type == ROW.INITIALIZED
        assert initialized <= 1

    asked(cluster, script, promise)


@EXAMPLES
@given(script=SCRIPT)
def test_live_rows_of_one_key_come_in_the_order_of_the_log(
    cluster: Cluster, script: list[tuple[str, Any]]
) -> None:
    def promise(run: Run, trace: Trace) -> None:
        prewritten = set[tuple[bytes, int]]()
        newest: Counter[bytes] = Counter()
        for live, row in trace.rows():
            if row.type == ROW.PREWRITE:
                prewritten.add((row.key, row.start_ts))
            elif live and row.type in (ROW.COMMIT, ROW.ROLLBACK):
                assert (row.key, row.start_ts) in prewritten
            if live and is_commit(row):
                assert row.commit_ts > newest[row.key]
                newest[row.key] = row.commit_ts

    asked(cluster, script, promise)


@EXAMPLES
@given(script=SCRIPT)
def test_nothing_follows_an_error(cluster: Cluster, script: list[tuple[str, Any]]) -> None:
    def promise(run: Run, trace: Trace) -> None:
        kinds = [kind for kind, _ in trace.items]
        assert "error" not in kinds[:-1]

    ends_in_the_scan = [("scan slowly", True), ("register", "all"), ("congest", None), ("txn", [b"a"])]
    asked(cluster, [*script, ("congest", None), ("txn", [b"a"]), *ends_in_the_scan], promise)


@EXAMPLES
@given(script=SCRIPT)
def test_a_registration_gets_only_commits_above_its_checkpoint(
    cluster: Cluster, script: list[tuple[str, Any]]
) -> None:
    def promise(run: Run, trace: Trace) -> None:
        for _, row in trace.rows():
            if row.type == ROW.COMMITTED:
                assert row.commit_ts > trace.checkpoint_ts

    asked(cluster, [*script, ("register", "before the last"), ("register", "at the last")], promise)


@EXAMPLES
@given(script=SCRIPT)
def test_the_rows_of_one_command_are_one_event(cluster: Cluster, script: list[tuple[str, Any]]) -> None:
    def promise(run: Run, trace: Trace) -> None:
        for rows in trace.live_events():
            found: dict[tuple[str, int], set[bytes]] = {}
            for row in rows:
                name = cdc.Event.LogType.Name(row.type)
                found.setdefault((name, row.start_ts), set()).add(row.key)
            for (name, start_ts), changed in found.items():
                if name in ("PREWRITE", "COMMIT", "COMMITTED"):
                    assert changed in run.groups[name, start_ts]

    asked(cluster, script, promise)


@EXAMPLES
@given(script=SCRIPT)
def test_n1_a_commit_comes_once_and_n2_the_scan_comes_newest_first(
    cluster: Cluster, script: list[tuple[str, Any]]
) -> None:
    """The first promise holds within a registration."""

    def promise(run: Run, trace: Trace) -> None:
        reported: Counter[tuple[bytes, int]] = Counter()
        last: dict[bytes, int] = {}
        for live, row in trace.rows():
            if is_commit(row):
                reported[row.key, row.commit_ts] += 1
            if row.type == ROW.COMMITTED and not live and row.start_ts not in run.one_phase:
                assert row.commit_ts < last.get(row.key, keys.TS_MAX)
                last[row.key] = row.commit_ts
        assert set(reported.values()) <= {1}
        assert reported.keys() <= run.committed.keys()

    asked(cluster, script, promise)
