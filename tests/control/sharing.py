"""A changefeed whose key ranges several captures share, explored in every order of events.

`sharing_model` has the steps, `sharing_world` the nouns and the promises. This file explores, breadth first.
It also shows that each guard is needed: `testdata/sharing.txt` has the shortest violation without it.

The worlds are small: two ranges, three tables, one DDL, two or three captures, at most two owners. Ranges
move, are joined and divided; captures die, are upgraded, and are cut off from one another. The worlds have no
initial load, no change of the number of partitions or of the changefeed's rules, and one writer a capture.
Time is constant. Guards of the edges (`server/owner/feed.py`, the sinks) are the model's own, and it leaves
them out. Guards of the machines are the product's, and they are patched away.

    python -m tests.control.sharing              the long form (`make explore`)
    python -m tests.control.sharing --rewrite    the traces again
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from tests.control.sharing_model import OTHER_VERSION, Model, Step
from tests.control.sharing_world import Bounds, Budget, Mail, Violation, World, words

from tidegate.control.barrier import Barrier
from tidegate.control.ddl_agreement import DdlAgreement
from tidegate.control.ddl_log import DdlLog
from tidegate.control.granted_ranges import GrantedRanges
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.messages import (
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    FromOwner,
    Message,
    RangeProgress,
    Sync,
)
from tidegate.control.owner import Owner
from tidegate.control.processor import Processor
from tidegate.model.timestamp import MAX
from tidegate.server.owner.able_captures import AbleCaptures

TRACES: Final = Path(__file__).parent / "testdata" / "sharing.txt"
HEAL_STEPS: Final = 400
"""Within so many steps without faults the target must be reached."""
HEAL_SHARES: Final = 3
"""So often the owner may share out the ranges again meanwhile."""

# --- guards ----------------------------------------------------------------------------------------------

GUARDS: Final[Mapping[str, str]] = {
    "election_guard": "a write to etcd compares the owner's key",
    "grants_guard": "a write of grants compares their revision",
    "owner_rev": "a processor drops messages of an earlier owner",
    "term_of_message": "an owner drops messages to another owner",
    "dispatch_order": "a processor drops a Dispatch that is older than its last one",
    "order": "an owner drops a Sync or DispatchResponse that is older than the last one of its capture",
    "ordered_epochs": "of two epochs of a capture the greater one is the later one",
    "answers": "only the answer to the last Dispatch says that a capture runs nothing",
    "epoch": "a processor drops a Dispatch to an earlier epoch of its capture",
    "once": "an incarnation is dispatched to one epoch of its capture only",
    "given_up": "ranges are taken only when their capture runs nothing, if it is not left behind",
    "owner_fence": "the owner fences the writers of all givers before it dispatches",
    "fence_before_settled": "it stores that givers are fenced only when they are",
    "settled_before_run": "it dispatches only when that is stored",
    "inherit": "givers that were never fenced stay givers when ranges are taken again",
    "all_givers": "the givers are those that had the ranges before the change, not during it",
    "own_fence": "a worker initialises its own writer, which ends the earlier ones of its capture",
    "sink_fence": "the sink refuses rows of a writer that was initialised again",
    "owner_sink_fence": "the sink refuses Resolved and DDL of an owner after another has opened it",
    "proof": "a worker writes only after it has seen that its grant is the stored one",
    "ranges_in_proof": "a grant whose ranges were taken proves nothing",
    "records": "a range begins at its record of progress, if that is above the stored checkpoint",
    "stored": "a range begins at the stored checkpoint, if no record is above it",
    "journal": "an owner continues where the sink's journal of Resolved and DDL ends",
    "coverage": "the checkpoint waits while a part of the keys is granted to nobody",
    "ddl_bound": "no range may pass a DDL that is not delivered",
    "ddl_cap": "the checkpoint stays below a DDL that is not delivered",
    "ddl_agreement": "the checkpoint waits while a capture knows other DDL than the owner",
    "ddl_spans": "what a capture says of DDL includes the spans that it wants below that DDL",
    "ddl_ahead": "reports of a capture that knows DDL further than the owner count up to where both agree",
    "edges": "a range with other edges than before counts as not delivered until it is reported",
    "ranges_in_reports": "a report counts for the ranges that it names, and for no others of its capture",
    "version": "captures of another version get no ranges while one of the owner's version can have them",
    "old_reports": "reports under an old token or incarnation do not count",
    "owner_proof": "an owner that has opened the sink looks whether it still is the owner",
}

_receive: Final = Processor.receive
_grant: Final = GrantedRanges.grant
_report: Final = GrantedRanges.report
_able: Final = AbleCaptures.able


def _of_any_epoch(self: Processor, message: FromOwner) -> bool:
    header = replace(message.header, capture_epoch=self.outbox.header.capture_epoch)
    return _receive(self, replace(message, header=header))


def _of_any_owner(self: Processor, message: FromOwner) -> bool:
    rev, number = self._inbox.last
    if message.header.owner_rev < rev:
        header = replace(message.header, owner_rev=rev, sequence=number + 1)
        message = replace(message, header=header)
    return _receive(self, message)


def _in_any_order(self: Processor, message: FromOwner) -> bool:
    header, (rev, number) = message.header, self._inbox.last
    if isinstance(message, Dispatch) and header.owner_rev == rev and header.sequence <= number:
        message = replace(message, header=replace(header, sequence=number + 1))
    return _receive(self, message)


def _any_report(
    self: GrantedRanges, capture: str, incarnation: int, progress: Iterable[RangeProgress]
) -> bool:
    for one in progress:
        if (holder := self._holders.get(one.id)) is not None:
            held = self._held[holder]
            place = held.places[one.id]
            held.checkpoints[place] = max(one.checkpoint_ts, held.checkpoints[place])
            held.resolved[place] = max(one.resolved_ts, held.resolved[place])
    self._least = None
    return True


def _with_old_edges(
    self: GrantedRanges, capture: str, incarnation: int, ranges: Sequence[GrantedRange]
) -> None:
    before = self.progress()
    _grant(self, capture, incarnation, ranges)
    for new in ranges:
        known = [checkpoint for _, span, _, checkpoint, _ in before if span.intersect(new.id) is not None]
        held = self._held[capture]
        held.checkpoints[held.places[new.id]] = max(known, default=0)


def _for_all_ranges(
    self: GrantedRanges, capture: str, incarnation: int, progress: Iterable[RangeProgress]
) -> bool:
    reached = min((one.checkpoint_ts for one in progress), default=0)
    if (held := self._held.get(capture)) is not None:
        held.checkpoints = [max(reached, one) for one in held.checkpoints]
    self._least = None
    return _report(self, capture, incarnation, progress)


def _of_any_version(self: AbleCaptures, *, joined_s: float | None = None) -> list[str]:
    for peer in self._peers:
        peer.version = ""
    return _able(self, joined_s=joined_s)


def _is_same(self: Grant, stored: Grant | None) -> bool:
    return stored is not None and stored.is_same(self)


PATCHES: Final[Mapping[str, tuple[type, str, Any]]] = {
    "owner_rev": (Processor, "receive", _of_any_owner),
    "dispatch_order": (Processor, "receive", _in_any_order),
    "epoch": (Processor, "receive", _of_any_epoch),
    "proof": (Grant, "is_proven_by", lambda self, stored: True),
    "ranges_in_proof": (Grant, "is_proven_by", _is_same),
    "coverage": (GrantedRanges, "_find_gap", lambda self: None),
    "ddl_bound": (Barrier, "bound", property(lambda self: min(self.resolved, self.target_ts))),
    "ddl_cap": (Barrier, "cap", property(lambda self: self.bound)),
    "ddl_agreement": (Owner, "receive_ddl", lambda self, capture, said: None),
    "ddl_spans": (DdlLog, "_spans_at", lambda self, ts: 0),
    "ddl_ahead": (DdlAgreement, "agreed_to", property(lambda self: MAX)),
    "edges": (GrantedRanges, "grant", _with_old_edges),
    "ranges_in_reports": (GrantedRanges, "report", _for_all_ranges),
    "version": (AbleCaptures, "able", _of_any_version),
    "old_reports": (GrantedRanges, "report", _any_report),
}
"""Guards of the machines: where they are, and what is there without them. `Model` has the others."""

# --- what is explored ------------------------------------------------------------------------------------

AT_ONCE: Final[tuple[type[Message], ...]] = (Announce, Sync)
ALL_AT_ONCE: Final[tuple[type[Message], ...]] = (Announce, Sync, DispatchResponse, Checkpoint)
NOTHING_RUNS: Final = "owner 1 receives from a: nothing runs"
RUN: Final = "a receives from owner 1: run 1, up to 2"

RUNNING: Final = Bounds(Budget(shares=0), target=2, begins=("a", "b"), prompt=AT_ONCE)
"""Owner 1 has given LOW to a and HIGH to b, and both deliver."""
IDLE: Final = Bounds(
    Budget(), options=(("b", "b"),), ddl="never", begins=("a", "b"), idle=True, prompt=ALL_AT_ONCE
)
"""The same, later: all is delivered. LOW moves to b."""
GENTLE: Final = replace(IDLE, patience=True, zombies=False, prompt=AT_ONCE)
"""The owner waits for all, and a capture dies with its worker: so messages alone must keep order."""
LACKING: Final = replace(RUNNING, target=4, ddl="late", lacks="b", prompt=ALL_AT_ONCE)
"""The catalogue of b has lost the DDL: nothing may count that b reports above it."""
BLIND: Final = replace(
    LACKING, budget=Budget(shares=2), begins=("b", "b"), options=(("a", "a"), ("b", "b")), ddl="known",
    idle=True, whole=True, zombies=False,
)  # fmt: skip
"""The same, and b has everything. It may keep its spans open while a has everything and delivers the DDL."""
DEAF: Final = replace(RUNNING, options=(("a", "b"), ("a", "a"), ("b", "b")), whole=True, cut=(("a", "b"),))
"""Once the network is cut, b receives nothing that a sends, and with that nothing of owner 1."""
OVERTAKEN: Final = replace(LACKING, budget=Budget(shares=0, repeats=2))
"""The same, and a receives a stored checkpoint earlier than b does."""


class Case(NamedTuple):
    """The violation that is found without a guard."""

    bounds: Bounds
    behind: tuple[str, ...] = ()
    """Guards that must be off, too: it is a second fence behind these, or they behind it."""


CASES: Final[Mapping[str, Case]] = {
    "election_guard": Case(replace(IDLE, budget=Budget(shares=2, sessions=1))),
    "grants_guard": Case(replace(IDLE, budget=Budget(shares=2, sessions=1)), ("election_guard",)),
    "owner_rev": Case(replace(GENTLE, budget=Budget(sessions=1), late=RUN), ("owner_fence",)),
    "term_of_message": Case(
        replace(GENTLE, budget=Budget(sessions=1), late=NOTHING_RUNS), ("order", "owner_fence")
    ),
    "dispatch_order": Case(replace(GENTLE, late=RUN), ("owner_fence",)),
    "order": Case(replace(GENTLE, late=NOTHING_RUNS), ("answers", "owner_fence")),
    "ordered_epochs": Case(replace(GENTLE, late=NOTHING_RUNS, restarted="a"), ("answers", "owner_fence")),
    "answers": Case(replace(GENTLE, late=NOTHING_RUNS), ("order", "owner_fence")),
    "epoch": Case(replace(RUNNING, budget=Budget(shares=0, restarts=1), late=RUN.replace("a", "b", 1))),
    "once": Case(replace(RUNNING, budget=Budget(shares=0, restarts=1, repeats=1))),
    "given_up": Case(GENTLE, ("owner_fence",)),
    "owner_fence": Case(IDLE),
    "fence_before_settled": Case(replace(IDLE, budget=Budget(shares=2, sessions=1))),
    "settled_before_run": Case(replace(IDLE, options=(("b", "a"),))),
    "inherit": Case(replace(IDLE, budget=Budget(shares=2, sessions=1))),
    "all_givers": Case(replace(IDLE, options=(("b", "a"),))),
    "own_fence": Case(replace(RUNNING, budget=Budget(restarts=1), options=(("a", "b"),), prompt=ALL_AT_ONCE)),
    "sink_fence": Case(IDLE),
    "owner_sink_fence": Case(
        replace(RUNNING, budget=Budget(sessions=1), options=(("a", "b"),), prompt=ALL_AT_ONCE)
    ),
    "proof": Case(replace(RUNNING, budget=Budget(), options=(("a", "a"),))),
    "ranges_in_proof": Case(replace(RUNNING, budget=Budget(), options=(("a", "a"),))),
    "records": Case(replace(RUNNING, budget=Budget(), options=(("b", "b"),))),
    "stored": Case(RUNNING),
    "journal": Case(replace(RUNNING, budget=Budget(drops=1), options=(("a", "b"),), prompt=ALL_AT_ONCE)),
    "coverage": Case(replace(RUNNING, budget=Budget(), options=(("a", ""),))),
    "ddl_bound": Case(replace(RUNNING, target=4)),
    "ddl_cap": Case(replace(RUNNING, target=4)),
    "ddl_agreement": Case(LACKING),
    "ddl_spans": Case(BLIND),
    "ddl_ahead": Case(replace(LACKING, ddl="ahead")),
    "edges": Case(replace(RUNNING, budget=Budget(), options=(("a", "a"),), whole=True)),
    "ranges_in_reports": Case(replace(RUNNING, budget=Budget(), options=(("a", "a"),))),
    "version": Case(replace(RUNNING, budget=Budget(upgrades=1), options=(("a", "b"),))),
}

HARMLESS: Final[Mapping[str, tuple[Bounds, str]]] = {
    "old_reports": (
        replace(RUNNING, budget=Budget(restarts=1), options=(("b", "a"),), target=4),
        "a range that was durable up to a ts stays durable: such a report is late, and true. "
        "It would be false after a change of the changefeed's rules, which this model does not have",
    ),
    "owner_proof": (
        replace(RUNNING, budget=Budget(shares=2, sessions=1), options=(("b", "a"),)),
        "an owner that was replaced can take the sink from its successor, which then opens it again; "
        "processors run nothing for it, therefore it has nothing to send",
    ),
}
"""Guards without which nothing is found, and why."""

CLEAN: Final[Mapping[str, Bounds]] = {
    "ranges are exchanged around a DDL": replace(
        RUNNING, budget=Budget(), options=(("b", "a"),), target=4, prompt=ALL_AT_ONCE
    ),
    "and what captures report is late": replace(
        RUNNING, budget=Budget(), options=(("b", "a"),), target=4
    ),
    "the DDL is known late": replace(
        RUNNING, budget=Budget(), options=(("b", "a"),), target=4, ddl="late"
    ),
    "some know DDL further than others": replace(
        RUNNING, budget=Budget(), options=(("b", "a"),), target=4, ddl="ahead", prompt=ALL_AT_ONCE
    ),
    "two owners": replace(
        RUNNING, budget=Budget(shares=2, sessions=1), options=(("b", "a"), ("b", "b"))
    ),
    "owners resign in turn": replace(
        RUNNING, budget=Budget(shares=2, resigns=2), options=(("b", "a"), ("a", "a")), whole=True
    ),
    "an owner resigns around a DDL, another dies": replace(
        RUNNING, budget=Budget(resigns=1, sessions=1), options=(("a", "b"),), target=4, prompt=ALL_AT_ONCE
    ),
    "an owner dies around a DDL": replace(
        RUNNING, budget=Budget(sessions=1), options=(("a", "b"),), target=4, prompt=ALL_AT_ONCE
    ),
    "answers are lost around a DDL": replace(
        RUNNING, budget=Budget(drops=1), options=(("a", "b"),), target=4, prompt=ALL_AT_ONCE
    ),
    "a capture restarts, a message comes twice": replace(
        RUNNING, budget=Budget(restarts=1, doubles=1), options=(("a", "b"), ("a", "a"))
    ),
    "messages are lost": replace(
        RUNNING, budget=Budget(drops=2, repeats=1), options=(("b", "a"),), prompt=()
    ),
    "three captures": replace(
        RUNNING, captures="abc", budget=Budget(shares=2, restarts=1), options=(("c", "b"), ("b", "c"))
    ),
    "three captures, two owners": replace(
        RUNNING,
        captures="abc",
        budget=Budget(shares=2, sessions=1, restarts=1),
        options=(("c", "a"), ("b", "c")),
    ),
    "from the election on": Bounds(Budget(shares=1), target=2),
    "ranges are joined and divided": replace(
        RUNNING, budget=Budget(shares=2), options=(("a", "a"), ("b", "a")), target=4, prompt=ALL_AT_ONCE,
        whole=True,
    ),
    "and owners and captures die": replace(
        RUNNING, budget=Budget(shares=2, sessions=1, restarts=1), options=(("b", "b"), ("b", "a")), whole=True
    ),
    "a capture receives nothing": replace(DEAF, budget=Budget(shares=2, cuts=1, repeats=1)),
    "two captures are cut off from each other": replace(
        DEAF, budget=Budget(shares=2, cuts=2, sessions=1), cut=(("a", "b"), ("b", "a"))
    ),
    "one of three captures is cut off": replace(
        DEAF,
        captures="abc",
        budget=Budget(shares=2, cuts=1, sessions=1),
        options=(("a", "c"), ("b", "c"), ("a", "a"), ("b", "b"), ("c", "c")),
        cut=(("a", "b"), ("b", "a")),
    ),
    "captures are upgraded one by one": replace(
        RUNNING,
        budget=Budget(shares=2, upgrades=2, sessions=1),
        options=(("a", "b"), ("b", "a"), ("a", "a"), ("b", "b")),
        whole=True,
    ),
}  # fmt: skip
"""With all guards: what is explored in CI up to CI_STATES each, and in the long form up to LONG_STATES."""
CI_STATES: Final = 2_000
LONG_STATES: Final = 250_000

# --- exploring -------------------------------------------------------------------------------------------


EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "sessions": ("'s session ends",),
    "resigns": (" resigns",),
    "shares": (" gives LOW to ",),
    "restarts": (" dies and starts again",),
    "drops": ("lost: ", ", and no answer comes"),
    "doubles": ("doubled: ",),
    "repeats": (" repeats its Dispatch to ",),
    "upgrades": (f" again with version {OTHER_VERSION}",),
    "cuts": ("cut off", "the cut ends"),
    "fenced": (" is fenced when it writes ",),
}
"""Kinds of steps that are counted, and how their words are recognised; the last that fits counts."""


@cache
def event_of(what: str) -> str:
    """The kind of a step; empty: it is not counted."""
    found = [name for name, parts in EVENTS.items() if any(part in what for part in parts)]
    return found[-1] if found else ""


@dataclass(frozen=True)
class Found:
    """The result of an exploration."""

    states: int
    transitions: int
    finished: int
    """States in which the target is stored as checkpoint."""
    violation: str = ""
    trace: tuple[str, ...] = ()
    complete: bool = False
    """Whether it saw all states that the bounds allow."""
    sample: tuple[World, ...] = ()
    events: Mapping[str, int] = field(default_factory=dict)
    """How many steps there were of each kind (`EVENTS`)."""


def explore(bounds: Bounds, off: tuple[str, ...] = (), limit: int = 1_000_000, every: int = 0) -> Found:
    """Breadth first, so that a trace is as short as any. Stops at the first violation, or at `limit` states.

    `every`: of so many states one is kept as a sample; 0: none.
    """
    model = Model(bounds, frozenset(off))
    start = begun(model)
    gc.disable()  # worlds share parts and make no rings: a collection would walk through all for nothing
    try:
        with ExitStack() as patches:
            for where, name, instead in (PATCHES[guard] for guard in off if guard in PATCHES):
                patches.enter_context(patch.object(where, name, instead))
            return _explore(model, start, limit, every)
    finally:
        gc.enable()


def _explore(model: Model, start: World, limit: int, every: int) -> Found:
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    waiting, transitions, finished, sample = deque([start]), 0, 0, []
    events: Counter[str] = Counter()
    while waiting and len(came_from) < limit:
        world = waiting.popleft()
        finished += world.store.checkpoint == model.bounds.target
        for what, step in model.steps(world):
            transitions += 1
            events[event_of(what)] += 1
            try:
                after = model.tidied(step())
                if after in came_from:
                    continue
                model.check(after)
            except Violation as wrong:
                trace = (*_trace(came_from, world), what)
                return Found(len(came_from), transitions, finished, str(wrong), trace)
            came_from[after] = world, what
            waiting.append(after)
            if every and len(came_from) % every == 0:
                sample.append(after)
    del events[""]
    complete = not waiting
    return Found(
        len(came_from), transitions, finished, complete=complete, sample=tuple(sample), events=events
    )


def _trace(came_from: Mapping[World, tuple[World, str] | None], world: World) -> list[str]:
    steps = []
    while (found := came_from[world]) is not None:
        world, what = found
        steps.append(what)
    return steps[::-1]


def begun(model: Model) -> World:
    """Where an exploration begins (`Bounds.begins` and what follows it)."""
    world, bounds = model.first(), model.bounds
    if bounds.begins is None:
        return world
    # No guard is off yet: a trace shows what goes wrong from here on.
    first = Model(replace(bounds, options=(bounds.begins,), budget=Budget(shares=1)))
    first.kept = model.kept  # the same machines are the same objects
    late: list[Mail] = []
    world, restarted = first.first(), not bounds.restarted
    while (next_step := _step_to_begin(first, world)) is not None:
        what, step = next_step
        late += [mail for mail in world.network if words(mail) == what == bounds.late][: not late]
        world = first.tidied(step())
        if late and not restarted and world.terms[0].at == "ends":
            world = first.restarted(world, bounds.captures.index(bounds.restarted))
            world, restarted = world._replace(left=Budget(shares=0)), True
    assert restarted, "the capture did not restart"
    assert bool(late) == bool(bounds.late), "the late message was not sent"
    return world._replace(left=bounds.budget, network=tuple(sorted((*world.network, *late))))


def _step_to_begin(model: Model, world: World) -> Step | None:
    bounds = model.bounds
    workers = [one.worker for one in world.captures if one.worker is not None]
    runs = len(workers) == len(set(bounds.begins or ())) and all(one.at == "runs" for one in workers)
    if runs and not bounds.idle:
        return None
    return next((one for one in model.steps(world) if not one[0].endswith("reads the DDL")), None)


def heal(model: Model, world: World) -> int:
    """After how many steps without further faults the target is stored; -1: it is not within HEAL_STEPS.

    When nothing moves any more, the owner shares out the ranges again, as it does when a capture fails. A cut
    is a fault that lasts: the others must reach the target without the capture that is cut off.
    """
    model.notices = True
    world, shares = world._replace(left=Budget(shares=0)), HEAL_SHARES
    seen = {world}
    for count in range(HEAL_STEPS):
        if world.store.checkpoint == model.bounds.target:
            return count
        found = (model.tidied(step()) for _, step in model.steps(world))
        after = next((one for one in found if one not in seen), None)
        if after is None and not shares:
            return -1
        if after is None:
            shares, after = shares - 1, world._replace(left=Budget(shares=1))
        model.check(after)
        seen.add(after)
        world = after
    return -1


# --- traces ----------------------------------------------------------------------------------------------


def heading(guard: str) -> str:
    """The line above a guard's trace."""
    return "without " + " and ".join((guard, *CASES[guard].behind))


