"""The messages between the application and its workers: one class for each message. Pure.

    worker -> application      WorkerHello or ElsewhereHello; then, during each piece of work, Reached and
                               Alive, and at its end Begun, Delivered, LoadDone, or Failed
    application -> worker      Begin, Deliver, Load; during a piece of work, GiveUp

A worker asks for work by its hello, and again by the message that ends a piece. The application closes the
connection of a worker that it does not need any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tidegate.control.load import LoadRemainder
from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.reports import Failed
from tidegate.model.timestamp import Timestamp
from tidegate.model.wire import Wire
from tidegate.pipeline.exchange.ranges import Range


@dataclass(slots=True)
class Report:
    """The result of delivering one range."""

    span: str
    ts: int
    """The range is durable up to this ts. It is the range's `after` if nothing could be delivered."""
    rows: int = 0
    messages: int = 0
    bytes: int = 0
    quarantined: int = 0
    matched: int = 0
    unchecked: int = 0
    excused: int = 0
    mismatched: int = 0
    misencoded: int = 0
    alignments: int = 0
    lag_ms: int = 0


COUNTS: Final = ("rows", "messages", "bytes", "quarantined", *INTEGRITY_OUTCOMES, "misencoded", "alignments")
"""The fields of `Report` that are summed up over ranges."""


@dataclass(slots=True)
class LoadReport:
    """The result of one piece of work for one range of an initial load."""

    report: Report
    """Its `span` is the range's id."""
    rows: int
    """Entries of the range that are durable, including those of earlier pieces."""
    left_from: str | None
    """The key where the rest of the range begins, in hex. None: the range is done."""
    read_rows: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """How much of a range of an initial load was durable when an incarnation began."""

    id: str
    rows: int
    left_from: str | None
    """The key where the rest of the range begins, in hex. None: the range was done."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one worker, and no other, to write in a slot of an incarnation."""

    slot: int
    number: int
    """Rises whenever a slot of the incarnation is given to another worker. A writer that was opened in the
    slot under another lease must not be used.
    """


NO_LEASE: Final = Lease(-1, 0)
"""The lease in a piece that the host has not given to a worker yet."""


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker has started and asks for work."""

    pid: int


@dataclass(frozen=True, slots=True)
class ElsewhereHello:
    """The same from a worker on another machine."""

    pid: int
    machine: str
    version: str
    """The version of Tidegate, which must be the same at both ends."""
    nonce: str
    """The nonce of the worker's Spark job. The application made it and accepts it once."""


@dataclass(frozen=True, slots=True)
class Alive:
    """A worker elsewhere has done some work just now. It takes the place of a beat
    (`pipeline.exchange.beats`).
    """


@dataclass(frozen=True, slots=True)
class Begin:
    """Fence all earlier incarnations of a changefeed, then read what is durable.

    `spec`: the path of the spec. For a worker elsewhere, the incarnation's secret
    (`pipeline.remote.service`).
    """

    spec: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver these ranges. Until the worker has ended, no other one gets a range of the same spans."""

    spec: str
    ranges: tuple[Range, ...]
    lease: Lease = NO_LEASE


@dataclass(frozen=True, slots=True)
class Load:
    """Deliver a share of an initial load, or as much of it as the limits allow."""

    spec: str
    pd: str
    ts: Timestamp
    share: tuple[LoadRemainder, ...]
    rows_max: int
    """0: no limit. The worker may read one page more."""
    bytes_max: int
    lease: Lease = NO_LEASE
    cpu_s: float = 0.0
    """After this much CPU time the worker reads no more pages. It is set when a worker gets the piece."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The incarnation of the piece that the worker has now is over. The worker may report any result of the
    piece, but it must not wait for its sink any longer.

    A worker that has just reported the result ignores it. It always comes before the next piece.
    """


@dataclass(frozen=True, slots=True)
class Reached:
    """Sent during a piece of work: the ts up to which each of its spans is durable."""

    spans: Mapping[str, Timestamp]


@dataclass(frozen=True, slots=True)
class Begun:
    """All earlier incarnations are fenced, and this is what they have delivered."""

    spans: Mapping[str, Timestamp]
    """The ts up to which each span is durable."""
    outlived: Mapping[str, Timestamp] = field(default_factory=dict)
    """As in `model.reports.Started`."""
    loaded: tuple[LoadedRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivered:
    """All ranges of the piece are durable, except those that were given to another capture."""

    spans: Mapping[str, Timestamp]
    stats: Mapping[str, int]
    """Sums of the fields of `Report`, by their names; for `lag_ms` the maximum."""

    @classmethod
    def of(cls, reports: Sequence[Report]) -> Delivered:
        """From the reports of all ranges."""
        stats = {name: sum(getattr(one, name) for one in reports) for name in COUNTS}
        # The greatest: a sum or a mean would hide the one range that is late.
        lag_ms = max((one.lag_ms for one in reports), default=0)
        return cls({one.span: one.ts for one in reports}, stats | {"lag_ms": lag_ms})


@dataclass(frozen=True, slots=True)
class LoadDone:
    """The ranges of a share that were begun, each with how much of it is durable."""

    reports: tuple[LoadReport, ...]


Piece = Begin | Deliver | Load
ToWorker = Piece | GiveUp
WorkResult = Begun | Delivered | LoadDone
FromWorker = WorkerHello | ElsewhereHello | Alive | Reached | WorkResult | Failed

FROM_WORKER: Final[tuple[type[FromWorker], ...]] = (
    WorkerHello, ElsewhereHello, Alive, Reached, Begun, Delivered, LoadDone, Failed
)  # fmt: skip
TO_WORKER: Final[tuple[type[ToWorker], ...]] = (Begin, Deliver, Load, GiveUp)

OnDurable: TypeAlias = Callable[[Mapping[str, Timestamp]], None]
"""Reports during a piece of work up to which ts each span is durable."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The functions of a worker for each kind of work. Module-level functions, because Spark pickles
    them by name.
    """

    begin: Callable[[Begin], Begun]
    deliver: Callable[[Deliver, OnDurable], list[Report]]
    """(piece, how to report) -> a report for each range."""
    load: Callable[[Load], list[LoadReport]]
    rest: Callable[[], bool]
    """Called after each `worker.REST_S` without work. It closes what is not needed any more, and returns
    whether the process should be replaced."""


_WIRE: Final = Wire()
_WIRE.add({"tuple[Range, ...]": _WIRE.parts(Range), "tuple[LoadRemainder, ...]": _WIRE.parts(LoadRemainder)})
_WIRE.add(
    {
        "Lease": _WIRE.part(Lease),
        "Report": _WIRE.part(Report),
        "tuple[LoadedRange, ...]": _WIRE.parts(LoadedRange),
    }
)
_WIRE.add({"tuple[LoadReport, ...]": _WIRE.parts(LoadReport)})
to_json: Final[Callable[[Any], dict[str, Any]]] = _WIRE.to_json
parse: Final = _WIRE.parse
