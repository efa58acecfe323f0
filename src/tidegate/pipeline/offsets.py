"""Offsets of the streaming source: per span the ts up to which its rows have been delivered. Pure.

An offset moves only when segments hold rows in the range: spans without rows are checkpointed by the
control process, so an idle feed makes no micro-batches. As JSON: `{span id: ts}`; the token is the
incarnation's own and one for all spans of it, so it is kept once, under the key `token`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.pipeline.feed import Barrier

TOKEN = "token"
HEAVY_BYTES: Final = 16 << 20
"""A micro-batch of so much means a backlog, or hundreds of thousands of rows a second."""
HEAVY_S: Final = 1.0
"""Then so many seconds lie between two of them: each costs about 0.1 CPU seconds in the JVM."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Where each span stands."""

    token: tuple[int, int]
    spans: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        return {TOKEN: f"{self.token[0]}.{self.token[1]}", **self.spans}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        """The inverse of `to_json`."""
        first, second = found[TOKEN].split(".")
        return cls((int(first), int(second)), {k: int(v) for k, v in found.items() if k != TOKEN})


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one span with after < commit_ts <= upto."""

    span: str
    after: int
    upto: int


def bound(barrier: Barrier, frontier: Mapping[str, int], span: str) -> int:
    """How far a span may be delivered: received, not past the barrier, and not past the schema we know.

    A span ahead of the DDL puller would be decoded with an old schema.
    """
    return min(frontier.get(span, 0), frontier.get(barrier.ddl_span, 0), barrier.barrier_ts)


def advance(
    start: Offset, barrier: Barrier, frontier: Mapping[str, int], cut: Callable[[str, int, int], int]
) -> Offset:
    """The next end offset. `cut(span, after, upto)` is how far rows go within the budget, `after` if none.

    Spans that are no longer in the barrier file are forgotten, new ones begin at their start_ts.
    """
    ends: dict[str, int] = {}
    for span, start_ts in barrier.spans.items():
        after = max(start.spans.get(span, 0), start_ts)
        upto = bound(barrier, frontier, span)
        ends[span] = cut(span, after, upto) if upto > after else start.spans.get(span, start_ts)
    moved = any(ends[span] > max(start.spans.get(span, 0), barrier.spans[span]) for span in ends)
    return Offset(start.token, ends) if moved else start


def waits(waiting_bytes: int, budget_bytes: int, since_s: float) -> bool:
    """Whether a micro-batch had better wait for more rows, `since_s` seconds after the one before began.

    Only under heavy load, where throughput counts, and never once a batch is full.
    """
    return HEAVY_BYTES <= waiting_bytes < budget_bytes and since_s < HEAVY_S


def ranges(start: Offset, end: Offset, starts: Mapping[str, int]) -> list[Range]:
    """What lies between two offsets; a span new in `end` begins at its `starts` value."""
    found = []
    for span, upto in end.spans.items():
        after = max(start.spans.get(span, 0), starts.get(span, 0))
        if upto > after:
            found.append(Range(span, after, upto))
    return found


def pack(found: list[Range], sizes: Mapping[str, int], groups: int) -> list[list[Range]]:
    """Ranges spread over at most `groups` tasks of about equal bytes, biggest first."""
    packed: list[tuple[int, list[Range]]] = [(0, []) for _ in range(min(groups, len(found)))]
    for one in sorted(found, key=lambda r: -sizes.get(r.span, 0)):
        i = min(range(len(packed)), key=lambda i: packed[i][0])
        size, members = packed[i]
        packed[i] = (size + max(1, sizes.get(one.span, 0)), [*members, one])
    return [members for _, members in packed]