def script(guard: str, found: Found) -> Iterator[str]:
    """A guard's trace, as it is on file."""
    yield heading(guard)
    yield f"    # {GUARDS[guard]}"
    yield from (f"    {line}" for line in _given(CASES[guard].bounds))
    yield from (f"    {step}" for step in found.trace)
    yield f"    --> {found.violation}"


def _given(bounds: Bounds) -> Iterator[str]:
    assert bounds.begins is not None
    yield f"# given: owner 1 has given LOW to {bounds.begins[0]} and HIGH to {bounds.begins[1]}, both run" + (
        ", all is delivered" if bounds.idle else ""
    )
    if bounds.patience:
        yield "# given: owners wait for every capture, and a capture dies with its worker"
    if bounds.lacks:
        yield f"# given: the catalogue of {bounds.lacks} has lost the DDL"
    if bounds.restarted:
        yield f"# given: before it ran, {bounds.restarted} had started again"
    if bounds.late:
        yield f"# given: a copy is on its way: {bounds.late}"


def sections(text: str) -> dict[str, list[str]]:
    """The traces on file by their headings."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("without "):
            lines = found.setdefault(line, [line])
        elif line.startswith(" "):
            lines.append(line)
    return found


@cache
def without(guard: str) -> Found:
    """The shortest way to a violation without a guard, and without those that it is behind."""
    case = CASES[guard]
    return explore(case.bounds, (guard, *case.behind), limit=100_000)


def _rewrite() -> None:
    lines = ["# The shortest way to a violation without each guard of tests/control/sharing.py."]
    for guard in CASES:
        found = without(guard)
        assert found.violation, f"nothing shows that '{guard}' is needed"
        print(f"{heading(guard)}: {found.states:,} states")
        lines += ["", *script(guard, found)]
    TRACES.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Explore the long form, or write the traces again."""
    if sys.argv[1:] == ["--rewrite"]:
        return _rewrite()
    states, wrong, events = 0, False, Counter[str]()
    for name, bounds in CLEAN.items():
        began = time.monotonic()
        found = explore(bounds, limit=LONG_STATES)
        states, wrong = states + found.states, wrong or bool(found.violation)
        events.update(found.events)
        verdict = found.violation or "clean" + (", and that is all" if found.complete else "")
        seconds = time.monotonic() - began
        print(
            f"{name}: {found.states:,} states, {found.transitions:,} transitions, {verdict}, {seconds:.0f} s"
        )
        print("".join(f"    {step}\n" for step in found.trace), end="", flush=True)
    print(f"{states:,} states;", ", ".join(f"{name} {events[name]:,}" for name in EVENTS))
    sys.exit(wrong)


if __name__ == "__main__":
    main()
