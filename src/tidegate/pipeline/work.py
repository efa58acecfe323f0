"""What the application and its workers say to each other: one class a message. Pure.

    worker -> application      WorkerHello or ElsewhereHello, then for each piece of work: Reached, and Alive,
                               as it goes on, and at its end Begun, Delivered, LoadDone, or Failed
    application -> worker      Begin, Deliver, Load

A worker that connects asks for work by that, and again with the end of each piece. The application closes the
connection of a worker that it has no more work for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tidegate.control.load import Left
from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.reports import Failed
from tidegate.model.timestamp import Timestamp
from tidegate.model.wire import Form, Wire
from tidegate.pipeline.ranges import Range


@dataclass(slots=True)
class Report:
    """What became of one range."""

    span: str
    ts: int
    """Durable up to here; `after` of the range where nothing of it could be delivered."""
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
"""What is summed up over ranges."""


@dataclass(slots=True)
class LoadReport:
    """What became of one range of an initial load in one piece of work."""

    report: Report
    """`span` is the range's id."""
    rows: int
    """Entries of the range that are durable, of earlier pieces too."""
    left_from: str | None
    """Hex; None: the range is done."""
    read_rows: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """How far a range of an initial load was when an incarnation began."""

    id: str
    rows: int
    left_from: str | None
    """Hex; None: it was done."""


@dataclass(frozen=True, slots=True)
class Lease:
    """That a worker, and no other, writes in a slot of an incarnation."""

    slot: int
    number: int
    """Rises whenever a slot of the incarnation goes to another worker: what was opened in the slot under
    another lease is of no use.
    """


NO_LEASE: Final = Lease(-1, 0)
"""Of a piece that the host has not given to a worker yet."""


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker is there, and asks for work."""

    pid: int


@dataclass(frozen=True, slots=True)
class ElsewhereHello:
    """The same of one that the application has not started on its own machine."""

    pid: int
    machine: str
    version: str
    """Of Tidegate: both ends must have the same one."""
    nonce: str
    """Of the job that it runs: the application made it, and takes it once."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Something was done just now (`pipeline.beats`), by a worker elsewhere."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Fence every older incarnation of a changefeed, and read what is durable.

    `spec`: the path of its spec; for a worker elsewhere the incarnation's secret (`pipeline.service`).
    """

    spec: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver these ranges; no other worker has a range of the same spans meanwhile."""

    spec: str
    ranges: tuple[Range, ...]
    lease: Lease = NO_LEASE


@dataclass(frozen=True, slots=True)
class Load:
    """Deliver a share of an initial load, or the first part of it."""

    spec: str
    pd: str
    ts: Timestamp
    share: tuple[Left, ...]
    rows_max: int
    """0: no limit; a page more may be read."""
    bytes_max: int
    lease: Lease = NO_LEASE


@dataclass(frozen=True, slots=True)
class Reached:
    """In the midst of a piece of work: spans that are durable up to a ts."""

    spans: Mapping[str, Timestamp]


@dataclass(frozen=True, slots=True)
class Begun:
    """All older incarnations are fenced, and this is what they have left behind."""

    spans: Mapping[str, Timestamp]
    """Up to where each span is durable."""
    outlived: Mapping[str, Timestamp] = field(default_factory=dict)
    """As in `model.reports.Started`."""
    loaded: tuple[LoadedRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivered:
    """All of it is durable, but for ranges that this capture has lost; the worker asks for more."""

    spans: Mapping[str, Timestamp]
    stats: Mapping[str, int]
    """What was done, by the names of `Report`; of lags the worst."""

    @classmethod
    def of(cls, reports: Sequence[Report]) -> Delivered:
        """From what became of each range."""
        stats = {name: sum(getattr(one, name) for one in reports) for name in COUNTS}
        lag_ms = max((one.lag_ms for one in reports), default=0)
        return cls({one.span: one.ts for one in reports}, stats | {"lag_ms": lag_ms})


@dataclass(frozen=True, slots=True)
class LoadDone:
    """What became of the ranges of a share that were begun; of each, this much is durable."""

    reports: tuple[LoadReport, ...]


Piece = Begin | Deliver | Load
Outcome = Begun | Delivered | LoadDone
FromWorker = WorkerHello | ElsewhereHello | Alive | Reached | Outcome | Failed

FROM_WORKER: Final[tuple[type[FromWorker], ...]] = (
    WorkerHello, ElsewhereHello, Alive, Reached, Begun, Delivered, LoadDone, Failed
)  # fmt: skip
TO_WORKER: Final[tuple[type[Piece], ...]] = (Begin, Deliver, Load)

Tell: TypeAlias = Callable[[Mapping[str, Timestamp]], None]
"""Says what is durable in the midst of a piece of work."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """What a worker does with each kind of work. Functions of a module: Spark sends their names."""

    begin: Callable[[Begin], Begun]
    deliver: Callable[[Deliver, Tell], list[Report]]
    """(ranges, whom to tell) -> what became of each."""
    load: Callable[[Load], list[LoadReport]]
    rest: Callable[[], bool]
    """Called after each `REST_S` without work: lets go of what is not needed, and says whether the process
    had better be replaced."""


def _text_or_none(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")
    return value


_WIRE: Final = Wire({"str | None": Form(lambda value: value, _text_or_none)})
_WIRE.add({"tuple[Range, ...]": _WIRE.parts(Range), "tuple[Left, ...]": _WIRE.parts(Left)})
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
