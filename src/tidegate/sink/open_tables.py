"""Delta tables that stay open between writes: the log of a table is read once, not once a call.

An open table is used again only while it is the newest state of what lies at its path: the commit it stands
at is the very file that was seen then (inode, size, time), and no further commit follows. Otherwise it is
opened from the disk. So somebody else's commit, or another table that was put in its place, is seen at the
next call, as if nothing had been kept. Two calls of stat take the place of listing and reading a log.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

OPEN_MAX: Final = 2_000
"""How many tables stay open; then the one that was used longest ago is closed. One takes about 10 to 100 KB,
and more where it has thousands of data files."""

Stamp = tuple[int, int, int]


class OpenTables:
    """Those below one root. Safe for threads that use different tables."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: OrderedDict[str, tuple[DeltaTable, int, Stamp]] = OrderedDict()
        self._lock = threading.Lock()

    def newest(self, path: str) -> DeltaTable:
        """The table at its newest version; raises what delta-rs raises."""
        return self.held(path) or self.keep(path, DeltaTable(str(self._root / path)))

    def held(self, path: str) -> DeltaTable | None:
        """The open table when it is still the newest state, else None."""
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                self._open.move_to_end(path)
        if entry is None:
            return None
        table, version, stamp = entry
        if self._stamp(path, version) != stamp or self._commit(path, version + 1).exists():
            self.drop(path)
            return None
        return table

    def keep(self, path: str, table: DeltaTable) -> DeltaTable:
        """Keep a table open that was just opened or written."""
        version = int(table.version())
        stamp = self._stamp(path, version)
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

    def _stamp(self, path: str, version: int) -> Stamp | None:
        try:
            found = self._commit(path, version).stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _commit(self, path: str, version: int) -> Path:
        return self._root / path / "_delta_log" / f"{version:020d}.json"
