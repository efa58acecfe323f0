"""Tables with deletion vectors: their rows without the deleted ones, and the commits that delete more.

A data file is read by pyarrow like that of any table, and its rows are counted, because a vector has their
numbers. pyarrow returns them in the order of the file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyroaring import BitMap

from tidegate.errors import Fatal
from tidegate.sink.lakehouse import deletion_vectors
from tidegate.sink.lakehouse.deletion_vectors import Positions, Vector
from tidegate.sink.lakehouse.delta_commit import RESTORED
from tidegate.sink.lakehouse.live_files import FEATURE, LiveFile, LiveFiles, advanced
from tidegate.sink.lakehouse.own_tables import OwnTables, deleted_already, files_of
from tidegate.sink.lakehouse.store import LOG, Store, create_own

FILES_MAX: Final = 20_000
"""How many data files are remembered, over all tables; a table that is forgotten has its log read again. One
takes about 3 KB with bounds of ten columns."""
BITMAPS_MAX: Final = 64 << 20
"""Bytes of vectors that are remembered between commits, over all tables. Others are read again."""
CHECKPOINT_EVERY: Final = 100
"""Commits between two checkpoints, as delta-rs makes them by default."""


def may_have_vectors(table: DeltaTable) -> bool:
    """Whether some data file of a table may have a vector."""
    return FEATURE in (table.protocol().reader_features or ())


class VectorTables:
    """The tables of one target. Threads may use different tables at once."""

    def __init__(self, store: Store, tables: OwnTables) -> None:
        self._store, self._tables = store, tables
        self._lock = threading.Lock()
        self._newest: OrderedDict[str, LiveFiles] = OrderedDict()
        self._files = 0
        """How many data files these have."""
        self._bitmaps: OrderedDict[tuple[str, str], tuple[Vector, BitMap]] = OrderedDict()
        """By path and data file."""
        self._bytes = 0

    # --- what there is

    def live(self, path: str, version: int | None = None) -> LiveFiles:
        """The data files of a table at a version; None: at its newest, which the next commit advances."""
        if version is None:
            return self.newest(path, self._tables.open(path))
        with self._lock:
            held = self._newest.get(path)
        # A commit changes the newest one, so it is not handed out for reading.
        earlier = held.copy() if held is not None and held.version <= version else None
        return advanced(earlier, self._store, path, version)

    def newest(self, path: str, table: DeltaTable) -> LiveFiles:
        """The data files of a table that is open at its newest version, which the next commit advances."""
        found = advanced(self._taken(path), self._store, path, int(table.version()))
        self._keep(path, found)
        return found

    def _taken(self, path: str) -> LiveFiles | None:
        """The newest files of a table that are remembered, which no one else then uses."""
        with self._lock:
            held = self._newest.pop(path, None)
            self._files -= len(held.files) if held is not None else 0
        return held

    def _keep(self, path: str, live: LiveFiles) -> None:
        with self._lock:
            self._newest[path] = live
            self._files += len(live.files)
            while self._files > FILES_MAX and len(self._newest) > 1:
                self._files -= len(self._newest.popitem(last=False)[1].files)

    def vectors(self, path: str, table: DeltaTable) -> dict[str, LiveFile]:
        """By name, the data files with deleted rows of an open table; reads its log if there may be any."""
        if not may_have_vectors(table):
            return {}
        files = self.live(path, int(table.version())).files
        return {name: file for name, file in files.items() if file.vector is not None}

    def bitmaps(self, path: str, files: Sequence[LiveFile]) -> dict[str, BitMap]:
        """The vectors of data files, by their names; a file without deleted rows has none."""
        found, missing = dict[str, BitMap](), dict[str, list[tuple[LiveFile, Vector]]]()
        with self._lock:
            for file in files:
                if file.vector is None:
                    continue
                vector, bitmap = self._bitmaps.get((path, file.name), (None, None))
                if vector == file.vector and bitmap is not None:
                    self._bitmaps.move_to_end((path, file.name))
                    found[file.name] = bitmap
                else:
                    missing.setdefault(file.vector.file, []).append((file, file.vector))
        for name, some in missing.items():
            key = f"{path}/{name}"
            data = self._store.get(key)
            if data is None:
                raise _gone(self._store.uri(key))
            for file, vector in some:
                found[file.name] = deletion_vectors.vector_in(data, vector, self._store.uri(key))
                self._remember(path, file.name, vector, found[file.name])
        return found

    def _remember(self, path: str, name: str, vector: Vector, bitmap: BitMap) -> None:
        with self._lock:
            earlier = self._bitmaps.pop((path, name), None)
            self._bytes += vector.size - (earlier[0].size if earlier is not None else 0)
            self._bitmaps[path, name] = vector, bitmap
            while self._bytes > BITMAPS_MAX and len(self._bitmaps) > 1:
                self._bytes -= self._bitmaps.popitem(last=False)[1][0].size

    def forget(self, path: str) -> None:
        """Forget a table that is removed: another one may get its path, and count its versions from 0."""
        self._taken(path)

    # --- rows

    def fragments(
        self, path: str, table: DeltaTable, names: Sequence[str]
    ) -> Iterator[tuple[str, ds.Fragment]]:
        """The data files of these names, in this order, for reading with the schema of the table."""
        found = {one.path: one for one in self._tables.rows_of(path, table, names).get_fragments()}
        for name in names:
            yield name, found[self._store.file(f"{path}/{name}")]

    def batches(
        self, path: str, version: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a table at a version that are not deleted, a batch of a data file at a time.

        They are those at the time of this call, even if the table is written while they are read.
        """
        return self._batches(path, self._tables.open(path, version), columns)

    def read(self, path: str, table: DeltaTable, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of an open table that are not deleted."""
        schema = pa.schema(table.schema())
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        return pa.Table.from_batches(self._batches(path, table, columns), wanted)

    def _batches(
        self, path: str, table: DeltaTable, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        schema, held = pa.schema(table.schema()), self.vectors(path, table)
        wanted = list(schema.names if columns is None else columns)
        if not held:  # pyarrow then reads several files at once
            whole: Iterator[pa.RecordBatch] = self._tables.rows_of(path, table, files_of(table)).to_batches(
                columns=wanted
            )
            return whole
        bitmaps = self.bitmaps(path, list(held.values()))
        files = [(one, bitmaps.get(name)) for name, one in self.fragments(path, table, files_of(table))]
        return (row for one, dead in files for row in alive_batches(one, schema, wanted, dead))

    def files_of(self, path: str, table: DeltaTable) -> list[tuple[str, str]]:
        """The files of vectors of an open table, each with a data file whose vector is in it."""
        held = self.vectors(path, table)
        return [(one.vector.file, name) for name, one in held.items() if one.vector is not None]

    def deleted_rows(self, path: str, version: int | None = None) -> dict[str, Positions]:
        """The deleted rows by the name of a data file, which is its own in the table."""
        held = self.vectors(path, self._tables.open(path, version))
        found = self.bitmaps(path, list(held.values()))
        return {
            name.rpartition("/")[2]: deletion_vectors.positions_in(bitmap) for name, bitmap in found.items()
        }

    # --- commits

    def commit(
        self,
        path: str,
        base: int,
        replaced: Sequence[LiveFile],
        made: Sequence[Mapping[str, Any]],
        lost: Mapping[str, BitMap],
    ) -> None:
        """Replace data files, add new ones that are written already, and give others a new vector.

        `base`: the version whose files these are. Fatal if another program has committed since. `lost`: by
        the name of a data file, all its deleted rows, earlier ones included.
        """
        vectors = dict[str, Vector]()

        def lines(live: LiveFiles) -> bytes:
            vectors.update(self._write(path, lost))
            return live.changing(replaced, made, vectors)

        self._commit(path, lines, base)
        for name, vector in vectors.items():
            self._remember(path, name, vector, lost[name])

    def restore(self, path: str, version: int) -> None:
        """Undo all commits after `version`. Fatal if files of that version were deleted."""
        old = self.live(path, version)
        there = set(self._store.files_below(path))

        def lines(live: LiveFiles) -> bytes:
            for file in old.missing_in(live):
                for name in (file.name, file.vector.file if file.vector is not None else file.name):
                    if name not in there:
                        raise deleted_already(self._store.uri(f"{path}/{name}"))
            return live.restoring(old, {RESTORED: str(version)})

        self._commit(path, lines)

    def _commit(self, path: str, lines_of: Callable[[LiveFiles], bytes], base: int | None = None) -> None:
        """Make these lines the next version. Their files are written before, or by `lines_of`."""
        with self._tables.writing(path, base) as table:
            before = int(table.version())
            # A commit that fails leaves nothing.
            live = advanced(self._taken(path), self._store, path, before)
            lines = lines_of(live)
            if not create_own(self._store, f"{path}/{LOG}/{before + 1:020d}.json", lines):
                raise CommitFailedError(f"version {before + 1} already exists")
            live.commit(before + 1, lines)
            table.update_incremental()
            if (before + 2) % CHECKPOINT_EVERY == 0:
                table.create_checkpoint()
        self._keep(path, live)

    def _write(self, path: str, lost: Mapping[str, BitMap]) -> dict[str, Vector]:
        """Write the vectors into one file, before the commit that names them."""
        if not lost:
            return {}
        data, vectors = deletion_vectors.file_of(list(lost.values()))
        self._store.put(f"{path}/{vectors[0].file}", data)
        return dict(zip(lost, vectors, strict=True))


def alive(count: int, bitmap: BitMap | None) -> npt.NDArray[np.bool_]:
    """For each row of a data file, whether it is not deleted."""
    found = np.ones(count, np.bool_)
    if bitmap is not None:
        found[deletion_vectors.positions_in(bitmap)] = False
    return found


def alive_batches(
    fragment: ds.Fragment, schema: pa.Schema, columns: Sequence[str], bitmap: BitMap | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a data file that are not deleted."""
    batches = fragment.to_batches(schema=schema, columns=list(columns))
    if bitmap is None:
        yield from batches
        return
    dead, begin = deletion_vectors.positions_in(bitmap), 0
    for batch in batches:
        yield deletion_vectors.without(batch, dead, begin)
        begin += batch.num_rows


def _gone(where: str) -> Fatal:
    return Fatal(
        "a file with deleted rows of a table is gone",
        where=where,
        why="without it, the rows that are deleted would be read as if they were not",
        fix="restore the file, or start a new target",
    )
