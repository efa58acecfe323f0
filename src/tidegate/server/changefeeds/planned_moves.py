"""A new division of a changefeed for people: moves by the names of tables, with their cost and gain.

A division may move thousands of ranges. The heaviest are named, and the others are summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.control.move_cost import MoveCost, cost_of
from tidegate.control.share import Move
from tidegate.model.span import Span
from tidegate.server.owner.feed import Feed
from tidegate.server.owner.sharing import Proposal
from tidegate.tidb import keys

MOVES_NAMED: Final = 20
"""The most moves that are shown one by one."""
TABLES_NAMED: Final = 3
"""The most tables of a range that are named."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table or partition in a range."""

    name: str
    """`schema.table`, or `id N` if the name is not known."""
    is_whole: bool
    """Whether all its rows are in the range."""


@dataclass(frozen=True, slots=True)
class NamedMove:
    """A range that moves, with its tables."""

    move: Move
    tables: int
    """0 for a changefeed of keys."""
    first: Sequence[NamedTable]
    """The first of them in the order of keys."""


@dataclass(frozen=True, slots=True)
class OtherMoves:
    """The sum of the moves that are not named."""

    moves: int
    tables: int
    """A table with several pieces counts once."""
    weight: float


@dataclass(frozen=True, slots=True)
class PlannedMoves:
    """A division and what it changes."""

    plan: Proposal
    cost: MoveCost
    heaviest: Sequence[NamedMove]
    """The heaviest first."""
    others: OtherMoves


def planned_moves(feed: Feed, plan: Proposal) -> PlannedMoves:
    """The changes that a division of a changefeed among captures would make now."""
    sharing, has_tables = feed.replication.shares.sharing, feed.record.config.has_tables
    tables = {move.span: sharing.spans.tables_in(move.span) if has_tables else [] for move in plan.moves}
    cost = cost_of(
        plan.moves,
        plan.before,
        plan.loads,
        sharing.captures.able(),
        tables=_count(tables.values()),
        in_bytes=plan.in_bytes,
        lag_s=feed.lag_ms(feed.node.now_ms()) / 1000,
        last_gap_s=feed.replication.steps.last_gap_s,
    )
    heaviest = sorted(plan.moves, key=lambda move: -move.weight)  # of equal ones the first in key order
    named, rest = heaviest[:MOVES_NAMED], heaviest[MOVES_NAMED:]
    return PlannedMoves(
        plan,
        cost,
        [
            NamedMove(move, len(ids), named_tables(feed, move.span, ids))
            for move in named
            for ids in (tables[move.span],)
        ],
        OtherMoves(len(rest), _count(tables[move.span] for move in rest), sum(move.weight for move in rest)),
    )


def _count(tables: Iterable[Sequence[int]]) -> int:
    return len({table for some in tables for table in some})


def named_tables(feed: Feed, span: Span, tables: Sequence[int]) -> list[NamedTable]:
    """The first of the tables of a range. `tables`: the ids of all of them."""
    name_of = feed.replication.ddl.name_of
    return [
        NamedTable(name_of(table) or f"id {table}", span.covers(keys.record_span(table)))
        for table in tables[:TABLES_NAMED]
    ]
