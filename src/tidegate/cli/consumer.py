"""`tidegate consumer run`: a topic into Delta tables.

Thin: reads the options, calls `tidegate.consumer.job.run`, prints. Heavy imports happen in the command.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from typing import Annotated

import typer

from tidegate.errors import TidegateError

app = typer.Typer(help="Read a topic back into a transactionally consistent target.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Read a topic back into a transactionally consistent target."""


@app.command()
def run(
    source: Annotated[
        str, typer.Option(help="Topic to read, e.g. 'kafka://127.0.0.1:9092/topic?protocol=open-protocol'.")
    ],
    target: Annotated[str, typer.Option(help="Where the Delta tables go: delta:///absolute/directory.")],
    mode: Annotated[
        str,
        typer.Option(
            help="transaction: whole transactions over all partitions; row: each partition as it comes."
        ),
    ] = "transaction",
    until: Annotated[
        int | None,
        typer.Option(help="Apply everything up to this ts and nothing above, make it a snapshot, end."),
    ] = None,
    commit_interval: Annotated[float, typer.Option(help="Seconds between two commits at least.")] = 2.0,
    commit_rows: Annotated[int, typer.Option(help="Row changes one commit takes at most, about.")] = 500_000,
    time_zone: Annotated[str, typer.Option(help="Zone of the topic's TIMESTAMP texts: the feed's.")] = "UTC",
    old_values: Annotated[
        bool, typer.Option(help="--no-old-values when the topic's updates carry no old values.")
    ] = True,
    retention_hours: Annotated[int, typer.Option(help="How long named snapshots stay readable.")] = 24,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[2]",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Apply a topic's rows and DDLs to Delta tables, exactly once, until stopped or --until is reached."""
    from tidegate.consumer.job import Progress, Settings, run
    from tidegate.consumer.maintenance import Upkeep
    from tidegate.consumer.snapshots import target_directory
    from tidegate.consumer.watermark import Mode

    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopping.append(number))

    def show(event: str, progress: Progress) -> None:
        state = {"event": event, **dataclasses.asdict(progress)}
        plain = f"{event}: " + ", ".join(
            f"{name} {value}" for name, value in state.items() if name != "event"
        )
        print(json.dumps(state) if as_json else plain, flush=True)

    try:
        if mode not in set(Mode):
            raise typer.BadParameter(f"'{mode}' is not one of row, transaction", param_hint="--mode")
        settings = Settings(
            source=source,
            target=target_directory(target),
            mode=Mode(mode),
            until=until,
            time_zone=time_zone,
            commit_s=commit_interval,
            commit_rows=commit_rows,
            trust_inserts=old_values,
            master=master,
            upkeep=Upkeep(retention_hours=retention_hours),
        )
        end = run(
            settings,
            lambda progress: show("ready", progress),
            lambda: bool(stopping),
            report=lambda progress: show("progress", progress) if as_json else None,
        )
        show("stopped", end)
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error


if __name__ == "__main__":
    app()
