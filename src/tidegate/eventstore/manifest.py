"""What a span consists of, and how far it is complete: two small JSON files, each replaced atomically.

`STORE/<span_id>/manifest.json` and `STORE/frontier.json` (`{"resolved": {span_id: ts}, ..}`) each end in a
member `"crc32c":"<8 hex>"`: the CRC32C of all bytes before the comma that precedes it.
Order of publication: segment file, manifest, frontier. So a
reader that reads the frontier first and a manifest then finds every row with commit_ts <= frontier in it.
A span that moved without new rows moves in the frontier only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson
from crc32c import crc32c

from tidegate.disk import writing
from tidegate.errors import Fatal
from tidegate.eventstore.segment import FORMAT, BlockInfo, Durability, SegmentInfo, sync
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

FRONTIER: Final = "frontier.json"
MANIFEST: Final = "manifest.json"

_TRAILER: Final = len(b',"crc32c":"00000000"}')


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


def _seal(document: dict[str, Any]) -> bytes:
    body = orjson.dumps(document)[:-1]
    return body + f',"crc32c":"{crc32c(body):08x}"}}'.encode()


def _open(path: Path, data: bytes, fix: str) -> Any:
    """A sealed JSON file's document; Fatal when its bytes are not what was written."""
    body = data[:-_TRAILER]
    if data[-_TRAILER:] != f',"crc32c":"{crc32c(body):08x}"}}'.encode():
        raise Fatal(
            f"{path.name} of the event store is corrupt",
            where=f"{path}, byte 0 to {len(data)}",
            why="its CRC32C does not match its bytes",
            fix=fix,
        )
    return orjson.loads(data)


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


def write_manifest(folder: Path, manifest: Manifest, durable: Durability = "process") -> None:
    """Replace the manifest in a span's folder."""
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
    replace_file(folder / MANIFEST, _seal(body), durable)


def load_manifest(folder: Path) -> Manifest:
    """The manifest in a span's folder. Raises FileNotFoundError, or Fatal when it is corrupt or too new."""
    path = folder / MANIFEST
    body = _open(
        path,
        path.read_bytes(),
        "stop the capture, remove this span's folder and start again: its changes are pulled anew from the "
        "checkpoint, as far as TiKV's GC safepoint allows",
    )
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
    return Manifest(span, tuple(ranges), segments, body["dropped_to"], body["next_file"])


def write_frontier(store: Path, resolved: dict[str, Timestamp], durable: Durability = "process") -> None:
    """Replace the frontier file."""
    replace_file(store / FRONTIER, _seal({"resolved": resolved}), durable)


def load_frontier(store: Path) -> dict[str, Timestamp]:
    """Span id -> resolved ts; empty when nothing was published yet. Raises Fatal when corrupt."""
    path = store / FRONTIER
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    body = _open(path, data, "stop the capture, remove the file and start again")
    resolved: dict[str, Timestamp] = body["resolved"]
    return resolved


def span_folder(store: Path, span: Span, kv_mode: str = "tidb", keyspace: str = "") -> Path:
    """Where a span's files are."""
    return store / span_id(span, kv_mode, keyspace)
