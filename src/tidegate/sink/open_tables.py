"""Delta tables that stay open between writes: the log of a table is read once, not once a call.

An open table is used again only while it is the newest state of what is at its path: the commit it stands
at is the very file that was seen then (inode, size, time), and no further commit follows. Otherwise it is
opened again. So somebody else's commit, or another table that was put in its place, is seen at the
next call, as if nothing had been kept. Two calls of stat take the place of listing and reading a log.

In an object store these are two requests, and a writer that owns the target (`begin_owned`) does without
them. A commit of somebody else is found when the writer commits: its own must be the next. `checked` looks
for one before that, with one listing.
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
from tidegate.sink.delta_log import LOG_FILE
from tidegate.sink.store import Store, said, translated

OPEN_MAX: Final = 2_000
"""How many tables stay open; then the one that was used longest ago is closed. One takes about 10 to 100 KB,
and more where it has thousands of data files."""


class OpenTables:
    """Those below one root. Safe for threads that use different tables."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owned = False
        self._open: OrderedDict[str, tuple[DeltaTable, int, Hashable]] = OrderedDict()
        self._lock = threading.Lock()

    def begin_owned(self, path: str, table: DeltaTable) -> None:
        """This process is the only writer from here on. `table` was just written; all others are closed."""
        with self._lock:
            self._open.clear()
            self._owned = True
        self.keep(path, table)

    def newest(self, path: str) -> DeltaTable:
        """The table at its newest version; raises what delta-rs raises."""
        return self.held(path) or self._opened(path)

    def at(self, path: str, version: int | None = None) -> DeltaTable:
        """The table at a version; None: at its newest. Raises what delta-rs raises."""
        if version is None:
            return self.newest(path)
        held = self.held(path)
        if held is not None and held.version() == version:
            return held
        return DeltaTable(self._store.uri(path), version=version, storage_options=self._store.options)

    def held(self, path: str) -> DeltaTable | None:
        """The open table when it is still the newest state, else None."""
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                self._open.move_to_end(path)
        if entry is None:
            return None
        table, version, stamp = entry
        if not self._owned and (self._stamp(path, version) != stamp or self._follows(path, version)):
            self.drop(path)
            return None
        return table

    def checked(self, path: str) -> DeltaTable:
        """The newest state for an owner too: asks if the log goes on. Keeps what is kept.

        A successor's upkeep trims the log, also the commit right behind ours. So any later file of it counts.
        """
        held = self.held(path)
        if held is not None and not self._goes_on(path, int(held.version())):
            return held
        return self._load(path)

    def keep(self, path: str, table: DeltaTable) -> DeltaTable:
        """Keep a table open that was just opened or written."""
        version = int(table.version())
        stamp = "owned" if self._owned else self._stamp(path, version)
        if stamp is None:  # its commit is in a checkpoint only: nothing to recognize it by
            self.drop(path)
            return table
        with self._lock:
            self._open[path] = (table, version, stamp)
            self._open.move_to_end(path)
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        return table

    def drop(self, path: str) -> None:
        """Close a table: it is about to be written, or is gone."""
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

    def _goes_on(self, path: str, version: int) -> bool:
        names = self._store.names(f"{path}/_delta_log", after=f"{version + 1:020d}")
        return any(LOG_FILE.fullmatch(name) for name in names)


@contextmanager
def reading(store: Store, path: str, version: int | None = None) -> Iterator[None]:
    """Raise Fatal where delta-rs cannot open a table that has to be there."""
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
