"""A sink on SQLite: rows, fence and progress in one transaction, as a SQL database has them.

Small, and only for tests: it shows that the contract carries what a SQL sink needs. A file may hold several
feeds. Tables, apart from those of `sink.sqlite`: `state` (current rows, by table and handle key) and
`history` (every change, as applied).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.cells import DELETE, INSERT, RowBlock
from tidegate.model.ddl import DdlEvent
from tidegate.mounter.columns import to_arrow
from tidegate.sink import sqlite
from tidegate.sink.base import Check, Content, Description, Domain, Form, Marks, Prove, SinkFeed
from tidegate.sink.sqlite import FencedCommits, Ledger

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS state (name TEXT, key TEXT, image TEXT, ts INTEGER, PRIMARY KEY (name, key));
CREATE TABLE IF NOT EXISTS history (n INTEGER PRIMARY KEY, name TEXT, op INTEGER, key TEXT, ts INTEGER);
"""
HISTORY: Final = "INSERT INTO history (name, op, key, ts) VALUES (?, ?, ?, ?)"
Change: TypeAlias = tuple[str, int, int, str, str, str]
"""Table, op, commit ts, key, old key, image."""
DUE_ROWS: Final = 500
"""A transaction is due after so many rows."""


class SqliteSink(Ledger):
    """One feed's place in a file."""

    def __init__(
        self, feed: SinkFeed, path: Path, domain: Domain = Domain.ROW, form: Form = Form.ARROW
    ) -> None:
        super().__init__(feed, path, SCHEMA)
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

    def open_owner(self, marks: Marks | None, prove: Prove) -> SqliteOwner:
        return SqliteOwner(self, prove)

    def writer(
        self,
        slot: int,
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> SqliteWriter:
        return SqliteWriter(self, slot, prove, alive)


class SqliteWriter:
    """Applies changes to `state`."""

    def __init__(self, ledger: Ledger, slot: int, prove: Prove, alive: Callable[[], None]) -> None:
        self._held: list[Change] = []
        self._alive, self.commits = alive, FencedCommits(ledger, slot, prove)

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
        self.commits.commit(progress, self._insert, self.abort)

    def _insert(self, connection: Any) -> None:
        for name, op, ts, key, old_key, image in self._held:
            if op == DELETE or old_key != key:
                connection.execute("DELETE FROM state WHERE name = ? AND key = ?", [name, old_key])
            if op != DELETE:
                connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)", [name, key, image, ts])
            connection.execute(HISTORY, [name, op, key, ts])

    def abort(self) -> None:
        self._held = []

    def close(self) -> None:
        self.abort()
        self.commits.close()


class SqliteOwner(sqlite.SqliteOwner):
    """Notes DDL in `history`."""

    def record_ddl(self, connection: sqlite3.Connection, event: DdlEvent) -> None:
        connection.execute(HISTORY, ["ddl", 0, event.query, event.finished_ts])


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
