"""The part of a changefeed that is the same for all incarnations, and the files that the application reads.

`spec-*.json` identifies an incarnation and is removed when the next one is written. `bounds.json` and
`bound.json` say how far the incarnation may deliver and are replaced whenever that changes.
`pipeline.exchange.feed` has the classes, and reads all of them.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.config.reading import config_from_json
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.control.barrier import SpanTask
from tidegate.control.grants import Grant
from tidegate.control.metadata import FeedId, FeedInfo
from tidegate.control.open_spans import OpenSpans
from tidegate.disk import replace_file, writing
from tidegate.model.path_part import path_part
from tidegate.model.ts_by_span import SpanOrder
from tidegate.pipeline.exchange.feed import BOUND_FILE, FeedSpec
from tidegate.server.catalogue.catalogues import DDL_SPAN_ID
from tidegate.server.catalogue.stripes import span_front, spans_text
from tidegate.sink.base import Sink, SinkFeed
from tidegate.sink.registry import sink_of

OF_INCARNATIONS: Final = ("spec*.json", "start*.json", "spark*")
"""The files in a feed's folder that belong to one incarnation only."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The files and folders of a capture, all below `data_dir`."""

    data_dir: Path
    store: Path

    @property
    def metadata(self) -> Path:
        return self.data_dir / "metadata.db"

    @property
    def socket(self) -> Path:
        return self.data_dir / "control.sock"

    @property
    def application(self) -> Path:
        """The application's own folder, with Spark's files."""
        return self.data_dir / "application"

    def feed(self, feed: FeedId) -> Path:
        """A feed's own folder."""
        return self.data_dir / "feeds" / path_part(feed.namespace) / path_part(feed.name)

    def rename_earlier(self) -> None:
        """Rename folders of earlier releases, which had the feeds' plain names, to case-safe names."""
        feeds = self.data_dir / "feeds"
        for namespace in _folders(feeds):
            for folder in _folders(namespace):
                _rename_plain(folder)
            _rename_plain(namespace)


def _folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def _rename_plain(folder: Path) -> None:
    """No feed's name contains an equals sign, so a folder's name with one was renamed before."""
    wanted = folder.with_name(path_part(folder.name))
    if "=" not in folder.name and wanted.name != folder.name and not wanted.exists():
        folder.rename(wanted)


class BoundsChange(NamedTuple):
    """A file to be replaced, and what readers know then."""

    path: Path
    text: str
    spans_text: str
    number: str
    bound: int


