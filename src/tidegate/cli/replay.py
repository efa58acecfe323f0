"""`tidegate replay`: checks that recorded events lead to the same effects again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.cli.client import JsonOption, reported
from tidegate.errors import InvalidInput

if TYPE_CHECKING:
    from tidegate.control.trace import Replayed

FIX: Final = "give the folder that `tidegate server --record` was started with, or one file of it"
WIDTH: Final = 400
"""The number of characters of an effect that are shown."""


def replay(
    path: Annotated[
        Path, typer.Argument(help="The folder of `tidegate server --record`, or one file of it.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Replay a server's recorded events, and compare the effects.

    The events of owners and processors are given to fresh machines.
    Exit 0: every effect is the recorded one; 1: one is not, and the first difference of each file is printed;
    2: there is no record, or one that cannot be read.
    docs/internals/machines.md says what a difference means.
    """
    with reported():
        differ = False
        for file in _files(path):
            done = _replayed(file)
            differ = differ or done.difference is not None
            print(json.dumps({"file": file.name, **asdict(done)}) if as_json else _words(file, done))
    if differ:
        raise typer.Exit(1)


def _files(path: Path) -> list[Path]:
    """The records that a path means, at least one. Raises InvalidInput."""
    from tidegate.server.captures.recorder import segments

    with _readable(path):
        found = segments(path) if path.is_dir() else [path]
    if not found:
        raise InvalidInput(
            "nothing is recorded here",
            where=str(path),
            why="no file in it is named as records are, NUMBER-MACHINE-CHANGEFEED.jsonl",
            fix=FIX,
        )
    return found


def _replayed(file: Path) -> Replayed:
    """Replay one record. Raises InvalidInput."""
    from tidegate.control.trace import replay as replayed

    with _readable(file), file.open("rb") as lines:
        try:
            return replayed(lines)
        except InvalidInput as error:
            where = f"{file}, {error.where}"
            raise InvalidInput(error.what, where=where, why=error.why, fix=error.fix) from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raises InvalidInput for an OSError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidInput("the record cannot be read", where=str(path), why=why, fix=FIX) from error


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
