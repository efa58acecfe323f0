"""What a changefeed's incarnations have in common, and the files that tell the application what to do.

`spec-*.json` says who it is, and goes when the next incarnation is told; `bounds.json` how far it may go,
and is replaced whenever that changes (`pipeline.feed` reads both).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidegate.config.reading import config_from_json
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.control.barrier import SpanTask
from tidegate.control.metadata import FeedId, FeedInfo, Grant
from tidegate.disk import replace_file, writing
from tidegate.model.path_part import path_part
from tidegate.server.catalogues import DDL_SPAN_ID
from tidegate.server.stripes import spans_json
from tidegate.sink.base import Sink, SinkFeed
from tidegate.sink.registry import sink_of

OF_INCARNATIONS: Final = ("spec*.json", "start*.json", "spark*")
"""What lies in a feed's folder for one incarnation only."""


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

    @property
    def application(self) -> Path:
        """The application's own folder, with Spark's files."""
        return self.data_dir / "application"

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


class BoundsFile:
    """`bounds.json`: how far each span may go. Replaced atomically, only when a reader can do with it.

    Replacing a file costs more than the rest of a tick, and a feed's bound moves up to 20 times a second.
    """

    def __init__(self, path: Path, token: tuple[int, int], ddl_span: str = DDL_SPAN_ID) -> None:
        self._path, self._token, self._ddl_span = path, token, ddl_span
        self._spans: dict[str, SpanTask] = {}
        self._spans_text = self._sent_spans = self._sent = ""

    def write(
        self, bound: int, spans: dict[str, SpanTask], *, raise_starts: bool = False, idle: bool = False
    ) -> None:
        """Tell bound and spans. A known span keeps the start it was told with, unless `raise_starts`.

        `idle`: no row that is not durable lies below the bound. It is then told with the next other spans, or
        once there are rows. Raises DiskFull; then what was told before stands.
        """
        if raise_starts or not self._spans_text or self._are_others(spans):
            starts = {} if raise_starts else {name: task.start_ts for name, task in self._spans.items()}
            self._spans = {
                name: replace(task, start_ts=starts.get(name, task.start_ts)) for name, task in spans.items()
            }
            self._spans_text = json.dumps(spans_json(self._spans.values()))
        if idle and self._spans_text == self._sent_spans:
            return
        text = (
            f'{{"token":[{self._token[0]},{self._token[1]}],"bound":{bound},"ddl_span":"{self._ddl_span}",'
            f'"spans":{self._spans_text}}}'
        )
        if text != self._sent:
            partial = self._path.with_suffix(".tmp")
            with writing(partial):
                partial.write_text(text)
            partial.replace(self._path)
            self._sent, self._sent_spans = text, self._spans_text

    def _are_others(self, spans: dict[str, SpanTask]) -> bool:
        """Whether these are other spans than were told, or other tables are wanted of one."""
        if spans.keys() != self._spans.keys():
            return True
        return any(task.wanted != self._spans[name].wanted for name, task in spans.items())


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """What does not change between the incarnations of a feed."""

    cluster: int
    feed: FeedId
    uri: SinkUri
    config: ReplicaConfig
    instance: str
    paths: Paths
    capture: str
    """Whose writers the pipeline's are."""
    load: bool = False
    """Whether the initial load comes first: `load.json` is there."""
    grant: Grant | None = None
    """Under which the owner's sink is opened."""
    shared: str = ""
    """Where several captures keep their metadata, as `etcd:ENDPOINTS`; empty: in the file of `paths`."""

    @classmethod
    def of(
        cls, cluster: int, feed: FeedId, info: FeedInfo, paths: Paths, capture: str, shared: str = ""
    ) -> FeedPlan:
        """That of a feed as it is stored."""
        uri, config = parse_sink_uri(info.sink_uri), config_from_json(info.config)
        return cls(cluster, feed, uri, config, info.instance, paths, capture, shared=shared)

    @classmethod
    def sink_of(cls, cluster: int, feed: FeedId, uri: SinkUri, config: ReplicaConfig, paths: Paths) -> Sink:
        """The sink of a feed that is not stored yet, to be asked what it is."""
        return cls(cluster, feed, uri, config, "", paths, "").sink

    @property
    def metadata(self) -> str:
        """Where grants are read."""
        return self.shared or str(self.paths.metadata)

    @property
    def folder(self) -> Path:
        return self.paths.feed(self.feed)

    def slots(self, cores: int) -> int:
        """Writers the pipeline may use at once on a machine."""
        # One for each worker there is without spares, so that none takes another's (`timetable.workers_for`).
        return self.sink.describe().at_once(self.config.tidegate.slots or 2 * cores + 2)

    @property
    def sink(self) -> Sink:
        """Where the feed goes."""
        grant = (0, 0, 0) if self.grant is None else (*self.grant.token, self.grant.incarnation)
        who = self.cluster, self.feed.namespace, self.feed.name, self.instance
        return sink_of(SinkFeed(*who, self.uri, self.config, grant, self.capture, self.folder))

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
            "capture": self.capture,
            "ranges": [[one.id.start.hex(), one.id.end.hex()] for one in grant.ranges],
            "givers": dict(grant.givers),
            "store_dir": str(self.paths.store),
            "metadata": self.metadata,
            "socket_path": str(self.paths.socket),
            "load": self.load,
        }


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
