"""What an incarnation is told: the files the control process writes, read at the edge of each process.

`spec-N-INSTANCE.json` tells incarnation N, and no other, who it is; a later one removes it. Were there one
file for all, a process that had been stopped and replaced would wake up as its successor. What N leaves for
itself is named like this, too: `start-durable-*.json`, `spark-*/`. `bounds.json` is replaced when spans
change, and while rows wait for the bound in it; without any, the bound there may be old. The grant lies in
the metadata store and is read from there, never from a file, since a fence must not be stale.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidegate.config.reading import config_from_json
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.control.metadata import SELECT_VALUE, FeedId, Grant, grant_key
from tidegate.errors import Fenced, Retryable
from tidegate.etcd.metadata import SCHEME, shared
from tidegate.eventstore.store_view import Wanted
from tidegate.model.position import Position
from tidegate.model.progress import TableRules
from tidegate.model.span import Span
from tidegate.pipeline.ahead import Ahead
from tidegate.sink.base import Sink, SinkFeed
from tidegate.sink.registry import sink_of
from tidegate.tidb.keys import stripe_ids

GRANT_READ_S = 10.0
LOAD_FILE = "load.json"
"""Beside the spec while the feed's initial load is not known to be durable."""
BEATS: Final = "beats"
"""Within the work folder of an incarnation."""


