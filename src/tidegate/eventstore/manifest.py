"""What a folder of the event store consists of, and how far it is complete: `STORE/<span_id>/manifest`.

A file of `records`: the base has all, each record behind it what one change has changed, so that sealing one
more segment costs its own line. The payloads are JSON:

| base | |
|---|---|
| format, start, end | 2, and the span's bounds in hex |
| ranges | [start, end, resolved] of each: how far it is durable |
| segments | of each the fields of `SegmentInfo` in a list, the blocks as lists of `BlockInfo`'s |
| dropped_to, next_file | as in `Manifest` |

| record | |
|---|---|
| floor | every range is durable to here at least, also if no row came |
| ranges | in place of `floor` where they change otherwise |
| splice | `[at, count, segments]`: what stands in the place of `count` segments from `at` on |
| dropped_to, next_file | if they change |

*Order of publication*: segment file, manifest, page of floors (`floors`). So a reader that takes a floor
first and a manifest then finds every row with commit_ts <= floor in it. An idle span moves on the page alone,
and its manifest follows every minute or two (`span_store`).

*Why what a floor says stays true after any crash.* A floor names the version of the manifest of which it
speaks (`records`: a version is one content for ever), and was written when all rows up to it were in that
manifest's segments. That is a fact about this content, which no crash can make untrue. Beside any other
manifest a floor counts for nothing, and the manifest's own ranges do: a newer one says at least as much, for
each record carries the floor of its time, and an older one (after a loss of power) lacks rows. So nothing
rests on the page alone, in whatever state it is found: lost, torn, or older or newer than the manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import orjson

from tidegate.errors import Fatal
from tidegate.eventstore import records
from tidegate.eventstore.records import RecordFile, Seen
from tidegate.eventstore.segment import FORMAT, BlockInfo, Durability, SegmentInfo
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

T = TypeVar("T")

MANIFEST: Final = "manifest"
_OLD_MANIFEST: Final = "manifest.json"
_OLD_FRONTIER: Final = "frontier.json"

_UNKNOWN: Final = -1
"""The version of a manifest that is on no disk; no floor ever names it."""


@dataclass(frozen=True, slots=True)
class RegionRange:
    """How far a part of the span is durable: its rows up to `resolved` are in segments or runs."""

    start: bytes
    end: bytes
    resolved: Timestamp


RANGES_MAX: Final = 4096
"""A manifest holds so many ranges at most; beyond, neighbours are joined at the least of their ts."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A span's segments. Complete for commit_ts in (dropped_to, resolved].

    `segments` are in the order of their making; they may overlap in ts (spilled runs). `next_file` numbers
    the next segment, so that a file name is never used for two announced segments.
    """

    span: Span
    ranges: tuple[RegionRange, ...]
    segments: tuple[SegmentInfo, ...] = ()
    dropped_to: Timestamp = 0
    next_file: int = 0
    version: int = field(default=_UNKNOWN, compare=False)
    """Which file this was read from, with how many records."""
    torn: bool = field(default=False, compare=False)
    """Whether the file had bytes behind them: an append under way, or one that was cut off."""

    @property
    def resolved(self) -> Timestamp:
        """Every commit up to here is in the segments (the page of floors may say more for an idle span)."""
        return min(r.resolved for r in self.ranges)

    def with_resolved(self, ts: Timestamp) -> Manifest:
        """The same, complete up to `ts`; ranges that are further stay so."""
        return replace(self, ranges=joined([replace(r, resolved=max(r.resolved, ts)) for r in self.ranges]))

    def restarted(self, ts: Timestamp) -> Manifest:
        """The same, with all of the span complete up to `ts` and no further."""
        return replace(self, ranges=(RegionRange(self.span.start, self.span.end, ts),))

    def cut_back(self, ts: Timestamp) -> Manifest:
        """The same, complete up to `ts` and no further, without what lies beyond."""
        kept = tuple(
            replace(s, valid_to=ts) if s.last_ts > ts else s for s in self.segments if s.min_ts <= ts
        )
        return replace(self, segments=kept).restarted(ts)


class Frontier(Mapping[str, Timestamp]):
    """Span id -> resolved ts, as the page of floors had them; and of which manifest each of them speaks."""

    def __init__(self, places: Mapping[str, int], floors: Sequence[int], versions: Sequence[int]) -> None:
        """`places` says where in the others a span's are; a floor of 0 is none."""
        self._places, self._floors, self._versions = places, floors, versions

    def __getitem__(self, span_id: str) -> Timestamp:
        floor = self._floors[self._places[span_id]]
        if not floor:
            raise KeyError(span_id)
        return floor

    @overload
    def get(self, span_id: str, /) -> Timestamp | None: ...

    @overload
    def get(self, span_id: str, /, default: T) -> Timestamp | T: ...

    def get(self, span_id: str, /, default: object = None) -> object:
        """As a dictionary's; of all spans, 20 times a second."""
        place = self._places.get(span_id)
        return default if place is None else self._floors[place] or default

    def __iter__(self) -> Iterator[str]:
        return (name for name, place in self._places.items() if self._floors[place])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def reach(self, span_id: str, manifest: Manifest) -> Timestamp:
        """Up to where a manifest that was read after this frontier names every commit."""
        place = self._places.get(span_id)
        if place is None or self._versions[place] != manifest.version:
            return manifest.resolved
        return max(manifest.resolved, self._floors[place])


