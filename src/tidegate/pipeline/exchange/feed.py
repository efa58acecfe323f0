"""The files that the control process writes for an incarnation, and the grant. Each process reads them
itself.

`spec-N-INSTANCE.json` is the spec of incarnation N; a later incarnation removes it. If all incarnations
shared one file, a process that was stopped and replaced would wake up and take its successor's identity. The
other files of incarnation N have such names, too: `start-durable-*.json`, `spark-*/`.

The control process replaces `bounds.json` when spans change. While rows wait for a higher bound, it replaces
`bound.json`, which has no spans, so the cost does not grow with the tables that are wanted. While no rows
wait, the bound may be old. The grant is read from the metadata store, never from a file, because a fence must
not depend on stale data.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tidegate.config.reading import config_from_json
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.control.grants import Grant
from tidegate.control.metadata import SELECT_VALUE, FeedId, grant_key
from tidegate.errors import Fenced, Retryable
from tidegate.etcd.metadata import SCHEME, shared
from tidegate.eventstore.store_view import Wanted
from tidegate.model.position import Position
from tidegate.model.progress import TableRules
from tidegate.model.span import Span
from tidegate.pipeline.exchange.ahead import Ahead
from tidegate.sink.base import Sink, SinkFeed
from tidegate.sink.registry import sink_of
from tidegate.tidb.keys import stripe_ids

GRANT_READ_S = 10.0
SETTLES_NS: Final = 1_000_000_000
"""Times of files have steps of some milliseconds: after this long another file has another time."""
LOAD_FILE = "load.json"
"""The plan of the initial load, in the folder of the spec until the load is known to be durable."""
BOUND_FILE: Final = "bound.json"
"""A later bound for the spans of `bounds.json`, next to it."""
BEATS: Final = "beats"
"""The folder of beats, in the work folder of an incarnation."""


@dataclass(frozen=True, slots=True)
class DurableBefore:
    """The part of the sink's records at the begin of an incarnation that its workers need.

    Above all, it says what earlier incarnations have delivered beyond the ts at which this one begins.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    """For each span, the position up to which the commit ts after its start ts is delivered."""
    ahead: Ahead = field(default_factory=Ahead)
    topics: Mapping[str, int] = field(default_factory=dict)
    """The number of partitions of each topic that the owner had recorded by then."""

    def to_json(self) -> dict[str, Any]:
        """The content of `FeedSpec.durable_file`."""
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
    """A word in the feed's progress records; records with another one belong to an earlier feed of the
    name."""
    incarnation: int
    slots: int
    capture: str
    """The capture that has these slots."""
    ranges: tuple[Span, ...]
    """The ranges granted when the incarnation began."""
    givers: Mapping[str, int]
    """Other captures whose slots are fenced, too, each with their number: `Grant.givers`."""
    store_dir: Path
    feed_dir: Path
    metadata: str
    """Where the grant is read: the path of the SQLite file, or `etcd:ENDPOINTS`."""
    socket_path: Path
    loads: bool = False
    """Whether the initial load planned in `load.json` comes before the stream."""

    @classmethod
    def load(cls, path: Path) -> FeedSpec:
        """Read an incarnation's spec. Raises Fenced when a later one has taken its place."""
        try:
            return cls.from_json(json.loads(path.read_text()), path.parent)
        except FileNotFoundError as error:
            raise Fenced(
                "this incarnation of the changefeed has been replaced",
                where=str(path),
                why="its spec is gone: the next incarnation removes it",
            ) from error
        except ValueError as error:
            raise _damaged(path, error) from error

    def to_json(self) -> dict[str, Any]:
        """The content of the spec file. It has the passwords of the sink."""
        return {
            "cluster_id": self.cluster_id,
            "namespace": self.namespace,
            "id": self.name,
            "sink_uri": self.sink_uri.render(redact=False),
            "config": self.config.to_json(),
            "token": list(self.token),
            "instance": self.instance,
            "incarnation": self.incarnation,
            "slots": self.slots,
            "capture": self.capture,
            "ranges": [[one.start.hex(), one.end.hex()] for one in self.ranges],
            "givers": dict(self.givers),
            "store_dir": str(self.store_dir),
            "metadata": self.metadata,
            "socket_path": str(self.socket_path),
            "load": self.loads,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], feed_dir: Path) -> FeedSpec:
        """The inverse of `to_json`. Raises ValueError if a member is missing or has another form."""
        try:
            return cls(
                cluster_id=found["cluster_id"],
                namespace=found["namespace"],
                name=found["id"],
                sink_uri=parse_sink_uri(found["sink_uri"]),
                config=config_from_json(found["config"]),
                token=_pair(found["token"]),
                instance=found["instance"],
                incarnation=found["incarnation"],
                slots=found["slots"],
                capture=found["capture"],
                ranges=tuple(
                    Span(bytes.fromhex(start), bytes.fromhex(end)) for start, end in found["ranges"]
                ),
                givers=found["givers"],
                store_dir=Path(found["store_dir"]),
                feed_dir=feed_dir,
                metadata=found["metadata"],
                socket_path=Path(found["socket_path"]),
                loads=found.get("load", False),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the spec has another form: {error!r}") from error

    @property
    def changefeed(self) -> str:
        """`namespace/id`."""
        return f"{self.namespace}/{self.name}"

    @property
    def rules(self) -> str:
        """The part of the records' keys that names the rules: the digest of `table_rules`; empty without."""
        return "" if self.table_rules is None else self.table_rules.digest

    @property
    def table_rules(self) -> TableRules | None:
        """Which tables the feed follows, in which spans. None in a feed of keys."""
        return rules_of(self.config)

    @property
    def path(self) -> Path:
        """The file of this spec. It is gone when a later incarnation has replaced this one."""
        return self.feed_dir / self._grant.spec_file

    @property
    def work_dir(self) -> Path:
        """The folder for files of the incarnation's processes while they run."""
        return self.feed_dir / self._grant.work_folder

    @property
    def _grant(self) -> Grant:
        return Grant(self.instance, self.token, self.incarnation, self.slots)

    @property
    def durable_file(self) -> Path:
        """The file with what earlier incarnations have delivered beyond the starts, written at the begin."""
        return self.feed_dir / f"start-durable-{self.incarnation}-{self.instance}.json"

    def durable(self) -> DurableBefore | None:
        """The content of `durable_file`; None without the file."""
        try:
            found = json.loads(self.durable_file.read_text())
        except FileNotFoundError:
            return None
        return DurableBefore.from_json(found)

    @property
    def beats_dir(self) -> Path:
        """The folder where the processes of this incarnation write their beats: `pipeline.exchange.beats`."""
        return self.work_dir / BEATS

    @property
    def sink(self) -> Sink:
        """The sink of the feed."""
        grant = (*self.token, self.incarnation)
        who = self.cluster_id, self.namespace, self.name, self.instance
        return sink_of(SinkFeed(*who, self.sink_uri, self.config, grant, self.capture, self.feed_dir))

    @property
    def writers(self) -> dict[str, int]:
        """The writers that this incarnation fences when it begins: captures, each with its number
        of slots.
        """
        # docs/guarantees.md#nothing-is-doubled: givers as well, which may not know yet that they have lost
        # ranges.
        return {**self.givers, self.capture: self.slots}

    def prove(self) -> None:
        """Raise Fenced unless this incarnation is the current one by the metadata store."""
        self.granted()

    def granted(self) -> tuple[Span, ...]:
        """The ranges that this incarnation may write now. Raises Fenced if it is not the current one."""
        feed = FeedId(self.namespace, self.name)
        # Read each time: a grant that was read before may have been replaced since then.
        found = prove(self.metadata, self.cluster_id, feed, self.capture, self._grant)
        return tuple(one.id for one in found.ranges)


def rules_of(config: ReplicaConfig) -> TableRules | None:
    """Which tables a feed with these settings follows, in which spans. None for a feed of keys."""
    if not config.has_tables:
        return None
    width = max(1, config.tidegate.ids_per_stripe)
    patterns = tuple(config.filter.rules or ("*.*",))
    return TableRules(patterns, config.case_sensitive, config.force_replicate, width)


def prove(metadata: str, cluster: int, feed: FeedId, capture: str, mine: Grant) -> Grant:
    """A capture's grant as it is now. Raises Fenced if it is no longer the grant of this incarnation."""
    grant = read_grant(metadata, cluster, feed, capture)
    # docs/guarantees.md#a-zombie-writes-nothing-that-a-reader-sees
    if grant is None or not mine.is_proven_by(grant):
        raise Fenced(
            "another incarnation of this changefeed writes now",
            where=f"changefeed {feed}",
            why=f"granted: {grant}; this process: {mine}",
        )
    return grant


def read_grant(metadata: str, cluster: int, feed: FeedId, capture: str) -> Grant | None:
    """A capture's grant as it is committed now. Raises Retryable if the metadata store cannot be read."""
    key = grant_key(cluster, feed, capture)
    if metadata.startswith(SCHEME):
        found = shared(metadata).get(key)
        return None if found is None else Grant.from_bytes(found.value)
    try:
        # A new connection for each read: it sees what is committed now, and no forked process inherits it.
        connection = sqlite3.connect(f"file:{metadata}?mode=ro", uri=True, timeout=GRANT_READ_S)
        try:
            row = connection.execute(SELECT_VALUE, (key,)).fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise Retryable("the grant cannot be read", where=metadata, why=str(error)) from error
    return Grant.from_bytes(row[0]) if row else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far each span may be delivered, and which spans there are, as decided by the control process.

    `bound` follows from the owner's barrier (`control/barrier.py`); a worker sees only the result.
    """

    bound: int
    """No span may be delivered past this ts."""
    ddl_span: str
    spans: dict[str, int]
    """The start ts of each span id: its rows have a later commit ts."""
    wanted: dict[str, Wanted] = field(default_factory=dict)
    """The tables wanted in each stripe (`SpanTask.wanted`)."""

    @classmethod
    def load(cls, path: Path) -> Bounds:
        """Read `bounds.json` and `bound.json` once."""
        return BoundsReader(path).read()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Bounds:
        """From the content of the file. Raises ValueError if a member is missing or has another form."""
        try:
            spans = {name: span["start_ts"] for name, span in found["spans"].items()}
            wanted = {
                name: (stripe_ids(Span(bytes.fromhex(one["start"]), bytes.fromhex(one["end"]))).start, bits)
                for name, one in found["spans"].items()
                # A span of a single table has no bits: all of its rows are wanted.
                if (bits := int(one.get("wanted", "0"), 16))
            }
            return cls(found["bound"], found["ddl_span"], spans, wanted)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the bounds have another form: {error!r}") from error


class BoundsReader:
    """Reads the bounds of a changefeed any number of times, from several threads if need be.

    `bounds.json` has a number. `bound.json` names that number, and its bound counts only for the spans of
    that file: up to a later bound other tables may be wanted, whose rows would be left out for good. The
    spans are parsed only if their file was replaced.
    """

    def __init__(self, path: Path) -> None:
        """`path`: that of `bounds.json`."""
        self._path, self._later_path = path, path.with_name(BOUND_FILE)
        # Strings: half the price of a path, and there are hundreds of calls a second.
        self._names = str(path), str(self._later_path)
        self._known: tuple[object, str, Bounds] | None = None
        """The mark of the file when it was read, its number, and its content."""
        self._checked: tuple[object, str] | None = None
        """The mark of the file, and the other number that `bound.json` had, when the file was last read again
        because of that number.
        """

    @property
    def mark(self) -> object:
        """Changes whenever one of the files was replaced."""
        first, second = self._names
        return _mark(first), _mark(second)

    def read(self) -> Bounds:
        """The bounds as they are now. Raises Retryable if `bounds.json` is damaged."""
        # Before the mark: the content is that of a file which was there at this time, or of a later one.
        begun_ns = time.time_ns()
        mark, known = _mark(self._names[0]), self._known
        is_new = known is None or known[0] != mark
        if known is None or is_new:
            known = self._known = mark, *self._read_spans()
        # After the spans: if they are replaced meanwhile, a later bound names another number.
        number, bound = self._read_later()
        if number != known[1] and not is_new and self._checked != (mark, number):
            # Usually the spans have just changed. But a mark may also come again, after two changes at once.
            known = self._known = mark, *self._read_spans()
            # Without rows `bound.json` may keep an earlier number for hours, and the file of a thousand spans
            # takes a millisecond to read.
            self._checked = (mark, number) if _is_settled(mark, begun_ns) else None
        _, own, bounds = known
        return replace(bounds, bound=bound) if number and number == own else bounds

    def _read_spans(self) -> tuple[str, Bounds]:
        """The number of `bounds.json`, and its content."""
        try:
            found = json.loads(self._path.read_text())
            return found.get("number", ""), Bounds.from_json(found)
        except (ValueError, AttributeError) as error:
            raise _damaged(self._path, error) from error

    def _read_later(self) -> tuple[str, int]:
        """The content of `bound.json`. The number is empty if there is no such file, or a loss of power has
        truncated it. Then the bound in the other file counts.
        """
        try:
            found = json.loads(self._later_path.read_text())
            return str(found["number"]), int(found["bound"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", 0


def _mark(name: str) -> object:
    """Changes whenever a file is replaced; None: there is none."""
    try:
        found = os.stat(name)  # noqa: PTH116
    except FileNotFoundError:
        return None
    # The inode alone would not do, because the file system may give that of the old file to the new one.
    return found.st_ino, found.st_mtime_ns, found.st_size


def _is_settled(mark: object, now_ns: int) -> bool:
    """Whether a file was so old then that one that replaces it from then on has another mark."""
    return isinstance(mark, tuple) and mark[1] < now_ns - SETTLES_NS


def _damaged(path: Path, error: Exception) -> Retryable:
    """A loss of power has truncated a file. The control process writes it again for the next incarnation."""
    return Retryable("the pipeline's orders file is damaged", where=str(path), why=str(error))


def _pair(found: Any) -> tuple[int, int]:
    first, second = found
    return int(first), int(second)
