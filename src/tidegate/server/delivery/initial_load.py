"""The control process's part of an initial load: the plan, the DDL before the rows, the progress."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tidegate.control.barrier import SpanTask
from tidegate.control.load import LoadPlan, LoadRange
from tidegate.disk import replace_file
from tidegate.errors import Undecodable
from tidegate.filter.feed import FeedFilter
from tidegate.kvclient.pd import PdClient
from tidegate.log import event
from tidegate.model.ddl import DdlEvent
from tidegate.model.reports import LoadState
from tidegate.mounter.ddl_transition import EmittedDdl
from tidegate.mounter.table_version import TableVersion
from tidegate.pipeline.exchange.feed import LOAD_FILE
from tidegate.server.delivery.create_statement import create_schema, create_table
from tidegate.tables.reader import region_starts

LOG: Final = logging.getLogger(__name__)


def plan_load(pd: PdClient, ts: int, tasks: Iterable[SpanTask], folder: Path) -> LoadPlan:
    """The plan in the folder, or a new one: the spans cut at region borders, stored durably. Blocks.

    A damaged plan is replaced, and so is one of another ts, which an earlier changefeed of this name has
    left. If ranges were begun that the new plan does not have, `LoadQueue` refuses it.
    """
    path = folder / LOAD_FILE
    if path.exists():
        try:
            kept = LoadPlan.from_bytes(path.read_bytes())
            # The same cuts as before the restart: progress is recorded by range, and would fit no other
            # ranges.
            if kept.ts == ts:
                return kept
        except Undecodable as error:
            event(LOG, logging.WARNING, "initial load is planned again", where=str(path), why=error.why)
    pd.regions.clear()  # cached regions may be old: what was one region may be a thousand now
    ranges = [
        LoadRange.of(task.physical_id, span)
        for task in tasks
        for span in task.span.cut_at(region_starts(pd, task.span))
    ]
    plan = LoadPlan(ts, pd.address, tuple(ranges))
    replace_file(path, plan.to_bytes())
    return plan


def definitions(tables: Iterable[TableVersion], feed_filter: FeedFilter, ts: int) -> list[DdlEvent]:
    """The DDL, at `ts` - 1, that creates the tables and schemas of a load at `ts` if they do not exist."""
    found = sorted(tables, key=lambda table: (table.schema, table.table))
    emitted = [
        EmittedDdl(_creation(ts - 1, 1, create_schema(schema), schema))
        for schema in dict.fromkeys(table.schema for table in found)
    ]
    emitted += [
        EmittedDdl(_creation(ts - 1, 3, create_table(table), table.schema, table), after=table)
        for table in found
    ]
    sent = [passed for one in emitted if (passed := feed_filter.sent(one)) is not None]
    return [replace(one, seq=seq) for seq, one in enumerate(sent)]


def _creation(ts: int, action: int, query: str, schema: str, table: TableVersion | None = None) -> DdlEvent:
    name = table.table if table else ""
    return DdlEvent(
        job_id=0,
        seq=0,
        start_ts=ts,
        finished_ts=ts,
        action=action,
        query=query,
        schema=schema,
        table=name,
        old_schema=schema,
        old_table=name,
        schema_version=0,
        before=None,
        after=table.info() if table else None,
        added_ids=tuple(table.physical_ids) if table else (),
        removed_ids=(),
    )


def shown(state: LoadState, *, loading: bool) -> dict[str, Any]:
    """The progress of a load as the API shows it."""
    if not loading:
        return {"state": "done", "ranges": state.ranges, "ranges_done": state.done, "rows": state.rows}
    left = state.seconds_left
    return {
        "state": "loading",
        "ranges": state.ranges,
        "ranges_done": state.done,
        "rows": state.rows,
        "rows_per_second": round(state.rows_per_second, 1),
        "rows_expected": state.rows_expected,
        "fraction": round(state.fraction, 4),
        "seconds_left": None if left is None else round(left, 1),
        "makes_way": bool(state.slowed),
    }


def words_of_load(load: LoadState) -> str:
    """The progress of an initial load."""
    slowed = ", slower because changefeeds with rows come first" if load.slowed else ""
    return f"initial load: {load.done} of {load.ranges} ranges{slowed}"
