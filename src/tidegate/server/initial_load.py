"""The control process's part of an initial load: the plan, kept in `load.json`, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidegate.control.barrier import SpanTask
from tidegate.control.load import LoadPlan, LoadRange, LoadState
from tidegate.kvclient.pd import PdClient
from tidegate.pipeline.feed import LOAD_FILE
from tidegate.server.schema_tracker import replace_file
from tidegate.tables.reader import cut_at, region_starts


def plan_load(pd: PdClient, ts: int, tasks: Iterable[SpanTask], folder: Path) -> LoadPlan:
    """The plan in the folder, or a new one: the spans, cut where regions end now, kept durably. Blocks."""
    path = folder / LOAD_FILE
    if path.exists():
        return LoadPlan.from_bytes(path.read_bytes())
    ranges = [
        LoadRange.of(task.physical_id, span)
        for task in tasks
        for span in cut_at(region_starts(pd, task.span), task.span)
    ]
    plan = LoadPlan(ts, pd.address, tuple(ranges))
    replace_file(path, plan.to_bytes())
    return plan


def told_state(message: dict[str, Any]) -> LoadState:
    """The state in a pipeline's message."""
    return LoadState(**message)


def shown(state: LoadState, *, loading: bool) -> dict[str, Any]:
    """A load as the API shows it."""
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
    }
