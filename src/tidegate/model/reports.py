"""What the processes of a capture tell each other over its socket: one class a message.

    control process -> puller      SafePoint, Watch, Unwatch, DropBelow, Remove
    puller -> control process      PullerHello, Status, Refused, Failed
    pipeline -> control process    PipelineHello, Started, Durable, Loaded, Failed

`to_json` and `parse` know the form on the socket, and nothing else does: an object whose `type` names the
class, and whose other members are the class's, all of them and no others. Both ends are of one version.
What comes in is checked here once, so that whoever is given a message need not look again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar

from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class PullerHello:
    """A puller introduces itself."""

    kv_mode: str
    pid: int


@dataclass(frozen=True, slots=True)
class PipelineHello:
    """A pipeline process introduces itself: whose it is, and of which incarnation. Goes for all it says."""

    changefeed: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class SafePoint:
    """PD holds upstream's history from here on: register nothing that is guarded below it."""

    ts: Timestamp
    keyspace: int
    """-1: whatever is not named."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Follow a span from `start_ts` on."""

    span: Span
    start_ts: Timestamp
    guarded: bool


@dataclass(frozen=True, slots=True)
class Unwatch:
    """Follow it no more."""

    span: Span


@dataclass(frozen=True, slots=True)
class DropBelow:
    """Nobody needs what the span has up to `ts`."""

    span: Span
    ts: Timestamp


@dataclass(frozen=True, slots=True)
class Remove:
    """Nobody needs anything of the span."""

    span: Span


@dataclass(frozen=True, slots=True)
class Status:
    """What a puller says of its spans, in as many parts as it takes."""

    spans: Sequence[Mapping[str, Any]]
    """A line each, with its `span` (id)."""
    first: bool = True
    last: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """A span is not registered from `start_ts`, as that lies below the safepoint."""

    span: Span
    start_ts: Timestamp
    safe_point: Timestamp


@dataclass(frozen=True, slots=True)
class Failed:
    """An error, as `tidegate.errors` has it."""

    what: str
    where: str
    why: str
    fix: str
    retry: bool

    @classmethod
    def of(cls, error: TidegateError) -> Failed:
        """One that was raised where it is told."""
        return cls(error.what, error.where, error.why, error.fix, isinstance(error, Retryable))

    def error(self) -> TidegateError:
        """To be raised where it is heard."""
        return (Retryable if self.retry else Fatal)(self.what, where=self.where, why=self.why, fix=self.fix)


@dataclass(frozen=True, slots=True)
class Started:
    """A pipeline has fenced those before it and delivers: up to where each span is durable already."""

    spans: Mapping[str, Timestamp]


@dataclass(frozen=True, slots=True)
class Durable:
    """Spans are durable downstream up to a ts, written under a grant's token."""

    token: tuple[int, int]
    spans: Mapping[str, Timestamp]
    stats: Mapping[str, int] = field(default_factory=dict)
    """What the micro-batch did; empty in its midst."""


@dataclass(frozen=True, slots=True)
class LoadState:
    """How far an initial load is."""

    ranges: int = 0
    done: int = 0
    """Ranges whose rows are all durable."""
    rows: int = 0
    rows_per_second: float = 0.0
    """Since this process began to load."""
    rows_expected: int = 0
    """By the size of the ranges that are done; 0: none is."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        return self.done == self.ranges

    @property
    def fraction(self) -> float:
        """Between 0 and 1."""
        if self.finished:
            return 1.0
        return min(self.rows / self.rows_expected, 0.99) if self.rows_expected else 0.0

    @property
    def seconds_left(self) -> float | None:
        """None while it cannot be told."""
        if self.finished:
            return 0.0
        if not self.rows_expected or not self.rows_per_second:
            return None
        return max(0, self.rows_expected - self.rows) / self.rows_per_second


@dataclass(frozen=True, slots=True)
class Loaded:
    """A task of an initial load has ended."""

    state: LoadState
    stats: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Gone:
    """The connection has ended. Never sent: the socket's end says so of its peer."""


