"""A capture prepares for ranges that it will take, while DDL adds and drops their tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.control.barrier import DdlBatch
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import Dispatch, Header, Wish
from tidegate.control.metadata import FeedId
from tidegate.control.processor import Processor
from tidegate.model.span import Span
from tidegate.server.catalogue.catalogues import DDL_SPAN
from tidegate.server.catalogue.stripes import table_task
from tidegate.server.processor.coming_ranges import ComingRanges
from tidegate.server.pulling.spans import SpanRegistry
from tidegate.tidb import keys

ONE = FeedId("default", "one")
CUT = keys.record_span(200).start
MINE, THEIRS = Span(b"", CUT), Span(CUT, b"")


class Taker:
    """A capture that delivers the tables below id 200 and is to take the others."""

    def __init__(self, tables: list[int]) -> None:
        header = Header(1, str(ONE), "i", 7, "b", 1, 0)
        self.machine, self.spans = Processor(header), SpanRegistry()
        self.dropped_to: dict[str, int] = {}
        self.sequence = 0
        self.machine.receive(self.dispatch(100))
        arrivals: Any = SimpleNamespace(manifest=self.manifest)
        ddl: Any = SimpleNamespace(span=DDL_SPAN)
        self.coming = ComingRanges(ONE, self.machine, arrivals, ddl, self.spans, (MINE,), guarded=True)
        tasks = [table_task(table, 100) for table in tables]
        self.machine.open(100, tasks, [], 100)
        self.coming.open(tasks, [])

    def manifest(self, span: str) -> SimpleNamespace:
        return SimpleNamespace(dropped_to=self.dropped_to.get(span, 0))

    def dispatch(self, checkpoint: int) -> Dispatch:
        self.sequence += 1
        header = Header(1, str(ONE), "i", 7, "b", 1, self.sequence)
        granted = [GrantedRange(MINE, (7, 1))]
        return Dispatch(
            header, Wish.RUN, 1, granted, 900, checkpoint, False, coming=(THEIRS,) if checkpoint > 100 else ()
        )

    def learn(self, ts: int, *, added: int | None = None, dropped: int | None = None) -> None:
        tasks = () if added is None else (table_task(added, ts),)
        gone = frozenset() if dropped is None else frozenset({table_task(dropped, ts).id})
        self.coming.learn([DdlBatch(ts, (), tasks, gone)])

    def prepares(self, checkpoint: int) -> set[int]:
        self.coming.take(self.dispatch(checkpoint))
        return {table for table in range(100, 400) if table_task(table, 0).id in self.spans.held}

    def received(self, frontier: dict[int, int], checkpoint: int) -> int:
        self.coming.look({table_task(table, 0).id: ts for table, ts in frontier.items()}, checkpoint)
        return self.machine.received


def test_tables_created_since_the_opening_are_prepared_too() -> None:
    """They would move cold otherwise: the checkpoint would stand while upstream scans them."""
    taker = Taker([100, 200])
    taker.learn(150, added=201)
    assert taker.prepares(160) == {200, 201}
    taker.learn(170, added=202)
    taker.learn(170, added=101)
    assert taker.prepares(160) == {200, 201, 202}, "also while the ranges stay the same; 101 is delivered"
    assert taker.received({200: 300, 201: 300}, 160) == 0
    taker.dropped_to[table_task(202, 0).id] = 170
    assert taker.received({200: 300, 201: 310, 202: 290}, 160) == 290, "it is whole from its DDL on"
    taker.dropped_to[table_task(202, 0).id] = 171
    assert taker.received({200: 300, 201: 310, 202: 290}, 160) == 0


@pytest.mark.parametrize("recovered", [False, True])
def test_a_dropped_table_is_prepared_until_the_checkpoint_has_passed_it(recovered: bool) -> None:
    """Waited for any longer, it would keep the ranges from moving at all: nobody pulls it."""
    taker = Taker([100, 200, 201])
    assert taker.prepares(160) == {200, 201}
    taker.learn(170, dropped=201)
    assert taker.prepares(165) == {200, 201}, "a takeover would begin below the drop"
    if recovered:
        taker.learn(175, added=201)
    assert taker.prepares(180) == ({200, 201} if recovered else {200})
    assert taker.received({200: 300}, 180) == (0 if recovered else 300)
