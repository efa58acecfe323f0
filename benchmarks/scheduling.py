"""The owner of a changefeed with many ranges: what a tick costs, and what it takes to schedule them.

    python -m benchmarks.scheduling [--ranges 10000] [--tables 100000] [--captures 3 100] [--json FILE]

The machines, the state of processors, their messages as JSON and the division of ranges are the product's.
etcd, the sink and the network are left out: nothing here waits. All figures are CPU milliseconds of one core,
the median of some rounds, with the most in brackets.

First table, an owner whose captures have `--ranges` ranges together:

- still: a tick after which nothing has changed (the owner machine, what is shown of it, what is repeated);
- 100 reported: messages with the progress of 100 ranges are read, then a tick;
- all reported: the same with all ranges, so Resolved is sent and the checkpoint stored;
- bound: new DDL is known, so each capture is sent all its ranges with a higher bound;
- one dies: the owner notices that a capture is gone, and divides: new grants are made and written as JSON,
  the machine takes them, and the captures that are left are sent their ranges.

Second table, from the first division on, all captures and the owner one after another in this process:

- owner: divides the tables, makes the grants, sends them, reads the answers until all ranges run;
- a capture: reads its Dispatch, opens its tables, answers. They do so at the same time in life. Not measured
  with a range for each table: the product gives a capture at most 8 ranges.

A line for a processor that has `--ranges` ranges with one table each: it opens them; a tick after which
nothing has changed; a tick in which all tables have advanced, with the message as JSON.

A third table repeats `benchmarks.share`: equal tables, of which 1 % then get 90 % of the bytes. Loads are the
greatest as a multiple of the mean, and the goal is at most 1.2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import orjson
from benchmarks.share import Figures, measure
from benchmarks.show import machine, table

from tidegate import __version__
from tidegate.control.barrier import Barrier, SpanTask
from tidegate.control.ddl_log import DdlLog, KnownDdl
from tidegate.control.gc import History
from tidegate.control.grants import Grant, GrantedRange, shared_out
from tidegate.control.messages import (
    FROM_OWNER,
    FROM_PROCESSOR,
    Checkpoint,
    Dispatch,
    FromProcessor,
    Header,
    ProcessorStatus,
    RangeProgress,
    RangeState,
    RangeStatus,
    Sync,
    Wish,
    parse,
    to_json,
)
from tidegate.control.metadata import FeedId
from tidegate.control.owner import Owner, Persist, SendResolved
from tidegate.control.processor import Processor
from tidegate.model.span import Span
from tidegate.server.captures.message_router import MessageRouter
from tidegate.server.owner.peers import SILENT_S, Peer, Peers
from tidegate.server.owner.processor_link import ProcessorLink, Terms
from tidegate.server.owner.processor_reports import ProcessorReports
from tidegate.server.owner.sharing import Sharing

ALL: Final = Span(b"", b"")
FEED: Final = FeedId("default", "bench")
START: Final = 100
ROUNDS: Final = 15
REPORTED: Final = 100
SKEWS: Final = ((1_000, 3), (10_000, 10), (10_000, 100))
"""Tables and captures of the third table."""
TICKS: Final = ("still", "100 reported", "all reported", "bound", "one dies")


class Watch:
    """CPU milliseconds of this process, by name."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = {}

    @contextmanager
    def over(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.ms.setdefault(name, []).append(1e3 * (time.process_time() - began))

    def median(self, name: str) -> float:
        return statistics.median(self.ms[name])

    def words(self, name: str) -> str:
        return f"{self.median(name):.1f} ({max(self.ms[name]):.1f})"


def tables(count: int) -> list[SpanTask]:
    """Tables with keys in this order."""
    keys = [b"t" + number.to_bytes(8, "big") for number in range(count + 1)]
    return [SpanTask(f"t{i}", Span(keys[i], keys[i + 1]), i, START) for i in range(count)]


@dataclass
class Cluster:
    """An owner on the first capture, and the others as far as the owner sees them."""

    tasks: Sequence[SpanTask]
    names: Sequence[str]
    now: float = 1000.0
    ts: int = START
    sent: list[bytes] = field(default_factory=list)
    """The messages of the owner."""
    grants: dict[str, Grant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._there = set(self.names)
        self._numbers, self._tokens = itertools.count(1), itertools.count(1)
        self._said = dict.fromkeys(self.names, 0)
        router = MessageRouter(capture="none of them", send=lambda to, message: self.sent.append(message))
        node: Any = SimpleNamespace(
            capture=self.names[0], owner_rev=1, cluster=1, router=router, clock=self, drained=set(),
            others=lambda: {name: name for name in self._there if name != self.names[0]}, burdens=dict,
            steps_down=False, leaving=False, over=lambda: None, now_ms=lambda: 0,
            next_sequence=lambda: next(self._numbers),
        )  # fmt: skip
        self.peers = Peers()
        self.link = ProcessorLink(
            node, FEED, self.peers, self._terms, lambda peer, message: None, lambda: None
        )
        self.sharing = Sharing(node, ALL, self.peers, self.link.reachable)
        self.reports = ProcessorReports(node.capture, self.peers, self.sharing.spans.loads.__setitem__)
        self.sharing.begin(self.tasks)
        self.owner = Owner(START, Barrier(START), ALL, spans=self.tasks)
        self.owner.learn([], 1 << 50)
        self.log = DdlLog(START, self.tasks)
        self.log.learn([], 1 << 50)

    def monotonic(self) -> float:
        """The time: this is the node's clock."""
        return self.now

    def _terms(self) -> Terms:
        return Terms("i", ALL, self.owner.barrier.bound, self.owner.persisted_ts, False, History())

    @property
    def known(self) -> KnownDdl:
        """The DDL that every capture knows."""
        return self.log.said

    def header(self, name: str) -> Header:
        """The header of a capture's next message."""
        self._said[name] += 1
        return Header(1, str(FEED), "i", 1, name, 1, self._said[name])

    def receive(self, messages: Sequence[bytes]) -> None:
        """Let the owner read messages."""
        for data in messages:
            message = parse(orjson.loads(data), FROM_PROCESSOR)  # as `ProcessorLink` reads them
            peer = self.peers[message.header.capture]
            self.reports.take(peer, message, self.owner, self.now, loading=False)

    def meet(self) -> None:
        """All captures answer the owner for the first time."""
        self.receive([wire(Sync(self.header(one), __version__, 4, 0, [], [])) for one in self.names])
        self.now += 2 * 5.0  # `JOIN_S`: captures that have answered for long may get ranges

    def share_out(self, shares: Mapping[str, Sequence[Span]]) -> None:
        """Make grants, in the form in which they are stored, and dispatch them."""
        made = shared_out(self.grants, "i", (1, next(self._tokens)), shares, dict.fromkeys(shares, 1))
        for one in made.values():
            one.to_bytes()
        self.grants |= made
        for peer in self.peers:
            if peer.capture not in shares:
                peer.grant, peer.asked = None, None
                self.owner.grant(peer.capture, 0, ())
        for name in shares:
            grant = self.peers[name].grant = made[name]
            self.owner.grant(name, grant.incarnation, grant.ranges)
        self.owner.sink_open(self.ts)
        for name in shares:
            self.link.dispatch(self.peers[name], Wish.RUN)

    def running(self) -> list[bytes]:
        """The answers of all captures that have ranges: they deliver."""
        return [wire(self._sync(peer)) for peer in self.peers.running]

    def _sync(self, peer: Peer) -> Sync:
        grant = peer.grant
        assert grant is not None
        states = [RangeStatus(one.id, one.token, RangeState.RUNNING) for one in grant.ranges]
        progress = [RangeProgress(one.id, one.token, self.ts, self.ts) for one in grant.ranges]
        return Sync(
            self.header(peer.capture), __version__, 4, grant.incarnation, states, progress, self.known
        )

    def progress(self, count: int) -> list[bytes]:
        """Checkpoints of so many ranges, spread over all captures, further than before."""
        self.ts += 1
        running = self.peers.running
        each = -(-count // len(running))
        found = []
        for peer in running:
            assert peer.grant is not None
            ranges = [RangeProgress(one.id, one.token, self.ts, self.ts) for one in peer.grant.ranges[:each]]
            header, incarnation = self.header(peer.capture), peer.grant.incarnation
            found.append(wire(Checkpoint(header, incarnation, ranges, ProcessorStatus(), (), self.known)))
        return found

    def tick(self) -> None:
        """As `Replication._tick` does it, with effects that take no time."""
        owner = self.owner
        for effect in owner.tick(self.now):
            match effect:
                case SendResolved(ts):
                    owner.resolved_done(ts)
                case Persist(ts):
                    owner.persisted(ts)
                case _:
                    raise AssertionError(effect)
        min(owner.ranges.resolved, owner.barrier.resolved)
        self.link.repeat()
        owner.due_in(self.now)

    def pass_time(self) -> None:
        """A second in which every processor has reported, and Dispatches are not due again."""
        self.now += 1.0
        for peer in self.peers:
            peer.received_at = peer.asked_at = self.now
            peer.unconfirmed = None
        self.sent.clear()


def wire(message: FromProcessor) -> bytes:
    """A message as it is sent."""
    return json.dumps(to_json(message), separators=(",", ":")).encode()


def names(count: int) -> list[str]:
    return [f"c{number:03}" for number in range(count)]


def blocks(tasks: Sequence[SpanTask], captures: Sequence[str]) -> dict[str, list[Span]]:
    """Each table is a range, and each capture has as many neighbours."""
    spans = ALL.cut_at([task.span.start for task in tasks[1:]])
    edges = [len(spans) * number // len(captures) for number in range(len(captures) + 1)]
    return {name: spans[edges[i] : edges[i + 1]] for i, name in enumerate(captures)}


def measure_ticks(ranges: int, captures: int) -> Watch:
    """The first table."""
    watch, cluster = Watch(), Cluster(tables(ranges), names(captures))
    cluster.meet()
    shares = blocks(cluster.tasks, cluster.names)
    cluster.share_out(shares)
    cluster.receive(cluster.running())
    cluster.tick()
    assert cluster.owner.ranges.are_running
    for _ in range(ROUNDS):
        cluster.pass_time()
        with watch.over("still"):
            cluster.tick()
        for name, count in (("100 reported", REPORTED), ("all reported", ranges)):
            cluster.pass_time()
            messages = cluster.progress(count)
            with watch.over(name):
                cluster.receive(messages)
                cluster.tick()
        cluster.pass_time()
        cluster.owner.barrier.learn([], cluster.owner.barrier.resolved + 1)
        with watch.over("bound"):
            cluster.tick()
        assert len(cluster.sent) == captures
    assert cluster.owner.checkpoint == cluster.ts
    for gone in cluster.names[1:6]:
        _die(cluster, gone, watch)
        cluster.share_out(shares)  # as before, for the next one to die
        cluster.receive(cluster.running())
    return watch


def _die(cluster: Cluster, gone: str, watch: Watch) -> None:
    """A capture is lost. `cluster` has all again afterwards, but the ranges of those that are left."""
    cluster.pass_time()
    cluster._there.discard(gone)
    with watch.over("one dies"):
        assert cluster.sharing.captures.lost(cluster.now, None)
        cluster.owner.sink_lost()
        before = {name: [one.id for one in grant.ranges] for name, grant in cluster.grants.items()}
        cluster.share_out(cluster.sharing.divide(before, shared=True))
    assert gone not in {peer.capture for peer in cluster.peers.running}
    cluster._there.add(gone)
    cluster.owner.sink_lost()
    cluster.now += SILENT_S


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A line of the second table."""

    tables: int
    captures: int
    ranges: int
    owner_ms: float
    capture_ms: float
    """The slowest one. 0: not measured."""


def measure_start(count: int, captures: int, *, apart: bool) -> Scheduled:
    """`apart`: each table is a range of its own, and only the owner is measured."""
    watch, cluster = Watch(), Cluster(tables(count), names(captures))
    cluster.meet()
    shares: Mapping[str, Sequence[Span]] = blocks(cluster.tasks, cluster.names)
    with watch.over("owner"):
        found = cluster.sharing.divide({}, shared=True)
        cluster.share_out(shares if apart else found)
    if apart:
        answers = cluster.running()
    else:
        answers = [one for message in cluster.sent for one in _begin(cluster, message, watch)]
    with watch.over("owner"):
        cluster.receive(answers)
        cluster.tick()
    assert cluster.owner.ranges.are_running
    ranges = sum(len(grant.ranges) for grant in cluster.grants.values())
    return Scheduled(count, captures, ranges, sum(watch.ms["owner"]), max(watch.ms.get("capture", [0.0])))


def _begin(cluster: Cluster, data: bytes, watch: Watch) -> list[bytes]:
    """A processor takes a Dispatch up. Returns its messages."""
    with watch.over("capture"):
        dispatch = parse(orjson.loads(data), FROM_OWNER)
        to = dispatch.header
        header = Header(to.cluster, to.changefeed, to.instance, 0, to.capture, to.capture_epoch, 1)
        processor = Processor(header, __version__, 4)
        processor.receive(dispatch)
        processor.open(START, cluster.tasks, [], START + 1)
        assert processor.dispatch is not None
        processor.started(processor.dispatch.incarnation, {})
        return [wire(one) for one in processor.tick(cluster.now)]


def measure_processor(ranges: int) -> Watch:
    """The line for a processor."""
    watch, tasks = Watch(), tables(ranges)
    spans = ALL.cut_at([task.span.start for task in tasks[1:]])
    granted = [GrantedRange(span, (1, 1)) for span in spans]
    header = Header(1, str(FEED), "i", 1, "c000", 1, 1)
    processor = Processor(header, __version__, 4)
    dispatch = Dispatch(header, Wish.RUN, 1, granted, 1 << 50, START, False)
    processor.receive(parse(orjson.loads(json.dumps(to_json(dispatch))), FROM_OWNER))
    with watch.over("open"):
        processor.open(START, tasks, [], 1 << 50)
    processor.started(1, {})
    processor.tick(0.0)  # which sends a Sync; the next one is due 5 s later
    for ts in range(START + 1, START + 1 + ROUNDS):
        with watch.over("still"):
            assert not processor.tick(0.0)
        reached = dict.fromkeys(processor.spans.ids, ts)
        processor.report((1, 1), 1, reached)
        processor.resolve(reached)
        with watch.over("all advanced"):
            (message,) = processor.tick(0.0)
            orjson.dumps(to_json(message))
    return watch


def skews() -> list[Figures]:
    """The third table."""
    return [measure("skew", *size) for size in SKEWS]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranges", type=int, default=10_000)
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--captures", type=int, nargs="+", default=(3, 100), metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    ticks = {count: measure_ticks(options.ranges, count) for count in options.captures}
    print(f"the owner of {options.ranges:,} ranges, ms")
    print(table([("captures", *TICKS), *((str(n), *map(one.words, TICKS)) for n, one in ticks.items())]))
    starts = [
        measure_start(options.tables if not apart else options.ranges, count, apart=apart)
        for apart in (False, True)
        for count in options.captures
    ]
    print("\nfrom the first division until all ranges run, ms")
    rows = [
        (
            f"{one.tables:,}",
            str(one.captures),
            f"{one.ranges:,}",
            f"{one.owner_ms:.0f}",
            f"{one.capture_ms:.0f}" if one.capture_ms else "-",
        )
        for one in starts
    ]
    print(table([("tables", "captures", "ranges", "owner", "a capture"), *rows]))
    of_processor = measure_processor(options.ranges)
    words = ", ".join(f"{name} {of_processor.words(name)}" for name in of_processor.ms)
    print(f"\na processor of {options.ranges:,} ranges, ms: {words}")
    skewed = skews()
    print("\n1 % of the tables get 90 % of the bytes: the greatest load")
    loads = [
        (f"{one.pieces:,}", str(one.captures), f"{one.load_before:.2f}", f"{one.load_after:.2f}")
        for one in skewed
    ]
    print(table([("tables", "captures", "before", "after"), *loads]))
    if options.json:
        body = {
            "machine": machine(),
            "ticks_ms": {count: one.ms for count, one in ticks.items()},
            "starts": [asdict(one) for one in starts],
            "processor_ms": of_processor.ms,
            "skews": [asdict(one) for one in skewed],
        }
        options.json.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
