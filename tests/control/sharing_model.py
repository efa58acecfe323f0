"""The steps of `sharing`: what may happen next in a world, performed with the product's own machines.

`Owner`, `Processor`, `Grant` and the messages are the product's. This file does what they ask for, in the way
of `server/owner/feed.py`, `server/processor/processor.py` and `pipeline/worker/begin.py`. A world never
changes: each step makes another one. Any process may pause between two steps while the others act. This
models a slow process, for one that was stopped, and for a zombie that wakes up.

An owner, from one change of shares to the next:

    meets -> ends -> reads -> fences -> opens -> proves -> runs -> ends -> ...
                                |                  |         +---> finished
                                |                  +-> waits -> runs
                                +-> it stores that givers are fenced, while it opens its side of the sink
    over: etcd or the sink has refused it

A worker: fences -> proves -> runs. If the sink fences it, it looks whether its grant still holds. If so, it
initialises its writer again, otherwise it ends.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache, partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from tests.control.sharing_world import (
    ALL,
    CALLS,
    FENCED,
    FRONTIER,
    INDEX,
    KNOWN,
    NOW,
    RANGES,
    TASKS,
    UPSTREAM,
    Asked,
    Bounds,
    Capture,
    Kept,
    Mail,
    Sink,
    Store,
    Term,
    Violation,
    Worker,
    World,
    Zombie,
    batches,
    call_of,
    durable,
    fenced,
    grant_of,
    message_of,
    missing,
    positions_of,
    posted,
    put_at,
    row_after,
    sent,
    stored,
    wanted_at,
    wire,
    with_capture,
    with_term,
    with_worker,
    with_zombie,
    without_mail,
    words,
    written,
)

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.grants import Grant, GrantedRange, raised, shared_out
from tidegate.control.messages import (
    FROM_OWNER,
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    Header,
    RangeState,
    Sync,
    Wish,
    parse,
)
from tidegate.control.owner import Effect, Finish, Owner
from tidegate.control.processor import Goal, Processor
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.server.owner.peers import SILENT_S, Peers
from tidegate.server.owner.sharing import Sharing

READ_TO: Final = {"late": 1, "ahead": 2}
"""By `Bounds.ddl`, the index in KNOWN up to which DDL may be read at any time."""
OTHER_VERSION: Final = "2"
"""The version of an upgraded capture."""
DERIVED: Final = frozenset({"_shown"})
"""Members of machines that only remember what follows from the others."""
Step = tuple[str, Callable[[], World]]
"""The name of a step, and a function that returns the world after it. May raise Violation."""


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    """The members of a dataclass."""
    return tuple(one.name for one in fields(kind))


def canon(value: Any) -> Hashable:
    """All that a machine is, as nested tuples: equal for equal machines."""
    if value is None or isinstance(value, (str, int, float, bytes, Enum)):
        return value
    if isinstance(value, dict):
        return tuple(sorted(((canon(k), canon(v)) for k, v in value.items()), key=repr))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(canon, value), key=repr))
    if isinstance(value, (list, tuple, deque)):
        return tuple(map(canon, value))
    kind: Any = type(value)
    if is_dataclass(value):
        return (kind.__name__, *(canon(getattr(value, name)) for name in _names_of(kind)))
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    members = sorted(vars(value).items())
    return (kind.__name__, *((name, canon(one)) for name, one in members if name not in DERIVED))


def _spent(world: World) -> World:
    """With one loss less to come."""
    return world._replace(left=world.left._replace(drops=world.left.drops - 1))


@dataclass
class Model:
    """The steps there are in worlds of given bounds; and what the machines did, to do it only once."""

    bounds: Bounds
    off: frozenset[str] = frozenset()
    """Guards that are switched off, by their names in `sharing.GUARDS`."""

    def __post_init__(self) -> None:
        self.names = self.bounds.captures
        self.kept: dict[Hashable, Kept] = {}
        self._done: dict[Hashable, Any] = {}
        self._cut_off: dict[Mail, bool] = {}
        self.notices = False
        """Whether owners know who does not answer, because much time has passed. Until then, they may give
        ranges to a capture that is cut off.
        """

    # --- machines ----------------------------------------------------------------------------------------

    def keep(self, machine: Owner | Processor) -> Kept:
        """A machine that changes no more."""
        return self.kept.setdefault(canon(machine), Kept(machine))

    def _once(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """Return the stored result of a machine in the same state and with the same input, or compute it."""
        if key not in self._done:
            try:
                self._done[key] = work()
            except AssertionError as error:
                raise Violation(f"a machine's own assertion failed: {error or key}") from error
        return self._done[key]

    def first(self) -> World:
        """Before anything has happened."""
        count, known = len(self.names), int(self.bounds.ddl == "known")
        captures = tuple(self._started(i, 1, known) for i in range(count))
        return World((), captures, (), (), Store(), Sink((0,) * count), self.bounds.budget)

    def _started(self, i: int, epoch: int, known: int, version: str = "") -> Capture:
        machine = Processor(Header(1, "f", "i", 0, self.names[i], epoch, 0), version)
        return Capture(epoch, self.keep(machine), known=known, version=version)

    def _host(self, rev: int) -> str:
        """The capture on which an owner is."""
        return self.names[(rev - 1) % len(self.names)]

    # --- steps -------------------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """All that may happen next, faults last. A step raises Violation when it breaks a promise."""
        for n, term in enumerate(world.terms):
            yield from self._owner_steps(world, n, term)
        yield from self._election(world)
        for i, capture in enumerate(world.captures):
            if capture.worker is not None:
                yield from self._worker_steps(world, i, capture.worker, None)
            if self._may_read(capture.known):
                yield f"{self.names[i]} reads the DDL", partial(self._read_ddl, world, i)
        for zombie in world.zombies:
            yield from self._worker_steps(world, self.names.index(zombie.capture), zombie.worker, zombie)
        for mail in dict.fromkeys(world.network):
            yield from self._deliveries(world, mail)
        yield from self._faults(world)

    def _election(self, world: World) -> Iterator[Step]:
        budget = self.bounds.budget
        owners = 1 + budget.sessions + budget.resigns + budget.drops
        if world.store.owner == 0 and len(world.terms) < owners:
            yield f"owner {len(world.terms) + 1} is elected", partial(self._elected, world)

    def _faults(self, world: World) -> Iterator[Step]:
        left = world.left
        if left.sessions and (rev := world.store.owner):
            yield f"owner {rev}'s session ends", partial(self._end_session, world)
        if (
            left.resigns
            and (rev := world.store.owner)
            and world.terms[rev - 1].at not in ("over", "finished")
        ):
            yield f"owner {rev} resigns", partial(self._resign, world, rev - 1)
        if left.restarts:
            for i in range(len(self.names)):
                yield f"{self.names[i]} dies and starts again", partial(self.restarted, world, i)
        for i in range(len(self.names)) if left.upgrades else ():
            if world.captures[i].version != OTHER_VERSION:
                what = f"{self.names[i]} dies and starts again with version {OTHER_VERSION}"
                yield what, partial(self._upgraded, world, i)
        if left.cuts and self.bounds.cut:
            what = "the cut ends" if world.is_cut else self._words_of_cut()
            yield what, partial(self._cut, world)
        for mail in dict.fromkeys(world.network):
            if left.drops:
                yield f"lost: {words(mail)}", partial(self._lose, world, mail)
            if left.doubles:
                yield f"doubled: {words(mail)}", partial(self._double, world, mail)

    def _end_session(self, world: World) -> World:
        left = world.left._replace(sessions=world.left.sessions - 1)
        return world._replace(store=world.store._replace(owner=0), left=left)

    def _resign(self, world: World, n: int) -> World:
        """As in `server/tenure.py`: the work of the owner ends before its key is deleted. Nobody is asked to
        stop, so all captures deliver until the next owner fences them.
        """
        term, store = world.terms[n], world.store
        reached = max(term.kept.machine.checkpoint, store.checkpoint)
        left = world.left._replace(resigns=world.left.resigns - 1)
        world = world._replace(store=store._replace(owner=0, checkpoint=reached), left=left)
        return with_term(world, n, term._replace(at="over", pending=(), settling=False))

    def _cut(self, world: World) -> World:
        """Cut the network, or end the cut."""
        left = world.left._replace(cuts=world.left.cuts - 1)
        return world._replace(is_cut=not world.is_cut, left=left)

    def _words_of_cut(self) -> str:
        (one, other), *_ = self.bounds.cut
        both = (other, one) in self.bounds.cut
        return f"{one} and {other} are cut off" if both else f"{other} is cut off from messages of {one}"

    def _lose(self, world: World, mail: Mail) -> World:
        return without_mail(_spent(world), mail)

    def _double(self, world: World, mail: Mail) -> World:
        left = world.left._replace(doubles=world.left.doubles - 1)
        return world._replace(network=tuple(sorted((*world.network, mail))), left=left)

    # --- owners ------------------------------------------------------------------------------------------

    def _elected(self, world: World) -> World:
        rev, count, checkpoint = len(world.terms) + 1, len(self.names), world.store.checkpoint
        known = int(self.bounds.ddl == "known" or KNOWN[0] < checkpoint)

        def make() -> Kept:
            owner = Owner(
                checkpoint, Barrier(checkpoint, self.bounds.target), ALL, resolved_interval_s=0.0,
                spans=wanted_at(checkpoint),
            )  # fmt: skip
            owner.learn(batches(checkpoint, KNOWN[known]), KNOWN[known])
            return self.keep(owner)

        kept = self._once(("owner", checkpoint, known), make)
        version = world.captures[self.names.index(self._host(rev))].version
        term = Term(
            rev, "meets", kept, known, ((0, 0),) * count, (None,) * count, (0,) * count, checkpoint,
            version=version, versions=("",) * count,
        )  # fmt: skip
        world = world._replace(terms=(*world.terms, term), store=world.store._replace(owner=rev))
        for i in range(count):
            world = self._announce(world, rev - 1, i)
        return world

    def _announce(self, world: World, n: int, i: int) -> World:
        return posted(world, [self._announcement(world.terms[n], self.names[i])])

    @staticmethod
    def _announcement(term: Term, name: str) -> Mail:
        return Mail(name, wire(Announce(Header(1, "f", "i", term.rev, name, 0, 0), term.version)))

    def _owner_steps(self, world: World, n: int, term: Term) -> Iterator[Step]:
        """Yield the next steps of an owner, which follow from its state."""
        who = f"owner {term.rev}"
        if term.at in ("over", "finished"):
            return
        for i, name in enumerate(self.names):
            mail = self._announcement(term, name)
            may_be_lost = term.latest[i][0] > 0 or self.bounds.budget.drops > 0 or self.bounds.cut
            if may_be_lost and term.latest[i][0] < world.captures[i].epoch and mail not in world.network:
                yield f"{who} announces itself to {name} again", partial(self._announce, world, n, i)
        if term.settling:
            yield f"{who} stores that givers are fenced", partial(self._settle, world, n)
        match term.at:
            case "meets" | "runs":
                yield from self._decisions(world, n, term)
            case "ends":
                if self._may_continue(term):
                    seen = term._replace(
                        at="reads", grants=world.store.grants, read_at=world.store.changed_at
                    )
                    yield f"{who} reads the grants", partial(with_term, world, n, seen)
            case "reads":
                yield f"{who} stores the grants", partial(self._share, world, n)
            case "fences":
                yield f"{who} fences {term.left[0]}", partial(self._fence_giver, world, n)
            case "settles":
                yield f"{who} stores that givers are fenced", partial(self._settle, world, n)
            case "opens":
                yield f"{who} opens its side of the sink", partial(self._open_sink, world, n)
            case "proves":
                waits = term.settling and "settled_before_run" not in self.off
                what = "proves itself" if waits else "proves itself and dispatches"
                yield f"{who} {what}", partial(self._prove, world, n, waits=waits)
        if term.at in ("ends", "runs"):
            for call in term.pending:
                yield f"{who} {CALLS[call[0]]} {call[1]}", partial(self._perform, world, n, call)
                if world.left.drops:
                    what = f"{who} {CALLS[call[0]]} {call[1]}, and no answer comes"
                    yield what, partial(self._perform, _spent(world), n, call, answered=False)
            if world.left.repeats:
                for i, name in enumerate(self.names):
                    asked = term.asked[i]
                    if asked is not None and (asked.wish is not Wish.RUN or self._same_epoch(term, i)):
                        yield f"{who} repeats its Dispatch to {name}", partial(self._repeat, world, n, i)
        if self._may_read(term.known):
            yield f"{who} reads the DDL", partial(self._owner_reads_ddl, world, n)

    def _decisions(self, world: World, n: int, term: Term) -> Iterator[Step]:
        met = {name for name, said in zip(self.names, term.latest, strict=True) if said[0]}
        if not world.left.shares or (self.bounds.patience and len(met) < len(self.names)):
            return
        able = self._able(world, term, met)
        for option in self.bounds.options:
            if {name for name in option if name} <= able:
                what = ", ".join(
                    f"{which} to {name or 'nobody'}"
                    for which, name in zip(("LOW", "HIGH"), option, strict=True)
                )
                yield f"owner {term.rev} gives {what}", partial(self._decide, world, n, option)

    def _able(self, world: World, term: Term, met: set[str]) -> frozenset[str]:
        """The captures that may get ranges, by the product's own rule (`Sharing.able`)."""
        if not any(term.versions) and not (self.notices and world.is_cut):
            return frozenset(met)
        host, cut = self._host(term.rev), self.bounds.cut if self.notices and world.is_cut else ()

        def find() -> frozenset[str]:
            now = SimpleNamespace(monotonic=lambda: NOW)
            node: Any = SimpleNamespace(capture=host, owner_rev=1, drained=set(), clock=now, burdens=dict)
            peers, long_ago = Peers(), NOW - SILENT_S - 1.0
            for name, version in zip(self.names, term.versions, strict=True):
                if name in met:
                    peer = peers[name]
                    peer.met_rev, peer.met_at = 1, NOW
                    peer.received_at = long_ago if (name, host) in cut else NOW
                    peer.version = "" if version == term.version else "another"
                    if (host, name) in cut:
                        peer.sent(1, long_ago)
            sharing = Sharing(node, ALL, peers, lambda: list(peers))
            return frozenset(sharing.captures.able(joined_s=0.0)) & met

        key = "able", host, frozenset(met), term.version, term.versions, cut
        found: frozenset[str] = self._once(key, find)
        return found

    def _check_versions(self, term: Term, takers: set[str]) -> None:
        known = [
            (name, version)
            for name, version, said in zip(self.names, term.versions, term.latest, strict=True)
            if said[0]
        ]
        others = [name for name, version in known if version != term.version]
        if takers & set(others) and len(others) < len(known):
            raise Violation(f"ranges are given to {min(takers & set(others))}, of another version")

    def _spans(self, shares: tuple[str, ...], name: str) -> list[Span]:
        """The ranges that a capture is to have."""
        spans = [span for span, to in zip(RANGES, shares, strict=True) if to == name]
        return [ALL] if self.bounds.whole and len(spans) == len(RANGES) else spans

    def _decide(self, world: World, n: int, option: tuple[str, ...]) -> World:
        """Let every capture stop; those that will have ranges prepare them."""
        term = world.terms[n]
        self._check_versions(term, {name for name in option if name})
        world = world._replace(left=world.left._replace(shares=world.left.shares - 1))
        kept, _ = self._owner_does(term.kept, ("sink_lost", ()))
        world = with_term(world, n, term._replace(at="ends", shares=option, kept=kept, pending=()))
        for i, name in enumerate(self.names):
            if term.latest[i][0]:
                spans = self._spans(option, name)
                wish = Wish.PREPARE if spans else Wish.REST
                ranges = tuple(GrantedRange(span, (0, 0)) for span in spans)
                world = self._dispatch(world, n, i, Asked(wish, 0, ranges, 0, term.latest[i][0]))
        return world

    def _may_continue(self, term: Term) -> bool:
        if not self.bounds.patience or "given_up" in self.off:
            return True
        return all(one is None or one.given_up for one in term.asked)

    def _dispatch(self, world: World, n: int, i: int, asked: Asked) -> World:
        term = world.terms[n]
        number, bound = term.sent[i] + 1, term.kept.machine.barrier.bound
        header = Header(1, "f", "i", term.rev, self.names[i], term.latest[i][0], number)
        message = Dispatch(header, asked.wish, asked.incarnation, asked.ranges, bound, term.persisted, False)
        asked = asked._replace(bound=bound, given_up=False)
        term = term._replace(asked=put_at(term.asked, i, asked), sent=put_at(term.sent, i, number))
        return posted(with_term(world, n, term), [Mail(self.names[i], wire(message))])

    def _repeat(self, world: World, n: int, i: int) -> World:
        asked = world.terms[n].asked[i]
        assert asked is not None
        world = world._replace(left=world.left._replace(repeats=world.left.repeats - 1))
        return self._dispatch(world, n, i, asked)

    def _share(self, world: World, n: int) -> World:
        term = world.terms[n]
        if not self._holds(world, term, grants=True):
            return with_term(world, n, term._replace(at="over"))
        raises = term.raises + 1
        changed = self._grants(term, (term.rev, raises))
        grants = dict(term.grants) | {name: one.to_bytes() for name, one in changed.items()}
        if any(grant_of(data).token > (term.rev, raises) for _, data in world.store.grants):
            raise Violation(f"owner {term.rev} stores grants over those of a later owner")
        kept = term.kept
        for name, one in sorted(changed.items()):
            kept, _ = self._owner_does(kept, ("grant", (name, one.incarnation, one.ranges)))
        givers = {giver for one in changed.values() for giver in one.givers}
        left = tuple(sorted(givers)) if "owner_fence" not in self.off else ()
        at, settling = "fences" if left else "opens", not left
        if "fence_before_settled" in self.off:
            at, settling = "settles", False
        if self._gets_all(term):
            left, at, settling = (), "opens", False
        world = stored(world, grants)
        term = term._replace(
            at=at, kept=kept, raises=raises, left=left, settling=settling,
            grants=world.store.grants, read_at=world.store.changed_at,
        )  # fmt: skip
        return with_term(world, n, term)

    def _gets_all(self, term: Term) -> bool:
        """Whether one capture gets all keys, and fences its givers itself."""
        return self.bounds.whole and len(set(term.shares)) == 1

    def _grants(self, term: Term, token: tuple[int, int]) -> dict[str, Grant]:
        stored = {name: grant_of(data) for name, data in term.grants}
        takers = sorted({name for name in term.shares if name})
        shares = {name: self._spans(term.shares, name) for name in takers}
        if self._gets_all(term):
            return raised(stored, takers[0], "i", token, shares[takers[0]], 1)
        if "all_givers" not in self.off:
            if "inherit" in self.off:
                stored = {name: replace(one, givers={}) for name, one in stored.items()}
            return shared_out(stored, "i", token, shares, dict.fromkeys(takers, 1))
        changed: dict[str, Grant] = {}
        for name, spans in shares.items():
            changed |= raised(stored | changed, name, "i", token, spans, 1)
        return changed

    def _fence_giver(self, world: World, n: int) -> World:
        term = world.terms[n]
        i, left = self.names.index(term.left[0]), term.left[1:]
        if left:
            return with_term(fenced(world, i), n, term._replace(left=left))
        settling = "fence_before_settled" not in self.off
        return with_term(fenced(world, i), n, term._replace(left=left, at="opens", settling=settling))

    def _settle(self, world: World, n: int) -> World:
        term = world.terms[n]
        if not self._holds(world, term, grants=True):
            return with_term(world, n, term._replace(at="over", pending=(), settling=False))
        settled = {name: replace(grant_of(data), givers={}).to_bytes() for name, data in term.grants}
        world = stored(world, settled)
        if term.at == "settles":  # a run without the guard: they are not fenced yet
            term = term._replace(at="fences" if term.left else "opens")
        if not term.left:
            term = term._replace(read_at=0)
        grants = world.store.grants if term.at != "runs" else ()
        world = with_term(world, n, term._replace(grants=grants, settling=False))
        return self._run(world, n) if term.at == "waits" else world

    def _holds(self, world: World, term: Term, *, grants: bool = False) -> bool:
        """Whether the guards of a write hold."""
        owns = world.store.owner == term.rev or "election_guard" in self.off
        return owns and (not grants or "grants_guard" in self.off or term.read_at == world.store.changed_at)

    def _open_sink(self, world: World, n: int) -> World:
        epoch = world.sink.owner_epoch + 1
        opened = world.terms[n]._replace(at="proves", epoch=epoch)
        return with_term(world, n, opened)._replace(sink=world.sink._replace(owner_epoch=epoch))

    def _prove(self, world: World, n: int, *, waits: bool) -> World:
        """The sink is open: it says what is out; then every taker may begin. `waits`: but not before it is
        stored that givers are fenced.
        """
        term = world.terms[n]
        if "owner_proof" not in self.off and world.store.owner != term.rev:
            return with_term(world, n, term._replace(at="over", settling=False))
        journal = (0, 0) if "journal" in self.off else (world.sink.resolved, world.sink.ddl)
        kept, _ = self._owner_does(term.kept, ("sink_open", journal))
        world = with_term(world, n, term._replace(at="waits", kept=kept, ddl_sent=journal[1]))
        return world if waits else self._run(world, n)

    def _run(self, world: World, n: int) -> World:
        term = world.terms[n]
        granted = {name: grant_of(data) for name, data in term.grants}
        # Without the guard it has yet to store that they are fenced.
        world = with_term(world, n, term._replace(at="runs", grants=term.grants if term.settling else ()))
        for i, name in enumerate(self.names):
            if name in term.shares:
                one = granted[name]
                asked = Asked(Wish.RUN, one.incarnation, one.ranges, 0, term.latest[i][0])
                world = self._dispatch(world, n, i, asked)
        return world

    def _perform(self, world: World, n: int, call: tuple[str, int], *, answered: bool = True) -> World:
        """Carry out what the machine has asked for. Without an answer the incarnation, or the term, ends."""
        term, (what, ts) = world.terms[n], call
        pending = tuple(one for one in term.pending if one != call)
        if what == "persist":
            if not self._holds(world, term):
                return with_term(world, n, term._replace(at="over", pending=()))
            if ts < world.store.checkpoint:
                raise Violation(f"the stored checkpoint goes back from {world.store.checkpoint} to {ts}")
            world = world._replace(store=world.store._replace(checkpoint=ts))
            term = term._replace(persisted=ts)
        elif "owner_sink_fence" not in self.off and term.epoch != world.sink.owner_epoch:
            kept, _ = self._owner_does(term.kept, ("sink_lost", ()))
            return with_term(world, n, term._replace(at="meets", kept=kept, pending=()))
        elif what != "ddl" or ts > term.ddl_sent:
            world = world._replace(sink=sent(world.sink, what, ts))
        if not answered:
            kept, _ = self._owner_does(term.kept, ("sink_lost", ()))
            if (
                what == "persist" and world.store.owner == term.rev
            ):  # it resigns: it cannot know what is stored
                world = world._replace(store=world.store._replace(owner=0))
            at = "over" if what == "persist" else "meets"
            return with_term(world, n, term._replace(at=at, kept=kept, pending=()))
        done = {"ddl": "ddl_done", "resolved": "resolved_done", "persist": "persisted"}[what]
        return self._continue(world, n, term._replace(pending=pending), [(done, (ts,))])

    def _may_read(self, known: int) -> bool:
        """Whether who knows DDL up to KNOWN[known] may read on at any time."""
        return known < READ_TO.get(self.bounds.ddl, 0)

    def _owner_reads_ddl(self, world: World, n: int) -> World:
        term = world.terms[n]
        known = term.known + 1
        learned = tuple(batches(KNOWN[known - 1], KNOWN[known])), KNOWN[known]
        return self._continue(world, n, term._replace(known=known), [("learn", learned)])

    def _continue(self, world: World, n: int, term: Term, calls: Sequence[tuple[str, Any]]) -> World:
        """Let the machine do something, tick, and dispatch the bound if it has changed."""
        if term.at != "runs":
            kept, _ = self._owner_does(term.kept, *calls)
            return with_term(world, n, term._replace(kept=kept))
        kept, effects = self._owner_does(term.kept, *calls, ("tick", (NOW,)))
        asked_for = [(call_of(one), one) for one in effects]
        pending = tuple(
            sorted((*term.pending, *(call for call, one in asked_for if not isinstance(one, Finish))))
        )
        over = any(isinstance(one, Finish) for _, one in asked_for)
        world = with_term(world, n, term._replace(kept=kept, pending=pending))
        if over:
            return with_term(world, n, world.terms[n]._replace(at="finished", pending=()))
        for i in range(len(self.names)):
            asked = world.terms[n].asked[i]
            if asked is None or asked.wish is not Wish.RUN:
                continue
            if asked.bound != kept.machine.barrier.bound and self._same_epoch(world.terms[n], i):
                world = self._dispatch(world, n, i, asked)
        return world

    def _same_epoch(self, term: Term, i: int) -> bool:
        asked = term.asked[i]
        return asked is None or asked.epoch == term.latest[i][0] or "once" in self.off

    def _owner_does(self, kept: Kept, *calls: tuple[str, Any]) -> tuple[Kept, list[Effect]]:
        def work() -> tuple[Kept, list[Effect]]:
            machine: Owner = kept.copy()
            before, effects = machine.checkpoint, []
            for name, args in calls:
                found = getattr(machine, name)(*args)
                if name == "tick":
                    effects = found
            # Time does not advance between two pauses: everything that waits for one has waited.
            machine._last_resolved = machine._last_persist = float("-inf")
            assert machine.checkpoint >= before, "the checkpoint went back"
            return self.keep(machine), effects

        found: tuple[Kept, list[Effect]] = self._once((kept, calls), work)
        return found

    # --- messages ----------------------------------------------------------------------------------------

    def _deliveries(self, world: World, mail: Mail) -> Iterator[Step]:
        if mail.to in self.names:
            i = self.names.index(mail.to)
            yield words(mail), partial(self._capture_receives, without_mail(world, mail), i, mail.text)
            return
        terms = list(enumerate(world.terms))
        for n, term in sorted(terms, key=lambda one: str(one[1].rev) != mail.to):
            mine = str(term.rev) == mail.to
            if (mine or "term_of_message" in self.off) and term.at not in ("over", "finished"):
                what = words(mail) if mine else f"{words(mail)} (which is owner {term.rev})"
                yield what, partial(self._owner_receives, without_mail(world, mail), n, mail.text)

    def _owner_receives(self, world: World, n: int, text: str) -> World:
        term, message = world.terms[n], message_of(text)
        header = message.header
        i = self.names.index(header.capture)
        said = header.capture_epoch, header.sequence
        if not isinstance(message, Checkpoint):
            if "order" not in self.off and not self._is_later(said, term.latest[i]):
                return world
            term = term._replace(latest=put_at(term.latest, i, said))
        if isinstance(message, Sync) and message.processor_version != term.versions[i]:
            term = term._replace(versions=put_at(term.versions, i, message.processor_version))
        calls: list[tuple[str, Any]] = []
        if isinstance(message, Sync | Checkpoint):
            ranges = message.checkpoints if isinstance(message, Sync) else message.ranges
            calls.append(("receive_ddl", (header.capture, message.ddl)))
            calls.append(("report", (header.capture, message.incarnation, tuple(ranges))))
        if isinstance(message, Sync | DispatchResponse):
            runs = [one for one in message.ranges if one.state is RangeState.RUNNING]
            running = tuple(GrantedRange(one.id, one.token) for one in runs)
            calls.append(("running", (header.capture, message.incarnation, running)))
            asked = term.asked[i]
            if isinstance(message, DispatchResponse) and asked is not None and not running:
                answers = message.answers >= term.sent[i] or "answers" in self.off
                if answers:
                    term = term._replace(asked=put_at(term.asked, i, asked._replace(given_up=True)))
        world = self._continue(world, n, term, calls)
        return self._ask_again(world, n, i) if isinstance(message, Sync) else world

    def _ask_again(self, world: World, n: int, i: int) -> World:
        """A capture that has started again is asked once more to stop, so that it can answer."""
        term = world.terms[n]
        asked = term.asked[i]
        if term.at != "ends" or asked is None or asked.epoch == term.latest[i][0]:
            return world
        return self._dispatch(world, n, i, asked._replace(epoch=term.latest[i][0]))

    def _is_later(self, said: tuple[int, int], before: tuple[int, int]) -> bool:
        if "ordered_epochs" not in self.off:
            return said > before
        return said[0] != before[0] or said[1] > before[1]

    def _capture_receives(self, world: World, i: int, text: str) -> World:
        capture, grant = world.captures[i], dict(world.store.grants).get(self.names[i], b"")
        key = capture.kept, capture.goal, capture.opened, capture.known, text, grant
        found = self._once(key, partial(self._processor_receives, capture, text, grant))
        kept, goal, opened, known, worker, said = found
        if goal == capture.goal:
            worker = capture.worker
        capture = capture._replace(kept=kept, goal=goal, opened=opened, known=known, worker=worker)
        return posted(with_capture(world, i, capture), said)

    def _processor_receives(self, capture: Capture, text: str, grant: bytes) -> Any:
        """As in `server/processor/processor.py`: a new goal ends the pipeline, opens the spans, may begin
        another.
        """
        machine: Processor = capture.kept.copy()
        machine.receive(parse(json.loads(text), FROM_OWNER))
        dispatch, goal, known, worker = machine.dispatch, capture.goal, capture.known, None
        opened = capture.opened
        if dispatch is not None and (goal := Goal.of(dispatch)) != capture.goal:
            if dispatch.wish is not Wish.RUN:
                machine.given_up()
            if dispatch.wish is Wish.REST:
                machine.close()
                opened = None
            else:
                opened, known = self._open(machine, dispatch, opened, known)
            if dispatch.wish is Wish.RUN:
                worker = self._begin(machine, dispatch, grant)
        said = self._turn(machine, known)
        return self.keep(machine), goal, opened, known, worker, said

    def _open(
        self, machine: Processor, dispatch: Dispatch, opened: tuple[Span, ...] | None, known: int
    ) -> tuple[tuple[Span, ...], int]:
        ranges = tuple(one.id for one in dispatch.ranges)
        if machine.spans.is_open and opened == ranges and machine.ddl.known >= dispatch.checkpoint:
            machine.confirm()
            return ranges, known
        machine.close()
        at = dispatch.checkpoint
        known = 1 if KNOWN[known] < at else known  # it waits until it knows as much
        machine.open(at, wanted_at(at), self._batches(machine, at, known), KNOWN[known])
        return ranges, known

    def _batches(self, machine: Processor, after: int, known: int) -> list[DdlBatch]:
        """Return the DDL above a ts that the catalogue of the processor's capture has."""
        return [] if machine.outbox.header.capture == self.bounds.lacks else batches(after, KNOWN[known])

    def _begin(self, machine: Processor, dispatch: Dispatch, grant: bytes) -> Worker | None:
        if not grant or grant_of(grant).incarnation != dispatch.incarnation:
            machine.failed(Failed("the grant is not the dispatched one", "", "", "", retry=True))
            return None
        own = {machine.outbox.header.capture} if "own_fence" not in self.off else set()
        left = tuple(sorted(own | set(grant_of(grant).givers)))
        return Worker(grant, "fences" if left else "proves", left)

    def _turn(self, machine: Processor, known: int) -> list[Mail]:
        """Let a processor act after an event."""
        if machine.spans.is_open:
            if KNOWN[known] > machine.ddl.known:
                machine.learn(self._batches(machine, machine.ddl.known, known), KNOWN[known])
            machine.passed()
            moved = machine.spans.beyond(FRONTIER, machine.bound)
            machine.idle(moved.only(np.array([not row_after(*one) for one in moved], bool)))
            machine.resolve(FRONTIER)
        header, said = machine.outbox.header, machine.tick(NOW)
        if all(isinstance(one, Checkpoint) for one in said):
            # Nobody looks at the number of a Checkpoint, so that none makes two worlds of one.
            machine.outbox.header = header
            said = [replace(one, header=replace(one.header, sequence=0)) for one in said]
        return [Mail(str(one.header.owner_rev), wire(one)) for one in said]

    def _read_ddl(self, world: World, i: int) -> World:
        known = READ_TO[self.bounds.ddl]
        return self._processor_does(with_capture(world, i, world.captures[i]._replace(known=known)), i)

    def _processor_does(self, world: World, i: int, *calls: tuple[str, Any]) -> World:
        capture = world.captures[i]

        def work() -> tuple[Kept, list[Mail]]:
            machine = capture.kept.copy()
            for name, args in calls:
                *first, last = args
                getattr(machine, name)(*first, dict(last) if isinstance(last, tuple) else last)
            return self.keep(machine), self._turn(machine, capture.known)

        kept, said = self._once((capture.kept, capture.known, calls), work)
        return posted(with_capture(world, i, capture._replace(kept=kept)), said)

    # --- workers -----------------------------------------------------------------------------------------

    def _worker_steps(self, world: World, i: int, worker: Worker, zombie: Zombie | None) -> Iterator[Step]:
        who = f"{self.names[i]}'s worker" if zombie is None else f"{self.names[i]}'s old worker"
        match worker.at:
            case "fences":
                what = f"fences {worker.left[0]}"
                yield f"{who} {what}", partial(self._worker_fences, world, i, worker, zombie)
            case "proves":
                yield f"{who} proves itself", partial(self._worker_proves, world, i, worker, zombie)
            case "runs":
                for row in self._due(world, i, worker, zombie):
                    refused = self._is_fenced(world, i, worker)
                    what = f"{who} {'is fenced when it writes' if refused else 'writes'} {row[0]}@{row[1]}"
                    yield what, partial(self._write, world, i, worker, zombie, row)
                    if world.left.drops and zombie is None and not refused:
                        what += ", and no answer comes"
                        yield (
                            what,
                            partial(self._write, _spent(world), i, worker, zombie, row, answered=False),
                        )

    def _due(self, world: World, i: int, worker: Worker, zombie: Zombie | None) -> Iterator[tuple[str, int]]:
        """The next row of each table that the worker may write."""
        machine: Processor = world.captures[i].kept.machine
        reach = machine.reach if zombie is None else zombie.reach
        at = positions_of(machine) if zombie is None else zombie.at
        for table, after in at:
            if "stored" in self.off:
                after = world.sink.records[INDEX[table]]
            held = any(one.id.covers(TASKS[table].span) for one in grant_of(worker.grant).ranges)
            if held and (ts := row_after(table, after, reach)):
                yield table, ts

    def _worker_fences(self, world: World, i: int, worker: Worker, zombie: Zombie | None) -> World:
        whose, left = self.names.index(worker.left[0]), worker.left[1:]
        self._check_fenced(world, i, whose, worker)
        world = fenced(world, whose)
        epoch = world.sink.epochs[i] if whose == i else worker.epoch
        after = worker._replace(at="fences" if left else "proves", left=left, epoch=epoch)
        return with_worker(world, i, zombie, after)

    def _check_fenced(self, world: World, i: int, whose: int, worker: Worker) -> None:
        """A round would not end if its captures fenced each other's new writers."""
        other = world.captures[whose].worker
        if whose == i or other is None or other.at != "runs":
            return
        if grant_of(other.grant).token == grant_of(worker.grant).token:
            one, two = self.names[i], self.names[whose]
            raise Violation(f"{one} fences {two}, which has begun in the same round")

    def _is_fenced(self, world: World, i: int, worker: Worker) -> bool:
        return "sink_fence" not in self.off and worker.epoch != world.sink.epochs[i]

    def _is_proven(self, world: World, i: int, worker: Worker) -> bool:
        stored = dict(world.store.grants).get(self.names[i])
        return grant_of(worker.grant).is_proven_by(None if stored is None else grant_of(stored))

    def _worker_proves(self, world: World, i: int, worker: Worker, zombie: Zombie | None) -> World:
        """If it may still write, it continues from its position, or reads the progress and begins."""
        if not self._is_proven(world, i, worker):
            return self._worker_fails(world, i, zombie)
        runs = worker._replace(at="runs", read=True)
        if "own_fence" in self.off and not worker.read:
            runs = runs._replace(epoch=world.sink.epochs[i])
        world = with_worker(world, i, zombie, runs)
        if worker.read:
            return world
        records = world.sink.records if "records" not in self.off else (0, 0, 0)
        begun = tuple((table, ts) for table, ts in zip(UPSTREAM, records, strict=True) if ts)
        if zombie is not None:
            at = tuple((table, max(ts, dict(begun).get(table, 0))) for table, ts in zombie.at)
            return with_zombie(world, zombie._replace(worker=runs), zombie._replace(worker=runs, at=at))
        self._check_starts(world.sink, begun)
        return self._processor_does(world, i, ("started", (grant_of(worker.grant).incarnation, begun)))

    def _check_starts(self, sink: Sink, begun: Sequence[tuple[str, int]]) -> None:
        for table, ts in begun:
            if ts >= missing(sink.rows[INDEX[table]], table):
                raise Violation(f"table {table} begins at {ts}, above a row that is not downstream")

    def _worker_fails(self, world: World, i: int, zombie: Zombie | None) -> World:
        world = with_worker(world, i, zombie, None)
        if zombie is not None:
            return world
        return self._processor_does(world, i, ("failed", (FENCED,)))

    def _write(
        self,
        world: World,
        i: int,
        worker: Worker,
        zombie: Zombie | None,
        row: tuple[str, int],
        *,
        answered: bool = True,
    ) -> World:
        """Commit a row. Without an answer the incarnation fails, whether it was committed or not."""
        if self._is_fenced(world, i, worker):
            if not self._is_proven(world, i, worker):
                return self._worker_fails(world, i, zombie)
            again = worker._replace(at="fences", left=(self.names[i],))
            return with_worker(world, i, zombie, again)
        table, ts = row
        world = world._replace(sink=written(world.sink, table, ts))
        if not answered:
            return self._worker_fails(world, i, zombie)
        if zombie is not None:
            at = tuple((one, ts if one == table else was) for one, was in zombie.at)
            return with_zombie(world, zombie, zombie._replace(at=at))
        grant = grant_of(worker.grant)
        return self._processor_does(world, i, ("report", (grant.token, grant.incarnation, (row,))))

    # --- faults ------------------------------------------------------------------------------------------

    def restarted(self, world: World, i: int) -> World:
        world = world._replace(left=world.left._replace(restarts=world.left.restarts - 1))
        return self._again(world, i, world.captures[i].version)

    def _upgraded(self, world: World, i: int) -> World:
        world = world._replace(left=world.left._replace(upgrades=world.left.upgrades - 1))
        return self._again(world, i, OTHER_VERSION)

    def _again(self, world: World, i: int, version: str) -> World:
        capture = world.captures[i]
        machine, worker = capture.kept.machine, capture.worker
        if worker is not None and self.bounds.zombies:
            zombie = Zombie(self.names[i], worker, machine.reach, positions_of(machine))
            world = world._replace(zombies=tuple(sorted((*world.zombies, zombie))))
        return with_capture(world, i, self._started(i, capture.epoch + 1, capture.known, version))

    def _without_cut_off(self, world: World) -> World:
        """Without the messages that a cut stops."""
        if not world.is_cut or not any(map(self._is_cut_off, world.network)):
            return world
        return world._replace(network=tuple(one for one in world.network if not self._is_cut_off(one)))

    def _is_cut_off(self, mail: Mail) -> bool:
        if mail not in self._cut_off:
            header = message_of(mail.text).header
            owner, capture = self._host(header.owner_rev), header.capture
            way = (owner, capture) if mail.to == capture else (capture, owner)
            self._cut_off[mail] = way in self.bounds.cut
        return self._cut_off[mail]

    def tidied(self, world: World) -> World:
        """Without those that can do nothing any more: two worlds that differ in them alone are one."""
        world = self._without_cut_off(world)
        while now := [one for one in world.network if isinstance(message_of(one.text), self.bounds.prompt)]:
            step = next(iter(self._deliveries(world, now[0])), None)
            world = step[1]() if step is not None else without_mail(world, now[0])
            world = self._without_cut_off(world)
        ended = {str(term.rev) for term in world.terms if term.at in ("over", "finished")}
        if any(mail.to in ended for mail in world.network) and "term_of_message" not in self.off:
            world = world._replace(network=tuple(mail for mail in world.network if mail.to not in ended))
        idle = [
            one for one in world.zombies
            if one.worker.at == "runs"
            and not any(self._due(world, self.names.index(one.capture), one.worker, one))
        ]  # fmt: skip
        if idle:
            world = world._replace(zombies=tuple(one for one in world.zombies if one not in idle))
        return world

    # --- promises ----------------------------------------------------------------------------------------

    def check(self, world: World) -> None:
        """Check what must hold at any time. The sink's own promises are checked at each write."""
        upto = durable(world.sink)
        if world.store.checkpoint > upto:
            raise Violation(f"the stored checkpoint is {world.store.checkpoint}, and {upto} is durable")
        for term in world.terms:
            if term.at != "over" and term.kept.machine.checkpoint > upto:
                said = term.kept.machine.checkpoint
                raise Violation(f"owner {term.rev}'s checkpoint is {said}, and {upto} is durable")
        writers = [
            (i, worker)
            for i, worker in chain(
                ((i, one.worker) for i, one in enumerate(world.captures) if one.worker is not None),
                ((self.names.index(one.capture), one.worker) for one in world.zombies),
            )
            if worker.at == "runs" and not self._is_fenced(world, i, worker)
        ]
        for span, name in zip(RANGES, ("LOW", "HIGH"), strict=True):
            found = [
                self.names[i] for i, worker in writers
                if any(one.id.covers(span) for one in grant_of(worker.grant).ranges)
            ]  # fmt: skip
            if len(found) > 1:
                raise Violation(f"the sink accepts {name} of {' and '.join(found)}")
