"""The Delta tables of one target. A table is committed to only while it is the target's own.

Three guards precede each commit, in this order:

1. The table carries the target's mark, the table property `tidegate.target`. Its value is the identity of
   the target, a random word chosen when the target was created. The directory may also hold tables of others,
   even one whose name a new table needs. Without this guard a consumer would write their tables.
2. In an object store, this process is still the target's writer (`takeover`), and the table is at the version
   that this process has made or found at the start: any other version was written by another process.
3. The commit is the next version after the one that the first two guards have seen. If another process
   commits in between, our commit fails. Without this guard a snapshot could name rows that another process
   wrote. A change whose files take a while to write is a commit right after the version that it has read.

The table of snapshots carries the identity as its own mark, so it is the first table that a target creates. A
target without it has no identity, and nothing in the directory counts as the target's own.

After a commit, its version and the open table are kept. After a commit that failed the open table is dropped,
because delta-rs may have changed it in memory.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.sink.lakehouse.delta_commit import HOOKS, MARK, committed_by_another, configuration
from tidegate.sink.lakehouse.open_tables import OpenTables, reading
from tidegate.sink.lakehouse.partition_values import columns_of, guarantee, values_of
from tidegate.sink.lakehouse.snapshot_rows import SNAPSHOT_SCHEMA
from tidegate.sink.lakehouse.store import SNAPSHOTS, Store, said, translated
from tidegate.sink.lakehouse.takeover import Takeover

_SHOWN: Final = 5
"""How many names of a directory's content an error lists."""


