"""`tidegate topic`: what a reader can check in a topic, no matter which program writes it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.errors import InvalidInput, TidegateError

if TYPE_CHECKING:
    from tidegate.consumer.contract.verdict import Verdict

app = typer.Typer(help="Check a topic of any producer against its contract.", no_args_is_help=True)

PRODUCERS = ("tidegate", "ticdc")
TABLES_SHOWN = 30


@app.callback()
def _root() -> None:
    """Check a topic of any producer against its contract."""


@app.command()
def check(
    source: Annotated[
        str,
        typer.Argument(
            help="Topic, or all topics of a changefeed, e.g. "
            "'kafka://127.0.0.1:9092/topic,other?protocol=open-protocol'."
        ),
    ],
    producer: Annotated[
        str,
        typer.Option(
            help="The producer whose promises are checked: tidegate, or ticdc (after its Resolved, "
            "rows and DDL of the same ts may follow)."
        ),
    ] = PRODUCERS[0],
    config: Annotated[
        Path | None,
        typer.Option(
            help="The changefeed's TOML file: its dispatchers, so that every row's place is judged."
        ),
    ] = None,
    time_zone: Annotated[str, typer.Option(help="Time zone of TIMESTAMP texts in the topic.")] = "UTC",
    follow: Annotated[bool, typer.Option(help="At the end, keep reading until Ctrl-C.")] = False,
    remember: Annotated[
        int, typer.Option(min=1_000, help="The number of changes to remember, about 250 bytes each.")
    ] = 500_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that topics keep the contract that readers rely on.

    They are read whole, from their oldest messages. docs/formats/contract.md is the contract. Exit 0: no
    violation was found; 1: there is one.
    """
    from tidegate.codec import registry
    from tidegate.config.reading import load_config
    from tidegate.consumer.contract.check import Producer
    from tidegate.consumer.reading.source import Topic
    from tidegate.consumer.topic_check import check_topic
    from tidegate.dispatcher.router import Router

    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopping.append(number))
    try:
        if producer not in PRODUCERS:
            fix = "write " + " or ".join(PRODUCERS)
            raise InvalidInput("there is no such producer", where=f"--producer {producer[:100]}", fix=fix)
        topic, router = Topic(source, time_zone), None
        if config is not None:
            router = Router.of(registry.canonical(load_config(config, topic.uri)), topic.uri.topic)
        with _shown(quiet=as_json) as reported:
            verdict = check_topic(
                topic,
                producer=Producer(producer),
                router=router,
                remember=remember,
                follow=follow,
                stop=lambda: bool(stopping),
                reported=reported,
            )
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    print(json.dumps(as_dict(topic.name, verdict)) if as_json else text_of(topic.name, verdict))
    raise typer.Exit(0 if verdict.holds else 1)


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[Verdict, int, int], None]]:
    """Shows the progress of the reading on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("messages")

        def reported(verdict: Verdict, read: int, total: int) -> None:
            words = f"{verdict.rows:,} rows"
            if not verdict.holds:
                words += f", {sum(verdict.counts.values()):,} violations"
            bar.update(task, description=words, completed=read, total=max(total, read))

        yield reported


def as_dict(topic: str, verdict: Verdict) -> dict[str, Any]:
    """The verdict for programs."""
    return {
        "topic": topic,
        "holds": verdict.holds,
        "rows": verdict.rows,
        "again": verdict.again,
        "resolved": verdict.resolved,
        "went_back": verdict.went_back,
        "lowest_resolved": verdict.lowest_resolved,
        "ddls": verdict.ddls,
        "tables": {
            name: {"rows": rows, "dispatcher": verdict.dispatchers.get(name, "")}
            for name, rows in sorted(verdict.tables.items())
        },
        "counts": {rule.name.lower(): count for rule, count in verdict.counts.items()},
        "violations": [
            {
                "rule": one.rule.name.lower(),
                "what": one.rule.value,
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.offset,
                "ts": one.ts,
                "table": one.table,
                "why": one.why,
            }
            for one in verdict.violations
        ],
        "unjudged": {kind.name.lower(): count for kind, count in verdict.unjudged.items()},
    }


def text_of(topic: str, verdict: Verdict) -> str:
    """The verdict for people."""
    from tidegate.model.timestamp import readable as moment

    lines = []
    keep, breaks = ("keep", "BREAK") if "," in topic else ("keeps", "BREAKS")
    if verdict.tables:
        width = min(60, max(5, *map(len, verdict.tables)))
        lines.append(f"{'table':{width}}  {'rows':>12}  dispatcher")
        for name, rows in sorted(verdict.tables.items(), key=lambda one: (-one[1], one[0]))[:TABLES_SHOWN]:
            lines.append(f"{name:{width}}  {rows:>12,}  {verdict.dispatchers.get(name, '')}")
        if len(verdict.tables) > TABLES_SHOWN:
            lines.append(f"and {len(verdict.tables) - TABLES_SHOWN:,} more tables; see --json")
        lines.append("")
    lines.append(
        f"{verdict.rows:,} rows, {verdict.again:,} of them repeated; {verdict.ddls:,} DDLs; "
        f"{verdict.resolved:,} Resolved messages"
    )
    if verdict.lowest_resolved:
        lines.append(
            f"complete up to {verdict.lowest_resolved} ({moment(verdict.lowest_resolved)}): "
            "the lowest Resolved of all partitions"
        )
    if verdict.went_back:
        lines.append(f"Resolved went back {verdict.went_back:,} times, as it may after a restart of TiCDC")
    for kind, count in verdict.unjudged.items():
        lines.append(f"not judged: {count:,} {kind.value}")
    lines.append("")
    if verdict.holds:
        lines.append(f"{topic} {keep} the contract, as far as it could be judged.")
    else:
        lines.append(f"{topic} {breaks} the contract:")
        lines += [f"  {count:>8,}  {rule.value}" for rule, count in verdict.counts.most_common()]
        lines.append("")
        for number, one in enumerate(verdict.violations, 1):
            where = f"topic {one.topic} " if "," in topic else ""
            where += f"partition {one.partition}" + (f" offset {one.offset}" if one.offset >= 0 else "")
            when = f"  ts {one.ts} ({moment(one.ts)})" if one.ts else ""
            lines.append(f"{number:>3}. {one.rule.value}")
            lines.append(f"     {where}{when}{f'  {one.table}' if one.table else ''}")
            lines.append(f"     {one.why}")
        left = sum(verdict.counts.values()) - len(verdict.violations)
        if left:
            lines.append(f"     and {left:,} more")
    return "\n".join(lines)
