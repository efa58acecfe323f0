"""Why a range of a changefeed is not delivered, may not advance, or is about to move: in words. Pure.

    facts of the changefeed ---+
    facts of its captures -----+--> explain --> for each range a state, a reason, words --> grouped
    its ranges ----------------+

The owner gathers the facts from its machines (`server.owner.range_facts`), and nothing is kept here. The
outermost reason counts: a changefeed that is stopped has no capture that is silent. A range that is delivered
and may advance has words, too, if something is about to happen to it or its capture names an obstacle.

Many ranges are shown as groups with one reason, `GROUPS_MAX` at most, and the number of ranges in the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from tidegate.control.changefeed import State
from tidegate.control.outbox import SYNC_S
from tidegate.model.span import Span
from tidegate.model.timestamp import physical_ms

QUIET_S: Final = 2 * SYNC_S
"""A processor repeats everything every `SYNC_S`. One that has sent nothing for this time is not trusted to
deliver.
"""
GRANTS: Final = "grants"
"""The thing that an owner waits for while it divides the key space."""
LATE_S: Final = 10.0
"""From this lag on, the obstacle that a capture names is shown at its slowest range."""
GROUPS_MAX: Final = 20
"""The most groups of ranges with one reason."""
QUERY_SHOWN: Final = 80
"""The number of characters of a DDL that are shown."""


class Delivery(StrEnum):
    """Whether a range is delivered."""

    RUNNING = "running"
    HELD = "held"
    """It is delivered, but may not pass a ts yet."""
    NOT_RUNNING = "not running"


class Reason(StrEnum):
    """Why a range is not delivered, is held, or is about to move. Programs may rely on these words."""

    NONE = ""
    # not running, because of the changefeed
    STOPPED = "stopped"
    FAILED = "failed"
    FINISHED = "finished"
    BACK_OFF = "back-off"
    MEETING = "owner starts"
    DEFINITIONS = "definitions"
    FENCING = "fencing"
    DIVIDED = "divided again"
    # not running, because of the range or its capture
    NOT_GRANTED = "not granted"
    GONE = "capture gone"
    SILENT = "capture silent"
    APPLICATION = "no application"
    STARTING = "starting"
    # held
    DISAGREEMENT = "other DDL"
    LOAD = "initial load"
    DDL = "DDL"
    REPARTITION = "repartition"
    # running
    MOVES = "moves"
    DRAINS = "drains"
    BEHIND = "behind"


OF_A_CAPTURE: Final = frozenset(
    {
        Reason.GONE,
        Reason.SILENT,
        Reason.APPLICATION,
        Reason.DEFINITIONS,
        Reason.STARTING,
        Reason.MOVES,
        Reason.DRAINS,
        Reason.BEHIND,
    }
)
"""Reasons that differ from capture to capture."""
PHASES: Final[Mapping[str, tuple[Reason, str]]] = {
    "processor": (Reason.MEETING, "waits for the first answer of its own processor"),
    "catalogue from upstream": (Reason.DEFINITIONS, "reads the tables' definitions from upstream"),
    "DDL puller": (Reason.DEFINITIONS, "waits until it has received the DDL up to the checkpoint"),
    "puller": (Reason.DEFINITIONS, "waits until its puller has received the checkpoint"),
    GRANTS: (Reason.DIVIDED, "stores which capture gets which ranges"),
    "sink": (Reason.FENCING, "fences earlier writers at the sink, and opens it"),
}
"""For each thing that an owner or a capture waits for before it delivers, the reason, and what it does."""


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """Facts of a changefeed. Times are in seconds from now."""

    state: State
    checkpoint: int
    now_ms: int
    """Upstream's time."""
    error: str = ""
    """The first line of its error."""
    retry_in_s: float = 0.0
    """Until the next try, if it waits for one."""
    waits_for: str = ""
    """The thing that the owner waits for before captures may deliver, as `Replication.waiting_for`."""
    divided: str = ""
    """Why the key space is being divided again; empty: it is not."""
    disagreement: str = ""
    """Which capture knows other DDL than the owner, in words."""
    load: str = ""
    """The progress of the initial load, in words; empty: there is none under way."""
    ddl_ts: int = 0
    """The next DDL, which no range may pass; 0: none is known."""
    ddl: str = ""
    """Its statement."""
    switch_ts: int = 0
    """The ts at which the number of partitions changes; 0: it does not."""


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """Facts of a capture, as the owner of a changefeed knows them. Times are in seconds from now."""

    name: str
    """Its address, or another name that people know."""
    has_session: bool = True
    silent_s: float = 0.0
    """Since its last message."""
    lost_in_s: float = 0.0
    """Until it counts as lost if nothing comes from it."""
    has_application: bool = True
    """Whether its Spark application runs."""
    waits: str = ""
    """The obstacle that it names itself."""
    drained: bool = False
    unable: str = ""
    """Why it may get no ranges now; empty: it may."""

    @property
    def is_quiet(self) -> bool:
        """Whether it has sent nothing for longer than it should."""
        return self.silent_s > QUIET_S


