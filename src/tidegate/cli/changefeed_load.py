"""The progress of a changefeed's initial load: on a terminal a bar with the time left, otherwise lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tidegate.errors import Fatal, InvalidInput

LOOK_S: Final = 0.5
LINE_S: Final = 5.0
"""The time between two lines without a terminal."""
ENDED: Final = ("failed", "stopped", "removed")

Feed = dict[str, Any]


def load_of(feed: Feed) -> dict[str, Any]:
    """The load in an answer of the API. Raises InvalidInput if the feed has none, Fatal if it has stopped."""
    name, load = f"{feed['namespace']}/{feed['id']}", feed["tidegate"]["initial_load"]
    if load is None:
        raise InvalidInput(
            f"changefeed {name} has no initial load",
            fix="create a changefeed with --initial-load",
        )
    if load["state"] != "done" and feed["state"] in ENDED:
        error = feed["error"] or {}
        raise Fatal(
            f"the initial load of {name} cannot continue: the changefeed is {feed['state']}",
            why=str(error.get("message", "")),
            fix=f"run `tidegate changefeed resume -c {feed['id']}`; the rows that are loaded are kept",
        )
    found: dict[str, Any] = load
    return found


def line_of(load: dict[str, Any]) -> str:
    """The progress in one line."""
    counts = f"{load['ranges_done']:,} of {load['ranges']:,} ranges, {load['rows']:,} rows"
    if load["state"] == "done":
        return f"initial load done: {load['rows']:,} rows" if load["ranges"] else "initial load done"
    left = load["seconds_left"]
    about = "time left not known yet" if left is None else f"about {clock(left)} left"
    # A server of an earlier version does not say it.
    why = ", changefeeds with rows come first" if load.get("makes_way") else ""
    return f"{load['fraction']:4.0%}  {counts}, {load['rows_per_second']:,.0f} rows/s{why}, {about}"


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def follow(fetch: Callable[[], Feed], *, as_json: bool) -> None:
    """Show the load until it is done. Raises as `load_of` and `fetch`."""
    if as_json or not sys.stdout.isatty():
        _lines(fetch, as_json=as_json)
    else:
        _bar(fetch)


def _lines(fetch: Callable[[], Feed], *, as_json: bool) -> None:
    shown, shown_at = "", float("-inf")
    while True:
        load = load_of(fetch())
        done = load["state"] == "done"
        text = json.dumps(load) if as_json else line_of(load)
        if done or (text != shown and (as_json or time.monotonic() - shown_at >= LINE_S)):
            shown, shown_at = text, time.monotonic()
            print(text, flush=True)
        if done:
            return
        time.sleep(LOOK_S)


def _bar(fetch: Callable[[], Feed]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    load = load_of(fetch())
    columns = (TextColumn("initial load"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(), transient=True) as progress:
        task = progress.add_task("", total=1.0)
        while load["state"] != "done":
            progress.update(task, completed=load["fraction"], description=line_of(load))
            time.sleep(LOOK_S)
            load = load_of(fetch())
    print(line_of(load))
