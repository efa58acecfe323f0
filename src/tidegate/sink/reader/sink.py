"""The sink of a reader: writes rows as Arrow pieces into `changes.db` in the folder of its changefeed."""

from __future__ import annotations

import sqlite3
import time
from binascii import crc32
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.errors import Fatal, Retryable
from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.sink.base import Check, Content, Description, Domain, Form, Marks, Prove, SinkFeed
from tidegate.sink.reader.changes import (
    CHANGED,
    COMMIT_TS,
    DELETED,
    FILE,
    SCHEMA_NAME,
    SEQ_A_TS,
    SILENT_CODE,
    TABLE_NAME,
    Changes,
    Definition,
    check_form,
    kept_of,
    piece_schema,
    readable_of,
    write_definition,
)
from tidegate.sink.sqlite import FencedCommits, Ledger, SqliteOwner, as_retryable

DUE_BYTES: Final = 16 << 20
"""A transaction is due when it holds so many bytes of Arrow rows."""
PIECE_BYTES: Final = 4 << 20
"""The approximate size of a piece before it is compressed; a larger row is a piece of its own."""
BEYOND: Final = 2
"""So many times max-kept may be stored if the query cannot free anything because resolved ts does not
advance, for example in a transaction larger than max-kept."""
ROOM_MIN: Final = 64 << 10
PARTS_MAX: Final = 1 << 16
"""The highest number of parts into which the tables of a reader can be divided."""
GRACE_S: Final = 600.0
"""An owner does not check for a silent query in this time after it was opened: the capture may have been
down while the query waited for it."""
GAP_S: Final = 60.0
"""If the wall clock advances by more than this between two checks, the machine slept, and the query with it,
or the clock was set."""
_WORDS: Final = "insert", "update", "delete"
_NUMBERS: Final = np.zeros(256, np.int64)
_NUMBERS[[INSERT, UPDATE, DELETE]] = 0, 1, 2
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd")

Row = tuple[int, int, int, int, bytes]
"""A row of `pieces`, without its number."""


