"""Scripts of a matcher: `testdata/match/*.txt`. A command is a row of one registration's stream.

    register [a,m) checkpoint=10 [trust-empty]            a new registration, in place of the last
    prewrite key=a start-ts=10 put v1 [old=v0] [generation=2]; `put` alone writes the empty value, and
                                                          `put 2000*v` a long one
    prewrite key=a start-ts=10 delete [old=v0]
    commit key=a start-ts=10 commit-ts=12 [delete]        without values, as TiKV sends it
    committed key=a start-ts=10 commit-ts=12 put v1       found by the scan, or committed in one phase
    rollback key=a start-ts=10
    row kind=9 key=a                                      of a kind that this release does not know
    initialized                                           the scan has ended
    resolved 15                                           the resolved ts that counts then
    open                                                  whether prewrites are held
    message                                               several rows in one message, in its body

Rows show the changes that they complete, in order, and the rule that they break.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tests.puller.match.test_matcher import changes_of
from tests.puller.wire import resolved_message, rows_message
from tests.puller.words import span_of
from tests.scripts import Command
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.span import Span
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.matched import Happening
from tidegate.puller.match.matcher import BrokenContractError, Change, LogType, Matcher, Row, Violation

_REGION, _REQUEST = 1, 7
LONG = 40
"""A longer value of one letter is shown as `2000*v`."""
_OPERATIONS = {"put": OP_PUT, "delete": OP_DELETE, "lock": 0}


@dataclass
class Pushed:
    """The result of pushing the rows of a message."""

    changes: list[Change] = field(default_factory=list)
    initialized: bool = False
    broken: tuple[Violation, int] | None = None
    """Which rule, and the commit ts of the row."""


class OneRegistration(Protocol):
    """A matcher with a single registration."""

    def push(self, rows: list[Row]) -> Pushed:
        """Take a message; after one that broke a rule nothing comes of any."""

    def resolve(self, ts: int) -> int:
        """Take a resolved ts; the one that counts then."""

    def holds(self) -> bool:
        """Whether it holds prewrites or rows that wait."""


class PlainRegistration:
    """In the plain matcher."""

    def __init__(self, bounds: Span, checkpoint: int, *, trust_empty: bool) -> None:
        self._matcher = Matcher(bounds, checkpoint, trust_empty=trust_empty)
        self._ended = False

    def push(self, rows: list[Row]) -> Pushed:
        pushed, before = Pushed(), self._matcher.initialized
        for row in [] if self._ended else rows:
            try:
                pushed.changes += self._matcher.push(row)
            except BrokenContractError as error:
                pushed.changes += error.changes
                pushed.broken = error.violation, error.commit_ts
                self._ended = True
                break
        pushed.initialized = self._matcher.initialized and not before
        return pushed

    def resolve(self, ts: int) -> int:
        if not self._ended:
            self._matcher.resolve(ts)
        return self._matcher.resolved

    def holds(self) -> bool:
        return bool(self._matcher._open or self._matcher._waiting)


class BlockRegistration:
    """In the matcher of a stream."""

    def __init__(self, bounds: Span, checkpoint: int, *, trust_empty: bool) -> None:
        self._matcher = BlockMatcher(trust_empty=trust_empty)
        self._matcher.register(_REQUEST, _REGION, 0, 0, bounds, checkpoint)
        self._resolved = checkpoint

    def push(self, rows: list[Row]) -> Pushed:
        matched = self._matcher.feed([rows_message(_REGION, _REQUEST, rows)])
        pushed = Pushed(changes_of(matched)[0])
        for note in matched.notes:
            if note.happening is Happening.VIOLATED:
                assert note.violation is not None
                pushed.broken = note.violation, note.commit_ts
            else:
                assert note.happening is Happening.INITIALIZED
                pushed.initialized = True
        return pushed

    def resolve(self, ts: int) -> int:
        matched = self._matcher.feed([resolved_message([_REGION], _REQUEST, ts)])
        self._resolved = max([self._resolved, *matched.resolved.tolist()])
        return self._resolved

    def holds(self) -> bool:
        return self._matcher.open_bytes > 0


class MatchScript:
    """A registration, and the rows of its stream."""

    def __init__(self, kind: type[PlainRegistration] | type[BlockRegistration]) -> None:
        self._kind = kind
        self._registration: OneRegistration | None = None

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        if command.name == "register":
            bounds, *options = command.words
            trust_empty = options == ["trust-empty"]
            checkpoint = command.number("checkpoint")
            self._registration = self._kind(span_of(bounds), checkpoint, trust_empty=trust_empty)
            return ""
        assert self._registration is not None, "a scenario begins with 'register'"
        match command.name, command.words:
            case "resolved", (ts,):
                return f"resolved ts: {self._registration.resolve(int(ts))}"
            case "open", ():
                return "something is open" if self._registration.holds() else "nothing is open"
            case "message", ():
                return _shown(self._registration.push(rows_of(command)))
        return _shown(self._registration.push([row_of(command)]))


def rows_of(message: Command) -> list[Row]:
    """The rows in a message's body."""
    return [row_of(one) for one in parsed_body(message)]


def parsed_body(message: Command) -> list[Command]:
    """The lines of a message's body as commands."""
    return [_parsed(message, line) for line in message.body]


def _parsed(message: Command, line: str) -> Command:
    """A line of a message's body as a command."""
    name, *rest = line.split()
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(message.where, name, tuple(word for word in rest if "=" not in word), options, ())


def row_of(command: Command) -> Row:
    """The row that a command is."""
    key, start = command.options.get("key", "").encode(), command.number("start-ts", 0)
    commit, generation = command.number("commit-ts", 0), command.number("generation", 0)
    old = _bytes_of(command.options.get("old", ""))
    operation, *values = command.words or ("put",)
    value = _bytes_of("".join(values))
    match command.name:
        case "initialized":
            return Row(LogType.INITIALIZED)
        case "rollback":
            return Row(LogType.ROLLBACK, start, 0, 0, key)
        case "prewrite" | "commit" | "committed":
            kind = LogType[command.name.upper()]
            return Row(kind, start, commit, _OPERATIONS[operation], key, value, old, generation)
        case "row":
            return Row(command.number("kind"), start, commit, OP_PUT, key)
    raise ValueError(f"{command.where}: a matcher does not know '{command.name}'")


def _bytes_of(text: str) -> bytes:
    """`v1`, or `2000*v`: so many of them."""
    count, times, one = text.partition("*")
    return (one * int(count) if times else text).encode()


def _text_of(value: bytes) -> str:
    text = value.decode()
    return f"{len(text)}*{text[0]}" if len(text) > LONG and len(set(text)) == 1 else text


def shown_change(change: Change) -> str:
    """A change as scripts show it."""
    key, value, old = change.key.decode(), _text_of(change.value), _text_of(change.old_value)
    what = f"{key} = '{value}'" if change.op == OP_PUT else f"{key} is deleted"
    return f"{what}, start {change.start_ts}, commit {change.commit_ts}, before '{old}'"


def shown_violation(rule: Violation, ts: int) -> str:
    """A broken rule as scripts show it, and the commit ts of its row."""
    return f"broken: {rule.name.lower().replace('_', ' ')}, commit {ts}"


def _shown(pushed: Pushed) -> str:
    lines = ["initialized"] if pushed.initialized else []
    lines += map(shown_change, pushed.changes)
    if pushed.broken is not None:
        lines.append(shown_violation(*pushed.broken))
    return "\n".join(lines)
