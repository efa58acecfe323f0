"""The inputs and outputs of a stream's matcher: registrations, changes, and notes to their owner.

Apart from `BlockMatcher` itself, the puller needs only these nouns of the matching code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.matcher import Violation

Message = bytes | memoryview
"""The bytes of a message. A memoryview refers to memory that is used again when nothing refers to it."""


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
    """The bytes of `bounds`, kept alive because the kernels use their addresses."""


class Happening(StrEnum):
    """An event that a registration's owner must react to."""

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
    """The result of matching a batch of messages.

    `blocks`: each with the number of its span. `marks[i]` is the mark of a registration whose resolved ts
    rose to `resolved[i]`. `rows`: the number of rows in the messages. `changes`: the number of completed
    changes, some of which have their prewrite in earlier messages.
    """

    blocks: list[tuple[int, pa.RecordBatch]]
    notes: list[Note]
    marks: k.I64
    resolved: k.U64
    rows: int
    changes: int
