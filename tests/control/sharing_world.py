"""The nouns of `sharing_model`: all there is in a world, as values that never change; what a sink promises.

    store (etcd)   owner key, grants, checkpoint; every write compares revisions
    owner terms    one for each elected owner
    captures       a control process and at most one worker process each; a worker may outlive its capture
    network        messages as JSON
    sink           an epoch for each capture's writer, rows, records of progress, Resolved and DDL

Tables k (in LOW) and p (in HIGH) have rows from the start on. A DDL at ts 3 adds q (in HIGH).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, assert_never

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.messages import (
    FROM_OWNER,
    FROM_PROCESSOR,
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    Message,
    RangeProgress,
    RangeState,
    Sync,
    Wish,
    parse,
    to_json,
)
from tidegate.control.owner import Effect, Persist, SendDdl, SendResolved
from tidegate.control.processor import Goal, Processor
from tidegate.model.ddl import DdlEvent
from tidegate.model.reports import Failed
from tidegate.model.span import Span

T = TypeVar("T")

ALL: Final = Span(b"", b"")
LOW, HIGH = RANGES = Span(b"", b"m"), Span(b"m", b"")
NAMES: Final = {LOW: "LOW", HIGH: "HIGH", ALL: "all"}
START: Final = 1
"""The changefeed's start ts."""
DDL_TS: Final = 3
KNOWN: Final = (2, 5, 6)
"""Up to where DDL is known: before and after a catalogue has read on; and once more."""
UPSTREAM: Final[Mapping[str, Sequence[int]]] = {"k": (2, 4), "p": (1, 2), "q": (4,)}
"""Commit ts of each table's rows. The row at 1 is older than the changefeed."""
FRONTIER: Final = dict.fromkeys(UPSTREAM, 6)
NOW: Final = 0.0
"""The machines' time. It does not advance: a wait for time is a step of its own."""


def _task(table: str, start_ts: int) -> SpanTask:
    return SpanTask(table, Span(table.encode(), table.encode() + b"\xff"), ord(table), start_ts)


TASKS: Final = {"k": _task("k", START), "p": _task("p", START), "q": _task("q", DDL_TS)}
CREATE: Final = DdlEvent(
    1, 0, DDL_TS - 1, DDL_TS, 3, "create table q", "s", "q", "s", "q", 1, None, None, (), ()
)
BATCH: Final = DdlBatch(DDL_TS, (CREATE,), (TASKS["q"],))


class Kept:
    """A machine as it is at one time. Nobody changes it, and equal ones are one object."""

    __slots__ = ("_pickled", "machine")

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self._pickled = b""

    def copy(self) -> Any:
        """A machine that may be changed. Each is copied for several steps, so it is pickled once."""
        if not self._pickled:
            self._pickled = pickle.dumps(self.machine, pickle.HIGHEST_PROTOCOL)
        return pickle.loads(self._pickled)


class Mail(NamedTuple):
    """A message on its way."""

    to: str
    """A capture's name, or an owner's revision."""
    text: str


class Worker(NamedTuple):
    """A process that writes for one incarnation of one capture."""

    grant: bytes
    at: str
    """fences, proves, runs."""
    left: tuple[str, ...] = ()
    """Whose writers it has yet to fence."""
    epoch: int = 0
    """The epoch of its own writer, when it initialised that."""
    read: bool = False
    """Whether it has read where to begin. If it is fenced after that, it may take its writer back."""


class Zombie(NamedTuple):
    """A worker whose capture is gone, with the last that it knew of bound and positions."""

    capture: str
    worker: Worker
    reach: int
    at: tuple[tuple[str, int], ...]


class Capture(NamedTuple):
    """A capture's control process, and its worker."""

    epoch: int
    kept: Kept
    goal: Goal | None = None
    opened: tuple[Span, ...] | None = None
    """The ranges for which the processor is open."""
    known: int = 1
    """Index in KNOWN."""
    worker: Worker | None = None
    version: str = ""
    """The version of its program; empty: the one that all begin with."""


class Asked(NamedTuple):
    """The last Dispatch to a capture."""

    wish: Wish
    incarnation: int
    ranges: tuple[GrantedRange, ...]
    bound: int
    epoch: int
    given_up: bool = False


