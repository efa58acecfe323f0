"""The versions of tables in order of ts, for each physical id: which one is valid at a ts.

    begin, end (a job's FinishedTS) --> at, in_force --> forget: what no later row needs

A part of `schema_store`. It keeps versions until `forget` is called with a later ts. Not thread-safe.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from tidegate.mounter.table_version import TableVersion


class _Timeline:
    """The versions of one physical id in order of ts. None: the id has no table from this ts on."""

    __slots__ = ("starts", "versions")

    def __init__(self, start: int, version: TableVersion | None) -> None:
        self.starts = [start]
        self.versions = [version]

    def at(self, ts: int) -> TableVersion | None:
        found = bisect_right(self.starts, ts)
        return self.versions[found - 1] if found else None

    def append(self, ts: int, version: TableVersion | None) -> bool:
        """Add a version from `ts` on. Returns whether `forget` has something to drop at `ts`."""
        # A job ends a version and begins the next one at one ts: then the new version replaces the None.
        if self.starts[-1] == ts:
            self.versions[-1] = version
            return version is None
        assert self.starts[-1] < ts, "a version is older than the newest one"
        self.starts.append(ts)
        self.versions.append(version)
        return True

    def forget(self, ts: int) -> bool:
        """Drop versions that ended at or before `ts`. Returns whether any version is left."""
        # The version that is valid at `ts` stays, because later rows may need it.
        first = max(bisect_right(self.starts, ts) - 1, 0)
        if self.starts[first] <= ts and self.versions[first] is None:
            first += 1
        del self.starts[:first], self.versions[:first]
        return bool(self.starts)


class Timelines:
    """The timelines of all physical ids."""

    def __init__(self) -> None:
        self._lines: dict[int, _Timeline] = {}
        self._ended: deque[tuple[int, int]] = deque()
        """(ts, physical id) of each version that has ended, in order. Used by `forget`."""

    def __contains__(self, physical_id: object) -> bool:
        """Whether the id has a table, or had one that is not forgotten."""
        return physical_id in self._lines

    # --- changes -------------------------------------------------------------------------------------

    def begin(self, ts: int, version: TableVersion) -> None:
        """Begin a version for all its physical ids; the previous version must have ended."""
        for physical_id in version.physical_ids:
            line = self._lines.get(physical_id)
            if line is None:
                self._lines[physical_id] = _Timeline(ts, version)
            elif line.append(ts, version):
                self._ended.append((ts, physical_id))

    def end(self, ts: int, version: TableVersion) -> set[int]:
        """End a version. Returns the physical ids that belong to no table then."""
        ended = set()
        for physical_id in version.physical_ids:
            line = self._lines[physical_id]
            # Otherwise an earlier change of the same job has given the id to another table.
            if line.versions[-1] is version:
                line.append(ts, None)
                self._ended.append((ts, physical_id))
                ended.add(physical_id)
        return ended

    def forget(self, ts: int) -> None:
        """Drop versions that ended at or before `ts`."""
        while self._ended and self._ended[0][0] <= ts:
            _, physical_id = self._ended.popleft()
            line = self._lines.get(physical_id)
            if line is not None and not line.forget(ts):
                del self._lines[physical_id]

    # --- queries -------------------------------------------------------------------------------------

    def at(self, physical_id: int, ts: int) -> TableVersion | None:
        """The version of a physical id that is valid at `ts`. None if there is none. O(log versions)."""
        line = self._lines.get(physical_id)
        return line.at(ts) if line else None

    def all_at(self, ts: int) -> Iterator[TableVersion]:
        """The versions that are valid at `ts`. That of a partitioned table occurs once a partition."""
        return (version for line in self._lines.values() if (version := line.at(ts)))

    def in_force(self, physical_id: int, after: int, upto: int) -> list[tuple[int, TableVersion | None]]:
        """The versions of a physical id that are valid at some ts of [after, upto], with their start."""
        line = self._lines.get(physical_id)
        if line is None:
            return []
        first = max(bisect_right(line.starts, after) - 1, 0)
        last = bisect_right(line.starts, upto)
        return list(zip(line.starts[first:last], line.versions[first:last], strict=True))

    def versions(self) -> Iterator[TableVersion]:
        """Every version that is kept. A version of a partitioned table occurs once a partition."""
        for line in self._lines.values():
            yield from (version for version in line.versions if version is not None)