def joined(ranges: Iterable[RegionRange], most: int = RANGES_MAX) -> tuple[RegionRange, ...]:
    """Ranges that tile a span, in key order, as fewer: equal neighbours are one; at most about `most`."""
    found: list[RegionRange] = []
    for each in ranges:
        if found and found[-1].resolved == each.resolved:
            found[-1] = replace(found[-1], end=each.end)
        else:
            found.append(each)
    if len(found) <= most:
        return tuple(found)
    step = -(-len(found) // most)
    groups = [found[i : i + step] for i in range(0, len(found), step)]
    least = [RegionRange(g[0].start, g[-1].end, min(r.resolved for r in g)) for g in groups]
    return joined(least, most)


def highest(a: Sequence[RegionRange], b: Sequence[RegionRange]) -> list[RegionRange]:
    """Of two tilings of a span, for each key the higher ts."""
    edges = sorted({r.start for r in a} | {r.start for r in b})
    found, i, j = [], 0, 0
    for start, end in zip(edges, [*edges[1:], a[-1].end], strict=True):
        while i + 1 < len(a) and a[i + 1].start <= start:
            i += 1
        while j + 1 < len(b) and b[j + 1].start <= start:
            j += 1
        found.append(RegionRange(start, end, max(a[i].resolved, b[j].resolved)))
    return found


# --- as JSON ---------------------------------------------------------------------------------------------


def _segment_to_json(s: SegmentInfo) -> list[Any]:
    blocks = [(b.at, b.rows, b.bytes, b.min_ts, b.max_ts) for b in s.blocks]
    return [s.file, s.rows, s.bytes, s.min_ts, s.max_ts, s.valid_to, s.directory, blocks]


def _segment_from_json(item: list[Any]) -> SegmentInfo:
    file, rows, size, min_ts, max_ts, valid_to, directory, blocks = item
    infos = tuple(BlockInfo(*block) for block in blocks)
    return SegmentInfo(file, rows, size, min_ts, max_ts, valid_to, directory, infos)


def _ranges_to_json(manifest: Manifest) -> list[Any]:
    return [(r.start.hex(), r.end.hex(), r.resolved) for r in manifest.ranges]


def _ranges_from_json(items: list[Any]) -> tuple[RegionRange, ...]:
    return tuple(RegionRange(bytes.fromhex(start), bytes.fromhex(end), ts) for start, end, ts in items)


def _base(manifest: Manifest) -> bytes:
    body = {
        "format": FORMAT,
        "start": manifest.span.start.hex(),
        "end": manifest.span.end.hex(),
        "ranges": _ranges_to_json(manifest),
        "segments": [_segment_to_json(s) for s in manifest.segments],
        "dropped_to": manifest.dropped_to,
        "next_file": manifest.next_file,
    }
    return orjson.dumps(body)


def _from_base(path: Path, data: bytes) -> tuple[Manifest, list[Any]]:
    """The manifest without its segments, and these. Raises Fatal when it is too new."""
    body = orjson.loads(data)
    if body["format"] != FORMAT:
        raise Fatal(
            "the event store has a format this version does not know",
            where=str(path),
            why=f"format {body['format']}, known is {FORMAT}",
            fix="use the tidegate version that wrote it, or remove the span's folder",
        )
    span = Span(bytes.fromhex(body["start"]), bytes.fromhex(body["end"]))
    manifest = Manifest(span, _ranges_from_json(body["ranges"]), (), body["dropped_to"], body["next_file"])
    return manifest, body["segments"]


def _change(old: Manifest, new: Manifest) -> bytes:
    """The record that makes the new manifest of the old one."""
    body: dict[str, Any] = {}
    floor = new.resolved
    if old.with_resolved(floor).ranges == new.ranges:
        body["floor"] = floor
    else:
        body["ranges"] = _ranges_to_json(new)
    if old.segments != new.segments:
        first, shorter = 0, min(len(old.segments), len(new.segments))
        while first < shorter and old.segments[first] == new.segments[first]:
            first += 1
        last = 0
        while last < shorter - first and old.segments[-1 - last] == new.segments[-1 - last]:
            last += 1
        fresh = [_segment_to_json(s) for s in new.segments[first : len(new.segments) - last]]
        body["splice"] = [first, len(old.segments) - last - first, fresh]
    if old.dropped_to != new.dropped_to:
        body["dropped_to"] = new.dropped_to
    if old.next_file != new.next_file:
        body["next_file"] = new.next_file
    return orjson.dumps(body)


def _changed(manifest: Manifest, segments: list[Any], changes: Iterable[bytes]) -> Manifest:
    """The manifest after some records. `segments` are its own, of which some may still be JSON."""
    ranges = manifest.ranges
    floor: Timestamp | None = None
    dropped_to, next_file = manifest.dropped_to, manifest.next_file
    for each in changes:
        body = orjson.loads(each)
        if "floor" in body:
            floor = max(floor or 0, body["floor"])
        else:
            ranges, floor = _ranges_from_json(body["ranges"]), None
        if "splice" in body:
            first, count, fresh = body["splice"]
            segments[first : first + count] = fresh
        dropped_to = body.get("dropped_to", dropped_to)
        next_file = body.get("next_file", next_file)
    # Only now: most segments of a long tail were merged away since, and the last floor is all that counts.
    known = tuple(s if isinstance(s, SegmentInfo) else _segment_from_json(s) for s in segments)
    found = replace(manifest, ranges=ranges, segments=known, dropped_to=dropped_to, next_file=next_file)
    return found if floor is None else found.with_resolved(floor)


# --- the file --------------------------------------------------------------------------------------------


class ManifestFile:
    """The writing side of one folder's manifest. Not thread-safe."""

    def __init__(self, folder: Path, durable: Durability = "process") -> None:
        """The first write is a new base."""
        self._file = RecordFile(folder / MANIFEST, durable)
        self._written: Manifest | None = None

    def write(self, manifest: Manifest) -> int:
        """Make it the folder's; the version it has from now on. Raises DiskFull."""
        old, self._written = self._written, None
        if old is None or self._file.wants_base:
            version = self._file.begin(_base(manifest))
        else:
            version = self._file.append(_change(old, manifest))
        self._written = manifest
        return version

    def rewrite(self, manifest: Manifest) -> int:
        """As `write`, all of it: what is on disk is not what was written."""
        self._written = None
        return self.write(manifest)


class ManifestReader:
    """Who reads one folder's manifest again and again: only what was appended is read. Any thread may."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MANIFEST
        self._known: tuple[tuple[int, int, int], Seen, Manifest] | None = None

    def read(self) -> Manifest:
        """The manifest as it is now. Raises FileNotFoundError, Torn, or Fatal when it is too new."""
        known = self._known
        status = self._path.stat()
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        if known is not None and known[0] == signature:
            return known[2]
        reading = records.read(self._path, known[1] if known is not None else None)
        found = reading.records
        if known is None or reading.whole:
            manifest, segments = _from_base(self._path, found[0])
            found = found[1:]
        else:
            manifest, segments = known[2], list(known[2].segments)
        manifest = _changed(manifest, segments, found)
        manifest = replace(manifest, version=reading.seen.version, torn=reading.torn)
        self._known = (signature, reading.seen, manifest)
        return manifest


def load_manifest(folder: Path) -> Manifest:
    """The manifest in a span's folder. Raises FileNotFoundError, Torn, or Fatal when it is too new."""
    return ManifestReader(folder).read()


def refuse_old_form(store: Path) -> None:
    """Raises Fatal when a store is of the form that had a manifest rewritten at each seal."""
    olds = [store / _OLD_FRONTIER, *store.glob(f"*/{_OLD_MANIFEST}")]
    found = next((path for path in olds if path.exists()), None)
    if found is None:
        return
    raise Fatal(
        "the event store was written by an earlier version",
        where=str(store),
        why=f"{found.name} is of a form that is no longer read, at {found}",
        fix="stop the capture, remove this folder and start again: its changes are pulled from TiKV again "
        "from the checkpoints, as far as the GC safepoint allows; or go on with the version that wrote it",
    )


def span_folder(store: Path, span: Span, kv_mode: str = "tidb", keyspace: str = "") -> Path:
    """Where a span's files are."""
    return store / span_id(span, kv_mode, keyspace)
