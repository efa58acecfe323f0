"""Delta tables that stay open between writes, so that a table's log is not read again for each call.

An open table is used again only while it is the newest state at its path: the file of its last commit is the
same that was seen then (inode, size, time), and no further commit follows. Otherwise the table is opened
again. So the next call sees a commit of another process, or another table at the same path, as if no table
had been kept open. Two calls of stat replace listing and reading a log.

In an object store these two calls would be two requests, and a writer that owns the target (`begin_owned`)
skips them. It finds a commit of another process when it commits itself, because its own commit must be the
next one. `checked` looks for such a commit earlier, with one listing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidegate.errors import Fatal
from tidegate.sink.lakehouse.delta_log import LOG_FILE
from tidegate.sink.lakehouse.store import Store, said, translated

OPEN_MAX: Final = 2_000
"""How many tables stay open; beyond that, the least recently used one is closed. One takes about 10 to 100
KB, and more if it has thousands of data files."""


class OpenTables:
    """The open tables below one root. Safe for threads that use different tables."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owned = False
        self._open: OrderedDict[str, tuple[DeltaTable, int, Hashable]] = OrderedDict()
        self._lock = threading.Lock()

    def begin_owned(self, path: str, table: DeltaTable) -> None:
        """From here on this process is the only writer. Keep `table`, just written, and close all others."""
        with self._lock:
            self._open.clear()
            self._owned = True
        self.keep(path, table)

    def newest(self, path: str) -> DeltaTable:
        """The table at its newest version. Raises the errors of delta-rs."""
        return self.held(path) or self._opened(path)

    def at(self, path: str, version: int | None = None) -> DeltaTable:
        """The table at a version; None: at its newest. Raises the errors of delta-rs."""
        if version is None:
            return self.newest(path)
        held = self.held(path)
        if held is not None and held.version() == version:
            return held
        return DeltaTable(self._store.uri(path), version=version, storage_options=self._store.options)

    def held(self, path: str) -> DeltaTable | None:
        """The open table if it is still the newest state, otherwise None."""
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                self._open.move_to_end(path)
        if entry is None:
            return None
        table, version, stamp = entry
        # Without a takeover other processes may write. Then the open table is compared with the log: its
        # commit must be the same file, and the last one.
        if not self._owned and (self._stamp(path, version) != stamp or self._follows(path, version)):
            self.drop(path)
            return None
        return table

    def checked(self, path: str) -> DeltaTable:
        """The newest state, also for a writer that owns the target: looks whether the log has later commits.

        The table that was kept stays open. A successor's cleanup may have deleted old files of the log, also
        the commit right after ours, so any later file of the log counts as a later commit.
        """
        held = self.held(path)
        if held is not None and not self._continues(path, int(held.version())):
            return held
        return self._load(path)

    def keep(self, path: str, table: DeltaTable) -> DeltaTable:
        """Keep a table open that was just opened or written."""
        version = int(table.version())
        stamp = "owned" if self._owned else self._stamp(path, version)
        if stamp is None:  # its commit is only in a checkpoint, so it could not be recognized later
            self.drop(path)
            return table
        with self._lock:
            self._open[path] = (table, version, stamp)
            self._open.move_to_end(path)
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        return table

    def drop(self, path: str) -> None:
        """Close a table: it is about to be written, or was removed."""
        with self._lock:
            self._open.pop(path, None)

    def _opened(self, path: str) -> DeltaTable:
        return self.keep(path, self._load(path))

    def _load(self, path: str) -> DeltaTable:
        return DeltaTable(self._store.uri(path), storage_options=self._store.options)

    def _stamp(self, path: str, version: int) -> Hashable | None:
        return self._store.stamp(_commit(path, version))

    def _follows(self, path: str, version: int) -> bool:
        return self._store.stamp(_commit(path, version + 1)) is not None

    def _continues(self, path: str, version: int) -> bool:
        names = self._store.names(f"{path}/_delta_log", after=f"{version + 1:020d}")
        return any(LOG_FILE.fullmatch(name) for name in names)


@contextmanager
def reading(store: Store, path: str, version: int | None = None) -> Iterator[None]:
    """Raise Fatal if delta-rs cannot open a table that must exist."""
    try:
        with translated(store, path):
            yield
    except TableNotFoundError as error:
        raise Fatal(
            "a Delta table that a snapshot needs is gone",
            where=store.uri(path),
            why=said(error),
            fix="restore the directory, or start a new target",
        ) from error
    except DeltaError as error:
        at = "" if version is None else f" at version {version}"
        raise Fatal(
            "a Delta table cannot be read",
            where=f"{store.uri(path)}{at}",
            why=said(error),
            fix="check the directory; a snapshot older than the retention can no longer be read",
        ) from error


def _commit(path: str, version: int) -> str:
    return f"{path}/_delta_log/{version:020d}.json"
