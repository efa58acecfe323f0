"""An upstream of many empty tables, and the product over it. Used by `tables`, `many` and `lag`."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Self

import httpx
from benchmarks.accounting import Ledger
from benchmarks.control_probe import between
from benchmarks.product import FEED, Product
from benchmarks.rig import READY_S, eventually
from benchmarks.rows import LOGS
from benchmarks.schema import FIRST_ID, SCHEMAS, pairs

from tidegate.eventstore import store_view
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.host.backlog import Backlog
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.workload.changelog import Txn, read_log

BATCH: Final = 500
"""The number of keys in a transaction that loads the catalogue."""
LOOKS: Final = 50
LOOK_S: Final = 0.05
SYSTEM_ID: Final = 1 << 40
"""The first id of TiDB's own tables."""


class Writers(ABC):
    """Writes rows from a thread of this process, until the context ends. `rows`: the number so far."""

    def __init__(self, pd: PdClient, row: bytes) -> None:
        self._pd, self._row = pd, row
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writers", daemon=True)
        self.rows = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Write until `_done` is set."""


class Upstream:
    """The embedded upstream in a separate process, with many empty tables. Use it as a context."""

    def __init__(self, folder: Path, tables: int, regions: int) -> None:
        self.tables = tables
        self.command = [sys.executable, "-m", "tidegate", "upstream", "run", "--json"]
        self.command += ["--data-dir", str(folder / "upstream"), "--pd", "127.0.0.1:0"]
        self._regions = regions

    def load(self, pd: PdClient) -> None:
        """Write the catalogue, and split the tables into regions."""
        found = pairs(self.tables, "narrow")
        while batch := list(islice(found, BATCH)):
            transaction = Transaction(pd)
            for key, value in batch:
                transaction.put(key, value)
            transaction.commit()
        step = self.tables / self._regions
        edges = [keys.record_span(self.id_of(round(step * at))).start for at in range(self._regions)]
        control = UpstreamControl(pd)
        for first in range(0, len(edges), BATCH):
            control.split(0, [encode_bytes(edge) for edge in edges[first : first + BATCH]])

    @staticmethod
    def id_of(table: int) -> int:
        """The id of a table by its number."""
        return FIRST_ID + SCHEMAS + table


class Many(Product):
    """The product over an upstream of many tables."""

    def __init__(
        self, folder: Path, upstream: Upstream, sink_uri: str, server_src: Path | None = None
    ) -> None:
        super().__init__(folder, "narrow", 0, sink_uri)
        self._upstream, self.ticks_file = upstream, folder / "ticks.json"
        self.server_src = server_src

    def begin(self) -> None:
        """Start upstream and capture. On return the catalogue is complete."""
        ready = self._child("feed", self._upstream.command).wait_line(lambda line: "pd" in line, READY_S)
        self.pd = ready["pd"]
        with PdClient(self.pd) as pd:
            self._upstream.load(pd)
        self.serve(self.pd)

    def serve(self, pd: str) -> None:
        """Start the capture, with a clock around its ticks if it runs from this source tree."""
        if self.server_src is None:
            command = [sys.executable, "-m", "benchmarks.control_probe", str(self.ticks_file), "server"]
        else:
            command = self.tidegate("server")
        command += ["--pd", pd, "--data-dir", str(self.folder / "data"), "--json", "--addr", "127.0.0.1:0"]
        server = self._child("server", [*command, "--log-level", "warn"])
        self.address = server.wait_line(lambda line: "addr" in line, READY_S)["addr"]
        self.ledger = Ledger([server.pid])

    def ticks(self, seconds: float) -> dict[str, dict[str, float]]:
        """The cost of the control process's ticks over some seconds."""
        if self.server_src is not None:
            return {}
        before, began = json.loads(self.ticks_file.read_text()), time.monotonic()
        time.sleep(seconds)
        return between(before, json.loads(self.ticks_file.read_text()), time.monotonic() - began)

    def look_ms(self) -> float:
        """CPU of one look at the store. Each look is made a tick of the store after the last one.
        0.0 if the capture runs from another source tree.
        """
        if self.server_src is not None:
            return 0.0
        (path,) = (self.folder / "data" / "feeds" / "default" / FEED).glob("spec-*.json")
        spec = FeedSpec.load(path)
        frontier = store_view.read_frontier(spec.store_dir)
        spans = Bounds.load(spec.feed_dir / "bounds.json").spans
        backlog = Backlog(spec, {span: frontier.get(span, 0) for span in spans})
        took = 0.0
        for number in range(-LOOKS, LOOKS):
            time.sleep(LOOK_S)
            began = time.thread_time()
            backlog.take(2)
            took += (time.thread_time() - began) if number >= 0 else 0.0
        return round(1000 * took / LOOKS, 3)

    def open(self) -> float:
        """Create the feed and wait until its checkpoint has passed the time of the call. Returns
        the seconds.
        """
        began = time.monotonic()
        self.create()
        with PdClient(self.pd) as pd:
            asked = pd.tso()
        url = f"http://{self.address}/api/v2/changefeeds/{FEED}"

        def passed() -> bool:
            for child in self.children.values():
                child.check()
            with contextlib.suppress(httpx.HTTPError):
                reported = httpx.get(url, timeout=30).json()
                if reported.get("error"):
                    raise RuntimeError(str(reported["error"]))
                started = reported.get("tidegate", {}).get("resolved_sent", 0) > asked
                return bool(started) and int(reported["checkpoint_ts"]) > asked
            return False

        eventually("the checkpoint", passed, 1800, pause_s=0.2)
        return round(time.monotonic() - began, 1)

    def row(self) -> bytes:
        """A row of the narrow table."""
        return next(_rows())


def _rows() -> Iterator[bytes]:
    for line in read_log(LOGS / "narrow.jsonl.gz"):
        if isinstance(line, Txn) and not line.is_base:
            puts = (m for m in line.mutations if m.op in ("put", "insert") and keys.is_record(m.key))
            yield from (m.value for m in puts if keys.parse_record(m.key).table_id < SYSTEM_ID)
