"""`changes.db`: the changes that a reader has not read yet, its DDL, and its progress.

    pieces   Arrow IPC streams of one batch, zstd: rows of one table, columns as in `piece_schema`
    ddl      each DDL of the reader's tables; rows of action 0 are the tables as they were at its start-ts
    state    the reader's progress and settings, by key

A piece never changes. Reading pieces in the order of `n` gives the changes of one row of one partition in the
order of their commits, because one task at a time writes them and `n` grows with the commits of the file. If
a row moves between partitions, only `_tidegate_seq` gives its order. All rows with a commit ts up to
`readable` are in the file. So the content of (after, upto] is the same whenever it is read, until the reader
has confirmed it.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa

from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.model.progress import JOURNAL_KEY, Journal
from tidegate.sink import sqlite

FILE: Final = "changes.db"
FORM: Final = 1
"""The number of the file's form, SQLite's `user_version`. A change of the tables or keys raises it."""
TABLES: Final = """
CREATE TABLE IF NOT EXISTS pieces (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    part INTEGER, first_ts INTEGER, last_ts INTEGER, bytes INTEGER, data BLOB
);
CREATE INDEX IF NOT EXISTS by_last ON pieces (last_ts, first_ts, bytes);
CREATE INDEX IF NOT EXISTS by_first ON pieces (first_ts, last_ts, n, part);
CREATE TABLE IF NOT EXISTS ddl (
    ts INTEGER, seq INTEGER, schema_name TEXT, table_name TEXT, old_schema TEXT, old_table TEXT,
    action INTEGER, query TEXT, info BLOB, PRIMARY KEY (ts, seq, schema_name, table_name)
);
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value BLOB);
"""
OP, COMMIT_TS, SEQ = "_tidegate_op", "_tidegate_commit_ts", "_tidegate_seq"
OWN_COLUMNS: Final = pa.schema([(OP, pa.string()), (COMMIT_TS, pa.int64()), (SEQ, pa.int64())])
SPARE_PAGES: Final = 4096
"""This many free pages of 4 KiB stay in the file, to be written again."""
GIVEN_PAGES: Final = 1024
"""This many of the other free pages are returned to the disk at a time."""
AT_ONCE: Final = 32
"""Pieces that are deleted in one transaction."""
DROP_S: Final = 5.0
"""How long one call deletes pieces and returns pages."""
MAX_TS: Final = (1 << 63) - 1
SILENT_CODE: Final = "CDC:ErrReaderSilent"
"""The code of the error after a reader was given up, because its query was silent."""
SCHEMA_NAME, TABLE_NAME, KIND = b"tidegate.schema", b"tidegate.table", b"tidegate.kind"
"""Keys of a piece's Arrow metadata: schema and table of its rows; whether it holds DDL instead of rows."""
DDL: Final = "ddl"
DELETED, CHANGED, DEFINED = 0, 1, 2
"""Added to commit ts * SEQ_A_TS. At one commit ts a key may be freed by one row and taken by another, so
deletes sort first; a DDL comes after all rows of its ts."""
SEQ_A_TS: Final = 4


class Definition(NamedTuple):
    """A table's definition, valid from a ts on."""

    ts: int
    seq: int
    schema: str
    table: str
    old_schema: str
    old_table: str
    action: int
    """TiDB's action code; 0: the table existed at the reader's start-ts."""
    query: str
    info: dict[str, Any] | None
    """Its TableInfo; None: the table was removed."""


class StoredRows(NamedTuple):
    """Rows of one table, as the file stores them."""

    n: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReaderProgress:
    """The progress of a reader and its changefeed."""

    instance: str
    start_ts: int
    confirmed_ts: int
    """The query has confirmed everything up to here; start_ts at first."""
    queried_ms: int
    """Wall-clock time of the query's last request."""
    kept: int
    """Bytes of pieces in the file."""
    readable: int
    """All rows up to here are in the file."""
    pending: bool
    """Whether rows or DDL above `confirmed_ts` can be read."""
    ddl: int
    """The number of definitions."""
    stopped_why: str
    """Why changes are not stored for the reader any more; empty: they are stored."""
    used: bool
    """Whether its query has read from it, so that the query's checkpoint names this reader."""

    @property
    def place(self) -> int:
        """The checkpoint that users see. If there is nothing to read, it is as high as `readable`."""
        return self.confirmed_ts if self.pending else max(self.confirmed_ts, self.readable)


