"""`tidegate replay`: checks that recorded events lead to the same effects again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.cli.client import JsonOption, reported
from tidegate.errors import InvalidInput

if TYPE_CHECKING:
    from tidegate.control.trace import Replayed

WIDTH: Final = 400
"""The number of characters of an effect that are shown."""


def replay(
    path: Annotated[
        Path, typer.Argument(help="The folder of `tidegate server --record`, or one file of it.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Give the recorded events of owners and processors to fresh machines, and compare what they do.

    Exit 0: every effect is the recorded one; 1: one is not, and the first difference of each file is printed.
    docs/internals/machines.md says what a difference means.
    """
    from tidegate.control.trace import replay as replayed
    from tidegate.server.recorder import segments

    with reported():
        files = segments(path) if path.is_dir() else [path]
        if not files:
            raise InvalidInput(
                "nothing is recorded here",
                where=str(path),
                fix="give the folder that `tidegate server --record` was started with",
            )
        differ = False
        for file in files:
            try:
                with file.open("rb") as lines:
                    done = replayed(lines)
            except OSError as error:
                raise InvalidInput("the record cannot be read", where=str(file), why=str(error)) from error
            except InvalidInput as error:
                where = f"{file}, {error.where}"
                raise InvalidInput(error.what, where=where, why=error.why, fix=error.fix) from error
            differ = differ or done.difference is not None
            print(json.dumps({"file": file.name, **asdict(done)}) if as_json else _words(file, done))
    if differ:
        raise typer.Exit(1)


def _words(file: Path, done: Replayed) -> str:
    at = f"{file.name}: {done.machine} of {done.name}, {done.events} events"
    found = done.difference
    if found is None:
        return f"{at}, the same effects" + (", and a line that was cut off" if done.torn else "")
    recorded, now = found.recorded[:WIDTH], found.replayed[:WIDTH]
    lines = [
        f"{at} are the same, then '{found.event}' of line {found.line} differs: {found.what}",
        f"  recorded (release {done.release}): {recorded}",
        f"  replayed: {now}",
    ]
    return "\n".join(lines)
