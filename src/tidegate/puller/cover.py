"""Walks a range through PD's regions, in key order, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidegate.errors import Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.tidb.memcomparable import decode_bytes, encode_bytes

REGIONS_PER_CALL: Final = 1024


class Part(NamedTuple):
    """What one region has of the range; `limits`: all the region has."""

    bounds: Span
    region: RegionInfo
    limits: Span


class Uncovered(NamedTuple):
    """A region's part that nobody leads now, or the rest, for which PD names no region or does not answer."""

    bounds: Span


def cover(pd: PdClient, bounds: Span) -> Iterator[Part | Uncovered]:
    """What tiles `bounds` from its start on; a rest that PD knows no region of comes last."""
    at = bounds
    while True:
        try:
            regions = pd.scan_regions(_encoded(at.start), _encoded(at.end), REGIONS_PER_CALL)
        except Retryable:
            yield Uncovered(at)
            return
        rest: Span | None = at
        for region in regions:
            limits = _region_span(region)
            part = at.intersect(limits)
            if rest is None or part is None or part.start != rest.start:
                break
            yield Part(part, region, limits) if region.leader_store_id else Uncovered(part)
            rest = _after(rest, part)
        if rest is None:
            return
        if rest == at:
            yield Uncovered(at)
            return
        at = rest


def _encoded(key: bytes) -> bytes:
    return encode_bytes(key) if key else b""


def _region_span(region: RegionInfo) -> Span:
    start, end = region.start_key, region.end_key
    return Span(decode_bytes(start)[0] if start else b"", decode_bytes(end)[0] if end else b"")


def _after(rest: Span, part: Span) -> Span | None:
    """What remains of `rest` behind `part`, which begins where it begins."""
    if part.end == b"" or part.end == rest.end:
        return None
    return Span(part.end, rest.end)
