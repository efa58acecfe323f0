"""Removes files that no manifest names, and manifests that merged ones describe. It never removes a change.

A process that died has left data files of a commit that it did not make. A file's name has the number of its
commit and the word of the process that wrote it, so a file belongs to the log if that process has made the
commit of that number. The writer checks all folders once, for the commits since the last such check, which
the state in the manifest names (`State.clean`). It never removes a file of its own.

A writer that was replaced may be in the middle of such a check. So it lists a folder first, makes sure that
it is still the writer, and only then removes: all that it has listed is older than its successor. Conversely,
a file that a replaced writer finishes after its successor's check stays. No manifest names it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Final

from tidegate.consumer.lakehouse.upkeep import GRACE_S, Upkeep
from tidegate.consumer.parquet.manifests import ManifestChain
from tidegate.sink.lakehouse.store import Store

DATA_FILE: Final = re.compile(r"(\d{20})-([0-9a-f]{12})-\d+\.(parquet|new)")
"""Commit, beginning of the writer's word, number within the commit. `new`: it was never completed."""
WORD: Final = 12
"""Characters of a writer's word in a file's name."""


def data_file(commit: int, word: str, number: int) -> str:
    """The name of a data file."""
    return f"{commit:020d}-{word[:WORD]}-{number}.parquet"


class LogUpkeep:
    """The upkeep of one log, by the process that writes it."""

    def __init__(self, store: Store, chain: ManifestChain, upkeep: Upkeep) -> None:
        self._store, self._chain, self._upkeep = store, chain, upkeep
        self._word = ""
        self._since = self._upto = 0
        self.clean = 0
        """For the state of the next manifest: see `State.clean`."""

    def begin(self) -> None:
        """Note what is to be checked. Call it when this process has taken the log over."""
        newest = self._chain.newest
        assert newest is not None
        self._word = newest.state.writer.word[:WORD]
        self._since, self._upto = newest.state.clean, newest.number
        self.clean = newest.state.clean

    def round(self, folders: Callable[[], list[str]]) -> Iterator[int]:
        """One round, in short pieces; yields how many files each piece has removed.

        `folders`: lists those of all tables.
        """
        if self.clean < self._upto:
            words = {one.number: one.word[:WORD] for one in self._chain.commits(self._since)}
            yield 0
            for folder in folders():
                yield self._remove(folder, words)
            self.clean = self._upto
        for _ in self._chain.merge():
            yield 0
        grace = min(GRACE_S, self._upkeep.retention_hours * 3600)
        yield self._chain.thin(time.time() - grace)

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
        # A number above those that were there at the takeover can only be one that an earlier process wanted.
        return found[3] == "new" or int(found[1]) > self._upto or words.get(int(found[1])) != found[2]
