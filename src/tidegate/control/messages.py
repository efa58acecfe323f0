"""The five messages between a feed's owner and its processors.

    owner -> processor    Announce, Dispatch
    processor -> owner    Sync, DispatchResponse, Checkpoint

The names are those of tiflow (`docs/distributed-scheduling.md`), where a message concerns one table. Here a
message has ranges, each with a token, and contains *all* that its sender knows: a Dispatch replaces the
Dispatch before it, and a Sync replaces all that the owner knew of a processor. So a lost or repeated message
does no harm. The sequence in the header shows that a message is late. A Checkpoint is never too late: for a
range, token and incarnation the greatest checkpoint counts.

There may be thousands of ranges in a message, and many such messages a second. So in JSON they are columns,
and a range with its token is one text:

    {"ranges": ["-7480-7-12", "7480--7-12"], "checkpoints": [412, 410], "resolved": [415, 415]}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, overload

from tidegate.control.ddl_log import NOTHING, KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.model.reports import Failed, LoadState
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX, Timestamp
from tidegate.model.wire import FORMS, Form, Wire, listed


@dataclass(frozen=True, slots=True)
class Header:
    """Identifies sender and receiver. A receiver ignores a message that is not for it."""

    cluster: int
    changefeed: str
    instance: str
    """`FeedInfo.instance`, which is different for another feed of the same name."""
    owner_rev: int
    """The revision of the owner that sends or receives. A later owner has a greater one."""
    capture: str
    """The capture of the processor."""
    capture_epoch: int
    """Rises with every start of the capture's control process."""
    sequence: int
    """Rises with every message of the sender."""


@dataclass(frozen=True, slots=True)
class Announce:
    """The owner of a feed announces itself and asks for a Sync."""

    header: Header
    owner_version: str


