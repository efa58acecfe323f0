"""The contents of the event store without its rows: floors, manifests, and estimates from them.

Used by the processes that plan (Spark's planning processes, the control process). This module loads no
kernel, because that would add a second to the start of a process that asks one question. `reader` returns
the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from tidegate.errors import Retryable, TidegateError
from tidegate.eventstore import damage
from tidegate.eventstore.floors import FloorReader, PageMark
from tidegate.eventstore.manifest import Manifest, ManifestReader, StoreFrontier, load_manifest
from tidegate.eventstore.records import Torn
from tidegate.eventstore.segment import BlockInfo, DamagedSegment, SegmentInfo, tables_in
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp, compose
from tidegate.model.ts_by_span import SpanOrder, TsArray, TsBySpan
from tidegate.tidb.keys import ids_touched, stripe_ids

READ_ATTEMPTS: Final = 5
"""How often a manifest is read in total, because it may have been replaced during a read."""
BEHIND: Final = compose(1000)
"""If the floor of a stripe is this far behind (1 s), some of its ranges may be ahead of it, and its manifest
is read."""

Wanted: TypeAlias = tuple[int, int]
"""The wanted tables of a stripe: the first table id, and a bit mask; bit i stands for the id `first` + i."""


class Lifted(TsBySpan):
    """A frontier in which some floors are replaced by higher ones, without copying the others."""

    def __init__(self, frontier: StoreFrontier, higher: Mapping[str, Timestamp]) -> None:
        self._frontier, self._higher = frontier, higher

    def __getitem__(self, span_id: str) -> Timestamp:
        found = self._higher.get(span_id)
        return self._frontier[span_id] if found is None else found

    def ts_of(self, order: SpanOrder) -> TsArray:
        """The ts of each span of an order; 0 for one that has none. The caller may change the array."""
        found = self._frontier.ts_of(order)
        for place, name in enumerate(order.names):
            if name in self._higher:
                found[place] = self._higher[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._frontier)

    def __len__(self) -> int:
        return len(self._frontier)


class NoManifest(Retryable):
    """A span has no files (yet)."""


class Unresolved(Retryable):
    """A manifest does not name every commit up to the requested ts."""


@lru_cache(maxsize=16)
def _floors(store: Path | str) -> FloorReader:
    """A store's page reader, one in a process; each read checks that the file is still the same."""
    return FloorReader(Path(store))


def read_frontier(store: Path | str) -> StoreFrontier:
    """Span id -> resolved ts, as last published: one pass over mapped memory.

    Each ts is valid only for the manifest version that it names: `StoreFrontier.reach`.
    """
    return _floors(store).read()


def page_mark(store: Path | str) -> PageMark | None:
    """The page as last published, to compare with an earlier mark; much cheaper than `read_frontier`."""
    return _floors(store).mark()


def versions(store: Path | str, span_ids: Iterable[str]) -> object:
    """Changes when new rows of these spans arrive, not for others' (`FloorReader.versions`)."""
    return _floors(store).versions(span_ids)


def reach_of(manifest: Manifest, wanted: Wanted) -> Timestamp:
    """The ts up to which a manifest names every commit of the wanted tables of a stripe.

    A transaction lock that stays, or a region without a leader, holds back one range of the stripe. A reader
    that wants no table in that range need not wait for it.
    """
    first, bits = wanted
    within = stripe_ids(manifest.span)
    # docs/guarantees.md#trouble-in-one-region-delays-only-the-changefeeds-that-want-a-table-of-it: ranges
    # that hold no wanted table do not count, and of the others the slowest does.
    for part in sorted(manifest.ranges, key=lambda r: r.resolved):
        ids = ids_touched(part.start, part.end, within)
        # Parts are visited from the lowest ts on, so the first that touches a wanted table is the answer.
        if (bits >> max(0, ids.start - first)) & ((1 << len(ids)) - 1):
            return part.resolved
    return manifest.resolved


