"""Delta tables through delta-rs (no JVM, no jar): tables, and the table of snapshots that makes them one.

Layout under the root: `SCHEMA/TABLE` (encoded, see `slot_path`) is a Delta table; `_tidegate/snapshots` is
itself one, with (ts, schema_name, table_name, table_id, path, version). One append to it names one readable,
consistent snapshot of all tables, and its commit carries the consumer's position: that append is the only
commit point. Whatever a table's log holds beyond the version the newest snapshot names is unfinished:
`restore` undoes it.

A path is a *slot* with one linear history: a table dropped and made again, or truncated, goes on in the same
log, so older snapshots stay readable at their versions. A rename links the data files into the new slot.

Statistics are written for integer and date columns only: delta-rs cuts decimals to 64 bits and timestamps
to milliseconds in them, and a merge that skips files by such bounds would miss rows.

One process writes: the consumer's driver, under the lock of its root. Not safe for two. Durability is the
file system's. Local paths only for now; links fall back to copies.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from tidegate.errors import Fatal, InvalidInput

SNAPSHOT_SCHEMA: Final = pa.schema(
    [
        pa.field("ts", pa.int64()),
        pa.field("schema_name", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("table_id", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("version", pa.int64()),
    ]
)
SNAPSHOTS: Final = "_tidegate/snapshots"
COMPACT_FILES: Final = 24
"""A table with more data files than this is compacted before the next snapshot names it."""
HISTORY_LIMIT: Final = 64
"""How many commits back the position is looked for; maintenance commits repeat it, so 1 is usual."""
_STATS_SAFE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=True)


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """One table in one snapshot."""

    ts: int
    schema: str
    table: str
    table_id: int
    path: str
    version: int


def slot_path(schema: str, table: str) -> str:
    """The path of a table below the root: letters, digits and . _ ~ - as they are, other bytes as =XX.

    It is percent-encoding with another sign: delta-rs 1.6 cannot open a directory whose name holds a percent
    sign. A leading dot or underscore is encoded too: those names are ours.
    """

    def part(name: str) -> str:
        text = quote(name, safe="").replace("%", "=")
        return f"={ord(text[0]):02X}{text[1:]}" if text[:1] in ("_", ".") else text

    return f"{part(schema)}/{part(table)}"


class Lakehouse:
    """The Delta tables below one root directory."""

    def __init__(self, root: Path) -> None:
        """Raises InvalidInput for a directory name that delta-rs cannot open."""
        self.root = root.absolute()
        if set(str(self.root)) & set("%\\[]^|"):
            raise InvalidInput(
                "the target directory's name holds a character that Delta tables cannot live under",
                where=str(self.root),
                why="one of % \\ [ ] ^ |",
                fix="choose another directory",
            )

    def exists(self, path: str) -> bool:
        """Whether a slot holds a Delta table."""
        return (self.root / path / "_delta_log").is_dir() and DeltaTable.is_deltatable(self._uri(path))

    def version(self, path: str) -> int:
        """The newest version of a slot."""
        return int(self._open(path).version())

    def create(self, path: str, schema: pa.Schema) -> None:
        """Make the slot an empty table of this schema; what it held stays readable at its older versions."""
        if self.exists(path):
            self._overwrite(path, schema, iter(()))
            return
        self._discard(path)
        (self.root / path).mkdir(parents=True)
        DeltaTable.create(
            self._uri(path),
            schema=schema,
            configuration=_configuration(schema),
            post_commithook_properties=_HOOKS,
        )

    def append(self, path: str, rows: pa.Table) -> None:
        """Add rows."""
        write_deltalake(self._open(path), rows, mode="append", post_commithook_properties=_HOOKS)

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Replace or insert rows and delete keys, in one commit. Keys are not null and distinct over both."""
        missing = [field for field in upserts.schema if field.name not in deletes.column_names]
        for field in missing:
            deletes = deletes.append_column(field, pa.nulls(deletes.num_rows, field.type))
        rows = pa.concat_tables([upserts, deletes.select(upserts.column_names)])
        gone = pa.array([False] * upserts.num_rows + [True] * deletes.num_rows, pa.bool_())
        rows = rows.append_column("_tidegate_gone", gone)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in upserts.column_names}
        merger = self._open(path).merge(
            rows,
            " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            post_commithook_properties=_HOOKS,
        )
        merger = merger.when_matched_delete("s._tidegate_gone")
        merger = merger.when_matched_update(values, predicate="NOT s._tidegate_gone")
        merger.when_not_matched_insert(values, predicate="NOT s._tidegate_gone").execute()

    def add_null_columns(self, path: str, schema: pa.Schema) -> None:
        """Append the columns of `schema` that are missing, null in all rows, without touching data files."""
        write_deltalake(
            self._open(path),
            schema.empty_table(),
            mode="append",
            schema_mode="merge",
            post_commithook_properties=_HOOKS,
        )

    def rewrite(
        self, path: str, schema: pa.Schema, change: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> None:
        """Replace all rows by `change` of them, batch by batch, in one commit."""
        batches = self.dataset(path).to_batches()
        self._overwrite(path, schema, (change(batch) for batch in batches))

    def replace(self, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Put `batches` in the place of all rows, in one commit. They may come from the slot's own files."""
        self._overwrite(path, schema, batches)

    def rename(self, source: str, target: str, version: int | None = None) -> None:
        """Give the rows of one slot to another: the data files are linked, none is rewritten.

        `version` of the source, None: its newest. Fatal when files of an older one are deleted already.
        """
        held = self._open(source, version)
        missing = [name for name in _files(held) if not (self.root / source / name).exists()]
        if missing:
            raise Fatal(
                "rows that are to come back are deleted already",
                where=f"{self.root / source / missing[0]}",
                why="the table's version is older than the target's retention",
                fix="start a new target directory; a longer --retention-hours keeps them",
            )
        schema = pa.schema(held.schema())
        self.create(target, schema)
        for name in _files(held):
            _link(self.root / source / name, self.root / target / name)
        table = self._open(target)
        actions = _add_actions(held)
        table.create_write_transaction(
            actions, mode="append", schema=schema, post_commithook_properties=_HOOKS
        )

    def restore(self, path: str, version: int) -> bool:
        """Undo everything after `version`; False when there is nothing to undo."""
        table = self._open(path)
        if table.version() == version:
            return False
        newest = table.history(1)[0]
        if newest.get("operation") == "RESTORE" and newest.get("tidegate.restored") == str(version):
            return False
        properties = CommitProperties(custom_metadata={"tidegate.restored": str(version)})
        table.restore(version, commit_properties=properties, post_commithook_properties=_HOOKS)
        return True

    def dataset(self, path: str, version: int | None = None) -> ds.Dataset:
        """A slot's rows at a version, as a pyarrow dataset over its data files."""
        table = self._open(path, version)
        names = [str(self.root / path / name) for name in _files(table)]
        return ds.dataset(names, schema=pa.schema(table.schema()), format="parquet")

    def files(self, path: str, version: int | None = None) -> list[Path]:
        """The data files of a slot at a version."""
        return [self.root / path / name for name in _files(self._open(path, version))]

    def read(self, path: str, version: int | None = None, columns: list[str] | None = None) -> pa.Table:
        """A slot's rows at a version."""
        return self.dataset(path, version).to_table(columns=columns)

    def compact(self, path: str) -> bool:
        """Merge small data files when there are more than `COMPACT_FILES`; the rows stay the same."""
        table = self._open(path)
        if len(_files(table)) <= COMPACT_FILES:
            return False
        table.optimize.compact(post_commithook_properties=_HOOKS)
        return True

    def vacuum(self, path: str, retention_hours: int, keep_versions: list[int]) -> int:
        """Delete files that no version within the retention and none of `keep_versions` needs."""
        deleted = self._open(path).vacuum(
            retention_hours=retention_hours,
            dry_run=False,
            enforce_retention_duration=False,
            keep_versions=keep_versions,
        )
        return len(deleted)

    def publish(self, rows: Sequence[SnapshotRow], metadata: Mapping[str, str]) -> None:
        """Name a snapshot: the commit point. `metadata` travels in the same commit."""
        if not self.exists(SNAPSHOTS):
            self.create(SNAPSHOTS, SNAPSHOT_SCHEMA)
        write_deltalake(
            self._open(SNAPSHOTS),
            _snapshot_table(rows),
            mode="append",
            commit_properties=CommitProperties(custom_metadata=dict(metadata)),
            post_commithook_properties=_HOOKS,
        )

    def republish(self, ts: int, rows: Sequence[SnapshotRow], metadata: Mapping[str, str]) -> None:
        """Put `rows` in the place of those that name the snapshot at `ts`, in one commit."""
        write_deltalake(
            self._open(SNAPSHOTS),
            _snapshot_table(rows),
            mode="overwrite",
            predicate=f"ts = {ts}",
            commit_properties=CommitProperties(custom_metadata=dict(metadata)),
            post_commithook_properties=_HOOKS,
        )

    def metadata(self, key: str) -> str | None:
        """The newest value that `publish` or `trim` committed under `key`; None for a fresh target."""
        if not self.exists(SNAPSHOTS):
            return None
        for commit in self._open(SNAPSHOTS).history(HISTORY_LIMIT):
            if key in commit:
                return str(commit[key])
        return None

    def snapshot_rows(self, ts: int | None = None) -> list[SnapshotRow]:
        """The rows of the newest snapshot with ts <= `ts` (None: the newest of all)."""
        if not self.exists(SNAPSHOTS):
            return []
        rows = self.read(SNAPSHOTS)
        if ts is not None:
            rows = rows.filter(pc.less_equal(rows["ts"], ts))
        if rows.num_rows == 0:
            return []
        newest = pc.max(rows["ts"]).as_py()
        found = rows.filter(pc.equal(rows["ts"], newest)).to_pylist()
        return [
            SnapshotRow(
                row["ts"], row["schema_name"], row["table_name"], row["table_id"], row["path"], row["version"]
            )
            for row in found
        ]

    def trim_snapshots(self, below_ts: int, metadata: Mapping[str, str]) -> None:
        """Forget snapshots with ts < below_ts and compact the table of snapshots; `metadata` is repeated."""
        table = self._open(SNAPSHOTS)
        properties = CommitProperties(custom_metadata=dict(metadata))
        table.delete(f"ts < {below_ts}", commit_properties=properties, post_commithook_properties=_HOOKS)
        table.optimize.compact(commit_properties=properties, post_commithook_properties=_HOOKS)

    def named_versions(self) -> dict[str, list[int]]:
        """Every path and the versions of it that some snapshot names."""
        rows = self.read(SNAPSHOTS, columns=["path", "version"]).to_pylist() if self.exists(SNAPSHOTS) else []
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(row["path"], []).append(row["version"])
        return found

    def discard(self, path: str) -> None:
        """Remove a slot with its files: only for slots that no snapshot names."""
        self._discard(path)

    def slots(self) -> list[str]:
        """All slots on disk."""
        if not self.root.is_dir():
            return []
        return sorted(
            f"{table.parent.name}/{table.name}"
            for schema in self.root.iterdir()
            if schema.is_dir() and not schema.name.startswith((".", "_"))
            for table in schema.iterdir()
            if table.is_dir()
        )

    def _overwrite(self, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        table = self._open(path)
        write_deltalake(
            table,
            reader,
            mode="overwrite",
            schema_mode="overwrite",
            configuration=_configuration(schema),
            post_commithook_properties=_HOOKS,
        )
        self._open(path).alter.set_table_properties(_configuration(schema), post_commithook_properties=_HOOKS)

    def _discard(self, path: str) -> None:
        shutil.rmtree(self.root / path, ignore_errors=True)

    def _uri(self, path: str) -> str:
        return str(self.root / path)

    def _open(self, path: str, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self._uri(path), version=version)
        except TableNotFoundError as error:
            raise Fatal(
                "a Delta table that a snapshot needs is gone",
                where=str(self.root / path),
                why=str(error),
                fix="restore the directory, or start a new target",
            ) from error
        except DeltaError as error:
            at = "" if version is None else f" at version {version}"
            raise Fatal(
                "a Delta table cannot be read",
                where=f"{self.root / path}{at}",
                why=str(error),
                fix="check the directory; a snapshot older than the retention can no longer be read",
            ) from error


def _snapshot_table(rows: Sequence[SnapshotRow]) -> pa.Table:
    columns = [
        pa.array([row.ts for row in rows], pa.int64()),
        pa.array([row.schema for row in rows], pa.string()),
        pa.array([row.table for row in rows], pa.string()),
        pa.array([row.table_id for row in rows], pa.int64()),
        pa.array([row.path for row in rows], pa.string()),
        pa.array([row.version for row in rows], pa.int64()),
    ]
    return pa.table(columns, schema=SNAPSHOT_SCHEMA)


def _configuration(schema: pa.Schema) -> dict[str, str]:
    safe = [f.name for f in schema if f.type in _STATS_SAFE and _PLAIN_NAME.fullmatch(f.name)]
    settings = {"delta.logRetentionDuration": "interval 2 days", "delta.dataSkippingNumIndexedCols": "0"}
    return settings | ({"delta.dataSkippingStatsColumns": ",".join(safe)} if safe else {})


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


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
