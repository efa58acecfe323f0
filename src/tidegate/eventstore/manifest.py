"""What a span consists of, and how far it is complete: two small JSON files, each replaced atomically.

`STORE/<span_id>/manifest.json` and `STORE/frontier.json` each end in a member `"crc32c":"<8 hex>"`: the
CRC32C of all bytes before the comma that precedes it. Order of publication: segment file, manifest, frontier.
So a reader that reads the frontier first and a manifest then finds every row with commit_ts <= frontier in
it. A span that moved without new rows moves in the frontier only.

The frontier alone makes nothing complete: after a loss of power it may be newer than the manifest. So the
frontier, `{"resolved": {span_id: ts}, "manifests": {span_id: version}, ..}`, names the manifest of which each
ts speaks, by its CRC32C. Beside any other manifest only the manifest's own ranges count: a newer one says at
least as much as the frontier, and an older one lacks rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson
from crc32c import crc32c

from tidegate.disk import writing
from tidegate.errors import Fatal, Retryable
from tidegate.eventstore.segment import FORMAT, BlockInfo, Durability, SegmentInfo, sync
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

FRONTIER: Final = "frontier.json"
MANIFEST: Final = "manifest.json"

_TRAILER: Final = len(b',"crc32c":"00000000"}')
_UNKNOWN: Final = -1
"""The version of a manifest that is on no disk; the frontier never names it."""


class Torn(Retryable):
    """A small file is not what was written. The process that owns the store replaces it."""


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
    """Which file this was read from: its CRC32C."""

    @property
    def resolved(self) -> Timestamp:
        """Every commit up to here is in the segments (the frontier may say more for an idle span)."""
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


class Frontier(dict[str, Timestamp]):
    """Span id -> resolved ts, as published; and of which manifest each of them speaks."""

    def __init__(self, resolved: Mapping[str, Timestamp], versions: Mapping[str, int]) -> None:
        super().__init__(resolved)
        self.versions: dict[str, int] = dict(versions)

    def reach(self, span_id: str, manifest: Manifest) -> Timestamp:
        """Up to where a manifest that was read after this frontier names every commit."""
        if self.versions.get(span_id, _UNKNOWN) != manifest.version:
            return manifest.resolved
        return max(manifest.resolved, self.get(span_id, 0))


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


def _seal(document: dict[str, Any]) -> tuple[bytes, int]:
    """A document's bytes and their CRC32C."""
    body = orjson.dumps(document)[:-1]
    crc = crc32c(body)
    return body + f',"crc32c":"{crc:08x}"}}'.encode(), crc


def _open(path: Path) -> tuple[bytes, int]:
    """A sealed JSON file and its CRC32C. Raises Torn when its bytes are not what was written."""
    data = path.read_bytes()
    body = data[:-_TRAILER]
    crc = crc32c(body)
    if data[-_TRAILER:] != f',"crc32c":"{crc:08x}"}}'.encode():
        raise Torn(
            f"{path.name} of the event store is corrupt",
            where=f"{path}, byte 0 to {len(data)}",
            why="its CRC32C does not match its bytes",
            fix="nothing to do: the puller writes it again, and pulls again what it lacks",
        )
    return data, crc


def replace_file(path: Path, data: bytes, durable: Durability) -> None:
    """Put `data` at `path`: a reader finds the old bytes or the new, never a mixture. Raises DiskFull."""
    partial = path.with_suffix(".tmp")
    with writing(partial):
        partial.write_bytes(data)
        if durable == "fsync":
            sync(partial)
    partial.replace(path)
    if durable == "fsync":
        sync(path.parent)


def _segment_to_json(segment: SegmentInfo) -> dict[str, Any]:
    return {
        "file": segment.file,
        "rows": segment.rows,
        "bytes": segment.bytes,
        "min_ts": segment.min_ts,
        "max_ts": segment.max_ts,
        "valid_to": segment.valid_to,
        "blocks": [(b.at, b.rows, b.bytes, b.min_ts, b.max_ts) for b in segment.blocks],
    }


def _segment_from_json(item: dict[str, Any]) -> SegmentInfo:
    return SegmentInfo(**{**item, "blocks": tuple(BlockInfo(*b) for b in item["blocks"])})


def write_manifest(folder: Path, manifest: Manifest, durable: Durability = "process") -> int:
    """Replace the manifest in a span's folder; the version it has from now on."""
    ranges = [{"start": r.start.hex(), "end": r.end.hex(), "resolved": r.resolved} for r in manifest.ranges]
    body = {
        "format": FORMAT,
        "start": manifest.span.start.hex(),
        "end": manifest.span.end.hex(),
        "ranges": ranges,
        "segments": [_segment_to_json(s) for s in manifest.segments],
        "dropped_to": manifest.dropped_to,
        "next_file": manifest.next_file,
    }
    data, version = _seal(body)
    replace_file(folder / MANIFEST, data, durable)
    return version


def check_manifest(folder: Path) -> None:
    """Raises Torn when the manifest in a span's folder is not what was written, FileNotFoundError."""
    _open(folder / MANIFEST)


def load_manifest(folder: Path) -> Manifest:
    """The manifest in a span's folder. Raises FileNotFoundError, Torn, or Fatal when it is too new."""
    path = folder / MANIFEST
    data, version = _open(path)
    body = orjson.loads(data)
    if body["format"] != FORMAT:
        raise Fatal(
            "the event store has a format this version does not know",
            where=str(path),
            why=f"format {body['format']}, known is {FORMAT}",
            fix="use the tidegate version that wrote it, or remove the span's folder",
        )
    span = Span(bytes.fromhex(body["start"]), bytes.fromhex(body["end"]))
    ranges = [
        RegionRange(bytes.fromhex(r["start"]), bytes.fromhex(r["end"]), r["resolved"]) for r in body["ranges"]
    ]
    segments = tuple(_segment_from_json(s) for s in body["segments"])
    return Manifest(span, tuple(ranges), segments, body["dropped_to"], body["next_file"], version)


def write_frontier(store: Path, frontier: Frontier, durable: Durability = "process") -> None:
    """Replace the frontier file."""
    data, _ = _seal({"resolved": dict(frontier), "manifests": frontier.versions})
    replace_file(store / FRONTIER, data, durable)


def load_frontier(store: Path) -> Frontier:
    """What was published; empty when nothing was yet. Raises Torn."""
    try:
        data, _ = _open(store / FRONTIER)
    except FileNotFoundError:
        return Frontier({}, {})
    body = orjson.loads(data)
    # A file of an earlier version names no manifests: none of its ts counts.
    return Frontier(body["resolved"], body.get("manifests", {}))


def span_folder(store: Path, span: Span, kv_mode: str = "tidb", keyspace: str = "") -> Path:
    """Where a span's files are."""
    return store / span_id(span, kv_mode, keyspace)
