"""A merge: which data files it rewrites, which only lose rows, and where the new rows go.

To find the rows of its keys, a merge reads only the key columns, and only of files that may have such a row.
Manifests show that: they have each file's partition, and the least and greatest value of each key column.

A file with such rows is rewritten, or a delete file gets their positions (`write_mode`). An updated row stays
in its file if that is rewritten. All other new rows are written together into new files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.consumer.iceberg.data_files import Touched, written
from tidegate.consumer.iceberg.table_files import Change, Lost, TableFiles
from tidegate.consumer.iceberg.tables import Writing
from tidegate.consumer.lakehouse.write_mode import WriteMode, rewrites


def merged(
    files: TableFiles,
    writing: Writing,
    upserts: pa.Table,
    deletes: pa.Table,
    keys: Sequence[str],
    mode: WriteMode,
) -> Change:
    """Write the data files of a merge. Keys are distinct; rows have the types of data files.

    Memory holds the changes and one data file.
    """
    changed = pa.concat_tables([upserts.select(list(keys)), deletes.select(list(keys))])
    touched = Touched(changed, files.table.metadata)
    change, placed = Change(), np.zeros(upserts.num_rows, np.bool_)
    for task in files.tasks:
        if not touched.may_be_in(task.file):
            continue
        hits = files.hits(task, touched)
        if not len(hits):
            continue
        if rewrites(mode, len(hits), task.file.record_count, task.file.file_size_in_bytes):
            rest = _rewritten(files.rows(task, upserts.schema), touched, upserts, placed)
            change.made += written(writing.table_metadata, writing.io, rest.to_batches())
            change.replaced.append(task.file)
        else:
            change.lost.append(Lost(task.file, hits))
    # These are new rows, and updated ones whose last version is in a file that stays and only loses it.
    fresh = upserts.filter(pa.array(~placed))
    change.made += written(writing.table_metadata, writing.io, fresh.to_batches())
    return change


def _rewritten(
    held: pa.Table, touched: Touched, upserts: pa.Table, placed: npt.NDArray[np.bool_]
) -> pa.Table:
    """A file's rows after the merge; marks the upserts that are among them in `placed`."""
    found = touched.found_in(held)
    rest = held.filter(pa.array(found < 0))
    # The upserts come first among the touched keys, so a higher number is that of a deleted key.
    mine = np.unique(found[(found >= 0) & (found < upserts.num_rows)])
    placed[mine] = True
    return pa.concat_tables([rest, upserts.take(pa.array(mine))])
