"""A PD and a change feed that serve a recorded table's rows repeatedly, as fast as the client reads them.

    python -m benchmarks.feed_server LOG --rows 10000000 [--live RATE]

LOG is a recorded change log (`tests/golden/changelog/*.jsonl.gz`). The row changes of its largest table, a
third of them updates and deletes with old values, are encoded once as one *page* of change data messages,
batched as in TiKV: for each transaction one event with the prewrites, and some transactions later one with
the commits, 64 events in a message. To serve it, compiled code copies the page and patches new handles and
timestamps into it. With `--live RATE` a page has the rows of 10 ms, and its timestamps are the current time.
The server answers KvScan and KvGet with the schema keys of the log, so that a schema store can be filled.

Prints one JSON line when ready: {"pd": "host:port", "table_id": n, "rows": n}. Ends with SIGTERM.
"""

from __future__ import annotations

import argparse
import gzip
import json
import queue
import signal
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import numpy.typing as npt

from tidegate.kernel import bswap64, kernel, store_u8, store_u64
from tidegate.model import timestamp
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.tidb.memcomparable import encode_bytes

CLUSTER_ID: Final = 7_000_000_000_000_000_001
SIGN: Final = 1 << 63
REGION_HANDLES: Final = 1 << 40
"""The number of handles in a region."""
EVENTS_PER_MESSAGE: Final = 64
COMMIT_LAG: Final = 4
"""The number of transactions that prewrite before the first of them commits."""
TICK_S: Final = 0.01


@dataclass(slots=True)
class Change:
    """One row change of the log."""

    put: bool
    key: bytes
    value: bytes
    old_value: bytes


@dataclass(slots=True)
class Log:
    """The content of a recorded change log: the largest table's changes, and the last state of all else."""

    table_id: int
    changes: list[Change]
    schema: dict[bytes, bytes]
    last_ts: int


def read_log(path: Path) -> Log:
    """Read a log. Takes about one second per 100,000 changes."""
    state: dict[bytes, bytes] = {}
    changes: list[tuple[int, Change]] = []
    last_ts = 0
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            item = json.loads(line)
            if item["type"] not in ("base", "txn"):
                continue
            last_ts = max(last_ts, item["commit_ts"])
            for mutation in item["mutations"]:
                _apply(mutation, state, changes)
    tables = Counter(table for table, _ in changes)
    table_id = tables.most_common(1)[0][0]
    schema = {k: v for k, v in state.items() if not k.startswith(table_prefix(table_id))}
    return Log(table_id, [c for table, c in changes if table == table_id], schema, last_ts)


def _apply(mutation: dict[str, str], state: dict[bytes, bytes], changes: list[tuple[int, Change]]) -> None:
    if mutation["op"] not in ("put", "insert", "delete"):
        return
    key, value = bytes.fromhex(mutation["key"]), bytes.fromhex(mutation["value"])
    old = state.get(key, b"")
    put = mutation["op"] != "delete"
    if put:
        state[key] = value
    else:
        state.pop(key, None)
    if key[:1] == b"t" and key[9:11] == b"_r" and len(key) == 19 and (put or old):
        changes.append((int.from_bytes(key[1:9], "big") ^ SIGN, Change(put, key, value, old)))


def table_prefix(table_id: int) -> bytes:
    """The prefix of all keys of a table."""
    return b"t" + (table_id ^ SIGN).to_bytes(8, "big")


