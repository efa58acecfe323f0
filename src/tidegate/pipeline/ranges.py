"""Which ranges of a feed's spans are due, and how they are shared among tasks. Pure.

A range is due only when segments hold rows in it: the control process advances spans without rows, so an idle
feed makes no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.pipeline.feed import Bounds

HEAVY_BYTES: Final = 16 << 20
"""A batch of so much means a backlog, or hundreds of thousands of rows a second."""
HEAVY_S: Final = 1.0
"""Then so many seconds lie between two of them: each costs 30 ms of CPU in the JVM, however small it is."""


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one span with after < commit_ts <= upto."""

    span: str
    after: int
    upto: int


def deliverable(bounds: Bounds, frontier: Mapping[str, int], span: str) -> int:
    """How far a span may be delivered: received, not past the bound, and not past the schema we know.

    A span ahead of the DDL puller would be decoded with an old schema.
    """
    return min(frontier.get(span, 0), frontier.get(bounds.ddl_span, 0), bounds.bound)


def due(
    begun: Mapping[str, int],
    bounds: Bounds,
    frontier: Mapping[str, int],
    cut: Callable[[str, int, int], int],
) -> list[Range]:
    """What a batch takes. `begun`: how far each span was taken before.

    `cut(span, after, upto)` is how far rows go within the budget, `after` if there are none.
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
    """Whether a batch had better wait for more rows, `since_s` seconds after the one before began.

    Only under heavy load, where throughput counts, and never once a batch is full.
    """
    return HEAVY_BYTES <= waiting_bytes < budget_bytes and since_s < HEAVY_S


def share(found: list[Range], sizes: Mapping[str, int], tasks: int) -> list[list[Range]]:
    """Ranges spread over at most `tasks` tasks of about equal bytes, biggest first."""
    shares: list[tuple[int, list[Range]]] = [(0, []) for _ in range(min(tasks, len(found)))]
    for one in sorted(found, key=lambda r: -sizes.get(r.span, 0)):
        i = min(range(len(shares)), key=lambda i: shares[i][0])
        size, members = shares[i]
        shares[i] = (size + max(1, sizes.get(one.span, 0)), [*members, one])
    return [members for _, members in shares]
