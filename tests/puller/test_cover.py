"""Whatever PD answers, the parts tile the range from its start and the rest is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Retryable
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.puller.cover import Part, Uncovered, cover
from tidegate.tidb.memcomparable import encode_bytes

BOUNDS = Span(b"\x04", b"\x30")


@dataclass
class Pages:
    """A PD whose answers are given: pages of regions as (from, to, leader's store), or None for no answer."""

    pages: list[list[tuple[int, int, int]] | None]

    def store_address(self, store_id: int) -> str:
        return "here"

    def scan_ranges(self, ranges: list[tuple[bytes, bytes]], limit: int) -> list[RegionInfo]:
        page = self.pages.pop(0) if self.pages else None
        if page is None:
            raise Retryable("PD does not answer")
        keys = [(encode_bytes(bytes([low])), encode_bytes(bytes([high])), store) for low, high, store in page]
        return [RegionInfo(1 + i, low, high, 1, 1, 40, store) for i, (low, high, store) in enumerate(keys)]


def covered(pages: list[list[tuple[int, int, int]] | None]) -> list[Part | Uncovered]:
    pd: Any = Pages(pages)
    return [found for _, parts in cover(pd, [BOUNDS]) for found in parts]


def test_a_hole_a_missing_leader_and_a_pd_that_is_away_leave_the_rest() -> None:
    whole = covered([[(0, 16, 1), (16, 32, 2)], [(32, 64, 3)]])
    assert [found.bounds for found in whole] == [
        Span(b"\x04", b"\x10"),
        Span(b"\x10", b"\x20"),
        Span(b"\x20", b"\x30"),
    ]
    assert all(isinstance(found, Part) for found in whole)
    left = Uncovered(Span(b"\x10", b"\x30"))
    assert covered([[(0, 16, 1), (17, 64, 2)], [(17, 64, 2)]])[1:] == [left]
    assert covered([[(0, 16, 1), (16, 64, 0)]])[1:] == [left]
    assert covered([[(0, 16, 1)], None])[1:] == [left]
    assert covered([[]]) == [Uncovered(BOUNDS)]


def test_a_region_without_leader_holds_up_none_behind_it() -> None:
    first, second, third = covered([[(0, 16, 1), (16, 32, 0), (32, 64, 3)]])
    assert (type(first), second, type(third)) == (Part, Uncovered(Span(b"\x10", b"\x20")), Part)
    assert third.bounds == Span(b"\x20", b"\x30")


REGION = st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(0, 2))


@given(st.lists(st.lists(REGION, max_size=4), max_size=5))
def test_parts_never_overlap_nor_leave_a_gap(pages: list[list[tuple[int, int, int]]]) -> None:
    given_pages: Any = [[(low, low + size, store) for low, size, store in page] for page in pages]
    at = BOUNDS.start
    for found in covered(given_pages):
        assert found.bounds.start == at
        at = found.bounds.end
        if isinstance(found, Part):
            assert found.region.leader_store_id
            assert found.limits.intersect(found.bounds) == found.bounds
    assert at == BOUNDS.end
