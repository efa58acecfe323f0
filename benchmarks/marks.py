"""The capture's cost of a mark from a quiet store: CPU per ResolvedTs message, by thread.

    python -m benchmarks.marks [--stores 16] [--rate 5] [--regions 128] [--seconds 8] [--rounds 3]
    python -m benchmarks.marks --src src /tmp/before/src      # two checkouts in turns

One process serves PD and the stores, each at its own address. A store's stream only sends marks, `--rate` per
second, as a store does while nothing is written. The capture is a separate process: the real `Puller`, over
all regions, into a sink that keeps nothing.

A round measures the capture twice with the same streams: first while a tenth of the marks arrive, then while
all arrive. The difference, divided by the number of additional marks, is the cost of a mark. (Without any
marks the lock cleaner would begin to work, and its cost would be subtracted.) The work that does not depend
on the number of marks, such as sealing four times a second, is the base and not part of the cost.

The clocks are those of the threads (`CLOCK_THREAD_CPUTIME_ID` of each), so other work on the machine disturbs
only through the caches. Still, on a busy machine compare only figures of runs in turns. Threads without a
Python name are gRPC's own (`grpc`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
from benchmarks import feed_server
from benchmarks.growth import Counted
from benchmarks.rig import eventually

from tidegate.kvclient.pd import PdClient
from tidegate.model import timestamp
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.tidb.memcomparable import encode_bytes

WATCHED: Final = Span(b"t", b"u")
SETTLE_S: Final = 3.0
"""The wait before a measurement: a stream is quiet after two seconds without a change
(`event_feed.QUIET_S`)."""
BASE_SHARE: Final = 10
"""The factor by which fewer marks arrive in the base."""
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.01

Costs = dict[str, float]
"""Microseconds of CPU per mark, by kind of thread."""


class Store(feed_server.Cluster):
    """One of the stores, at its own address. The first also answers as PD, for all of them."""

    def __init__(self, number: int, cluster: Stores) -> None:
        log = feed_server.Log(1, [], {}, 0)
        super().__init__(feed_server.Feed(log, feed_server.Settings(0, 1, 1, 1, 0)))
        self._number, self._cluster = number, cluster
        self.feed.stream = self.stream  # type: ignore[method-assign]

    def regions(self, request: Any) -> Any:
        return self._cluster.regions(request)

    def store(self, request: Any) -> Any:
        response = pdpb.GetStoreResponse(header=feed_server.response_header())
        response.store.CopyFrom(self._cluster.line(request.store_id))
        return response

    def all_stores(self, _: Any) -> Any:
        stores = [self._cluster.line(number) for number in range(1, len(self._cluster.stores) + 1)]
        return pdpb.GetAllStoresResponse(header=feed_server.response_header(), stores=stores)

    def stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[bytes]:
        """EventFeedV2: initialises each registration at once, and then sends marks at the given rate."""
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=feed_server.drain, args=(requests, arrived), daemon=True).start()
        known: dict[int, set[int]] = {}
        stores = len(self._cluster.stores)
        due = time.monotonic() + self._number / stores
        while context.is_active():
            request = feed_server.next_request(arrived, POLL_S)
            if request is not None and request.HasField("register"):
                known.setdefault(request.request_id, set()).add(request.region_id)
                yield feed_server.initialized_message(request.region_id, request.request_id)
            rate = self._cluster.rate
            if rate and time.monotonic() >= due:
                due = max(due + 1 / rate, time.monotonic())
                yield from feed_server.resolved_messages(known, self.feed.now())


class Stores:
    """All stores, which share the regions evenly. `rate`: marks per second of each."""

    def __init__(self, stores: int, regions: int) -> None:
        self.rate = 0.0
        self.stores = [Store(number, self) for number in range(1, stores + 1)]
        cuts = [encode_bytes(b"t%06d" % number) for number in range(1, regions)]
        self._bounds = [b"", *cuts, b""]
        self._servers = [_serve_one(store) for store in self.stores]

    @property
    def address(self) -> str:
        """The address of PD."""
        return self.stores[0].address

    def line(self, number: int) -> Any:
        """The description of a store by PD."""
        store = pdpb.GetStoreResponse().store
        store.id, store.address, store.version = number, self.stores[number - 1].address, "8.5.0"
        return store

    def regions(self, request: Any) -> Any:
        """PD's answer to ScanRegions."""
        response = pdpb.ScanRegionsResponse(header=feed_server.response_header())
        for number, (start, end) in enumerate(itertools.pairwise(self._bounds), 1):
            if (end and end <= request.start_key) or (request.end_key and start >= request.end_key):
                continue
            region = response.regions.add()
            region.region.id, region.region.start_key, region.region.end_key = number, start, end
            region.region.region_epoch.version = region.region.region_epoch.conf_ver = 1
            store = (number - 1) % len(self.stores) + 1
            region.leader.CopyFrom(region.region.peers.add(id=number, store_id=store))
            if 0 < request.limit <= len(response.regions):
                break
        return response

    def close(self) -> None:
        """End all streams."""
        for server in self._servers:
            server.stop(0)


