"""What waits in the event store, without opening a segment: floors, manifests, and estimates from them.

For those who plan (Spark's planning processes, the control process): no kernel is loaded here, which a
process that starts for one question would pay for with a second. `reader` hands out the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from tidegate.errors import Retryable, TidegateError
from tidegate.eventstore import damage
from tidegate.eventstore.floors import FloorReader, PageMark
from tidegate.eventstore.manifest import Frontier, Manifest, ManifestReader, load_manifest
from tidegate.eventstore.records import Torn
from tidegate.eventstore.segment import BlockInfo, DamagedSegment, SegmentInfo, tables_in
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp, compose
from tidegate.tidb.keys import ids_touched, stripe_ids

READ_ATTEMPTS: Final = 5
"""How often a manifest is read again because it was replaced meanwhile."""
BEHIND: Final = compose(1000)
"""A stripe whose floor is so far behind may have ranges that are further: its manifest is looked at."""

Wanted: TypeAlias = tuple[int, int]
"""Of a stripe, the first table id and which ids are wanted: bit i is the i-th."""


class Lifted(Mapping[str, Timestamp]):
    """A frontier of which some floors are higher; the others are not copied."""

    def __init__(self, frontier: Frontier, higher: Mapping[str, Timestamp]) -> None:
        self._frontier, self._higher = frontier, higher

    def __getitem__(self, span_id: str) -> Timestamp:
        found = self._higher.get(span_id)
        return self._frontier[span_id] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._frontier)

    def __len__(self) -> int:
        return len(self._frontier)


class NoManifest(Retryable):
    """A span has no files, or not yet."""


class Unresolved(Retryable):
    """A manifest does not name all there is up to the ts that was asked for."""


@lru_cache(maxsize=16)
def _floors(store: Path | str) -> FloorReader:
    """A store's page, mapped once in a process; whether it is still that file is seen at each look."""
    return FloorReader(Path(store))


def read_frontier(store: Path | str) -> Frontier:
    """Span id -> resolved ts, as last published: one pass over mapped memory.

    Each ts counts only beside the manifest it speaks of: `Frontier.reach`.
    """
    return _floors(store).read()


def page_mark(store: Path | str) -> PageMark | None:
    """What was published last, to be compared with an earlier mark; much cheaper than `read_frontier`."""
    return _floors(store).mark()


def versions(store: Path | str, span_ids: Iterable[str]) -> object:
    """What changes when rows of these spans have come, whatever comes of others (`FloorReader.versions`)."""
    return _floors(store).versions(span_ids)


def reach_of(manifest: Manifest, wanted: Wanted) -> Timestamp:
    """Up to where a manifest names every commit of the wanted tables of a stripe; others may be behind.

    A lock that stays, or a region without a leader, holds back one range. Who wants none of its tables goes
    by the ranges that he wants.
    """
    first, bits = wanted
    within = stripe_ids(manifest.span)
    for part in sorted(manifest.ranges, key=lambda r: r.resolved):
        ids = ids_touched(part.start, part.end, within)
        if (bits >> max(0, ids.start - first)) & ((1 << len(ids)) - 1):
            return part.resolved
    return manifest.resolved


def lifted(
    frontier: Frontier,
    wanted: Mapping[str, Wanted],
    now: Timestamp,
    manifest_of: Callable[[str], Manifest | None],
) -> Mapping[str, Timestamp]:
    """A frontier as it is for who wants some tables of stripes.

    `wanted`: by stripe. `now`: how far upstream is, by the span of DDL; stripes that are about there are not
    looked at. A floor that was taken back stays so: the stripe is begun anew.
    """
    found: dict[str, Timestamp] = {}
    for span_id, tables in wanted.items():
        floor = frontier.get(span_id, 0)
        if 0 < floor < now - BEHIND and (manifest := manifest_of(span_id)) is not None:
            reach = reach_of(manifest, tables)
            if reach > floor:
                found[span_id] = reach
    return Lifted(frontier, found) if found else frontier


def read_manifest(store: Path | str, span_id: str, known: ManifestReader | None = None) -> Manifest:
    """A span's manifest. Raises NoManifest when the span has none yet, Retryable when it is torn: that is
    reported to the puller, which writes it again.

    `known`: who reads it again and again, so that only what was appended is read.
    """
    folder = Path(store) / span_id
    try:
        reader = known or ManifestReader(folder)
        manifest = reader.read()
        if manifest.torn and (again := reader.read()).torn and again.version == manifest.version:
            # An append under way is done by now, most often; one that was cut off, or damaged since, would
            # hide for ever what it says.
            why = "the last record behind its base is no whole one"
            damage.torn(Path(store), span_id, Torn("a manifest is torn", where=str(folder), why=why))
        return manifest
    except Torn as error:
        damage.torn(Path(store), span_id, error)
        raise
    except FileNotFoundError as error:
        raise NoManifest(
            "the event store does not have this span yet",
            where=str(folder),
            why="no manifest was written",
            fix="wait until the puller has registered it",
        ) from error


