"""Finds the regions of many ranges in one walk through PD's regions, in key order, page by page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidegate.errors import Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.kvclient.stores import StoreGone
from tidegate.model.span import Span
from tidegate.tidb.memcomparable import decode_bytes, encode_bytes

REGIONS_PER_CALL: Final = 1024


class Part(NamedTuple):
    """The part of a range that one region holds. `limits`: all keys of the region."""

    bounds: Span
    region: RegionInfo
    limits: Span


class Uncovered(NamedTuple):
    """A part of a range without a known region or leader store, or any part while PD does not answer."""

    bounds: Span


Found = Part | Uncovered


def cover(pd: PdClient, wanted: Sequence[Span]) -> Iterator[tuple[int, list[Found]]]:
    """Tile each range with parts from its start on. Yields (index of the range, some of its parts).

    The parts of a range come in key order. One call asks PD for `REGIONS_PER_CALL` regions, whatever number
    of ranges they belong to. PD knows the address of the leader store of each `Part`. If PD knows no region
    for the rest of a range, that rest comes last, as `Uncovered`.
    """
    # PD takes ascending ranges only.
    left = sorted(enumerate(wanted), key=lambda one: one[1].start)
    while left:
        try:
            page = pd.scan_ranges(_joined([span for _, span in left]), REGIONS_PER_CALL)
            served = _served(pd, page)
        # The caller asks again later for what is not covered; the parts that were found can begin meanwhile.
        except Retryable:
            for number, span in left:
                yield number, [Uncovered(span)]
            return
        regions = [(limits_of(region), region) for region in page]
        starts = [limits.start for limits, _ in regions]
        rests = []
        for number, span in left:
            # A full page ends somewhere: nothing is known yet of a range behind its last region.
            if len(page) >= REGIONS_PER_CALL and _is_behind(span, regions[-1][0]):
                rests.append((number, span))
                continue
            parts, rest = _tile(span, regions, starts, served)
            # No region at its start. Without this the loop would ask for the same range forever.
            if rest == span:
                parts, rest = [Uncovered(span)], None
            yield number, parts
            if rest is not None:
                rests.append((number, rest))
        left = rests


def limits_of(region: RegionInfo) -> Span:
    """The bounds of a region as raw keys."""
    start, end = region.start_key, region.end_key
    return Span(decode_bytes(start)[0] if start else b"", decode_bytes(end)[0] if end else b"")


def _tile(
    span: Span, regions: list[tuple[Span, RegionInfo]], starts: list[bytes], served: frozenset[int]
) -> tuple[list[Found], Span | None]:
    """The parts from the start of `span` up to the first gap, and the rest from there (None: no gap)."""
    parts: list[Found] = []
    rest: Span | None = span
    # The region that begins before the range may reach into it.
    for limits, region in regions[max(bisect_right(starts, span.start) - 1, 0) :]:
        part = span.intersect(limits)
        # A gap: PD's answer may lack a region that is being split or merged at this moment.
        if rest is None or part is None or part.start != rest.start:
            break
        parts.append(Part(part, region, limits) if region.leader_store_id in served else Uncovered(part))
        rest = _after(rest, part)
    return parts, rest


def _served(pd: PdClient, regions: list[RegionInfo]) -> frozenset[int]:
    """The stores that lead one of these regions and whose address PD knows."""
    found = set()
    for store_id in {region.leader_store_id for region in regions} - {0}:
        try:
            pd.store_address(store_id)
        except StoreGone:
            continue
        found.add(store_id)
    return frozenset(found)


def _joined(spans: list[Span]) -> list[tuple[bytes, bytes]]:
    """Ascending spans as encoded ranges. Neighbours are joined: thousands of regions are a few ranges."""
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if last is None or (last.end != b"" and last.end < span.start):
            found.append(span)
        elif last.end != b"" and (span.end == b"" or span.end > last.end):
            found[-1] = Span(last.start, span.end)
    return [(_encoded(span.start), _encoded(span.end)) for span in found]


def _is_behind(span: Span, last: Span) -> bool:
    return last.end != b"" and span.start >= last.end


def _encoded(key: bytes) -> bytes:
    return encode_bytes(key) if key else b""


def _after(rest: Span, part: Span) -> Span | None:
    """The remainder of `rest` behind `part`; both begin at the same key."""
    if part.end == b"" or part.end == rest.end:
        return None
    return Span(part.end, rest.end)
