"""The ranges of a changefeed as tables: all of them, or those that something keeps, by reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tidegate.cli.changefeed_moves import size
from tidegate.cli.client import counted

if TYPE_CHECKING:
    from rich.table import Table

ROWS_MAX: Final = 200
"""The most ranges in a table; `--json` has all."""
WIDTH: Final = 160
"""The width of a table if there is no terminal."""
ID_SHOWN: Final = 8
"""The number of digits of a range's id that are shown."""


def summary(found: dict[str, Any]) -> str:
    """How many ranges there are in each state."""
    states = [f"{count:,} {state}" for state, count in found["states"].items() if count]
    return f"{found['total']:,}: {', '.join(states)}" if len(states) > 1 else states[0] if states else "none"


def captures(ranges: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each capture: its tables and ranges, and its lowest checkpoint."""
    by_capture: dict[str, list[dict[str, Any]]] = {}
    for one in ranges:
        by_capture.setdefault(one["address"] or one["capture"], []).append(one)
    return [f"{name}: {_of_capture(its)}" for name, its in by_capture.items()]


def _of_capture(ranges: Sequence[dict[str, Any]]) -> str:
    tables, checkpoint = (sum(one["tables"] for one in ranges), min(one["checkpoint_ts"] for one in ranges))
    several = f" in {len(ranges)} ranges" if len(ranges) > 1 else ""
    starting = sum(not one["running"] for one in ranges)
    state = f", {starting} starting" if several and starting else ", starting" if starting else ""
    return f"{counted(tables, 'table')}{several}, checkpoint {checkpoint}{state}"


def cut_tables(cuts: int, found: dict[str, Any] | None, chosen: dict[str, str] | None = None) -> str:
    """The cost of tables with several writers, and which of them several captures deliver now. `chosen`: when
    and why the cuts were.
    """
    head = f"tables are cut at {cuts:,} keys, and each piece has its own writer"
    if not found:  # a server of an earlier version, or a reader, does not say more
        return head
    names = [f"{one['table']} ({one['captures']})" for one in found["tables"]]
    more = f" and {found['more']:,} more" if found["more"] else ""
    among = f"\n             by several captures now: {', '.join(names)}{more}" if names else ""
    since = f"\n             chosen {chosen['at']}: {chosen['why']}" if chosen else ""
    return f"{head}: {found['cost']}{among}{since}"


def reasons(found: dict[str, Any], width: int = 0) -> str:
    """The ranges that something keeps, by reason; empty: nothing keeps any. `width`: 0, the terminal's."""
    if not found["reasons"]:
        return ""
    from rich.text import Text

    shown = _table("RANGES", "STATE", "WHY", "FOR EXAMPLE")
    shown.columns[0].justify = "right"
    shown.columns[1].no_wrap = True
    for one in found["reasons"]:
        example = one["example"]
        name = example["table"] or (_name(example) if example["capture"] else "all keys")
        shown.add_row(f"{one['ranges']:,}", one["state"], Text(one["why"]), Text(name))
    more = f"and {found['more']:,} more ranges with other reasons\n" if found["more"] else ""
    return _rendered(shown, width) + more


def every(ranges: Sequence[dict[str, Any]], width: int = 0) -> str:
    """All ranges, first those that are not running, then those that are furthest behind; `reasons` has more
    words.
    """
    from rich.text import Text

    shown = _table("RANGE", "TABLES", "CAPTURE", "LAG", "RECEIVED", "BYTES/S", "STATE")
    for at in (1, 3, 4, 5):
        shown.columns[at].justify = "right"
    for column in shown.columns[:-1]:
        column.no_wrap = True
    order = {"not running": 0, "held": 1}
    ordered = sorted(ranges, key=lambda one: (order.get(one["state"], 2), -one["checkpoint_lag_ms"]))
    for one in ordered[:ROWS_MAX]:
        state = f"{one['state']}: {one['reason']}" if one["reason"] else one["state"]
        shown.add_row(
            _name(one),
            str(one["tables"]),
            one["address"] or one["capture"] or "-",
            age(one["checkpoint_lag_ms"]),
            age(one["resolved_lag_ms"]),
            size(one["bytes_per_second"]),
            Text(state),
        )
    more = len(ordered) - ROWS_MAX
    return _rendered(shown, width) + (f"and {more:,} more ranges: --json has all\n" if more > 0 else "")


def age(lag_ms: int) -> str:
    """A lag for people: 0.4 s, 12 min, 30 h."""
    if lag_ms < 600_000:
        return f"{lag_ms / 1000:,.1f} s"
    return f"{lag_ms / 60_000:,.0f} min" if lag_ms < 36_000_000 else f"{lag_ms / 3_600_000:,.0f} h"


def _name(one: dict[str, Any]) -> str:
    return str(one["id"])[:ID_SHOWN]


def _table(*titles: str) -> Table:
    from rich.table import Table

    return Table(*titles, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")


def _rendered(shown: Table, width: int) -> str:
    """The table as lines without spaces at their ends."""
    from rich.console import Console

    console = Console(width=width or None, color_system=None)
    if not width and not console.is_terminal:
        console = Console(width=WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
