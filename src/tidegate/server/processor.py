"""One incarnation of a feed: its pipeline process, the files it is told by, and the owner's sink.

The grant is raised in the metadata store before anything else happens, so that whatever an earlier
incarnation still does is refused by the sink. The sink is opened next (a wrong topic shows at once, without
starting Spark), then the process is started. Blocking sink calls run in one thread, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from tidegate.codec.kv_json import KvMarks
from tidegate.codec.registry import codec_options, encoder
from tidegate.config import ReplicaConfig, SinkUri
from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.metadata import FeedId, Grant
from tidegate.disk import writing
from tidegate.model.ddl import DdlEvent
from tidegate.model.path_part import path_part
from tidegate.pipeline.feed import prove
from tidegate.server.schema_tracker import DDL_SPAN_ID, replace_file, spans_json
from tidegate.server.supervisor import Child, spawn
from tidegate.sink.base import OwnerSink, Sink, SinkFeed
from tidegate.sink.registry import sink_of

T = TypeVar("T")

CLOSE_S: Final = 2.0
"""How long the end of a sink's last call is waited for."""

OF_INCARNATIONS: Final = ("spec*.json", "start*.json", "spark*")
"""What lies in a feed's folder for one incarnation only."""

PipelineCommand = Callable[[Path], Sequence[str]]
"""The command line of a pipeline process, given its incarnation's spec."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a capture keeps its things; everything lies below `data_dir`."""

    data_dir: Path
    store: Path

    @property
    def metadata(self) -> Path:
        return self.data_dir / "metadata.db"

    @property
    def socket(self) -> Path:
        return self.data_dir / "control.sock"

    def feed(self, feed: FeedId) -> Path:
        """A feed's own folder."""
        return self.data_dir / "feeds" / path_part(feed.namespace) / path_part(feed.name)

    def rename_earlier(self) -> None:
        """Give folders of earlier releases, named as their feeds, the names that disks without case need."""
        feeds = self.data_dir / "feeds"
        for namespace in _folders(feeds):
            for folder in _folders(namespace):
                _rename_plain(folder)
            _rename_plain(namespace)


def _folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def _rename_plain(folder: Path) -> None:
    """No feed's name holds an equals sign, so that one in a folder's name says it is renamed already."""
    wanted = folder.with_name(path_part(folder.name))
    if "=" not in folder.name and wanted.name != folder.name and not wanted.exists():
        folder.rename(wanted)


class BarrierFile:
    """`barrier.json`: how far each span may go. Replaced atomically, only when something changed."""

    def __init__(
        self, path: Path, token: tuple[int, int], target_ts: int, ddl_span: str = DDL_SPAN_ID
    ) -> None:
        self._path, self._token, self._target, self._ddl_span = path, token, target_ts, ddl_span
        self._spans: dict[str, SpanTask] = {}
        self._spans_text = ""
        self._written = ""

    def write(self, bound: int, spans: dict[str, SpanTask], *, raise_starts: bool = False) -> None:
        """Tell bound and spans. A known span keeps the start it was told with, unless `raise_starts`.

        Raises DiskFull; then what was told before stands.
        """
        if raise_starts or spans.keys() != self._spans.keys() or not self._spans_text:
            kept = {} if raise_starts else self._spans
            self._spans = {name: kept.get(name, task) for name, task in spans.items()}
            self._spans_text = json.dumps(spans_json(self._spans.values()))
        text = (
            f'{{"token":[{self._token[0]},{self._token[1]}],"barrier_ts":{bound},"ddl_span":"{self._ddl_span}",'
            f'"target_ts":{self._target or "null"},"spans":{self._spans_text}}}'
        )
        if text != self._written:
            partial = self._path.with_suffix(".tmp")
            with writing(partial):
                partial.write_text(text)
            partial.replace(self._path)
            self._written = text


class SinkThread:
    """The one thread that calls an incarnation's sink, in order; tells what it is at, and how far it got."""

    def __init__(self, feed: FeedId) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{feed.name}")
        self.at = ""
        """What the call under way does, in words; empty: there is none."""
        self.answers = 0
        """How many messages and calls the sink has answered so far."""

    def call(self, what: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do it after all earlier calls."""
        return asyncio.get_running_loop().run_in_executor(self._pool, self._run, what, work)

    def send(self, sink: OwnerSink, events: Iterable[DdlEvent]) -> asyncio.Future[None]:
        """Deliver in order those that the journal does not hold already."""

        def work() -> None:
            for event in events:
                self.at = f"a DDL of ts {event.finished_ts}"
                sink.send_ddl(event, _now_ms())
                self.answers += 1

        return self.call("DDL", work)

    def end(self) -> None:
        """Take no more calls. One that is under way may take its time, in a thread that nobody waits for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, what: str, work: Callable[[], T]) -> T:
        self.at = what
        try:
            return work()
        finally:
            self.at = ""
            self.answers += 1


