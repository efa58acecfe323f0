"""Damaged segments are pulled from TiKV again while readers wait, and what TiKV no longer has is said."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.puller.test_puller import SPAN, World, eventually, fail
from tidegate.errors import Fatal, Retryable
from tidegate.eventstore import damage, reader
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import span_id
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.server.pulling.segment_repairs import SegmentRepairs
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    block_matcher.warm()
    store_kernels.warm()
    upstream = EmbeddedUpstream(tmp_path / "upstream", regions=3)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, tmp_path / "events", random.Random(3))
    pd.close()
    upstream.stop()


class Capture:
    """A store with its puller and its repairs."""

    def __init__(self, world: World, start: int) -> None:
        self.store = EventStore(world.folder)
        self.puller = Puller(world.pd, self.store, on_failure=fail)
        self.puller.watch(SPAN, start)
        self.span = self.store.open_span(SPAN)
        self.repairs = SegmentRepairs(world.pd, self.store)

    def close(self) -> None:
        self.repairs.close()
        self.puller.close()
        self.store.close()


def filled(world: World) -> tuple[Capture, int]:
    start = world.pd.tso()
    capture = Capture(world, start)
    for _ in range(3):
        world.run(20)
        world.await_published(SPAN)
    return capture, start


def spoil(world: World, capture: Capture, number: int, what: str) -> Path:
    """Damage one segment: a byte of a value or of the directory, its end, or all of it."""
    segments = capture.span.manifest.segments
    info = segments[min(number, len(segments) - 1)]
    path = world.folder / capture.span.id / info.file
    good = path.read_bytes()
    if what == "value":
        at = [m.start() for m in re.finditer(rb"\d-\d", good)][-1]
        path.write_bytes(good[:at] + b"?" + good[at + 1 :])
    elif what == "directory":
        path.write_bytes(good[: info.directory] + b"?" + good[info.directory + 1 :])
    elif what == "cut":
        path.write_bytes(good[: len(good) // 2])
    else:
        path.unlink()
    return path


@pytest.mark.parametrize("what", ["value", "cut", "gone"])
def test_a_damaged_segment_is_pulled_again_and_readers_wait_for_it(world: World, what: str) -> None:
    capture, start = filled(world)
    before = sorted(world.stored(SPAN, start))
    last_safe_point = world.pd.gc_safe_point()
    path = spoil(world, capture, 1, what)
    with pytest.raises(Retryable, match="corrupt") as caught:
        world.stored(SPAN, start)
    assert str(path) in caught.value.where
    assert "pulled from TiKV again" in caught.value.fix
    eventually(lambda: capture.repairs.repaired == 1, "the segment to be repaired")
    assert not list(damage.reports(world.folder))
    assert sorted(world.stored(SPAN, start)) == before
    assert not (world.folder / "repair").exists()
    world.run(10)
    world.check(SPAN, start)
    # The hold on history was given back: it does not keep GC from moving on.
    assert world.pd.gc_safe_point() == last_safe_point
    assert world.pd.update_service_gc_safepoint("test", 60, start + 1) in (0, last_safe_point, start + 1)
    capture.close()


def test_a_damaged_directory_is_rebuilt_from_the_rows_after_gc(world: World) -> None:
    """GC has passed the rows, so they cannot be pulled again."""
    capture, start = filled(world)
    before = sorted(world.stored(SPAN, start))
    world.pd.update_service_gc_safepoint("gc_worker", 1 << 40, world.pd.tso())
    path = spoil(world, capture, 1, "directory")

    def of_tables() -> int:
        blocks = reader.read(world.folder, capture.span.id, start, capture.span.resolved, tables=[1])
        return sum(block.num_rows for block in blocks)

    with pytest.raises(Retryable, match="corrupt") as caught:
        of_tables()
    assert f"{path}, the directory" in caught.value.where
    eventually(lambda: not list(damage.reports(world.folder)), "the segment to be written again")
    assert (of_tables(), sorted(world.stored(SPAN, start))) == (0, before)
    capture.close()


def test_what_gc_has_passed_is_fatal_and_says_what_to_do(world: World) -> None:
    capture, start = filled(world)
    now = world.pd.tso()
    world.pd.update_service_gc_safepoint("gc_worker", 1 << 40, now)
    spoil(world, capture, 0, "value")
    with pytest.raises(Retryable, match="corrupt"):
        world.stored(SPAN, start)
    eventually(lambda: any(r.lost for r in damage.reports(world.folder)), "the verdict")
    with pytest.raises(Fatal, match="corrupt") as caught:
        world.stored(SPAN, start)
    assert f"TiKV's GC safepoint {now}" in caught.value.why
    assert "create it again" in caught.value.fix
    # Others than the damaged changes are still served. (On a busy machine all of them were merged into one.)
    damaged_to = capture.span.manifest.segments[0].max_ts
    world.run(5)
    world.await_published(SPAN)
    assert world.stored(SPAN, damaged_to)
    # A span that is removed takes what was said of it along.
    capture.puller.unwatch(SPAN)
    capture.store.remove_span(SPAN)
    assert list(damage.reports(world.folder)) == []
    assert span_id(SPAN) not in {p.name for p in world.folder.iterdir()}
    capture.close()


def test_a_merge_that_meets_damage_reports_it_and_the_span_continues(world: World) -> None:
    capture, start = filled(world)
    spoil(world, capture, 0, "value")
    for _ in range(25):
        world.run(1)
        world.await_published(SPAN)
    eventually(lambda: capture.repairs.repaired == 1, "the merge's own report")
    world.check(SPAN, start)
    capture.close()
