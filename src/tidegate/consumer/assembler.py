"""What has been read and not yet applied: rows wait here until their partition is resolved. Pure.

Rows themselves lie in staging files; the assembler holds their descriptors (`Segment`: one table's rows of
one fetch of one partition) and cuts out of them what lies in (applied, bound] of each partition. A row
is a duplicate, and never handed out, when its commit_ts is not above what its partition has applied: after
Resolved R a partition brings no *new* row <= R. (TiCDC's filter "largest ts per table" loses rows once a
table has several writers; this one does not.) Duplicates above the applied ts meet in one batch and are
settled there by `net_effect`, by key and commit_ts.

Bounds: descriptors only, a few hundred bytes per segment; `rows` says how many rows wait on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.codec.base import WireColumn

STEP_BYTES: Final = 128 << 20
"""About how many bytes of staged rows one step takes; settled and rendered they are several times that."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one table and column set from one fetch of one partition, in a staging file."""

    partition: int
    schema: str
    table: str
    columns: tuple[WireColumn, ...]
    file: str
    start: int
    """Byte offset of its Arrow IPC stream in `file`."""
    length: int
    rows: int
    min_ts: int
    max_ts: int
    first_offset: int
    """Kafka offset of its first row: where to restart from when it is lost."""
    commit_ts: int = 0
    """The newest that the rows say, where offsets + 1 stand for commit ts (`offset_flow`); 0: they do not."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a segment with after < commit_ts <= upto."""

    segment: Segment
    after: int
    upto: int


class Assembler:
    """Segments per partition, and how far each partition is applied."""

    def __init__(self, applied: Mapping[int, int]) -> None:
        """`applied` names every partition with the commit_ts up to which the target already holds it."""
        self._applied = dict(applied)
        self._segments: dict[int, list[Segment]] = {partition: [] for partition in applied}

    def join(self, partition: int) -> None:
        """A partition that was not there before; nothing of it is applied."""
        self._applied[partition], self._segments[partition] = 0, []

    def leave(self, partition: int) -> None:
        """A partition that is not read any more; nothing of it was read."""
        assert not self._segments[partition]
        del self._applied[partition], self._segments[partition]

    @property
    def rows(self) -> int:
        """Rows waiting, duplicates included."""
        return sum(segment.rows for held in self._segments.values() for segment in held)

    @property
    def bytes(self) -> int:
        """The size of the same on disk."""
        return sum(segment.length for held in self._segments.values() for segment in held)

    def add(self, segments: Iterable[Segment]) -> None:
        """Take newly staged segments; those that hold only applied rows are dropped at once."""
        for segment in segments:
            if segment.max_ts > self._applied[segment.partition]:
                self._segments[segment.partition].append(segment)

    def pending(self, bounds: Mapping[int, int]) -> int:
        """About how many rows (an upper bound) lie within the bounds."""
        return sum(piece.segment.rows for piece in self._pieces(bounds))

    def cut(self, upto: int, max_rows: int, max_bytes: int = STEP_BYTES) -> int:
        """The largest ts <= upto within which about as much waits; makes progress, never splits a ts."""
        edges = sorted(
            (min(segment.max_ts, upto), segment.rows, segment.length)
            for held in self._segments.values()
            for segment in held
            if segment.min_ts <= upto and segment.max_ts > self._applied[segment.partition]
        )
        taken = size = 0
        for ts, rows, length in edges:
            taken, size = taken + rows, size + length
            if taken >= max_rows or size >= max_bytes:
                return ts
        return upto

    def cut_each(
        self, bounds: Mapping[int, int], max_rows: int, max_bytes: int = STEP_BYTES
    ) -> dict[int, int]:
        """The bounds, lowered so that about as much lies within; for bounds that mean nothing to one another.

        Each partition gets an equal share, of at least one segment.
        """
        held = {number: list(self.waiting(number)) for number in bounds}
        busy = max(1, sum(1 for number, waiting in held.items() if waiting and self._moves(number, bounds)))
        cut = dict(bounds)
        for number, waiting in held.items():
            taken = size = 0
            for segment in waiting:
                taken, size = taken + segment.rows, size + segment.length
                if segment.max_ts >= cut[number]:
                    break
                if taken * busy >= max_rows or size * busy >= max_bytes:
                    cut[number] = segment.max_ts
                    break
        return cut

    def _moves(self, number: int, bounds: Mapping[int, int]) -> bool:
        return bounds[number] > self._applied[number]

    def waiting(self, number: int) -> Iterable[Segment]:
        """The segments of a partition with rows that are not handed out, in the order of their last ones."""
        floor = self._applied[number]
        held = (segment for segment in self._segments[number] if segment.max_ts > floor)
        return sorted(held, key=lambda segment: segment.max_ts)

    def take(self, bounds: Mapping[int, int]) -> dict[tuple[str, str], list[Piece]]:
        """Rows within the bounds by (schema, table), and move the applied ts there."""
        found: dict[tuple[str, str], list[Piece]] = {}
        for piece in self._pieces(bounds):
            found.setdefault((piece.segment.schema, piece.segment.table), []).append(piece)
        for partition, upto in bounds.items():
            self._applied[partition] = max(self._applied[partition], upto)
        return found

    def release(self) -> set[str]:
        """Forget segments that are wholly applied; returns the staging files nobody needs any more."""
        before = {segment.file for held in self._segments.values() for segment in held}
        for partition, held in self._segments.items():
            floor = self._applied[partition]
            self._segments[partition] = [segment for segment in held if segment.max_ts > floor]
        return before - {segment.file for held in self._segments.values() for segment in held}

    def applied(self, partition: int) -> int:
        """The commit_ts up to which a partition's rows have been handed out."""
        return self._applied[partition]

    @property
    def aligned(self) -> int | None:
        """The common applied ts when all partitions stand at the same one: then the target is consistent."""
        distinct = set(self._applied.values())
        return distinct.pop() if len(distinct) == 1 else None

    def restart_offset(self, partition: int, next_offset: int) -> int:
        """Where reading must restart so that no row that waits is lost; `next_offset` when none waits."""
        floor = self._applied[partition]
        waiting = [segment.first_offset for segment in self._segments[partition] if segment.max_ts > floor]
        return min([next_offset, *waiting])

    def _pieces(self, bounds: Mapping[int, int]) -> Iterable[Piece]:
        for partition, upto in bounds.items():
            floor = self._applied[partition]
            for segment in self._segments[partition]:
                if segment.max_ts > floor and floor < upto and segment.min_ts <= upto:
                    yield Piece(segment, floor, upto)
