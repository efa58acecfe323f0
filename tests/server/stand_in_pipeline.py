"""A pipeline process without Spark and Kafka: rows of the event store into one file of JSON lines.

It keeps the real one's promises to the control process: bounds and frontier bound what it delivers, its
progress is written with the rows, and a new incarnation starts from it. The owner's stand-in sink appends to
the same file, so that one file is the topic, in the order of delivery.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tidegate.errors import InvalidInput, Retryable
from tidegate.eventstore import reader, store_view
from tidegate.filter.feed import FeedFilter
from tidegate.ipc import ControlClient
from tidegate.model.ddl import DdlEvent
from tidegate.model.reports import Durable, PipelineHello, Started
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.exchange.beats import Beats
from tidegate.pipeline.exchange.feed import BoundsReader, FeedSpec
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.schemas import SchemaReader
from tidegate.server.delivery.plan import FeedPlan
from tidegate.tidb.keys import parse_record

PARTITIONS = 3


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    """All lines in one write: they are there together or not at all."""
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        assert os.write(descriptor, data) == len(data)
    finally:
        os.close(descriptor)


class _Appended:
    """The lines of a file to which others append. Only the new ones are parsed, because tests ask often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the test and its capture are threads of one process
        self._size = 0
        self._lines: list[dict[str, Any]] = []

    def read(self, path: Path) -> list[dict[str, Any]]:
        with self._lock:
            if path.exists():
                with path.open("rb") as file:
                    file.seek(self._size)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._lines += map(json.loads, whole.splitlines())
                self._size += len(whole)
            return self._lines.copy()


@lru_cache(maxsize=8)
def _appended(path: Path) -> _Appended:
    return _Appended()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines: a long write that is under way may show its beginning. Nobody may change them."""
    return _appended(path).read(path)


def partitions_of(lines: list[dict[str, Any]], instance: str) -> int:
    """By how many partitions a feed's rows are placed now."""
    status = [line["partitions"] for line in lines if "partitions" in line and line["instance"] == instance]
    return status[-1] if status else PARTITIONS


class Journal:
    def __init__(self, lines: list[dict[str, Any]], instance: str) -> None:
        lines = [line for line in lines if line.get("instance") == instance]
        self.resolved_ts = max((line["resolved"] for line in lines if "resolved" in line), default=0)
        self.ddls = {(line["ddl"], line["seq"]) for line in lines if "ddl" in line}

    @property
    def ddl_ts(self) -> int:
        return max((ts for ts, _ in self.ddls), default=0)


class FileSink:
    """The owner's sink on the file; `broken` next to it makes every call fail, as a broker that is down."""

    def __init__(self, path: Path, instance: str) -> None:
        self._path, self._instance = path, instance
        self._check()
        self.journal = Journal(lines_of(path), instance)

    def _check(self) -> None:
        if self._path.with_suffix(".refused").exists():
            raise InvalidInput("Topic 'file' does not exist.", fix="create it")
        if self._path.with_suffix(".broken").exists():
            raise Retryable("The broker does not answer.", where=str(self._path))

    def use(self, topics: Iterable[str]) -> None:
        """One file is all there is."""

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        self._check()
        if (event.finished_ts, event.seq) not in self.journal.ddls:
            append(
                self._path, [self._own({"ddl": event.finished_ts, "seq": event.seq, "query": event.query})]
            )
            self.journal.ddls.add((event.finished_ts, event.seq))

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        self._check()
        assert ts >= self.journal.resolved_ts
        append(self._path, [self._own({"resolved": ts})])
        self.journal.resolved_ts = ts

    @property
    def partitions(self) -> int:
        """Over how many partitions rows would be spread, were there any."""
        return partitions_of(lines_of(self._path), self._instance)

    @property
    def is_repartitioned(self) -> bool:
        """Whether that number was ever changed."""
        lines = lines_of(self._path)
        return any("partitions" in line for line in lines if line.get("instance") == self._instance)

    def repartition(self, ts: int, partitions: int, build_ms: int = 0) -> None:
        self._check()
        assert ts >= self.journal.resolved_ts
        append(self._path, [self._own({"resolved": ts, "partitions": partitions})])
        self.journal.resolved_ts = ts

    def _own(self, line: dict[str, Any]) -> dict[str, Any]:
        """Marked as ours: what was written before the checkpoint was overwritten is not our journal."""
        return line | {"instance": self._instance}

    def forget(self, spans: Iterable[str]) -> None:
        self._check()
        append(self._path, [{"forgotten": sorted(spans)}])

    def close(self) -> None:
        pass