@dataclass(frozen=True, slots=True)
class Coming:
    """A range that a capture prepares to take."""

    span: Span
    taker: str
    """The name of the capture, as in `CaptureFacts`."""
    has_application: bool
    received_ts: int
    """Up to which ts it has received the range; 0: its beginning is missing."""


@dataclass(frozen=True, slots=True)
class OwnedRange:
    """A range as the owner's machine has it."""

    span: Span
    capture: str
    """The capture's key in the facts; empty: it is granted to none."""
    running: bool = False
    checkpoint: int = 0
    resolved: int = 0


@dataclass(frozen=True, slots=True)
class Why:
    """The state of a range, with the reason in words; both are empty if nothing keeps it."""

    delivery: Delivery
    reason: Reason = Reason.NONE
    words: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranges that one thing keeps: their number, and one of them."""

    why: Why
    count: int
    example: OwnedRange


def explain(
    feed: FeedFacts,
    ranges: Sequence[OwnedRange],
    captures: Mapping[str, CaptureFacts],
    coming: Sequence[Coming] = (),
) -> list[Why]:
    """For each range its state and the reason for it, in the order of `ranges`."""
    if (whole := _of_feed(feed)) is not None:
        return [whole] * len(ranges)
    coming = sorted(coming, key=lambda one: one.span.start)
    slowest: dict[str, int] = {}
    for one in ranges:
        slowest[one.capture] = min(one.checkpoint, slowest.get(one.capture, one.checkpoint))
    return [
        _not_running(one, captures)
        or _held(feed, one)
        or _about_to_move(feed, one, captures, coming)
        or _behind(feed, one, captures, slowest[one.capture])
        or RUNS
        for one in ranges
    ]


RUNS: Final = Why(Delivery.RUNNING)


def grouped(found: Iterable[tuple[OwnedRange, Why]]) -> tuple[list[Group], int]:
    """The ranges that have a reason, by reason; by capture, too, if the reason is there. Those that are not
    delivered come first, and then the groups with most ranges.

    Also returns how many ranges are in no group, because there are `GROUPS_MAX` of them already.
    The example of a group is its range with the lowest checkpoint.
    """
    groups: dict[tuple[Delivery, Reason, str], Group] = {}
    for one, why in found:
        if why.reason is Reason.NONE:
            continue
        key = why.delivery, why.reason, one.capture if why.reason in OF_A_CAPTURE else ""
        known = groups.get(key)
        if known is None:
            groups[key] = Group(why, 1, one)
        else:
            slower = one.checkpoint < known.example.checkpoint
            groups[key] = Group(
                why if slower else known.why, known.count + 1, one if slower else known.example
            )
    # Those that are not delivered first, because a person must act on them.
    order = list(Delivery)[::-1]
    ordered = sorted(groups.values(), key=lambda one: (order.index(one.why.delivery), -one.count))
    return ordered[:GROUPS_MAX], sum(one.count for one in ordered[GROUPS_MAX:])


# --- the changefeed as a whole ---------------------------------------------------------------------------


def _of_feed(feed: FeedFacts) -> Why | None:
    """Why no range of the changefeed is delivered; None: some may be."""
    match feed.state:
        case State.STOPPED:
            return _stopped(Reason.STOPPED, "it is stopped; `tidegate changefeed resume` starts it")
        case State.FAILED:
            return _stopped(Reason.FAILED, f"it has failed: {feed.error or 'see its error'}")
        case State.FINISHED:
            return _stopped(Reason.FINISHED, "it is finished: all up to target-ts is delivered")
        case State.REMOVED:
            return _stopped(Reason.STOPPED, "it is being removed")
        case State.PENDING:
            words = f"it tries again in {seconds(feed.retry_in_s)}, after an error: {feed.error}"
            return _stopped(Reason.BACK_OFF, words)
        case State.NORMAL | State.WARNING:
            pass
    if feed.divided:
        return _stopped(Reason.DIVIDED, f"the key space is being divided again: {feed.divided}")
    if feed.waits_for:
        return _waits("the owner", feed.waits_for, Reason.MEETING)
    return None


def _stopped(reason: Reason, words: str) -> Why:
    return Why(Delivery.NOT_RUNNING, reason, words)


def _waits(who: str, what: str, otherwise: Reason) -> Why:
    reason, does = PHASES.get(what, (otherwise, f"waits for {what}"))
    return _stopped(reason, f"{who} {does}")


# --- a range ---------------------------------------------------------------------------------------------


def _not_running(one: OwnedRange, captures: Mapping[str, CaptureFacts]) -> Why | None:
    """Why a range is not delivered; None: it is."""
    capture = captures.get(one.capture)
    if not one.capture:
        return _stopped(Reason.NOT_GRANTED, f"no capture has it{_unable(captures, '')}")
    if capture is None or not capture.has_session:
        name = capture.name if capture is not None else one.capture
        words = f"capture {name} has no session any more; the others get its ranges"
        return _stopped(Reason.GONE, words)
    # Before `running`, which is only what the capture said last.
    if capture.is_quiet:
        words = f"capture {capture.name} has sent nothing for {seconds(capture.silent_s)}"
        if capture.lost_in_s > 0:
            words += (
                f"; the others get its ranges when its session ends, or in {seconds(capture.lost_in_s)} at "
                "the latest"
            )
        return _stopped(Reason.SILENT, words)
    if one.running:
        return None
    if not capture.has_application:
        words = f"capture {capture.name} has no Spark worker yet: its application starts"
        return _stopped(Reason.APPLICATION, words)
    if capture.waits:
        return _waits(f"capture {capture.name}", capture.waits, Reason.STARTING)
    words = f"capture {capture.name} starts its pipeline, and reads what is durable at the sink"
    return _stopped(Reason.STARTING, words)


def _held(feed: FeedFacts, one: OwnedRange) -> Why | None:
    """Why a range that is delivered may not advance; None: it may."""
    if feed.disagreement:
        return Why(Delivery.HELD, Reason.DISAGREEMENT, feed.disagreement)
    if feed.load:
        return Why(Delivery.HELD, Reason.LOAD, f"changes follow the {feed.load}")
    # A range that has reached the ts waits for the others. One below it still has rows to deliver.
    if feed.ddl_ts and one.checkpoint >= feed.ddl_ts:
        words = (
            f"a DDL at {feed.ddl_ts} is sent once all ranges are delivered up to it: {feed.ddl[:QUERY_SHOWN]}"
        )
        return Why(Delivery.HELD, Reason.DDL, words)
    if feed.switch_ts and one.checkpoint >= feed.switch_ts:
        words = f"the number of partitions changes once all ranges are delivered up to {feed.switch_ts}"
        return Why(Delivery.HELD, Reason.REPARTITION, words)
    return None


def _about_to_move(
    feed: FeedFacts, one: OwnedRange, captures: Mapping[str, CaptureFacts], coming: Sequence[Coming]
) -> Why | None:
    """Whether another capture prepares for the range, or should and cannot; None: it stays.

    `coming`: in key order, without overlaps.
    """
    # The last one that begins at or before the range, and the next: if neither meets it, none does.
    first = max(0, bisect_right(coming, one.span.start, key=lambda each: each.span.start) - 1)
    for each in islice(coming, first, first + 2):
        if each.taker != one.capture and each.span.intersect(one.span) is not None:
            words = f"moves to capture {_name(captures, each.taker)} {_when_warm(feed, each)}"
            return Why(Delivery.RUNNING, Reason.MOVES, words)
    capture = captures[one.capture]
    if capture.drained:
        words = f"capture {capture.name} is drained, and keeps it meanwhile{_unable(captures, one.capture)}"
        return Why(Delivery.RUNNING, Reason.DRAINS, words)
    return None


def _when_warm(feed: FeedFacts, one: Coming) -> str:
    if not one.has_application:
        return "when that has a Spark worker: its application starts"
    if not one.received_ts:
        return "when upstream has scanned it: changes from the checkpoint on are not complete there yet"
    # Compared with the whole way from the stored checkpoint to now, because upstream scans from there.
    behind_s = max(0.0, (feed.now_ms - physical_ms(one.received_ts)) / 1000)
    whole_s = max(behind_s, (feed.now_ms - physical_ms(feed.checkpoint)) / 1000)
    had, of = seconds(behind_s), seconds(whole_s)
    return f"when that has received it: it lacks the last {had} of {of} since the checkpoint"


def _behind(
    feed: FeedFacts, one: OwnedRange, captures: Mapping[str, CaptureFacts], slowest: int
) -> Why | None:
    """The obstacle of a capture's slowest range; None: it is not late, or none is known."""
    capture = captures[one.capture]
    lag_s = (feed.now_ms - physical_ms(max(one.checkpoint, feed.checkpoint))) / 1000
    if lag_s < LATE_S or one.checkpoint > slowest or not capture.waits:
        return None
    return Why(Delivery.RUNNING, Reason.BEHIND, f"{seconds(lag_s)} behind: {capture.waits}")


def _unable(captures: Mapping[str, CaptureFacts], but: str) -> str:
    """Why the other captures cannot take ranges, for the end of a sentence; empty: one can."""
    others = [one for key, one in captures.items() if key != but]
    if not others:
        return ": there is no other" if but else ": none answers"
    if any(not one.unable for one in others):
        return ""
    first = ", ".join(f"{one.name} {one.unable}" for one in others[:3])
    more = f", and {len(others) - 3} more" if len(others) > 3 else ""
    return f": no other can take it ({first}{more})" if but else f": none can take it ({first}{more})"


def _name(captures: Mapping[str, CaptureFacts], key: str) -> str:
    return captures[key].name if key in captures else key


def seconds(count: float) -> str:
    """A time for people: 0.4 s, 12 s, 3 min, 2 h."""
    if count < 9.95:
        return f"{count:.1f} s"
    if count < 119.5:
        return f"{count:.0f} s"
    return f"{count / 60:.0f} min" if count < 7170 else f"{count / 3600:.1f} h"
