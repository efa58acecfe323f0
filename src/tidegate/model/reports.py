"""The messages between the processes of a capture over its socket: one class per message.

    control process -> puller      SafePoint, Watch, Unwatch, DropBelow, Remove
    puller -> control process      PullerHello, Status, Refused, Failed
    control process -> application Run, End
    application -> control process ApplicationHello, Working, Ended, Failed
      each incarnation, on its own connection: PipelineHello, Started, Durable, Loaded, Failed

Only `to_json` and `parse` know the form on the socket (`model.wire`). `parse` checks a message once when it
arrives, so that code that is given a message need not check it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable, TidegateError, Undecodable
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.model.wire import Form, Wire


@dataclass(frozen=True, slots=True)
class PullerHello:
    """The first message of a puller."""

    kv_mode: str
    pid: int


@dataclass(frozen=True, slots=True)
class PipelineHello:
    """The first message of an incarnation of a changefeed's pipeline. All later messages on this connection
    belong to that incarnation.
    """

    changefeed: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class ApplicationHello:
    """The first message of the application, the process that delivers all changefeeds of a capture."""

    pid: int


@dataclass(frozen=True, slots=True)
class Run:
    """Start an incarnation. It sends all its messages over a connection of its own."""

    changefeed: str
    incarnation: int
    spec: str
    """The path of its spec file."""


@dataclass(frozen=True, slots=True)
class End:
    """End an incarnation, whatever it is doing. If the application does not have it, it has already ended."""

    changefeed: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Ended:
    """No process works for an incarnation any more: each has finished its work for it, or is dead."""

    changefeed: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class AtWork:
    """The current work of one worker of the application."""

    pid: int
    changefeed: str
    what: str
    """The work, in words."""
    seconds: int
    """How long it has been doing this."""
    machine: str = ""
    """The machine of the process; empty: this one."""


@dataclass(frozen=True, slots=True)
class Working:
    """The current work of the application."""

    workers: int
    """The number of workers."""
    at_work: tuple[AtWork, ...]
    waiting: tuple[str, ...]
    """Changefeeds that wait for a worker."""


@dataclass(frozen=True, slots=True)
class SafePoint:
    """PD keeps the upstream's history from here on. The puller must register no guarded span below it."""

    ts: Timestamp
    keyspace: int
    """-1: all keyspaces that have no message of their own."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Follow a span from `start_ts` on. `guarded`: only if `start_ts` is not below the safepoint."""

    span: Span
    start_ts: Timestamp
    guarded: bool


@dataclass(frozen=True, slots=True)
class Unwatch:
    """Stop following a span."""

    span: Span


@dataclass(frozen=True, slots=True)
class DropBelow:
    """The changes of a span up to `ts` are no longer needed."""

    span: Span
    ts: Timestamp


@dataclass(frozen=True, slots=True)
class Remove:
    """No changes of a span are needed any more."""

    span: Span


class SpanStatus(NamedTuple):
    """The state of one of a puller's spans. It is a list in JSON, because thousands come every second."""

    span: str
    """Its id."""
    resolved: Timestamp = 0
    rows: int = 0
    """Received since the puller's process began."""
    bytes: int = 0
    """Their bytes."""
    regions: int = 0
    """How many are registered."""
    errors: Mapping[str, int] = MappingProxyType({})
    """The number of errors, by reason."""
    waiting_for: str = ""
    """The obstacle that its resolved ts waits for, in words."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a puller's spans, in as many parts as needed."""

    spans: Sequence[SpanStatus]
    first: bool = True
    last: bool = True
    filling: str = ""
    """In words, why the event store may soon be out of space; empty while much is free."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The puller has not registered a span, because `start_ts` is below the safepoint."""

    span: Span
    start_ts: Timestamp
    safe_point: Timestamp


