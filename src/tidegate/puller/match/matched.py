"""What goes into a stream's matcher and comes out: registrations, changes, and notes to their owner.

These nouns are all that the puller needs to know of matching, apart from `BlockMatcher` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.matcher import Violation


@dataclass(eq=False, slots=True)
class Registration:
    """One region's part of a span, as registered on the stream. `span`, `mark`: the caller's numbers."""

    number: int
    """The index of its line in the kernels' table."""
    request_id: int
    region_id: int
    span: int
    mark: int
    bounds: Span
    _held: tuple[pa.Buffer, pa.Buffer]
    """The bytes of `bounds`: the kernels have their addresses."""


class Happening(StrEnum):
    """What a registration's owner must know of."""

    INITIALIZED = "initialized"
    FAILED = "failed"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class Note:
    """FAILED: `event` is the cdcpb.Event with the error. VIOLATED: which rule, at which commit_ts."""

    happening: Happening
    registration: Registration
    event: bytes = b""
    violation: Violation | None = None
    commit_ts: Timestamp = 0


@dataclass(slots=True)
class Matched:
    """What a batch of messages came to.

    `blocks` with their span's number. `marks[i]` is the mark of a registration whose resolved ts rose to
    `resolved[i]`. `rows` of the messages, of which `changes` came out (some of earlier messages' prewrites).
    """

    blocks: list[tuple[int, pa.RecordBatch]]
    notes: list[Note]
    marks: k.I64
    resolved: k.U64
    rows: int
    changes: int
