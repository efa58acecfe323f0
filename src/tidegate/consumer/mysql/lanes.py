"""The lanes of a database target: connections side by side, each of which writes some of the tables.

Each table is assigned to one lane by a hash of the table's name, so that its deletes and inserts are one
transaction. `atomicity` says which tables may be spread over all lanes. Nothing is retried in the connection
in which it failed: a lane whose write failed has no connection until the next write.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeAlias

import pymysql

from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.applying.target import Name, TableFailed, blaming
from tidegate.consumer.mysql.batch import Batch
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.parts import PartedLane
from tidegate.consumer.mysql.rendering import Statements
from tidegate.consumer.mysql.session import Connection, MySqlServer, translated
from tidegate.errors import Fatal

DEPRECATED: Final = frozenset({1287, 1681})
"""Codes of warnings about a statement's words, not about its values."""


def lane_of(schema: str, table: str, lanes: int) -> int:
    """The lane of a table: the same in every process and release, so a restart assigns rows alike."""
    hashed = hashlib.blake2b(f"{schema}\0{table}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed) % lanes


class Lanes:
    """The lanes of one target. Calls come from one thread; each lane writes in a thread of its own."""

    def __init__(
        self,
        server: MySqlServer,
        hold: Hold,
        batch: Batch,
        count: int,
        stats: Stats,
        *,
        spreads: bool = False,
    ) -> None:
        """`stats`: counts the rows to delete that were not found. `spreads`: tables may be spread."""
        self.count, self.spreads = count, spreads
        self._server, self._hold, self._batch, self._stats = server, hold, batch, stats
        self._connections: dict[int, Connection] = {}
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="lane")

    def of(self, schema: str, table: str) -> int:
        """The lane of a table."""
        return lane_of(schema, table, self.count)

    def run(self, lanes: Mapping[int, Callable[[], int]], *, side_by_side: bool) -> None:
        """Run the writer of each lane. Raises the first failure, after all lanes have stopped writing."""
        work: list[Future[int]] = []
        for write in lanes.values():
            work.append(self._threads.submit(write))
            if not side_by_side:
                wait(work)
        wait(work)
        failures = [error for done in work if (error := done.exception()) is not None]
        # One that concerns more than a table comes first.
        failures.sort(key=lambda error: isinstance(error, TableFailed))
        self._stats.missing_deletes += sum(done.result() for done in work if done.exception() is None)
        if failures:
            raise failures[0]

    def write(self, number: int, made: Statements) -> int:
        """Write a lane in one transaction. Returns how many rows to delete were not found.

        `TableFailed` if the server refuses the rows of a table; the transaction is rolled back then.
        """
        with self._connection(number) as connection:
            connection.begin()
            # First, so that a consumer that is taking over either waits for this transaction or makes this
            # statement match nothing.
            self._batch.lane(number, connection)
            # The lane is marked in the transaction of its rows, so a restart knows which lanes are written.
            missing = _run(connection, made, self._blaming)
            connection.commit()
        return missing

    def write_parts(self, lane: PartedLane, makers: Executor, *, split: bool) -> int:
        """Write a lane part by part: `PartedLane.write`."""
        with self._connection(lane.number) as connection:
            return lane.write(connection, self._batch, makers, _run, split=split)

    def disconnect(self) -> None:
        """Close the connections; the next writes open others."""
        for connection in self._connections.values():
            with contextlib.suppress(pymysql.err.MySQLError):
                connection.close()
        self._connections.clear()

    def close(self) -> None:
        """Wait for running writes, and close the connections."""
        self._threads.shutdown()
        self.disconnect()

    @contextmanager
    def _blaming(self, name: Name | None) -> Iterator[None]:
        """Raise `TableFailed` for an error that a table's rows cause."""
        if name is None:
            yield
            return
        with blaming(name):
            try:
                yield
            except pymysql.err.MySQLError as error:
                raise translated(error, self._server) from error

    @contextmanager
    def _connection(self, number: int) -> Iterator[Connection]:
        """A lane's connection. After an error it is closed, which rolls back its transaction."""
        try:
            connection = self._connections.get(number)
            if connection is None:
                connection = self._connections[number] = self._hold.lane_connection(number)
            yield connection
        except BaseException as error:
            # Popped first: a connection with an open transaction must never serve the next attempt.
            if (broken := self._connections.pop(number, None)) is not None:
                with contextlib.suppress(pymysql.err.MySQLError):
                    broken.close()
            if isinstance(error, pymysql.err.MySQLError):
                raise translated(error, self._server) from error
            raise


Blaming: TypeAlias = Callable[[Name | None], AbstractContextManager[None]]


def _run(connection: Connection, made: Statements, blaming: Blaming = lambda name: nullcontext()) -> int:
    """Run all statements. Returns how many rows to delete were not found.

    `blaming`: a context for the statements of a table.
    """
    missing = 0
    # Deletes first, because an inserted row may take a unique value that a deleted one had.
    for at, (text, wanted) in enumerate(made.deletes):
        with blaming(made.table_of(at, inserting=False)):
            found = written(connection, text)
        missing += 0 if wanted is None else wanted - found
    for at, text in enumerate(made.inserts):
        with blaming(made.table_of(at, inserting=True)):
            written(connection, text)
    return missing


def written(connection: Connection, text: bytes) -> int:
    """Run a writing statement. Returns how many rows it matched. A warning means that a value was changed."""
    found = int(connection.query(text))
    if connection._result is None or not connection._result.warning_count:
        return found
    count, listed = connection._result.warning_count, connection.show_warnings()
    # MySQL also warns of words that it will not know one day, such as BINARY before an expression.
    whys = [str(one[-1]) for one in listed if one[1] not in DEPRECATED]
    # The server lists at most @@max_error_count of them, and the others may be about values.
    if whys or len(listed) < count:
        unlisted = f"{count} warnings, of which the server lists {len(listed)} (@@max_error_count)"
        raise Fatal(
            "the target would store other values than these",
            where=text[:120].decode(errors="replace"),
            why="; ".join(whys[:3]) or unlisted,
            fix="compare the table's columns at the target with those at the source",
        )
    return found
