"""Every order of events in which captures take a changefeed over from each other, tried one by one.

    stand -> elected -> read grants -> store ours -> fence each writer -> prove -> read progress -> rows
                                                  -> fence all writers -> delete the grants -> read grants ...

The functions that decide are the product's own (`raised`, `Grant.is_proven_by`); etcd, the election and the
sink are a few fields. Any capture may pause between any two of its steps while others act: that is a
process that was stopped, a slow network, and a zombie that wakes up. What
happens to a capture from outside: its session may end without its knowing, and it may die and restart.

The second line is the removal of the changefeed. Then a later one of the same name begins, with another
instance and its own rows, and no row of the removed one may come any more.

The sink is Kafka's contract: a transactional id has an epoch, which each initialisation raises; a commit
counts only under the newest; rows and the progress that speaks of them are committed together.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.control.grants import Grant, raised, writers_of
from tidegate.model.span import Span

ALL = Span(b"", b"")
LATE: Final = -1
"""A row of a changefeed that was removed."""
TRACES = Path(__file__).parent / "testdata" / "takeover.txt"
"""The violation without each of the rules, step by step."""


class Capture(NamedTuple):
    """The state of one capture; lost when it dies."""

    at: str = "out"
    """out, campaigning, elected, read, stored, fencing, fenced, proven, runs; removing."""
    rev: int = 0
    """The revision of its candidate's key."""
    grants: tuple[tuple[str, bytes], ...] = ()
    """As it has read them."""
    read_at: int = 0
    grant: bytes = b""
    """Its own, as stored."""
    left: tuple[str, ...] = ()
    """Whose transactional ids it has yet to fence."""
    epoch: int = 0
    """The epoch of its own writer."""
    next_row: int = 0
    """That it delivers next."""


class World(NamedTuple):
    """All there is."""

    captures: tuple[tuple[str, Capture], ...]
    queue: tuple[int, ...] = ()
    """Candidates' keys that are there, by revision: the first is the owner's."""
    revision: int = 1
    grants: tuple[tuple[str, bytes], ...] = ()
    changed_at: int = 0
    """Revision at which the grants were written last."""
    epochs: tuple[tuple[str, int], ...] = ()
    log: tuple[int, ...] = ()
    """Rows at the sink, in order."""
    losses: int = 0
    deaths: int = 0
    removed: int = 0
    """How many changefeeds of the name were removed: the instance of the present one."""


@dataclass(frozen=True)
class Rules:
    """The rules that keep the promise. Each can be switched off, to see the violation without it."""

    inherit: bool = True
    """Who takes from a capture also fences those that it had yet to fence."""
    proof: bool = True
    """After the fence a capture looks whether its grant is still the stored one."""
    ranges_in_proof: bool = True
    """A grant without ranges proves nothing."""
    fence: bool = True
    """The writers of those that it takes from are fenced."""
    fence_before_read: bool = True
    """Before it reads how far they were."""
    owner_guard: bool = True
    """A grant is stored only while its writer is the owner, over what the owner has read."""
    take_before_delete: bool = True
    """Before grants are deleted, and before the fence, their ranges are taken."""
    fence_before_delete: bool = True
    """Grants are deleted only after the sink has fenced all their writers."""


class Bounds(NamedTuple):
    """How much may happen."""

    captures: int = 3
    rows: int = 2
    losses: int = 2
    deaths: int = 1
    removals: int = 0


CI = Bounds(3, 1, 2, 0)
LONG = Bounds(3, 2, 2, 1)
"""4.7 million states: six minutes."""
REMOVED: Final = Bounds(2, 1, 1, 0, 1)
"""The changefeed is removed once, and another one begins."""
LONG_REMOVED: Final = Bounds(3, 1, 1, 0, 1)


@dataclass(frozen=True)
class Found:
    """The result of an exploration."""

    states: int
    transitions: int
    delivered: int
    """States in which all rows are delivered."""
    violation: str = ""
    trace: tuple[str, ...] = ()


