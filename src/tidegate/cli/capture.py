"""`tidegate capture ...`: shows what captures do, and drains, evicts or resigns one."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated, Any, Final

import typer

from tidegate.cli.client import (
    DEFAULT_SERVER,
    JsonOption,
    ServerOption,
    call,
    columns,
    counted,
    reported,
    show,
)
from tidegate.errors import InvalidInput, Retryable

app = typer.Typer(help="Watch and control captures.", no_args_is_help=True)

WAITING_SHOWN = 10
DRAIN_LOOK_S: Final = 0.5

CaptureArgument = Annotated[
    str, typer.Argument(help="Its id or name, as `tidegate capture list` shows them.")
]


@app.callback()
def group() -> None:
    """Watch and control captures."""


@app.command("list")
def show_all(server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False) -> None:
    """List the captures of a cluster."""
    with reported():
        found = call(server, "GET", "/captures")["items"]
        rows: list[tuple[str, ...]] = [("NAME", "OWNER", "ADDRESS", "VERSION", "CHANGEFEEDS", "TABLES", "ID")]
        rows += [line_of(one) for one in found]
        show(found, columns(rows), as_json)


def line_of(one: dict[str, Any]) -> tuple[str, ...]:
    """A line of the list. Logs, and a division among captures, have only the name."""
    own = one.get("tidegate")  # missing in answers of TiCDC's servers
    name, feeds, tables = (own["name"], str(own["changefeeds"]), str(own["tables"])) if own else ("", "", "")
    if own and own["drained"]:
        tables += " (drained)"
    version = own.get("version", "") if own else ""
    return name, "yes" if one["is_owner"] else "", one["address"], version, feeds, tables, one["id"]


@app.command()
def drain(
    capture: CaptureArgument,
    back: Annotated[bool, typer.Option("--back", help="Allow it to get ranges again.")] = False,
    wait: Annotated[
        int, typer.Option(min=0, help="Seconds to wait until it has nothing; 0: do not wait.")
    ] = 600,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Move the ranges of a capture to the others, before you stop it.

    It gets no ranges until its process restarts, or until you call this with --back.
    """
    with reported():
        path = f"/captures/{capture}/drain"
        if back:
            call(server, "DELETE", path)
            print(f"capture {capture} may be given ranges again")
            return
        deadline, left, shown = time.monotonic() + wait, 1, -1
        call(server, "PUT", path)
        while left:
            left = _left_on(server, capture)
            if left != shown:
                print(
                    f"capture {capture}: {counted(left, 'table')} left"
                    if left
                    else f"capture {capture} has nothing left"
                )
                shown = left
            if left and time.monotonic() >= deadline:
                if wait:
                    raise Retryable(
                        "the capture still delivers tables",
                        where=f"capture {capture}",
                        why=f"{counted(left, 'table')} after {wait} s; is there another capture that could "
                        "take them?",
                        fix="run this again to keep waiting; `tidegate capture list` shows the captures",
                    )
                return
            if left:
                time.sleep(DRAIN_LOOK_S)


def _left_on(server: str, capture: str) -> int:
    """The number of tables that a drained capture still has. Raises InvalidInput if it is not drained."""
    found = [
        one["tidegate"]
        for one in call(server, "GET", "/captures")["items"]
        if capture in (one["id"], one["tidegate"]["name"])
    ]
    if not found:
        return 0  # it is gone, and others take its tables
    if not found[0]["drained"]:
        raise InvalidInput(
            "the capture is not drained any more",
            where=f"capture {capture}",
            why="its process was restarted, or `capture drain --back` was run",
            fix="drain it again",
        )
    return int(found[0]["left"])


@app.command()
def evict(capture: CaptureArgument, server: ServerOption = DEFAULT_SERVER) -> None:
    """End the session of a capture that hangs; others take over.

    The capture need not answer. If its process still runs, it stops its work and joins again.
    """
    with reported():
        call(server, "POST", f"/captures/{capture}/evict")
        print(f"evicted capture {capture}")


@app.command()
def status(server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False) -> None:
    """Show what a capture does: changefeeds, workers, what waits.

    Changefeeds are counted by state, and those that wait for a worker are named. A worker is a Spark task
    that delivers for one changefeed at a time. If changefeeds wait while a worker has been at one of them for
    many seconds, the sink of that one is slow.
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
    """Make another capture the owner.

    If there is no other, the same one is elected again and restarts its changefeeds. Any capture of the
    cluster may be asked: it forwards the request to the owner.
    """
    with reported():
        call(server, "POST", "/owner/resign")
        print("the owner resigns; `tidegate capture list` shows the next one")


def described(found: dict[str, Any], states: dict[str, int] | None) -> str:
    """The answer of GET /status in words. `states`: the number of changefeeds in each; None: not known."""
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