def mixed(changes: list[Change], rows: int) -> list[Change]:
    """`rows` changes: repeatedly two inserts, then one update or delete, each kind in the log's order."""
    fresh = [c for c in changes if not c.old_value]
    others = [c for c in changes if c.old_value] or fresh
    # Take the newest inserts: they have the last schema, like the updates that follow them in the log.
    fresh = fresh[-rows:]
    return [others[(i // 3) % len(others)] if i % 3 == 2 else fresh[i % len(fresh)] for i in range(rows)]


# --- the page ----------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized_field(number: int, content: bytes) -> bytes:
    """A length-delimited field as protobuf has it."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


_TS: Final = _varint(1 << 62)
"""A placeholder of nine bytes, the length of every current timestamp."""


@dataclass(slots=True)
class Page:
    """Messages in one buffer, with the position of each timestamp and handle and its difference
    to the base.
    """

    data: npt.NDArray[np.uint8]
    bounds: list[tuple[int, int]]
    ts_at: npt.NDArray[np.int64]
    ts_add: npt.NDArray[np.int64]
    handle_at: npt.NDArray[np.int64]
    handle_add: npt.NDArray[np.int64]
    rows: int
    last_ts_add: int


@dataclass(slots=True)
class _Part:
    """Bytes, and the places in them to patch."""

    data: bytes
    ts: list[tuple[int, int]] = field(default_factory=list)
    handles: list[tuple[int, int]] = field(default_factory=list)

    def inside(self, number: int) -> _Part:
        """The part as a length-delimited field."""
        head = _varint(number << 3 | 2) + _varint(len(self.data))
        return _joined([_Part(head), self])


def _joined(parts: list[_Part]) -> _Part:
    data = bytearray()
    ts: list[tuple[int, int]] = []
    handles: list[tuple[int, int]] = []
    for part in parts:
        at = len(data)
        ts += [(at + place, add) for place, add in part.ts]
        handles += [(at + place, add) for place, add in part.handles]
        data += part.data
    return _Part(bytes(data), ts, handles)


def _row(change: Change, start: int, commit: int | None, handle: int) -> _Part:
    """A PREWRITE row, or with `commit` the COMMIT row of the same change."""
    data = b"\x08" + _TS
    ts = [(1, start)]
    if commit is not None:
        ts.append((len(data) + 1, commit))
        data += b"\x10" + _TS
    data += bytes([0x18, 1 if commit is None else 2, 0x20, 1 if change.put else 2])
    data += _varint(5 << 3 | 2) + _varint(len(change.key))
    handles = [(len(data) + 11, handle)]
    data += change.key
    if commit is None:
        data += sized_field(6, change.value) if change.value else b""
        data += sized_field(7, change.old_value) if change.old_value else b""
    return _Part(data, ts, handles)


def _event(rows: list[_Part], region: int, request: int) -> _Part:
    entries = _joined([row.inside(1) for row in rows]).inside(3)
    head, tail = _Part(b"\x08" + _varint(region)), _Part(b"\x38" + _varint(request))
    return _joined([head, entries, tail]).inside(1)


def make_page(changes: list[Change], rows_per_txn: int, regions: list[int], request: int) -> Page:
    """Encode the changes as messages. Transactions go to the regions in turn."""
    txns = [changes[i : i + rows_per_txn] for i in range(0, len(changes), rows_per_txn)]
    prewrites, commits = [], []
    for number, rows in enumerate(txns):
        at = number % len(regions)
        start, commit = 4 * number, 4 * (number + COMMIT_LAG) + 2
        handles = [at * REGION_HANDLES + number * rows_per_txn + i for i in range(len(rows))]
        pairs = list(zip(rows, handles, strict=True))
        prewrites.append(_event([_row(c, start, None, h) for c, h in pairs], regions[at], request))
        commits.append(_event([_row(c, start, commit, h) for c, h in pairs], regions[at], request))
    events: list[_Part] = []
    for number in range(len(txns) + COMMIT_LAG):
        events += prewrites[number : number + 1]
        events += commits[number - COMMIT_LAG : number - COMMIT_LAG + 1] if number >= COMMIT_LAG else []
    whole, bounds = _joined(events), []
    at = 0
    for first in range(0, len(events), EVENTS_PER_MESSAGE):
        size = sum(len(e.data) for e in events[first : first + EVENTS_PER_MESSAGE])
        bounds.append((at, at + size))
        at += size
    ts, handles_at = np.array(whole.ts, dtype=np.int64), np.array(whole.handles, dtype=np.int64)
    return Page(
        data=np.frombuffer(whole.data, dtype=np.uint8),
        bounds=bounds,
        ts_at=ts[:, 0].copy(),
        ts_add=ts[:, 1].copy(),
        handle_at=handles_at[:, 0].copy(),
        handle_add=handles_at[:, 1].copy(),
        rows=len(changes),
        last_ts_add=4 * (len(txns) + COMMIT_LAG),
    )


I64 = npt.NDArray[np.int64]


@kernel
def patch(page: int, ts_at: I64, ts_add: I64, base: int, handle_at: I64, handle_add: I64, first: int) -> None:
    """Write base + ts_add as nine-byte varints, first + handle_add as comparable handles."""
    for i in range(len(ts_at)):
        value, at = np.uint64(base + ts_add[i]), page + ts_at[i]
        for _ in range(8):
            store_u8(at, np.uint8((value & np.uint64(0x7F)) | np.uint64(0x80)))
            value >>= np.uint64(7)
            at += 1
        store_u8(at, np.uint8(value))
    for i in range(len(handle_at)):
        handle = np.uint64(first + handle_add[i]) ^ np.uint64(0x8000000000000000)
        store_u64(page + handle_at[i], bswap64(handle))


def patched(page: Page, base: int, first_handle: int) -> list[bytes]:
    """The page's messages with new timestamps and handles."""
    data = page.data.copy()
    patch(data.ctypes.data, page.ts_at, page.ts_add, base, page.handle_at, page.handle_add, first_handle)
    return [data[start:end].tobytes() for start, end in page.bounds]


# --- serving -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """The rows to serve. `live`: rows per second; 0: as fast as possible."""

    rows: int
    rows_per_txn: int
    page_rows: int
    regions: int
    live: int


class Feed:
    """The table's regions, and the messages for each stream."""

    def __init__(self, log: Log, settings: Settings) -> None:
        self.log, self.settings = log, settings
        prefix = table_prefix(log.table_id) + b"_r"
        inner = [
            encode_bytes(prefix + (SIGN | i * REGION_HANDLES).to_bytes(8, "big"))
            for i in range(1, settings.regions)
        ]
        self.bounds = [b"", encode_bytes(prefix), *inner, encode_bytes(prefix[:-1] + b"s"), b""]
        self.table_regions = list(range(2, 2 + settings.regions))
        self.sent_rows = 0
        self.last_ts = 0
        self._base = timestamp.compose(time.time_ns() // 1_000_000)

    def now(self) -> int:
        """The TSO: the system's time, but never below a timestamp that was sent."""
        return max(timestamp.compose(time.time_ns() // 1_000_000), self._base, self.last_ts)

    def region_of(self, encoded: bytes) -> int:
        """The id of the region that holds an encoded key."""
        return next(
            i for i in range(1, len(self.bounds)) if i + 1 == len(self.bounds) or encoded < self.bounds[i]
        )

    def stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[bytes]:
        """EventFeedV2: answers registrations, and sends the table's rows when all its regions are
        registered.
        """
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=drain, args=(requests, arrived), daemon=True).start()
        known: dict[int, set[int]] = {}
        while context.is_active():
            request = next_request(arrived, TICK_S)
            if request is not None:
                yield from self._answer(request, known)
            table = next((r for r, ids in known.items() if ids >= set(self.table_regions)), None)
            if table is not None and self.sent_rows < self.settings.rows:
                yield from self._rows(table, known, arrived)
            elif request is None:
                self.last_ts = self.now()
                yield from resolved_messages(known, self.last_ts)

    def _answer(self, request: Any, known: dict[int, set[int]]) -> Iterator[bytes]:
        if request.HasField("register"):
            known.setdefault(request.request_id, set()).add(request.region_id)
            self._base = max(self._base, request.checkpoint_ts + timestamp.compose(1))
            yield initialized_message(request.region_id, request.request_id)
        elif request.HasField("deregister"):
            known.pop(request.request_id, None)

    def _rows(
        self, request: int, known: dict[int, set[int]], arrived: queue.SimpleQueue[Any]
    ) -> Iterator[bytes]:
        settings = self.settings
        rows = mixed(self.log.changes, settings.page_rows)
        page = make_page(rows, settings.rows_per_txn, self.table_regions, request)
        started = time.monotonic()
        pages = 0
        while self.sent_rows < settings.rows:
            # The other spans of the capture may register later, on the same stream. Until they are resolved
            # too, it delivers nothing.
            while (asked := next_request(arrived, 0)) is not None:
                yield from self._answer(asked, known)
            if settings.live:
                time.sleep(max(0.0, started + pages * page.rows / settings.live - time.monotonic()))
            base = self.now() if settings.live else self._base + timestamp.compose(pages + 1)
            yield from patched(page, base, pages * page.rows)
            self.last_ts = base + page.last_ts_add
            pages += 1
            self.sent_rows += page.rows
            if settings.live or pages % 4 == 0 or self.sent_rows >= settings.rows:
                yield from resolved_messages(known, self.last_ts)


def drain(requests: Iterator[Any], arrived: queue.SimpleQueue[Any]) -> None:
    """Put what a client asks into `arrived` until its stream ends."""
    try:
        for request in requests:
            arrived.put(request)
    except grpc.RpcError:
        return  # the client has gone, and its stream ends by itself


def next_request(arrived: queue.SimpleQueue[Any], wait_s: float) -> Any:
    """The next request; None when none has come within the timeout."""
    try:
        return arrived.get(timeout=wait_s) if wait_s else arrived.get_nowait()
    except queue.Empty:
        return None


def initialized_message(region: int, request: int) -> bytes:
    """The message that ends the scan of a registration."""
    event = cdcpb.ChangeDataEvent()
    entries = event.events.add(region_id=region, request_id=request).entries
    entries.entries.add(type=cdcpb.Event.INITIALIZED)
    return bytes(event.SerializeToString())


def resolved_messages(known: dict[int, set[int]], ts: int) -> Iterator[bytes]:
    """The messages that resolve regions, given by request, up to `ts`."""
    for request, regions in list(known.items()):
        resolved = cdcpb.ResolvedTs(regions=sorted(regions), ts=ts, request_id=request)
        yield cdcpb.ChangeDataEvent(resolved_ts=resolved).SerializeToString()


class Cluster:
    """The needed part of PD and TiKV: one store, fixed regions, the schema's keys."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.address = feed, ""
        self._keys = sorted(feed.log.schema)

    def members(self, _: Any) -> Any:
        member = pdpb.Member(name="feed", member_id=1, client_urls=[f"http://{self.address}"])
        return pdpb.GetMembersResponse(header=response_header(), members=[member], leader=member)

    def tso(self, requests: Iterator[Any], _: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            now = self.feed.now()
            stamp = pdpb.Timestamp(physical=timestamp.physical_ms(now), logical=timestamp.logical(now))
            yield pdpb.TsoResponse(header=response_header(), count=request.count, timestamp=stamp)

    def regions(self, request: Any) -> Any:
        response = pdpb.ScanRegionsResponse(header=response_header())
        bounds = self.feed.bounds
        for i in range(1, len(bounds)):
            start, end = bounds[i - 1], bounds[i]
            if (end and end <= request.start_key) or (request.end_key and start >= request.end_key):
                continue
            region = response.regions.add()
            region.region.id, region.region.start_key, region.region.end_key = i, start, end
            region.region.region_epoch.version = region.region.region_epoch.conf_ver = 1
            peer = region.region.peers.add(id=i, store_id=1)
            region.leader.CopyFrom(peer)
            if 0 < request.limit <= len(response.regions):
                break
        return response

    def store(self, _: Any) -> Any:
        response = pdpb.GetStoreResponse(header=response_header())
        response.store.id, response.store.address, response.store.version = 1, self.address, "8.5.0"
        return response

    def all_stores(self, _: Any) -> Any:
        response = pdpb.GetAllStoresResponse(header=response_header())
        response.stores.add(id=1, address=self.address, version="8.5.0")
        return response

    def hold_gc(self, request: Any) -> Any:
        return pdpb.UpdateServiceGCSafePointResponse(
            header=response_header(),
            service_id=request.service_id,
            TTL=request.TTL,
            min_safe_point=request.safe_point,
        )

    def gc(self, _: Any) -> Any:
        return pdpb.GetGCSafePointResponse(header=response_header(), safe_point=0)

    def get(self, request: Any) -> Any:
        value = self.feed.log.schema.get(request.key)
        return kvrpcpb.GetResponse(value=value or b"", not_found=value is None)

    def scan(self, request: Any) -> Any:
        response = kvrpcpb.ScanResponse()
        for key in self._keys[bisect_left(self._keys, request.start_key) :]:
            if (request.end_key and key >= request.end_key) or len(response.pairs) >= request.limit:
                break
            response.pairs.add(key=key, value=self.feed.log.schema[key])
        return response


def response_header() -> Any:
    """Return the header of each response of PD."""
    return pdpb.ResponseHeader(cluster_id=CLUSTER_ID)


def _unary(call: Callable[[Any], Any], request: Any) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        lambda message, _: call(message),
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def handlers_of(cluster: Cluster) -> list[grpc.GenericRpcHandler]:
    """The services of a cluster, for gRPC's server."""
    pd = {
        "GetMembers": _unary(cluster.members, pdpb.GetMembersRequest),
        "ScanRegions": _unary(cluster.regions, pdpb.ScanRegionsRequest),
        "GetStore": _unary(cluster.store, pdpb.GetStoreRequest),
        "GetAllStores": _unary(cluster.all_stores, pdpb.GetAllStoresRequest),
        "UpdateServiceGCSafePoint": _unary(cluster.hold_gc, pdpb.UpdateServiceGCSafePointRequest),
        "GetGCSafePoint": _unary(cluster.gc, pdpb.GetGCSafePointRequest),
        "Tso": grpc.stream_stream_rpc_method_handler(
            cluster.tso,
            request_deserializer=pdpb.TsoRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        ),
    }
    kv = {
        "KvGet": _unary(cluster.get, kvrpcpb.GetRequest),
        "KvScan": _unary(cluster.scan, kvrpcpb.ScanRequest),
    }
    feed = grpc.stream_stream_rpc_method_handler(
        cluster.feed.stream,
        request_deserializer=cdcpb.ChangeDataRequest.FromString,
        response_serializer=None,
    )
    return [
        grpc.method_handlers_generic_handler("pdpb.PD", pd),
        grpc.method_handlers_generic_handler("tikvpb.Tikv", kv),
        grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeedV2": feed}),
    ]


def serve(log: Log, settings: Settings, address: str) -> tuple[grpc.Server, str, Feed]:
    """Start serving. Returns the server and the address at which it listens."""
    feed = Feed(log, settings)
    return *start(Cluster(feed), address), feed


def start(cluster: Cluster, address: str) -> tuple[grpc.Server, str]:
    """Serve a cluster. Returns the server and the address at which it listens."""
    server = grpc.server(
        ThreadPoolExecutor(32), options=[("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    )
    server.add_generic_rpc_handlers(handlers_of(cluster))
    port = server.add_insecure_port(address)
    cluster.address = f"{address.rpartition(':')[0]}:{port}"
    server.start()
    return server, cluster.address


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rows-per-txn", type=int, default=50)
    parser.add_argument("--page-rows", type=int, default=8_000, help="rows laid out once; bench mode")
    parser.add_argument("--regions", type=int, default=4)
    parser.add_argument("--live", type=int, default=0, metavar="RATE", help="rows a second, stamped now")
    parser.add_argument("--addr", default="127.0.0.1:0")
    options = parser.parse_args()
    page = max(1, int(options.live * TICK_S)) if options.live else options.page_rows
    per_txn = min(options.rows_per_txn, 4) if options.live else options.rows_per_txn
    log = read_log(options.log)
    settings = Settings(options.rows, per_txn, page, options.regions, options.live)
    server, address, _ = serve(log, settings, options.addr)
    print(json.dumps({"pd": address, "table_id": log.table_id, "rows": options.rows}), flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    ended.wait()
    server.stop(0.2)


if __name__ == "__main__":
    main()