def covering_manifest(store: Path | str, span_id: str, after: Timestamp, upto: Timestamp) -> Manifest:
    """A span's manifest that names all there is in (after, upto]. Raises Retryable when there is none."""
    for _ in range(READ_ATTEMPTS - 1):
        manifest = read_manifest(store, span_id)
        try:
            check(store, span_id, manifest, after, upto)
        except Unresolved:
            continue  # perhaps because it was replaced since
        return manifest
    manifest = read_manifest(store, span_id)
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
    """That a manifest which was read before this call names all there is in (after, upto].

    `wanted`: says what is wanted of a stripe; asked when others of its tables may be behind.

    Raises Retryable when it does not, or not yet: a span is begun anew when a changefeed needs it from an
    earlier ts than is kept, and its floor is taken back before the manifest that lacks its rows is there. So
    the floor is read last. Unresolved may also mean that the manifest was replaced since.
    """
    reach = _floors(store).of(span_id).reach(span_id, manifest)
    if upto > reach and wanted is not None and (tables := wanted(span_id)) is not None:
        reach = max(reach, reach_of(manifest, tables))
    folder = Path(store) / span_id
    if after < manifest.dropped_to and upto > after:
        raise Retryable(
            "the event store no longer has the changes asked for",
            where=f"{folder}, after ts {after}, kept from {manifest.dropped_to}",
            why="they were dropped, or the span was first watched from a later ts",
            fix="nothing to do: they are pulled from TiKV again; then reading continues",
        )
    if upto > reach:
        raise Unresolved(
            "a read reached beyond the resolved ts",
            where=f"{folder}, up to ts {upto}, resolved {reach}",
            why="rows there are still missing: the span is pulled again from an earlier ts",
            fix="nothing to do: reading continues when they have arrived",
        )


def spans(store: Path | str, but: Container[str] = ()) -> dict[str, tuple[Span, Timestamp]]:
    """The spans that have files, but for some: id to bounds and the last ts they may hold changes of.

    A span whose folder has no manifest that can be read is left out.
    """
    frontier, found = read_frontier(store), {}
    for folder in Path(store).iterdir():
        if folder.name in but:
            continue
        try:
            manifest = load_manifest(folder)
        except (TidegateError, OSError):
            continue
        last = max((s.max_ts for s in manifest.segments), default=0)
        found[folder.name] = (manifest.span, max(last, manifest.resolved, frontier.get(folder.name, 0)))
    return found


def pending(manifest: Manifest, after: Timestamp, upto: Timestamp) -> tuple[int, int, Timestamp, Timestamp]:
    """An estimate of what lies in (after, upto]: rows, bytes of keys and values, first and last commit_ts.

    (0, 0, 0, 0) means that the manifest certainly names nothing (`check` tells whether it names all there
    is); more than 0 rows means very likely something. No file is opened.
    """
    rows, size, first, last = 0, 0, upto, after
    for _, block, limit in _blocks(manifest, after, upto):
        share = _share(block, after, limit)
        rows += max(1, round(block.rows * share))
        size += max(1, round(block.bytes * share))
        first = min(first, max(block.min_ts, after + 1))
        last = max(last, min(block.max_ts, limit))
    return (rows, size, first, last) if rows else (0, 0, 0, 0)


def has_any(
    folder: Path, manifest: Manifest, after: Timestamp, upto: Timestamp, first: int, wanted: int
) -> bool:
    """Whether there may be rows in (after, upto] of the tables `wanted`: bit i is the id `first` + i.

    Looks into the directory of each segment once in a process. What cannot be read may hold anything: whoever
    reads the rows says what is wrong with it.
    """
    return any(
        _tables_of(folder, segment, first) & wanted
        for segment in manifest.segments
        if segment.min_ts <= upto and segment.last_ts > after
    )


@lru_cache(maxsize=1 << 14)
def _tables_of(folder: Path, info: SegmentInfo, first: int) -> int:
    """The tables of which a segment has records, as bits; -1, which is all: nobody knows."""
    try:
        ids = tables_in(folder, info).records
    except (DamagedSegment, FileNotFoundError):
        return -1
    return sum(1 << table - first for table in ids.tolist() if table >= first)


def cut(manifest: Manifest, after: Timestamp, upto: Timestamp, max_bytes: int) -> Timestamp:
    """The ts to read to from `after` so that about `max_bytes` are taken; `upto` when all of it fits.

    Between after and upto; at least one commit_ts that has rows is taken. Inside a block, commits are assumed
    to be evenly spread over its ts range. No file is opened.
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
    """The blocks that may hold rows in (after, upto], each with the last ts that counts in it."""
    for segment in manifest.segments:
        limit = min(upto, segment.last_ts)
        if segment.min_ts > limit or limit <= after:
            continue
        for block in segment.blocks:
            if block.min_ts <= limit and block.max_ts > after:
                yield segment, block, limit


def _share(block: BlockInfo, after: Timestamp, limit: Timestamp) -> float:
    """The part of a block's ts range that lies in (after, limit]."""
    low, high = max(block.min_ts, after + 1), min(block.max_ts, limit)
    return (high - low + 1) / (block.max_ts - block.min_ts + 1)
