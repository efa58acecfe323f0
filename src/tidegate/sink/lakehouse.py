"""Delta tables through delta-rs (no JVM, no jar): tables, and the table of snapshots that makes them one.

Layout under the root: `SCHEMA/TABLE` (encoded, see `slot_path`) is a Delta table; `_tidegate/snapshots` is
itself one, with (ts, schema_name, table_name, table_id, path, version, position). One append to it names one
readable, consistent snapshot of all tables: that append is the only commit point. It has a row per table,
and one without a path that carries the consumer's position: as a row, the position survives whatever other
tools do to the table (OPTIMIZE, VACUUM, checkpoints, the cleanup of its log). Whatever a table's log holds
beyond the version the newest snapshot names is unfinished: `restore` undoes it.

Every table made here carries the table property `tidegate.target` with the target's identity, a random word
given when the target is begun. Nothing is written, emptied, vacuumed or removed unless it carries that mark:
the directory may hold what belongs to others, who may even use a name that a new table needs (Fatal then).

A path is a *slot* with one linear history: a table dropped and made again, or truncated, goes on in the same
log, so older snapshots stay readable at their versions. A rename links the data files into the new slot.

Statistics are written for integer and date columns only: delta-rs cuts decimals to 64 bits and timestamps
to milliseconds in them, and a merge that skips files by such bounds would miss rows.

The files are in a `Store`: a local disk or an object store.

On a disk one process writes: the consumer's driver, under the lock of its root. Not safe for two.

In an object store there is no lock, and only the snapshots of the newest consumer to `take_over` count. It
puts a word of its own, the table property `tidegate.writer`, into the log of the table of snapshots. Each
commit there has to be the next after one that has the writer's own word, so a writer that was replaced can
name nothing any more. It is `Fenced` when it looks next, at the latest when it commits.

The threads of one process may write to different tables at once.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable, TidegateError
from tidegate.model.path_part import path_part
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.sink.open_tables import OpenTables
from tidegate.sink.slot_files import SlotFiles
from tidegate.sink.store import OWN, DiskStore, Store, said, store_of

SNAPSHOT_SCHEMA: Final = pa.schema(
    [
        pa.field("ts", pa.int64()),
        pa.field("schema_name", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("table_id", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("position", pa.string()),
    ]
)
SNAPSHOTS: Final = f"{OWN}/snapshots"
SLOTS: Final = f"{OWN}/slots"
"""In an object store: an empty object for each path that was ever given to a table."""
MARK: Final = "tidegate.target"
"""The table property that says to which target a table belongs."""
WRITER: Final = "tidegate.writer"
"""The table property of the table of snapshots that says who may write the target: see `Writer`."""
TAKEOVERS: Final = 20
"""Attempts to take a target over, while another consumer names snapshots."""
SLICE: Final = 600_000 << LOGICAL_BITS
"""Ten minutes: snapshots of so much time are kept in one file."""
COMPACT_FILES: Final = 24
"""A table with more data files than this is compacted before the next snapshot names it."""
_NO_COLUMNS: Final = pa.schema([pa.field("_tidegate_none", pa.int8())])
"""A Delta table has at least one."""
_STATS_SAFE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""The log's own cleanup goes by age alone; named versions need theirs longer (see `clean`)."""
_ONCE: Final = CommitProperties(max_commit_retries=0)
"""A commit fails when somebody else was first. By default an append goes on behind any other commit."""
_COMMITTED_BY_ANOTHER: Final = ("already exists", "Invalid table version")
"""What delta-rs says, in errors without a class of their own, when a commit is there or was skipped."""
_SHOWN: Final = 5
"""How many names of a directory's content an error lists."""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """One table in one snapshot."""

    ts: int
    schema: str
    table: str
    table_id: int
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Writer:
    """Who has taken over a target in an object store."""

    name: str
    """The consumer's."""
    word: str
    """Given to this one process."""
    process: int
    host: str

    @staticmethod
    def of_this_process(name: str) -> Writer:
        """A new one."""
        return Writer(name, uuid.uuid4().hex, os.getpid(), socket.gethostname())

    @staticmethod
    def from_json(text: str) -> Writer:
        """As `to_json` has made it."""
        held = orjson.loads(text)
        return Writer(held["name"], held["word"], held["process"], held["host"])

    def to_json(self) -> str:
        """One line."""
        held = {"name": self.name, "word": self.word, "process": self.process, "host": self.host}
        return orjson.dumps(held).decode()

    def __str__(self) -> str:
        return f"consumer {self.name}, process {self.process} on {self.host}"