@dataclass(frozen=True, slots=True)
class DurableBefore:
    """What the workers of an incarnation must know of the sink's records as they were when it began.

    Above all what earlier incarnations have delivered beyond the offsets at which it begins.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    """Of the commit ts after a span's offset, what is out."""
    ahead: Ahead = field(default_factory=Ahead)
    topics: Mapping[str, int] = field(default_factory=dict)
    """How many partitions are written of each topic that the owner had fixed by then."""

    def to_json(self) -> dict[str, Any]:
        """As it is left for workers."""
        positions = {span: position.to_json() for span, position in self.positions.items()}
        return {"positions": positions, "ahead": self.ahead.to_json(), "topics": dict(self.topics)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> DurableBefore:
        """The inverse of `to_json`."""
        positions = {span: Position.from_json(place) for span, place in found["positions"].items()}
        return cls(positions, Ahead.from_json(found["ahead"]), found["topics"])


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """One incarnation of one changefeed's pipeline."""

    cluster_id: int
    namespace: str
    name: str
    sink_uri: SinkUri
    config: ReplicaConfig
    token: tuple[int, int]
    instance: str
    """What the feed's progress records carry; others belong to an earlier feed of the same name."""
    incarnation: int
    slots: int
    capture: str
    """Whose slots these are."""
    ranges: tuple[Span, ...]
    """What was granted when the incarnation began."""
    givers: Mapping[str, int]
    """Other captures whose slots are fenced, too: `Grant.givers`."""
    store_dir: Path
    feed_dir: Path
    metadata: str
    """Where the grant is read: the path of the SQLite file, or `etcd:ENDPOINTS`."""
    socket_path: Path
    loads: bool = False
    """Whether what `load.json` plans comes before the stream."""

    @classmethod
    def load(cls, path: Path) -> FeedSpec:
        """Read an incarnation's spec. Raises Fenced when a later one has taken its place."""
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise Fenced(
                "This incarnation of the changefeed has been replaced.",
                where=str(path),
                why="its spec is gone: the next incarnation removes it",
            ) from error
        except ValueError as error:
            raise _damaged(path, error) from error
        return cls.from_json(found, path.parent)

    @classmethod
    def from_json(cls, found: Mapping[str, Any], feed_dir: Path) -> FeedSpec:
        """As the control process wrote it, into the changefeed's folder."""
        uri = parse_sink_uri(found["sink_uri"])
        return cls(
            cluster_id=found["cluster_id"],
            namespace=found["namespace"],
            name=found["id"],
            sink_uri=uri,
            config=config_from_json(found["config"]),
            token=_pair(found["token"]),
            instance=found["instance"],
            incarnation=found["incarnation"],
            slots=found["slots"],
            capture=found["capture"],
            ranges=tuple(Span(bytes.fromhex(start), bytes.fromhex(end)) for start, end in found["ranges"]),
            givers=found["givers"],
            store_dir=Path(found["store_dir"]),
            feed_dir=feed_dir,
            metadata=found["metadata"],
            socket_path=Path(found["socket_path"]),
            loads=found.get("load", False),
        )

    @property
    def changefeed(self) -> str:
        """`namespace/id`."""
        return f"{self.namespace}/{self.name}"

    @property
    def rules(self) -> str:
        """What records of spans are kept under: the digest of `table_rules`, or empty in a feed of keys."""
        return "" if self.table_rules is None else self.table_rules.digest

    @property
    def table_rules(self) -> TableRules | None:
        """Which tables it follows, in which spans; None in a feed of keys."""
        return rules_of(self.config)

    @property
    def path(self) -> Path:
        """Where it is written; gone when a later incarnation has taken its place."""
        return self.feed_dir / self._grant.spec_file

    @property
    def work_dir(self) -> Path:
        """For what the incarnation's processes leave while they run."""
        return self.feed_dir / self._grant.work_folder

    @property
    def _grant(self) -> Grant:
        return Grant(self.instance, self.token, self.incarnation, self.slots)

    @property
    def durable_file(self) -> Path:
        """Where whoever begins the incarnation notes what earlier ones have delivered beyond its starts."""
        return self.feed_dir / f"start-durable-{self.incarnation}-{self.instance}.json"

    def durable(self) -> DurableBefore | None:
        """What `durable_file` says; None without it."""
        try:
            found = json.loads(self.durable_file.read_text())
        except FileNotFoundError:
            return None
        return DurableBefore.from_json(found)

    @property
    def beats_dir(self) -> Path:
        """Where the processes of this incarnation show that they get something done: `pipeline.beats`."""
        return self.work_dir / BEATS

    @property
    def sink(self) -> Sink:
        """Where the feed's rows go."""
        grant = (*self.token, self.incarnation)
        who = self.cluster_id, self.namespace, self.name, self.instance
        return sink_of(SinkFeed(*who, self.sink_uri, self.config, grant, self.capture, self.feed_dir))

    @property
    def writers(self) -> dict[str, int]:
        """Whom this incarnation fences when it begins: captures, each with its slots."""
        return {**self.givers, self.capture: self.slots}

    def prove(self) -> None:
        """Return if this incarnation is the current one by the metadata store, else raise Fenced."""
        self.granted()

    def granted(self) -> tuple[Span, ...]:
        """The ranges that this incarnation may write now, by the metadata store; else raises Fenced."""
        feed = FeedId(self.namespace, self.name)
        found = prove(self.metadata, self.cluster_id, feed, self.capture, self._grant)
        return tuple(one.id for one in found.ranges)


def rules_of(config: ReplicaConfig) -> TableRules | None:
    """Which tables a feed with these settings follows, in which spans; None for a feed of keys."""
    if not config.has_tables:
        return None
    width = max(1, config.tidegate.ids_per_stripe)
    patterns = tuple(config.filter.rules or ("*.*",))
    return TableRules(patterns, config.case_sensitive, config.force_replicate, width)


def prove(metadata: str, cluster: int, feed: FeedId, capture: str, mine: Grant) -> Grant:
    """A capture's grant as it is now, if it still is of this incarnation, else raises Fenced."""
    grant = read_grant(metadata, cluster, feed, capture)
    if grant is None or not mine.is_proven_by(grant):
        raise Fenced(
            "Another incarnation of this changefeed writes now.",
            where=f"changefeed {feed}",
            why=f"granted: {grant}; this process: {mine}",
        )
    return grant


def read_grant(metadata: str, cluster: int, feed: FeedId, capture: str) -> Grant | None:
    """A capture's grant as committed now. Raises Retryable when the metadata store cannot be read."""
    key = grant_key(cluster, feed, capture)
    if metadata.startswith(SCHEME):
        found = shared(metadata).get(key)
        return None if found is None else Grant.from_bytes(found.value)
    try:
        connection = sqlite3.connect(f"file:{metadata}?mode=ro", uri=True, timeout=GRANT_READ_S)
        try:
            row = connection.execute(SELECT_VALUE, (key,)).fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise Retryable("The grant cannot be read.", where=metadata, why=str(error)) from error
    return Grant.from_bytes(row[0]) if row else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far each span may be delivered, and which spans there are, as the control process has decided it.

    The owner's barrier (`control/barrier.py`) is the reason for `bound`; a worker knows only the result.
    """

    bound: int
    """No span goes past this ts."""
    ddl_span: str
    spans: dict[str, int]
    """Span id to the ts its rows begin after."""
    wanted: dict[str, Wanted] = field(default_factory=dict)
    """By stripe (`SpanTask.wanted`)."""

    @classmethod
    def load(cls, path: Path) -> Bounds:
        """Read `bounds.json`."""
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise _damaged(path, error) from error
        return cls.from_json(found)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Bounds:
        """As the control process wrote it."""
        spans = {name: span["start_ts"] for name, span in found["spans"].items()}
        wanted = {
            name: (stripe_ids(Span(bytes.fromhex(one["start"]), bytes.fromhex(one["end"]))).start, bits)
            for name, one in found["spans"].items()
            if (bits := int(one.get("wanted", "0"), 16))
        }
        return cls(found["bound"], found["ddl_span"], spans, wanted)


def _damaged(path: Path, error: ValueError) -> Retryable:
    """A loss of power has cut a file; the control process writes another for the next incarnation."""
    return Retryable("The pipeline's orders file is damaged.", where=str(path), why=str(error))


def _pair(found: Any) -> tuple[int, int]:
    first, second = found
    return int(first), int(second)