KINDS: Final[Mapping[str, type[TidegateError]]] = {
    kind.__name__: kind for kind in (Retryable, Fatal, Fenced, InvalidInput, Undecodable, DiskFull)
}


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of `tidegate.errors`."""

    what: str
    where: str
    why: str
    fix: str
    retry: bool
    kind: str = ""
    """The name of its class, if more than `retry` depends on it."""

    @classmethod
    def of(cls, error: TidegateError) -> Failed:
        """The message for an error, made by the process that raised it."""
        retry, kind = isinstance(error, Retryable), type(error).__name__
        return cls(error.what, error.where, error.why, error.fix, retry, kind)

    def error(self) -> TidegateError:
        """The error, to be raised by the process that received the message."""
        kind = KINDS.get(self.kind) or (Retryable if self.retry else Fatal)
        return kind(self.what, where=self.where, why=self.why, fix=self.fix)


@dataclass(frozen=True, slots=True)
class Started:
    """A pipeline has fenced its predecessors and delivers. `spans`: the ts up to which each is durable."""

    spans: Mapping[str, Timestamp]
    outlived: Mapping[str, Timestamp] = field(default_factory=dict)
    """By key, records in the sink that can be deleted once the feed can never again start at or below a
    ts."""


@dataclass(frozen=True, slots=True)
class Durable:
    """Spans are durable downstream up to a ts, written under the token of a grant."""

    token: tuple[int, int]
    spans: Mapping[str, Timestamp]
    stats: Mapping[str, int] = field(default_factory=dict)
    """Figures of a finished piece of work; empty while the work runs."""


@dataclass(frozen=True, slots=True)
class LoadState:
    """The progress of an initial load."""

    ranges: int = 0
    done: int = 0
    """The number of ranges whose rows are all durable."""
    rows: int = 0
    rows_per_second: float = 0.0
    """Since this process began to load."""
    rows_expected: int = 0
    """Estimated from the ranges that are done; 0: none is done."""
    slowed: int = 0
    """How many captures load slower than they could, because changefeeds with rows come first."""

    @property
    def finished(self) -> bool:
        """Whether all ranges are done."""
        return self.done == self.ranges

    @property
    def fraction(self) -> float:
        """The finished part, between 0 and 1."""
        if self.finished:
            return 1.0
        return min(self.rows / self.rows_expected, 0.99) if self.rows_expected else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The estimated time left in seconds; None while there is no estimate."""
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
class ConnectionClosed:
    """The connection has ended. This is never sent: the receiver makes it when the socket closes."""


ToPuller = SafePoint | Watch | Unwatch | DropBelow | Remove
ToApplication = Run | End
Hello = PullerHello | PipelineHello | ApplicationHello
FromApplication = ApplicationHello | Working | Ended | Failed | ConnectionClosed
FromPuller = PullerHello | Status | Refused | Failed | ConnectionClosed
FromPipeline = PipelineHello | Started | Durable | Loaded | Failed | ConnectionClosed
Report = ToPuller | ToApplication | FromPuller | FromPipeline | FromApplication

TO_PULLER: Final[tuple[type[ToPuller], ...]] = (SafePoint, Watch, Unwatch, DropBelow, Remove)
TO_APPLICATION: Final[tuple[type[ToApplication], ...]] = (Run, End)
HELLOS: Final[tuple[type[Hello], ...]] = (PullerHello, PipelineHello, ApplicationHello)
REPORTS_AFTER: Final[Mapping[type[Hello], tuple[type[Report], ...]]] = {
    PullerHello: (Status, Refused, Failed),
    PipelineHello: (Started, Durable, Loaded, Failed),
    ApplicationHello: (Working, Ended, Failed),
}
"""The messages that may follow each hello."""


_SPAN_STATUS: Final = (str, int, int, int, int, dict, str)
"""The types of the members of `SpanStatus` in JSON."""


def _span_statuses(value: Any) -> list[SpanStatus]:
    """Checks all members of a line by one comparison: a form for each would take a tenth of a core."""
    if not isinstance(value, list):
        raise ValueError("the status of spans is no list")
    for line in value:
        if not isinstance(line, list) or tuple(map(type, line)) != _SPAN_STATUS:
            raise ValueError(f"{line!r:.80} is no status of a span")
        if line[5] and not all(type(count) is int for count in line[5].values()):
            raise ValueError(f"the errors of span {line[0]:.80} are no numbers")
    return list(map(SpanStatus._make, value))


def _dumped_span_status(one: SpanStatus) -> list[Any]:
    return [*one[:5], dict(one.errors), one.waiting_for]


_WIRE: Final = Wire(
    {"Sequence[SpanStatus]": Form(lambda lines: list(map(_dumped_span_status, lines)), _span_statuses)}
)
_WIRE.add({"LoadState": _WIRE.part(LoadState), "tuple[AtWork, ...]": _WIRE.parts(AtWork)})
to_json: Final = _WIRE.to_json
parse: Final = _WIRE.parse