def slot_path(schema: str, table: str) -> str:
    """The path of a new table below the root, see `path_part`; a table made earlier keeps the path it has.

    No part begins with an underscore or a dot: those names are ours.
    """
    return f"{path_part(schema)}/{path_part(table)}"


class Lakehouse:
    """The Delta tables below one root: a directory, or a prefix in an object store."""

    def __init__(self, root: Path | Store) -> None:
        """Raises InvalidInput for a directory name that delta-rs cannot open."""
        self.store = store_of(root)
        if isinstance(self.store, DiskStore) and set(str(self.store)) & set("%\\[]^|"):
            raise InvalidInput(
                "the target directory's name holds a character that Delta tables cannot live under",
                where=str(self.store),
                why="one of % \\ [ ] ^ |",
                fix="choose another directory",
            )

        self._tables = OpenTables(self.store)
        self._writer: Writer | None = None
        """In an object store: this process, once it has taken the target over."""
        self._versions: dict[str, int] = {}
        """In an object store: by path, the version that this process has made or found at the start."""
        self._published: int | None = None
        """The newest snapshot's ts as this process has read or named it."""
        self._id: str | None = None
        self._beginning = threading.Lock()
        """Held to learn or give the identity: on a new target the first tables come side by side."""

    @property
    def root(self) -> Path:
        """The directory of a target on the local disk."""
        assert isinstance(self.store, DiskStore), "an object store has no directory"
        return self.store.root

    @property
    def _kind(self) -> str:
        return "prefix" if self.store.shared else "directory"

    # --- what is ours

    def check(self) -> None:
        """Raise unless the root is a target, or may become one: it is empty, or is not there yet.

        InvalidInput when it holds something else; Fatal when it holds a target's tables and nothing that says
        which of their versions are valid.
        """
        if self.exists(SNAPSHOTS):
            if self._mark_of(SNAPSHOTS) is None:
                raise InvalidInput(
                    "the target's table of snapshots was not made by this release",
                    where=self._uri(SNAPSHOTS),
                    why=f"it lacks the table property {MARK}",
                    fix="choose a new or empty directory",
                )
            return
        marked = [path for path in self.slots() if self._mark_of(path) is not None]
        if marked:
            raise Fatal(
                "the directory holds tables of a target whose table of snapshots is gone",
                where=f"{self.store}: {_listed(marked)}; {SNAPSHOTS} is missing or has no readable log",
                why="without it nobody can tell which of their versions are valid, nor where to read on",
                fix=f"restore {SNAPSHOTS}, or choose a new or empty directory",
            )
        others = sorted(name for name in self._entries("") if name not in (OWN, "lost+found"))
        if others:
            raise InvalidInput(
                f"the target {self._kind} holds something else",
                where=f"{self.store}: {_listed(others)}",
                why=f"none of it was made by a consumer, and a target owns its {self._kind}",
                fix=f"choose a new or empty {self._kind}",
            )

    def _identity(self) -> str:
        """The target's identity; it is begun when it has none."""
        with self._beginning:
            if self._id is None:
                if not self.exists(SNAPSHOTS):
                    self._begin(SNAPSHOTS, SNAPSHOT_SCHEMA, uuid.uuid4().hex)
                    self._tables.drop(SNAPSHOTS)
                self._id = self._mark_of(SNAPSHOTS)
                assert self._id is not None, "`check` refuses a table of snapshots without a mark"
            return self._id

    def _mark_of(self, path: str) -> str | None:
        """The identity of the target that a slot's table belongs to; None for anything else there."""
        try:
            found: str | None = self._tables.newest(path).metadata().configuration.get(MARK)
        except (DeltaError, ValueError):
            return None  # nothing that can be read as a Delta table, so no table of ours
        except OSError as error:
            trouble = self.store.trouble(error, path)
            if trouble is error:  # a file that cannot be read
                return None
            raise trouble from error
        return found

    def _begin(self, path: str, schema: pa.Schema, identity: str) -> None:
        self.store.make_folder(path)
        # A writer that was killed before its first commit has left an empty log at most.
        entries = self._entries(path)
        if any(name != "_delta_log" for name in entries) or self.exists(path):
            raise Fatal(
                "a folder that is not the target's stands where a table has to be",
                where=f"{self._uri(path)}: {_listed(entries)}",
                why=f"it does not carry the target's mark, the table property {MARK}",
                fix="move it away and start the consumer again; it goes on at its newest snapshot",
            )
        try:
            with self._asking(path):
                DeltaTable.create(
                    self._uri(path),
                    schema=schema,
                    configuration={MARK: identity} | _configuration(schema),
                    storage_options=self.store.options,
                    post_commithook_properties=_HOOKS,
                    raise_if_key_not_exists=False,
                )
        except DeltaError as error:
            if not self.store.shared:
                raise
            raise Retryable(
                "another consumer has begun the same table at the same time",
                where=self._uri(path),
                why=said(error),
                fix="start one consumer for a target",
            ) from error
        self._versions[path] = 0

    def _entries(self, folder: str) -> list[str]:
        """What a folder holds, by name."""
        return sorted([*self.store.names(folder), *self.store.folders(folder)])

    def _writable(self, path: str) -> DeltaTable:
        """A slot's table to write to; Fatal unless it carries this target's mark."""
        table = self._open(path)
        found = table.metadata().configuration.get(MARK)
        if found != self._identity():
            raise Fatal(
                "a table that is not the target's stands where one of its tables has to be",
                where=self._uri(path),
                why=f"its table property {MARK} is {found or 'missing'}, the target's is {self._identity()}",
                fix="move it away and restore the target's own, or start a new target directory",
            )
        if self._writer is not None and path == SNAPSHOTS:
            self._refuse_replaced(table)
        return table

    def _written_by_another(self, path: str, version: int, why: str) -> TidegateError:
        """The error for a version of a table that somebody else has made; Fenced if that was a successor."""
        try:
            self.check_writer()
        except Fenced as fenced:
            return fenced
        return Fatal(
            "somebody else has written a table of the target at the same time",
            where=self._uri(path),
            why=f"version {version} is not this consumer's ({why})",
            fix="end what else writes there, and start the consumer again at its newest snapshot",
        )

    @contextmanager
    def _writing(self, path: str) -> Iterator[DeltaTable]:
        """The table for one commit, which must be the next after what `_writable` has seen."""
        table = self._writable(path)
        before = int(table.version())
        self._tables.drop(path)  # what a commit that failed has left in memory is not used again
        try:
            with self._asking(path):
                yield table
        except CommitFailedError as error:
            raise self._written_by_another(path, before + 1, said(error)) from error
        except DeltaError as error:
            self.check_writer()  # a successor may have removed the whole table
            if not self.store.shared:
                raise
            if any(sign in str(error) for sign in _COMMITTED_BY_ANOTHER):
                raise self._written_by_another(path, before + 1, said(error)) from error
            raise self.store.trouble(error, path) from error
        # delta-rs reads the log again behind its commit, and would take in somebody else's next one.
        if self._writer is not None and table.version() > before + 1:
            raise self._written_by_another(path, before + 2, "it came right behind this consumer's")
        self._tables.keep(path, table)
        self._versions[path] = int(table.version())

    # --- who may write: in an object store

    def take_over(self, name: str) -> None:
        """Make this process the writer, as the consumer `name`; every earlier one is Fenced from here on.

        InvalidInput if the target is another consumer's; Retryable if others were quicker again and again.
        """
        self._identity()
        mine = Writer.of_this_process(name)
        for _ in range(TAKEOVERS):
            self._tables.drop(SNAPSHOTS)
            table = self._open(SNAPSHOTS)
            held = self.writer(table)
            if held is not None and held.name != name:
                raise InvalidInput(
                    "another consumer writes this target",
                    where=str(self.store),
                    why=f"it belongs to the consumer {held.name}, and this one is {name}",
                    fix=f"choose another prefix, or go on with --name {held.name}",
                )
            try:
                with self._asking(SNAPSHOTS):
                    table.alter.set_table_properties(
                        {WRITER: mine.to_json()},
                        raise_if_not_exists=False,
                        commit_properties=_ONCE,
                        post_commithook_properties=_HOOKS,
                    )
            except CommitFailedError:
                continue
            self._versions.clear()
            self._tables.begin_owned(SNAPSHOTS, table)
            self._writer = mine
            return
        raise Retryable(
            "the target could not be taken over",
            where=self._uri(SNAPSHOTS),
            why=f"{TAKEOVERS} times in a row another process has committed first",
            fix="end the other consumer of this target, and start again",
        )

    def writer(self, table: DeltaTable | None = None) -> Writer | None:
        """Who has taken the target over last; None: it was never in an object store."""
        table = table or self._open(SNAPSHOTS)
        text = table.metadata().configuration.get(WRITER)
        return Writer.from_json(text) if text else None

    def check_writer(self) -> None:
        """Fenced if another process has taken over since. On a disk: nothing, this process has the lock."""
        if self._writer is not None:
            with self._asking(SNAPSHOTS):
                newest = self._tables.checked(SNAPSHOTS)
            self._refuse_replaced(newest)

    def _refuse_replaced(self, table: DeltaTable) -> None:
        held = self.writer(table)
        if held != self._writer:
            raise Fenced(
                "this consumer's target was taken over",
                where=str(self.store),
                why=f"it now belongs to {held}",
                fix="nothing, if that one shall go on; otherwise end it, and start this one again",
            )

    # --- tables

    def exists(self, path: str) -> bool:
        """Whether a slot holds a Delta table."""
        if self._tables.held(path) is not None:
            return True
        if not self.store.has_folder(f"{path}/_delta_log"):
            return False
        with self._asking(path):
            return bool(DeltaTable.is_deltatable(self._uri(path), storage_options=self.store.options))

    def version(self, path: str) -> int:
        """The newest version of a slot."""
        return int(self._open(path).version())

    def create(self, path: str, schema: pa.Schema) -> None:
        """Make the slot an empty table of this schema; what it held stays readable at its older versions.

        Fatal when something that is not the target's stands there, or another table's folder whose name
        differs only in what the disk ignores: earlier releases made folders with capital letters.
        """
        identity = self._identity()
        self.store.check_folder(path)
        if self.exists(path) and self._mark_of(path) == identity:
            self._overwrite(path, schema, iter(()))
        else:
            self._begin(path, schema, identity)

    def append(self, path: str, rows: pa.Table) -> None:
        """Add rows."""
        with self._writing(path) as table:
            write_deltalake(
                table, rows, mode="append", commit_properties=_ONCE, post_commithook_properties=_HOOKS
            )

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Replace or insert rows and delete keys, in one commit. Keys are not null and distinct over both."""
        missing = [field for field in upserts.schema if field.name not in deletes.column_names]
        for field in missing:
            deletes = deletes.append_column(field, pa.nulls(deletes.num_rows, field.type))
        rows = pa.concat_tables([upserts, deletes.select(upserts.column_names)])
        gone = pa.array([False] * upserts.num_rows + [True] * deletes.num_rows, pa.bool_())
        rows = rows.append_column("_tidegate_gone", gone)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in upserts.column_names}
        with self._writing(path) as table:
            merger = table.merge(
                rows,
                " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys),
                source_alias="s",
                target_alias="t",
                streamed_exec=False,
                commit_properties=_ONCE,
                post_commithook_properties=_HOOKS,
            )
            merger = merger.when_matched_delete("s._tidegate_gone")
            merger = merger.when_matched_update(values, predicate="NOT s._tidegate_gone")
            merger.when_not_matched_insert(values, predicate="NOT s._tidegate_gone").execute()

    def add_null_columns(self, path: str, schema: pa.Schema) -> None:
        """Append the columns of `schema` that are missing, null in all rows, without touching data files."""
        with self._writing(path) as table:
            write_deltalake(
                table,
                schema.empty_table(),
                mode="append",
                schema_mode="merge",
                commit_properties=_ONCE,
                post_commithook_properties=_HOOKS,
            )

    def replace(self, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Put `batches` in the place of all rows, in one commit. They may come from the slot's own files."""
        self._overwrite(path, schema, batches)

    def rename(self, source: str, target: str, version: int | None = None) -> None:
        """Give the rows of one slot to another: the data files are linked or copied, none is rewritten.

        Copies in an object store have new names. A writer that was replaced may be about to delete a file of
        an old name in `target`.

        `version` of the source, None: its newest. Fatal when files of an older one are deleted already.
        """
        held = self._open(source, version)
        there = set(self.store.names(source))
        missing = [name for name in _files(held) if name not in there]
        if missing:
            raise Fatal(
                "rows that are to come back are deleted already",
                where=self._uri(f"{source}/{missing[0]}"),
                why="the table's version is older than the target's retention",
                fix="start a new target directory; a longer --retention-hours keeps them",
            )
        schema = pa.schema(held.schema())
        self.create(target, schema)
        actions = _add_actions(held)
        for action in actions:
            name = unquote(action.path)
            if self.store.shared:
                action.path = f"{uuid.uuid4().hex}.parquet"
            self.store.copy(f"{source}/{name}", f"{target}/{unquote(action.path)}")
        with self._writing(target) as table:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=schema,
                commit_properties=_ONCE,
                post_commithook_properties=_HOOKS,
            )
        # Such a commit leaves the open table at the version before it.
        self._tables.drop(target)
        self._versions[target] += 1

    def restore(self, path: str, version: int) -> bool:
        """Undo everything after `version`; False when there is nothing to undo."""
        table = self._writable(path)
        self._versions[path] = int(table.version())
        if table.version() == version:
            return False
        newest = table.history(1)[0]
        if newest.get("operation") == "RESTORE" and newest.get("tidegate.restored") == str(version):
            return False
        self.check_writer()
        note = {"tidegate.restored": str(version)}
        properties = CommitProperties(custom_metadata=note, max_commit_retries=0)
        with self._writing(path) as table:
            table.restore(version, commit_properties=properties, post_commithook_properties=_HOOKS)
        return True

    def dataset(self, path: str, version: int | None = None) -> ds.Dataset:
        """A slot's rows at a version, as a pyarrow dataset over its data files."""
        table = self._open(path, version)
        return self._rows_of(path, table, _files(table))

    def files(self, path: str, version: int | None = None) -> list[Path]:
        """The data files of a slot at a version; InvalidInput for a target that is not on the local disk."""
        found = [self.store.local(f"{path}/{name}") for name in _files(self._open(path, version))]
        local = [file for file in found if file is not None]
        if len(local) < len(found):
            raise InvalidInput(
                "the rows are in an object store, and their files have no path on this machine",
                where=self._uri(path),
                fix="read the table with `dataset()` or `to_arrow()`, or open it as the Delta table it is",
            )
        return local

    def read(self, path: str, version: int | None = None, columns: list[str] | None = None) -> pa.Table:
        """A slot's rows at a version."""
        return self.dataset(path, version).to_table(columns=columns)

    def compact(self, path: str) -> bool:
        """Merge small data files when there are more than `COMPACT_FILES`; the rows stay the same."""
        if self.file_count(path) <= COMPACT_FILES:
            return False
        with self._writing(path) as table:
            table.optimize.compact(commit_properties=_ONCE, post_commithook_properties=_HOOKS)
        return True

    def file_count(self, path: str) -> int:
        """How many data files the newest version of a slot has."""
        return len(_files(self._open(path)))

    def slot_files(self, path: str) -> SlotFiles:
        """What deletes files of a slot that no needed version has."""

        def files_at(version: int) -> list[str]:
            return _files(self._open(path, version))

        def check() -> None:
            self._writable(path)
            self.check_writer()

        return SlotFiles(self.store, path, files_at, check)

    def slot_for(self, schema: str, table: str) -> str:
        """Where a new table of this name goes: on a disk, into the slot of its name.

        In an object store a path that was ever discarded is not used again: a process that was replaced may
        still be deleting there (`ObjectStore.discard`). A path that the newest snapshot names cannot have
        been discarded; any other one must never have been used.
        """
        path = slot_path(schema, table)
        if not self.store.shared:
            return path
        named = {(row.schema, row.table): row.path for row in self.snapshot_rows()}
        if (schema, table) in named:
            return named[schema, table]
        taken = f"{SLOTS}/{path}"
        if self.store.get(taken) is None and self.store.has_folder(path):
            return path  # somebody else's, as `create` says
        if self.store.create(taken, b""):
            return path
        return f"{path}~{uuid.uuid4().hex[:8]}"

    # --- snapshots

    def publish(self, ts: int, rows: Sequence[SnapshotRow], position: str) -> None:
        """Name a snapshot: the commit point. `position` travels in the same commit.

        Fatal when somebody else has named one since this process has read or named the newest: two consumers
        write the target then. What others do to the table without naming a snapshot does not matter.
        """
        self._identity()
        held = self._tables.held(SNAPSHOTS)
        with self._writing(SNAPSHOTS) as table:
            if table is not held:
                self._refuse_others(table)
            write_deltalake(
                table,
                _snapshot_table(ts, rows, position),
                mode="append",
                commit_properties=_ONCE,
                post_commithook_properties=_HOOKS,
            )
        self._published = ts

    def _refuse_others(self, table: DeltaTable) -> None:
        newest = self._newest_ts(table)
        if self._published is not None and newest != self._published:
            raise Fatal(
                "another consumer has named a snapshot of this target",
                where=self._uri(SNAPSHOTS),
                why=f"the newest snapshot there is {newest}, and this consumer's is {self._published}",
                fix="end one of the two, and start the other again: it goes on at the newest snapshot",
            )

    def republish(self, ts: int, rows: Sequence[SnapshotRow]) -> None:
        """Put `rows` in the place of those that name the snapshot at `ts`, in one commit."""
        position = self.position()
        with self._writing(SNAPSHOTS) as table:
            write_deltalake(
                table,
                _snapshot_table(ts, rows, position),
                mode="overwrite",
                predicate=f"ts = {ts}",
                commit_properties=_ONCE,
                post_commithook_properties=_HOOKS,
            )

    def position(self) -> str | None:
        """What `publish` committed with the newest snapshot; None for a fresh target.

        Fatal when there was one and it is gone: then the target only looks new.
        """
        if not self.exists(SNAPSHOTS):
            return None
        table = self._open(SNAPSHOTS)
        newest = self._newest_ts(table)
        for low in (newest, None):  # in the newest snapshot; all of them if somebody has taken that row out
            held = self._snapshots(table, ["ts", "position"], low)
            held = held.filter(pc.is_valid(held["position"]))
            if held.num_rows:
                self._published = newest
                return str(held["position"][pc.index(held["ts"], pc.max(held["ts"])).as_py()])
        if _rows_were_written(table):
            raise Fatal(
                "the target's position is gone",
                where=self._uri(SNAPSHOTS),
                why="the table has had commits and holds no row with a position: somebody removed them",
                fix="restore an older version of that table, or start a new target directory",
            )
        return None

    def snapshot_ts(self, at: int | None = None) -> int | None:
        """The ts of the newest snapshot with ts <= `at` (None: the newest of all)."""
        return self._newest_ts(self._open(SNAPSHOTS), at) if self.exists(SNAPSHOTS) else None

    def snapshot_rows(self, at: int | None = None) -> list[SnapshotRow]:
        """The tables of the newest snapshot with ts <= `at` (None: the newest of all)."""
        ts = self.snapshot_ts(at)
        if ts is None:
            return []
        found = self._snapshots(self._open(SNAPSHOTS), SNAPSHOT_SCHEMA.names[:-1], ts, ts)
        return [SnapshotRow(*row.values()) for row in found.to_pylist() if row["path"] is not None]

    def snapshots(self) -> list[int]:
        """The ts of all snapshots, ascending."""
        if not self.exists(SNAPSHOTS):
            return []
        return sorted(pc.unique(self._snapshots(self._open(SNAPSHOTS), ["ts"])["ts"]).to_pylist())

    def forget(self, snapshots: Collection[int]) -> Iterator[None]:
        """Forget these snapshots, and put those of each ten minutes into one file: a commit a piece.

        So a round rewrites what is young and what it forgets, and no piece holds more than the rows of ten
        minutes, unless an earlier release has left larger files.
        """
        if not self.exists(SNAPSHOTS):
            return
        gone = pa.array(sorted(snapshots), pa.int64())
        for low, high, crowded in _slices(_bounds(self._open(SNAPSHOTS))):
            within = pc.and_(pc.greater_equal(gone, low), pc.less(gone, high))
            if crowded or pc.any(within, min_count=0).as_py():
                self._rewrite_slice(low, high, gone)
                yield

    def _rewrite_slice(self, low: int, high: int, gone: pa.Array) -> None:
        where = f"ts >= {low} AND ts < {high}"
        with self._writing(SNAPSHOTS) as table:
            rows = self._snapshots(table, SNAPSHOT_SCHEMA.names, low, high - 1)
            kept = rows.filter(pc.invert(pc.is_in(rows["ts"], gone)))
            if kept.num_rows == 0:
                table.delete(where, commit_properties=_ONCE, post_commithook_properties=_HOOKS)
            else:
                write_deltalake(
                    table,
                    kept,
                    mode="overwrite",
                    predicate=where,
                    commit_properties=_ONCE,
                    post_commithook_properties=_HOOKS,
                )

    def named_versions(self) -> dict[str, list[int]]:
        """Every path and the versions of it that some snapshot names."""
        if not self.exists(SNAPSHOTS):
            return {}
        rows = self._snapshots(self._open(SNAPSHOTS), ["path", "version"])
        distinct = rows.group_by(["path", "version"]).aggregate([])
        found: dict[str, list[int]] = {}
        for path, version in zip(distinct["path"].to_pylist(), distinct["version"].to_pylist(), strict=True):
            if path is not None:
                found.setdefault(path, []).append(version)
        return found

    def _newest_ts(self, table: DeltaTable, at: int | None = None) -> int | None:
        """See `snapshot_ts`; reads only files that may hold it."""
        files = [one for one in _bounds(table) if at is None or one.low is None or one.low <= at]
        least = max((one.low for one in files if one.low is not None), default=None)
        if least is not None:
            files = [one for one in files if one.high is None or one.high >= least]
        wanted = None if at is None else pc.field("ts") <= at
        rows = self._rows_of(SNAPSHOTS, table, [one.name for one in files])
        found: int | None = pc.max(rows.to_table(columns=["ts"], filter=wanted)["ts"]).as_py()
        return found

    def _snapshots(
        self, table: DeltaTable, columns: list[str], low: int | None = None, high: int | None = None
    ) -> pa.Table:
        """Rows of the table of snapshots with low <= ts <= high; reads only files that may hold such rows."""
        names = [
            one.name
            for one in _bounds(table)
            if not (low is not None and one.high is not None and one.high < low)
            and not (high is not None and one.low is not None and one.low > high)
        ]
        wanted = pc.scalar(True)
        if low is not None:
            wanted = wanted & (pc.field("ts") >= low)
        if high is not None:
            wanted = wanted & (pc.field("ts") <= high)
        return self._rows_of(SNAPSHOTS, table, names).to_table(columns=columns, filter=wanted)

    def _rows_of(self, path: str, table: DeltaTable, files: Sequence[str]) -> ds.Dataset:
        names = [self.store.file(f"{path}/{name}") for name in files]
        schema = pa.schema(table.schema())
        return ds.dataset(names, schema=schema, format="parquet", filesystem=self.store.filesystem)

    def discard(self, path: str) -> bool:
        """Remove a slot with its files: only for slots that no snapshot names. False when it is not ours."""
        if not self.set_aside(path):
            return False
        self.empty_trash()
        return True

    def set_aside(self, path: str) -> bool:
        """Put a slot that no snapshot names into the trash. False when it is not ours."""
        if self._mark_of(path) != self._identity():
            return False
        self._tables.drop(path)
        self._versions.pop(path, None)
        self.store.discard(path, self.check_writer)
        return True

    def empty_trash(self) -> None:
        """Remove the files of discarded slots, those of a killed writer too."""
        for _ in self.emptying_trash():
            pass

    def emptying_trash(self) -> Iterator[None]:
        """The same a piece at a time: some hundred files each."""
        return self.store.emptying_trash()

    def slots(self) -> list[str]:
        """All Delta tables where slots may be, other people's included; links are never followed.

        In an object store all folders where slots may be: to look into each would take a request for each.
        """
        store = self.store
        schemas = _slot_names(store, "")
        found = {f"{schema}/{table}" for schema in schemas for table in _slot_names(store, schema)}
        found -= set(store.discarded())
        return sorted(path for path in found if store.shared or store.has_folder(f"{path}/_delta_log"))

    def _overwrite(self, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        told: list[Exception] = []
        reader = pa.RecordBatchReader.from_batches(schema, _telling(batches, told))
        held = pa.schema(self._writable(path).schema()).names
        if held != schema.names and set(held) == set(schema.names):
            # delta-rs takes the same columns in another order for no change; so all of them go first.
            self._overwrite(path, _NO_COLUMNS, iter(()))
        try:
            with self._writing(path) as table:
                write_deltalake(
                    table,
                    reader,
                    mode="overwrite",
                    schema_mode="overwrite",
                    configuration=_configuration(schema),
                    commit_properties=_ONCE,
                    post_commithook_properties=_HOOKS,
                )
        except (DeltaError, InvalidInput, Retryable) as error:
            if not told:
                raise
            with self._asking(path):
                raise told[0] from error
        with self._writing(path) as table:
            table.alter.set_table_properties(
                _configuration(schema), commit_properties=_ONCE, post_commithook_properties=_HOOKS
            )

    @contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            trouble = self.store.trouble(error, path)
            if trouble is error:
                raise
            raise trouble from error

    def _uri(self, path: str) -> str:
        return self.store.uri(path)

    def _open(self, path: str, version: int | None = None) -> DeltaTable:
        try:
            with self._asking(path):
                if version is None:
                    return self._known(path, self._tables.newest(path))
                held = self._tables.held(path)
                if held is not None and held.version() == version:
                    return held
                return DeltaTable(self._uri(path), version=version, storage_options=self.store.options)
        except TableNotFoundError as error:
            raise Fatal(
                "a Delta table that a snapshot needs is gone",
                where=self._uri(path),
                why=said(error),
                fix="restore the directory, or start a new target",
            ) from error
        except DeltaError as error:
            at = "" if version is None else f" at version {version}"
            raise Fatal(
                "a Delta table cannot be read",
                where=f"{self._uri(path)}{at}",
                why=said(error),
                fix="check the directory; a snapshot older than the retention can no longer be read",
            ) from error

    def _known(self, path: str, table: DeltaTable) -> DeltaTable:
        """The table, unless somebody else has written it since this process did, or found it at the start."""
        known = self._versions.get(path, table.version())
        if self._writer is not None and path != SNAPSHOTS and known != table.version():
            raise self._written_by_another(path, known + 1, "it was opened again")
        return table


def _telling(batches: Iterator[pa.RecordBatch], told: list[Exception]) -> Iterator[pa.RecordBatch]:
    """The batches; what making them raises is kept, since delta-rs hands on no more than its text."""
    try:
        yield from batches
    except Exception as error:
        told.append(error)
        raise


def _snapshot_table(ts: int, rows: Sequence[SnapshotRow], position: str | None) -> pa.Table:
    columns: list[list[Any]] = [
        [*(row.ts for row in rows), ts],
        [*(row.schema for row in rows), None],
        [*(row.table for row in rows), None],
        [*(row.table_id for row in rows), None],
        [*(row.path for row in rows), None],
        [*(row.version for row in rows), None],
        [*(None for _ in rows), position],
    ]
    return pa.table(columns, schema=SNAPSHOT_SCHEMA)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A file of the table of snapshots and the ts in it; None: its bounds are not known."""

    name: str
    low: int | None
    high: int | None


def _slices(files: Sequence[_Bounded]) -> list[tuple[int, int, bool]]:
    """The ts that the files are about, in slices low <= ts < high, each of whole `SLICE`s and of whole files.

    With each whether it has more files than it should: one, or `COMPACT_FILES` in the newest slice.
    """
    found: list[tuple[int, int, int]] = []
    ends = [(one.low, one.high) for one in files if one.low is not None and one.high is not None]
    if len(ends) < len(files):  # somebody has written files without bounds
        ends = [(0, 2**63 - 1 - SLICE)] * len(files)
    for first, last in sorted(ends):
        low, high, count = first // SLICE * SLICE, (last // SLICE + 1) * SLICE, 1
        if found and low < found[-1][1]:
            before = found.pop()
            low, high, count = before[0], max(high, before[1]), before[2] + 1
        found.append((low, high, count))
    at_most = [1] * (len(found) - 1) + [COMPACT_FILES]
    return [(low, high, count > most) for (low, high, count), most in zip(found, at_most, strict=True)]


def _bounds(table: DeltaTable) -> list[_Bounded]:
    held = pa.table(table.get_add_actions(flatten=True))
    unknown = [None] * held.num_rows
    low, high = (
        held[name].to_pylist() if name in held.column_names else unknown for name in ("min.ts", "max.ts")
    )
    return [_Bounded(*one) for one in zip(map(unquote, held["path"].to_pylist()), low, high, strict=True)]


def _slot_names(store: Store, folder: str) -> list[str]:
    """The folders in a folder that may be a schema or a table: not ours by name."""
    return [name for name in store.folders(folder) if not name.startswith((".", "_"))]


def _rows_were_written(table: DeltaTable) -> bool:
    """Whether a table has had other commits than its creation and those of writers that took it over."""
    if not table.version():
        return False
    return any(one.get("operation") not in ("CREATE TABLE", "SET TBLPROPERTIES") for one in table.history())


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _configuration(schema: pa.Schema) -> dict[str, str]:
    safe = [f.name for f in schema if f.type in _STATS_SAFE and _PLAIN_NAME.fullmatch(f.name)]
    settings = {"delta.enableExpiredLogCleanup": "false", "delta.dataSkippingNumIndexedCols": "0"}
    return settings | ({"delta.dataSkippingStatsColumns": ",".join(safe)} if safe else {})


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _files(table: DeltaTable) -> list[str]:
    """The data files' names, relative to the table."""
    return [unquote(name) for name in pa.table(table.get_add_actions())["path"].to_pylist()]


def _add_actions(table: DeltaTable) -> list[Any]:
    found = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return [
        AddAction(
            row["path"],
            row["size_bytes"],
            {},
            row["modification_time"],
            True,
            f'{{"numRecords":{row["num_records"]}}}',
        )
        for row in found
    ]
