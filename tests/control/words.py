"""How the scripts of the control machines write keys, tokens, times and DDL.

The commands are each machine's own.

    ..m  m..  d..e  ..      ranges of keys; without a bound the range has no end there
    token=1.2               `GrantedRange.token`
    now=1.5s                a time or a length of time, in seconds
    adds=c,d/10  drops=a    spans that a DDL adds (of d, only the tables of the bits 10) and drops
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tests.scripts import Command

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.grants import GrantedRange
from tidegate.model.ddl import DdlEvent
from tidegate.model.span import Span

DDL_OPTIONS: Final = "ts adds drops known"
"""Options of a command that brings DDL."""


def check(command: Command, options: Iterable[str]) -> None:
    """A misspelled option would leave a default in force, and the script would test something else."""
    unknown = command.options.keys() - set(options)
    if unknown:
        raise ValueError(f"{command.where}: '{command.name}' has no option {listed(sorted(unknown))}")


def keys(word: str) -> Span:
    """`..m` as a range of keys."""
    start, between, end = word.partition("..")
    if not between:
        raise ValueError(f"{word!r} is not a range of keys: write START..END")
    return Span(start.encode(), end.encode())


def shown(span: Span) -> str:
    """A range of keys as scripts write it."""
    return f"{span.start.decode()}..{span.end.decode()}"


def granted(words: Iterable[str], token: str) -> list[GrantedRange]:
    """Ranges of keys under one token."""
    return [GrantedRange(keys(word), token_of(token)) for word in words]


def token_of(word: str) -> tuple[int, int]:
    """`1.2` as a token."""
    first, second = map(int, word.split("."))
    return first, second


def seconds(command: Command, option: str, default: float | None = None) -> float:
    """An option such as `now=1.5s`, in seconds."""
    if option not in command.options:
        if default is None:
            raise ValueError(f"{command.where}: '{command.name}' needs {option}=SECONDSs")
        return default
    return seconds_of(command.options[option])


def seconds_of(word: str) -> float:
    """`1.5s` as a number."""
    if not word.endswith("s"):
        raise ValueError(f"{word!r} is not a time: write 1.5s")
    return float(word.removesuffix("s"))


def names(command: Command, option: str) -> list[str]:
    """An option such as `drops=a,b`; empty if it is not there."""
    return [name for name in command.options.get(option, "").split(",") if name]


def task(name: str, start_ts: int = 100, wanted: str = "0") -> SpanTask:
    """The span of all keys that begin with a name."""
    number = int.from_bytes(name.encode(), "big")
    return SpanTask(name, Span(name.encode(), name.encode() + b"\xff"), number, start_ts, int(wanted, 2))


def ddl(command: Command) -> list[DdlBatch]:
    """The DDL of a command with `ts=`; none if it only says up to where DDL is known.

    A word such as `alter` is its query; without one the batch sends nothing and only changes spans.
    """
    if "ts" not in command.options:
        return []
    ts = command.number("ts")
    added = []
    for name in names(command, "adds"):
        span, _, wanted = name.partition("/")
        added.append(task(span, ts, wanted or "0"))
    query = " ".join(command.words)
    events = (ddl_event(ts, query),) if query else ()
    return [DdlBatch(ts, events, tuple(added), frozenset(names(command, "drops")))]


def known(command: Command) -> int:
    """Up to where a command says that DDL is known: `known=`, otherwise up to its own DDL."""
    return command.number("known", command.number("ts", 0))


def ddl_event(ts: int, query: str = "alter table t") -> DdlEvent:
    """A DDL that is sent."""
    return DdlEvent(1, 0, ts - 1, ts, 5, query, "s", "t", "s", "t", 1, None, None, (), ())


def listed(found: Sequence[str]) -> str:
    """Several as one text; `nothing` if there are none."""
    return ", ".join(found) or "nothing"
