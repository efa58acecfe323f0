"""Looks at a backlog take the same as if each manifest were read at each look, and read few of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eventstore.few_spans import CHANGE, DDL, FAR, NAMES, START, TASKS, FewSpans

from tidegate.control.barrier import SpanTask
from tidegate.eventstore import store_view
from tidegate.eventstore.manifest import Manifest
from tidegate.pipeline.exchange.feed import Bounds
from tidegate.pipeline.exchange.ranges import Range, deliverable
from tidegate.pipeline.host.backlog import Backlog
from tidegate.server.catalogue.stripes import spans_json

BATCH = 4


class PlainBacklog(Backlog):
    """Reads the manifest of each span that may go further."""

    def _sizes(self, bounds: Bounds, floors: object, frontier: Mapping[str, int]) -> dict[str, int]:
        found = {}
        for place, (span, start_ts) in enumerate(bounds.spans.items()):
            after, upto = max(self._begun.get(span, 0), start_ts), deliverable(bounds, frontier, span)
            if span not in self._out and upto > after and (size := self._pending(place, after, upto, bounds)):
                found[span] = size
        return found


class World:
    """A store of a few spans, and bounds up to which they may go."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = FewSpans(folder / "events"), folder
        self.begin(START)
        self.bound(FAR)
        settings = SimpleNamespace(tidegate=SimpleNamespace(max_batch_bytes=BATCH))
        self.spec: Any = SimpleNamespace(feed_dir=folder, store_dir=self.store.folder, config=settings)

    def begin(self, start_ts: int, tasks: Sequence[SpanTask] = TASKS) -> None:
        """Write `bounds.json`, as it is done when starts rise, or when spans change."""
        spans = spans_json(replace(task, start_ts=start_ts) for task in tasks)
        self._write("bounds.json", {"number": "1", "bound": FAR, "ddl_span": DDL, "spans": spans})

    def bound(self, ts: int) -> None:
        """Write `bound.json`, as it is done while rows come."""
        self._write("bound.json", {"number": "1", "bound": ts})

    def _write(self, name: str, content: dict[str, object]) -> None:
        partial = self.folder / "partial"
        partial.write_text(json.dumps(content))
        partial.replace(self.folder / name)

    def take(self, backlog: Backlog) -> list[list[Range]]:
        def read(store: Path, name: str, known: object) -> Manifest | None:
            return self.store.read(store, name)

        with patch.object(store_view, "read_manifest", read):
            return [one.ranges for one in backlog.take(2)]


TS = st.integers(START, 160)
STEP = st.one_of(
    CHANGE,
    st.tuples(st.sampled_from(["bound", "begin"]), TS),
    st.tuples(st.sampled_from(["take", "done", "give_back", "publish"])),
)


@settings(deadline=None)
@given(steps=st.lists(STEP, max_size=30))
def test_the_same_ranges_are_taken_as_if_each_manifest_were_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    both = Backlog(world.spec, {}), PlainBacklog(world.spec, {})
    out: list[Range] = []
    for what, *given_to in [*steps, ("publish",), ("take",)]:
        match what:
            case "bound" | "begin":
                getattr(world, what)(*given_to)
            case "publish":
                world.store.publish()
            case "take":
                first, second = (world.take(one) for one in both)
                assert first == second
                out += [one for ranges in first for one in ranges]
            case "done" | "give_back":
                for one in both:
                    getattr(one, what)(out)
                out = []
            case _:
                getattr(world.store, what)(*given_to)


def test_a_look_reads_a_manifest_only_if_rows_may_have_come(tmp_path: Path) -> None:
    world = World(tmp_path)
    store, backlog = world.store, Backlog(world.spec, {})
    store.ddl_ts = 200

    def taken(ts: int, *with_row: str) -> tuple[list[str], set[str]]:
        for name in NAMES:
            store.receive(name, ts, name in with_row)
        store.publish()
        store.reads.clear()
        found = [one for ranges in world.take(backlog) for one in ranges]
        backlog.done(found)
        return [one.span for one in found], set(store.reads)

    first, second, _ = NAMES
    assert taken(110) == ([], set(NAMES)), "the first look reads all"
    assert taken(120) == ([], set())
    assert taken(130, first) == ([first], {first})
    assert taken(140) == ([], set())
    world.begin(120)
    assert taken(150, second) == ([second], {second}), "other starts of the same spans"
    assert taken(160) == ([], set())


def test_after_a_ddl_a_look_reads_only_the_manifests_of_new_spans(tmp_path: Path) -> None:
    world = World(tmp_path)
    store, backlog = world.store, Backlog(world.spec, {})
    store.ddl_ts = 200
    first, second, third = TASKS
    at = START
    for tasks, read in (
        ([first, second], {first.id, second.id}),
        ([third, second, first], {third.id}),
        ([second], set()),
    ):
        at += 10
        for name in NAMES:
            store.receive(name, at, False)
        store.publish()
        world.begin(START, tasks)
        store.reads.clear()
        assert world.take(backlog) == []
        assert store.reads.keys() == read


def test_a_row_above_the_bound_is_taken_when_the_bound_rises(tmp_path: Path) -> None:
    """Its manifest was read before, and is named by the floor as before."""
    world = World(tmp_path)
    backlog, name = Backlog(world.spec, {}), NAMES[0]
    world.bound(115)
    world.store.receive(name, 120, True)
    world.store.publish()
    assert world.take(backlog) == []
    world.bound(120)
    assert world.take(backlog) == [[Range(name, START, 120)]]


def test_a_row_that_only_a_later_manifest_has_is_taken(tmp_path: Path) -> None:
    """The upper half of a stripe is complete beyond the floor, by a manifest that no floor names yet."""
    world = World(tmp_path)
    backlog, stripe = Backlog(world.spec, {}), TASKS[-1].id
    for ts in (110, 111):
        world.store.receive(stripe, ts, False)
        world.store.publish()
        assert world.take(backlog) == []
    world.store.lead(stripe, 120, True)
    assert world.take(backlog) == [[Range(stripe, START, 120)]]
