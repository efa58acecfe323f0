"""What a worker has of its capture: who it is, how far it may go, the events, the catalogue, the grant.

    deliver, load, begin --> Access --> LocalAccess: the capture's files, mapped
                                    --> RemoteAccess (`dataservice.client`): its data service

Nothing else in a worker touches the capture. So where a worker runs makes no difference to what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from tidegate.eventstore import reader, store_view
from tidegate.model.position import Place
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.mounter import bases
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.beats import Beats
from tidegate.pipeline.begin import begun
from tidegate.pipeline.feed import Bounds, DurableBefore, FeedSpec
from tidegate.pipeline.work import Begun, Lease
from tidegate.sink.quarantine import Quarantine

QUARANTINE: Final = "quarantine.jsonl"
"""In the changefeed's folder."""

Ranges: TypeAlias = Sequence[tuple[str, Timestamp, Timestamp]]
"""(span, after, upto) of each."""


class SpanState(NamedTuple):
    """What a manifest says of a span."""

    span: Span
    """Its keys."""
    dropped_to: Timestamp
    """Its events up to here are gone."""


class Access(Protocol):
    """Of one incarnation of one changefeed. One thread uses it.

    Each call raises Fenced when the incarnation has been replaced, and Retryable when the capture's files, or
    the capture, cannot be reached.
    """

    @property
    def spec(self) -> FeedSpec:
        """Who this is. Its paths say something on the capture's own machine only."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the incarnation is known to have been replaced."""
        ...

    def durable(self) -> DurableBefore | None:
        """What earlier incarnations have delivered beyond the starts of this one; None: it is not known."""
        ...

    def bounds(self) -> Bounds:
        """How far each span may go now, and which tables are wanted."""
        ...

    def span(self, name: str) -> SpanState:
        """A span that was pulled."""
        ...

    def read(
        self, spans: Ranges, past: Place | None = None, tables: Collection[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Events of some spans in the store's order, as `eventstore.reader.read_together`."""
        ...

    def catalogue(self, ts: Timestamp) -> SchemaStore:
        """The schemas to begin with for rows after `ts` (`mounter.bases.load_for`)."""
        ...

    def set_aside(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Keep entries in the changefeed's quarantine; on disk when it returns."""
        ...

    def granted(self, lease: Lease) -> tuple[Span, ...]:
        """The ranges that may be written now. Raises Fenced when the grant, or the lease of the slot, is
        another's by now.
        """
        ...

    def confirm(self, lease: Lease) -> None:
        """To be asked before each commit: raises Fenced when nobody counts on this worker any more."""
        ...

    def begun(self, records: Mapping[str, bytes]) -> Begun:
        """Where to go on, by all that the sink keeps; to be asked after the fence (`begin.begun`)."""
        ...

    def beat(self) -> None:
        """Something was really done just now. Cheap; callable from several threads; never fails."""
        ...


class LocalAccess:
    """On the capture's own machine, as its own user."""

    def __init__(self, spec: FeedSpec, beat: Callable[[], None] | None = None) -> None:
        """`beat`: by default in the incarnation's folder (`pipeline.beats`)."""
        self.spec = spec
        self.beat = beat or Beats(spec.beats_dir).beat
        self._path = spec.path
        self._bounds = spec.feed_dir / "bounds.json"
        self._quarantine = Quarantine(spec.feed_dir / QUARANTINE)

    @property
    def is_over(self) -> bool:
        return not self._path.exists()

    def durable(self) -> DurableBefore | None:
        return self.spec.durable()

    def bounds(self) -> Bounds:
        return Bounds.load(self._bounds)

    def span(self, name: str) -> SpanState:
        manifest = store_view.read_manifest(self.spec.store_dir, name)
        return SpanState(manifest.span, manifest.dropped_to)

    def read(
        self, spans: Ranges, past: Place | None = None, tables: Collection[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return reader.read_together(
            self.spec.store_dir, spans, past=past, tables=tables, wanted=self._wanted_of
        )

    def _wanted_of(self, span: str) -> store_view.Wanted | None:
        """What is wanted of a stripe: while a task runs that cannot change, since no DDL is passed before
        all rows up to it are durable.
        """
        return self.bounds().wanted.get(span)

    def catalogue(self, ts: Timestamp) -> SchemaStore:
        return bases.load_for(bases.folder_of(self.spec.store_dir), ts)

    def set_aside(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._quarantine.append(entries)

    def granted(self, lease: Lease) -> tuple[Span, ...]:
        """A worker here that has lost its slot is dead: the host has killed it, and waited for that."""
        return self.spec.granted()

    def confirm(self, lease: Lease) -> None:
        """It would be dead."""

    def begun(self, records: Mapping[str, bytes]) -> Begun:
        return begun(self.spec, records)


def local(path: str) -> LocalAccess:
    """Of the incarnation whose spec is there. Raises Fenced when that has been replaced."""
    return LocalAccess(FeedSpec.load(Path(path)))
