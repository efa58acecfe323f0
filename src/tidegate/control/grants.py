"""Grants: what each capture may write of a changefeed, and how an owner changes them. Pure.

A grant is stored under `metadata.grant_key`. Its incarnation and tokens only rise. The owner stores changed
grants in one transaction, under the guard of its election, before it fences anybody
(docs/internals/grants.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.control.metadata import RESTORE, json_object, to_json
from tidegate.errors import InvalidInput
from tidegate.model.span import Span
from tidegate.model.spans_in_order import SpansInOrder, joined

GRANTS_MAX: Final = 120
"""How many captures may have ranges of a changefeed before or after one division. All their grants are
compared or written in one transaction of etcd, which takes 128 keys."""
CAPTURES_MAX: Final = 100
"""How many captures may get ranges of one changefeed: their grants are stored in one transaction of etcd."""


@dataclass(frozen=True, slots=True)
class GrantedRange:
    """A piece of the key space, and the token under which it may be written."""

    id: Span
    token: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Grant:
    """The right of one capture to write for a feed: its incarnation there, and its ranges.

    The incarnation rises by one whenever a capture begins to deliver, and never falls, not even under a new
    token. A writer is fenced if its (instance, token, incarnation) is not the stored one.
    """

    instance: str
    """`FeedInfo.instance`. Without it grants of two metadata stores could be equal: a new store counts tokens
    and incarnations from the start."""

    token: tuple[int, int]
    """(owner_rev, grant_seq) of the grant, compared in that order. No range has a greater one."""
    incarnation: int
    slots: int
    """Incarnations on this capture have used the transactional ids 0..slots-1. Never decreases."""
    ranges: tuple[GrantedRange, ...] = ()
    givers: Mapping[str, int] = field(default_factory=dict)
    """Captures from which ranges were taken, each with its slots. They are fenced before progress is read."""
    fenced: bool = False
    """Whether the capture's writers were fenced after it had lost its last range. Without a range no new
    writer passes the check of the grant, so there is none until the capture's next incarnation, whose grant
    has False.
    """

    @property
    def spec_file(self) -> str:
        """The name of the spec file of this incarnation."""
        return f"spec-{self.incarnation}-{self.instance}.json"

    @property
    def work_folder(self) -> str:
        """The name of the folder for files of this incarnation's processes."""
        return f"spark-{self.incarnation}-{self.instance}"

    def is_same(self, other: Grant) -> bool:
        """Whether both are grants of one incarnation. Their ranges may differ."""
        mine = self.instance, self.token, self.incarnation
        return mine == (other.instance, other.token, other.incarnation)

    def is_proven_by(self, stored: Grant | None) -> bool:
        """Whether a process with this grant may write, by the grant that is stored now.

        A stored grant without ranges proves nothing: another capture has taken the ranges, and such a taker
        leaves the rest of the giver's grant as it was.
        """
        # docs/internals/safety.md, invariant 8: the proof after an id is initialised. Without it a writer
        # that wakes up would fence the rightful one.
        return stored is not None and stored.is_same(self) and bool(stored.ranges)

    def to_bytes(self) -> bytes:
        """The stored form."""
        return to_json(
            {
                "instance": self.instance,
                "token": list(self.token),
                "incarnation": self.incarnation,
                "slots": self.slots,
                "ranges": [[one.id.start.hex(), one.id.end.hex(), *one.token] for one in self.ranges],
                "givers": dict(self.givers),
                **({"fenced": True} if self.fenced else {}),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Grant:
        """From the stored form. Raises InvalidInput if it is not a grant."""
        body = json_object(data, "grant")
        try:
            owner_rev, grant_seq = body["token"]
            return cls(
                body["instance"],
                (int(owner_rev), int(grant_seq)),
                int(body["incarnation"]),
                int(body["slots"]),
                tuple(
                    GrantedRange(Span(bytes.fromhex(start), bytes.fromhex(end)), (int(first), int(second)))
                    for start, end, first, second in body["ranges"]
                ),
                {str(capture): int(slots) for capture, slots in body["givers"].items()},
                bool(body.get("fenced", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(
                "a grant in the metadata store is damaged", why=repr(error), fix=RESTORE
            ) from error


def raised(
    stored: Mapping[str, Grant],
    capture: str,
    instance: str,
    token: tuple[int, int],
    ranges: Iterable[Span],
    slots: int,
    floor: int = 0,
) -> dict[str, Grant]:
    """The grants to store, by capture, so that one capture begins its next incarnation with these ranges.

    `floor`: the incarnation of a capture without a grant is above it (`floor_key`).

    Other captures that have some of these ranges lose them. The new incarnation fences their writers before
    it reads the progress, so later writes of a giver have no effect. A giver stays named after it was fenced,
    because only its own next incarnation removes its name.
    """
    wanted = [GrantedRange(span, token) for span in ranges]
    mine = stored.get(capture)
    givers = dict(mine.givers) if mine is not None else {}
    changed = {}
    for name, other in stored.items():
        if name == capture:
            continue
        kept = tuple(one for one in other.ranges if all(one.id.intersect(new.id) is None for new in wanted))
        # This capture's next incarnation fences its own earlier writers, so no other grant needs to name
        # it.
        others = {giver: n for giver, n in other.givers.items() if giver != capture}
        if kept != other.ranges:
            # docs/guarantees.md#one-of-several-captures-owns-the-changefeeds: a capture that loses ranges may
            # still write them until it is fenced.
            givers[name] = max(other.slots, givers.get(name, 0))
            # Also the captures that this giver had to fence: it may have died before it did.
            for giver, slots_of in other.givers.items():
                if giver != capture:
                    givers[giver] = max(slots_of, givers.get(giver, 0))
        if (kept, others) != (other.ranges, other.givers):
            changed[name] = replace(other, ranges=kept, givers=others)
    incarnation, used = (mine.incarnation, mine.slots) if mine is not None else (floor, 0)
    # Never fewer slots than before: a process that used a higher one may still have a transaction open there,
    # and only slots below this number are fenced.
    changed[capture] = Grant(instance, token, incarnation + 1, max(slots, used), tuple(wanted), givers)
    return changed


def shared_out(
    stored: Mapping[str, Grant],
    instance: str,
    token: tuple[int, int],
    shares: Mapping[str, Sequence[Span]],
    slots: Mapping[str, int],
    floor: int = 0,
) -> dict[str, Grant]:
    """The grants to store, by capture, so that several captures begin their next incarnations together.

    `shares` cover all that the changefeed follows, without overlap. `slots`: the number of slots of each
    capture. `floor`: as for `raised`. A capture may give ranges and take others in the same step. The givers
    in each grant are the captures that had any of its ranges, and the captures that those still had to fence.
    The owner fences all of them before it dispatches any of these incarnations, and then stores the grants as
    `settled`. If each taker fenced its givers itself, captures that exchange ranges would fence each other's
    new writers.
    """
    # A grant that loses its ranges keeps its givers, because they may never have been fenced.
    changed = {
        name: replace(one, ranges=()) for name, one in stored.items() if name not in shares and one.ranges
    }
    had_some = _givers(stored, shares)
    for name, spans in shares.items():
        mine = stored.get(name)
        givers = dict(mine.givers) if mine is not None else {}
        for other, had in stored.items():
            if other != name and other in had_some[name]:
                for giver, used in ((other, had.slots), *had.givers.items()):
                    givers[giver] = max(used, givers.get(giver, 0))
        givers.pop(name, None)  # its earlier writers are fenced in any case
        incarnation, used = (mine.incarnation, mine.slots) if mine is not None else (floor, 0)
        granted = tuple(GrantedRange(span, token) for span in spans)
        changed[name] = Grant(instance, token, incarnation + 1, max(slots[name], used), granted, givers)
    return changed


def _givers(
    stored: Mapping[str, Grant], shares: Mapping[str, Sequence[Span]]
) -> Mapping[str, Collection[str]]:
    """For each capture in `shares`, the captures that have any of its keys by the stored grants.

    With many ranges or captures a comparison of each with each would take most of a round.
    """
    takers = {span: name for name, spans in shares.items() for span in joined(spans)}
    new = SpansInOrder(takers)
    found: dict[str, set[str]] = {name: set() for name in shares}
    for name, grant in stored.items():
        for span in joined(one.id for one in grant.ranges):
            for place in new.met_by(span):
                found[takers[new.spans[place]]].add(name)
    return found


def writers_of(stored: Mapping[str, Grant]) -> dict[str, int]:
    """The captures that may have writers or open transactions at the sink, each with its slots."""
    # Captures without ranges as well: their last writers are gone only once they are fenced.
    found = {name: grant.slots for name, grant in stored.items() if not grant.fenced}
    for grant in stored.values():
        for giver, slots in grant.givers.items():
            found[giver] = max(slots, found.get(giver, 0))
    return found


def settled(grant: Grant) -> Grant:
    """The grant after the writers of its givers and of its earlier incarnations have been fenced."""
    return replace(grant, givers={}, fenced=not grant.ranges)
