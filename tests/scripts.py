"""Tests that are written as scripts: commands, and what they print.

    # Two captures share a table.                       a comment: kept as it is
    capture a                                           commands, one a line
    capture b
    tick now=5s
    ----
    a runs span-1                                       what they print, all together, up to an empty line

A line that is indented belongs to the command above it, as its body. Commands that print nothing are followed
by `ok`. `pytest --rewrite` writes what is printed now into the scripts instead of comparing: read the diff
before you commit it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

MARK = "----"


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a script: `name word word option=value`."""

    where: str
    """File and line, for errors."""
    name: str
    words: tuple[str, ...]
    options: dict[str, str]
    body: tuple[str, ...]
    """The indented lines below it, without their indent."""

    def number(self, option: str, default: int | None = None) -> int:
        """An option as a number; without a default it must be there."""
        if option not in self.options:
            if default is None:
                raise ValueError(f"{self.where}: '{self.name}' needs {option}=NUMBER")
            return default
        return int(self.options[option])


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines of a script as they are, up to an output, and the commands among them."""

    head: tuple[str, ...]
    commands: tuple[Command, ...]


def scripts(folder: Path) -> list[object]:
    """The scripts of a folder, as parameters of a test; their names are the names of its cases."""
    found = sorted(folder.glob("*.txt"))
    if not found:
        raise ValueError(f"{folder}: there is no script")
    return [pytest.param(path, id=path.stem) for path in found]


def run_script(path: Path, run: Callable[[Command], str], *, rewrite: bool) -> None:
    """Run every command of a script; what it prints must be what the script says.

    `run`: executes one command and returns its output, "" if it prints nothing. An error that it raises ends
    the test, with the line: a command whose error is the point catches and prints it.
    """
    lines: list[str] = []
    for block in _blocks(path):
        printed: list[str] = []
        for command in block.commands:
            try:
                output = run(command)
            except Exception as error:
                error.add_note(f"in {command.where}: {command.name}")
                raise
            printed += [line.rstrip() for line in output.splitlines()]
        if any(not line for line in printed):
            raise ValueError(f"{block.commands[0].where}: an output with an empty line would end too early")
        lines += block.head
        if block.commands:
            lines += [MARK, *(printed or ["ok"]), ""]
    now = "\n".join(lines).rstrip("\n") + "\n"
    before = path.read_text()
    if rewrite:
        if now != before:
            path.write_text(now)
        return
    if now != before:
        diff = difflib.unified_diff(before.splitlines(), now.splitlines(), str(path), "now", lineterm="", n=8)
        pytest.fail("\n".join(diff), pytrace=False)


def _blocks(path: Path) -> Iterator[_Block]:
    head: list[str] = []
    commands: list[Command] = []
    in_output = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        where = f"{path.name}:{number}"
        if in_output:
            in_output = bool(line)
        elif line == MARK:
            if not commands:
                raise ValueError(f"{where}: {MARK} without a command above it")
            yield _Block(tuple(head), tuple(commands))
            head, commands, in_output = [], [], True
        else:
            head.append(line)
            if line[:1].isspace() and line.strip():
                if not commands:
                    raise ValueError(f"{where}: an indented line without a command above it")
                last = commands.pop()
                commands.append(replace(last, body=(*last.body, line.strip())))
            elif line.strip() and not line.startswith("#"):
                commands.append(_command(where, line))
    if head:
        yield _Block(tuple(head), tuple(commands))


def _command(where: str, line: str) -> Command:
    name, *rest = line.split()
    words = tuple(word for word in rest if "=" not in word)
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(where, name, words, options, ())
