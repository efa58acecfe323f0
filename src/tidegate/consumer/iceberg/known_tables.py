"""Tables' metadata that stay in memory, so that a catalog reads each file of metadata at most once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

KNOWN_MAX: Final = 64
"""How many tables' metadata stay in memory."""


class KnownTables:
    """Tables as a catalog last loaded or committed them, by their metadata's location. For any thread."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: OrderedDict[str, Table] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, name: tuple[str, ...], location: str) -> Table | None:
        """The table with the metadata at a location, under this name; None: they are not in memory."""
        with self._lock:
            held = self._known.get(location)
        if held is None:
            return None
        return Table(name, held.metadata, held.metadata_location, held.io, self._catalog)

    def remember(self, location: str, metadata: TableMetadata, io: FileIO) -> None:
        """Remember a table's metadata, with snapshots that pyiceberg's deep copies share."""
        snapshots = [
            one if isinstance(one, SharedSnapshot) else SharedSnapshot.model_construct(**dict(one))
            for one in metadata.snapshots
        ]
        log = [
            one if isinstance(one, SharedLogEntry) else SharedLogEntry.model_construct(**dict(one))
            for one in metadata.snapshot_log
        ]
        shared = metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": log})
        with self._lock:
            self._known[location] = Table((), shared, location, io, self._catalog)
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)


class SharedSnapshot(Snapshot):
    """A snapshot that copies of a table's metadata share, because snapshots never change.

    pyiceberg 0.12 copies the metadata several times per commit, and a table may have 2,000 snapshots.
    """

    def __deepcopy__(self, memo: object) -> SharedSnapshot:
        """Itself."""
        return self


class SharedLogEntry(SnapshotLogEntry):
    """A shared entry of the log of snapshots, for the same reason."""

    def __deepcopy__(self, memo: object) -> SharedLogEntry:
        """Itself."""
        return self
