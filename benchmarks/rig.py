"""A capture without its control process: feed server, puller process and pipeline process over one folder.

The control process's part is small and constant here (one table, no DDL, no barrier), so the rig takes its
place: it writes the catalogue, the bounds file, the grant and the spec, sends the puller the spans to watch
and, every second, up to where their rows are durable, and sums up the pipeline's reports. The table is
watched only after the pipeline has run some batches with other rows, so that the start of JVM, workers and
kernels is not measured.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.accounting import Ledger
from benchmarks.rows import LOGS, ROWS_A_TXN, Source
from tools.processes import Child

from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.metadata import FeedId, grant_key
from tidegate.eventstore import store_view
from tidegate.eventstore.store import EventStore
from tidegate.ipc import HEADER, frame, parsed
from tidegate.kvclient.pd import PdClient
from tidegate.model.reports import (
    HELLOS,
    REPORTS_AFTER,
    DropBelow,
    Durable,
    Failed,
    Hello,
    PipelineHello,
    PullerHello,
    Report,
    Started,
    ToPuller,
    Watch,
    parse,
)
from tidegate.model.span import Span, span_id
from tidegate.mounter import bases
from tidegate.mounter.bases import Base
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.server.pulling.puller_process import store_dir
from tidegate.tidb import keys

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "bench"
CAPTURE: Final = "rig"
SLOTS: Final = 4
FAR: Final = 1 << 62
"""A bound beyond every ts."""
WARM_BATCHES: Final = 80
WARM_SMOKE: Final = 4
"""The batches of the warm-up in a trial, in which nothing is measured."""
SMOKE_ROWS: Final = 20_000
"""A run with at most this many rows is a trial."""
WARM_ROWS: Final = 1_000
"""The number of rows in each batch of the warm-up."""
READY_S: Final = 120.0
DROP_S: Final = 1.0
"""How often segments that are durable downstream are dropped, as the control process does."""


def eventually(
    what: str,
    check: Callable[[], Any],
    patience_s: float,
    pause_s: float = 0.02,
    *,
    children: Iterable[Child] = (),
) -> Any:
    """The first true result of `check`. Raises TimeoutError with `what` if there is none in time.

    Raises ChildError with the last lines of its log as soon as one of `children` has ended, because the
    result will never come then.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        for child in children:
            child.check()
        time.sleep(pause_s)
    raise TimeoutError(f"within {patience_s:.0f} s not seen: {what}")


class ControlStandIn:
    """Listens on the capture's socket, keeps the connections by their hello, and sums up the pipeline's
    reports.
    """

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._peers: dict[type[Hello], socket.socket] = {}
        self._lock = threading.Lock()
        self.totals = dict.fromkeys(("rows", "messages", "bytes", "quarantined", "batches"), 0)
        self.durable: dict[str, int] = {}
        """The ts up to which each span is durable."""
        self.started = False
        self.errors: list[str] = []
        threading.Thread(target=self._accept, name="stand-in", daemon=True).start()

    def send(self, message: ToPuller) -> None:
        """Send a message to the puller, which must have sent its hello."""
        self._peers[PullerHello].sendall(frame(message))

    def knows(self, hello: type[Hello]) -> bool:
        """Whether a process has sent this kind of hello."""
        return hello in self._peers

    def delivered(self) -> dict[str, int]:
        """Rows, messages, bytes and batches reported so far. Raises RuntimeError if a process has failed."""
        if self.errors:
            raise RuntimeError(self.errors[0])
        with self._lock:
            return dict(self.totals)

    def forget(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.totals = dict.fromkeys(self.totals, 0)

    def close(self) -> None:
        """End all connections."""
        self._listener.close()
        for peer in self._peers.values():
            peer.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(peer,), name="stand-in", daemon=True).start()

    def _read(self, peer: socket.socket) -> None:
        try:
            stream = peer.makefile("rb")
            kinds: Sequence[type[Report]] = HELLOS
            while header := stream.read(HEADER.size):
                said = parse(parsed(stream.read(HEADER.unpack(header)[0])), kinds)
                if isinstance(said, PullerHello | PipelineHello):
                    self._peers[type(said)], kinds = peer, REPORTS_AFTER[type(said)]
                self._take(said)
        except OSError:
            return  # the process ended; its exit code and its log say why

    def _take(self, said: Report) -> None:
        match said:
            case Started():
                self.started = True
            case Failed(what, where, why):
                self.errors.append(f"{what} {why} {where}")
            case Durable(spans=spans, stats=stats):
                with self._lock:
                    self.durable |= spans
                    if stats:
                        self.totals["batches"] += 1
                        for name in ("rows", "messages", "bytes", "quarantined"):
                            self.totals[name] += stats[name]


