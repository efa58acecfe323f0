"""The command tree, of which only the branch that is used is imported and built.

    tidegate changefeed list --> Tree: the module `cli.changefeed` --> its commands --> `list`

To import all modules of commands, and to build the options of each command, takes longer than a request to a
capture. The commands of other branches are built if something asks for them: `tidegate --help` does.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import typer
from click import Command, Context
from typer.core import TyperArgument, TyperGroup
from typer.main import get_group

MODULES: Final = (
    "server",
    "changefeed",
    "capture",
    "peek",
    "topic",
    "consumer",
    "compare",
    "verify",
    "quarantine",
    "upstream",
    "simulate",
    "replay",
)
"""The commands in the order of the help: along the way of a change, then checks, then what is for trials.

The module of the same name has an `app` of further commands, or a function of that name.
"""


class _Argument(TyperArgument):
    """An argument that shows its help.

    From click 8.5 on, click's constructor also sets `help`, to nothing. Setting it again is no solution:
    click would list the argument a second time, because typer lists it already.
    """

    def __init__(self, *, help: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        self._help_text = help

    def get_help_record(self, ctx: Context) -> Any:
        self.help = self._help_text
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = None


# typer creates the arguments of commands from this class, and has no option to choose another one.
vars(typer.main)["TyperArgument"] = _Argument


class _Branches(UserDict[str, Command]):
    """The commands by name. Each is built when it is looked up for the first time."""

    def __getitem__(self, name: str) -> Command:
        if name not in self.data:
            if name not in MODULES:
                raise KeyError(name)
            self.data[name] = _built(name)
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


def _built(name: str) -> Command:
    module = import_module(f"tidegate.cli.{name}")
    app = typer.Typer(rich_markup_mode=None)
    if (below := getattr(module, "app", None)) is not None:
        app.add_typer(below, name=name)
    else:
        app.command(name)(getattr(module, name))
    command = get_group(app).commands[name]
    _suggest_once(command)
    return command


def _suggest_once(command: Command) -> None:
    """Leave suggestions for mistyped names to click, which has them from 8.5 on: typer would repeat them."""
    if isinstance(command, TyperGroup):
        command.suggest_commands = False
        for below in command.commands.values():
            _suggest_once(below)


class Tree(TyperGroup):
    """`tidegate` itself: the group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"suggest_commands": False})  # as in `_suggest_once`
        self.commands = _Branches()

    def list_commands(self, ctx: Context) -> list[str]:
        """The names, which alone build nothing."""
        return list(MODULES)
