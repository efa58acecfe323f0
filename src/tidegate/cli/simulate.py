"""`tidegate simulate`: captures that share a changefeed, in virtual time, with faults drawn from a seed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.cli.client import reported

if TYPE_CHECKING:
    from rich.console import Console

    from tidegate.simulator.run import RunOutcome
    from tidegate.simulator.summary import Summary

ALONE: Final = 50
"""Up to this number of seeds one process runs all: to start others would take longer."""
CHUNK: Final = 20
"""How many seeds a process is given at once."""
TIMES: Final = (
    "Times: from a death until a checkpoint above that moment is stored; from the end of all faults until "
    "everything is delivered."
)
WIDTH: Final = 110
"""The width of a table if there is no terminal."""


def simulate(
    seed: Annotated[int, typer.Option(min=0, help="The seed; with --seeds, the first of them.")] = 0,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="The number of seeds to run; if they are many, a process per core runs them."
        ),
    ] = 1,
    scenario: Annotated[
        str, typer.Option(help="The fault scenario, e.g. calm, owner-dies, zombie, cuts, drain, storm.")
    ] = "storm",
    trace: Annotated[bool, typer.Option("--trace", help="Print the whole timeline of the seed.")] = False,
) -> None:
    """Run captures in virtual time, with faults drawn from a seed.

    They share a changefeed. The machines are the product's; network, etcd, upstream and sink are modelled.
    The same seed always gives the same timeline: docs/internals/simulator.md. Exit 0: no promise was broken;
    1: one was, and the seed, the reason and the last events are printed.
    """
    from rich.console import Console

    from tidegate.simulator.summary import Summary

    console = Console(highlight=False, soft_wrap=True)
    total, began = Summary(), time.perf_counter()
    with reported():
        for outcome in _watched(_outcomes(scenario, range(seed, seed + seeds), whole=trace), seeds):
            total.add(outcome)
            if trace:
                _print_lines(console, outcome.lines)
            if outcome.violation:
                _print_violation(console, outcome, with_lines=not trace)
                raise typer.Exit(1)
    _print_summary(console, scenario, seed, total, time.perf_counter() - began)


def _outcomes(scenario: str, seeds: range, *, whole: bool) -> Iterator[RunOutcome]:
    """The outcome of each seed, in order. Raises InvalidInput for an unknown scenario."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from tidegate.simulator.scenarios import scenario_of
    from tidegate.simulator.summary import outcome_of
    from tidegate.simulator.summary import simulate as outcomes

    if len(seeds) <= ALONE or whole:
        yield from outcomes(scenario, seeds, whole=whole)
        return
    scenario_of(scenario)  # before any process begins
    # `spawn`: the caller may have threads, of which a fork would copy the locks and nothing else.
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
    try:
        yield from pool.map(partial(outcome_of, scenario), seeds, chunksize=CHUNK)
    finally:
        # After a violation the caller reads no further; each process ends after its chunk.
        pool.shutdown(wait=False, cancel_futures=True)


def _watched(outcomes: Iterable[RunOutcome], count: int) -> Iterable[RunOutcome]:
    """Show a progress bar if there are many outcomes, or lines if there is no terminal."""
    from rich.console import Console
    from rich.progress import track

    bar = Console(stderr=True)
    if count <= (1 if bar.is_terminal else ALONE):
        return outcomes
    if bar.is_terminal:
        return track(outcomes, "seeds", total=count, console=bar, transient=True)
    return _counted(outcomes, count)


def _counted(outcomes: Iterable[RunOutcome], count: int) -> Iterator[RunOutcome]:
    """Print ten lines on the way: a run that waits forever would look like a long one."""
    for number, outcome in enumerate(outcomes, 1):
        yield outcome
        if number * 10 // count > (number - 1) * 10 // count:
            typer.echo(f"{number:,} of {count:,} seeds", err=True)


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    from rich.text import Text

    for line in lines:
        style = ""
        if "  FAULT  " in line or "  CHECK  " in line:
            style = "red"
        elif " receives from " in line:
            style = "dim"
        console.print(Text(line, style=style))


def _print_violation(console: Console, outcome: RunOutcome, *, with_lines: bool) -> None:
    from rich.text import Text

    if with_lines:
        _print_lines(console, outcome.lines)
    console.print()
    console.print(Text(f"seed {outcome.seed} of {outcome.scenario} breaks a promise", style="bold red"))
    console.print(Text(outcome.violation))
    again = f"tidegate simulate --scenario {outcome.scenario} --seed {outcome.seed} --trace"
    console.print(Text(f"run it again: {again}", style="dim"))


def _print_summary(console: Console, scenario: str, seed: int, total: Summary, took_s: float) -> None:
    from rich.table import Table
    from rich.text import Text

    what = f"seed {seed}" if total.seeds == 1 else f"{total.seeds:,} seeds from {seed} on"
    console.print(Text(f"{scenario}, {what}: no promise was broken", style="bold green"))
    pace = total.virtual_s / took_s if took_s else 0.0
    console.print(f"{total.virtual_s:,.0f} virtual seconds in {took_s:.1f} s, {pace:,.0f} times as fast")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for name, text in _rows(total):
        table.add_row(Text(name, style="bold"), Text(text))
    console.print()
    width = None if console.is_terminal else WIDTH
    console.print(table, width=width)
    console.print(Text(TIMES, style="dim"), width=width, soft_wrap=False)


def _rows(total: Summary) -> Iterable[tuple[str, str]]:
    """The summary, line by line."""
    from tidegate.simulator.summary import distribution

    count = total.counts
    yield "upstream", f"{total.rows:,} rows delivered, {total.ddl:,} DDL"
    yield "owners", f"{count['owners elected']:,} elected, {count['checkpoints stored']:,} checkpoints stored"
    yield "ranges", f"{count['incarnations']:,} incarnations, divided again {count['divided again']:,} times"
    harmed = _listed({kind: count[f"messages {kind}"] for kind in ("lost", "doubled", "late", "cut off")})
    yield "messages", f"{count['messages sent']:,} sent" + (f": {harmed}" if harmed else "")
    yield "sink", f"{count['transactions']:,} transactions, {count['resolved sent']:,} Resolved"
    most_first = sorted(total.faults.items(), key=lambda one: (-one[1], one[0]))
    yield from _lines("faults", [f"{times:>9,}  {kind}" for kind, times in most_first] or ["none"])
    yield from _lines("checks", [f"{times:>9,}  {name}" for name, times in sorted(total.checks.items())])
    yield "", ""
    for name, found in (
        ("owner dies", total.owner_failovers_s),
        ("capture dies", total.capture_failovers_s),
        ("faults end", total.healed_s),
    ):
        if words := distribution(found):
            yield name, words


def _lines(name: str, lines: list[str]) -> Iterable[tuple[str, str]]:
    """A block of lines, with its name before the first one."""
    yield "", ""
    yield from zip([name, *[""] * len(lines)], lines, strict=False)


def _listed(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in found.items() if count)
