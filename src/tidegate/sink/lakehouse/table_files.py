"""Deletes files of a table that no needed version has: data files, deletion vectors, and files of its log.

Nothing here writes to a Delta table, so its version does not change. Every file that is deleted is needed by
nothing, whatever the order, so a kill at any step leaves too many files, never too few. The work is done in
pieces (the functions are generators). The table may be written between two pieces, because versions after the
needed ones are never touched. `delta_log` decides which files are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tidegate.sink.lakehouse.delta_log import FileHistory, actions_of, checkpoints, needless, vectors_of
from tidegate.sink.lakehouse.store import Store

COMMITS_A_PIECE: Final = 100
FILES_A_PIECE: Final = 200
_OURS: Final = (".parquet", ".bin", ".new")
"""How the names of data files, of files of deletion vectors, and of files that were not written whole end."""


class TableFiles:
    """The files of one table. It remembers how far it has read the log, and continues there."""

    def __init__(
        self,
        store: Store,
        folder: str,
        files_at: Callable[[int], tuple[list[str], list[tuple[str, str]]]],
        check: Callable[[], object],
    ) -> None:
        """`files_at`: the data files of a version, and its files of deletion vectors, each with a data file
        that needs it. `check` raises unless we may delete the table's files.
        """
        self._store, self._folder, self._log = store, folder, f"{folder}/_delta_log"
        self._files_at, self._check = files_at, check
        self._history = FileHistory()
        self._swept = False
        """Whether files that no commit names were looked for."""
        self.left = False
        """Whether the last round has left files that are only too young to be deleted."""

    def clean(self, needed: Sequence[int], data_before: float, log_before: float) -> Iterator[int]:
        """Delete files that neither `needed` (ascending) nor any later version has; yields counts of files.

        Only data files that were removed before `data_before`, and files of the log older than `log_before`
        (both Unix time in seconds).
        """
        self._check()
        self.left = False
        yield from self._read(needed[0])
        names, self.left = self._history.unneeded(needed, data_before)
        here = set(self._store.files_below(self._folder))  # an earlier process may have deleted them
        self._history.forget(name for name in names if name not in here)
        yield from self._delete_data([name for name in names if name in here], needed[0])
        if not self._swept:
            # A file may have been committed since `_read`. It must be known before files without a commit
            # are looked for.
            self._catch_up(needed[0])
            yield from self._delete_data(self._unnamed_files(needed[0], data_before), needed[0])
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
        """Read the log from where the last round ended; in the first round, from the version `oldest` on."""
        history = self._history
        if history.version < 0:
            self._begin(oldest, self._store.files(self._log))
        while True:
            for _ in range(COMMITS_A_PIECE):
                found = self._store.read(f"{self._log}/{history.version + 1:020d}.json")
                if found is None:
                    break
                lines, at = found
                history.commit(history.version + 1, actions_of(lines), at, vectors_of(lines))
            else:
                yield 0
                continue
            # There is no next commit: this is the end of the log, or a gap after which a checkpoint
            # continues it.
            behind = [at for at in checkpoints(self._store.names(self._log)) if at > history.version]
            if not behind:
                return
            self._begin(behind[0], self._store.files(self._log))

    def _begin(self, version: int, times: Mapping[str, float]) -> None:
        files, vectors = self._files_at(version)
        self._history.begin(version, files, _time_of(version, times), vectors)

    def _unnamed_files(self, oldest: int, before: float) -> list[str]:
        """Files that no version from `oldest` on has: from older versions, or from killed writes."""
        if _time_of(oldest, self._store.files(self._log)) > before:
            self.left = True  # a reader may still use the version before `oldest`
            return []
        times = {
            name: changed
            for name, changed in self._store.files_below(self._folder).items()
            if name.endswith(_OURS) and not self._history.knows(name)
        }
        found = [name for name, changed in times.items() if changed <= before]
        self._swept = len(found) == len(times)
        self.left = self.left or not self._swept
        return found

    def _catch_up(self, oldest: int) -> None:
        """Read the log to its end, without pauses."""
        for _ in self._read(oldest):
            pass

    def _delete_data(self, names: Sequence[str], oldest: int) -> Iterator[int]:
        """Delete data files, except those that have become part of a version again in the meantime.

        A rename between two pieces may link files of another table here: old files, under their old names.
        """
        for at in range(0, len(names), FILES_A_PIECE):
            self._catch_up(oldest)
            piece = [name for name in names[at : at + FILES_A_PIECE] if not self._history.has(name)]
            yield from self._delete(self._folder, piece)
            self._history.forget(piece)

    def _delete(self, folder: str, names: Sequence[str]) -> Iterator[int]:
        for at in range(0, len(names), FILES_A_PIECE):
            # Before each piece: a process that was replaced must not delete files of its successor.
            self._check()
            piece = names[at : at + FILES_A_PIECE]
            self._store.delete([f"{folder}/{name}" for name in piece])
            yield len(piece)


def _time_of(version: int, times: Mapping[str, float]) -> float:
    """When a version was committed, or later; Unix time in seconds. `times`: the files of the log.

    The newest time if the version has no file there, and now if there are no files: nothing is deleted too
    early then.
    """
    names = (f"{version:020d}.{end}" for end in ("json", "checkpoint.parquet"))
    return min(
        (times[name] for name in names if name in times), default=max(times.values(), default=time.time())
    )
