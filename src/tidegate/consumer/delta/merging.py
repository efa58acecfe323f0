"""Merges and compaction of a Delta table in the write mode merge-on-read: which files are rewritten.

They work as Iceberg's do (`consumer.iceberg.merging`). To find the rows of its keys, a merge reads only the
key columns, and only of files that may have such a row: the log has each file's partition, and the least and
greatest value of key columns of integers. A file with such rows is rewritten, or gets a deletion vector that
has their positions and those of rows deleted earlier. An updated row stays in its file if that is rewritten.
All other new rows are written together into new files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyroaring import BitMap

from tidegate.consumer.delta.data_files import written
from tidegate.consumer.lakehouse.changed_keys import ChangedKeys
from tidegate.consumer.lakehouse.compaction import Compactable, Compaction, bundles
from tidegate.consumer.lakehouse.write_mode import WriteMode, rewrites
from tidegate.sink.lakehouse.deletion_vectors import bitmap_of
from tidegate.sink.lakehouse.live_files import LiveFile
from tidegate.sink.lakehouse.partition_values import columns_of
from tidegate.sink.lakehouse.store import Store
from tidegate.sink.lakehouse.vector_tables import VectorTables, alive, alive_batches

MODE: Final = WriteMode.MERGE_ON_READ


@dataclass(slots=True)
class Change:
    """The data files that a commit replaces and adds, and all deleted rows of those that lose some."""

    replaced: list[LiveFile] = field(default_factory=list)
    made: list[dict[str, Any]] = field(default_factory=list)
    lost: dict[str, BitMap] = field(default_factory=dict)
    lost_rows: int = 0
    """How many rows become dead without a rewrite."""

    @property
    def is_empty(self) -> bool:
        """Whether the table stays as it is."""
        return not (self.replaced or self.made or self.lost)


class Merging:
    """One table at its newest version."""

    def __init__(self, store: Store, vectors: VectorTables, path: str, table: DeltaTable) -> None:
        self._store, self._vectors, self._path, self._table = store, vectors, path, table
        self._schema, self._partition_by = pa.schema(table.schema()), columns_of(table)
        self._files = list(vectors.newest(path, table).files.values())
        # The table may be opened again, or read up to a later version, before the commit.
        self.version = int(table.version())
        """The version that a change is made from. Its commit must be the next one."""

    def merged(self, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> Change:
        """Write the data files of a merge. Keys are distinct.

        Memory holds the changes, one data file, and the vectors of all files that may have one of the keys.
        """
        upserts = upserts.select(self._schema.names).cast(self._schema)
        key_schema = pa.schema([self._schema.field(name) for name in keys])
        changed = [upserts.select(list(keys)), deletes.select(list(keys)).cast(key_schema)]
        touched = ChangedKeys(pa.concat_tables(changed))
        change, placed = Change(), np.zeros(upserts.num_rows, np.bool_)
        files = {file.name: file for file in self._files if may_have(file, touched, self._partition_by)}
        bitmaps = self._vectors.bitmaps(self._path, list(files.values()))
        for name, fragment in self._vectors.fragments(self._path, self._table, list(files)):
            file, dead = files[name], bitmaps.get(name)
            found = touched.found_in(fragment.to_table(schema=self._schema, columns=list(keys))) >= 0
            # An older version of a row may be in this file: it is dead, and must not be deleted once more.
            hits = np.flatnonzero(found & alive(len(found), dead)).astype(np.uint32)
            if not len(hits):
                continue
            if rewrites(MODE, len(hits), len(found), file.size):
                change.made += self._written(self._rewritten(fragment, dead, touched, upserts, placed))
                change.replaced.append(file)
            else:
                lost = bitmap_of(hits)
                change.lost[name] = lost if dead is None else dead | lost
                change.lost_rows += len(hits)
        # These are new rows, and updated ones whose last version is in a file that stays and only loses it.
        change.made += self._written(iter(upserts.filter(pa.array(~placed)).to_batches()))
        return change

    def _rewritten(
        self,
        fragment: ds.Fragment,
        dead: BitMap | None,
        touched: ChangedKeys,
        upserts: pa.Table,
        placed: npt.NDArray[np.bool_],
    ) -> Iterator[pa.RecordBatch]:
        """A file's rows after the merge; marks the upserts that are among them in `placed`."""
        here = np.zeros(upserts.num_rows, np.bool_)
        for batch in alive_batches(fragment, self._schema, self._schema.names, dead):
            found = touched.found_in(pa.Table.from_batches([batch]))
            yield batch.filter(pa.array(found < 0))
            # The upserts come first among the touched keys, so a higher number is that of a deleted key.
            here[found[(found >= 0) & (found < upserts.num_rows)]] = True
        placed |= here
        yield from upserts.filter(pa.array(here)).to_batches()

    def _written(self, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
        return list(written(self._store, self._path, batches, self._partition_by))

    def compacted(self, compaction: Compaction, keys: Sequence[str]) -> Change:
        """Write small data files together, if there are many, and others without their dead rows."""
        change = Change()
        for part in compaction.choose(self._path, [_compactable(file) for file in self._files]):
            chosen = sorted((self._files[at] for at in part), key=lambda file: _first_key(file, keys))
            order = [
                (key, "ascending") for key in keys if not pa.types.is_nested(self._schema.field(key).type)
            ]
            for rows in bundles(self._rows(chosen)):
                # The rows stay the same: readers of changes are to skip this commit.
                sorted_rows = rows.sort_by(order) if order else rows
                made = [
                    action | {"dataChange": False} for action in self._written(iter(sorted_rows.to_batches()))
                ]
                compaction.made(rows, [action["path"] for action in made])
                change.made += made
            change.replaced += chosen
        return change

    def _rows(self, files: Sequence[LiveFile]) -> Iterator[pa.Table]:
        """The rows of data files that are not deleted, in pieces."""
        bitmaps, names = self._vectors.bitmaps(self._path, files), [file.name for file in files]
        for name, fragment in self._vectors.fragments(self._path, self._table, names):
            for batch in alive_batches(fragment, self._schema, self._schema.names, bitmaps.get(name)):
                yield pa.Table.from_batches([batch])


def may_have(file: LiveFile, touched: ChangedKeys, partition_by: Sequence[str]) -> bool:
    """Whether one of the keys can be in a file."""
    columns = touched.columns

    def bounds(at: int) -> tuple[Any, Any]:
        name = columns.field(at).name
        # Other types have no statistics, and their partition values are texts of several forms.
        if not pa.types.is_integer(columns.field(at).type):
            return None, None
        if name in partition_by:
            text = file.partition[name]
            value = int(text) if text is not None else None
            return value, value
        return file.lowest.get(name), file.greatest.get(name)

    return touched.may_be_within(bounds)


def _first_key(file: LiveFile, keys: Sequence[str]) -> tuple[bool, Any]:
    """For the order of files: neighbours are merged into one file."""
    low = file.lowest.get(keys[0]) if keys else None
    return low is None, low


def _compactable(file: LiveFile) -> Compactable:
    partition = tuple(sorted(file.partition.items()))
    return Compactable(file.name, file.size, file.rows, file.dead, partition)
