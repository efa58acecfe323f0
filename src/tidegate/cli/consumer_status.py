"""`tidegate consumer status`: a consumer's progress and what it waits for, while it runs and afterwards."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.client import JsonOption, reported

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.consumer.running.status import Status

PARTITIONS_SHOWN: Final = 40
WIDTH: Final = 200
"""The width of the table if there is no terminal."""


def show_status(
    source: Annotated[str, typer.Option(help="The topics that the consumer reads, as for `consumer run`.")],
    target: Annotated[str, typer.Option(help="Its target, as for `consumer run`.")],
    name: Annotated[str, typer.Option(help="Its name, if it writes a database or a bucket.")] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Its folder, if it writes a database or a bucket; default: ./tidegate-consumer-NAME."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a consumer is, and what it waits for.

    A table shows each partition. The command asks the target and the broker and changes neither. Exit 0: the
    consumer runs and nothing is wrong; 1: it does not run, is stuck, or has set tables aside, or the target
    does not answer; 2: there is no such source or target.
    """
    from tidegate.consumer.lakehouse.upkeep import Upkeep
    from tidegate.consumer.reading.source import Topic
    from tidegate.consumer.running.status import look
    from tidegate.consumer.targets import DatabaseSettings, address_of

    with reported():
        address = address_of(target, Upkeep(), DatabaseSettings(name, folder))
        now_ms = time.time_ns() // 1_000_000
        found = look(Topic(source), address, now_ms)
    if as_json:
        print(json.dumps(as_dict(found)))
    else:
        _print(found, now_ms)
    raise typer.Exit(0 if found.fine else 1)


def as_dict(found: Status) -> dict[str, Any]:
    """The status for programs, with the values that are computed from it."""
    partitions = [
        dataclasses.asdict(one) | {"to_apply": one.to_apply, "to_read": one.to_read}
        for one in found.partitions
    ]
    return dataclasses.asdict(found) | {"fine": found.fine, "partitions": partitions}


def summary(found: Status) -> list[str]:
    """The lines above the table."""
    from tidegate.consumer.running.lag import span
    from tidegate.model.timestamp import physical_ms, readable

    unmarked = any(not one.marked for one in found.partitions)
    lag = f"{span(found.lag_s)} behind" if found.lag_s is not None else "no row is complete yet"
    lag = "not known in time, for the topic has no watermarks" if unmarked else lag
    count = f"{found.messages:,}" if found.messages is not None else "an unknown number of"
    at = f"{found.ts} ({readable(found.ts)})" if physical_ms(found.ts) else str(found.ts)
    snapshot = at if found.ts else "none yet"
    lines = [
        found.verdict,
        f"target    {found.target}",
        f"snapshot  {snapshot}",
        f"lag       {lag}, {count} messages to apply",
    ]
    lines += [f"broker    {found.broker}"] if found.broker else []
    if found.schema_changes not in ("", "evolve"):
        lines.append(f"columns   {'; '.join((f'--schema-changes {found.schema_changes}', *found.ignored))}")
    lines += [f"set aside {words}" for words in found.set_aside]
    return lines


def _print(found: Status, now_ms: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    colour = "green" if found.fine else "yellow" if found.running else "red"
    verdict, *lines = summary(found)
    console.print(Text(verdict, f"bold {colour}"), soft_wrap=True)
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if found.partitions:
        console.print()
        console.print(table(found, now_ms))
    if (more := len(found.partitions) - PARTITIONS_SHOWN) > 0:
        console.print(Text(f"and {more:,} more, which are further; --json has all"), soft_wrap=True)


def table(found: Status, now_ms: int) -> Table:
    """The table of partitions; those that hold the watermark back come first."""
    from rich.table import Table
    from rich.text import Text

    from tidegate.consumer.running.lag import laggard, slowest_first

    last = laggard(found.partitions, now_ms)
    shown = Table("PARTITION", box=None, pad_edge=False, header_style="bold")
    for title in ("WATERMARK", "APPLIED", "MESSAGES TO READ", "TO APPLY"):
        shown.add_column(title, justify="right")
    for one in slowest_first(found.partitions)[:PARTITIONS_SHOWN]:
        ages = [_age(ts, now_ms) if one.marked else "-" for ts in (one.watermark, one.applied)]
        cells = [*ages, _count(one.to_read)]
        style = "yellow" if one == last else ""
        shown.add_row(*(Text(cell) for cell in (one.name, *cells, _count(one.to_apply))), style=style)
    return shown


def _age(ts: int, now_ms: int) -> str:
    from tidegate.consumer.running.lag import seconds_behind, span

    return f"{span(seconds_behind(ts, now_ms))} ago" if ts else "none yet"


def _count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"
