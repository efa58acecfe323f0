"""What somebody knows about a feed's DDL, as a number, so that owner and processor can compare it.

    DDL batches --learn--> DdlLog --said(after)--> KnownDdl --> the other's DdlLog --agrees--> yes | no

A processor knows by itself which tables the feed wants of a key range. If it lacked a DDL that its owner
knows, its reports would cover rows that it has never looked for. Therefore it says what it knows, and the
owner compares that with what it knows itself up to the same ts.
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
    """All that is known of the DDL finished in (after, upto]."""

    after: Timestamp
    upto: Timestamp
    digest: int
    """A CRC over what each of these DDL brings and takes away."""


NOTHING = KnownDdl(0, 0, 0)
"""Where nothing is open."""


class DdlLog:
    """The DDL that was learned since a ts. Pure."""

    def __init__(self, after: Timestamp) -> None:
        self._after = self._upto = after
        self._sums: deque[tuple[Timestamp, int]] = deque()

    def learn(self, batches: Iterable[DdlBatch], upto: Timestamp) -> None:
        """DDL in order; all of it up to `upto` is known now."""
        self._sums.extend((batch.finished_ts, _sum(batch)) for batch in batches)
        self._upto = max(self._upto, upto)

    def forget(self, upto: Timestamp) -> None:
        """Nothing at or below is compared any more."""
        self._after = max(self._after, min(upto, self._upto))
        while self._sums and self._sums[0][0] <= self._after:
            self._sums.popleft()

    @property
    def said(self) -> KnownDdl:
        """What the other one is told."""
        return KnownDdl(self._after, self._upto, self._digest(self._after, self._upto))

    def has_forgotten(self, other: KnownDdl) -> bool:
        """Whether it comes too late to be compared; or says nothing."""
        return other.after < self._after

    def is_behind(self, other: KnownDdl) -> bool:
        """Whether more has to be learned here before it can be compared."""
        return other.upto > self._upto

    def agrees(self, other: KnownDdl) -> bool:
        """Whether the same is known here."""
        assert not self.has_forgotten(other)
        assert not self.is_behind(other)
        return other.digest == self._digest(other.after, other.upto)

    def _digest(self, after: Timestamp, upto: Timestamp) -> int:
        digest = 0
        for ts, each in self._sums:
            if after < ts <= upto:
                digest = zlib.crc32(each.to_bytes(4, "little"), digest)
        return digest


def _sum(batch: DdlBatch) -> int:
    added = sorted((task.id, task.wanted) for task in batch.added)
    tables = sorted(batch.removed_tables)
    said = (batch.finished_ts, [e.query for e in batch.events], added, sorted(batch.removed), tables)
    return zlib.crc32(repr(said).encode())