class Term(NamedTuple):
    """One owner: from its election until it ends."""

    rev: int
    at: str
    """meets, ends, reads, fences, opens, proves, waits, runs, over, finished; settles: without a guard."""
    kept: Kept
    known: int
    latest: tuple[tuple[int, int], ...]
    """By capture, epoch and sequence of the latest Sync or DispatchResponse."""
    asked: tuple[Asked | None, ...]
    sent: tuple[int, ...]
    """By capture, the sequence of the last message to it."""
    persisted: int
    shares: tuple[str, ...] = ()
    """By range, who is to have it; empty: nobody."""
    grants: tuple[tuple[str, bytes], ...] = ()
    """As it has read or stored them."""
    read_at: int = 0
    left: tuple[str, ...] = ()
    """Whose writers it has yet to fence."""
    settling: bool = False
    """Whether they are fenced, and it has yet to store that."""
    raises: int = 0
    pending: tuple[tuple[str, int], ...] = ()
    """Calls under way: ddl, resolved, persist, each with its ts."""
    epoch: int = 0
    """The epoch of its writer at the sink."""
    ddl_sent: int = 0
    """The ts of the last DDL that the sink had when it was opened."""
    version: str = ""
    """The version of its capture's program when it was elected."""
    versions: tuple[str, ...] = ()
    """By capture, as its last Sync says."""


class Store(NamedTuple):
    """The contents of etcd."""

    owner: int = 0
    """The revision of the owner's key; 0: there is none."""
    grants: tuple[tuple[str, bytes], ...] = ()
    changed_at: int = 0
    """Revision of the grants."""
    checkpoint: int = START


class Sink(NamedTuple):
    """The contents of the sink."""

    epochs: tuple[int, ...]
    """The epoch of each capture's writer."""
    owner_epoch: int = 0
    rows: tuple[tuple[int, ...], ...] = ((), (), ())
    """The rows of k, p, q: commit ts in the order in which they came."""
    records: tuple[int, ...] = (0, 0, 0)
    """The progress of k, p, q, committed together with rows; 0: none."""
    resolved: int = 0
    ddl: int = 0


class Budget(NamedTuple):
    """How often something may still happen."""

    sessions: int = 0
    """An owner's session ends, though it may still believe in it."""
    resigns: int = 0
    """An owner resigns: it stores its last checkpoint, ends, and its capture keeps its session."""
    shares: int = 1
    """An owner decides who has which ranges."""
    restarts: int = 0
    """A capture's control process dies and starts again."""
    drops: int = 0
    """A message is lost, or the answer to a call."""
    doubles: int = 0
    """A message comes twice."""
    repeats: int = 0
    """An owner sends its last Dispatch to a capture again."""
    upgrades: int = 0
    """A capture dies and starts again with another version."""
    cuts: int = 0
    """The network is cut (`Bounds.cut`), or the cut ends."""


class World(NamedTuple):
    """All there is."""

    terms: tuple[Term, ...]
    captures: tuple[Capture, ...]
    zombies: tuple[Zombie, ...]
    network: tuple[Mail, ...]
    store: Store
    sink: Sink
    left: Budget
    is_cut: bool = False
    """Whether messages on the ways of `Bounds.cut` are lost."""