def lifted(
    frontier: StoreFrontier,
    wanted: Mapping[str, Wanted],
    now: Timestamp,
    manifest_of: Callable[[str], Manifest | None],
) -> TsBySpan:
    """The frontier for a reader that wants only some tables of stripes.

    `wanted`: by the id of the stripe. `now`: the current ts of the upstream, taken from the span of DDL; a
    stripe whose floor is close to it is not examined. A withdrawn floor (0) is not lifted, because the stripe
    is being pulled from the beginning again.
    """
    found: dict[str, Timestamp] = {}
    for span_id, tables in wanted.items():
        floor = frontier.get(span_id, 0)
        # The cheap test first: most stripes are close to the present, and their manifests need not be read.
        if 0 < floor < now - BEHIND and (manifest := manifest_of(span_id)) is not None:
            reach = reach_of(manifest, tables)
            if reach > floor:
                found[span_id] = reach
    return Lifted(frontier, found) if found else frontier


def read_manifest(store: Path | str, span_id: str, known: ManifestReader | None = None) -> Manifest:
    """A span's manifest.

    Raises NoManifest if the span has none yet, Retryable if it is torn. A torn manifest is also reported
    (`damage`), and the puller writes it again.

    `known`: a reader to reuse, which reads only the records appended since its last read.
    """
    try:
        reader = known or ManifestReader(Path(store) / span_id)
        manifest = reader.read()
        if manifest.torn and (again := reader.read()).torn and again.version == manifest.version:
            # An append that was under way at the first read is usually finished at the second. Otherwise the
            # record was cut off or damaged, and unless the manifest is written again, its content stays lost.
            why = "the last record behind its base is no whole one"
            where = str(Path(store) / span_id)
            damage.torn(Path(store), span_id, Torn("a manifest is torn", where=where, why=why))
        return manifest
    except Torn as error:
        damage.torn(Path(store), span_id, error)
        raise
    except FileNotFoundError as error:
        raise NoManifest(
            "the event store does not have this span yet",
            where=str(Path(store) / span_id),
            why="no manifest was written",
            fix="wait until the puller has registered it",
        ) from error


def covering_manifest(
    store: Path | str, span_id: str, after: Timestamp, upto: Timestamp, known: ManifestReader | None = None
) -> Manifest:
    """A span's manifest that names every commit in (after, upto]. Raises Retryable if there is none.

    `known`: as for `read_manifest`.
    """
    for _ in range(READ_ATTEMPTS - 1):
        manifest = read_manifest(store, span_id, known)
        try:
            check(store, span_id, manifest, after, upto)
        except Unresolved:
            continue  # perhaps only because the manifest was replaced in between
        return manifest
    manifest = read_manifest(store, span_id, known)
    check(store, span_id, manifest, after, upto)
    return manifest


def check(
    store: Path | str,
    span_id: str,
    manifest: Manifest,
    after: Timestamp,
    upto: Timestamp,
    wanted: Callable[[str], Wanted | None] | None = None,
) -> None:
    """Check that a manifest that was read before this call names every commit in (after, upto].

    `wanted`: returns the wanted tables of a stripe; called only if the stripe as a whole is not complete.

    Raises Retryable if the manifest does not name them all (any more, or not yet). When a changefeed needs a
    span from an earlier ts than the store has, the span is pulled from that ts again, and its floor is
    withdrawn before the new manifest, which lacks rows, is written. Therefore the floor is read here, after
    the manifest. Unresolved may also mean only that the manifest was replaced in between.
    """
    reach = _floors(store).of(span_id).reach(span_id, manifest)
    if upto > reach and wanted is not None and (tables := wanted(span_id)) is not None:
        reach = max(reach, reach_of(manifest, tables))
    folder = Path(store) / span_id
    # An empty range needs no rows, so it is never refused.
    if after < manifest.dropped_to and upto > after:
        raise Retryable(
            "the event store no longer has the changes asked for",
            where=f"{folder}, after ts {after}, kept from {manifest.dropped_to}",
            why="they were dropped, or the span was first watched from a later ts",
            fix="nothing: they are pulled from TiKV again; then reading continues",
        )
    if upto > reach:
        raise Unresolved(
            "a read reached beyond the resolved ts",
            where=f"{folder}, up to ts {upto}, resolved {reach}",
            why="rows there are still missing: the span is pulled again from an earlier ts",
            fix="nothing: reading continues when they have arrived",
        )


