"""Read a consistent snapshot of all tables of a Delta target, from plain Python or PySpark.

    from tidegate.consumer.snapshots import open_snapshot
    tables = open_snapshot("/path/to/target").tables

`tables["bank.accounts"].to_arrow()` is a pyarrow Table; `.dataset()` scans lazily; in PySpark
`tables["bank.accounts"].to_spark(spark)` is a DataFrame over the very files of that version (no jar).
All tables of one `open_snapshot` are at the same ts. Imports only deltalake and pyarrow; starts no process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from tidegate.consumer.selecting.rules import IGNORING, SOFT_DELETE
from tidegate.errors import Fatal, InvalidInput, shown
from tidegate.sink.lakehouse.deletion_vectors import Positions
from tidegate.sink.lakehouse.object_store import SCHEME as BUCKETS
from tidegate.sink.lakehouse.object_store import Bucket, ObjectStore
from tidegate.sink.lakehouse.store import SNAPSHOTS, no_snapshot
from tidegate.sink.lakehouse.tables import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One table at the snapshot's version."""

    schema: str
    table: str
    table_id: int
    path: Path | str
    """The Delta table's directory, or its URI in an object store."""
    version: int
    """The Delta version to read it at."""
    _lake: Lakehouse
    _path: str
    """The same below the target's root, as snapshots name it."""

    @property
    def directory(self) -> Path:
        """The Delta table's directory; InvalidInput in an object store."""
        if isinstance(self.path, Path):
            return self.path
        raise InvalidInput(
            "this works with targets on the local disk only",
            where=self.path,
            why="the table is in an object store",
            fix="read it with `dataset()` or `to_arrow()`, or open it as the Delta table it is",
        )

    def dataset(self) -> ds.Dataset:
        """The rows as a pyarrow dataset: filters and column choice are pushed down.

        InvalidInput if the data files have deleted rows: see `deleted_rows`.
        """
        return self._lake.dataset(self._path, self.version)

    @property
    def columns(self) -> pa.Schema:
        """The columns, with their types."""
        return self._lake.schema(self._path, self.version)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in batches, with one of them in memory."""
        return self._lake.vectors.batches(self._path, self.version, columns)

    def to_arrow(self, columns: list[str] | None = None) -> pa.Table:
        """The rows in memory."""
        return self._lake.read(self._path, self.version, columns)

    @property
    def partition_columns(self) -> list[str]:
        """The columns by which the table is partitioned; empty: it is not."""
        return self._lake.partition_columns(self._path, self.version)

    def files(self) -> list[Path]:
        """The Parquet files that hold the rows, without the values of partition columns: see
        `partition_values`. InvalidInput if some of their rows are deleted.
        """
        if self.deleted_rows():
            raise InvalidInput(
                "the files of this table hold deleted rows",
                where=f"{self.path}, version {self.version}",
                why="the target was begun with --write-mode merge-on-read",
                fix="read it with `to_arrow()` or `batches()`, or with an engine that reads deletion vectors",
            )
        return self.data_files()

    def data_files(self) -> list[Path]:
        """The Parquet files, some of whose rows may be deleted: see `deleted_rows`."""
        return self._lake.files(self._path, self.version)

    def deleted_rows(self) -> Mapping[str, Positions]:
        """By the name of a data file, the numbers of its deleted rows, from 0; empty with `copy-on-write`."""
        return self._lake.vectors.deleted_rows(self._path, self.version)

    def partition_values(self) -> Mapping[str, Mapping[str, Any]]:
        """By the name of a data file, the values that its rows have in the partition columns; empty for a
        table that is not partitioned.
        """
        if not self.partition_columns:
            return {}
        known = self._lake.partition_values(self._path, self.version)
        # A mapping by names keeps one of two equal names, and rows would get the other file's values.
        if len(known) != len(self.data_files()):
            raise Fatal(
                "two data files of a table have one name",
                where=f"{self.path}, version {self.version}",
                why="readers of files get the values of partition columns by the names of files",
                fix="read the table with `dataset()` or `to_arrow()`, and report this",
            )
        return known

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """The rows as a DataFrame over the version's Parquet files, with the table's columns and types."""
        files = [str(file) for file in self.files()]
        schema = self.columns
        ddl = spark_schema(schema)
        if not files:
            return spark.createDataFrame([], ddl)
        columns = self.partition_columns
        if not columns:
            return spark.read.schema(ddl).parquet(*files)
        return self._partitioned(spark, files, schema, columns)

    def _partitioned(
        self, spark: SparkSession, files: list[str], schema: pa.Schema, columns: list[str]
    ) -> DataFrame:
        from pyspark.sql.functions import broadcast, col

        stored = pa.schema([field for field in schema if field.name not in columns])
        values = pa.schema([pa.field(_FILE, pa.string()), *(schema.field(name) for name in columns)])
        # Not from the names of the folders: Spark takes each byte of an encoded name for a character.
        known = self.partition_values()
        lines = [(name, *(held[one] for one in columns)) for name, held in known.items()]
        rows = spark.read.schema(spark_schema(stored)).parquet(*files)
        rows = rows.withColumn(_FILE, col("_metadata.file_name"))
        whole = rows.join(broadcast(spark.createDataFrame(lines, spark_schema(values))), _FILE)
        return whole.select(*(whole[f"`{name.replace('`', '``')}`"] for name in schema.names))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tables at one ts."""

    ts: int
    tables: Mapping[str, TableSnapshot]
    """By `schema.table`."""


