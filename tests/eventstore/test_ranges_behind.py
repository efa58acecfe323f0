"""Ranges of a stripe that are behind: who wants nothing of them reads on, and lacks no row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tidegate.eventstore import reader, store_view
from tidegate.eventstore.floors import FloorReader
from tidegate.eventstore.manifest import RegionRange, highest, joined, load_manifest
from tidegate.eventstore.order import Entry, block_of, entries_of
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore
from tidegate.eventstore.store_view import Unresolved, Wanted, lifted, reach_of
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.tidb import keys

FIRST, WIDTH = 64, 16
SPAN = keys.stripe_span(FIRST, WIDTH)
IDS = range(FIRST, FIRST + WIDTH)


def row(table: int, handle: int, ts: int) -> Entry:
    return Entry(ts, ts - 1, 1, keys.int_record(table, handle), b"%d" % ts, b"")


def bits(tables: Sequence[int]) -> int:
    return sum(1 << table - FIRST for table in tables)


def some_ranges(chance: Random) -> list[Span]:
    """Regions of the stripe, with edges between tables and inside their records and indexes."""
    edges = {SPAN.start}
    for _ in range(chance.randrange(1, 8)):
        table = chance.choice(IDS)
        inside = [
            keys.table_prefix(table),
            keys.record_prefix(table),
            keys.int_record(table, chance.randrange(20)),
            keys.table_prefix(table) + b"_i" + bytes(8),
        ]
        edges.add(chance.choice(inside))
    ordered = sorted(edges)
    return [Span(start, end) for start, end in zip(ordered, [*ordered[1:], SPAN.end], strict=True)]


class Behind:
    """Open a store whose ranges are reported at these ts, with all rows up to there."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = Random(seed)
        self.folder = folder
        self.ranges = some_ranges(self.chance)
        self.rows = [
            row(self.chance.choice(IDS), self.chance.randrange(20), ts)
            for ts in sorted(self.chance.sample(range(101, 1000), 200))
        ]
        self.far = dict.fromkeys(self.ranges, 100)
        self.store = EventStore(folder)
        self.span: SpanStore = self.store.open_span(SPAN)
        self.span.begin(100)

    def advance(self) -> None:
        """Some ranges come further, with their rows; which may wait in memory."""
        for each in self.chance.sample(self.ranges, self.chance.randint(1, len(self.ranges))):
            ts = self.chance.randint(self.far[each], 1000)
            fresh = [r for r in self.rows if each.contains(r.key) and self.far[each] < r.commit_ts <= ts]
            if fresh:
                self.span.append(block_of(fresh))
            self.far[each] = ts
        if self.chance.random() < 0.7:
            self.span.keep([(each, self.far[each]) for each in self.ranges])
        if self.chance.random() < 0.5:
            self.span.seal(min(self.far.values()))
        self.store.publish()

    def check(self) -> None:
        tables = self.chance.sample(IDS, self.chance.randint(1, WIDTH))
        wanted: Wanted = (FIRST, bits(tables))
        reach = reach_of(load_manifest(self.folder / self.span.id), wanted)
        after = self.chance.randint(100, max(100, reach))
        blocks = reader.read(
            self.folder, self.span.id, after, reach, tables=tables, wanted=lambda span: wanted
        )
        found = [entry for block in blocks for entry in entries_of(block)]
        assert found == [
            r
            for r in self.rows
            if after < r.commit_ts <= reach and keys.parse_record(r.key).table_id in tables
        ]


@pytest.mark.parametrize("seed", range(12))
def test_who_wants_some_tables_finds_all_their_rows_however_far_others_are(tmp_path: Path, seed: int) -> None:
    behind = Behind(tmp_path, seed)
    for _ in range(12):
        behind.advance()
        for _ in range(5):
            behind.check()
    assert behind.span.resolved < 1000 or len(behind.ranges) == 1


