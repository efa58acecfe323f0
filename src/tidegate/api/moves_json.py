"""New divisions of a changefeed's key space, and what no division makes even, as JSON for the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.control.move_cost import Evenness, MoveCost
from tidegate.server.changefeeds.hot_spans import HotSpans
from tidegate.server.changefeeds.planned_moves import NamedMove, NamedTable, PlannedMoves


def moves_json(planned: PlannedMoves) -> dict[str, Any]:
    """A new division among captures: loads, moves, cost and gain."""
    plan, others = planned.plan, planned.others
    loads = {
        name: {"before": round(plan.before.get(name, 0)), "after": round(plan.loads.get(name, 0))}
        for name in sorted({*plan.before, *plan.loads})
    }
    return {
        "unit": "bytes per second" if plan.in_bytes else "spans",
        "captures": loads,
        "moves": [_move(one) for one in planned.heaviest],
        "other_moves": {"moves": others.moves, "tables": others.tables, "load": round(others.weight)},
        **_cost(planned.cost),
    }


def _move(one: NamedMove) -> dict[str, Any]:
    return {
        "start": one.move.span.start.hex(),
        "end": one.move.span.end.hex(),
        "from": one.move.giver,
        "to": one.move.taker,
        "load": round(one.move.weight),
        "tables": one.tables,
        "first_tables": _tables(one.first),
    }


def hot_json(found: HotSpans) -> dict[str, Any]:
    """The spans that are too much for one capture."""
    spans = [
        {
            "load": round(one.load),
            "times_mean": round(one.times_mean, 2),
            "tables": one.tables,
            "first_tables": _tables(one.first),
            "remedy": one.remedy,
            "by_itself": one.by_itself,
        }
        for one in found.spans
    ]
    return {"spans": spans, "more": found.more}


def _tables(tables: Sequence[NamedTable]) -> list[dict[str, Any]]:
    """Tables of a range, with whether all their rows are in it."""
    return [{"table": one.name, "is_whole": one.is_whole} for one in tables]


def _cost(cost: MoveCost) -> dict[str, Any]:
    def shown(one: Evenness) -> dict[str, float]:
        return {"max": round(one.most), "mean": round(one.mean), "max_over_mean": round(one.ratio, 2)}

    return {
        "cost": {
            "moves": cost.moves,
            "tables": cost.tables,
            "received_again": cost.received_again,
            "gap_ms": round(cost.gap_s * 1000),
            "is_gap_measured": cost.is_gap_measured,
        },
        "gain": {"before": shown(cost.before), "after": shown(cost.after)},
    }
