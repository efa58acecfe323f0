"""Deleting the files of a slot that no needed version has: data files, and the part of the log.

Nothing here writes to a Delta table, so that its versions do not move. Files go one by one, and each of
them is needed by nothing: a kill at any step leaves more than is needed, never less. The work comes in
pieces (the functions are generators), and between two pieces the table may be written: versions after the
needed ones are never touched. `delta_log` decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tidegate.sink.delta_log import FileHistory, actions_of, checkpoints, needless
from tidegate.sink.store import Store

COMMITS_A_PIECE: Final = 100
FILES_A_PIECE: Final = 200


class SlotFiles:
    """Those of one slot. It remembers what it has read of the log: the next round reads on from there."""

    def __init__(
        self, store: Store, folder: str, files_at: Callable[[int], list[str]], check: Callable[[], object]
    ) -> None:
        """`files_at`: the data files of a version; `check` raises unless the slot is ours to delete in."""
        self._store, self._folder, self._log = store, folder, f"{folder}/_delta_log"
        self._files_at, self._check = files_at, check
        self._history = FileHistory()
        self._swept = False
        """Whether files were looked for that no commit names."""
        self.left = False
        """Whether the last round has left files that only have to grow older."""

    def clean(self, needed: Sequence[int], data_before: float, log_before: float) -> Iterator[int]:
        """Delete what neither `needed` (ascending) nor any later version has; how many files, by pieces.

        Only what went before `data_before`, and files of the log that are older than `log_before`.
        """
        self._check()
        self.left = False
        yield from self._read(needed[0])
        names, self.left = self._history.unneeded(needed, data_before)
        here = set(self._store.names(self._folder))  # an earlier process may have deleted them
        self._history.forget(name for name in names if name not in here)
        yield from self._delete_data([name for name in names if name in here], needed[0])
        if not self._swept:
            self._catch_up(needed[0])
            yield from self._delete_data(self._strays(needed[0], data_before), needed[0])
        yield from self._delete(self._log, self._old_log(needed, log_before))

    def _old_log(self, needed: Sequence[int], before: float) -> list[str]:
        names = needless(self._store.names(self._log), needed)
        if not names:
            return []
        times = self._store.files(self._log)
        old = [name for name in names if times.get(name, before) <= before]
        self.left = self.left or len(old) < len(names)
        return sorted(old)

    def _read(self, oldest: int) -> Iterator[int]:
        """Take in the log from where the last round ended, at first from `oldest` on."""
        history = self._history
        if history.version < 0:
            self._begin(oldest, self._store.files(self._log))
        while True:
            for _ in range(COMMITS_A_PIECE):
                found = self._store.read(f"{self._log}/{history.version + 1:020d}.json")
                if found is None:
                    break
                history.commit(history.version + 1, actions_of(found[0]), found[1])
            else:
                yield 0
                continue
            behind = [at for at in checkpoints(self._store.names(self._log)) if at > history.version]
            if not behind:
                return
            self._begin(behind[0], self._store.files(self._log))

    def _begin(self, version: int, times: Mapping[str, float]) -> None:
        self._history.begin(version, self._files_at(version), _time_of(version, times))

    def _strays(self, oldest: int, before: float) -> list[str]:
        """Files of no version from `oldest` on: of older ones, or of writes that were killed."""
        if _time_of(oldest, self._store.files(self._log)) > before:
            self.left = True  # somebody may still read the version before
            return []
        times = {
            name: changed
            for name, changed in self._store.files(self._folder).items()
            if name.endswith(".parquet") and not self._history.knows(name)
        }
        found = [name for name, changed in times.items() if changed <= before]
        self._swept = len(found) == len(times)
        self.left = self.left or not self._swept
        return found

    def _catch_up(self, oldest: int) -> None:
        """Read the log to its end, at once."""
        for _ in self._read(oldest):
            pass

    def _delete_data(self, names: Sequence[str], oldest: int) -> Iterator[int]:
        """Delete data files, but for those that have come back meanwhile.

        A rename between two pieces links files of another slot, old as they are, and under their old names.
        """
        for at in range(0, len(names), FILES_A_PIECE):
            self._catch_up(oldest)
            piece = [name for name in names[at : at + FILES_A_PIECE] if not self._history.has(name)]
            yield from self._delete(self._folder, piece)
            self._history.forget(piece)

    def _delete(self, folder: str, names: Sequence[str]) -> Iterator[int]:
        for at in range(0, len(names), FILES_A_PIECE):
            self._check()
            piece = names[at : at + FILES_A_PIECE]
            self._store.delete([f"{folder}/{name}" for name in piece])
            yield len(piece)


def _time_of(version: int, times: Mapping[str, float]) -> float:
    """When a version was committed, or later; Unix time in seconds. `times`: of the log's files.

    Now, if there are none: then nothing is old enough to be deleted.
    """
    names = (f"{version:020d}.{end}" for end in ("json", "checkpoint.parquet"))
    return min(
        (times[name] for name in names if name in times), default=max(times.values(), default=time.time())
    )