@dataclass(frozen=True)
class Bounds:
    """How large a world is, and what may happen in it."""

    budget: Budget
    captures: str = "ab"
    """Their names, a letter each."""
    options: tuple[tuple[str, str], ...] = (("a", "b"),)
    """Who may be given LOW and HIGH; an empty name: nobody."""
    target: int = 4
    """The changefeed's target ts. Below DDL_TS the DDL never comes."""
    ddl: str = "known"
    """When captures and owners know the DDL: known (from the start on), late (at any time), never; ahead:
    late, and a capture reads in one step as far as an owner does in two.
    """
    lacks: str = ""
    """A capture whose catalogue has lost the DDL: it believes that it knows all, and does not know of q."""
    zombies: bool = True
    """A worker may outlive its capture."""
    patience: bool = False
    """An owner waits until all captures have answered, for ever if need be."""
    prompt: tuple[type[Message], ...] = ()
    """Messages that arrive as soon as they are sent. The others take their time."""
    begins: tuple[str, str] | None = None
    """Who has LOW and HIGH when it begins, with everything running; None: no owner is elected yet."""
    idle: bool = False
    """It begins later: all up to the bound is delivered, reported and stored."""
    late: str = ""
    """A message, in the words of a trace, of which a copy arrives only after that beginning."""
    restarted: str = ""
    """A capture that has started again after the late message and before it was first to run."""
    whole: bool = False
    """A capture that gets all keys gets them as one range, and fences its givers itself, as in the product.
    Otherwise it gets two ranges, no range ever has other edges, and the owner fences.
    """
    cut: tuple[tuple[str, str], ...] = ()
    """The ways, from one capture to another, that a cut of the network blocks. Owner 1 is on the first
    capture, owner 2 on the second, and so on in turn: an owner that resigns is elected again after all
    others.
    """


class Violation(Exception):
    """A promise was broken; its words say which."""


@cache
def grant_of(data: bytes) -> Grant:
    return Grant.from_bytes(data)


@cache
def message_of(text: str) -> Message:
    return parse(json.loads(text), (*FROM_OWNER, *FROM_PROCESSOR))


def wire(message: Message) -> str:
    """As it travels."""
    return json.dumps(to_json(message), separators=(",", ":"))


def batches(after: int, upto: int) -> list[DdlBatch]:
    """The DDL finished in (after, upto]."""
    return [BATCH] if after < DDL_TS <= upto else []


def wanted_at(ts: int) -> list[SpanTask]:
    """The tables wanted at a ts."""
    return [task for task in TASKS.values() if task.start_ts <= ts]


def row_after(table: str, after: int, upto: int) -> int:
    """The table's first row in (after, upto]; 0: there is none."""
    return next((ts for ts in UPSTREAM[table] if after < ts <= upto), 0)


def missing(rows: Sequence[int], table: str) -> int:
    """The first row of a table that is wanted and not downstream; a large ts if there is none."""
    after = max(TASKS[table].start_ts, rows[-1] if rows else 0)
    return row_after(table, after, 99) or 99


def durable(sink: Sink) -> int:
    """Up to where all is downstream: rows, and the DDL."""
    rows = min(missing(sink.rows[i], table) for i, table in enumerate(UPSTREAM)) - 1
    return rows if sink.ddl else min(rows, DDL_TS - 1)


CALLS: Final = {"ddl": "sends the DDL of", "resolved": "sends Resolved", "persist": "stores the checkpoint"}
FENCED: Final = Failed("another incarnation of this changefeed writes now", "", "", "", retry=True)
INDEX: Final = {table: i for i, table in enumerate(UPSTREAM)}


def call_of(effect: Effect) -> tuple[str, int]:
    match effect:
        case SendDdl(batch):
            return "ddl", batch.finished_ts
        case SendResolved(ts):
            return "resolved", ts
        case Persist(ts):
            return "persist", ts
    return "", 0


def written(sink: Sink, table: str, ts: int) -> Sink:
    """A row and its record, committed together. Raises Violation."""
    i = INDEX[table]
    wanted = missing(sink.rows[i], table)
    if ts != wanted:
        why = "it is there already, or not wanted" if ts < wanted else f"{table}@{wanted} is missing"
        raise Violation(f"row {table}@{ts} is written: {why}")
    if ts <= sink.resolved:
        raise Violation(f"row {table}@{ts} comes after Resolved {sink.resolved}")
    if ts > DDL_TS and not sink.ddl:
        raise Violation(f"row {table}@{ts} comes before the DDL of {DDL_TS}")
    return sink._replace(rows=put_at(sink.rows, i, (*sink.rows[i], ts)), records=put_at(sink.records, i, ts))


