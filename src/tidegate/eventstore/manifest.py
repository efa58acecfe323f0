"""The segments of a span, and up to which ts the span is complete: `STORE/<span_id>/manifest`.

A file of `records`: the base holds the whole manifest, each record behind it one change. Sealing one more
segment therefore appends one line and does not rewrite the file. The payloads are JSON:

| base | |
|---|---|
| format, start, end | 2, and the span's bounds in hex |
| ranges | [start, end, resolved] of each range: every commit in it up to `resolved` is durable |
| segments | each a list of the fields of `SegmentInfo`, its blocks lists of the fields of `BlockInfo` |
| dropped_to, next_file | as in `Manifest` |

| record | |
|---|---|
| floor | every range is durable at least up to this ts, even if no row arrived |
| ranges | the new ranges, instead of `floor`, if `floor` cannot express the change |
| splice | `[at, count, segments]`: `segments` replace `count` segments from index `at` on |
| dropped_to, next_file | if they change |

*Order of publication*: segment file, manifest, page of floors (`floors`). A reader that reads a floor first
and the manifest after it therefore finds every row with commit_ts <= floor in the manifest's segments. While
a span is idle, only its floor on the page rises; its manifest follows every minute or two (`span_store`).

*Why a floor stays true after any crash.* A floor names a manifest version (`records`: a version always means
the same content). It was written when all rows up to the floor were in the segments of that version. This is
a fact about that content, and no crash can make it untrue. If the manifest has another version, readers
ignore the floor and use the manifest's own ranges. A newer manifest says at least as much, because each
record carries the floor of its time. An older manifest (after a loss of power) lacks rows, so the floor must
not apply to it. Correctness therefore never depends on the page, whether it is lost, torn, older or newer
than the manifests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import orjson

from tidegate.errors import Fatal
from tidegate.eventstore import records
from tidegate.eventstore.records import ReadPosition, RecordFile
from tidegate.eventstore.segment import FORMAT, BlockInfo, Durability, SegmentInfo
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp
from tidegate.model.ts_by_span import PlacesOf, SpanOrder, TsArray, TsBySpan

T = TypeVar("T")

MANIFEST: Final = "manifest"
_OLD_MANIFEST: Final = "manifest.json"
_OLD_FRONTIER: Final = "frontier.json"

_UNKNOWN: Final = -1
"""The version of a manifest that is not on disk; no floor ever names it."""


@dataclass(frozen=True, slots=True)
class RegionRange:
    """A part of the span; its rows with commit_ts <= `resolved` are in segments or runs."""

    start: bytes
    end: bytes
    resolved: Timestamp


RANGES_MAX: Final = 4096
"""The most ranges that a manifest holds; if there are more, neighbours are joined at their smallest ts."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A span's segments. Complete for commit_ts in (dropped_to, resolved].

    `segments` are in the order in which they were made; they may overlap in ts (spilled runs). `next_file` is
    the number of the next segment; because it only rises, two announced segments never share a file name.
    """

    span: Span
    ranges: tuple[RegionRange, ...]
    segments: tuple[SegmentInfo, ...] = ()
    dropped_to: Timestamp = 0
    next_file: int = 0
    version: int = field(default=_UNKNOWN, compare=False)
    """The version of the file that this was read from (`records.ReadPosition.version`)."""
    torn: bool = field(default=False, compare=False)
    """Whether bytes follow the file's last whole record: an append under way, or one that was cut off."""

    @property
    def resolved(self) -> Timestamp:
        """Every commit <= this ts is in the segments. The page of floors may be ahead for an idle span."""
        return min(r.resolved for r in self.ranges)

    def with_resolved(self, ts: Timestamp) -> Manifest:
        """The same manifest, complete up to `ts`; ranges with a higher ts keep it."""
        return replace(self, ranges=joined([replace(r, resolved=max(r.resolved, ts)) for r in self.ranges]))

    def restarted(self, ts: Timestamp) -> Manifest:
        """The same manifest with a single range, which is complete up to `ts` exactly."""
        return replace(self, ranges=(RegionRange(self.span.start, self.span.end, ts),))

    def cut_back(self, ts: Timestamp) -> Manifest:
        """The same manifest, complete up to `ts` exactly; rows above `ts` no longer count."""
        kept = tuple(
            replace(s, valid_to=ts) if s.last_ts > ts else s for s in self.segments if s.min_ts <= ts
        )
        return replace(self, segments=kept).restarted(ts)