class ReaderSink(Ledger):
    """The sink of one reader."""

    def __init__(self, feed: SinkFeed) -> None:
        assert feed.folder is not None, "a reader's changes lie in its changefeed's folder"
        super().__init__(feed, feed.folder / FILE)
        self.max_bytes = int(feed.uri.option("max-kept"))
        self.hold_s = int(feed.uri.option("hold"))

    def connect(self) -> sqlite3.Connection:
        """A connection. Raises Fatal if the file is missing, because a new one would leave a gap in the
        changes, and if it has another form.
        """
        # SQLite itself would create the file.
        if not self.path.exists():
            raise Fatal(
                "the changes that were kept for the reader are gone",
                where=str(self.path),
                why="somebody has removed the file",
                fix="remove the reader's changefeed, and start a new query with a new checkpoint",
            )
        connection = super().connect()
        try:
            with as_retryable(self.path):
                check_form(connection, self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def describe(self) -> Description:
        """The form that the sink accepts, its guarantees, and its limits."""
        return Description(
            form=Form.ARROW,
            domain=Domain.ROW,
            pieces=True,
            writers=0,
            atomic=True,
            fenced_by="a row with the grant, read in the transaction of the rows",
            here=True,
            shows_whole=True,
        )

    def open_owner(self, marks: Marks | None, prove: Prove) -> ReaderOwner:
        """Open the owner's side."""
        return ReaderOwner(self, prove)

    def writer(
        self,
        slot: int,
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> ReaderWriter:
        """Open the writer of a slot. `check` is not called, because a file answers at once."""
        return ReaderWriter(self, slot, prove, alive)


class ReaderWriter:
    """Collects rows and writes them as pieces."""

    def __init__(self, sink: ReaderSink, slot: int, prove: Prove, alive: Callable[[], None]) -> None:
        self._held: dict[tuple[str, str, pa.Schema], list[pa.RecordBatch]] = {}
        self._size = 0
        self._rows: list[Row] = []
        self._sink, self._alive = sink, alive
        self.commits = FencedCommits(sink, slot, prove)

    @property
    def is_due(self) -> bool:
        """Whether the rows collected so far are enough for a commit."""
        return self._size >= DUE_BYTES

    @property
    def room(self) -> int:
        """Bytes until `is_due`, at least `ROOM_MIN`."""
        return max(DUE_BYTES - self._size, ROOM_MIN)

    def write(self, contents: Sequence[Content]) -> None:
        """Collect rows by table and table version, until the commit."""
        for content in contents:
            assert isinstance(content, ArrowRows)
            batch = typed(content)
            of = content.table.schema, content.table.table, batch.schema
            self._held.setdefault(of, []).append(batch)
            self._size += batch.nbytes
        self._alive()

    def commit(self, progress: Mapping[str, bytes]) -> None:
        """Make everything since the last commit, and these records, durable together before returning."""
        # Compressed before the transaction, so that other writers of the file wait only for the inserts.
        self._rows = [row for (name, of, _), held in self._held.items() for row in pieces(name, of, held)]
        self.commits.commit(progress, self._insert, self.abort)

    def _insert(self, connection: sqlite3.Connection) -> None:
        """Write the pieces. Raises Retryable if max-kept is reached and the query can free something."""
        rows = self._rows
        if not rows:
            return
        kept, limit = kept_of(connection), self._sink.max_bytes
        # If the query can read nothing until more rows arrive, refusing them would block both for ever. So
        # rows beyond the limit are accepted then, but only up to BEYOND times the limit.
        if kept > limit and (_can_drain(connection) or kept > BEYOND * limit):
            raise Retryable(
                "a reader's kept changes have reached their limit",
                where=f"reader {self._sink.name}: {kept >> 20} MiB of {limit >> 20} (max-kept)",
                why="its query does not take them, or takes them more slowly than they come",
                fix="start the query; the changefeed then continues by itself; if the reader is no longer "
                "needed, remove its changefeed",
            )
        connection.executemany(
            "INSERT INTO pieces (part, first_ts, last_ts, bytes, data) VALUES (?, ?, ?, ?, ?)", rows
        )
        more = kept + sum(row[3] for row in rows)
        connection.execute("INSERT OR REPLACE INTO state VALUES ('kept', ?)", [more])

    def abort(self) -> None:
        """Discard the collected rows."""
        self._held, self._rows, self._size = {}, [], 0

    def close(self) -> None:
        """Close the file."""
        self.abort()
        self.commits.close()


class ReaderOwner(SqliteOwner):
    """Writes definitions, and stops serving a reader whose query was silent for too long."""

    def __init__(self, sink: ReaderSink, prove: Prove) -> None:
        super().__init__(sink, prove)
        self._sink = sink
        self._watches_since, self._looked_at = time.monotonic(), time.time()
        self._changes = Changes(sink.path.parent)
        self._check_kept()

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """Record that all rows up to `ts` are in the file. Raises Fatal if the query was silent too long."""
        self._check_queried()
        super().send_resolved(ts, build_ms)

    def record_ddl(self, connection: sqlite3.Connection, event: DdlEvent) -> None:
        """Write a table's definition from this DDL on, or its removal."""
        names = event.schema, event.table, event.old_schema, event.old_table
        write_definition(
            connection,
            Definition(event.finished_ts, event.seq, *names, event.action, event.query, event.after),
        )

    def _check_queried(self) -> None:
        """Stop serving the reader if its query was silent for longer than `hold`.

        Only silence that this process has watched counts: while it did not run, it received no requests.
        """
        now, before = time.time(), self._looked_at
        self._looked_at = now
        if abs(now - before) > GAP_S:
            self._watches_since = time.monotonic()
        if time.monotonic() - self._watches_since < GRACE_S:
            return
        queried_ms = self._changes.progress().queried_ms
        silent_s = now - queried_ms / 1000
        if silent_s > self._sink.hold_s:
            hours = f"{silent_s / 3600:.1f} hours (hold: {self._sink.hold_s} s)"
            # Stops nothing if the query has sent a request since `queried_ms`; the check then passes.
            self._changes.stop(f"its query sent no request for {hours}", queried_ms)
            self._check_kept()

    def _check_kept(self) -> None:
        """Raise Fatal if the reader's changes were deleted: changes that came later would leave a gap."""
        why = self._changes.progress().stopped_why
        if why:
            raise Fatal(
                f"[{SILENT_CODE}]nothing is kept for reader {self._sink.name} any more",
                why=why,
                fix="remove its changefeed, and start a new query with a new checkpoint",
            )


def typed(rows: ArrowRows) -> pa.RecordBatch:
    """Changes with the columns operation, commit ts and order first. A delete has the old row, others the
    new.
    """
    ts, gone = rows.commit_ts.astype(np.int64), rows.op == DELETE
    columns = rows.new.columns
    if gone.any():
        count = len(rows)
        # The old row of the i-th change is at `count + i` of the new and the old rows together.
        which = pa.array(np.arange(count) + np.where(gone, count, 0))
        columns = [
            pa.concat_arrays([new, old]).take(which)
            for new, old in zip(rows.new.columns, rows.old.columns, strict=True)
        ]
    seq = ts * SEQ_A_TS + np.where(gone, DELETED, CHANGED)
    own = [pa.array(_WORDS).take(pa.array(_NUMBERS[rows.op])), pa.array(ts), pa.array(seq)]
    return pa.RecordBatch.from_arrays([*own, *columns], schema=piece_schema(rows.new.schema))


def pieces(schema: str, table: str, batches: Sequence[pa.RecordBatch]) -> Iterable[Row]:
    """Rows of one table, cut into pieces and compressed."""
    # By the table, so that all its changes are read by one task, in their order.
    part_of = crc32(f"{schema}.{table}".encode()) % PARTS_MAX
    names = {SCHEMA_NAME: schema.encode(), TABLE_NAME: table.encode()}
    for batch in (
        batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
    ):
        # At least one row: one that is larger than a piece is a piece of its own.
        step = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step).replace_schema_metadata(names)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as stream:
                stream.write_batch(part)
            data = sink.getvalue().to_pybytes()
            ts = np.asarray(part.column(COMMIT_TS))
            yield part_of, int(ts.min()), int(ts.max()), len(data), data


def _can_drain(connection: sqlite3.Connection) -> bool:
    """Whether the query can read, confirm and so free some of the pieces."""
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pieces WHERE last_ts <= ?)", [readable_of(connection)]
    )
    return bool(found.fetchone()[0])