class Wish(StrEnum):
    """An owner's order for a processor's ranges."""

    RUN = "run"
    PREPARE = "prepare"
    """Pull and store, but deliver nothing."""
    REST = "rest"
    """Stop all work: the feed is paused, or has ended."""
    DELETE = "delete"
    """Stop all work and delete what is kept of the feed."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """All that an owner wants a processor to do."""

    header: Header
    wish: Wish
    incarnation: int
    """The incarnation of this feed on this capture. Each one begins once."""
    ranges: Sequence[GrantedRange]
    bound: Timestamp
    """Nothing above this ts may be delivered."""
    checkpoint: Timestamp
    """The stored checkpoint. A start reads from there, and nothing below it is needed any more."""
    load: bool
    """Whether to deliver the rows that exist at `checkpoint` first: the initial load."""
    needed: Timestamp = MAX
    safe_point: Timestamp = MAX
    """With `needed`: the history that PD keeps for the owner (`control.gc.History`). The processor's capture
    does not ask PD itself."""
    coming: Sequence[Span] = ()
    """Ranges that the processor may get next. It pulls and stores them while another capture delivers
    them."""


class RangeState(StrEnum):
    """The state of a range at a processor."""

    PREPARING = "preparing"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """One range at a processor."""

    id: Span
    token: tuple[int, int]
    state: RangeState


@dataclass(frozen=True, slots=True)
class DispatchResponse:
    """The answer to a Dispatch: the state of its ranges, or its error. No ranges: nothing runs any more."""

    header: Header
    answers: int
    """The sequence of the Dispatch."""
    incarnation: int
    ranges: Sequence[RangeStatus]
    error: Failed | None = None
    """Why the incarnation has failed. No more reports of it will come."""


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """The progress of a range."""

    id: Span
    token: tuple[int, int]
    checkpoint_ts: Timestamp
    """Everything that the feed wants of the range is durable downstream up to this ts."""
    resolved_ts: Timestamp
    """Everything is received up to this ts."""


@dataclass(frozen=True, slots=True, eq=False)
class RangeColumns(Sequence[RangeProgress]):
    """The progress of ranges in columns, as it is sent. As a sequence it has a `RangeProgress` a range.

    All ranges of a capture are usually reported together. An owner that takes whole columns needs neither an
    object nor a look-up for each range (`control.granted_ranges`).
    """

    granted: tuple[GrantedRange, ...]
    checkpoints: Sequence[Timestamp]
    resolved: Sequence[Timestamp]

    @classmethod
    def of(cls, progress: Iterable[RangeProgress]) -> RangeColumns:
        """The columns of some progress."""
        if isinstance(progress, cls):
            return progress
        rows = list(progress)
        return cls(
            tuple(GrantedRange(one.id, one.token) for one in rows),
            list(map(attrgetter("checkpoint_ts"), rows)),
            list(map(attrgetter("resolved_ts"), rows)),
        )

    def __len__(self) -> int:
        return len(self.granted)

    def __iter__(self) -> Iterator[RangeProgress]:
        for one, checkpoint, resolved in zip(self.granted, self.checkpoints, self.resolved, strict=True):
            yield RangeProgress(one.id, one.token, checkpoint, resolved)

    @overload
    def __getitem__(self, at: int) -> RangeProgress: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[RangeProgress, ...]: ...
    def __getitem__(self, at: int | slice) -> RangeProgress | tuple[RangeProgress, ...]:
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        """Equal to any list or tuple of the same progress, which a message may have in its place."""
        return (
            tuple(self) == tuple(other) if isinstance(other, (RangeColumns, list, tuple)) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True)
class Sync:
    """The whole state of a processor for a feed."""

    header: Header
    processor_version: str
    cores: int
    """The cores of its machine."""
    incarnation: int
    ranges: Sequence[RangeStatus]
    checkpoints: Sequence[RangeProgress]
    ddl: KnownDdl = NOTHING
    """The DDL that the checkpoints take into account."""
    needs: Timestamp = MAX
    """The least ts from which this capture may still register upstream for the feed. The owner makes PD keep
    the history from there. MAX: it holds nothing of the feed, and opens nothing."""
    ready: bool = True
    """Whether its application runs, so that it can deliver a new range at once."""
    received: Timestamp = 0
    """The ts up to which it has received the ranges in `coming`. 0: not known yet, or there are none."""
    coming: Sequence[Span] = ()
    """The ranges of `Dispatch.coming` that it pulls."""
    last_sequence: int = 0
    """The greatest sequence of the messages received from this owner."""
    loads: Mapping[str, int] = field(default_factory=dict)
    """Bytes of changes per second of the busiest spans, at most `LOADS_MAX` of them."""


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """The state of a processor, for people."""

    waits: str = ""
    """The reason why it waits, in words."""
    last_synced_ts: Timestamp = 0
    """No row above this ts was delivered since the process began. 0: no row was delivered."""
    rows: int = 0
    messages: int = 0
    bytes: int = 0
    quarantined: int = 0
    matched: int = 0
    unchecked: int = 0
    excused: int = 0
    mismatched: int = 0
    misencoded: int = 0
    batches: int = 0
    batch_ms: int = 0
    lag_ms: int = 0
    load: LoadState = field(default_factory=LoadState)
    loaded: bool = False
    """Whether the initial load of this incarnation is durable."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Ranges whose progress has changed."""

    header: Header
    incarnation: int
    ranges: Sequence[RangeProgress]
    status: ProcessorStatus
    over: tuple[str, ...] = ()
    """Records of progress that are not needed any more: ranges of an initial load that is over."""
    ddl: KnownDdl = NOTHING
    """The DDL that the ranges' progress takes into account."""


FromOwner = Announce | Dispatch
FromProcessor = Sync | DispatchResponse | Checkpoint
Message = FromOwner | FromProcessor

FROM_OWNER: Final[tuple[type[FromOwner], ...]] = (Announce, Dispatch)
FROM_PROCESSOR: Final[tuple[type[FromProcessor], ...]] = (Sync, DispatchResponse, Checkpoint)


def _word(kind: type[StrEnum]) -> Form:
    def load(value: Any) -> StrEnum:
        if not isinstance(value, str):
            raise ValueError(f"{value!r:.80} is not a word")
        return kind(value)

    return Form(str, load)


RANGES_REMEMBERED: Final = 1 << 15
"""Granted ranges of which the objects are kept, so that messages about the same range have the same object:
at most 20 MB. The oldest are dropped, and made again if they come again."""