def spans(store: Path | str, but: Container[str] = ()) -> dict[str, tuple[Span, Timestamp]]:
    """The spans that have files, except those in `but`: id -> (bounds, last ts it may hold changes of).

    A span without a readable manifest is left out.
    """
    frontier, found = read_frontier(store), {}
    for folder in Path(store).iterdir():
        if folder.name in but:
            continue
        try:
            manifest = load_manifest(folder)
        except (TidegateError, OSError):
            continue
        # Runs hold rows above the resolved ts, and the page of floors may be ahead of the manifest.
        last = max((s.max_ts for s in manifest.segments), default=0)
        found[folder.name] = (manifest.span, max(last, manifest.resolved, frontier.get(folder.name, 0)))
    return found


def pending(manifest: Manifest, after: Timestamp, upto: Timestamp) -> tuple[int, int, Timestamp, Timestamp]:
    """An estimate of the rows in (after, upto]: number, bytes of keys and values, first and last commit_ts.

    (0, 0, 0, 0) means that the manifest certainly names no rows there (`check` says whether it is complete);
    otherwise there very likely are some. No file is opened.
    """
    rows, size, first, last = 0, 0, upto, after
    for _, block, limit in _blocks(manifest, after, upto):
        share = _share(block, after, limit)
        # At least one, because a sum of 0 would mean that there are certainly no rows.
        rows += max(1, round(block.rows * share))
        size += max(1, round(block.bytes * share))
        first = min(first, max(block.min_ts, after + 1))
        last = max(last, min(block.max_ts, limit))
    return (rows, size, first, last) if rows else (0, 0, 0, 0)


def has_any(
    folder: Path, manifest: Manifest, after: Timestamp, upto: Timestamp, first: int, wanted: int
) -> bool:
    """Whether there may be rows in (after, upto] of the tables `wanted`: bit i is the id `first` + i.

    Each process reads the directory of a segment once. A segment that cannot be read counts as holding all
    tables; the reader of its rows then reports the damage.
    """
    return any(
        _tables_of(folder, segment, first) & wanted
        for segment in manifest.segments
        if segment.min_ts <= upto and segment.last_ts > after
    )


@lru_cache(maxsize=1 << 14)
def _tables_of(folder: Path, info: SegmentInfo, first: int) -> int:
    """The tables of which a segment has rows, as a bit mask; -1 (all bits) if the segment cannot be read."""
    try:
        ids = tables_in(folder, info).records
    # All bits: to read for nothing is safe, to leave rows out is not.
    except (DamagedSegment, FileNotFoundError):
        return -1
    return sum(1 << table - first for table in ids.tolist() if table >= first)


def cut(manifest: Manifest, after: Timestamp, upto: Timestamp, max_bytes: int) -> Timestamp:
    """The ts up to which (after, ts] holds about `max_bytes`; `upto` if all of it fits.

    The range (after, ts] includes at least one commit_ts with rows. The estimate assumes that the commits of
    a block are evenly spread over its ts range. No file is opened.
    """
    blocks = sorted(_blocks(manifest, after, upto), key=lambda b: (b[1].min_ts, b[1].max_ts))
    taken = 0.0
    for _, block, limit in blocks:
        share = _share(block, after, limit)
        size = block.bytes * share
        if taken + size > max_bytes:
            low, high = max(block.min_ts, after + 1), min(block.max_ts, limit)
            return min(upto, low + int((high - low) * (max_bytes - taken) / size))
        taken += size
    return upto


def _blocks(
    manifest: Manifest, after: Timestamp, upto: Timestamp
) -> Iterator[tuple[SegmentInfo, BlockInfo, Timestamp]]:
    """The blocks that may hold rows in (after, upto], each with the largest commit_ts that counts in it."""
    for segment in manifest.segments:
        limit = min(upto, segment.last_ts)
        if segment.min_ts > limit or limit <= after:
            continue
        for block in segment.blocks:
            if block.min_ts <= limit and block.max_ts > after:
                yield segment, block, limit


def _share(block: BlockInfo, after: Timestamp, limit: Timestamp) -> float:
    """The fraction of a block's ts range that is in (after, limit]."""
    low, high = max(block.min_ts, after + 1), min(block.max_ts, limit)
    return (high - low + 1) / (block.max_ts - block.min_ts + 1)