class Incarnation:
    """A running pipeline process and its owner's sink. Made by `start`, ended by `stop`, never reused."""

    def __init__(self, grant: Grant, child: Child, sink: OwnerSink, thread: SinkThread) -> None:
        self.grant, self.child = grant, child
        self._sink, self._thread = sink, thread
        self.ended = asyncio.create_task(child.wait())

    @property
    def resolved_journal(self) -> int:
        """The last Resolved the sink holds."""
        return self._sink.journal.resolved_ts

    async def send_ddl(self, batch: DdlBatch) -> None:
        """Deliver a batch's events in order."""
        await self._thread.send(self._sink, batch.events)

    async def send_resolved(self, ts: int) -> None:
        """Broadcast a Resolved."""
        await self._thread.call(f"Resolved {ts}", lambda: self._sink.send_resolved(ts, _now_ms()))

    async def forget(self, spans: Iterable[str]) -> None:
        """Delete the progress of spans that have ended for good."""
        await self._thread.call("the end of spans", lambda: self._sink.forget(spans))

    async def stop(self, grace_s: float) -> None:
        """End the process, then the sink.

        A sink that does not answer may take its time: after `CLOSE_S` its call is left behind, and what that
        still does is fenced by the next sink.
        """
        await self.child.stop(grace_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._thread.call("the end", self._sink.close)
        self._thread.end()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """What does not change between the incarnations of a feed."""

    cluster: int
    feed: FeedId
    uri: SinkUri
    config: ReplicaConfig
    instance: str
    paths: Paths
    load: bool = False
    """Whether the initial load comes first: `load.json` is there."""
    grant: Grant | None = None
    """Under which the owner's sink is opened."""

    @property
    def folder(self) -> Path:
        return self.paths.feed(self.feed)

    @property
    def slots(self) -> int:
        """Writers the pipeline may use at once."""
        # Twice the cores: Spark keeps a worker for reading descriptors and one for delivering per task.
        asked = self.config.tidegate.slots or 2 * (os.cpu_count() or 1)
        return self.sink.describe().at_once(asked)

    @property
    def sink(self) -> Sink:
        """Where the feed goes."""
        grant = (0, 0, 0) if self.grant is None else (*self.grant.token, self.grant.incarnation)
        who = self.cluster, self.feed.namespace, self.feed.name, self.instance
        return sink_of(SinkFeed(*who, self.uri, self.config, grant))

    def spec(self, grant: Grant) -> dict[str, Any]:
        """What an incarnation is told, in its `Grant.spec_file`."""
        return {
            "cluster_id": self.cluster,
            "namespace": self.feed.namespace,
            "id": self.feed.name,
            "sink_uri": self.uri.render(redact=False),
            "config": self.config.to_json(),
            "token": list(grant.token),
            "instance": grant.instance,
            "incarnation": grant.incarnation,
            "slots": grant.slots,
            "store_dir": str(self.paths.store),
            "metadata_path": str(self.paths.metadata),
            "socket_path": str(self.paths.socket),
            "load": self.load,
        }


OpenSink = Callable[[FeedPlan], OwnerSink]
"""Opens the owner's side of a feed's sink; blocks; raises TidegateError."""


def open_owner(plan: FeedPlan) -> OwnerSink:
    """The owner's side of the sink that the feed's URI names. Raises Fenced when the plan's grant is not the
    current one.
    """
    feed, grant = plan.feed, plan.grant
    assert grant is not None
    marks = encoder(codec_options(plan.config.codec_settings())) if plan.config.has_tables else KvMarks()
    return plan.sink.open_owner(marks, lambda: prove(plan.paths.metadata, plan.cluster, feed, grant))


async def start(
    plan: FeedPlan,
    grant: Grant,
    command: PipelineCommand,
    open_sink: OpenSink,
    thread: SinkThread,
    first: Sequence[DdlEvent] = (),
) -> Incarnation:
    """Open the sink, send what is `first`, start the process; `barrier.json` and `schema.bin` must be there.

    The grant must already be durable. `thread` is new. Raises TidegateError when the sink cannot be opened.
    """
    opening = thread.call("its opening", lambda: open_sink(replace(plan, grant=grant)))
    try:
        sink = await asyncio.shield(opening)
        await thread.send(sink, first)
        spec = await asyncio.to_thread(write_spec, plan, grant)
        child = await spawn("pipeline", command(spec), plan.folder / "log")
    except BaseException:
        opening.add_done_callback(_close_opened)
        thread.end()
        raise
    return Incarnation(grant, child, sink, thread)


def write_spec(plan: FeedPlan, grant: Grant) -> Path:
    """The spec of an incarnation, in a file of its own; what earlier ones had goes.

    A process of an earlier incarnation that wakes up must never read who it is from its successor's.
    """
    path = plan.folder / grant.spec_file
    for pattern in OF_INCARNATIONS:
        for earlier in plan.folder.glob(pattern):
            if earlier.is_dir():
                shutil.rmtree(earlier, ignore_errors=True)
            else:
                earlier.unlink(missing_ok=True)
    replace_file(path, json.dumps(plan.spec(grant)).encode(), mode=0o600)
    return path


def _close_opened(opening: asyncio.Future[OwnerSink]) -> None:
    """A sink whose incarnation never came to be is closed as soon as it is open."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
