"""No span passes an undelivered row in a real event store, whatever happens to its files, and none waits on.

A changefeed with two spans is looked at by the control process (`Arrivals`) and by the pipeline (`Backlog`),
while a puller receives, keeps, drops and pulls again, ends at any moment, and loses the page of floors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eventstore.few_spans import STRIPE

from tidegate.control.barrier import SpanTask
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import Dispatch, Header, Wish
from tidegate.control.processor import Processor
from tidegate.eventstore import reader
from tidegate.eventstore.floors import FLOORS
from tidegate.eventstore.order import Entry, block_of, entries_of
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import compose
from tidegate.pipeline.host.backlog import Backlog
from tidegate.server.catalogue.catalogues import DDL_SPAN, DDL_SPAN_ID
from tidegate.server.catalogue.stripes import spans_json, table_task
from tidegate.server.node import Node
from tidegate.server.processor.arrivals import Arrivals
from tidegate.tidb import keys

START: Final = compose(1_000_000)
STEP: Final = compose(25_000)
"""25 s: after some steps without rows a manifest follows its floor."""
FAR: Final = compose(1_000_000_000)
WANTED: Final = 126
TASKS: Final = (
    table_task(10, START),
    SpanTask(span_id(STRIPE), STRIPE, WANTED, START, wanted=1 << 62),
)
NAMES: Final = [task.id for task in TASKS]
TABLES: Final = dict(zip(NAMES, [(10, 10), (70, WANTED)], strict=True))
"""For each span a table in its lower half and one in its upper half, which is wanted."""
EDGES: Final = dict(zip(NAMES, [keys.int_record(10, 50), keys.table_prefix(100)], strict=True))


class Store:
    """An event store with the spans of a changefeed, and its puller."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.others = folder, START, 0
        self.rows: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
        """All rows of upstream: commit_ts and table."""
        self.sent = dict.fromkeys(NAMES, START)
        """The rows up to there were appended since the span was opened, or began again."""
        self.open()
        for task in TASKS:
            self.spans[task.id].begin(START)
        self.store.publish()

    def open(self) -> None:
        self.store = EventStore(self.folder)
        self.spans: dict[str, SpanStore] = {task.id: self.store.open_span(task.span) for task in TASKS}
        ddl = self.store.open_span(DDL_SPAN)
        ddl.begin(START)
        ddl.seal(FAR)

    def row(self, name: str, half: int) -> None:
        """Upstream has another row in one half of a span."""
        self.clock += STEP
        self.rows[name].append((self.clock, TABLES[name][half]))

    def wanted(self, name: str) -> list[int]:
        return [ts for ts, table in self.rows[name] if table in (10, WANTED)]

    def append(self, name: str) -> None:
        """Receive all rows that the span lacks."""
        self._send(self.spans[name], name, max(self.sent[name], self.spans[name].resolved), self.clock)
        self.sent[name] = self.clock

    def _send(self, span: SpanStore, name: str, after: int, upto: int) -> None:
        rows = [(ts, table) for ts, table in self.rows[name] if after < ts <= upto]
        # In a table the row is in the lower half if its ts is even, and in a stripe its table says it.
        places = [(ts, keys.int_record(table, 90 if ts // STEP % 2 else 9)) for ts, table in rows]
        if places:
            span.append(block_of([Entry(ts, ts - 1, 1, key, b"%d" % ts, b"") for ts, key in places]))

    def seal(self, name: str) -> None:
        self.clock += STEP
        self.append(name)
        self.spans[name].seal(self.clock)

    def keep(self, name: str) -> None:
        """The upper half is complete up to now, and the lower half waits."""
        self.append(name)
        span, edge = self.spans[name], EDGES[name]
        parts = Span(span.span.start, edge), Span(edge, span.span.end)
        span.keep(list(zip(parts, (span.resolved, self.clock), strict=True)))

    def spill(self, name: str) -> None:
        self.append(name)
        self.spans[name].spill()

    def shed(self, name: str) -> None:
        """Give up what is above the floor, because the store is full."""
        self.spans[name].shed()
        self.sent[name] = self.spans[name].resolved

    def drop(self, name: str, ts: int) -> None:
        self.spans[name].drop_below(ts)

    def begin(self, name: str, ts: int) -> None:
        """Another changefeed begins at some ts, which may be beyond the floor."""
        self.spans[name].begin(min(ts, self.clock))
        self.sent[name] = self.spans[name].resolved

    def prepend(self, name: str, after: int) -> None:
        """Pull what was dropped above some ts, in a store of its own."""
        live = self.spans[name]
        if (upto := live.complete_from) <= after:
            return
        self.others += 1
        other = EventStore(self.folder.parent / f"other{self.others}")
        pulled = other.open_span(live.span)
        pulled.begin(after)
        self._send(pulled, name, after, upto)
        pulled.seal(upto)
        assert live.prepend(pulled, after, upto)
        other.close()

    def reopen(self, name: str) -> None:
        """The puller ends and comes again."""
        self.store.close()
        self.open()
        self.sent = {name: span.resolved for name, span in self.spans.items()}

    def lose_page(self, name: str) -> None:
        (self.folder / FLOORS).unlink(missing_ok=True)

    def close(self) -> None:
        self.store.close()


class Feed:
    """A changefeed that follows the spans."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.delivered: dict[str, set[int]] = {name: set() for name in NAMES}
        header = Header(1, "default/one", "one", 1, "here", 1, 1)
        self.machine = Processor(header)
        everything = GrantedRange(Span(b"", b""), (1, 1))
        self.machine.receive(Dispatch(header, Wish.RUN, 1, (everything,), FAR, START, load=False))
        self.machine.open(START, TASKS, [], FAR)
        manifest: Any = partial(Node.manifest, SimpleNamespace(manifests={}))  # type: ignore[arg-type]
        self.arrivals = Arrivals(self.machine, store.folder, DDL_SPAN_ID, manifest)
        self.arrivals.check_beginning_of(NAMES)
        self.raise_starts()
        sizes = SimpleNamespace(tidegate=SimpleNamespace(max_batch_bytes=1 << 20))
        spec: Any = SimpleNamespace(feed_dir=folder, store_dir=store.folder, config=sizes)
        self.backlog = Backlog(spec, {})

    def durable(self, name: str) -> int:
        return self.machine.spans.durable(name)

    def undelivered(self, name: str) -> list[int]:
        return [ts for ts in self.store.wanted(name) if ts not in self.delivered[name]]

    def raise_starts(self) -> None:
        tasks = (replace(task, start_ts=self.durable(task.id)) for task in TASKS)
        content = {"number": "1", "bound": FAR, "ddl_span": DDL_SPAN_ID, "spans": spans_json(tasks)}
        partial = self.folder / "partial"
        partial.write_text(json.dumps(content))
        partial.replace(self.folder / "bounds.json")

    def tick(self) -> None:
        frontier = self.arrivals.frontier()
        self.arrivals.advance_idle(frontier, self.arrivals.lifted(frontier))
        for name in NAMES:
            assert all(self.durable(name) < row for row in self.undelivered(name)), "a row was passed"

    def take(self) -> bool:
        """Deliver what waits. Whether anything did."""
        found = [one for each in self.backlog.take(2) for one in each.ranges]
        for one in found:
            assert all(one.after < row for row in self.undelivered(one.span)), "a row was passed"
            wanted = self.machine.spans.stripes.get
            blocks = reader.read(self.store.folder, one.span, one.after, one.upto, wanted=wanted)
            rows = {entry.commit_ts for block in blocks for entry in entries_of(block)}
            assert {row for row in self.store.wanted(one.span) if one.after < row <= one.upto} <= rows
            self.delivered[one.span] |= rows
            self.machine.report((1, 1), 1, {one.span: one.upto})
        self.backlog.done(found)
        return bool(found)

    def end(self) -> None:
        """Everything comes, and is delivered."""
        for name in NAMES:
            self.store.begin(name, self.durable(name))
            self.store.seal(name)
        self.store.store.publish()
        self.tick()
        assert set(self.arrivals.undelivered) == {name for name in NAMES if self.undelivered(name)}
        self.raise_starts()
        while self.take():
            self.tick()
        self.tick()
        for name in NAMES:
            assert not self.undelivered(name)
            assert self.durable(name) == self.store.spans[name].resolved
        assert self.arrivals.all_idle


NAME = st.sampled_from(NAMES)
CHANGE = st.one_of(
    st.tuples(st.just("row"), NAME, st.sampled_from([0, 1])),
    st.tuples(st.sampled_from(["seal", "keep", "spill", "shed", "reopen", "lose_page"]), NAME),
    st.tuples(st.sampled_from(["drop", "begin", "prepend"]), NAME, st.integers(0, 20)),
)
LOOKS: dict[str, Callable[[Feed], object]] = {
    "tick": Feed.tick,
    "take": Feed.take,
    "raise_starts": Feed.raise_starts,
    "publish": lambda feed: feed.store.store.publish(),
}


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(
        st.tuples(CHANGE, st.lists(st.sampled_from(["publish", "publish", *LOOKS]), max_size=3)),
        min_size=5,
        max_size=20,
    )
)
def test_no_span_passes_an_undelivered_row_and_none_waits_for_good(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[tuple[Any, ...], list[str]]]
) -> None:
    folder = tmp_path_factory.mktemp("feed")
    store = Store(folder / "events")
    feed = Feed(store, folder)
    for (what, name, *given_to), looks in steps:
        match what:
            case "prepend":
                store.prepend(name, feed.durable(name))
            case "drop" | "begin":
                getattr(store, what)(name, START + given_to[0] * STEP)
            case _:
                getattr(store, what)(name, *given_to)
        for look in looks:
            LOOKS[look](feed)
    feed.end()
    store.close()
