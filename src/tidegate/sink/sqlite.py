"""The tables that a sink in a SQLite file has next to its rows: fence, holders of slots, records of progress.

    fence      the grant that is in force, for each capture that writes and for the owner
    slots      the holder of each slot
    progress   records, by key (`model.progress`)

All of it is read and changed in the transaction of the rows. So nothing can happen between checking the fence
and the commit: a writer that was fenced, or whose slot was taken, commits nothing. A file may hold several
feeds. Not for a file on a network file system, where SQLite's locks do not work.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tidegate.errors import Fenced, Retryable
from tidegate.model.ddl import DdlEvent
from tidegate.model.progress import JOURNAL_KEY, Journal, journal
from tidegate.sink.base import Check, Prove, SinkFeed, SlotTaken, Undecided

OWNER: Final = "owner"
BUSY_S: Final = 10.0
"""How long a call waits for the transaction of another connection."""
LOG_BYTES: Final = 64 << 20
"""SQLite truncates its write-ahead log to this size after a checkpoint."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS fence
    (feed TEXT, whose TEXT, rev INTEGER, seq INTEGER, incarnation INTEGER, PRIMARY KEY (feed, whose));
CREATE TABLE IF NOT EXISTS slots (feed TEXT, slot TEXT, holder TEXT, PRIMARY KEY (feed, slot));
CREATE TABLE IF NOT EXISTS progress (feed TEXT, key TEXT, value BLOB, PRIMARY KEY (feed, key));
"""


class Ledger:
    """One feed's fence, slots and records in a file."""

    def __init__(self, feed: SinkFeed, path: Path, tables: str = "") -> None:
        """`tables`: SQL that creates the tables of the rows if they do not exist."""
        self.feed, self.path, self._tables = feed, path, tables
        self.name = f"{feed.namespace}/{feed.name}"

    def connect(self) -> sqlite3.Connection:
        """A connection that begins transactions only explicitly. Creates missing tables."""
        with as_retryable(self.path):
            connection = open_file(self.path)
            connection.executescript(SCHEMA + self._tables)
        return connection

    def check(self) -> int:
        """Check that the file can be used; see `Sink.check`."""
        with closing(self.connect()):
            return 1

    def partitions(self, topic: str) -> int:
        """This sink has no partitions."""
        return 1

    def same_place(self, other: Ledger) -> bool:
        """Whether both use the same file."""
        return self.path == other.path

    def fence(
        self,
        writers: Mapping[str, int],
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> dict[str, bytes]:
        """See `Sink.fence`. `check` is not called, because a file answers at once."""
        with closing(self.connect()) as connection:
            with exclusive(connection):
                self.take(connection, self.feed.capture)
                # A writer that still runs finds at its next commit that it does not hold its slot.
                for capture in writers:
                    # Compared by `substr` and not by LIKE, because a name may contain `%` or `_`.
                    front = f"{capture}/"
                    connection.execute(
                        "UPDATE slots SET holder = '' WHERE feed = ? AND substr(slot, 1, ?) = ?",
                        [self.name, len(front), front],
                    )
            # After the fence: the metadata store may have given the grant to another one in the meantime.
            prove()
            return self.records(connection)

    def take(self, connection: sqlite3.Connection, whose: str) -> None:
        """Put this feed's grant in force, for a capture or the owner. Raises Fenced if a later one is."""
        self.check_fence(connection, whose, later=True)
        row = [self.name, whose, *self.feed.grant]
        connection.execute("INSERT OR REPLACE INTO fence VALUES (?, ?, ?, ?, ?)", row)

    def check_fence(self, connection: sqlite3.Connection, whose: str, *, later: bool = False) -> None:
        """Raise Fenced unless this feed's grant is in force; with `later`, an older one may be, too."""
        query = "SELECT rev, seq, incarnation FROM fence WHERE feed = ? AND whose = ?"
        holds = connection.execute(query, [self.name, whose]).fetchone()
        if holds is not None and (holds > self.feed.grant or (not later and holds != self.feed.grant)):
            raise Fenced("another incarnation writes here", where=str(self.path), why=f"{holds} holds")

    def holder(self, connection: sqlite3.Connection, slot: str) -> str:
        """The holder of a slot; empty: it has none."""
        found = connection.execute("SELECT holder FROM slots WHERE feed = ? AND slot = ?", [self.name, slot])
        row = found.fetchone()
        return str(row[0]) if row else ""

    def hold(self, connection: sqlite3.Connection, slot: str, holder: str) -> None:
        """Make `holder` the holder of a slot."""
        connection.execute("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", [self.name, slot, holder])

    def records(self, connection: sqlite3.Connection) -> dict[str, bytes]:
        """All of the feed's records, by key."""
        return dict(connection.execute("SELECT key, value FROM progress WHERE feed = ?", [self.name]))

    def keep(self, connection: sqlite3.Connection, records: Mapping[str, bytes]) -> None:
        """Write records; each replaces an earlier one of the same key."""
        rows = [(self.name, *record) for record in records.items()]
        connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", rows)

    def drop(self, connection: sqlite3.Connection, keys: Iterable[str]) -> None:
        """Delete records."""
        gone = [(self.name, key) for key in keys]
        connection.executemany("DELETE FROM progress WHERE feed = ? AND key = ?", gone)

    def forget(self) -> None:
        """Delete all records."""
        if self.path.exists():
            with closing(self.connect()) as connection, exclusive(connection):
                connection.execute("DELETE FROM progress WHERE feed = ?", [self.name])


class FencedCommits:
    """The commits of one writer: each is one transaction, which checks the fence and the writer's slot.

    A writer collects what it writes until then, so that the file is locked only during the commit.
    """

    def __init__(self, ledger: Ledger, slot: int, prove: Prove) -> None:
        """Take the slot. `prove`: raises Fenced if the grant is gone."""
        self._ledger, self._prove = ledger, prove
        self._slot = f"{ledger.feed.capture}/{slot}"
        self.connection = ledger.connect()
        self._holder = secrets.token_hex(4)
        with exclusive(self.connection):
            # The slot before the proof: an old writer that wakes up here takes the slot, fails at the proof,
            # and the current one takes the slot back at its next commit.
            ledger.hold(self.connection, self._slot, self._holder)
        prove()

    def commit(
        self,
        progress: Mapping[str, bytes],
        insert: Callable[[sqlite3.Connection], None],
        discard: Callable[[], None],
    ) -> None:
        """Make what `insert` writes into the transaction, and these records, durable together.

        All work that needs no lock must be done before, because other writers of the file wait. `discard`:
        forgets what was collected, before the outcome of the commit is known.
        """
        connection, ledger = self.connection, self._ledger
        with as_retryable(ledger.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                # Inside the transaction: no other connection can change fence and slots until the commit.
                ledger.check_fence(connection, ledger.feed.capture)
                taken = ledger.holder(connection, self._slot) != self._holder
                # The slot is taken back without the rows, because the one who took it may have read the
                # records before these rows.
                if taken:
                    ledger.hold(connection, self._slot, self._holder)
                else:
                    # docs/guarantees.md#a-spark-query-reads-each-change-once: rows and progress are one
                    # transaction, in which the fence was checked.
                    insert(connection)
                    ledger.keep(connection, progress)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            finally:
                discard()
        # Apart from the statements above: an error of COMMIT does not say whether it took effect.
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # If the grant is gone, the caller gets Fenced and not Undecided.
            self._prove()
            raise Undecided(
                "it is not known whether the transaction was committed",
                where=str(ledger.path),
                why=str(error),
            ) from error
        if taken:
            self._prove()
            raise SlotTaken("the slot was taken, and has been taken back", where=self._slot)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


class SqliteOwner:
    """The owner's side: writes each DDL and Resolved into the journal, in one transaction with its notes."""

    def __init__(self, ledger: Ledger, prove: Prove) -> None:
        self._ledger, self._connection = ledger, ledger.connect()
        with exclusive(self._connection):
            ledger.take(self._connection, OWNER)
        prove()
        # Read after the fence, because an earlier owner could add to it until then.
        self.journal = journal(ledger.records(self._connection), ledger.feed.instance)

    def use(self, topics: Iterable[str]) -> None:
        """Does nothing: this sink has no topics."""

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        """Record a DDL, unless the journal holds it."""
        if not self.journal.holds(event):
            before = self.journal
            after = Journal(event.finished_ts, event.seq, before.resolved_ts, before.instance)
            self._write_journal(after, event)

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """Record that everything up to `ts` is durable."""
        before = self.journal
        if ts > before.resolved_ts:
            self._write_journal(Journal(before.ddl_ts, before.ddl_seq, ts, before.instance))

    def record_ddl(self, connection: sqlite3.Connection, event: DdlEvent) -> None:
        """Write a DDL into an open transaction. By default it is only in the journal."""

    def forget(self, keys: Iterable[str]) -> None:
        """Delete records."""
        with self._fenced() as connection:
            self._ledger.drop(connection, keys)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _write_journal(self, after: Journal, event: DdlEvent | None = None) -> None:
        with self._fenced() as connection:
            if event is not None:
                self.record_ddl(connection, event)
            self._ledger.keep(connection, {JOURNAL_KEY: after.to_bytes()})
        self.journal = after

    @contextmanager
    def _fenced(self) -> Iterator[sqlite3.Connection]:
        with as_retryable(self._ledger.path), exclusive(self._connection):
            self._ledger.check_fence(self._connection, OWNER)
            yield self._connection


def open_file(path: Path) -> sqlite3.Connection:
    """A connection that any thread may use, and that begins transactions only explicitly."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only in a new file
    connection.execute("PRAGMA journal_mode = WAL")
    # With NORMAL a loss of power may undo the last commits, which were reported as durable.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    return connection


@contextmanager
def exclusive(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction during which no other connection can write."""
    try:
        # It takes the write lock now. A transaction that reads first could fail in the middle because another
        # one has written.
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise Retryable("the file is busy", why=str(error)) from error
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def as_retryable(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as Retryable, with the path of the file, because they may be temporary."""
    try:
        yield
    except sqlite3.Error as error:
        raise Retryable("the sink's file cannot be used", where=str(path), why=str(error)) from error