def test_a_reader_who_needs_what_is_behind_is_refused(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    span.append(block_of([row(70, 1, 150)]))
    edge = keys.table_prefix(66)
    span.keep([(Span(SPAN.start, edge), 120), (Span(edge, SPAN.end), 200)])
    store.publish()

    def read(upto: int, wanted: Wanted | None) -> list[int]:
        blocks = reader.read(tmp_path, span.id, 100, upto, wanted=lambda span: wanted)
        return [entry.commit_ts for block in blocks for entry in entries_of(block)]

    assert read(200, (FIRST, bits([66, 70]))) == [150]
    for upto, wanted in ((201, (FIRST, bits([70]))), (200, (FIRST, bits([65, 70]))), (200, None)):
        with pytest.raises(Unresolved):
            read(upto, wanted)


def test_a_range_that_is_pulled_again_does_not_go_back(tmp_path: Path) -> None:
    """Regions were merged: the new one begins at the ts of the one that was behind."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    edge = keys.table_prefix(66)
    span.keep([(Span(SPAN.start, edge), 120), (Span(edge, SPAN.end), 200)])
    span.keep([(SPAN, 120)])
    store.close()
    manifest = load_manifest(tmp_path / span.id)
    assert reach_of(manifest, (FIRST, bits([70]))) == 200
    assert reach_of(manifest, (FIRST, bits([65]))) == 120
    assert EventStore(tmp_path).open_span(SPAN).resolved == 120


def test_a_run_is_merged_with_its_neighbours_while_the_floor_is_fixed(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    edge = keys.table_prefix(66)
    for ts in range(200, 300):
        span.append(block_of([row(70, 1, ts)]))
        span.keep([(Span(SPAN.start, edge), 120), (Span(edge, SPAN.end), ts)])
    store.publish()
    assert len(list((tmp_path / span.id).glob("*.arrow"))) < 40
    blocks = reader.read(tmp_path, span.id, 100, 299, wanted=lambda span: (FIRST, bits([70])))
    assert [entry.commit_ts for block in blocks for entry in entries_of(block)] == [*range(200, 300)]


def test_a_damaged_run_is_left_alone_and_the_others_are_merged(tmp_path: Path) -> None:
    """It is repaired when the floor has passed it; until then no other file is read repeatedly for it."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    edge = keys.table_prefix(66)
    for ts in range(200, 400):
        span.append(block_of([row(70, 1, ts)]))
        span.keep([(Span(SPAN.start, edge), 120), (Span(edge, SPAN.end), ts)])
        if ts == 205:
            file = tmp_path / span.id / load_manifest(tmp_path / span.id).segments[-1].file
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 0xFF
            file.write_bytes(data)
    assert len(list((tmp_path / span.id).glob("*.arrow"))) < 60


def test_a_reader_who_begins_above_the_floor_keeps_what_other_ranges_have(tmp_path: Path) -> None:
    """As at a restart, when the slowest range is one that nobody wants."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    edge = keys.table_prefix(66)
    span.append(block_of([row(70, 1, 150), row(65, 1, 155)]))
    span.keep([(Span(SPAN.start, edge), 160), (Span(edge, SPAN.end), 180)])
    span.append(block_of([row(70, 1, 250)]))
    span.keep([(Span(SPAN.start, edge), 160), (Span(edge, SPAN.end), 300)])
    store.close()
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(200)
    store.publish()
    assert (span.complete_from, span.resolved) == (200, 200)
    assert [ts for _, ts in span.ranges] == [200, 300]
    assert len(load_manifest(tmp_path / span.id).segments) == 1
    blocks = reader.read(tmp_path, span.id, 200, 300, wanted=lambda span: (FIRST, bits([70])))
    assert [entry.commit_ts for block in blocks for entry in entries_of(block)] == [250]
    span.append(block_of([row(65, 2, 210)]))
    span.seal(300)
    store.publish()
    blocks = reader.read(tmp_path, span.id, 200, 300)
    assert [entry.commit_ts for block in blocks for entry in entries_of(block)] == [210, 250]


def test_a_frontier_is_lifted_only_where_it_does_not_advance(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    start = compose(1_000_000)
    span.begin(start)
    edge = keys.table_prefix(66)
    far = start + compose(5000)
    span.keep([(Span(SPAN.start, edge), start), (Span(edge, SPAN.end), far)])
    store.publish()
    looked: list[str] = []

    def manifest_of(name: str) -> store_view.Manifest:
        looked.append(name)
        return load_manifest(tmp_path / name)

    def of(tables: Sequence[int], upto: int) -> int:
        frontier = store_view.read_frontier(tmp_path)
        return lifted(frontier, {span.id: (FIRST, bits(tables))}, upto, manifest_of)[span.id]

    assert of([70], far) == far
    assert of([65], far) == of([65, 70], far) == start
    looked.clear()
    assert of([70], start + compose(900)) == start
    assert looked == []
    store.withdraw(span.id)  # as when the span is begun again
    with pytest.raises(KeyError):
        of([70], far)


def test_the_page_shows_what_is_kept_while_the_floor_is_fixed(tmp_path: Path) -> None:
    """Else nobody who looks at the page alone would look at the manifest."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    store.publish()
    page = FloorReader(tmp_path)
    edge = keys.table_prefix(66)
    for ts in (200, 300):  # the second time without a row
        before, versions = page.mark(), page.versions([span.id])
        assert before is not None
        if ts == 200:
            span.append(block_of([row(70, 1, 150)]))
        span.keep([(Span(SPAN.start, edge), 100), (Span(edge, SPAN.end), ts)])
        store.publish()
        now = page.mark()
        assert now is not None
        assert now.changed_since(before) == {span.id}
        assert page.versions([span.id]) != versions
        assert page.read()[span.id] == 100


@pytest.mark.parametrize("seed", range(20))
def test_of_two_tilings_each_key_has_the_higher_ts(seed: int) -> None:
    chance = Random(seed)

    def tiling() -> list[RegionRange]:
        return [RegionRange(r.start, r.end, chance.randrange(100)) for r in some_ranges(chance)]

    a, b = tiling(), tiling()
    found = joined(highest(a, b))
    assert [r.end for r in found[:-1]] == [r.start for r in found[1:]]
    assert (found[0].start, found[-1].end) == (SPAN.start, SPAN.end)

    def at(ranges: Sequence[RegionRange], key: bytes) -> int:
        return next(r.resolved for r in ranges if Span(r.start, r.end).contains(key))

    for table in IDS:
        for key in (keys.table_prefix(table), keys.record_prefix(table), keys.int_record(table, 7)):
            assert at(found, key) == max(at(a, key), at(b, key))
