"""The sink of a reader: rows go as Arrow pieces into `changes.db` in its changefeed's folder."""

from __future__ import annotations

import sqlite3
import time
from binascii import crc32
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.errors import Fatal, Retryable
from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.sink.base import Content, Description, Domain, Form, Marks, Prove, SinkFeed
from tidegate.sink.reader.changes import (
    CHANGED,
    COMMIT_TS,
    DELETED,
    FILE,
    SCHEMA_NAME,
    SEQ_A_TS,
    TABLE_NAME,
    TABLES,
    Changes,
    Definition,
    kept_of,
    note,
    piece_schema,
    readable_of,
)
from tidegate.sink.sqlite import Ledger, SqliteOwner, SqliteWriter

DUE_BYTES: Final = 16 << 20
"""Of Arrow rows: a transaction is due then."""
PIECE_BYTES: Final = 4 << 20
"""A piece has about so many before it is compressed; a row that is larger goes alone."""
BEYOND: Final = 2
"""So many times max-kept are kept while resolved ts stands, as in a transaction larger than max-kept."""
ROOM_MIN: Final = 64 << 10
PARTS_MAX: Final = 1 << 16
"""Into so many parts the tables of a reader may be cut."""
GRACE_S: Final = 600.0
"""So long after it was opened an owner does not ask how long the query was silent: the capture may have been
down, and the query waited."""
GAP_S: Final = 60.0
"""Between two looks by the wall clock: after more the machine slept, and the query with it, or the clock was
set."""
SILENT_CODE: Final = "CDC:ErrReaderSilent"
_WORDS: Final = pa.array(["insert", "update", "delete"])
_NUMBERS: Final = np.zeros(256, np.int64)
_NUMBERS[[INSERT, UPDATE, DELETE]] = 0, 1, 2
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd")

Row = tuple[int, int, int, int, bytes]
"""Of `pieces`, without its number."""


class ReaderSink(Ledger):
    """One reader's place."""

    def __init__(self, feed: SinkFeed) -> None:
        assert feed.folder is not None, "a reader's changes lie in its changefeed's folder"
        super().__init__(feed, feed.folder / FILE, TABLES)
        self.max_bytes = int(feed.uri.option("max-kept"))
        self.hold_s = int(feed.uri.option("hold"))

    def connect(self) -> sqlite3.Connection:
        """A connection. Raises Fatal when the file is gone: to begin another would leave a gap."""
        if not self.path.exists():
            raise Fatal(
                "The changes that were kept for the reader are gone.",
                where=str(self.path),
                why="somebody has removed the file",
                fix="remove the reader's changefeed, and start a new query with a new checkpoint",
            )
        return super().connect()

    def describe(self) -> Description:
        """What it takes, promises and gives up."""
        return Description(
            form=Form.ARROW,
            domain=Domain.ROW,
            pieces=True,
            writers=0,
            atomic=True,
            fenced_by="a row with the grant, read in the transaction of the rows",
            here=True,
        )

    def open_owner(self, marks: Marks | None, prove: Prove) -> ReaderOwner:
        """The owner's side."""
        return ReaderOwner(self, prove)

    def writer(self, slot: int, prove: Prove, alive: Callable[[], None] = lambda: None) -> ReaderWriter:
        """The writer of a slot."""
        return ReaderWriter(self, slot, prove, alive)


class ReaderWriter(SqliteWriter):
    """Makes pieces of rows."""

    def __init__(self, sink: ReaderSink, slot: int, prove: Prove, alive: Callable[[], None]) -> None:
        self._held: dict[tuple[str, str, pa.Schema], list[pa.RecordBatch]] = {}
        self._size = 0
        self._rows: list[Row] = []
        self._sink = sink
        super().__init__(sink, slot, prove, alive)

    @property
    def is_due(self) -> bool:
        """By the bytes that are held."""
        return self._size >= DUE_BYTES

    @property
    def room(self) -> int:
        """What is left of them."""
        return max(DUE_BYTES - self._size, ROOM_MIN)

    def hold(self, contents: Sequence[Content]) -> None:
        """Rows of several tables and versions, each apart."""
        for content in contents:
            assert isinstance(content, ArrowRows)
            batch = typed(content)
            of = content.table.schema, content.table.table, batch.schema
            self._held.setdefault(of, []).append(batch)
            self._size += batch.nbytes

    def ready(self) -> None:
        """Compress what is held, before the file is locked."""
        self._rows = [row for (name, of, _), held in self._held.items() for row in pieces(name, of, held)]

    def insert(self, connection: Any) -> None:
        """Raises Retryable when the reader has its fill, and can take something first."""
        rows = self._rows
        if not rows:
            return
        kept, limit = kept_of(connection), self._sink.max_bytes
        # What nothing can be read of without what comes next must not wait for the query; but not for ever.
        if kept > limit and (_can_drain(connection) or kept > BEYOND * limit):
            raise Retryable(
                "The changes that are kept for a reader are as many as may be kept.",
                where=f"reader {self._sink.name}: {kept >> 20} MiB of {limit >> 20} (max-kept)",
                why="its query does not take them, or takes them more slowly than they come",
                fix="start the query; the changefeed then continues by itself. If the reader is no longer "
                "needed, remove its changefeed",
            )
        connection.executemany(
            "INSERT INTO pieces (part, first_ts, last_ts, bytes, data) VALUES (?, ?, ?, ?, ?)", rows
        )
        more = kept + sum(row[3] for row in rows)
        connection.execute("INSERT OR REPLACE INTO told VALUES ('kept', ?)", [more])

    def abort(self) -> None:
        """Give up what is held."""
        self._held, self._rows, self._size = {}, [], 0


