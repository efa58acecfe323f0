"""The five messages between a feed's owner and its processors.

    owner -> processor    Announce, Dispatch
    processor -> owner    Sync, DispatchResponse, Checkpoint

The names are those of tiflow (`docs/distributed-scheduling.md`), where a message concerns one table. Here a
message has ranges, each with a token, and contains *all* that its sender knows: a Dispatch replaces the
Dispatch before it, and a Sync replaces all that the owner knew of a processor. So a lost or repeated message
does no harm. The sequence in the header shows that a message is late. A Checkpoint is never too late: for a
range, token and incarnation the greatest checkpoint counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

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


_WIRE: Final = Wire({"Wish": _word(Wish), "RangeState": _word(RangeState)}, separator="-")
_WIRE.add({"Header": _WIRE.part(Header), "LoadState": _WIRE.part(LoadState)})
_WIRE.add({"KnownDdl": _WIRE.part(KnownDdl)})
_WIRE.add({"ProcessorStatus": _WIRE.part(ProcessorStatus), "Failed | None": _WIRE.option(Failed)})
_WIRE.add({"Sequence[GrantedRange]": _WIRE.parts(GrantedRange)})
_WIRE.add({"Sequence[RangeStatus]": _WIRE.parts(RangeStatus)})
_WIRE.add({"Sequence[Span]": listed(FORMS["Span"])})
_WIRE.add({"Sequence[RangeProgress]": _WIRE.parts(RangeProgress)})
to_json: Final = _WIRE.to_json
parse: Final = _WIRE.parse
