"""What a pipeline's driver and its workers say to each other: one class a message. Pure.

    worker -> driver      WorkerHello, then for each Deliver: Reached as it goes on, and Delivered or Failed
    driver -> worker      Deliver

A worker that connects asks for work by that, and again with each Delivered. The driver closes the connection
of a worker that it has no more work for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.reports import Failed
from tidegate.model.timestamp import Timestamp
from tidegate.model.wire import Wire
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
    lag_ms: int = 0


COUNTS: Final = ("rows", "messages", "bytes", "quarantined", *INTEGRITY_OUTCOMES, "misencoded")
"""What is summed up over ranges."""


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker is there, and asks for work."""

    pid: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver these ranges; no other worker has a range of the same spans meanwhile."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """In the midst of a piece of work: spans that are durable up to a ts."""

    spans: Mapping[str, Timestamp]


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


Tell: TypeAlias = Callable[[Mapping[str, Timestamp]], None]
"""Says what is durable in the midst of a piece of work."""
Task: TypeAlias = Callable[[str, list[Range], Tell], list[Report]]
"""(path of the spec, ranges, what to tell) -> what became of each: what a worker does."""

FromWorker = WorkerHello | Reached | Delivered | Failed

FROM_WORKER: Final[tuple[type[FromWorker], ...]] = (WorkerHello, Reached, Delivered, Failed)
TO_WORKER: Final[tuple[type[Deliver], ...]] = (Deliver,)

_WIRE: Final = Wire()
_WIRE.add({"tuple[Range, ...]": _WIRE.parts(Range)})
to_json: Final[Callable[[Any], dict[str, Any]]] = _WIRE.to_json
parse: Final = _WIRE.parse