def open_snapshot(target: str | Path, at: int | None = None) -> Snapshot:
    """The newest snapshot with ts <= `at`, or the newest of all.

    `target`: a directory, or a Delta target's URI, `delta:///directory` or `delta+s3://bucket/prefix`. Raises
    InvalidInput when there is none.
    """
    lake = lake_of(target)
    ts = lake.snapshots.newest_ts(at)
    if ts is None:
        raise no_snapshot(lake.store, lake.store.uri(SNAPSHOTS), at)
    tables = {
        f"{row.schema}.{row.table}": TableSnapshot(
            row.schema, row.table, row.table_id, _path_of(lake, row.path), row.version, lake, row.path
        )
        for row in lake.snapshots.rows(ts)
    }
    return Snapshot(ts, MappingProxyType(tables))


def check_comparable(target: str | Path) -> None:
    """InvalidInput for a target whose rules make its rows or columns differ from the source's: it keeps
    deleted rows, or ignores changes of columns.
    """
    text = lake_of(target).snapshots.position()
    # Only the rules are read, so that a target can be compared even if another release wrote its position.
    rules = json.loads(text).get("rules", ()) if text is not None else ()
    soft = [rule for rule in rules if rule.startswith(SOFT_DELETE)]
    if soft:
        raise InvalidInput(
            "a target that keeps deleted rows cannot be compared with its source",
            where=shown(str(target)),
            why=f"it was filled with {soft[0]}: its deleted rows, and their column, are not upstream",
            fix="compare a target without --soft-delete, or query the rows whose column is NULL yourself",
        )
    if IGNORING in rules:
        raise InvalidInput(
            "a target whose tables keep their columns cannot be compared with its source",
            where=shown(str(target)),
            why=f"it was filled with {IGNORING}: columns may be missing, and others hold old values or NULL",
            fix="compare a target that is filled with --schema-changes evolve",
        )


def lake_of(target: str | Path) -> Lakehouse:
    """A Delta target to read from: a directory, or `delta+s3://bucket/prefix`; InvalidInput for others."""
    if str(target).startswith(f"{BUCKETS}://"):
        return Lakehouse(ObjectStore(Bucket.from_uri(str(target))))
    return Lakehouse(target_directory(target))


def _path_of(lake: Lakehouse, path: str) -> Path | str:
    return lake.store.local(path) or lake.store.uri(path)


def target_directory(target: str | Path) -> Path:
    """The directory of `delta:///dir`, or of a plain path; InvalidInput for anything else."""
    text = str(target)
    if "://" not in text:
        return Path(text).expanduser().absolute()
    scheme, _, path = text.partition("://")
    if scheme == BUCKETS:
        raise InvalidInput(
            "this works with targets on the local disk only",
            where=shown(text),
            why="the target is in an object store",
            fix="write delta:///absolute/directory",
        )
    if scheme not in ("delta", "file") or not path.startswith("/"):
        raise InvalidInput(
            "this target cannot be used",
            where=shown(text),
            why=_REFUSED.get(scheme.removesuffix("+s3"), _TARGETS),
            fix="write --target delta:///absolute/directory, delta+s3://bucket/prefix, "
            "parquet:///absolute/directory, iceberg:///absolute/directory or mysql://user@host:port/",
        )
    return Path(path)


_TARGETS: Final = (
    "Delta tables, Iceberg tables or a change log in a directory or in S3, and MySQL, MariaDB or TiDB "
    "servers are targets so far"
)
_REFUSED: Final[Mapping[str, str]] = {
    "iceberg": "it has Iceberg tables, which consumer.iceberg.snapshots reads",
    "parquet": "a change log has changes and no tables; consumer.parquet.reading reads it",
}
"""By the scheme of a directory, why a target does not have Delta tables."""

_FILE: Final = "_tidegate_file"
_SPARK_TYPES: Mapping[Any, str] = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.bool_(): "boolean",
}


def spark_schema(schema: pa.Schema) -> str:
    """An Arrow schema as Spark's DDL text."""
    return ", ".join(f"`{field.name.replace('`', '``')}` {_spark_type(field.type)}" for field in schema)


def _spark_type(of_type: pa.DataType) -> str:
    if pa.types.is_timestamp(of_type):
        return "timestamp_ntz" if of_type.tz is None else "timestamp"
    if pa.types.is_decimal(of_type):
        return f"decimal({of_type.precision},{of_type.scale})"
    if pa.types.is_list(of_type):
        return f"array<{_spark_type(of_type.value_type)}>"
    return _SPARK_TYPES[of_type]
