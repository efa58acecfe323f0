"""A digest of the DDL that an owner or a processor knows, so that the two can compare it.

    DDL batches --learn--> DdlLog --said--> KnownDdl --> the other's DdlLog --agrees--> yes | no

A processor finds out by itself which tables the feed wants in a key range. If it missed a DDL that its owner
knows, its checkpoint would cover rows that it has never looked for. Therefore it reports a digest of the DDL
it knows, and the owner compares the digest with its own up to the same ts.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.control.barrier import DdlBatch
from tidegate.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class KnownDdl:
    """A digest of the DDL that finished in (after, upto]."""

    after: Timestamp
    upto: Timestamp
    digest: int
    """A CRC over the text of these DDLs and the spans that they add and remove."""


NOTHING = KnownDdl(0, 0, 0)
"""The value of a processor that is not open."""


class DdlLog:
    """The DDL learned since a ts. Pure."""

    def __init__(self, after: Timestamp) -> None:
        self._after = self._upto = after
        self._sums: deque[tuple[Timestamp, int]] = deque()

    def learn(self, batches: Iterable[DdlBatch], upto: Timestamp) -> None:
        """Add DDL in order. All DDL up to `upto` is known now."""
        self._sums.extend((batch.finished_ts, _sum(batch)) for batch in batches)
        self._upto = max(self._upto, upto)

    def forget(self, upto: Timestamp) -> None:
        """Forget DDL at or below `upto`, which is not compared any more."""
        # Not beyond what is known: otherwise a digest would claim DDL that was never learned.
        self._after = max(self._after, min(upto, self._upto))
        while self._sums and self._sums[0][0] <= self._after:
            self._sums.popleft()

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
        """Whether both sides know the same DDL."""
        assert not self.has_forgotten(other)
        assert not self.is_behind(other)
        return other.digest == self._digest(other.after, other.upto)

    def _digest(self, after: Timestamp, upto: Timestamp) -> int:
        digest = 0
        for ts, each in self._sums:
            if after < ts <= upto:
                # Chained, so that the order counts.
                digest = zlib.crc32(each.to_bytes(4, "little"), digest)
        return digest


def _sum(batch: DdlBatch) -> int:
    # Sorted, because both sides find them out by themselves, in any order.
    added = sorted((task.id, task.wanted) for task in batch.added)
    tables = sorted(batch.removed_tables)
    said = (batch.finished_ts, [e.query for e in batch.events], added, sorted(batch.removed), tables)
    return zlib.crc32(repr(said).encode())
