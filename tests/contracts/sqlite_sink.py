"""A sink on SQLite: rows, fence and progress in one transaction, as a SQL database has them.

Small, and only for tests: it shows that the contract carries what a SQL sink needs. A file may hold several
feeds. Tables: `state` (the rows as they are, by table and handle key), `history` (every change, as applied),
`fence` (the grant of each feed), `slots` (who holds a slot), `progress` (records).
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from tidegate.errors import Fenced, Retryable
from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.ddl import DdlEvent
from tidegate.model.progress import JOURNAL_KEY, Journal, journal
from tidegate.model.slots import DELETE, INSERT, RowBlock
from tidegate.mounter.columns import to_arrow
from tidegate.sink.base import (
    Content,
    Description,
    Domain,
    Form,
    Marks,
    Prove,
    SinkFeed,
    SlotTaken,
    Undecided,
)

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS state (name TEXT, key TEXT, image TEXT, ts INTEGER, PRIMARY KEY (name, key));
CREATE TABLE IF NOT EXISTS history (n INTEGER PRIMARY KEY, name TEXT, op INTEGER, key TEXT, ts INTEGER);
CREATE TABLE IF NOT EXISTS fence
    (feed TEXT, whose TEXT, rev INTEGER, seq INTEGER, incarnation INTEGER, PRIMARY KEY (feed, whose));
CREATE TABLE IF NOT EXISTS slots (feed TEXT, slot TEXT, holder TEXT, PRIMARY KEY (feed, slot));
CREATE TABLE IF NOT EXISTS progress (feed TEXT, key TEXT, value BLOB, PRIMARY KEY (feed, key));
"""
OWNER: Final = "owner"
Change: TypeAlias = tuple[str, int, int, str, str, str]
"""Table, op, commit ts, key, old key, image."""
DUE_ROWS: Final = 500
"""A transaction is due after so many rows."""


class SqliteSink:
    """One feed's place in a file."""

    def __init__(
        self, feed: SinkFeed, path: Path, domain: Domain = Domain.ROW, form: Form = Form.ARROW
    ) -> None:
        self.feed, self.path = feed, path
        self.name = f"{feed.namespace}/{feed.name}"
        self._domain, self._form = domain, form

    def describe(self) -> Description:
        return Description(
            form=self._form,
            domain=self._domain,
            pieces=False,
            writers=1,
            atomic=True,
            fenced_by="a row with the grant, read in the transaction of the rows",
        )

    def check(self) -> int:
        with closing(self.connect()):
            return 1

    def partitions(self, topic: str) -> int:
        return 1

    def open_owner(self, marks: Marks, prove: Prove) -> SqliteOwner:
        return SqliteOwner(self, prove)

    def fence(self, writers: Mapping[str, int], prove: Prove) -> dict[str, bytes]:
        with closing(self.connect()) as connection:
            with exclusive(connection):
                self.take(connection, self.feed.capture)
                for capture in writers:
                    front = f"{capture}/"
                    connection.execute(
                        "UPDATE slots SET holder = '' WHERE feed = ? AND substr(slot, 1, ?) = ?",
                        [self.name, len(front), front],
                    )
            prove()
            found = connection.execute("SELECT key, value FROM progress WHERE feed = ?", [self.name])
            return dict(found.fetchall())

    def writer(self, slot: int, prove: Prove, alive: Callable[[], None] = lambda: None) -> SqliteWriter:
        return SqliteWriter(self, f"{self.feed.capture}/{slot}", prove, alive)

    def same_place(self, other: SqliteSink) -> bool:
        return self.path == other.path

    def forget(self) -> None:
        with closing(self.connect()) as connection, exclusive(connection):
            connection.execute("DELETE FROM progress WHERE feed = ?", [self.name])

    def connect(self) -> sqlite3.Connection:
        """A connection that begins transactions only when told; the tables are there."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCHEMA)
        return connection

    def take(self, connection: sqlite3.Connection, whose: str) -> None:
        """Make this feed's grant the one that holds, for a capture or the owner. Raises Fenced when a later
        one does.
        """
        self.check_fence(connection, whose, later=True)
        row = [self.name, whose, *self.feed.grant]
        connection.execute("INSERT OR REPLACE INTO fence VALUES (?, ?, ?, ?, ?)", row)

    def check_fence(self, connection: sqlite3.Connection, whose: str, *, later: bool = False) -> None:
        """Raise Fenced unless this feed's grant holds; `later`: or is to hold."""
        query = "SELECT rev, seq, incarnation FROM fence WHERE feed = ? AND whose = ?"
        found = connection.execute(query, [self.name, whose])
        holds = found.fetchone()
        if holds is not None and (holds > self.feed.grant or (not later and holds != self.feed.grant)):
            raise Fenced("Another incarnation writes here.", where=str(self.path), why=f"{holds} holds")