def piece_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of a table's pieces: operation, commit ts and order, then the table's own."""
    return pa.schema([*OWN_COLUMNS, *columns])


class Changes:
    """A reader's file, as the server uses it. Each call opens the file for itself; calls block."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def begin(self, instance: str, start_ts: int, tables: Sequence[Definition], now_ms: int) -> None:
        """Create the file of a new reader, with its tables as they are at `start_ts`."""
        with self._open(new=True) as connection, sqlite.exclusive(connection):
            self._put(connection, "instance", instance)
            self._put(connection, "start_ts", start_ts)
            self._put(connection, "confirmed_ts", start_ts)
            self._put(connection, "queried_ms", now_ms)
            self._put(connection, "kept", 0)
            self._put(connection, "stopped_why", "")
            self._put(connection, "used", 0)
            self._put(connection, "secret", secrets.token_bytes(32))
            for one in tables:
                write_definition(connection, one)
        # It holds rows of the source, and the key that seals tickets.
        self.path.chmod(0o600)

    def progress(self) -> ReaderProgress:
        """The progress of the reader and its changefeed."""
        with self._open() as connection:
            return self._progress(connection)

    def secret(self) -> bytes:
        """The key with which the reader's tickets are sealed."""
        with self._open() as connection:
            found: bytes = self._get(connection, "secret")
            return found

    def receive(self, now_ms: int, confirmed_ts: int = 0, *, used: bool = False) -> None:
        """Record a request of the query, which has confirmed everything up to `confirmed_ts`; delete pieces
        that are confirmed as a whole.

        `used`: the query has begun to read, so its checkpoint names this reader.
        """
        with self._open() as connection:
            with sqlite.exclusive(connection):
                self._put(connection, "queried_ms", now_ms)
                if used:
                    self._put(connection, "used", 1)
                confirmed_ts = max(confirmed_ts, self._get(connection, "confirmed_ts"))
                self._put(connection, "confirmed_ts", confirmed_ts)
            # After the position is stored: from then on requests below it get an error, so no query reads
            # what is left while pieces are deleted.
            self._drop(connection, confirmed_ts)

    def stop(self, why: str, queried_ms: int) -> bool:
        """Delete all pieces for good; later requests fail with `why`. False, and no effect, if the query made
        a request after `queried_ms`.
        """
        with self._open() as connection:
            with sqlite.exclusive(connection):
                if self._get(connection, "queried_ms") != queried_ms:
                    return False
                self._put(connection, "stopped_why", why)
            # After the reason is stored: a request that comes while pieces are deleted must fail, not return
            # the rest.
            self._drop(connection, MAX_TS)
        return True

    def cut(self, after: int, upto: int, max_bytes: int) -> int:
        """The ts up to which to read beyond `after`, so that about `max_bytes` are read (0: no limit). It
        covers at least one more commit ts and is at most `upto`; `after` itself if there is nothing in
        between.
        """
        taken, found = 0, after
        with self._open() as connection:
            rows = connection.execute(
                "SELECT last_ts, bytes FROM pieces WHERE last_ts > ? AND first_ts <= ? ORDER BY last_ts",
                [after, upto],
            )
            for last_ts, size in rows:
                # At least one piece is taken, whatever its size. Otherwise the query would never pass it.
                if max_bytes and taken and taken + size > max_bytes:
                    return found
                taken, found = taken + size, min(last_ts, upto)
        return upto if taken else after

    def numbers(self, after: int, upto: int, past: int, part: int = 0, parts: int = 1) -> list[int]:
        """The numbers, ascending and above `past`, of the pieces with rows in (after, upto] that belong to
        part `part` of `parts` of the tables. Raises InvalidInput if some of these pieces may have been
        deleted.
        """
        with self._open() as connection:
            found = connection.execute(
                "SELECT n FROM pieces INDEXED BY by_first "
                "WHERE first_ts <= ? AND last_ts > ? AND n > ? AND part % ? = ? ORDER BY n",
                [upto, after, past, parts, part],
            ).fetchall()
            # After the read: pieces are deleted only after the reason for it is stored.
            self._check_kept(connection, after)
            return [n for (n,) in found]

    def piece(self, n: int, after: int) -> StoredRows:
        """The piece of one of those numbers. Raises InvalidInput if it was deleted in the meantime."""
        with self._open() as connection:
            row = connection.execute("SELECT data FROM pieces WHERE n = ?", [n]).fetchone()
            if row is None:
                self._check_kept(connection, after)
                raise already_confirmed(after, self._get(connection, "confirmed_ts"))
            return StoredRows(n, row[0])

    def _check_kept(self, connection: sqlite3.Connection, after: int) -> None:
        """Raise InvalidInput if pieces with rows above `after` may have been deleted."""
        # docs/guarantees.md#a-spark-query-reads-each-change-once: the query gets an error and never a gap. A
        # task may come after the reader was given up, because between the plan of a batch and its tasks the
        # query sends no request. An empty answer would end its batch without these rows.
        if why := self._get(connection, "stopped_why"):
            raise no_longer_kept(why)
        if (confirmed_ts := self._get(connection, "confirmed_ts")) > after:
            raise already_confirmed(after, confirmed_ts)

    def weight(self, after: int, upto: int) -> int:
        """Bytes of the pieces with rows in (after, upto]."""
        with self._open() as connection:
            found = connection.execute(
                "SELECT coalesce(sum(bytes), 0) FROM pieces WHERE last_ts > ? AND first_ts <= ?",
                [after, upto],
            )
            return int(found.fetchone()[0])

    def next_ddl(self, after: int) -> int:
        """The ts of the first DDL above a ts; 0: there is none."""
        with self._open() as connection:
            found = connection.execute("SELECT min(ts) FROM ddl WHERE ts > ? AND action <> 0", [after])
            return int(found.fetchone()[0] or 0)

    def statements(self, after: int, upto: int) -> list[tuple[int, int, str, str, str]]:
        """The DDL in (after, upto], in order: ts, seq, schema, table, query."""
        with self._open() as connection:
            found = connection.execute(
                "SELECT ts, seq, schema_name, table_name, query FROM ddl "
                "WHERE ts > ? AND ts <= ? AND action <> 0 ORDER BY ts, seq",
                [after, upto],
            )
            return found.fetchall()

    def definitions(self) -> list[Definition]:
        """All definitions of the reader's tables, in order."""
        with self._open() as connection:
            found = connection.execute("SELECT * FROM ddl ORDER BY ts, seq, schema_name, table_name")
            return [Definition(*row)._replace(info=orjson.loads(row[8]) if row[8] else None) for row in found]

    def _progress(self, connection: sqlite3.Connection) -> ReaderProgress:
        confirmed_ts, readable = self._get(connection, "confirmed_ts"), readable_of(connection)
        pending = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM pieces WHERE last_ts > ? AND first_ts <= ?) "
            "OR EXISTS (SELECT 1 FROM ddl WHERE ts > ? AND ts <= ?)",
            [confirmed_ts, readable, confirmed_ts, readable],
        )
        return ReaderProgress(
            self._get(connection, "instance"),
            self._get(connection, "start_ts"),
            confirmed_ts,
            self._get(connection, "queried_ms"),
            kept_of(connection),
            readable,
            bool(pending.fetchone()[0]),
            int(connection.execute("SELECT count(*) FROM ddl").fetchone()[0]),
            self._get(connection, "stopped_why"),
            bool(self._get(connection, "used")),
        )

    def _drop(self, connection: sqlite3.Connection, confirmed_ts: int) -> None:
        """Delete pieces up to a ts and return their pages to the disk, in short transactions, so that writers
        are not blocked for long. Work that takes longer than `DROP_S` is left for the next call.
        """
        until = time.monotonic() + DROP_S
        while time.monotonic() < until:
            with sqlite.exclusive(connection):
                gone = connection.execute(
                    "SELECT n, bytes FROM pieces WHERE last_ts <= ? ORDER BY last_ts LIMIT ?",
                    [confirmed_ts, AT_ONCE],
                ).fetchall()
                if gone:
                    kept = kept_of(connection) - sum(size for _, size in gone)
                    self._put(connection, "kept", kept)
                    # By number and not by ts: exactly the pieces whose bytes were subtracted.
                    connection.executemany("DELETE FROM pieces WHERE n = ?", [(n,) for n, _ in gone])
            if not gone:
                break
        while time.monotonic() < until and give_back(connection):
            pass

    @staticmethod
    def _put(connection: sqlite3.Connection, key: str, value: int | str | bytes) -> None:
        connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", [key, value])

    @staticmethod
    def _get(connection: sqlite3.Connection, key: str) -> Any:
        return connection.execute("SELECT value FROM state WHERE key = ?", [key]).fetchone()[0]

    @contextmanager
    def _open(self, *, new: bool = False) -> Iterator[sqlite3.Connection]:
        if not new and not self.path.exists():
            raise Retryable("the reader's changes are not there", where=str(self.path))
        with sqlite.as_retryable(self.path), closing(sqlite.open_file(self.path)) as connection:
            if new:
                # The form comes last: a file that was only begun is refused as well.
                connection.executescript(f"{sqlite.SCHEMA}{TABLES}PRAGMA user_version = {FORM};")
            check_form(connection, self.path)
            yield connection


