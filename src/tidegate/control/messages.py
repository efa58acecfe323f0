"""What a feed's owner and its processors tell each other: the five messages, in the document's words.

    owner -> processor    Announce, Dispatch
    processor -> owner    Sync, DispatchResponse, Checkpoint

tiflow has them (`docs/distributed-scheduling.md`) for one table a message. Here a message speaks of ranges,
each under a token, and says *all* that its sender knows: Dispatch replaces what was dispatched before, and so
does Sync what was known of a processor. So neither the loss of a message nor its coming twice does harm. What
comes late is told by the header's sequence; a checkpoint is never too late: of a range, token and incarnation
the greatest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidegate.control.ddl_log import NOTHING, KnownDdl
from tidegate.control.metadata import GrantedRange
from tidegate.model.reports import Failed, LoadState
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX, Timestamp
from tidegate.model.wire import FORMS, Form, Wire, listed


@dataclass(frozen=True, slots=True)
class Header:
    """Who speaks, and of what: a message that is not for the one who gets it changes nothing."""

    cluster: int
    changefeed: str
    instance: str
    """`FeedInfo.instance`: another feed of the same name has another."""
    owner_rev: int
    """Of the owner that speaks or is spoken to; the later owner's is greater."""
    capture: str
    """The processor's."""
    capture_epoch: int
    """Greater with every start of the capture's control process."""
    sequence: int
    """Greater with every message of its sender."""


@dataclass(frozen=True, slots=True)
class Announce:
    """The owner of a feed says so, and asks for Sync."""

    header: Header
    owner_version: str


class Wish(StrEnum):
    """What an owner wants of a processor for its ranges."""

    RUN = "run"
    PREPARE = "prepare"
    """Pull and store, deliver nothing."""
    REST = "rest"
    """Let go of everything, for now: the feed is paused, or has ended."""
    DELETE = "delete"
    """And of what is kept, for ever."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """All that an owner wants of a processor."""

    header: Header
    wish: Wish
    incarnation: int
    """Of this feed on this capture; each begins once."""
    ranges: Sequence[GrantedRange]
    bound: Timestamp
    """Nothing above it is delivered."""
    checkpoint: Timestamp
    """The stored one: a start reads from there, and nobody needs what lies below."""
    load: bool
    """Whether the rows there are at `checkpoint` are to be delivered first."""
    needed: Timestamp = MAX
    safe_point: Timestamp = MAX
    """What PD keeps for the owner (`control.gc.History`): the processor's capture does not ask PD itself."""
    coming: Sequence[Span] = ()
    """Ranges that it may have next: it pulls and stores them while another capture still delivers them."""


class RangeState(StrEnum):
    """What a processor does with a range."""

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
    """What has become of a Dispatch: of its ranges, or why it failed. No ranges: everything was given up."""

    header: Header
    answers: int
    """The sequence of the Dispatch."""
    incarnation: int
    ranges: Sequence[RangeStatus]
    error: Failed | None = None
    """The incarnation is over: nothing more of it comes."""


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """How far a range is."""

    id: Span
    token: tuple[int, int]
    checkpoint_ts: Timestamp
    """All that the feed wants of it is durable downstream up to here."""
    resolved_ts: Timestamp
    """And received up to here."""


@dataclass(frozen=True, slots=True)
class Sync:
    """All that a processor does for a feed."""

    header: Header
    processor_version: str
    cores: int
    """Of its machine."""
    incarnation: int
    ranges: Sequence[RangeStatus]
    checkpoints: Sequence[RangeProgress]
    ddl: KnownDdl = NOTHING
    """By which DDL these hold."""
    needs: Timestamp = MAX
    """The least ts from which this capture may still register upstream for the feed; the owner has PD keep
    it. MAX: nothing is known of it, or it is the owner's own capture."""
    ready: bool = True
    """Whether its application runs, so that a range that it is given is delivered at once."""
    received: Timestamp = 0
    """Up to where it has received the ranges that may come to it; 0: not known yet, or there are none."""
    coming: Sequence[Span] = ()
    """Those ranges."""
    last_sequence: int = 0
    """The greatest sequence of a message that has come from this owner."""
    loads: Mapping[str, int] = field(default_factory=dict)
    """By span, its changes in bytes per second; those with most, at most `LOADS_MAX`."""


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """What a processor says of itself for people."""

    waits: str = ""
    """What it waits for, in words."""
    last_synced_ts: Timestamp = 0
    """No row above it was delivered since the process began; 0: none at all."""
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
    """Records of progress that nobody needs any more: ranges of an initial load that is over."""
    ddl: KnownDdl = NOTHING
    """By which DDL the ranges hold."""


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