def opener(folder: Path) -> Any:
    """An `OpenSink` that writes `folder/TOPIC.jsonl`."""

    def open_sink(plan: FeedPlan) -> FileSink:
        return FileSink(folder / f"{plan.uri.topic}.jsonl", plan.instance)

    return open_sink


def table_of(schemas: SchemaStore, key: bytes, commit_ts: int, spec: FeedSpec) -> str | None:
    """Whose row it is; None: of a table in the same stripe that the feed does not follow."""
    table = schemas.version_at(parse_record(key).table_id, commit_ts - 1)
    if spec.rules and (table is None or not FeedFilter.of(spec.config).follows(table)):
        return None
    return table.name if table is not None else ""


def main(out: Path, spec_path: Path) -> None:
    spec = json.loads(spec_path.read_text())
    first, second = spec["token"]
    hello = PipelineHello(f"{spec['namespace']}/{spec['id']}", spec["incarnation"], os.getpid())
    control = ControlClient(Path(spec["socket_path"]), hello)
    path = out / f"{spec['sink_uri'].partition('?')[0].rpartition('/')[2]}.jsonl"
    store, bounds_path = Path(spec["store_dir"]), spec_path.parent / "bounds.json"
    feed = FeedSpec.load(spec_path)
    schemas = SchemaReader(LocalAccess(feed))
    reading = BoundsReader(bounds_path)
    done = dict(reading.read().spans)
    mine = [
        line
        for line in lines_of(path)
        if (line.get("instance"), line.get("rules", feed.rules)) == (spec["instance"], feed.rules)
    ]
    by = partitions_of(lines_of(path), spec["instance"])
    for line in mine:
        for name, ts in line.get("progress", {}).items():
            done[name] = max(ts, done.get(name, 0))
    # As `pipeline.exchange.ahead` does it for other cuts: what was sent ahead of the checkpoint is left out.
    is_cut = bool(feed.config.tidegate.table_cuts)
    sent = {(line["row"], line["key"]) for line in lines_of(path) if "row" in line} if is_cut else set()
    beats = Beats(feed.beats_dir)
    control.send(Started(done))
    while True:
        floors = store_view.read_frontier(store)
        bounds = reading.read()
        rows: list[dict[str, Any]] = []
        moved: dict[str, int] = {}
        stripes = bounds.wanted
        ddl = floors.get(bounds.ddl_span, 0)
        frontier = store_view.lifted(floors, stripes, ddl, partial(store_view.read_manifest, store))
        for name, start_ts in bounds.spans.items():
            after = max(done.get(name, 0), start_ts)
            upto = min(frontier.get(name, 0), frontier.get(bounds.ddl_span, 0), bounds.bound)
            if upto <= after:
                continue
            manifest = store_view.read_manifest(store, name)
            if manifest.dropped_to > after or not store_view.pending(manifest, after, upto)[0]:
                continue
            if name in stripes and not store_view.has_any(
                store / name, manifest, after, upto, *stripes[name]
            ):
                continue
            known = schemas.upto(upto)
            for block in reader.read(store, name, after, upto, wanted=stripes.get):
                keys, stamps = block.column("key").to_pylist(), block.column("commit_ts").to_pylist()
                rows += [
                    {"row": ts, "key": key.hex(), "table": table, "by": by}
                    for ts, key in zip(stamps, keys, strict=True)
                    if (ts, key.hex()) not in sent
                    if (table := table_of(known, key, ts, feed)) is not None
                ]
            moved[name] = upto
        if moved:
            append(path, [*rows, {"progress": moved, "instance": feed.instance, "rules": feed.rules}])
            beats.beat()
            done |= moved
            control.send(Durable((first, second), moved, {"rows": len(rows)}))
        time.sleep(0.02)