def _text_of(one: GrantedRange) -> str:
    """A granted range as `START-END-OWNER_REV-GRANT_SEQ`, with keys in hex."""
    (owner_rev, grant_seq), span = one.token, one.id
    return f"{span.start.hex()}-{span.end.hex()}-{owner_rev}-{grant_seq}"


@lru_cache(RANGES_REMEMBERED)
def _granted(text: str) -> GrantedRange:
    """The inverse of `_text_of`; raises ValueError."""
    start, end, owner_rev, grant_seq = text.split("-")
    span = FORMS["Span"].load([start, end])
    found = GrantedRange(span, (int(owner_rev), int(grant_seq)))
    # Python reads numbers and hex in many forms, and a range has one.
    if _text_of(found) != text:
        raise ValueError(f"{text!r:.80} is no granted range")
    return found


def _granted_ranges(value: Any) -> tuple[GrantedRange, ...]:
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise ValueError("a list of granted ranges is none")
    return tuple(map(_granted, value))


def _dispatched(value: Any) -> tuple[GrantedRange, ...]:
    found = _granted_ranges(value)
    ordered = sorted((one.id for one in found), key=attrgetter("start"))
    # Progress is looked up by bisection, which finds nothing behind a range that reaches into the next one.
    for one, following in pairwise(ordered):
        if one.end == b"" or one.end > following.start:
            raise ValueError(f"the granted ranges {one} and {following} overlap")
    return found


_STATES: Final = {str(one): one for one in RangeState}


def _statuses(value: Any) -> tuple[RangeStatus, ...]:
    if not isinstance(value, dict) or value.keys() != {"ranges", "states"}:
        raise ValueError("columns of states are none")
    granted, words = _granted_ranges(value["ranges"]), value["states"]
    if not isinstance(words, list) or len(words) != len(granted) or not set(map(type, words)) <= {str}:
        raise ValueError("a column of states is no list of one state a range")
    # Refused and not ignored: it is not known what an unknown state allows.
    if unknown := set(words) - _STATES.keys():
        raise ValueError(f"{min(unknown)!r:.80} is no state of a range")
    return tuple(
        RangeStatus(one.id, one.token, _STATES[word]) for one, word in zip(granted, words, strict=True)
    )


def _statuses_as_json(statuses: Sequence[RangeStatus]) -> dict[str, Any]:
    ranges = [_text_of(GrantedRange(one.id, one.token)) for one in statuses]
    return {"ranges": ranges, "states": [str(one.state) for one in statuses]}


_COLUMNS: Final = frozenset({"ranges", "checkpoints", "resolved"})


def _columns(value: Any) -> RangeColumns:
    if not isinstance(value, dict) or value.keys() != _COLUMNS:
        raise ValueError("columns of progress are none")
    granted, numbers = _granted_ranges(value["ranges"]), (value["checkpoints"], value["resolved"])
    for column in numbers:
        if not isinstance(column, list) or len(column) != len(granted) or not set(map(type, column)) <= {int}:
            raise ValueError("a column of progress is no list of one number a range")
    return RangeColumns(granted, *numbers)


def _columns_as_json(progress: Sequence[RangeProgress]) -> dict[str, Any]:
    found = RangeColumns.of(progress)
    ranges = list(map(_text_of, found.granted))
    return {"ranges": ranges, "checkpoints": list(found.checkpoints), "resolved": list(found.resolved)}


_WIRE: Final = Wire({"Wish": _word(Wish)}, separator="-")
_WIRE.add({"Header": _WIRE.part(Header), "LoadState": _WIRE.part(LoadState)})
_WIRE.add({"KnownDdl": _WIRE.part(KnownDdl)})
_WIRE.add({"ProcessorStatus": _WIRE.part(ProcessorStatus), "Failed | None": _WIRE.option(Failed)})
_WIRE.add({"Sequence[GrantedRange]": Form(lambda ranges: list(map(_text_of, ranges)), _dispatched)})
_WIRE.add({"Sequence[RangeStatus]": Form(_statuses_as_json, _statuses)})
_WIRE.add({"Sequence[Span]": listed(FORMS["Span"])})
_WIRE.add({"Sequence[RangeProgress]": Form(_columns_as_json, _columns)})
to_json: Final = _WIRE.to_json
parse: Final = _WIRE.parse
