"""`tidegate capture ...`: what a capture is doing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer

from tidegate.cli.client import DEFAULT_SERVER, JsonOption, ServerOption, call, columns, reported, show

app = typer.Typer(help="Watch captures.", no_args_is_help=True)

WAITING_SHOWN = 10


@app.callback()
def group() -> None:
    """Watch captures."""


@app.command("list")
def show_all(server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False) -> None:
    """List the captures of a cluster."""
    with reported():
        found = call(server, "GET", "/captures")["items"]
        rows = [("CAPTURE", "OWNER", "ADDRESS", "CLUSTER")]
        rows += [(c["id"], "yes" if c["is_owner"] else "", c["address"], c["cluster_id"]) for c in found]
        show(found, columns(rows), as_json)


@app.command()
def status(server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False) -> None:
    """Show what a capture does: its changefeeds by state, its workers, and who waits for one.

    A worker is a Spark task that delivers for one changefeed at a time. If changefeeds wait while a worker
    has been at one of them for many seconds, the sink of that one is slow.
    """
    with reported():
        found = call(server, "GET", "/status")
        feeds: list[dict[str, Any]] | None = None
        if found["is_owner"]:
            feeds = call(server, "GET", "/changefeeds", query={"state": "all"})["items"]
        states = None if feeds is None else dict(Counter(feed["state"] for feed in feeds))
        show(found | {"changefeeds": states}, described(found, states), as_json)


@app.command()
def resign(server: ServerOption = DEFAULT_SERVER) -> None:
    """Make another capture the owner; a capture without others restarts its changefeeds.

    Any capture of the cluster may be asked: it forwards the request to the owner.
    """
    with reported():
        call(server, "POST", "/owner/resign")
        print("the owner resigns; `tidegate capture list` shows the next one")


def described(found: dict[str, Any], states: dict[str, int] | None) -> str:
    """The answer of GET /status in words. `states`: how many changefeeds are in each; None: not known yet."""
    known = "-" if states is None else ", ".join(f"{count} {state}" for state, count in states.items())
    rows = [
        ("capture", found["id"]),
        ("cluster", found["cluster_id"] or "-"),
        ("version", found["version"]),
        ("process", str(found["pid"])),
        ("changefeeds", known or "none"),
    ]
    if found["waiting_for"]:
        rows.append(("waiting for", found["waiting_for"]))
    if found["clock"]:
        rows.append(("clock", found["clock"]))
    application = found["application"]
    if application is None:
        return columns(rows)
    if not application["pid"]:
        rows.append(("workers", "none yet: Spark is not running, or is about to start"))
        return columns(rows)
    at_work = application["at_work"]
    rows.append(("workers", f"{application['workers']}, of which {len(at_work)} at work"))
    waiting = application["waiting"]
    if waiting:
        more = len(waiting) - WAITING_SHOWN
        names = ", ".join(waiting[:WAITING_SHOWN]) + (f" and {more} more" if more > 0 else "")
        rows.append(("waiting", f"for a worker: {names}"))
    if not at_work:
        return columns(rows)
    tasks = [("WORKER", "CHANGEFEED", "DOES", "SECONDS")]
    tasks += [(_worker(one), one["changefeed"], one["what"], str(one["seconds"])) for one in at_work]
    return columns(rows) + "\n\n" + columns(tasks)


def _worker(one: dict[str, Any]) -> str:
    return f"{one['pid']} on {one['machine']}" if one.get("machine") else str(one["pid"])
