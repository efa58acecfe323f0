"""Idle spans advance without a look at their manifests: against plain steps span by span, and by example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eventstore.few_spans import CHANGE, DDL, FAR, NAMES, START, TASKS, FewSpans

from tidegate.control.barrier import SpanTask
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import Dispatch, Header, Wish
from tidegate.control.open_spans import Received
from tidegate.control.processor import Processor
from tidegate.eventstore import store_view
from tidegate.eventstore.manifest import StoreFrontier
from tidegate.model.span import Span
from tidegate.server.processor.arrivals import Arrivals


class PlainArrivals(Arrivals):
    """Reads the manifest of each span whose floor is beyond what is durable."""

    def advance_idle(self, frontier: StoreFrontier, reached: Mapping[str, int]) -> None:
        idle, undelivered = [], []
        lacking = self._begin_late()
        moved = list(self._machine.spans.beyond(reached, self._machine.bound))
        for span, after, upto in moved:
            manifest = self.manifest(span)
            if manifest is None or manifest.dropped_to > after:
                lacking.add(span)
                continue
            if max(frontier.reach(span, manifest), self._reach_of(span, manifest)) < upto:
                continue
            if store_view.pending(manifest, after, upto)[0] and self._has_rows(span, manifest, after, upto):
                undelivered.append(span)
            else:
                idle.append((span, after, upto))
        self.undelivered, self.lacking, self.all_idle = undelivered, lacking, len(idle) == len(moved)
        again = self.lifted(self.frontier())
        self._machine.idle(Received.by_name(one for one in idle if again.get(one[0], 0) >= one[2]))


def opened(store: FewSpans, kind: type[Arrivals]) -> tuple[Processor, Arrivals]:
    header = Header(1, "default/one", "one", 1, "here", 1, 1)
    machine = Processor(header)
    everything = GrantedRange(Span(b"", b""), (1, 1))
    machine.receive(Dispatch(header, Wish.RUN, 1, (everything,), FAR, START, load=False))
    machine.open(START, TASKS, [], FAR)
    found = kind(machine, store.folder, DDL, store.read)
    found.check_beginning_of(NAMES)
    return machine, found


def tick(arrivals: Arrivals) -> None:
    frontier = arrivals.frontier()
    arrivals.advance_idle(frontier, arrivals.lifted(frontier))


def seen(machine: Processor, arrivals: Arrivals) -> tuple[object, ...]:
    durable = [machine.spans.durable(name) for name in NAMES]
    return durable, arrivals.undelivered, arrivals.lacking, arrivals.all_idle


STEP = st.one_of(CHANGE, st.tuples(st.just("deliver"), st.sampled_from(NAMES)))


@settings(deadline=None)
@given(steps=st.lists(st.tuples(STEP, st.booleans(), st.booleans()), max_size=25), waits=st.booleans())
def test_the_same_spans_advance_as_if_each_manifest_were_read(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[tuple[Any, ...], bool, bool]],
    waits: bool,
) -> None:
    """With `waits`, manifests may be ahead of the page. Then the two may take a different number of ticks,
    but no span passes a row that was not delivered, not even one that the store has dropped.
    """
    store = FewSpans(tmp_path_factory.mktemp("store"))
    both = [opened(store, kind) for kind in (Arrivals, PlainArrivals)]
    for (what, name, *given_to), publishes, ticks in steps:
        if what == "deliver":
            for machine, _ in both:
                machine.report((1, 1), 1, {name: store.last[name]})
        else:
            getattr(store, what)(name, *given_to)
        if publishes or not waits:
            store.publish()
        if ticks:
            for _, arrivals in both:
                tick(arrivals)
            if not waits:
                assert seen(*both[0]) == seen(*both[1])
        delivered = both[0][0].spans._reported
        for name, rows in store.rows.items():
            left = [row for row in rows if row > delivered.get(name, 0)]
            assert all(both[0][0].spans.durable(name) < row for row in left), (name, left)


def test_a_manifest_is_read_again_only_if_a_floor_names_another_one(tmp_path: Path) -> None:
    store = FewSpans(tmp_path)
    store.ddl_ts = 200
    machine, arrivals = opened(store, Arrivals)

    def reads() -> dict[str, int]:
        store.publish()
        store.reads.clear()
        tick(arrivals)
        return dict(store.reads)

    reads()  # the beginning of each is checked
    for ts in (110, 120, 130):
        for name in NAMES:
            store.receive(name, ts, False)
        assert reads() == ({} if ts > 110 else dict.fromkeys(NAMES, 1))
        assert [machine.spans.durable(name) for name in NAMES] == [ts] * 3
    first, second, third = NAMES
    store.receive(first, 140, True)
    store.receive(second, 140, False)
    store.change(second)
    store.receive(third, 140, False)
    assert reads() == {first: 1, second: 1}
    assert (seen(machine, arrivals)[:2]) == ([130, 140, 140], [first])
    machine.report((1, 1), 1, {first: 140})
    for name in NAMES:
        store.receive(name, 150, False)
    assert reads() == {}
    assert arrivals.all_idle


def test_after_a_ddl_only_the_manifests_of_new_spans_are_read(tmp_path: Path) -> None:
    store = FewSpans(tmp_path)
    store.ddl_ts = 200
    machine, arrivals = opened(store, Arrivals)
    first, second, third = NAMES
    wanted = replace(TASKS[-1], wanted=1 << 61)
    at = START
    for ddls, read in (
        ([], set(NAMES)),
        ([({first}, ()), ((), [wanted])], set()),
        ([((), [SpanTask(first, TASKS[0].span, 10, START)])], {first}),
    ):
        at += 10
        for name in NAMES:
            store.receive(name, at, False)
        store.publish()
        machine.spans.change(ddls)
        store.reads.clear()
        tick(arrivals)
        assert store.reads.keys() == read
        assert {machine.spans.durable(name) for name in (second, third)} == {at}


def test_a_row_that_the_manifest_read_before_lacks_is_not_passed(tmp_path: Path) -> None:
    """The floor names the manifest that has the row, and the one that was read before has none."""
    store = FewSpans(tmp_path)
    machine, arrivals = opened(store, Arrivals)
    name = NAMES[0]
    store.receive(name, 110, False)
    store.publish()
    tick(arrivals)
    store.receive(name, 120, True)
    store.receive(name, 130, False)
    store.publish()
    tick(arrivals)
    assert (machine.spans.durable(name), arrivals.undelivered) == (110, [name])


def test_a_row_that_only_a_later_manifest_has_is_not_passed(tmp_path: Path) -> None:
    """The upper half of a stripe is complete beyond the floor, by a manifest that no floor names yet."""
    store = FewSpans(tmp_path)
    machine, arrivals = opened(store, Arrivals)
    stripe = NAMES[-1]
    for ts in (110, 111):
        store.receive(stripe, ts, False)
        store.publish()
        tick(arrivals)
    store.lead(stripe, 120, True)
    tick(arrivals)
    assert (machine.spans.durable(stripe), arrivals.undelivered) == (111, [stripe])


def test_a_span_that_is_restarted_during_a_tick_does_not_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FewSpans(tmp_path)
    machine, arrivals = opened(store, Arrivals)
    name = NAMES[0]
    for ts in (110, 120):
        store.receive(name, ts, False)
        store.publish()
        if ts == 110:
            tick(arrivals)
    frontier = arrivals.frontier()
    store.restart(name)
    arrivals.advance_idle(frontier, arrivals.lifted(frontier))
    assert machine.spans.durable(name) == 110


def test_the_spans_of_a_ddl_are_looked_at_in_their_own_order(tmp_path: Path) -> None:
    """A note about one span must not count for the one that takes its place."""
    store = FewSpans(tmp_path)
    machine, arrivals = opened(store, Arrivals)
    first, second, _ = NAMES
    store.receive(first, 110, False)
    store.publish()
    tick(arrivals)
    store.receive(second, 110, True)
    store.manifests[second] = replace(store.manifests[second], version=store.manifests[first].version)
    store.publish()
    machine.spans.change([({first}, [SpanTask(first, TASKS[0].span, 10, START)])])
    tick(arrivals)
    assert machine.spans.durable(second) == START
    assert arrivals.undelivered == [second]