def explore(bounds: Bounds, rules: Rules = Rules(), limit: int = 5_000_000) -> Found:
    """Breadth first, so that a trace is as short as any. Stops at the first violation."""
    start = World(tuple((name, Capture()) for name in "abcdef"[: bounds.captures]))
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    waiting, transitions, delivered = deque([start]), 0, 0
    while waiting:
        world = waiting.popleft()
        delivered += len(world.log) == bounds.rows
        for what, after in _steps(world, bounds, rules):
            transitions += 1
            if after in came_from:
                continue
            came_from[after] = world, what
            if wrong := _wrong(world, after):
                return Found(len(came_from), transitions, delivered, wrong, tuple(_trace(came_from, after)))
            assert len(came_from) < limit, "more states than the bounds should have"
            waiting.append(after)
    return Found(len(came_from), transitions, delivered)


def _trace(came_from: Mapping[World, tuple[World, str] | None], world: World) -> list[str]:
    steps = []
    while (found := came_from[world]) is not None:
        world, what = found
        steps.append(what)
    return steps[::-1]


def _wrong(before: World, after: World) -> str:
    if after.log != tuple(range(1, len(after.log) + 1)):
        return f"rows at the sink: {after.log}"
    if after.removed != before.removed:
        return ""
    newest = [
        max((_grant(one).token for _, one in world.grants), default=(0, 0)) for world in (before, after)
    ]
    if newest[1] < newest[0] or (after.changed_at != before.changed_at and newest[1] == newest[0]):
        return "a grant was stored over a later owner's"
    return ""


def _steps(world: World, bounds: Bounds, rules: Rules) -> Iterator[tuple[str, World]]:
    for name, capture in world.captures:
        for what, after in _act(world, name, capture, bounds, rules):
            yield f"{name} {what}", after
        if capture.rev in world.queue and world.losses < bounds.losses:
            queue = tuple(rev for rev in world.queue if rev != capture.rev)
            yield f"{name}'s session ends", world._replace(queue=queue, losses=world.losses + 1)
        if capture.at != "out" and world.deaths < bounds.deaths:
            queue = tuple(rev for rev in world.queue if rev != capture.rev)
            dead = _with(world, name, Capture())._replace(queue=queue, deaths=world.deaths + 1)
            yield f"{name} dies", dead


def _act(
    world: World, name: str, capture: Capture, bounds: Bounds, rules: Rules
) -> Iterator[tuple[str, World]]:
    """Yield the next steps of a capture, which follow from its state."""
    match capture.at:
        case "out":
            rev = world.revision + 1
            after = world._replace(revision=rev, queue=(*world.queue, rev))
            yield "campaigns", _with(after, name, Capture("campaigning", rev))
        case "campaigning":
            if world.queue[:1] == (capture.rev,):
                yield "is elected", _with(world, name, capture._replace(at="elected"))
            elif capture.rev not in world.queue:
                yield "gives up", _with(world, name, Capture())
        case "elected":
            seen = capture._replace(at="read", grants=world.grants, read_at=world.changed_at)
            yield "reads the grants", _with(world, name, seen)
        case "read":
            yield _store(world, name, capture, rules)
            if world.removed < bounds.removals and not rules.take_before_delete:
                yield _begin_removal(world, name, capture, rules)
        case "stored":
            if world.removed < bounds.removals:
                yield _begin_removal(world, name, capture, rules)
            writers = tuple(sorted({name, *_grant(capture.grant).givers}))
            left = writers if rules.fence else (name,)
            if not rules.fence_before_read:
                capture = capture._replace(next_row=len(world.log) + 1)
            yield "begins to fence", _with(world, name, capture._replace(at="fencing", left=left))
        case "fencing":
            yield _fence(world, name, capture)
        case "removing" if capture.left:
            yield _fence(world, name, capture, "removing")
        case "removing":
            yield _delete(world, name, capture, rules)
        case "fenced":
            yield _prove(world, name, capture, rules)
        case "proven":
            row = capture.next_row or len(world.log) + 1
            yield "reads the progress", _with(world, name, capture._replace(at="runs", next_row=row))
        case "runs":
            if capture.next_row <= bounds.rows:
                yield _deliver(world, name, capture)


def _store(world: World, name: str, capture: Capture, rules: Rules) -> tuple[str, World]:
    held = capture.rev in world.queue or not rules.owner_guard
    if not held or (rules.owner_guard and capture.read_at != world.changed_at):
        return "is refused by etcd", _with(world, name, Capture())
    stored = {one: _grant(data) for one, data in capture.grants}
    if not rules.inherit:
        stored = {one: replace(grant, givers={}) for one, grant in stored.items()}
    token = capture.rev, 1
    raised_to = raised(stored, name, str(world.removed), token, [ALL], 1)
    changed = {one: grant.to_bytes() for one, grant in raised_to.items()}
    grants = tuple(sorted((dict(world.grants) | changed).items()))
    revision = world.revision + 1
    after = world._replace(grants=grants, revision=revision, changed_at=revision)
    return "stores its grant", _with(
        after, name, capture._replace(at="stored", grant=changed[name], grants=())
    )


