"""The embedded upstream alone: transactions committed over gRPC, and rows streamed to a ChangeData client.

    python -m benchmarks.upstream [--seconds 8] [--rows 300000] [--txn-rows 20] [--json FILE]

The upstream is a separate process; the client is this one. Both are counted. The client works like client-go:
one BatchCommands stream with many concurrent transactions, and timestamps requested in batches. Rows have a
key of 19 bytes (`t{table}_r{handle}`) and a value of 100.

| figure | what happens |
|---|---|
| two-phase | start ts, prewrite of all rows, commit ts, commit |
| async commit, one-phase | start ts, one prewrite; async commit has a commit after it |
| with capture | two-phase, while a ChangeData client receives every row |
| raw | RawBatchPut of the same number of pairs, on a store of API V2 |
| scan | an incremental scan of everything that was committed, from checkpoint 0, to one ChangeData client |

`rows/s` is by the wall clock; `rows per CPU-second` divides by the CPU of both processes (`server`: only of
the upstream's).
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from benchmarks.accounting import cpu_seconds

from tidegate.model import timestamp
from tidegate.proto import (
    cdcpb_pb2,
    cdcpb_pb2_grpc,
    pdpb_pb2,
    pdpb_pb2_grpc,
    tikvpb_pb2,
    tikvpb_pb2_grpc,
)
from tidegate.proto import kvrpcpb_pb2 as pb

SIGN: Final = 1 << 63
TABLE: Final = 100
HANDLES: Final = 1 << 32
"""The handles of each region, if there are several."""
VALUE: Final = b"v" * 100
UNDER_WAY: Final = 48
"""The number of transactions that the client has open at the same time."""
RAW_PREFIX: Final = b"r\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    rows: int
    seconds: float
    server_cpu_s: float
    client_cpu_s: float

    def line(self) -> str:
        """The line as text for people."""
        both = self.server_cpu_s + self.client_cpu_s
        return (
            f"{self.name:14} {self.rows / self.seconds:10,.0f} rows/s {self.rows / both:10,.0f} rows/CPU-s"
            f" {self.rows / self.server_cpu_s:10,.0f} rows/CPU-s of the server   ({self.rows:,} rows,"
            f" {self.seconds:.1f} s, CPU {self.server_cpu_s:.1f} + {self.client_cpu_s:.1f} s)"
        )


def key_of(table: int, handle: int) -> bytes:
    """The record key of a row."""
    return b"t" + (table + SIGN).to_bytes(8, "big") + b"_r" + (handle + SIGN).to_bytes(8, "big")


def channel_to(address: str) -> grpc.Channel:
    """A new channel for large messages."""
    return grpc.insecure_channel(
        address,
        options=[("grpc.max_receive_message_length", 256 << 20), ("grpc.use_local_subchannel_pool", 1)],
    )


class Client:
    """One BatchCommands stream for each store, and one Tso stream. All work happens in the
    caller's thread.
    """

    def __init__(self, address: str, api_version: pb.APIVersion) -> None:
        self.channel = channel_to(address)
        pd = pdpb_pb2_grpc.PDStub(self.channel)
        found = pd.ScanRegions(pdpb_pb2.ScanRegionsRequest()).regions
        self.contexts = [
            pb.Context(
                region_id=each.region.id,
                region_epoch=each.region.region_epoch,
                peer=each.leader,
                api_version=api_version,
            )
            for each in found
        ]
        """All regions, in key order."""
        self.region = found[0].region
        stores = pd.GetAllStores(pdpb_pb2.GetAllStoresRequest()).stores
        self.stores = {
            each.id: self.channel if each.address == address else channel_to(each.address) for each in stores
        }
        """Channels by store."""
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._commands: dict[int, queue.SimpleQueue[Any]] = {
            number: queue.SimpleQueue() for number in self.stores
        }
        self._stamps: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._asking: deque[list[Callable[[int], None]]] = deque()
        self._asked: list[Callable[[int], None]] = []
        self._batches: dict[int, Any] = {}
        self._next_id = 0
        self._calls = [
            tikvpb_pb2_grpc.TikvStub(channel).BatchCommands(iter(self._commands[number].get, None))
            for number, channel in self.stores.items()
        ]
        self._calls.append(pd.Tso(iter(self._stamps.get, None)))
        for call in self._calls:
            threading.Thread(target=self._read, args=(call,), daemon=True).start()

    def _read(self, call: Any) -> None:
        try:
            for message in call:
                self._events.put(message)
        except grpc.RpcError:
            return  # closed

    def send(self, name: str, request: Any, then: Callable[[Any], None]) -> None:
        """Put a command into the next message. `then` is called with its response."""
        self._next_id += 1
        self._waiting[self._next_id] = then
        batch = self._batches.setdefault(request.context.peer.store_id, tikvpb_pb2.BatchCommandsRequest())
        getattr(batch.requests.add(), name).CopyFrom(request)
        batch.request_ids.append(self._next_id)

    def stamp(self, then: Callable[[int], None]) -> None:
        """Request a timestamp. `then` is called with it."""
        self._asked.append(then)

    def turn(self) -> None:
        """Send the collected commands, wait for answers, and handle all that have arrived."""
        for store, batch in self._batches.items():
            self._commands[store].put(batch)
        self._batches = {}
        if self._asked and not self._asking:
            self._stamps.put(pdpb_pb2.TsoRequest(count=len(self._asked)))
            self._asking.append(self._asked)
            self._asked = []
        message = self._events.get()
        while True:
            self._act(message)
            if self._events.empty():
                return
            message = self._events.get()

    def _act(self, message: Any) -> None:
        if isinstance(message, pdpb_pb2.TsoResponse):
            asked = self._asking.popleft()
            last = timestamp.compose(message.timestamp.physical, message.timestamp.logical)
            for i, then in enumerate(asked, start=last - len(asked) + 1):
                then(i)
            return
        for number, response in zip(message.request_ids, message.responses, strict=True):
            name = response.WhichOneof("cmd")
            answer = getattr(response, name)
            if answer.HasField("region_error"):
                raise RuntimeError(f"{name}: {answer.region_error}")
            self._waiting.pop(number)(answer)

    def close(self) -> None:
        """End all streams."""
        for commands in self._commands.values():
            commands.put(None)
        self._stamps.put(None)
        for call in self._calls:
            call.cancel()
        for channel in {self.channel, *self.stores.values()}:
            channel.close()


class Writer:
    """Commits transactions of `rows` rows, each in one region, all regions in turns.

    The regions are those of one table, split at the multiples of `HANDLES`.
    """

    def __init__(self, client: Client, rows: int, mode: str, first: int = 0) -> None:
        """`first`: the first handle to use in each region."""
        self.client = client
        self.rows = rows
        self.mode = mode
        self.committed = 0
        self.stopping = False
        self.open = 0
        self._first, self._next = first, 0
        self._limit = 0

    def run(self, seconds: float, rows: int = 0) -> None:
        """Work for `seconds`, or until `rows` were begun, then finish the open transactions."""
        self._limit = self.committed + rows if rows else 0
        for _ in range(UNDER_WAY):
            self._begin()
        end = time.monotonic() + seconds
        while self.open:
            self.client.turn()
            self.stopping = self.stopping or (not rows and time.monotonic() > end)

    def _begin(self) -> None:
        if self.stopping or (self._limit and self.committed + self.open * self.rows >= self._limit):
            return
        self.open += 1
        contexts = self.client.contexts
        turn, at = divmod(self._next, len(contexts))
        self._next += 1
        base = at * HANDLES + self._first + turn * self.rows
        context, keys = contexts[at], [key_of(TABLE, handle) for handle in range(base, base + self.rows)]
        if self.mode == "raw":
            self._raw(context, keys)
        else:
            self.client.stamp(lambda start_ts: self._prewrite(context, start_ts, keys))

    def _ended(self, rows: int) -> None:
        self.committed += rows
        self.open -= 1
        self._begin()

    def _raw(self, context: Any, keys: list[bytes]) -> None:
        pairs = [pb.KvPair(key=RAW_PREFIX + key, value=VALUE) for key in keys]
        request = pb.RawBatchPutRequest(context=context, pairs=pairs)
        self.client.send("RawBatchPut", request, lambda answer: self._put(answer, len(keys)))

    def _put(self, answer: Any, rows: int) -> None:
        if answer.error:
            raise RuntimeError(answer.error)
        self._ended(rows)

    def _prewrite(self, context: Any, start_ts: int, keys: list[bytes]) -> None:
        request = pb.PrewriteRequest(
            context=context,
            mutations=[pb.Mutation(op=pb.Put, key=key, value=VALUE) for key in keys],
            primary_lock=keys[0],
            start_version=start_ts,
            lock_ttl=20_000,
            txn_size=len(keys),
        )
        if self.mode != "two-phase":
            request.min_commit_ts = start_ts + 1
            request.use_async_commit = True
            request.try_one_pc = self.mode == "one-phase"
            if self.mode == "async commit":
                request.secondaries.extend(keys[1:])
        self.client.send(
            "Prewrite", request, lambda answer: self._prewritten(context, answer, start_ts, keys)
        )

    def _prewritten(self, context: Any, answer: Any, start_ts: int, keys: list[bytes]) -> None:
        if answer.errors:
            raise RuntimeError(str(answer.errors))
        if answer.one_pc_commit_ts:
            self._ended(len(keys))
        elif answer.min_commit_ts:
            self._commit(context, start_ts, answer.min_commit_ts, keys)
        else:
            assert self.mode == "two-phase", f"{self.mode} was not accepted"
            self.client.stamp(lambda commit_ts: self._commit(context, start_ts, commit_ts, keys))

    def _commit(self, context: Any, start_ts: int, commit_ts: int, keys: list[bytes]) -> None:
        request = pb.CommitRequest(
            context=context, start_version=start_ts, commit_version=commit_ts, keys=keys
        )
        self.client.send("Commit", request, lambda answer: self._committed(answer, len(keys)))

    def _committed(self, answer: Any, rows: int) -> None:
        if answer.HasField("error"):
            raise RuntimeError(str(answer.error))
        self._ended(rows)


class Capture:
    """A ChangeData client of the region that counts rows and drops them."""

    def __init__(self, client: Client, checkpoint_ts: int, raw: bool = False) -> None:
        self.changes = 0
        self.initialized = threading.Event()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        request = cdcpb_pb2.ChangeDataRequest(
            header=cdcpb_pb2.Header(ticdc_version="8.5.0"),
            region_id=client.region.id,
            region_epoch=client.region.region_epoch,
            checkpoint_ts=checkpoint_ts,
            request_id=1,
            kv_api=cdcpb_pb2.ChangeDataRequest.RawKV if raw else cdcpb_pb2.ChangeDataRequest.TiDB,
            register=cdcpb_pb2.ChangeDataRequest.Register(),
        )
        request.header.cluster_id = _cluster_id(client)
        self._requests.put(request)
        self._call = cdcpb_pb2_grpc.ChangeDataStub(next(iter(client.stores.values()))).EventFeedV2(
            iter(self._requests.get, None), metadata=(("features", "stream-multiplexing"),)
        )
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        final = (cdcpb_pb2.Event.COMMIT, cdcpb_pb2.Event.COMMITTED)
        try:
            for message in self._call:
                for event in message.events:
                    for row in event.entries.entries:
                        self.changes += row.type in final
                        if row.type == cdcpb_pb2.Event.INITIALIZED:
                            self.initialized.set()
        except grpc.RpcError:
            return  # closed

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)
        self._call.cancel()


def _cluster_id(client: Client) -> int:
    members = pdpb_pb2_grpc.PDStub(client.channel).GetMembers(pdpb_pb2.GetMembersRequest())
    return int(members.header.cluster_id)


class Upstream:
    """The upstream's process."""

    def __init__(self, directory: Path, api_version: int) -> None:
        command = [sys.executable, "-m", "benchmarks.upstream", "--serve", str(directory), str(api_version)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self.client = Client(self.address, pb.APIVersion.V2 if api_version == 2 else pb.APIVersion.V1)

    def measure(self, name: str, work: Callable[[], int]) -> Figure:
        """Do the work, which returns its number of rows, and measure time and CPU."""
        server, client = self._cpu(), time.process_time()
        began = time.monotonic()
        rows = work()
        seconds = time.monotonic() - began
        figure = Figure(name, rows, seconds, self._cpu() - server, time.process_time() - client)
        print(figure.line(), flush=True)
        return figure

    def _cpu(self) -> float:
        found = cpu_seconds(self._process.pid)
        assert found is not None, "the upstream died"
        return found

    def close(self) -> None:
        """End it."""
        self.client.close()
        self._process.terminate()
        self._process.wait()


def _serve(directory: str, api_version: int) -> None:
    from tidegate.tikv.server import EmbeddedUpstream

    with EmbeddedUpstream(directory, api_version=api_version) as upstream:
        print(upstream.pd_addr, flush=True)
        threading.Event().wait()


def _figures(arguments: argparse.Namespace) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="tidegate-upstream-") as folder:
        for mode in ("two-phase", "async commit", "one-phase", "with capture"):
            if arguments.only and mode not in arguments.only:
                continue
            upstream = Upstream(Path(folder) / mode.replace(" ", "-"), 1)
            try:
                yield upstream.measure(mode, partial(_write, upstream, mode, arguments))
            finally:
                upstream.close()
        if not arguments.only or "raw" in arguments.only:
            upstream = Upstream(Path(folder) / "raw", 2)
            try:
                yield upstream.measure("raw", lambda: _write(upstream, "raw", arguments))
            finally:
                upstream.close()
        if not arguments.only or "scan" in arguments.only:
            yield from _scans(Path(folder) / "scan", arguments)


def _write(upstream: Upstream, mode: str, arguments: argparse.Namespace) -> int:
    capture = Capture(upstream.client, 0) if mode == "with capture" else None
    writer = Writer(upstream.client, arguments.txn_rows, "two-phase" if mode == "with capture" else mode)
    writer.run(arguments.seconds)
    if capture is not None:
        while capture.changes < writer.committed:
            time.sleep(0.01)
        capture.close()
    return writer.committed


def _scans(folder: Path, arguments: argparse.Namespace) -> Iterator[Figure]:
    upstream = Upstream(folder, 1)
    try:
        writer = Writer(upstream.client, 1000, "one-phase")
        writer.run(0.0, arguments.rows)

        def scan() -> int:
            capture = Capture(upstream.client, 0)
            capture.initialized.wait()
            capture.close()
            assert capture.changes == writer.committed
            return capture.changes

        for _ in range(2):
            yield upstream.measure("scan", scan)
    finally:
        upstream.close()


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--txn-rows", type=int, default=20)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        _serve(arguments.serve[0], int(arguments.serve[1]))
        return
    figures = [asdict(figure) for figure in _figures(arguments)]
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
