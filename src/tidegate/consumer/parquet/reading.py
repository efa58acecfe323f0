"""Read a change log, from plain Python or PySpark.

    from tidegate.consumer.parquet.reading import open_log
    log = open_log("parquet:///path/to/log")
    rows = [log.read(file) for file in log.files("bank.accounts")]

`log.entries` has files and DDLs in the order in which they happened. `open_log(path, after=log.number)` reads
on from there. Files are never changed. Without `--keep-changes-hours` none is ever removed, so a log that was
opened can be read at any time; with it, for an hour at least. Starts no process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.consumer.parquet.address import BUCKETS, log_directory
from tidegate.consumer.parquet.manifests import ChangeFile, Entry, LoggedDdl, ManifestChain
from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse.object_store import Bucket, ObjectStore
from tidegate.sink.lakehouse.store import DiskStore, Store


@dataclass(frozen=True, slots=True)
class ChangeLog:
    """The entries of a log up to one commit."""

    number: int
    """The number of the last commit that was read."""
    ts: int
    """Every change up to this ts is in the log, and none above it."""
    entries: tuple[Entry, ...]
    """Files and DDLs; files between two DDLs are in no order. Sort rows by `_tidegate_seq`."""
    removed: int
    """The changes of the commits up to this number were removed (`--keep-changes-hours`); 0: none were."""
    _store: Store

    def files(self, table: str) -> list[ChangeFile]:
        """The files of `schema.table`, of each version of its columns."""
        files = (entry for entry in self.entries if isinstance(entry, ChangeFile))
        return [file for file in files if f"{file.schema}.{file.table}" == table]

    @property
    def ddls(self) -> Sequence[LoggedDdl]:
        """The DDLs in their order."""
        return [entry for entry in self.entries if isinstance(entry, LoggedDdl)]

    def read(self, file: ChangeFile) -> pa.Table:
        """The rows of one file."""
        data = self._store.get(file.path)
        if data is None:
            raise InvalidInput(
                "a file of the change log is gone",
                where=self._store.uri(file.path),
                why="--keep-changes-hours has removed its commit since the log was opened, or somebody has "
                "removed the file",
                fix="open the log again; if a manifest still names the file, restore it",
            )
        return pq.read_table(pa.BufferReader(data))

    def uri(self, file: ChangeFile) -> str:
        """The address of a file, for Spark and others."""
        return self._store.uri(file.path)


def open_log(target: str | Path, after: int = 0) -> ChangeLog:
    """The log's entries of all commits after a number.

    `target`: a directory, `parquet:///directory` or `parquet+s3://bucket/prefix`. `after`: 0 reads from the
    first commit that is kept. InvalidInput when there is no log, or when changes after `after` were removed.
    """
    store = _store_of(target)
    chain = ManifestChain(store)
    newest, commits = chain.find(), list(chain.commits(after))
    if newest is None:
        raise InvalidInput(
            "there is no change log",
            where=str(store),
            why="no consumer has begun one here",
            fix="wait until the consumer has started, or correct the address",
        )
    if 0 < after < chain.removed:
        raise InvalidInput(
            "the change log does not go back so far",
            where=str(store),
            why=f"--keep-changes-hours has removed the changes of the commits {after + 1} to {chain.removed}",
            fix="build again what you build from the log, and read it from its beginning; then read more "
            "often, or keep changes for longer",
        )
    # The list was read later, so it is never behind.
    last = commits[-1] if commits else newest.commit
    entries = tuple(entry for one in commits for entry in one.entries)
    return ChangeLog(last.number, last.ts, entries, chain.removed, store)


def _store_of(target: str | Path) -> Store:
    text = str(target)
    if text.startswith(f"{BUCKETS}://"):
        return ObjectStore(Bucket.from_uri(text, BUCKETS))
    return DiskStore(log_directory(text) if "://" in text else Path(text).expanduser().absolute())