class SqliteWriter:
    """Keeps what is written until the commit, so that the file is locked for no longer than that takes."""

    def __init__(self, sink: SqliteSink, slot: str, prove: Prove, alive: Callable[[], None]) -> None:
        self._sink, self._slot, self._prove, self._alive = sink, slot, prove, alive
        self.connection: Any = sink.connect()
        self._holder = secrets.token_hex(4)
        self._held: list[Change] = []
        with exclusive(self.connection):
            self._hold()
        prove()

    @property
    def is_due(self) -> bool:
        return len(self._held) >= DUE_ROWS

    @property
    def room(self) -> int:
        return 1 << 14

    def write(self, contents: Sequence[Content]) -> None:
        found: list[tuple[int, Change]] = []
        for content in contents:
            if isinstance(content, RowBlock):
                images = to_arrow(content, "new"), to_arrow(content, "old")
                content = ArrowRows(content.table, content.op, content.commit_ts, content.position, *images)
            assert isinstance(content, ArrowRows)
            found += zip(content.position.tolist(), changes(content), strict=True)
        found.sort(key=lambda one: one[0])
        self._held += [change for _, change in found]
        self._alive()

    def commit(self, progress: Mapping[str, bytes]) -> None:
        held, self._held = self._held, []
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            self._sink.check_fence(self.connection, self._sink.feed.capture)
            taken = self._held_by() != self._holder
            if taken:
                self._hold()
            else:
                for row in held:
                    self._apply(*row)
                records = [(self._sink.name, *record) for record in progress.items()]
                self.connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", records)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        try:
            self.connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._prove()
            raise Undecided("Whether it was committed is not known.", why=str(error)) from error
        if taken:
            self._prove()
            raise SlotTaken("The slot was taken, and has been taken back.", where=self._slot)

    def abort(self) -> None:
        self._held = []

    def close(self) -> None:
        """Nothing is held."""

    def _held_by(self) -> str:
        which = [self._sink.name, self._slot]
        found = self.connection.execute("SELECT holder FROM slots WHERE feed = ? AND slot = ?", which)
        return str(found.fetchone()[0])

    def _hold(self) -> None:
        holding = [self._sink.name, self._slot, self._holder]
        self.connection.execute("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", holding)

    def _apply(self, name: str, op: int, ts: int, key: str, old_key: str, image: str) -> None:
        execute = self.connection.execute
        if op == DELETE or old_key != key:
            execute("DELETE FROM state WHERE name = ? AND key = ?", [name, old_key])
        if op != DELETE:
            execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)", [name, key, image, ts])
        execute("INSERT INTO history (name, op, key, ts) VALUES (?, ?, ?, ?)", [name, op, key, ts])


class SqliteOwner:
    """DDL is noted beside the journal, in one transaction; a Resolved changes the journal alone."""

    def __init__(self, sink: SqliteSink, prove: Prove) -> None:
        self._sink, self._connection = sink, sink.connect()
        with exclusive(self._connection):
            sink.take(self._connection, OWNER)
        prove()
        found = self._connection.execute("SELECT key, value FROM progress WHERE feed = ?", [sink.name])
        self.journal = journal(dict(found.fetchall()), sink.feed.instance)

    def use(self, topics: Iterable[str]) -> None:
        """There are none."""

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        if not self.journal.holds(event):
            told = self.journal
            after = Journal(event.finished_ts, event.seq, told.resolved_ts, told.instance)
            self._tell(after, ("ddl", 0, event.query, event.finished_ts))

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        assert ts >= self.journal.resolved_ts
        told = self.journal
        self._tell(Journal(told.ddl_ts, told.ddl_seq, ts, told.instance))

    def forget(self, keys: Iterable[str]) -> None:
        with self._fenced() as connection:
            gone = [(self._sink.name, key) for key in keys]
            connection.executemany("DELETE FROM progress WHERE feed = ? AND key = ?", gone)

    def close(self) -> None:
        self._connection.close()

    def _tell(self, after: Journal, *said: tuple[str, int, str, int]) -> None:
        with self._fenced() as connection:
            connection.executemany("INSERT INTO history (name, op, key, ts) VALUES (?, ?, ?, ?)", said)
            record = self._sink.name, JOURNAL_KEY, after.to_bytes()
            connection.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", record)
        self.journal = after

    @contextmanager
    def _fenced(self) -> Iterator[sqlite3.Connection]:
        with exclusive(self._connection):
            self._sink.check_fence(self._connection, OWNER)
            yield self._connection


@contextmanager
def exclusive(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that sees nobody else's changes to the end."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise Retryable("The file is busy.", why=str(error)) from error
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def changes(rows: ArrowRows) -> Iterator[Change]:
    """Each row; an image is JSON of the new row."""
    names = [rows.table.columns[at].name for at in rows.table.handle_key]
    images = zip(
        rows.op.tolist(), rows.commit_ts.tolist(), rows.new.to_pylist(), rows.old.to_pylist(), strict=True
    )
    for op, ts, new, old in images:
        here, before = (new if op != DELETE else old), (old if op != INSERT else new)
        keys = [json.dumps([str(image[name]) for name in names]) for image in (here, before)]
        yield rows.table.name, op, ts, keys[0], keys[1], json.dumps(here, default=str)
