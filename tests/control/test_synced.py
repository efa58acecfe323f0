"""When a changefeed is said to be synced: a script.

synced checkpoint=1s resolved=0s last-row=400s      the verdict; the times are how long ago each ts is
synced checkpoint=1s resolved=0s last-row=never     no row was delivered yet
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control.words import check, seconds, seconds_of
from tests.scripts import Command, run_script, scripts

from tidegate.control.synced import synced
from tidegate.model.timestamp import compose

NOW_S = 1_000_000
CHECK_S, CHECKPOINT_S = 300, 15


def at(seconds_ago: float) -> int:
    return compose(round((NOW_S - seconds_ago) * 1000))


def run(command: Command) -> str:
    if command.name != "synced" or command.words:
        raise ValueError(f"{command.where}: only 'synced' is known")
    check(command, ("checkpoint", "resolved", "last-row"))
    last = command.options["last-row"]
    verdict, why = synced(
        at(seconds(command, "checkpoint")),
        at(seconds(command, "resolved")),
        0 if last == "never" else at(seconds_of(last)),
        at(0),
        CHECK_S,
        CHECKPOINT_S,
    )
    return f"{'yes' if verdict else 'no'}: {why.removeprefix('synced: ').removesuffix(': not synced yet')}"


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "synced"))
def test_the_verdict_is_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, run, rewrite=rewrite)
