"""The metadata store of one node: etcd's contract over SQLite.

There is one table of keys with create and modification revisions, and one counter of revisions. A transaction
first takes the write lock (BEGIN IMMEDIATE), then compares and writes, and is on disk when `transact` returns
(WAL, synchronous=FULL). Readers in other processes open the file read-only and see committed values.
Thread-safe; calls block for as long as the disk takes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate.control.metadata import (
    Compare,
    Delete,
    GuardedWrites,
    KeyValue,
    Put,
    WriteResult,
)
from tidegate.disk import Ballast, DiskFull, free_bytes
from tidegate.errors import Fatal, Retryable

BUSY_S: Final = 10.0
"""How long a transaction waits for another process's lock before it raises Retryable."""

ALMOST_FULL: Final = 1 << 20
"""With less free space than this, in bytes, an I/O error is taken for a full disk."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS kv (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (id INTEGER PRIMARY KEY CHECK (id = 1), value INTEGER NOT NULL);
INSERT OR IGNORE INTO revision VALUES (1, 0);
"""
_COLUMNS: Final = "key, value, create_revision, mod_revision"


class SqliteMetadata:
    """A `control.metadata.MetadataStore` in one file."""

    def __init__(self, path: Path, ballast: Ballast | None = None) -> None:
        """`ballast`: released when a transaction finds the disk full, so that it has room."""
        self._path, self._ballast = path, ballast or Ballast(None)
        self._lock = threading.Lock()
        try:
            # No transactions of Python's own: they would begin with a read lock, whose upgrade may fail.
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            # Readers in other processes, such as workers that read grants, do not wait for the writer then.
            self._db.execute("PRAGMA journal_mode=WAL")
            # With less, WAL does not sync each commit, and `transact` promises that a write is durable on
            # return.
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def get(self, key: str) -> KeyValue | None:
        """The latest committed value of a key."""
        found = self._select(f"SELECT {_COLUMNS} FROM kv WHERE key = ?", (key,))
        return found[0] if found else None

    def under(self, prefix: str) -> Sequence[KeyValue]:
        """All keys that begin with `prefix`, in key order."""
        return self._select(
            # The first condition uses the index. The second one is exact for any characters of the prefix.
            f"SELECT {_COLUMNS} FROM kv WHERE key >= ? AND substr(key, 1, ?) = ? ORDER BY key",
            (prefix, len(prefix), prefix),
        )

    def transact(self, guards: Sequence[Compare], writes: Sequence[Put | Delete]) -> WriteResult:
        """Apply all writes at one new revision if all guards hold, otherwise none. Durable on return.

        Raises DiskFull, and Retryable if the file cannot be used for another reason.
        """
        (outcome,) = self.transact_all([GuardedWrites(tuple(guards), tuple(writes))])
        return outcome

    def transact_all(self, asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        """Run transactions one by one as `transact`, in one commit. If it raises, none is applied."""
        return self._ballast.small(lambda: self._commit(asked))

    def _commit(self, asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    outcomes = [self._apply(one) for one in asked]
                    self._db.execute("COMMIT")
                except BaseException:
                    # On a full disk SQLite may or may not have rolled back itself.
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as error:
                raise self._unavailable(error) from error
            except sqlite3.DatabaseError as error:
                raise self._damaged(error) from error
            return outcomes

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _apply(self, asked: GuardedWrites) -> WriteResult:
        revision = int(self._db.execute("SELECT value FROM revision").fetchone()[0])
        if not all(self._holds(guard) for guard in asked.guards):
            return WriteResult(False, revision)
        revision += 1
        for write in asked.writes:
            if isinstance(write, Delete):
                self._db.execute("DELETE FROM kv WHERE key = ?", (write.key,))
            else:
                self._db.execute(
                    # As in etcd, a key that is overwritten keeps its create revision.
                    "INSERT INTO kv VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
                    "value = excluded.value, mod_revision = excluded.mod_revision",
                    (write.key, write.value, revision, revision),
                )
        self._db.execute("UPDATE revision SET value = ?", (revision,))
        return WriteResult(True, revision)

    def _holds(self, guard: Compare) -> bool:
        row = self._db.execute(
            "SELECT create_revision, mod_revision FROM kv WHERE key = ?", (guard.key,)
        ).fetchone()
        created, modified = row or (0, 0)
        wanted_created = created if guard.create_revision is None else guard.create_revision
        wanted_modified = modified if guard.mod_revision is None else guard.mod_revision
        return bool((created, modified) == (wanted_created, wanted_modified))

    def _select(self, sql: str, values: tuple[object, ...]) -> list[KeyValue]:
        with self._lock:
            try:
                rows = self._db.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                raise self._unavailable(error) from error
            except sqlite3.DatabaseError as error:
                raise self._damaged(error) from error
        return [KeyValue(key, bytes(value), created, modified) for key, value, created, modified in rows]

    def _unavailable(self, error: sqlite3.Error) -> Retryable:
        # The lower byte of an extended code is the error; the others say more about it.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        almost_full = code == sqlite3.SQLITE_IOERR and free_bytes(self._path.parent) < ALMOST_FULL
        if code == sqlite3.SQLITE_FULL or almost_full:
            return DiskFull(
                "the disk is full",
                where=str(self._path),
                why=str(error),
                fix="free disk space; changefeeds wait and then continue by themselves",
            )
        return Retryable(
            "the metadata store cannot be used",
            where=str(self._path),
            why=str(error),
            fix="check that the folder exists, is writable, and that the disk has free space",
        )

    def _damaged(self, error: sqlite3.Error) -> Fatal:
        return Fatal(
            "the metadata store is damaged",
            where=str(self._path),
            why=str(error),
            fix="restore the file from a copy; changefeeds and checkpoints are kept nowhere else",
        )
