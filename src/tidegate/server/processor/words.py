"""Describes for users, and for its watchdog, what a processor waits for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from tidegate.control.barrier import SpanTask
from tidegate.control.processor import Processor
from tidegate.model.reports import SpanStatus
from tidegate.model.timestamp import physical_ms
from tidegate.server.catalogue.stripes import wanted_ids
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.processor.opening import Opening

NAMES_TRIED: Final = 8
"""For how many tables of a stripe the name is looked up until one is found."""
SOURCE_LATE_MS: Final = 5_000
"""From this lag on, the puller's obstacle is shown for the slowest span."""


def words_of_slowest(machine: Processor, opening: Opening) -> str:
    """Describe what the lowest checkpoint waits for."""
    slowest = machine.spans.slowest()
    if slowest is None or machine.spans.durable(slowest.id) >= machine.bound:
        return "resolved ts of the DDL span"
    lacks = slowest.id in opening.arrivals.lacking
    named = words_of_span(slowest, opening.ddl)
    named += _obstacle(machine, slowest, opening.spans.status)
    return ("rows from before what the event store has of " if lacks else "") + named


def _obstacle(machine: Processor, slowest: SpanTask, lines: Iterable[SpanStatus]) -> str:
    """The obstacle that its puller names for a span of which nothing has come for long; otherwise empty."""
    durable = machine.spans.durable(slowest.id)
    # Looked up only if it is late, because there may be thousands of spans.
    if physical_ms(machine.bound) - physical_ms(durable) < SOURCE_LATE_MS:
        return ""
    line = next((one for one in lines if one.span == slowest.id), None)
    if line is None or line.resolved > durable:
        return ""  # there are changes to deliver
    errors = ", ".join(f"{reason} {count}" for reason, count in sorted(line.errors.items()))
    return f": {line.waiting_for}" + (f" (errors so far: {errors})" if errors else "")


def words_of_undelivered(machine: Processor, opening: Opening) -> str:
    """Describe what a running pipeline has to deliver; empty: nothing."""
    spans = opening.arrivals.undelivered
    if not spans or not machine.spans.is_open:
        return ""
    slowest = machine.spans.task(min(spans, key=machine.spans.durable))
    named = words_of_span(slowest, opening.ddl)
    return f"rows of {named}" + (f" and {len(spans) - 1} more" if len(spans) > 1 else "")


def words_of_span(task: SpanTask, ddl: FeedDdl) -> str:
    """A span, with its table's name if it is known."""
    # The first table of a stripe may have been dropped since; looking up all of them would cost too much.
    known = (ddl.tracker.name_of(id_) for id_ in islice(wanted_ids(task), NAMES_TRIED))
    name = next(filter(None, known), "")
    more = max(task.wanted.bit_count(), 1) - 1
    others = f" and {more} more tables" if more else ""
    return f"span {task.id} ({name or f'table id {task.physical_id}'}{others})"
