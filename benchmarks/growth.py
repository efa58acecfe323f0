"""How the cost of the embedded upstream and the capture client grows with regions and with streams.

    python -m benchmarks.growth [--regions 1 100 10000] [--streams 1 4 16 64] [--rounds 3] [--json FILE]
    python -m benchmarks.growth --regions --streams 1 16      # one half only

Every size has its own upstream, a process with one table cut into as many regions. All of them run from the
start, and the sizes are measured in turns, round by round, because a machine's speed drifts. A figure is the
median of its rounds, with its ratio to the first size: if a cost does not grow, its ratio is 1.0.

| figure | what happens |
|---|---|
| commit | two-phase transactions of 20 rows over gRPC, each in one region, all regions in turns |
| live | the same, while a ChangeData client is registered for every region and receives each row |
| scan | an incremental scan of all rows, of all regions at the same time, to a ChangeData client |
| capture scan, live | the same two with the real client: puller, region locks, matcher, frontier |
| idle | nothing is written; every region is registered by one ChangeData client, or by the capture |

`us/row` is the CPU of upstream and of the receiving process; the writer is a separate process and is not
counted. By streams: one upstream has 100 regions, and each of n streams is registered for every region. So n
times as many rows are delivered as committed, and figures are for a delivered row. The capture has n stores
and therefore n streams, each with its part of 128 regions.

Idle figures: the share of a core by process, anonymous memory, the resolved ts messages per second, and how
far a region's mark is behind the clock, as the mean over all marks received.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import grpc
import pyarrow as pa
from benchmarks.accounting import anonymous_mb, cpu_seconds
from benchmarks.rig import eventually
from benchmarks.upstream import HANDLES, TABLE, Client, Writer, key_of

from tidegate.kvclient.pd import PdClient
from tidegate.model import timestamp
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.proto import cdcpb_pb2, cdcpb_pb2_grpc, kvrpcpb_pb2, pdpb_pb2, pdpb_pb2_grpc
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller

ROWS: Final = 100_000
"""The rows that are loaded before the measurement."""
TXN_ROWS: Final = 20
STREAM_REGIONS: Final = 100
STORE_REGIONS: Final = 128
PATIENCE_S: Final = 180.0
FINAL: Final = (cdcpb_pb2.Event.COMMIT, cdcpb_pb2.Event.COMMITTED)

Figures = dict[str, float]


class Work(NamedTuple):
    """A number of rows, and the time they took, without the start of a process."""

    rows: int
    seconds: float


class Upstream:
    """The upstream's process with its rows, and the process that writes to it."""

    def __init__(self, folder: Path, regions: int, stores: int = 1) -> None:
        command = ["--serve", str(folder), str(regions), str(stores)]
        self.process = _start(command)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.regions, self.rows = regions, 0
        self._handle = 0  # the first handle without a row in each region

    def load(self, rows: int) -> None:
        """Commit `rows` rows, over all regions."""
        each = max(1, min(1000, rows // self.regions))
        self._write("one-phase", each, rows, 0.0)

    def commit(self, seconds: float) -> Work:
        """Commit transactions of `TXN_ROWS` rows for `seconds`."""
        return self._write("two-phase", TXN_ROWS, 0, seconds)

    def _write(self, mode: str, txn_rows: int, rows: int, seconds: float) -> Work:
        asked = [self.address, mode, str(txn_rows), str(rows), str(seconds), str(self._handle)]
        writer = _start(["--write", *asked])
        assert writer.stdout is not None
        reported = writer.stdout.readline().split()
        committed, took = int(reported[0]), float(reported[1])
        writer.wait()
        self._handle += (committed // (txn_rows * self.regions) + 1) * txn_rows
        self.rows += committed
        return Work(committed, took)

    def cpu(self) -> float:
        """Its CPU seconds so far."""
        found = cpu_seconds(self.process.pid)
        assert found is not None, "the upstream died"
        return found

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


class Receiver:
    """`streams` ChangeData streams, each registered for every region. Counts rows and marks."""

    def __init__(self, address: str, streams: int, checkpoint_ts: int) -> None:
        self.rows = self.marks = self.initialized = 0
        self.lags_ms: list[float] = []
        with grpc.insecure_channel(address) as channel:
            pd = pdpb_pb2_grpc.PDStub(channel)
            store = pd.GetAllStores(pdpb_pb2.GetAllStoresRequest()).stores[0]
            found = pd.ScanRegions(pdpb_pb2.ScanRegionsRequest())
        self._channel = grpc.insecure_channel(
            store.address, options=[("grpc.max_receive_message_length", 256 << 20)]
        )
        self.expected = streams * len(found.regions)
        self._done = threading.Event()
        self._mutex = threading.Lock()
        self._calls = []
        requests = [
            cdcpb_pb2.ChangeDataRequest(
                header=cdcpb_pb2.Header(ticdc_version="8.5.0", cluster_id=found.header.cluster_id),
                region_id=each.region.id,
                region_epoch=each.region.region_epoch,
                checkpoint_ts=checkpoint_ts,
                request_id=1,
                register=cdcpb_pb2.ChangeDataRequest.Register(),
            )
            for each in found.regions
        ]
        stub = cdcpb_pb2_grpc.ChangeDataStub(self._channel)
        for _ in range(streams):
            call = stub.EventFeedV2(self._ask(requests), metadata=(("features", "stream-multiplexing"),))
            self._calls.append(call)
            threading.Thread(target=self._receive, args=(call,), daemon=True).start()

    def _ask(self, requests: Sequence[Any]) -> Any:
        yield from requests
        self._done.wait()

    def _receive(self, call: Any) -> None:
        with suppress(grpc.RpcError):
            for message in call:
                rows = initialized = 0
                for event in message.events:
                    assert not event.HasField("error"), event.error
                    for row in event.entries.entries:
                        rows += row.type in FINAL
                        initialized += row.type == cdcpb_pb2.Event.INITIALIZED
                with self._mutex:
                    self.rows += rows
                    self.initialized += initialized
                    if message.HasField("resolved_ts"):
                        self.marks += 1
                        lag = time.time() * 1000 - timestamp.physical_ms(Timestamp(message.resolved_ts.ts))
                        self.lags_ms += [lag] * len(message.resolved_ts.regions)

    def until(self, what: str, check: Callable[[], bool]) -> None:
        """Wait until `check` is true. `what`: its name for an error."""
        eventually(what, check, PATIENCE_S, 0.01)

    def close(self) -> None:
        """End the streams."""
        self._done.set()
        for call in self._calls:
            call.cancel()
        self._channel.close()


class Counted:
    """A store for the capture that counts rows and drops them (`puller.store_protocol`)."""

    held_bytes = used_bytes = disk_bytes = 0
    pressure = ""
    over_quota = False
    crowded = ""
    has_room = True

    def __init__(self) -> None:
        self.rows = 0
        self.span = Span(b"", b"")
        self.resolved = self.complete_from = Timestamp(0)

    @property
    def ranges(self) -> list[tuple[Span, Timestamp]]:
        """The only range, and the ts up to which it is sealed."""
        return [(self.span, self.resolved)]

    def open_span(self, span: Span) -> Self:
        """The store of the only span."""
        self.span = span
        return self

    def begin(self, start_ts: Timestamp) -> None:
        """Begin at a ts."""
        self.resolved = self.complete_from = start_ts

    def append(self, block: pa.RecordBatch) -> None:
        """Count the rows of a block."""
        self.rows += block.num_rows

    def seal(self, resolved: Timestamp) -> None:
        """Note that everything up to a ts has arrived."""
        self.resolved = resolved

    def keep(self, ranges: Sequence[tuple[Span, Timestamp]]) -> None:
        """Does nothing: nothing is kept."""

    def shed(self) -> None:
        """Does nothing: nothing is in memory."""

    def publish(self) -> None:
        """Does nothing: there are no readers."""

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Does nothing: nothing is spilled."""

    def tend(self) -> None:
        """Does nothing: nothing is kept for a while."""

    def recover(self) -> None:
        """Does nothing: there is no disk that could be full."""

    def close(self) -> None:
        """Does nothing: nothing is open."""


class Capture:
    """The real client over the whole table."""

    def __init__(self, address: str, start_ts: int) -> None:
        self.pd = PdClient(address)
        self.store = Counted()
        self._puller = Puller(self.pd, self.store)
        self._puller.watch(Span(key_of(TABLE, 0), key_of(TABLE + 1, 0)), Timestamp(start_ts))

    def caught_up(self) -> None:
        """Wait until everything that is committed now has been received."""
        now = Timestamp(self.pd.tso())
        eventually(
            "a resolved ts", lambda: self.store.resolved >= now or self._puller.failure, PATIENCE_S, 0.01
        )
        assert self._puller.failure is None, self._puller.failure

    def close(self) -> None:
        """End it."""
        self._puller.close()
        self.pd.close()


def measured(upstream: Upstream, work: Callable[[], Work]) -> Figures:
    """Rows per second, and CPU of both processes per row, for a piece of work."""
    server, client = upstream.cpu(), time.process_time()
    rows, seconds = work()
    return {
        "rows/s": rows / seconds,
        "us/row upstream": (upstream.cpu() - server) / rows * 1e6,
        "us/row client": (time.process_time() - client) / rows * 1e6,
    }


def until_received(committed: Work, copies: int, reported: Callable[[], None]) -> Work:
    """The work of rows that are committed and then received `copies` times each."""
    began = time.monotonic()
    reported()
    return Work(committed.rows * copies, committed.seconds + time.monotonic() - began)


def from_the_start(receive: Callable[[], int]) -> Work:
    """The work of rows that existed before."""
    began = time.monotonic()
    rows = receive()
    return Work(rows, time.monotonic() - began)


def committing(upstream: Upstream, seconds: float) -> Figures:
    """The figures of commits alone."""
    found = measured(upstream, lambda: upstream.commit(seconds))
    del found["us/row client"]
    return found


def receiving(upstream: Upstream, streams: int, seconds: float) -> dict[str, Figures]:
    """The figures of a scan, then live rows, then an idle time, with plain ChangeData streams."""
    found = {}
    memory = anonymous_mb(os.getpid())
    with ExitStack() as stack:
        receivers: list[Receiver] = []

        def scan() -> int:
            receivers.append(Receiver(upstream.address, streams, 0))
            stack.callback(receivers[0].close)
            receivers[0].until("all scans done", lambda: receivers[0].initialized == receivers[0].expected)
            return receivers[0].rows

        found["scan"] = measured(upstream, lambda: from_the_start(scan))
        (receiver,) = receivers
        assert receiver.rows == streams * upstream.rows, (receiver.rows, upstream.rows)

        def reported() -> None:
            receiver.until("all rows received", lambda: receiver.rows == streams * upstream.rows)

        found["live"] = measured(
            upstream, lambda: until_received(upstream.commit(seconds), streams, reported)
        )
        time.sleep(0.5)
        receiver.marks, receiver.lags_ms = 0, []
        found["idle"] = idling(upstream, memory) | {
            "marks/s": receiver.marks / IDLE_S,
            "mark lag ms": statistics.mean(receiver.lags_ms),
        }
    return found


IDLE_S: Final = 4.0


def idling(upstream: Upstream, memory: float) -> Figures:
    """The figures of an idle upstream."""
    server, client = upstream.cpu(), time.process_time()
    time.sleep(IDLE_S)
    return {
        "% of a core upstream": (upstream.cpu() - server) / IDLE_S * 100,
        "% of a core client": (time.process_time() - client) / IDLE_S * 100,
        "MB upstream": anonymous_mb(upstream.process.pid),
        "MB client, more": anonymous_mb(os.getpid()) - memory,
    }


def capturing(upstream: Upstream, seconds: float) -> dict[str, Figures]:
    """The figures of a scan, then live rows, then an idle time, with the real client."""
    found = {}
    memory = anonymous_mb(os.getpid())
    with ExitStack() as stack:
        captures: list[Capture] = []

        def scan() -> int:
            captures.append(Capture(upstream.address, 0))
            stack.callback(captures[0].close)
            captures[0].caught_up()
            return captures[0].store.rows

        found["capture scan"] = measured(upstream, lambda: from_the_start(scan))
        (capture,) = captures
        assert capture.store.rows == upstream.rows, (capture.store.rows, upstream.rows)

        found["capture live"] = measured(
            upstream, lambda: until_received(upstream.commit(seconds), 1, capture.caught_up)
        )
        assert capture.store.rows == upstream.rows, (capture.store.rows, upstream.rows)
        time.sleep(0.5)
        found["capture idle"] = idling(upstream, memory)
    return found


Rounds = dict[tuple[str, str], dict[int, list[float]]]
"""(figure, measure) -> size -> one number for each round."""


def _add(rounds: Rounds, size: int, found: dict[str, Figures]) -> None:
    for figure, measures in found.items():
        for measure, number in measures.items():
            rounds[figure, measure].setdefault(size, []).append(number)


def table(title: str, sizes: Sequence[int], rounds: Rounds) -> list[str]:
    """Lines for people: medians, and the ratio to the first size."""
    lines = [
        f"| {title} | | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---|---|" + "---|" * len(sizes),
    ]
    for (figure, measure), found in rounds.items():
        medians = [statistics.median(found[size]) if size in found else None for size in sizes]
        first = next(each for each in medians if each is not None)
        cells = [
            ""
            if each is None
            else f"{each:,.{0 if each >= 100 else 1}f} ({each / first:.2f})"
            if first
            else f"{each:,.1f}"
            for each in medians
        ]
        lines.append(f"| {figure} | {measure} | " + " | ".join(cells) + " |")
    return lines


def by_regions(folder: Path, sizes: Sequence[int], arguments: argparse.Namespace) -> Rounds:
    """Commits, streams and captures of 1, 100, 10,000 regions."""
    rounds: Rounds = defaultdict(dict)
    with ExitStack() as stack:
        upstreams = {size: _opened(stack, folder / f"regions-{size}", size) for size in sizes}
        for upstream in upstreams.values():
            upstream.load(arguments.rows)
        for number in range(arguments.rounds):
            for size, upstream in upstreams.items():
                _say(f"round {number + 1}: {size:,} regions")
                _add(rounds, size, {"commit": committing(upstream, arguments.seconds)})
                _add(rounds, size, receiving(upstream, 1, arguments.seconds))
                _add(rounds, size, capturing(upstream, arguments.seconds))
    return rounds


def by_streams(folder: Path, sizes: Sequence[int], arguments: argparse.Namespace) -> Rounds:
    """Streams of one store, each for all regions, and a capture with as many stores."""
    rounds: Rounds = defaultdict(dict)
    with ExitStack() as stack:
        one = _opened(stack, folder / "streams", STREAM_REGIONS)
        several = {size: _opened(stack, folder / f"stores-{size}", STORE_REGIONS, size) for size in sizes}
        one.load(arguments.rows // 5)
        for upstream in several.values():
            upstream.load(arguments.rows)
        for number in range(arguments.rounds):
            for size, upstream in several.items():
                _say(f"round {number + 1}: {size:,} streams")
                _add(rounds, size, receiving(one, size, arguments.seconds))
                _add(rounds, size, capturing(upstream, arguments.seconds))
    return rounds


def _opened(stack: ExitStack, folder: Path, regions: int, stores: int = 1) -> Upstream:
    upstream = Upstream(folder, regions, stores)
    stack.callback(upstream.close)
    return upstream


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.growth", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _serve(folder: str, regions: int, stores: int) -> None:
    from tidegate.tikv import keys
    from tidegate.tikv.server import EmbeddedUpstream

    cuts = [keys.encode(key_of(TABLE, i * HANDLES)) for i in range(1, regions)]
    with EmbeddedUpstream(folder, boundaries=cuts, stores=stores) as upstream:
        print(upstream.pd_addr, flush=True)
        threading.Event().wait()


def _write(address: str, mode: str, txn_rows: str, rows: str, seconds: str, first: str) -> None:
    client = Client(address, kvrpcpb_pb2.APIVersion.V1)
    writer = Writer(client, int(txn_rows), mode, int(first))
    began = time.monotonic()
    writer.run(float(seconds), int(rows))
    print(writer.committed, time.monotonic() - began, flush=True)
    client.close()


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--regions", type=int, nargs="*", default=[1, 100, 10_000])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        folder, regions, stores = arguments.serve
        _serve(folder, int(regions), int(stores))
        return
    if arguments.write:
        _write(*arguments.write)
        return
    block_matcher.warm()
    results: dict[str, Rounds] = {}
    with tempfile.TemporaryDirectory(prefix="tidegate-growth-") as name:
        if arguments.regions:
            results["regions"] = by_regions(Path(name), arguments.regions, arguments)
            print("\n".join(table("by regions", arguments.regions, results["regions"])), flush=True)
        if arguments.streams:
            results["streams"] = by_streams(Path(name), arguments.streams, arguments)
            print("\n".join(table("by streams", arguments.streams, results["streams"])), flush=True)
    if arguments.json:
        reported = {
            title: {f"{figure}: {measure}": found for (figure, measure), found in rounds.items()}
            for title, rounds in results.items()
        }
        arguments.json.write_text(json.dumps(reported, indent=2))


if __name__ == "__main__":
    main()