class ReaderOwner(SqliteOwner):
    """Keeps definitions, and ends a reader of which nobody was heard for long."""

    def __init__(self, sink: ReaderSink, prove: Prove) -> None:
        super().__init__(sink, prove)
        self._sink = sink
        self._watches_since, self._looked_at = time.monotonic(), time.time()
        self._changes = Changes(sink.path.parent)
        self._check_kept()

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """All up to `ts` is there. Raises Fatal when the query was silent for too long."""
        self._check_queried()
        super().send_resolved(ts, build_ms)

    def note(self, connection: Any, event: DdlEvent) -> None:
        """A table has another definition from here on, or is gone."""
        names = event.schema, event.table, event.old_schema, event.old_table
        note(
            connection,
            Definition(event.finished_ts, event.seq, *names, event.action, event.query, event.after),
        )

    def _check_queried(self) -> None:
        """Only silence that was watched counts: while nothing ran here, nor did what the query asks."""
        now, before = time.time(), self._looked_at
        self._looked_at = now
        if abs(now - before) > GAP_S:
            self._watches_since = time.monotonic()
        if time.monotonic() - self._watches_since < GRACE_S:
            return
        queried_ms = self._changes.standing().queried_ms
        silent_s = now - queried_ms / 1000
        if silent_s > self._sink.hold_s:
            hours = f"{silent_s / 3600:.1f} hours (hold: {self._sink.hold_s} s)"
            self._changes.let_go(f"its query was not heard for {hours}", queried_ms)
            self._check_kept()

    def _check_kept(self) -> None:
        """Raises Fatal when its changes were let go: what came since would be read with a gap."""
        why = self._changes.standing().let_go
        if why:
            raise Fatal(
                f"[{SILENT_CODE}]nothing is kept for reader {self._sink.name} any more",
                why=why,
                fix="remove its changefeed, and start a new query with a new checkpoint",
            )


def typed(rows: ArrowRows) -> pa.RecordBatch:
    """Changes behind their operation, commit ts and order: of a delete the old row, else the new one."""
    ts, gone = rows.commit_ts.astype(np.int64), rows.op == DELETE
    columns = rows.new.columns
    if gone.any():
        count = len(rows)
        which = pa.array(np.arange(count) + np.where(gone, count, 0))
        columns = [
            pa.concat_arrays([new, old]).take(which)
            for new, old in zip(rows.new.columns, rows.old.columns, strict=True)
        ]
    seq = ts * SEQ_A_TS + np.where(gone, DELETED, CHANGED)
    own = [_WORDS.take(pa.array(_NUMBERS[rows.op])), pa.array(ts), pa.array(seq)]
    return pa.RecordBatch.from_arrays([*own, *columns], schema=piece_schema(rows.new.schema))


def pieces(schema: str, table: str, batches: Sequence[pa.RecordBatch]) -> Iterable[Row]:
    """Rows of one table, cut and compressed."""
    part_of = crc32(f"{schema}.{table}".encode()) % PARTS_MAX
    names = {SCHEMA_NAME: schema.encode(), TABLE_NAME: table.encode()}
    for batch in (
        batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
    ):
        step = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step).replace_schema_metadata(names)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as stream:
                stream.write_batch(part)
            data = sink.getvalue().to_pybytes()
            ts = np.asarray(part.column(COMMIT_TS))
            yield part_of, int(ts.min()), int(ts.max()), len(data), data


def _can_drain(connection: Any) -> bool:
    """Whether the query can take something that goes then."""
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pieces WHERE last_ts <= ?)", [readable_of(connection)]
    )
    return bool(found.fetchone()[0])
