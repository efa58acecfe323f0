"""Removes files that no manifest names, and manifests that merged ones describe; changes only by retention.

A process that died has left data files of a commit that it did not make. A file's name has the number of its
commit and the word of the process that wrote it, so a file belongs to the log if that process has made the
commit of that number. The writer checks all folders once, for the commits since the last such check, which
the state in the manifest names (`State.clean`). It never removes a file of its own.

A writer that was replaced may be in the middle of such a check. So it lists a folder first, makes sure that
it is still the writer, and only then removes: all that it has listed is older than its successor. Conversely,
a file that a replaced writer finishes after its successor's check stays. No manifest names it.

Retention (`Upkeep.keep_changes_hours`) removes the changes of commits that are older than the newest one by
more than these hours, by their ts:

    plan     which commits are old enough (`removed`); the next commit's manifest says so (`State.removed`)
    remove   a grace later the data files of these commits, by the commits in their names, then manifests

A death between these steps leaves files that no reader looks for. The next process removes them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Final

from tidegate.consumer.lakehouse.thinning import HOUR_MS
from tidegate.consumer.lakehouse.upkeep import GRACE_S, Upkeep
from tidegate.consumer.parquet.manifests import ManifestChain
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.sink.lakehouse.store import Store

DATA_FILE: Final = re.compile(r"(\d{20})-([0-9a-f]{12})-\d+\.(parquet|new)")
"""Commit, beginning of the writer's word, number within the commit. `new`: it was never completed."""
WORD: Final = 12
"""Characters of a writer's word in a file's name."""


def data_file(commit: int, word: str, number: int) -> str:
    """The name of a data file."""
    return f"{commit:020d}-{word[:WORD]}-{number}.parquet"


def _commit_in(name: str) -> float:
    """The commit in the name of a data file; infinity for any other name."""
    found = DATA_FILE.fullmatch(name)
    return int(found[1]) if found is not None else math.inf


class LogUpkeep:
    """The upkeep of one log, by the process that writes it."""

    def __init__(self, store: Store, chain: ManifestChain, upkeep: Upkeep) -> None:
        self._store, self._chain, self._upkeep = store, chain, upkeep
        self._word = ""
        self._since = self._upto = 0
        self.clean = 0
        """For the state of the next manifest: see `State.clean`."""
        self.removed = 0
        """Likewise `State.removed`."""
        self._next_ts = 0
        """The ts of the first commit that stays; 0: not looked yet."""
        self._announced: list[tuple[float, int]] = []
        """When this process has first seen a value of `removed` in a manifest, by the monotonic clock."""
        self._gone = 0
        """The commit up to which this process has removed all files."""

    def begin(self) -> None:
        """Note what is to be checked. Call it when this process has taken the log over."""
        newest = self._chain.newest
        assert newest is not None
        self._word = newest.state.writer.word[:WORD]
        self._since, self._upto = newest.state.clean, newest.number
        self.clean = newest.state.clean
        self.removed, self._next_ts, self._gone = newest.state.removed, 0, 0
        self._announced.clear()

    def round(self, folders: Callable[[], list[str]]) -> Iterator[int]:
        """One round, in short pieces; yields how many files each piece has removed.

        `folders`: lists those of all tables.
        """
        if self.clean < self._upto:
            words = {one.number: one.word[:WORD] for one in self._chain.commits(self._since)}
            yield 0
            for folder in folders():
                yield self._remove(folder, words)
            # Only after all folders: a check that was cut off is made again.
            self.clean = self._upto
        for _ in self._chain.merge():
            yield 0
        grace = min(GRACE_S, self._upkeep.retention_hours * 3600)
        yield self._chain.thin(time.time() - grace)
        # Also without the option: an earlier run may have had it, and died before it removed the files.
        self._plan()
        yield 0
        yield from self._shorten(folders, grace)

    def _plan(self) -> None:
        """Find the commits that are old enough to be removed."""
        hours, newest = self._upkeep.keep_changes_hours, self._chain.newest
        assert newest is not None
        if hours is None:
            return
        before = newest.commit.ts - (int(hours * HOUR_MS) << LOGICAL_BITS)
        # No further commit is old enough, so no manifest needs to be read.
        if before <= self._next_ts:
            return
        for commit in self._chain.commits(self.removed):
            # The newest one stays in any case: only its manifest has the state.
            if commit.ts >= before or commit.number == newest.number:
                self._next_ts = commit.ts
                return
            self.removed = commit.number

    def _shorten(self, folders: Callable[[], list[str]], grace: float) -> Iterator[int]:
        """Remove the files of commits whose removal a manifest has announced `grace` seconds ago."""
        # The value that readers find in the manifest, not the planned one: the grace begins when it is
        # durable.
        now, announced = time.monotonic(), self._chain.removed
        if announced and (not self._announced or self._announced[-1][1] < announced):
            self._announced.append((now, announced))
        upto = max((number for since, number in self._announced if since + grace <= now), default=0)
        if upto <= self._gone:
            return
        for folder in folders():
            names = [name for name in self._store.names(folder) if _commit_in(name) <= upto]
            if names:
                self._chain.check_writer()
                self._store.delete([f"{folder}/{name}" for name in names])
            yield len(names)
        # The manifests last: until then a restart finds in them which files there were.
        self._chain.check_writer()
        yield self._chain.forget(upto)
        self._gone = upto
        self._announced = [one for one in self._announced if one[1] > upto]

    def _remove(self, folder: str, words: dict[int, str]) -> int:
        after = f"{self._since:020d}-~"
        names = [name for name in self._store.names(folder, after) if self._is_left(name, words)]
        if names:
            self._chain.check_writer()
            self._store.delete([f"{folder}/{name}" for name in names])
        return len(names)

    def _is_left(self, name: str, words: dict[int, str]) -> bool:
        """Whether a name is that of a file which a process before this one has left."""
        found = DATA_FILE.fullmatch(name)
        if found is None or found[2] == self._word:
            return False
        # Retention removes these files, later: a reader may just have opened the log.
        if int(found[1]) <= self._chain.removed:
            return False
        # A number above those that were there at the takeover can only be one that an earlier process wanted.
        return found[3] == "new" or int(found[1]) > self._upto or words.get(int(found[1])) != found[2]