def _begin_removal(world: World, name: str, capture: Capture, rules: Rules) -> tuple[str, World]:
    writers = writers_of({one: _grant(data) for one, data in world.grants})
    left = tuple(sorted(writers)) if rules.fence_before_delete else ()
    return "removes the changefeed", _with(world, name, capture._replace(at="removing", left=left, grants=()))


def _delete(world: World, name: str, capture: Capture, rules: Rules) -> tuple[str, World]:
    if capture.rev not in world.queue and rules.owner_guard:
        return "is refused by etcd", _with(world, name, Capture())
    revision = world.revision + 1
    after = world._replace(
        grants=(), revision=revision, changed_at=revision, log=(), removed=world.removed + 1
    )
    return "deletes the grants", _with(after, name, Capture("elected", capture.rev))


def _fence(world: World, name: str, capture: Capture, at: str = "fencing") -> tuple[str, World]:
    whose, epochs = capture.left[0], dict(world.epochs)
    epochs[whose] = epochs.get(whose, 0) + 1
    epoch = epochs[whose] if whose == name else capture.epoch
    left = capture.left[1:]
    after = world._replace(epochs=tuple(sorted(epochs.items())))
    return f"fences {whose}", _with(
        after, name, capture._replace(left=left, epoch=epoch, at=at if left or at == "removing" else "fenced")
    )


def _prove(world: World, name: str, capture: Capture, rules: Rules) -> tuple[str, World]:
    mine, data = _grant(capture.grant), dict(world.grants).get(name)
    stored = None if data is None else _grant(data)
    proven = mine.is_proven_by(stored)
    if not rules.ranges_in_proof:
        proven = stored is not None and stored.is_same(mine)
    if rules.proof and not proven:
        return "is fenced", _with(world, name, Capture())
    return "proves itself", _with(world, name, capture._replace(at="proven"))


def _deliver(world: World, name: str, capture: Capture) -> tuple[str, World]:
    if dict(world.epochs)[name] != capture.epoch:
        return "is fenced by the sink", _with(world, name, Capture())
    row = capture.next_row if _grant(capture.grant).instance == str(world.removed) else LATE
    after = world._replace(log=(*world.log, row))
    return f"delivers row {capture.next_row}", _with(
        after, name, capture._replace(next_row=capture.next_row + 1)
    )


@cache
def _grant(data: bytes) -> Grant:
    return Grant.from_bytes(data)


def _with(world: World, name: str, capture: Capture) -> World:
    captures = tuple((one, capture if one == name else known) for one, known in world.captures)
    return world._replace(captures=captures)


def bounds_of(rule: str) -> Bounds:
    """The bounds in which it shows what a rule is for."""
    return REMOVED if rule.endswith("before_delete") else CI


def traces(text: str) -> dict[str, list[str]]:
    """The steps of each rule's trace: sections of `without RULE`, a step a line."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("without "):
            steps = found.setdefault(line.removeprefix("without "), [])
        elif line and not line.startswith("#"):
            steps.append(line.strip())
    return found


def main() -> None:
    """Explore the long form, or write the traces again."""
    if sys.argv[1:] == ["--rewrite"]:
        lines = ["# The shortest way to a violation without each rule of tests/control/takeover.py."]
        for field in fields(Rules):
            found = explore(bounds_of(field.name), Rules(**{field.name: False}))
            lines += ["", f"without {field.name}", *(f"    {step}" for step in found.trace)]
            lines += [f"    --> {found.violation}"]
        TRACES.parent.mkdir(exist_ok=True)
        TRACES.write_text("\n".join(lines) + "\n")
        return
    wrong = False
    for bounds in (LONG_REMOVED, LONG):
        found = explore(bounds)
        verdict = found.violation or "clean"
        print(f"{bounds}: {found.states:,} states, {found.transitions:,} transitions, {verdict}")
        print("\n".join(found.trace))
        wrong = wrong or bool(found.violation)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