class OwnTables:
    """The tables of one target, by path below its root. Threads may use different tables at once."""

    def __init__(self, store: Store, begun_with: Mapping[str, str]) -> None:
        """`begun_with`: properties of the table of snapshots of a new target."""
        self._store, self._begun_with = store, begun_with
        self._tables = OpenTables(store)
        self._takeover = Takeover(store, self._tables)
        self._versions: dict[str, int] = {}
        """In an object store: by path, the version that this process has made or found at the start."""
        self._id: str | None = None
        self._beginning = threading.Lock()
        """Held while the identity is read or created: in a new target several threads create tables at
        once."""

    # --- the mark

    def identity(self) -> str:
        """The target's identity. Creates the table of snapshots, and so the identity, if there is none."""
        with self._beginning:
            if self._id is None:
                if not self.exists(SNAPSHOTS):
                    self._begin(SNAPSHOTS, SNAPSHOT_SCHEMA, uuid.uuid4().hex)
                    self._tables.drop(SNAPSHOTS)
                self._id = self.mark_of(SNAPSHOTS)
                assert self._id is not None, "`Lakehouse.check` refuses a table of snapshots without a mark"
            return self._id

    def mark_of(self, path: str) -> str | None:
        """The identity of the target to which a table belongs; None for anything else at this path."""
        try:
            found: str | None = self._tables.newest(path).metadata().configuration.get(MARK)
        except (DeltaError, ValueError):
            return None  # not readable as a Delta table, so not a table of ours
        except OSError as error:
            trouble = self._store.trouble(error, path)
            if trouble is error:  # a file that cannot be read
                return None
            raise trouble from error
        return found

    def is_own(self, path: str) -> bool:
        """Whether the table at this path is the target's."""
        return self.mark_of(path) == self.identity()

    def exists(self, path: str) -> bool:
        """Whether there is a Delta table at this path."""
        if self._tables.held(path) is not None:
            return True
        if not self._store.has_folder(f"{path}/_delta_log"):
            return False
        with translated(self._store, path):
            return bool(DeltaTable.is_deltatable(self._store.uri(path), storage_options=self._store.options))

    def begin(self, path: str, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Create an empty table with the target's mark.

        Fatal if anything is at this path. Retryable if another consumer creates the same table at this
        moment.
        """
        self._begin(path, schema, self.identity(), partition_by)

    def _begin(self, path: str, schema: pa.Schema, identity: str, partition_by: Sequence[str] = ()) -> None:
        self._store.make_folder(path)
        more = self._begun_with if path == SNAPSHOTS else {}
        # A writer that was killed before its first commit has left at most an empty log.
        entries = entries_of(self._store, path)
        if any(name != "_delta_log" for name in entries) or self.exists(path):
            raise Fatal(
                "a folder that is not the target's is where a table belongs",
                where=f"{self._store.uri(path)}: {listed(entries)}",
                why=f"it does not carry the target's mark, the table property {MARK}",
                fix="move it away and restart the consumer; it continues at its newest snapshot",
            )
        try:
            with translated(self._store, path):
                DeltaTable.create(
                    self._store.uri(path),
                    schema=schema,
                    partition_by=list(partition_by),
                    configuration={MARK: identity, **more} | configuration(schema, partition_by),
                    storage_options=self._store.options,
                    post_commithook_properties=HOOKS,
                    raise_if_key_not_exists=False,
                )
        except DeltaError as error:
            if not self._store.shared:
                raise
            raise Retryable(
                "another consumer has begun the same table at the same time",
                where=self._store.uri(path),
                why=said(error),
                fix="start one consumer for a target",
            ) from error
        self._versions[path] = 0

    # --- who writes the target

    def take_over(self, name: str) -> None:
        """Make this process the target's writer: see `Takeover.take`. Creates the target if it is new."""
        self.identity()
        self._takeover.take(name)
        # These were noted before the takeover, when an earlier writer could still commit.
        self._versions.clear()

    def check_writer(self) -> None:
        """Fenced if another process has taken over. Does nothing on a disk: this process has the lock."""
        self._takeover.check()

    # --- reading

    def open(self, path: str, version: int | None = None) -> DeltaTable:
        """A table at a version; None: at its newest.

        Fatal if it is missing, cannot be read, or was written by another process in the meantime.
        """
        with reading(self._store, path, version):
            table = self._tables.at(path, version)
            if version is None:
                # A table that this process has neither written nor found has no version to compare.
                known = self._versions.get(path, table.version())
                if self._takeover.is_taken and path != SNAPSHOTS and known != table.version():
                    raise self._written_by_another(path, known + 1, "it was opened again")
        return table

    def held(self, path: str) -> DeltaTable | None:
        """The open table if it is still the newest state, otherwise None."""
        return self._tables.held(path)

    def rows_of(self, path: str, table: DeltaTable, files: Sequence[str]) -> ds.Dataset:
        """The rows of some of a table's data files."""
        names = [self._store.file(f"{path}/{name}") for name in files]
        schema = pa.schema(table.schema())
        if columns_of(table):
            values = {unquote(name): held for name, held in values_of(table).items()}
            return ds.FileSystemDataset.from_paths(
                names,
                schema=schema,
                format=ds.ParquetFileFormat(),
                filesystem=self._store.filesystem or pyarrow.fs.LocalFileSystem(),
                partitions=[guarantee(values[name], schema) for name in files],
            )
        return ds.dataset(names, schema=schema, format="parquet", filesystem=self._store.filesystem)

    # --- writing

    def writable(self, path: str) -> DeltaTable:
        """A table to write to; Fatal unless it carries this target's mark."""
        table = self.open(path)
        found = table.metadata().configuration.get(MARK)
        # docs/guarantees.md#nothing-that-belongs-to-others-is-touched-at-a-target
        if found != self.identity():
            raise Fatal(
                "the place of one of the target's tables has a table that is not the target's",
                where=self._store.uri(path),
                why=f"its table property {MARK} is {found or 'missing'}, the target's is {self.identity()}",
                fix="move it away and restore the target's own, or start a new target directory",
            )
        # The word is read in the state on which the commit is based. A takeover after it is the next
        # version, so that this commit fails.
        if path == SNAPSHOTS:
            self._takeover.refuse_replaced(table)
        return table

    def found(self, path: str) -> DeltaTable:
        """`writable` at the start: the newest version counts as this process's own, which then undoes it."""
        table = self.writable(path)
        self._versions[path] = int(table.version())
        return table

    @contextmanager
    def writing(self, path: str, base: int | None = None) -> Iterator[DeltaTable]:
        """The table, for one commit: the version after the one that `writable` has seen.

        `base`: the version that an earlier `writable` has seen and from which the commit was made; None: it
        is made inside.
        """
        table = self.writable(path)
        before = int(table.version())
        if base is not None and base != before:
            raise self._written_by_another(path, base + 1, "it came while a change was made")
        self._tables.drop(path)  # a commit that fails may leave changes in memory
        try:
            with translated(self._store, path):
                yield table
        except CommitFailedError as error:
            raise self._written_by_another(path, before + 1, said(error)) from error
        except DeltaError as error:
            self.check_writer()  # a successor may have removed the whole table
            if not self._store.shared:
                raise
            if committed_by_another(error):
                raise self._written_by_another(path, before + 1, said(error)) from error
            raise self._store.trouble(error, path) from error
        # delta-rs reads the log again after its commit, and would include the next commit of another process.
        if self._takeover.is_taken and table.version() > before + 1:
            raise self._written_by_another(path, before + 2, "it came right behind this consumer's")
        self._tables.keep(path, table)
        self._versions[path] = int(table.version())

    def skip_commit(self, path: str) -> None:
        """Count a commit inside `writing` after which the open table is still at the version before it."""
        self._tables.drop(path)
        self._versions[path] += 1

    def set_aside(self, path: str) -> bool:
        """Move a table that no snapshot names to the trash. False if it is not the target's."""
        if not self.is_own(path):
            return False
        self._tables.drop(path)
        self._versions.pop(path, None)
        self._store.discard(path, self.check_writer)
        return True

    def _written_by_another(self, path: str, version: int, why: str) -> TidegateError:
        """The error for a version of a table that another process made; Fenced if that is a successor."""
        try:
            self.check_writer()
        except Fenced as fenced:
            return fenced
        return Fatal(
            "somebody else has written a table of the target at the same time",
            where=self._store.uri(path),
            why=f"version {version} is not this consumer's ({why})",
            fix="end the other writer, and restart the consumer at its newest snapshot",
        )


def files_of(table: DeltaTable) -> list[str]:
    """The data files' names, relative to the table."""
    return [unquote(name) for name in pa.table(table.get_add_actions())["path"].to_pylist()]


def entries_of(store: Store, folder: str) -> list[str]:
    """The names of the files and folders in a folder."""
    return sorted([*store.names(folder), *store.folders(folder)])


def listed(names: Sequence[str]) -> str:
    """The first names as text for an error, with the number of the others."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def deleted_already(where: str) -> Fatal:
    """The error for a version some of whose files are deleted."""
    return Fatal(
        "rows that are to come back are deleted already",
        where=where,
        why="the table's version is older than the target's retention",
        fix="start a new target directory; a longer --retention-hours keeps them",
    )
