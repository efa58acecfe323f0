"""A worker's access to its capture: its spec, the bounds, the events, the catalogue, the grant.

    deliver, load, begin --> Access --> LocalAccess: the capture's files, mapped
                                    --> RemoteAccess (`pipeline.remote.elsewhere`): its service

A worker touches the capture only through this interface, so the same code runs on the capture's machine and
on others.
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
from tidegate.pipeline.exchange.beats import Beats
from tidegate.pipeline.exchange.feed import Bounds, BoundsReader, DurableBefore, FeedSpec
from tidegate.pipeline.exchange.work import Begun, Lease
from tidegate.pipeline.worker.begin import begun
from tidegate.sink.quarantine import Quarantine

QUARANTINE: Final = "quarantine.jsonl"
"""The quarantine file in the changefeed's folder."""

Ranges: TypeAlias = Sequence[tuple[str, Timestamp, Timestamp]]
"""(span id, after, upto) of each range."""


class SpanState(NamedTuple):
    """The content of a span's manifest that workers need."""

    span: Span
    """Its keys."""
    dropped_to: Timestamp
    """The event store has dropped its events up to this ts."""


class Access(Protocol):
    """Access for one incarnation of one changefeed. For one thread, except `beat`.

    Each call raises Fenced when the incarnation has been replaced, and Retryable when the capture or its
    files cannot be reached.
    """

    @property
    def spec(self) -> FeedSpec:
        """The incarnation. Its paths are valid only on the capture's own machine."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the incarnation is known to have been replaced."""
        ...

    def durable(self) -> DurableBefore | None:
        """The rows that earlier incarnations have delivered beyond the starts of this one. None:
        not known.
        """
        ...

    def bounds(self) -> Bounds:
        """Up to which ts each span may be delivered now, and which tables are wanted."""
        ...

    def span(self, name: str) -> SpanState:
        """The keys of a span that the puller follows, and up to which ts its events were dropped."""
        ...

    def read(
        self, spans: Ranges, past: Place | None = None, tables: Collection[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Events of some spans in the store's order, as `eventstore.reader.read_together` gives them."""
        ...

    def catalogue(self, ts: Timestamp) -> SchemaStore:
        """The schemas to start from for rows after `ts` (`mounter.bases.load_for`)."""
        ...

    def set_aside(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Append entries to the changefeed's quarantine. They are on disk when the call returns."""
        ...

    def granted(self, lease: Lease) -> tuple[Span, ...]:
        """The ranges that may be written now. Raises Fenced when the grant belongs to another incarnation, or
        the lease of the slot to another worker.
        """
        ...

    def confirm(self, lease: Lease) -> None:
        """Called before each commit. Raises Fenced when the host has given the worker's slot to another."""
        ...

    def begun(self, records: Mapping[str, bytes]) -> Begun:
        """Where to resume, computed from all the records that the sink keeps. Call it after the fence
        (`begin.begun`): until then an earlier incarnation may still commit.
        """
        ...

    def beat(self) -> None:
        """Report that work was done just now. Cheap; callable from several threads; never fails."""
        ...


class LocalAccess:
    """Access on the capture's own machine, as the same user."""

    def __init__(self, spec: FeedSpec, beat: Callable[[], None] | None = None) -> None:
        """`beat`: by default it writes to the incarnation's folder (`pipeline.exchange.beats`)."""
        self.spec = spec
        self.beat = beat or Beats(spec.beats_dir).beat
        self._path = spec.path
        self._bounds = BoundsReader(spec.feed_dir / "bounds.json")
        self._quarantine = Quarantine(spec.feed_dir / QUARANTINE)

    @property
    def is_over(self) -> bool:
        return not self._path.exists()

    def durable(self) -> DurableBefore | None:
        return self.spec.durable()

    def bounds(self) -> Bounds:
        return self._bounds.read()

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
        """The tables that are wanted in a stripe. They cannot change while a task runs, because the barrier
        lets no DDL pass before all rows up to it are durable.
        """
        # None for a span of one table, whose rows are all wanted.
        return self.bounds().wanted.get(span)

    def catalogue(self, ts: Timestamp) -> SchemaStore:
        return bases.load_for(bases.folder_of(self.spec.store_dir), ts)

    def set_aside(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._quarantine.append(entries)

    def granted(self, lease: Lease) -> tuple[Span, ...]:
        """Needs no check of the lease: before the host gives the slot of a local worker away, it kills the
        worker and waits for its end, unless the worker has no work of the incarnation.
        """
        return self.spec.granted()

    def confirm(self, lease: Lease) -> None:
        """Does nothing: the host kills a local worker that may no longer commit."""

    def begun(self, records: Mapping[str, bytes]) -> Begun:
        return begun(self.spec, records)


def local(path: str) -> LocalAccess:
    """Access for the incarnation whose spec is at `path`. Raises Fenced when it has been replaced."""
    return LocalAccess(FeedSpec.load(Path(path)))