ToPuller = SafePoint | Watch | Unwatch | DropBelow | Remove
Hello = PullerHello | PipelineHello
FromPuller = PullerHello | Status | Refused | Failed | Gone
FromPipeline = PipelineHello | Started | Durable | Loaded | Failed | Gone
Report = ToPuller | FromPuller | FromPipeline

TO_PULLER: Final[tuple[type[ToPuller], ...]] = (SafePoint, Watch, Unwatch, DropBelow, Remove)
HELLOS: Final[tuple[type[Hello], ...]] = (PullerHello, PipelineHello)
SAID_BY: Final[Mapping[type[Hello], tuple[type[Report], ...]]] = {
    PullerHello: (Status, Refused, Failed),
    PipelineHello: (Started, Durable, Loaded, Failed),
}
"""What may follow a hello."""

Kind = TypeVar("Kind")


class _Form(NamedTuple):
    """How a member is on the socket, and how it is read: the second raises ValueError."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def to_json(report: Report) -> dict[str, Any]:
    """A message as an object of JSON."""
    return {"type": _name(type(report)), **_dumped(report)}


def parse(message: Mapping[str, Any], kinds: Sequence[type[Kind]]) -> Kind:
    """The message of one of these kinds; ValueError says what is wrong with it."""
    named = message.get("type")
    kind = next((each for each in kinds if _name(each) == named), None)
    if kind is None:
        raise ValueError(f"a message of the type {named!r} does not belong here")
    return _loaded(kind, {name: value for name, value in message.items() if name != "type"})


def _name(kind: type) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def _dumped(value: Any) -> dict[str, Any]:
    return {each.name: _FORMS[str(each.type)].dump(getattr(value, each.name)) for each in fields(value)}


def _loaded(kind: type[Kind], members: Any) -> Kind:
    if not isinstance(members, dict):
        raise ValueError(f"{_name(kind)} is no object")
    forms = {each.name: _FORMS[str(each.type)] for each in fields(kind)}  # type: ignore[arg-type]
    if forms.keys() != members.keys():
        raise ValueError(f"{_name(kind)} has the members {sorted(members)}, not {sorted(forms)}")
    try:
        return kind(**{name: form.load(members[name]) for name, form in forms.items()})
    except ValueError as error:
        raise ValueError(f"{_name(kind)}: {error}") from error


def _just(*kinds: type) -> _Form:
    def load(value: Any) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"{value!r:.80} is not {kinds[0].__name__}")
        return value

    return _Form(lambda value: value, load)


_INT: Final = _just(int)


def _numbers(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError("an object of numbers is none")
    return {name: _INT.load(number) for name, number in value.items()}


def _pair(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("a pair of numbers is none")
    return _INT.load(value[0]), _INT.load(value[1])


def _span(value: Any) -> Span:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(key, str) for key in value):
        raise ValueError("a span is two keys in hex")
    start, end = (bytes.fromhex(key) for key in value)
    if end and start >= end:
        raise ValueError(f"the span {value} is empty")
    return Span(start, end)


def _lines(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(line, dict) and "span" in line for line in value):
        raise ValueError("the lines of a status are none")
    return value


_FORMS: Final[Mapping[str, _Form]] = {
    "int": _INT,
    "Timestamp": _INT,
    "bool": _just(bool),
    "str": _just(str),
    "float": _just(float, int),
    "Span": _Form(lambda span: [span.start.hex(), span.end.hex()], _span),
    "tuple[int, int]": _Form(list, _pair),
    "Mapping[str, Timestamp]": _Form(dict, _numbers),
    "Mapping[str, int]": _Form(dict, _numbers),
    "Sequence[Mapping[str, Any]]": _Form(list, _lines),
    "LoadState": _Form(_dumped, lambda value: _loaded(LoadState, value)),
}
"""By the member's annotation."""