class StoreFrontier(TsBySpan):
    """Span id -> resolved ts from the page of floors, with the manifest version that each of them names."""

    def __init__(self, places: PlacesOf, floors: TsArray, versions: TsArray) -> None:
        """`places` maps a span id to its index in `floors` and `versions`. A floor of 0 means no floor, and
        place 0 has none.
        """
        self._all, self._floors, self._versions = places, floors, versions
        self._places = places.by_name

    def __getitem__(self, span_id: str) -> Timestamp:
        floor: Timestamp = self._floors.item(self._places[span_id])
        if not floor:
            raise KeyError(span_id)
        return floor

    def ts_of(self, order: SpanOrder) -> TsArray:
        """The floor of each span of an order; 0 for one that has none. The caller may change the array."""
        found: TsArray = self._floors[self._all.of(order)]
        return found

    def versions_of(self, order: SpanOrder) -> TsArray:
        """The manifest version that the floor of each span of an order names; any number without a floor."""
        found: TsArray = self._versions[self._all.of(order)]
        return found

    @overload
    def get(self, span_id: str, /) -> Timestamp | None: ...

    @overload
    def get(self, span_id: str, /, default: T) -> Timestamp | T: ...

    def get(self, span_id: str, /, default: object = None) -> object:
        """As `dict.get`. Written out because it is called for thousands of spans a second."""
        place = self._places.get(span_id)
        return default if place is None else self._floors.item(place) or default

    def __iter__(self) -> Iterator[str]:
        floors = self._floors.tolist()
        return (name for name, place in self._places.items() if floors[place])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def reach(self, span_id: str, manifest: Manifest) -> Timestamp:
        """The ts up to which the segments of a manifest hold every commit.

        `manifest` is read after this frontier. A manifest of another version than the floor names may lack
        the floor's rows; then only its own ranges count.
        """
        # docs/guarantees.md#a-loss-of-power-costs-a-pull-and-nothing-else: the two files may come from
        # different moments after a crash, so a floor counts only with the manifest that it names.
        place = self._places.get(span_id)
        if place is None or self._versions.item(place) != manifest.version:
            return manifest.resolved
        return max(manifest.resolved, self._floors.item(place))


