"""Rows that have been read and not yet applied. They wait here until their partition is resolved. Pure.

The rows themselves are in staging files. The assembler holds their descriptors (`StagedRun`: one table's rows
of one fetch of one partition) and cuts out the rows in (applied, bound] of each partition. A row is a
duplicate, and never handed out, when its commit_ts is not above the ts up to which its partition is applied:
after Resolved R a partition brings no *new* row <= R. (TiCDC's filter "largest ts per table" loses rows once
a table has several writers; this one does not.) Duplicates above the applied ts are handed out in one batch,
where `net_effect` drops them by key and commit_ts.

Bounds: only descriptors are in memory, a few hundred bytes each; `rows` says how many rows wait on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.codec.base import WireColumn

STEP_BYTES: Final = 128 << 20
"""About how many bytes of staged rows one step takes. Computing their net effect needs several times that."""


@dataclass(frozen=True, slots=True)
class StagedRun:
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
    """Kafka offset of its first row: reading restarts there if the staging file is lost."""
    commit_ts: int = 0
    """The newest commit ts of the rows if `min_ts` and `max_ts` are offsets + 1 (`offset_flow`); else 0."""


@dataclass(frozen=True, slots=True)
class StagedPiece:
    """The part of a segment with after < commit_ts <= upto."""

    segment: StagedRun
    after: int
    upto: int


class Assembler:
    """Segments per partition, and how far each partition is applied."""

    def __init__(self, applied: Mapping[int, int]) -> None:
        """`applied` names every partition with the commit_ts up to which the target already holds it."""
        self._applied = dict(applied)
        self._segments: dict[int, list[StagedRun]] = {partition: [] for partition in applied}

    def join(self, partition: int) -> None:
        """Add a new partition, of which nothing is applied yet."""
        self._applied[partition], self._segments[partition] = 0, []

    def leave(self, partition: int) -> None:
        """Remove a partition that is not read any more. None of its rows may be waiting."""
        assert not self._segments[partition]
        del self._applied[partition], self._segments[partition]

    @property
    def rows(self) -> int:
        """Rows waiting, duplicates included."""
        return sum(segment.rows for held in self._segments.values() for segment in held)

    @property
    def bytes(self) -> int:
        """Bytes of the waiting rows in staging files."""
        return sum(segment.length for held in self._segments.values() for segment in held)

    def add(self, segments: Iterable[StagedRun]) -> None:
        """Take newly staged segments; those that hold only applied rows are discarded at once."""
        for segment in segments:
            # A segment below it has only rows that the target holds, which a producer or a restart has
            # repeated.
            if segment.max_ts > self._applied[segment.partition]:
                self._segments[segment.partition].append(segment)

    def pending(self, bounds: Mapping[int, int]) -> int:
        """About how many rows are within the bounds (an upper bound)."""
        return sum(piece.segment.rows for piece in self._pieces(bounds))

    def cut(self, bounds: Mapping[int, int], max_rows: int, max_bytes: int = STEP_BYTES) -> int:
        """The largest ts with about `max_rows` or `max_bytes` waiting up to it, within the bounds.

        `bounds`: of the partitions that may move. The ts is above what one of them has applied, so each call
        makes progress, and rows of one ts stay together.
        """
        edges = sorted(
            (min(segment.max_ts, upto), segment.rows, segment.length)
            for partition, upto in bounds.items()
            for segment in self._segments[partition]
            if segment.min_ts <= upto and segment.max_ts > self._applied[partition]
        )
        # By last ts, so that a cut at the end of one segment takes whole those that end before it.
        taken = size = 0
        for ts, rows, length in edges:
            taken, size = taken + rows, size + length
            # At the end of a segment, not inside: `edges` says nothing of the rows within.
            if taken >= max_rows or size >= max_bytes:
                return ts
        return max(bounds.values())

    def cut_each(
        self, bounds: Mapping[int, int], max_rows: int, max_bytes: int = STEP_BYTES
    ) -> dict[int, int]:
        """The bounds, lowered so that about `max_rows` or `max_bytes` are within them.

        For topics read by offset, where the bounds of two partitions cannot be compared. Each partition gets
        an equal share, and at least one segment.
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

    def waiting(self, number: int) -> Iterable[StagedRun]:
        """The segments of a partition with rows that are not handed out yet, by their last ts."""
        floor = self._applied[number]
        held = (segment for segment in self._segments[number] if segment.max_ts > floor)
        return sorted(held, key=lambda segment: segment.max_ts)

    def take(self, bounds: Mapping[int, int]) -> dict[tuple[str, str], list[StagedPiece]]:
        """Hand out the rows within the bounds by (schema, table), and raise the applied ts to the bounds."""
        # The applied ts rises before the target has written. That is safe because it is only in memory: if
        # the write fails, the run ends, and the next one begins at the position that the target has stored.
        found: dict[tuple[str, str], list[StagedPiece]] = {}
        for piece in self._pieces(bounds):
            found.setdefault((piece.segment.schema, piece.segment.table), []).append(piece)
        for partition, upto in bounds.items():
            # Also for partitions without rows: to be resolved up to a ts is progress.
            self._applied[partition] = max(self._applied[partition], upto)
        return found

    def release(self) -> set[str]:
        """Forget segments that are wholly applied. Returns the staging files that can be removed."""
        # A file has segments of several partitions, so it goes only when none of them is left.
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
        """The applied ts when it is the same in all partitions: then the target is consistent. Else None."""
        distinct = set(self._applied.values())
        return distinct.pop() if len(distinct) == 1 else None

    @property
    def lowest(self) -> int:
        """The ts up to which the rows of all partitions have been handed out."""
        return min(self._applied.values())

    def restart_offset(self, partition: int, next_offset: int) -> int:
        """Where reading must restart so that no waiting row is lost; `next_offset` when none waits."""
        # The staging files do not survive a restart, so the rows that wait in them must be read again.
        floor = self._applied[partition]
        waiting = [segment.first_offset for segment in self._segments[partition] if segment.max_ts > floor]
        return min([next_offset, *waiting])

    def _pieces(self, bounds: Mapping[int, int]) -> Iterable[StagedPiece]:
        for partition, upto in bounds.items():
            floor = self._applied[partition]
            for segment in self._segments[partition]:
                if segment.max_ts > floor and floor < upto and segment.min_ts <= upto:
                    yield StagedPiece(segment, floor, upto)
