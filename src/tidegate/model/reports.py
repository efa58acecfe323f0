"""What the processes of a capture tell each other over its socket: one class a message.

    control process -> puller      SafePoint, Watch, Unwatch, DropBelow, Remove
    puller -> control process      PullerHello, Status, Refused, Failed
    control process -> application Run, End
    application -> control process ApplicationHello, Working, Ended, Failed
      of each incarnation, apart   PipelineHello, Started, Durable, Loaded, Failed

`to_json` and `parse` know the form on the socket, and nothing else does (`model.wire`). What comes in is
checked here once, so that whoever is given a message need not look again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable, TidegateError, Undecodable
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.model.wire import Form, Wire


@dataclass(frozen=True, slots=True)
class PullerHello:
    """A puller introduces itself."""

    kv_mode: str
    pid: int


@dataclass(frozen=True, slots=True)
class PipelineHello:
    """An incarnation of a changefeed's pipeline introduces itself. Goes for all that is said there."""

    changefeed: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class ApplicationHello:
    """The application introduces itself: the one process of a capture that delivers all its changefeeds."""

    pid: int


@dataclass(frozen=True, slots=True)
class Run:
    """Begin an incarnation. All it says from then on comes over a connection of its own."""

    changefeed: str
    incarnation: int
    spec: str
    """The path of its spec file."""


@dataclass(frozen=True, slots=True)
class End:
    """End an incarnation, whatever it is doing; one that is not there has ended already."""

    changefeed: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Ended:
    """No process works for an incarnation any more: each is done with it, or dead."""

    changefeed: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class AtWork:
    """What a worker of the application is doing."""

    pid: int
    changefeed: str
    what: str
    """In words."""
    seconds: int
    """Since it was given that."""
    machine: str = ""
    """Where the process is, if not here."""


@dataclass(frozen=True, slots=True)
class Working:
    """What the application does, as of now."""

    workers: int
    """Those that are there."""
    at_work: tuple[AtWork, ...]
    waiting: tuple[str, ...]
    """Changefeeds that wait for a worker."""


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
    filling: str = ""
    """Why the event store may soon have no room, in words; empty while much is free."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A span is not registered from `start_ts`, as that lies below the safepoint."""

    span: Span
    start_ts: Timestamp
    safe_point: Timestamp


KINDS: Final[Mapping[str, type[TidegateError]]] = {
    kind.__name__: kind for kind in (Retryable, Fatal, Fenced, InvalidInput, Undecodable, DiskFull)
}


@dataclass(frozen=True, slots=True)
class Failed:
    """An error, as `tidegate.errors` has it."""

    what: str
    where: str
    why: str
    fix: str
    retry: bool
    kind: str = ""
    """The name of its class, where that matters beyond `retry`."""

    @classmethod
    def of(cls, error: TidegateError) -> Failed:
        """One that was raised where it is told."""
        retry, kind = isinstance(error, Retryable), type(error).__name__
        return cls(error.what, error.where, error.why, error.fix, retry, kind)

    def error(self) -> TidegateError:
        """To be raised where it is heard."""
        kind = KINDS.get(self.kind) or (Retryable if self.retry else Fatal)
        return kind(self.what, where=self.where, why=self.why, fix=self.fix)


@dataclass(frozen=True, slots=True)
class Started:
    """A pipeline has fenced those before it and delivers: up to where each span is durable already."""

    spans: Mapping[str, Timestamp]
    outlived: Mapping[str, Timestamp] = field(default_factory=dict)
    """Records in the sink that can go when the feed can never again begin at or below a ts, by key."""


@dataclass(frozen=True, slots=True)
class Durable:
    """Spans are durable downstream up to a ts, written under a grant's token."""

    token: tuple[int, int]
    spans: Mapping[str, Timestamp]
    stats: Mapping[str, int] = field(default_factory=dict)
    """What a piece of work did; empty in its midst."""


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
ToApplication = Run | End
Hello = PullerHello | PipelineHello | ApplicationHello
FromApplication = ApplicationHello | Working | Ended | Failed | Gone
FromPuller = PullerHello | Status | Refused | Failed | Gone
FromPipeline = PipelineHello | Started | Durable | Loaded | Failed | Gone
Report = ToPuller | ToApplication | FromPuller | FromPipeline | FromApplication

TO_PULLER: Final[tuple[type[ToPuller], ...]] = (SafePoint, Watch, Unwatch, DropBelow, Remove)
TO_APPLICATION: Final[tuple[type[ToApplication], ...]] = (Run, End)
HELLOS: Final[tuple[type[Hello], ...]] = (PullerHello, PipelineHello, ApplicationHello)
SAID_BY: Final[Mapping[type[Hello], tuple[type[Report], ...]]] = {
    PullerHello: (Status, Refused, Failed),
    PipelineHello: (Started, Durable, Loaded, Failed),
    ApplicationHello: (Working, Ended, Failed),
}
"""What may follow a hello."""


def _lines(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(line, dict) and "span" in line for line in value):
        raise ValueError("the lines of a status are none")
    return value


_WIRE: Final = Wire({"Sequence[Mapping[str, Any]]": Form(list, _lines)})
_WIRE.add({"LoadState": _WIRE.part(LoadState), "tuple[AtWork, ...]": _WIRE.parts(AtWork)})
to_json: Final = _WIRE.to_json
parse: Final = _WIRE.parse