def sent(sink: Sink, what: str, ts: int) -> Sink:
    """Resolved or DDL at the sink. Raises Violation."""
    if what == "ddl":
        if any(missing(rows, table) <= ts for table, rows in zip(UPSTREAM, sink.rows, strict=True)):
            raise Violation(f"the DDL of {ts} comes before a row below it")
        if ts <= sink.ddl:
            raise Violation(f"the DDL of {ts} is sent twice")
        return sink._replace(ddl=ts)
    if ts > durable(sink):
        raise Violation(f"Resolved {ts} is sent, and {durable(sink)} is durable")
    if ts <= sink.resolved:
        raise Violation(f"Resolved {ts} is sent after Resolved {sink.resolved}")
    return sink._replace(resolved=ts)


def positions_of(machine: Processor) -> tuple[tuple[str, int], ...]:
    return tuple((table, task.start_ts) for table, task in sorted(machine.spans.tasks.items()))


def fenced(world: World, i: int) -> World:
    epochs = put_at(world.sink.epochs, i, world.sink.epochs[i] + 1)
    return world._replace(sink=world.sink._replace(epochs=epochs))


def stored(world: World, grants: Mapping[str, bytes]) -> World:
    store = world.store._replace(grants=tuple(sorted(grants.items())), changed_at=world.store.changed_at + 1)
    return world._replace(store=store)


def put_at(values: tuple[T, ...], i: int, value: T) -> tuple[T, ...]:
    return (*values[:i], value, *values[i + 1 :])


def with_term(world: World, n: int, term: Term) -> World:
    return world._replace(terms=put_at(world.terms, n, term))


def with_capture(world: World, i: int, capture: Capture) -> World:
    return world._replace(captures=put_at(world.captures, i, capture))


def with_worker(world: World, i: int, zombie: Zombie | None, worker: Worker | None) -> World:
    if zombie is None:
        return with_capture(world, i, world.captures[i]._replace(worker=worker))
    return with_zombie(world, zombie, None if worker is None else zombie._replace(worker=worker))


def with_zombie(world: World, zombie: Zombie, after: Zombie | None) -> World:
    zombies = list(world.zombies)
    zombies.remove(zombie)
    return world._replace(zombies=tuple(sorted([*zombies, *([] if after is None else [after])])))


def posted(world: World, mail: Sequence[Mail]) -> World:
    """With messages on their way. One that a later one of its kind replaces is lost, which may happen."""
    if not mail:
        return world
    kinds = {_kind(one) for one in mail} - {None}
    kept = (one for one in world.network if _kind(one) not in kinds)
    return world._replace(network=tuple(sorted((*kept, *mail))))


@cache
def _kind(mail: Mail) -> Hashable:
    """Return a key that a Dispatch or Checkpoint shares with those it replaces; None: nothing replaces it."""
    message = message_of(mail.text)
    header = message.header
    who = mail.to, header.owner_rev, header.capture, header.capture_epoch
    match message:
        case Dispatch():
            return *who, message.wish, message.incarnation
        case Checkpoint():
            return *who, message.incarnation
    return None


def without_mail(world: World, mail: Mail) -> World:
    network = list(world.network)
    network.remove(mail)
    return world._replace(network=tuple(network))


@cache
def words(mail: Mail) -> str:
    """A message that arrives, for people."""
    message = message_of(mail.text)
    owner, capture = f"owner {message.header.owner_rev}", message.header.capture
    match message:
        case Announce():
            return f"{capture} receives from {owner}: announce"
        case Dispatch():
            what = f"{message.wish} {message.incarnation}".removesuffix(" 0")
            return f"{capture} receives from {owner}: {what}, up to {message.bound}"
        case Sync():
            return f"{owner} receives from {capture}, epoch {message.header.capture_epoch}: sync" + _reached(
                message.checkpoints
            )
        case DispatchResponse():
            runs = any(one.state is RangeState.RUNNING for one in message.ranges)
            what = f"{message.incarnation} failed" if message.error else f"{message.incarnation} runs"
            return f"{owner} receives from {capture}: {what if runs or message.error else 'nothing runs'}"
        case Checkpoint():
            return f"{owner} receives from {capture}: checkpoint of {message.incarnation}" + _reached(
                message.ranges
            )
        case _:
            assert_never(message)


def _reached(found: Sequence[RangeProgress]) -> str:
    return "".join(f", {NAMES[one.id]} at {one.checkpoint_ts}" for one in found)
