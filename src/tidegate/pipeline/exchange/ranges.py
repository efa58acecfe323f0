"""Which ranges of a feed's spans are due, and how they are shared among tasks. Pure.

A range is due only if segments have rows in it. The control process advances spans without rows, so an idle
feed needs no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.pipeline.exchange.feed import Bounds

HEAVY_BYTES: Final = 16 << 20
"""If this many bytes wait, the load is heavy: a backlog, or hundreds of thousands of rows a second."""
HEAVY_S: Final = 1.0
"""The time between two batches under heavy load. Larger batches cost less for each row."""


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one span with after < commit_ts <= upto."""

    span: str
    after: int
    upto: int


def deliverable(bounds: Bounds, frontier: Mapping[str, int], span: str) -> int:
    """The ts up to which a span may be delivered: it is received, within the bound, and its schema is known.

    A row beyond the resolved ts of the DDL span might be decoded with an old schema.
    """
    return min(frontier.get(span, 0), frontier.get(bounds.ddl_span, 0), bounds.bound)


def due(
    begun: Mapping[str, int],
    bounds: Bounds,
    frontier: Mapping[str, int],
    cut: Callable[[str, int, int], int],
) -> list[Range]:
    """The ranges of the next batch. `begun`: the ts up to which each span was taken before.

    `cut(span, after, upto)`: the ts up to which the rows fit into the budget; `after` if there are no rows.
    """
    found = []
    for span, start_ts in bounds.spans.items():
        after = max(begun.get(span, 0), start_ts)
        upto = deliverable(bounds, frontier, span)
        end = cut(span, after, upto) if upto > after else after
        if end > after:
            found.append(Range(span, after, end))
    return found


def waits(waiting_bytes: int, budget_bytes: int, since_s: float) -> bool:
    """Whether to wait for more rows before the next batch, `since_s` seconds after the last one began.

    True only under heavy load, where throughput matters more than delay, and never if a batch is full.
    """
    return HEAVY_BYTES <= waiting_bytes < budget_bytes and since_s < HEAVY_S


def share(found: list[Range], sizes: Mapping[str, int], tasks: int) -> list[list[Range]]:
    """Spread ranges over at most `tasks` tasks with about equal bytes, placing the biggest ranges first."""
    shares: list[tuple[int, list[Range]]] = [(0, []) for _ in range(min(tasks, len(found)))]
    for one in sorted(found, key=lambda r: -sizes.get(r.span, 0)):
        i = min(range(len(shares)), key=lambda i: shares[i][0])
        size, members = shares[i]
        # A range without a known size counts as well. Otherwise all such ranges would go to the same task.
        shares[i] = (size + max(1, sizes.get(one.span, 0)), [*members, one])
    return [members for _, members in shares]