class BoundsFile:
    """`bounds.json` and `bound.json`: up to which ts each span may go (`exchange.feed.BoundsReader`). Each is
    replaced atomically, and only if a reader needs the change.

    Replacing a file costs more than the rest of a tick, and a feed's bound may move 20 times a second. It
    also waits for the disk. So `due` says what to write, and `put` may be called in another thread.
    """

    def __init__(self, path: Path, token: tuple[int, int], ddl_span: str = DDL_SPAN_ID) -> None:
        self._path, self._token, self._ddl_span = path, token, ddl_span
        self._spans: dict[str, SpanTask] = {}
        self._starts: dict[str, int] = {}
        """The start of each span in `_spans_text`."""
        self._fronts: list[str] = []
        """The text of each span up to its start, in the order."""
        self._order: SpanOrder | None = None
        """The order of the spans that were taken last: while it is the same, no span is another."""
        self._spans_text = self._sent_spans = self._sent_number = ""
        self._sent_bound = 0
        # Random: a bound that an earlier incarnation has written must not count for the spans of this one.
        self._numbers = (f"{secrets.token_hex(8)}-{number}" for number in count(1))
        self._putting = threading.Lock()
        self._is_closed = False

    def due(
        self, bound: int, spans: OpenSpans, *, raise_starts: bool = False, idle: bool = False
    ) -> BoundsChange | None:
        """The file to write for these bound and spans; None: no reader needs a change.

        A known span keeps the start that was written first, unless `raise_starts`. `idle`: every row at or
        below the bound is durable. The bound is then written only together with other spans, or later when
        there are rows.
        """
        if raise_starts or not self._spans_text or spans.order is not self._order:
            self._take(spans, raise_starts=raise_starts)
        if self._spans_text != self._sent_spans:
            number = next(self._numbers)
            text = (
                f'{{"token":[{self._token[0]},{self._token[1]}],"number":"{number}","bound":{bound},'
                f'"ddl_span":"{self._ddl_span}","spans":{self._spans_text}}}'
            )
            return BoundsChange(self._path, text, self._spans_text, number, bound)
        if idle or bound == self._sent_bound:
            return None
        text = f'{{"number":"{self._sent_number}","bound":{bound}}}'
        later = self._path.with_name(BOUND_FILE)
        return BoundsChange(later, text, self._sent_spans, self._sent_number, bound)

    def put(self, change: BoundsChange) -> None:
        """Make the last change that was due, unless closed. Blocks. Raises DiskFull; the earlier file then
        stays as it is.
        """
        # Its own name: an earlier file that was closed may still be written by another thread.
        partial = change.path.with_name(f"{change.path.stem}-{change.number}.tmp")
        with writing(partial):
            partial.write_text(change.text)
        with self._putting:
            if self._is_closed:
                partial.unlink(missing_ok=True)
                return
            # Not synced: after a loss of power the next incarnation writes the files again.
            partial.replace(change.path)
            # Only after the replacement: a change that found no disk space must be due again at a later tick.
            self._sent_spans, self._sent_number = change.spans_text, change.number
            self._sent_bound = change.bound

    def close(self) -> None:
        """Write no more: the next incarnation's files have the same paths. Does not wait for the text of a
        `put` to be written: its caller holds up the loop of all changefeeds.
        """
        with self._putting:
            self._is_closed = True

    def remove_partial(self) -> None:
        """Remove what a process that died while it wrote has left."""
        for partial in self._path.parent.glob("bound*-*.tmp"):
            partial.unlink(missing_ok=True)

    def _take(self, spans: OpenSpans, *, raise_starts: bool) -> None:
        """Take the spans as they are now, if they are others than those taken last, or to raise starts."""
        is_new = False
        if spans.order is not self._order:
            tasks = {name: spans.task(name) for name in spans.order.names}
            is_new = not self._spans_text or self._are_others(tasks)
            self._order, self._spans, self._fronts = spans.order, tasks, list(map(span_front, tasks.values()))
        if is_new or raise_starts:
            # From time to time, for up to a thousand spans: only the starts are put into their texts.
            before = {} if raise_starts else self._starts
            at = zip(spans.order.names, spans.durable_ts, strict=True)
            self._starts = {name: before.get(name, ts) for name, ts in at}
            self._spans_text = spans_text(self._fronts, self._starts.values())

    def _are_others(self, spans: dict[str, SpanTask]) -> bool:
        """Whether the spans, or the wanted tables of one, differ from those that were written last."""
        if spans.keys() != self._spans.keys():
            return True
        return any(task.wanted != self._spans[name].wanted for name, task in spans.items())


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """The settings that do not change between the incarnations of a feed."""

    cluster: int
    feed: FeedId
    uri: SinkUri
    config: ReplicaConfig
    instance: str
    paths: Paths
    capture: str
    """The capture whose writers deliver; it is part of their names."""
    load: bool = False
    """Whether the initial load comes first, as planned in `load.json`."""
    grant: Grant | None = None
    """The grant under which the owner's sink is opened."""
    shared: str = ""
    """The shared metadata store as `etcd:ENDPOINTS`; empty: it is the file of `paths`."""

    @classmethod
    def of(
        cls, cluster: int, feed: FeedId, info: FeedInfo, paths: Paths, capture: str, shared: str = ""
    ) -> FeedPlan:
        """The plan of a stored feed."""
        uri, config = parse_sink_uri(info.sink_uri), config_from_json(info.config)
        return cls(cluster, feed, uri, config, info.instance, paths, capture, shared=shared)

    @classmethod
    def sink_of(cls, cluster: int, feed: FeedId, uri: SinkUri, config: ReplicaConfig, paths: Paths) -> Sink:
        """The sink of a feed that is not stored yet, to read its description."""
        return cls(cluster, feed, uri, config, "", paths, "").sink

    @property
    def metadata(self) -> str:
        """The place from which workers read grants."""
        return self.shared or str(self.paths.metadata)

    @property
    def folder(self) -> Path:
        return self.paths.feed(self.feed)

    def slots(self, cores: int) -> int:
        """The most writers that the pipeline may use at the same time on a machine."""
        # One for each worker except spares, so that no worker takes another's slot (`timetable.workers_for`).
        return self.sink.describe().at_once(self.config.tidegate.slots or 2 * cores + 2)

    @property
    def sink(self) -> Sink:
        """The sink to which the feed is delivered."""
        grant = (0, 0, 0) if self.grant is None else (*self.grant.token, self.grant.incarnation)
        who = self.cluster, self.feed.namespace, self.feed.name, self.instance
        return sink_of(SinkFeed(*who, self.uri, self.config, grant, self.capture, self.folder))

    def spec(self, grant: Grant) -> FeedSpec:
        """The spec of an incarnation, for the application and its workers."""
        return FeedSpec(
            cluster_id=self.cluster,
            namespace=self.feed.namespace,
            name=self.feed.name,
            sink_uri=self.uri,
            config=self.config,
            token=grant.token,
            instance=grant.instance,
            incarnation=grant.incarnation,
            slots=grant.slots,
            capture=self.capture,
            ranges=tuple(one.id for one in grant.ranges),
            givers=grant.givers,
            store_dir=self.paths.store,
            feed_dir=self.folder,
            metadata=self.metadata,
            socket_path=self.paths.socket,
            loads=self.load,
        )


def write_spec(plan: FeedPlan, grant: Grant) -> Path:
    """Write the spec of an incarnation to a file of its own; remove the files of earlier incarnations.

    The name is new each time, because a process of an earlier incarnation that wakes up must never read the
    spec of its successor and take it for its own.
    """
    path = plan.folder / grant.spec_file
    for pattern in OF_INCARNATIONS:
        for earlier in plan.folder.glob(pattern):
            if earlier.is_dir():
                shutil.rmtree(earlier, ignore_errors=True)
            else:
                earlier.unlink(missing_ok=True)
    # Readable by its owner only, because the sink's URI in it has the password.
    replace_file(path, json.dumps(plan.spec(grant).to_json()).encode(), mode=0o600)
    return path


def folders_used(paths: Paths, cluster: int, metadata: str) -> Iterator[FeedId]:
    """The changefeeds that have a folder with the spec of an incarnation in it, which this capture ran for
    these metadata (`FeedPlan.metadata`). Folders of other metadata are left alone.
    """
    for path in sorted((paths.data_dir / "feeds").glob("*/*/spec-*.json")):
        try:
            found = json.loads(path.read_text())
            feed = FeedId(found["namespace"], found["id"])
            is_ours = (found["cluster_id"], found["metadata"]) == (cluster, metadata)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a torn file of an incarnation that never began
        if is_ours and paths.feed(feed) == path.parent:
            yield feed