def joined(ranges: Iterable[RegionRange], most: int = RANGES_MAX) -> tuple[RegionRange, ...]:
    """Join ranges that tile a span in key order: neighbours with the same ts become one.

    If more than `most` remain, neighbours are joined at their smallest ts until at most `most` do.
    """
    found: list[RegionRange] = []
    for each in ranges:
        if found and found[-1].resolved == each.resolved:
            found[-1] = replace(found[-1], end=each.end)
        else:
            found.append(each)
    if len(found) <= most:
        return tuple(found)
    # Joining at the smallest ts claims less than is known, never more.
    step = -(-len(found) // most)
    groups = [found[i : i + step] for i in range(0, len(found), step)]
    least = [RegionRange(g[0].start, g[-1].end, min(r.resolved for r in g)) for g in groups]
    return joined(least, most)


def highest(a: Sequence[RegionRange], b: Sequence[RegionRange]) -> list[RegionRange]:
    """Combine two tilings of a span; each key gets the higher of its two ts."""
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
    """The manifest without its segments, and its segments as JSON. Raises Fatal if the format is unknown."""
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
    """The record that turns the old manifest into the new one."""
    body: dict[str, Any] = {}
    floor = new.resolved
    # A floor is a few bytes, the ranges may be thousands.
    if old.with_resolved(floor).ranges == new.ranges:
        body["floor"] = floor
    else:
        body["ranges"] = _ranges_to_json(new)
    if old.segments != new.segments:
        # Segments change in one place: new ones at the end, or a merge that replaces neighbours. So a record
        # has only what is between the parts that are equal at both ends.
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
    """The manifest after some records. `segments` are its segments, some of which may still be JSON."""
    ranges = manifest.ranges
    floor: Timestamp | None = None
    dropped_to, next_file = manifest.dropped_to, manifest.next_file
    for each in changes:
        body = orjson.loads(each)
        if "floor" in body:
            # Only the highest counts, and a later `ranges` replaces all floors before it.
            floor = max(floor or 0, body["floor"])
        else:
            ranges, floor = _ranges_from_json(body["ranges"]), None
        if "splice" in body:
            first, count, fresh = body["splice"]
            segments[first : first + count] = fresh
        dropped_to = body.get("dropped_to", dropped_to)
        next_file = body.get("next_file", next_file)
    # Parsed only here: later records have merged most segments of a long tail away, and of the floors only
    # the highest counts.
    known = tuple(s if isinstance(s, SegmentInfo) else _segment_from_json(s) for s in segments)
    found = replace(manifest, ranges=ranges, segments=known, dropped_to=dropped_to, next_file=next_file)
    return found if floor is None else found.with_resolved(floor)


# --- the file --------------------------------------------------------------------------------------------


class ManifestFile:
    """The writer of one folder's manifest. Not thread-safe."""

    def __init__(self, folder: Path, durable: Durability = "process") -> None:
        """The first write after this is a new base, whatever is on disk."""
        self._file = RecordFile(folder / MANIFEST, durable)
        self._written: Manifest | None = None

    def write(self, manifest: Manifest) -> int:
        """Write the folder's manifest; returns the version it has now. Raises DiskFull."""
        # If the write fails, it is unknown how much of it is in the file, so the next write is a base.
        old, self._written = self._written, None
        if old is None or self._file.wants_base:
            version = self._file.begin(_base(manifest))
        else:
            version = self._file.append(_change(old, manifest))
        self._written = manifest
        return version

    def rewrite(self, manifest: Manifest) -> int:
        """As `write`, but as a new base: used when the file on disk is not what was written."""
        self._written = None
        return self.write(manifest)


class ManifestReader:
    """Reads one folder's manifest repeatedly, each time only the records appended since. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MANIFEST
        self._name = str(self._path)
        self._known: tuple[tuple[int, int, int], ReadPosition, Manifest] | None = None

    def read(self) -> Manifest:
        """The manifest as it is now. Raises FileNotFoundError, Torn, or Fatal if its format is unknown."""
        known = self._known
        # Before the content: if a record is appended in between, the next call sees another signature and
        # reads again.
        status = os.stat(self._name)  # noqa: PTH116 - thousands a second, and Path.stat costs twice as much
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        if known is not None and known[0] == signature:
            return known[2]
        reading = records.read(self._path, known[1] if known is not None else None)
        found = reading.records
        if known is None or reading.whole:
            manifest, segments = _from_base(self._path, found[0])
            # `records.read` raises Torn if there is no base, so the first record is one.
            found = found[1:]
        else:
            manifest, segments = known[2], list(known[2].segments)
        manifest = _changed(manifest, segments, found)
        manifest = replace(manifest, version=reading.seen.version, torn=reading.torn)
        self._known = (signature, reading.seen, manifest)
        return manifest


def load_manifest(folder: Path) -> Manifest:
    """The manifest in a span's folder. Raises FileNotFoundError, Torn, or Fatal if its format is unknown."""
    return ManifestReader(folder).read()


def refuse_old_form(store: Path) -> None:
    """Raises Fatal if an earlier version wrote the store, which rewrote the whole manifest at each seal."""
    olds = [store / _OLD_FRONTIER, *store.glob(f"*/{_OLD_MANIFEST}")]
    found = next((path for path in olds if path.exists()), None)
    if found is None:
        return
    raise Fatal(
        "the event store was written by an earlier version",
        where=str(store),
        why=f"{found.name} is of a form that is no longer read, at {found}",
        fix="stop the capture, remove this folder and start again: its changes are pulled from TiKV again "
        "from the checkpoints, as far as the GC safepoint allows; or use the version that wrote it",
    )


def span_folder(store: Path, span: Span, kv_mode: str = "tidb", keyspace: str = "") -> Path:
    """The folder of a span's files."""
    return store / span_id(span, kv_mode, keyspace)
