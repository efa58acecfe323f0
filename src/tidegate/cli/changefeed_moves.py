"""A new division of a changefeed among captures in words: what moves, its cost, its gain."""

from __future__ import annotations

from typing import Any, Final

from tidegate.cli.client import columns, counted

BEST: Final = "nothing to move: it could not be divided better"


def described(found: dict[str, Any], nothing: str = BEST) -> str:
    """The answer of a request to divide or to move. `nothing`: the text if nothing moves."""
    hot = [f"warning: {line}" for line in hot_spans(found.get("hot_spans"))]
    if not found["moves"]:
        return "\n".join([nothing + (f"; {_now(found)}" if found.get("gain") else ""), *hot])
    others = found.get("other_moves", {"moves": 0, "tables": 0, "load": 0})  # an earlier server sends all
    parts = [columns(_captures(found), numbers=(1, 2)), columns(_moves(found["moves"], others), numbers=(2,))]
    count = len(found["moves"]) + others["moves"]
    moving = "is moving" if count == 1 else "are moving"
    would = "would move" if found.get("dry_run") else moving
    load = sum(one["load"] for one in found["moves"]) + others["load"]
    moves = f"{counted(count, 'range')} {would}, with {load:,} of the load"
    return "\n\n".join([*parts, f"load in {found['unit']}; {moves}", *_cost(found), *hot])


def hot_spans(found: dict[str, Any] | None) -> list[str]:
    """A line for each span that is too much for one capture; an earlier server does not say them."""
    if not found:
        return []
    lines = [
        f"{tables_of(one)}: {size(one['load'])}/s, {one['times_mean']:.1f} times the mean of a capture; "
        + (
            f"no move helps; {one['by_itself']}"
            if one.get("by_itself")
            else f"no move helps, but `tidegate changefeed update` while it is paused does: {one['remedy']}"
        )
        for one in found["spans"]
    ]
    return lines + ([f"and {found['more']:,} more"] if found["more"] else [])


def _now(found: dict[str, Any]) -> str:
    return f"the greatest load is {found['gain']['before']['max_over_mean']:.2f} times the mean"


def _captures(found: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [("CAPTURE", "LOAD NOW", "LOAD AFTER")]
    rows += [(name, f"{one['before']:,}", f"{one['after']:,}") for name, one in found["captures"].items()]
    return list(rows)


def _moves(moves: list[dict[str, Any]], others: dict[str, Any]) -> list[tuple[str, ...]]:
    """The moves, the heaviest first as the server sends them, and the sum of the others."""
    rows: list[tuple[str, ...]] = [("FROM", "TO", "LOAD", "TABLES")]
    rows += [(one["from"] or "no capture", one["to"], f"{one['load']:,}", tables_of(one)) for one in moves]
    if others["moves"]:
        count = counted(others["tables"], "table") if others["tables"] else ""
        rows.append((f"{others['moves']:,} more", "", f"{others['load']:,}", count))
    return rows


def tables_of(of: dict[str, Any]) -> str:
    """The tables of a range or span: the first by name, and the number of the others."""
    shown = of.get("first_tables", ())
    names = [one["table"] if one["is_whole"] else f"part of {one['table']}" for one in shown]
    more = of.get("tables", 0) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


def _cost(found: dict[str, Any]) -> list[str]:
    """The lines of cost and gain; a server of an earlier version does not say them."""
    if "cost" not in found:
        return []
    cost, before, after = found["cost"], found["gain"]["before"], found["gain"]["after"]
    tables = f" of {counted(cost['tables'], 'table')}" if cost["tables"] else ""
    again = cost["received_again"]
    received = "few changes" if again is None else f"about {size(again)} of changes"
    source = "as the last time" if cost["is_gap_measured"] else "as is typical"
    ratios = f"{before['max_over_mean']:.2f} now, {after['max_over_mean']:.2f} after (1 is even)"
    rows = [
        ("moves", f"{cost['moves']:,}{tables}"),
        ("received again", f"{received}, while the givers still deliver"),
        ("checkpoint stops", f"for about {cost['gap_ms'] / 1000:.1f} s, {source}"),
        ("greatest / mean load", ratios),
    ]
    return [columns(rows)]


def size(count: float) -> str:
    """A number of bytes for people: 512 B, 1.2 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