def _serve_one(store: Store) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(feed_server.handlers_of(store))
    store.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    return server


def thread_seconds() -> dict[int, float]:
    """CPU seconds of this process's threads so far, by their ids."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        number = int(task.name)
        try:
            # The same as the kernel's MAKE_THREAD_CPUCLOCK (include/linux/posix-timers.h), which glibc also
            # uses.
            found[number] = time.clock_gettime(~number << 3 | 6)
        except OSError:
            continue  # the thread has ended
    return found


def kind_of(name: str) -> str:
    """The kind of a thread. Threads of all stores count together."""
    return re.sub(r"\d+", "N", re.sub(r"^Thread-.*", "grpc, in Python", name))


def _kinds() -> dict[int, str]:
    return {t.native_id: kind_of(t.name) for t in threading.enumerate() if t.native_id is not None}


def _capture(address: str) -> None:
    """The capture's process: for each input line with seconds it prints a line of figures."""
    block_matcher.warm()
    sink = Counted()
    with PdClient(address) as pd:
        puller = Puller(pd, sink)
        start = Timestamp(timestamp.compose(time.time_ns() // 1_000_000))
        puller.watch(WATCHED, start)
        for line in sys.stdin:
            before, marks, began = thread_seconds(), _messages(puller), time.process_time()
            time.sleep(float(line))
            took, after = time.process_time() - began, thread_seconds()
            threads: Costs = defaultdict(float)
            names = _kinds()
            for number, seconds in after.items():
                threads[names.get(number, "grpc")] += seconds - before.get(number, 0.0)
            assert puller.failure is None, puller.failure
            found = {"cpu": took, "marks": _messages(puller) - marks, "threads": threads}
            print(json.dumps(found | {"resolved": sink.resolved}), flush=True)
        puller.close()


def _messages(puller: Puller) -> int:
    return sum(stream.messages for stream in puller.streams)


class Capture:
    """A capture's process that runs the code of one checkout."""

    def __init__(self, source: Path, address: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source.absolute())}
        command = [sys.executable, "-m", "benchmarks.marks", "--capture", address]
        # Its own benchmarks where it has this one: ours may import what it does not have yet.
        own = source.absolute().parent
        folder = own if (own / "benchmarks" / "marks.py").exists() else None
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, seconds: float) -> dict[str, Any]:
        """The CPU and the marks of `seconds` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the capture died"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def one_round(stores: Stores, capture: Capture, rate: float, seconds: float) -> Costs:
    """The cost of a mark: the CPU with all marks, minus that of the same time with few marks."""
    stores.rate = rate
    eventually(
        "marks of all stores", lambda: capture.measure(1.0)["marks"] >= len(stores.stores), PATIENCE_S, 0.01
    )
    stores.rate = rate / BASE_SHARE
    time.sleep(SETTLE_S)
    base = capture.measure(seconds)
    stores.rate = rate
    time.sleep(0.5)
    found = capture.measure(seconds)
    marks = found["marks"] - base["marks"]
    assert marks > 0.5 * rate * seconds * len(stores.stores), f"only {marks} marks came"
    cpu = (found["cpu"] - base["cpu"]) / marks * 1e6
    kinds = sorted({*found["threads"], *base["threads"]})
    costs = {k: (found["threads"].get(k, 0.0) - base["threads"].get(k, 0.0)) / marks * 1e6 for k in kinds}
    return {
        "all": cpu,
        **costs,
        "marks/s": found["marks"] / seconds,
        "base, % of a core": base["cpu"] / seconds * 100,
    }


def table(sources: Sequence[Path], rounds: dict[Path, list[Costs]]) -> list[str]:
    """Lines for people: medians, with the least and the most."""
    figures = list(dict.fromkeys(figure for costs in itertools.chain(*rounds.values()) for figure in costs))
    lines = ["| us a mark | " + " | ".join(map(str, sources)) + " |", "|---|" + "---|" * len(sources)]
    for figure in figures:
        cells = []
        for source in sources:
            values = [costs.get(figure, 0.0) for costs in rounds[source]]
            cells.append(f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stores", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5.0, help="marks a second of each store")
    parser.add_argument("--regions", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--src", type=Path, nargs="*", default=[Path("src")], help="checkouts' sources")
    parser.add_argument("--capture", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.capture:
        _capture(arguments.capture)
        return
    rounds: dict[Path, list[Costs]] = {source: [] for source in arguments.src}
    stores = Stores(arguments.stores, arguments.regions)
    with ExitStack() as stack:
        stack.callback(stores.close)
        for number in range(arguments.rounds):
            for source in arguments.src:
                capture = Capture(source, stores.address)
                costs = one_round(stores, capture, arguments.rate, arguments.seconds)
                capture.close()
                rounds[source].append(costs)
                load = os.getloadavg()[0]
                print(f"{number + 1} {source}: {costs['all']:.0f} us, load {load:.1f}", file=sys.stderr)
    print("\n".join(table(arguments.src, rounds)))


if __name__ == "__main__":
    main()
