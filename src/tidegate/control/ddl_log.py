"""A digest of the DDL that an owner or a processor knows, so that the two can compare it.

    wanted spans --open--> DdlLog --said--> KnownDdl --> the other's DdlLog --agrees--> yes | no
    DDL batches --learn-----^

A processor finds out by itself which tables the feed wants in a key range. If it missed a DDL that its owner
knows, its checkpoint would cover rows that it has never looked for. Therefore it reports a digest of the DDL
it knows, and the owner compares the digest with its own up to the same ts.

The digest begins with the spans that are wanted where the DDL begins. Without them, a DDL that was missed
would not be noticed any more once the checkpoint has passed it: a processor may open its spans long before
it gets ranges, and others deliver the DDL meanwhile.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.model.timestamp import Timestamp

MASK: Final = (1 << 32) - 1
"""A digest has 32 bits."""


@dataclass(frozen=True, slots=True)
class KnownDdl:
    """A digest of the DDL that finished in (after, upto], and of the spans wanted at `after`."""

    after: Timestamp
    upto: Timestamp
    digest: int
    """A CRC over the text of these DDLs and the spans that they add and remove. It begins with the sum of the
    CRCs of all spans that the feed wants at `after`, also outside the capture's ranges."""


NOTHING = KnownDdl(0, 0, 0)
"""The value of a processor that is not open."""


@dataclass(frozen=True, slots=True)
class LoggedDdl:
    """One DDL in the log."""

    ts: Timestamp
    digest: int
    change: int
    """The number that it adds to the sum over all wanted spans."""


class DdlLog:
    """The spans wanted at a ts, and the DDL learned since then. Pure.

    It keeps one number for each wanted span, because a DDL that changes which tables of a stripe are wanted
    does not say which were wanted before.
    """

    def __init__(self, after: Timestamp, wanted: Iterable[SpanTask] = ()) -> None:
        """`wanted`: all spans that the feed wants at `after`."""
        self._after = self._upto = after
        self._wanted = {task.id: _sum_of_span(task) for task in wanted}
        """The CRC of each span that is wanted after the last learned DDL."""
        self._spans = sum(self._wanted.values()) & MASK
        """The sum for the spans wanted at `_after`."""
        self._learned: deque[LoggedDdl] = deque()

    def learn(self, batches: Iterable[DdlBatch], upto: Timestamp) -> None:
        """Add DDL in order. All DDL up to `upto` is known now."""
        self._learned.extend(
            LoggedDdl(batch.finished_ts, _sum(batch), self._change(batch)) for batch in batches
        )
        self._upto = max(self._upto, upto)

    def _change(self, batch: DdlBatch) -> int:
        """Follow a DDL. Returns what it adds to the sum over all wanted spans."""
        change = 0
        for name in batch.removed:
            change -= self._wanted.pop(name, 0)
        for task in batch.added:
            after = _sum_of_span(task)
            change += after - self._wanted.get(task.id, 0)
            self._wanted[task.id] = after
        return change

    def forget(self, upto: Timestamp) -> None:
        """Forget DDL at or below `upto`, which is not compared any more."""
        # Not beyond what is known: otherwise a digest would claim DDL that was never learned.
        self._after = max(self._after, min(upto, self._upto))
        # Their changes go into the sum before they are dropped, so that digests of later DDL stay the same.
        while self._learned and self._learned[0].ts <= self._after:
            self._spans = (self._spans + self._learned.popleft().change) & MASK

    @property
    def said(self) -> KnownDdl:
        """The digest to send to the other side."""
        return KnownDdl(self._after, self._upto, self._digest(self._after, self._upto))

    def has_forgotten(self, other: KnownDdl) -> bool:
        """Whether it begins before the DDL that is kept here, so that it cannot be compared."""
        return other.after < self._after

    def is_behind(self, other: KnownDdl) -> bool:
        """Whether more DDL must be learned here before it can be compared."""
        return other.upto > self._upto

    def agrees(self, other: KnownDdl) -> bool:
        """Whether both sides know the same DDL, and want the same spans where it begins."""
        assert not self.has_forgotten(other)
        assert not self.is_behind(other)
        return other.digest == self._digest(other.after, other.upto)

    def _spans_at(self, ts: Timestamp) -> int:
        """The sum for the spans wanted at a ts that is not forgotten."""
        return (self._spans + sum(one.change for one in self._learned if one.ts <= ts)) & MASK

    def _digest(self, after: Timestamp, upto: Timestamp) -> int:
        digest = self._spans_at(after)
        for one in self._learned:
            if after < one.ts <= upto:
                # Chained, so that the order counts.
                digest = zlib.crc32(one.digest.to_bytes(4, "little"), digest)
        return digest


def _sum_of_span(task: SpanTask) -> int:
    return zlib.crc32(f"{task.id} {task.wanted:x}".encode())


def _sum(batch: DdlBatch) -> int:
    # Sorted, because both sides find them out by themselves, in any order.
    added = sorted((task.id, task.wanted) for task in batch.added)
    tables = sorted(batch.removed_tables)
    said = (batch.finished_ts, [e.query for e in batch.events], added, sorted(batch.removed), tables)
    return zlib.crc32(repr(said).encode())
