"""Which spans hold the tables that a feed wants. Pure.

    width 1     a span for each table: its records and nothing else
    more        tables whose ids are neighbours share one: a *stripe*
    cuts        keys inside tables at which such a span is cut into pieces, each a span of its own

A stripe's edges are multiples of its width in table ids, so they follow from an id alone. Nothing about them
is stored, feeds of the same width have the same stripes, and DDL changes which tables of a stripe are wanted
but never the stripe. Cuts do not follow from ids: they are chosen (`server.catalogue.table_cuts`, `hot_cuts`)
and stored in the feed's settings. Which tables are wanted at a commit ts follows from the feed's rules and
the schema history. Planners get the answer as a number (`SpanTask.wanted`); decoders of rows look it up
(`mounter.decode`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
import orjson

from tidegate.config.values import IDS_PER_STRIPE_MAX
from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.model.span import Span, span_id
from tidegate.tidb import keys, memcomparable

TABLES_APART: Final = 100
"""With at most this many tables each has a span of its own. Each span is a folder, a manifest that is written
again every minute or two, and a registration in each region that it touches.
"""
SPARSE_APART: Final = 1_000
"""The same for tables that are far apart: stripes of them would pull the rows of the tables between."""
SPARSE: Final = 1 / 8
"""Tables are far apart if less than this share of the ids in their stripes is theirs. Neighbouring tables of
TiDB have every second id: each CREATE TABLE takes another one for its job.
"""
STRIPES: Final = 48
"""The target for the number of stripes."""
SPANS_MAX: Final = 1_000
"""With more spans than this a feed that has grown should get a greater width (`wider`)."""
SPANS_REMEMBERED: Final = 1 << 17
"""Spans whose names are cached, so that another feed of the same tables opens in milliseconds."""


@lru_cache(SPANS_REMEMBERED)
def _record_span(physical_id: int) -> tuple[str, Span]:
    span = keys.record_span(physical_id)
    return span_id(span), span


@lru_cache(SPANS_REMEMBERED)
def _stripe(first: int, width: int) -> tuple[str, Span]:
    span = keys.stripe_span(first, width)
    return span_id(span), span


def chosen_width(tables: Iterable[int]) -> int:
    """The width for a feed that begins with these physical ids.

    1 for few tables, and for some more that are far apart; otherwise the least power of two with which they
    are in at most `STRIPES` stripes.
    """
    ids = np.fromiter(tables, np.int64)
    if len(ids) <= TABLES_APART:
        return 1
    width = 2
    while width < IDS_PER_STRIPE_MAX and len(np.unique(ids // width)) > STRIPES:
        width *= 2
    share = len(ids) / (width * len(np.unique(ids // width)))
    return 1 if len(ids) <= SPARSE_APART and share < SPARSE else width


def wider(tables: Iterable[int], width: int) -> int:
    """The width for a stopped feed that had `width`: the same, unless its tables need too many spans now."""
    ids = np.fromiter(tables, np.int64)
    if len(np.unique(ids // max(1, width))) <= SPANS_MAX:
        return width
    return max(width, chosen_width(ids))


def ids_of(task: SpanTask) -> list[int]:
    """The ids of a span's wanted tables."""
    if not task.wanted:
        return [task.physical_id]
    first = keys.stripe_ids(task.span).start
    # As bytes, because shifting a number of some thousand bits once for each of them took 0.1 s for 100,000
    # tables.
    wanted = np.frombuffer(task.wanted.to_bytes(-(-task.wanted.bit_length() // 8), "little"), np.uint8)
    return (np.flatnonzero(np.unpackbits(wanted, bitorder="little")) + first).tolist()


def wanted_ids(task: SpanTask) -> Iterator[int]:
    """The same, lowest first, for a caller that needs only the first few."""
    if not task.wanted:
        yield task.physical_id
        return
    first, left = keys.stripe_ids(task.span).start, task.wanted
    while left:
        yield first + _lowest(left)
        left &= left - 1


def table_task(physical_id: int, start_ts: int) -> SpanTask:
    """The task for the record span of a physical table, delivered from `start_ts`."""
    name, span = _record_span(physical_id)
    return SpanTask(name, span, physical_id, start_ts)


class Stripes:
    """The spans that a feed wants after the last followed DDL. Keeps one number for each stripe."""

    def __init__(self, width: int, cuts: Iterable[bytes] = ()) -> None:
        """`width`: table ids in a stripe; 1: a span for each table, which is passed on as it is. `cuts`:
        record keys.
        """
        self._width = width
        self._cuts: dict[int, list[bytes]] = {}
        """The cuts in ascending order, by the first id of their stripe; with width 1 that is the table."""
        for key in sorted(cuts):
            self._cuts.setdefault(self._first(memcomparable.decode_int(key, 1)), []).append(key)
        self._wanted: dict[int, int] = {}
        """Which ids of a stripe are wanted, by the stripe's first id: bit i is the i-th."""
        self._apart = 0
        """The number of tables with spans of their own."""

    @property
    def count(self) -> int:
        """The number of spans, where one that is cut into pieces counts as one."""
        return self._apart if self._width == 1 else len(self._wanted)

    def begin(self, tables: Iterable[SpanTask]) -> tuple[SpanTask, ...]:
        """The spans of the tables that are wanted at the checkpoint, given as one task for each table."""
        self._wanted.clear()
        tables = tuple(tables)
        if self._width == 1:
            self._apart = len(tables)
            return tuple(self._pieces_of(tables))
        touched = dict.fromkeys(self._want(task.physical_id) for task in tables)
        return tuple(
            task for first in touched for task in self._tasks(first, self._wanted[first], tables[0].start_ts)
        )

    def follow(self, batches: Iterable[DdlBatch]) -> list[DdlBatch]:
        """The same DDL, in order, with stripes in the place of tables.

        A stripe is added when its first table is wanted, and again whenever its set of wanted tables changes;
        it is removed with its last table.
        """
        return list(map(self._followed_apart if self._width == 1 else self._followed, batches))

    def _followed_apart(self, batch: DdlBatch) -> DdlBatch:
        self._apart += len(batch.added) - len(batch.removed)
        cut = batch.removed_tables & self._cuts.keys()
        gone = [table_task(table, batch.finished_ts) for table in cut]
        kept = batch.removed.difference(task.id for task in gone)
        pieces = (piece.id for piece in self._pieces_of(gone))
        return replace(batch, added=tuple(self._pieces_of(batch.added)), removed=kept.union(pieces))

    def _followed(self, batch: DdlBatch) -> DdlBatch:
        if not batch.added and not batch.removed_tables:
            return batch
        before = dict(self._wanted)
        for table in batch.removed_tables:
            first = self._first(table)
            self._wanted[first] = self._wanted.get(first, 0) & ~(1 << table - first)
        for task in batch.added:
            self._want(task.physical_id)
        added: list[SpanTask] = []
        removed: set[str] = set()
        for first, wanted in list(self._wanted.items()):
            if wanted == before.get(first, 0):
                continue
            # With the same ts as `now`, so that two tasks differ only if their wanted tables do.
            earlier = {task.id: task for task in self._tasks(first, before.get(first, 0), batch.finished_ts)}
            now = {task.id: task for task in self._tasks(first, wanted, batch.finished_ts)}
            added += (task for name, task in now.items() if earlier.get(name) != task)
            removed |= earlier.keys() - now.keys()
        # Only now, because the loop above must see that a stripe has lost its last table.
        self._wanted = {first: wanted for first, wanted in self._wanted.items() if wanted}
        return replace(batch, added=tuple(added), removed=frozenset(removed))

    def _first(self, table: int) -> int:
        """The first id of a table's stripe."""
        return table - table % self._width

    def _want(self, table: int) -> int:
        first = self._first(table)
        self._wanted[first] = self._wanted.get(first, 0) | 1 << table - first
        return first

    def _tasks(self, first: int, wanted: int, start_ts: int) -> Iterator[SpanTask]:
        """The tasks of a stripe with wanted tables: the stripe itself, or its pieces."""
        name, span = _stripe(first, self._width)
        if first not in self._cuts:
            if wanted:
                yield SpanTask(name, span, first + _lowest(wanted), start_ts, wanted)
            return
        for piece in span.cut_at(self._cuts[first]):
            ids = keys.stripe_ids(piece)
            if not ids:  # a piece of one table's records
                table = memcomparable.decode_int(piece.start, 1)
                # A piece inside a table that nobody wants is not pulled, although its stripe is.
                if wanted >> table - first & 1:
                    yield SpanTask(span_id(piece), piece, table, start_ts)
            elif there := wanted >> ids.start - first & (1 << len(ids)) - 1:
                yield SpanTask(span_id(piece), piece, ids.start + _lowest(there), start_ts, there)

    def _pieces_of(self, tables: Iterable[SpanTask]) -> Iterator[SpanTask]:
        """The tasks of tables with their own spans; a table with cuts has one for each piece."""
        for task in tables:
            cuts = self._cuts.get(task.physical_id)
            if cuts is None:
                yield task
            else:
                for piece in task.span.cut_at(cuts):
                    yield replace(task, id=span_id(piece), span=piece)


def _lowest(bits: int) -> int:
    """The number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


def spans_json(tasks: Iterable[SpanTask]) -> dict[str, dict[str, object]]:
    """Spans in the form of `bounds.json`; numbers of more than 64 bits are in hex."""
    return {
        t.id: {
            "start": t.span.start.hex(),
            "end": t.span.end.hex(),
            "physical_id": t.physical_id,
            "start_ts": t.start_ts,
            "wanted": f"{t.wanted:x}",
        }
        for t in tasks
    }


def span_front(task: SpanTask) -> str:
    """The text of a span in `bounds.json` up to its start ts, the only part that moves."""
    ((name, fields),) = spans_json([task]).items()
    del fields["start_ts"]
    return f'"{name}":{orjson.dumps(fields).decode()[:-1]},"start_ts":'


def spans_text(fronts: Iterable[str], starts: Iterable[int]) -> str:
    """Spans in the form of `bounds.json`, as JSON: each from its `span_front` and its start ts."""
    return "{" + ",".join([f"{front}{ts}}}" for front, ts in zip(fronts, starts, strict=True)]) + "}"