def check_form(connection: sqlite3.Connection, path: Path) -> None:
    """Raise Fatal if the file has another form: its tables may be read wrongly."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found != FORM:
        raise Fatal(
            f"the file of a reader's changes has form {found}; this version of Tidegate reads form {FORM}",
            where=str(path),
            why="another version has written it",
            fix="remove the reader's changefeed, and start a new query with a new checkpoint",
        )


def already_confirmed(start: int, confirmed_ts: int) -> InvalidInput:
    """The error for a query that asks for changes that it has confirmed before."""
    return InvalidInput(
        f"the query asks from ts {start}, but it has confirmed everything up to ts {confirmed_ts} before",
        where="its checkpoint",
        why="it is a copy, or an older one was restored; the changes in between are no longer kept",
        fix="start a new query with a new checkpoint",
    )


class NoLongerKept(InvalidInput):
    """The reader of a query was given up."""


def no_longer_kept(why: str) -> NoLongerKept:
    """The error for a query whose reader was given up. `why`: `ReaderProgress.stopped_why`."""
    return NoLongerKept(
        f"[{SILENT_CODE}]nothing is kept for the query any more",
        where="its reader",
        why=why,
        fix="remove the reader's changefeed, and start a new query with a new checkpoint",
    )


def write_definition(connection: sqlite3.Connection, one: Definition) -> None:
    """Write a definition into an open transaction."""
    info = orjson.dumps(one.info) if one.info is not None else None
    connection.execute("INSERT OR REPLACE INTO ddl VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [*one[:8], info])


def readable_of(connection: sqlite3.Connection) -> int:
    """The ts up to which all rows are in the file, by the owner's journal: the owner sends a DDL only after
    all rows below it are durable.
    """
    found = connection.execute("SELECT value FROM progress WHERE key = ?", [JOURNAL_KEY]).fetchone()
    if found is None:
        return 0
    reported = Journal.from_bytes(found[0])
    return max(reported.resolved_ts, reported.ddl_ts - 1)


def kept_of(connection: sqlite3.Connection) -> int:
    """Bytes of all pieces."""
    found = connection.execute("SELECT value FROM state WHERE key = 'kept'").fetchone()
    return int(found[0]) if found else 0


def give_back(connection: sqlite3.Connection) -> bool:
    """Return some free pages to the disk, but keep `SPARE_PAGES` to be written again soon.

    False if no more pages are left to return.
    """
    spare = int(connection.execute("PRAGMA freelist_count").fetchone()[0]) - SPARE_PAGES
    if spare > 0:
        # This statement returns one page per step. `execute` would run a single step, `executescript` runs
        # all.
        connection.executescript(f"PRAGMA incremental_vacuum({min(spare, GIVEN_PAGES)})")
    return spare > GIVEN_PAGES
