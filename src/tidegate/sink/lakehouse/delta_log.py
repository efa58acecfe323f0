"""Which files a Delta table still needs if only some of its versions are needed. Pure.

delta-rs reads a version from a checkpoint and the commits after it. So each needed version needs the last
checkpoint at or before it and the commits between the two. Logs may have gaps: a version before a gap is read
from an earlier checkpoint, one after the gap from a later checkpoint. A data file is needed if it is part of
a needed version. It is part of all versions from the commit that adds it up to, but not including, the commit
that removes it. So one pass over the log decides for all versions at once; loading each version would cost
one such pass per version. `tests/sink/test_table_files.py` compares the two ways.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import orjson

from tidegate.sink.lakehouse.deletion_vectors import Vector

LOG_FILE: Final = re.compile(r"(\d{20})\..*")
"""The name of a file of the log that belongs to a version."""

_ALL_LATER: Final = 10**20
"""Higher than any version that fits into the 20 digits of a file name."""


@dataclass(frozen=True, slots=True)
class Life:
    """A data file was part of the versions `since` <= v < `until`."""

    since: int
    until: int
    removed_at: float
    """Unix time in seconds of the commit that removed it, or of a later one."""


class FileHistory:
    """The lives of a table's data files, as far as its log was read. Grows with the files on the disk."""

    def __init__(self) -> None:
        self.version = -1
        """The version up to which the log was read; -1: nothing was read."""
        self._users: dict[str, set[str]] = {}
        """By the file of deletion vectors, the data files whose vector is in it."""
        self._since: dict[str, int] = {}
        self._past: dict[str, list[Life]] = {}

    def begin(
        self, version: int, files: Iterable[str], at: float, vectors: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Set the files of a version that was read from a checkpoint: the first one, or one after a gap.

        `vectors`: files of deletion vectors, each with a data file whose vector is in it. No version inside
        a gap is needed, so it does not matter where in it a file was added or removed.
        """
        self._users = {}
        for vector, name in vectors:
            self._users.setdefault(vector, set()).add(name)
        now = {*files, *self._users}
        for name in self._since.keys() - now:
            self._end(name, version, at)
        for name in now - self._since.keys():
            # It was added somewhere in the gap. A life that begins too early only keeps the file longer.
            self._since[name] = self.version + 1
        self.version = version

    def commit(
        self,
        version: int,
        actions: Sequence[tuple[str, bool]],
        at: float,
        vectors: Sequence[tuple[str, str, bool]] = (),
    ) -> None:
        """Apply the next version. `actions`: file names, with whether they are added, in the log's order.

        `vectors`: the same for deletion vectors, each with its file and the data file that has it.
        """
        assert version == self.version + 1, "a commit was left out"
        # A file that a commit removes and adds again, with another vector, is part of both versions. Its life
        # continues: otherwise each commit would leave one behind.
        again = {name for name, added in actions if added}
        for name, added in actions:
            if not added and name not in again:
                self._end(name, version, at)
        for name in again:
            self._since.setdefault(name, version)
        self._commit_vectors(version, vectors, at)
        self.version = version

    def _commit_vectors(self, version: int, vectors: Sequence[tuple[str, str, bool]], at: float) -> None:
        """A file of vectors is needed as long as a data file has one of them."""
        for vector, name, added in vectors:
            users = self._users.get(vector)
            if not added and users is not None:
                users.discard(name)
        for vector, name, added in vectors:
            if added:
                self._users.setdefault(vector, set()).add(name)
                self._since.setdefault(vector, version)
        for vector in {vector for vector, _, added in vectors if not added}:
            if not self._users.get(vector):
                self._users.pop(vector, None)
                self._end(vector, version, at)

    def _end(self, name: str, version: int, at: float) -> None:
        since = self._since.pop(name, None)
        if since is not None:
            self._past.setdefault(name, []).append(Life(since, version, at))

    def unneeded(self, needed: Sequence[int], before: float) -> tuple[list[str], bool]:
        """Files that may be deleted, and whether more will be deletable only because they grow older.

        A file may be deleted if it is part of none of `needed` (ascending) and of no version after them, and
        was removed at `before` (Unix time in seconds) or earlier.
        """
        found, young = [], False
        for name, lives in self._past.items():
            # docs/guarantees.md#a-named-snapshot-stays-readable
            if name in self._since or any(_holds(life, needed) for life in lives):
                continue
            if all(life.removed_at <= before for life in lives):
                found.append(name)
            else:
                young = True
        return found, young

    def knows(self, name: str) -> bool:
        """Whether a version that was read has, or had, this file."""
        return name in self._since or name in self._past

    def has(self, name: str) -> bool:
        """Whether the newest version that was read has this file."""
        return name in self._since

    def forget(self, names: Iterable[str]) -> None:
        """Forget files that were deleted."""
        for name in names:
            self._past.pop(name, None)


def _holds(life: Life, needed: Sequence[int]) -> bool:
    """Whether a needed version, or one after the last of them, is within this life."""
    at = bisect_left(needed, life.since)
    return life.until > needed[-1] + 1 if at == len(needed) else needed[at] < life.until


def actions_of(commit: bytes) -> list[tuple[str, bool]]:
    """The data files that a commit's lines name, with whether it adds them."""
    found = []
    for line in commit.splitlines():
        if line.startswith((b'{"add"', b'{"remove"')):
            action = orjson.loads(line)
            added = "add" in action
            found.append((unquote(action["add" if added else "remove"]["path"]), added))
    return found


def vectors_of(commit: bytes) -> list[tuple[str, str, bool]]:
    """The deletion vectors that a commit's lines name: the file, the data file, whether it is added."""
    found = []
    for line in commit.splitlines():
        if line.startswith((b'{"add"', b'{"remove"')) and b'"deletionVector":{' in line:
            action = orjson.loads(line)
            added = "add" in action
            held = action["add" if added else "remove"]
            found.append((Vector.from_json(held["deletionVector"]).file, unquote(held["path"]), added))
    return found


def checkpoints(names: Iterable[str]) -> list[int]:
    """The versions for which a log has a checkpoint of a single file, ascending."""
    found = []
    for name in names:
        match = LOG_FILE.fullmatch(name)
        if match is not None and name == f"{match.group(1)}.checkpoint.parquet":
            found.append(int(match.group(1)))
    return sorted(found)


def needless(names: Sequence[str], needed: Sequence[int]) -> list[str]:
    """The files of a log that are not needed to read `needed` (ascending) and the versions after them.

    A version before the first checkpoint is read from the log's beginning. Checkpoints of an unknown form are
    not used as a start here: that keeps more files than necessary, never fewer.
    """
    bases = checkpoints(names)
    spans: list[tuple[int, int]] = []
    for version in needed:
        at = bisect_right(bases, version)
        spans.append((bases[at - 1] if at else 0, version))
    # Versions after the newest needed one are needed as well, so the last span has no end.
    spans[-1] = (spans[-1][0], _ALL_LATER)
    return [
        name
        for name in names
        if (match := LOG_FILE.fullmatch(name)) is not None and not _within(int(match.group(1)), spans)
    ]


def _within(version: int, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether one of the spans, which ascend in both bounds, holds the version."""
    at = bisect_left(spans, version, key=lambda span: span[1])
    return at < len(spans) and spans[at][0] <= version