class Rig:
    """The processes of the rig. `start` starts and `close` ends them; use it as a context."""

    def __init__(self, folder: Path, log: str, rows: int, sink_uri: str, live: int = 0) -> None:
        self.folder, self.rows, self.sink_uri, self._log = folder, rows, sink_uri, log
        self._command: list[str | Path] = [
            "-m",
            "benchmarks.feed_server",
            LOGS / f"{log}.jsonl.gz",
            "--rows",
            str(rows),
        ]
        self._command += ["--live", str(live)] if live else []
        self.children: dict[str, Child] = {}
        self.ledger: Ledger | None = None

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, pipeline: Sequence[str | Path], timed: bool = True) -> None:
        """Start everything. `pipeline`: Python's arguments before the spec. On return `flow` may
        be called.
        """
        self._feed_server()
        self.control = ControlStandIn(self.folder / "control.sock")
        with PdClient(self.pd_address) as pd:
            self.start_ts = pd.tso()
            self.store = store_dir(self.folder, pd.cluster_id)
            self.feed_dir = self.folder / "feeds" / "default" / NAME
            self.feed_dir.mkdir(parents=True)
            folder = bases.folder_of(self.store)
            folder.mkdir(parents=True)
            catalogue = load_catalogue(pd, self.start_ts)
            (folder / Base(self.start_ts, self.start_ts).name).write_bytes(catalogue.dump())
            self._store_warm_up()
            spec = self._write_files(pd.cluster_id)
        puller: list[str | Path] = [
            "-m",
            "tidegate.program",
            "tidegate.server.pulling.puller_process",
            self.folder,
            self.pd_address,
        ]
        if timed:
            puller = ["-m", "benchmarks.puller_probe", self.folder, self.pd_address, self.stages_file]
        self._python("puller", puller)
        self._watch(keys.ddl_span())
        ddl = span_id(keys.ddl_span())
        self._seen("the DDL span resolved", lambda: self._frontier().get(ddl, 0) > self.start_ts)
        self._python("pipeline", [*pipeline, spec])
        self._seen("the pipeline's query", self._pipeline_runs)
        self._warm_up()
        self.ledger = Ledger([self.children["puller"].pid, self.children["pipeline"].pid])

    def flow(self) -> None:
        """Watch the table: the feed server sends its rows from now on."""
        self._watch(self._span)

    def wait_rows(self, rows: int, patience_s: float, progress: Callable[[int], None]) -> dict[str, int]:
        """Wait until `rows` rows were reported. Returns what was reported then."""
        deadline, last, seen_at = time.monotonic() + patience_s, -1, time.monotonic()
        dropped_at = seen_at
        while (found := self.control.delivered())["rows"] < rows:
            for child in self.children.values():
                child.check()
            if time.monotonic() - dropped_at >= DROP_S:
                dropped_at = time.monotonic()
                self._drop()
            if time.monotonic() > deadline or time.monotonic() - seen_at > READY_S:
                raise TimeoutError(f"{found['rows']} of {rows} rows after {patience_s:.0f} s\n{self.tails()}")
            if found["rows"] != last:
                last, seen_at = found["rows"], time.monotonic()
                progress(last)
            time.sleep(0.01)
        return found

    def tails(self) -> str:
        """The last lines of each process's log, for an error."""
        return "\n".join(f"[{name}]\n{child.tail(8)}" for name, child in self.children.items())

    @property
    def stages_file(self) -> Path:
        """The file where the puller's probe writes its seconds."""
        return self.folder / "stages-puller.json"

    def close(self) -> None:
        """End every process."""
        if self.ledger is not None:
            self.ledger.close()
        for child in reversed(list(self.children.values())):
            child.end()
        self.children.clear()
        if hasattr(self, "control"):
            self.control.close()

    def _feed_server(self) -> None:
        child = self._python("feed", self._command)
        ready = child.wait_line(lambda line: "pd" in line, READY_S)
        self.pd_address, self._span = ready["pd"], keys.record_span(ready["table_id"])

    def _seen(self, what: str, check: Callable[[], Any]) -> None:
        eventually(what, check, READY_S, children=self.children.values())

    def _pipeline_runs(self) -> bool:
        self.control.delivered()
        return self.control.started

    def _frontier(self) -> Mapping[str, int]:
        return store_view.read_frontier(self.store) if self.store.exists() else {}

    def _watch(self, span: Span) -> None:
        self._seen("the puller process", lambda: self.control.knows(PullerHello))
        self.control.send(Watch(span, self.start_ts, True))

    def _drop(self) -> None:
        """Drop what is durable of the table."""
        if ts := self.control.durable.get(span_id(self._span), 0):
            self.control.send(DropBelow(self._span, ts))

    def _store_warm_up(self) -> None:
        """Store rows of the table in a separate span before anything runs: some for each batch."""
        source = Source.read(self._log)
        self._warm_span = Span(self._span.end, self._span.end + b"\xff")
        store = EventStore(self.store)
        span = store.open_span(self._warm_span)
        span.begin(self.start_ts)
        self._warm_ts = [self.start_ts]
        for number in range(WARM_SMOKE if self.rows <= SMOKE_ROWS else WARM_BATCHES):
            block = source.block(number * WARM_ROWS, WARM_ROWS, self._warm_ts[-1] + 2, updates=False)
            span.append(block)
            self._warm_ts.append(self._warm_ts[-1] + 2 * (WARM_ROWS // ROWS_A_TXN + 2))
        span.seal(self._warm_ts[-1])
        store.publish()
        store.close()

    def _warm_up(self) -> None:
        """Let the pipeline deliver the stored rows in some batches, so that JVM, workers and kernels are
        warm.
        """
        for number, ts in enumerate(self._warm_ts[1:], 1):
            self._write_bounds(ts)
            self.wait_rows(number * WARM_ROWS, READY_S, lambda rows: None)
        self._write_bounds(FAR)
        self.control.forget()

    def _write_bounds(self, ts: int) -> None:
        known = {"start": "", "end": "", "physical_id": 0, "start_ts": self.start_ts}
        spans = {span_id(span): known for span in (self._span, self._warm_span)}
        ddl_span = span_id(keys.ddl_span())
        partial = self.feed_dir / "bounds.tmp"
        bounds = {"token": [1, 1], "bound": ts, "ddl_span": ddl_span, "spans": spans}
        partial.write_text(json.dumps(bounds))
        partial.replace(self.feed_dir / "bounds.json")

    def _write_files(self, cluster: int) -> Path:
        self._write_bounds(self.start_ts)
        metadata = self.folder / "metadata.db"
        with sqlite3.connect(metadata) as connection:
            connection.execute("CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB)")
            everything = GrantedRange(Span(b"", b""), (1, 1))
            value = Grant("rig", (1, 1), 1, SLOTS, (everything,)).to_bytes()
            key = grant_key(cluster, FeedId("default", NAME), CAPTURE)
            connection.execute("INSERT INTO kv VALUES (?, ?)", (key, value))
        spec = {
            "cluster_id": cluster,
            "namespace": "default",
            "id": NAME,
            "sink_uri": self.sink_uri,
            "config": load_config(None, parse_sink_uri(self.sink_uri)).to_json(),
            "token": [1, 1],
            "instance": "rig",
            "incarnation": 1,
            "slots": SLOTS,
            "capture": CAPTURE,
            "ranges": [["", ""]],
            "givers": {},
            "store_dir": str(self.store),
            "metadata": str(metadata),
            "socket_path": str(self.folder / "control.sock"),
        }
        path = self.feed_dir / "spec-1.json"
        path.write_text(json.dumps(spec))
        return path

    def _python(self, name: str, arguments: Sequence[str | Path]) -> Child:
        child = Child(name, [sys.executable, *map(str, arguments)], self.folder / f"{name}.log")
        self.children[name] = child
        return child


def use_repository() -> None:
    """Let child processes import the benchmarks and, without an installation, the package."""
    os.chdir(ROOT)
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT / "src"), str(ROOT), *known]))


def end_in_order() -> None:
    """Make SIGTERM run this process's `finally` clauses, so that no service is left running."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
