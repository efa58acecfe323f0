"""One consumer's hold on a target: its control connection, its token, and the guard of its DDL.

    token   a number in the rows of `progress` and `lanes`; a statement that is guarded by it takes effect
            only while no other consumer has raised it
    guard   what keeps an earlier consumer's DDL away, which is no transaction: named locks, or at TiDB
            sessions that are found by their names (`guard`)

DDL runs only in the control connection. Both are needed: a suspended process may wake up with a connection
that could not be ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from tidegate.consumer.mysql.ddl_note import begun_in
from tidegate.consumer.mysql.described import describe
from tidegate.consumer.mysql.dialect import DIALECT, Dialect, dialect_of
from tidegate.consumer.mysql.guard import Guard
from tidegate.consumer.mysql.named_locks import NamedLocks
from tidegate.consumer.mysql.session import SCHEMA, Connection, MySqlServer, translated
from tidegate.consumer.mysql.tidb_sessions import TidbSessions
from tidegate.errors import Fenced, InvalidInput, Retryable

NAME_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Row:
    """The consumer's row of `progress`, as it was when the token was raised."""

    batch: int
    position: str | None
    begun: str | None
    ddl: str | None


class Hold:
    """Used in one thread, except `lane_connection`. Raises errors as `session.translated` returns them."""

    def __init__(self, server: MySqlServer, consumer: str) -> None:
        """Connects to nothing yet. InvalidInput for a name that is too long."""
        if not 0 < len(consumer) <= NAME_MAX:
            raise InvalidInput(
                "a consumer's name cannot be used",
                where=f"--name {consumer[:80]!r}",
                why=f"it has {len(consumer)} characters, and may have 1 to {NAME_MAX}",
                fix="choose a shorter one, and keep it: it is how the consumer knows its place again",
            )
        self.server, self.consumer = server, consumer
        # A hash, because MySQL takes at most 64 characters for the name of a lock, and ignores their case.
        self._digest = hashlib.sha256(consumer.encode()).hexdigest()[:40]
        self._locks, self._sessions = NamedLocks(self, self._digest), TidbSessions(self, self._digest)
        self._control: Connection | None = None
        self.taker = uuid.uuid4().hex
        """Distinguishes our tokens from those of others, even if it is not known what was committed."""
        self._token = 0
        self.dialect = Dialect.MARIADB
        """The kind of the server, as the last connection found it."""

    def __str__(self) -> str:
        return f"{self.server}, consumer {self.consumer}"

    # --- lock and token

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Open a new control connection, which is closed if anything fails."""
        self.close()
        self._control = self.server.connect()
        try:
            with self.translating():
                self.dialect = dialect_of(*self.rows(DIALECT)[0])
                yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Open a connection for this block only, and take nothing over."""
        self._control = self.server.connect()
        try:
            with self.translating():
                self.dialect = dialect_of(*self.rows(DIALECT)[0])
                yield
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock; undoes nothing."""
        if self._control is not None:
            with contextlib.suppress(pymysql.err.MySQLError):
                self._control.close()
        self._control = None

    @property
    def control(self) -> Connection:
        """The connection that holds the consumer's lock: the one for statements without a transaction."""
        if self._control is None:
            raise Retryable("the target is not taken over", where=str(self.server))
        return self._control

    @property
    def token(self) -> int:
        """The token that guards our transactions; 0: none was raised yet."""
        return self._token

    @property
    def guard(self) -> Guard:
        """The guard of DDL at this kind of server."""
        return self._sessions if self.dialect is Dialect.TIDB else self._locks

    def take_lock(self, *, again: bool = False) -> None:
        """End the connections of an earlier consumer, and take the lock where there is one.

        `again`: only our own connections may be ended; Fenced when another consumer has the target.
        """
        self.guard.take(again=again)

    def end_lanes(self, lanes: Iterable[int]) -> None:
        """See `Guard`."""
        self.guard.end_lanes(lanes)

    def raise_token(self, *, again: bool = False) -> Row:
        """Raise the consumer's tokens; returns its row. `again`: Fenced unless we raised them last.

        Then no statement of an earlier token takes effect any more; Retryable if one does not end.
        """
        mine = self.consumer
        if not again:
            self.execute(
                f"INSERT IGNORE INTO `{SCHEMA}`.`progress` (consumer, token, batch) VALUES (%s, 0, 0)", mine
            )
        with self.transaction():
            # The row stays locked until the commit, so two consumers never get the same token. Not by FOR
            # UPDATE: a TiDB 8.4 ends when a session is killed whose transaction has only locked rows.
            if not self.execute(
                f"UPDATE `{SCHEMA}`.`progress` SET token=token+1, taker=%s WHERE consumer=%s"
                + (" AND taker=%s" if again else ""),
                *(self.taker, mine, *([self.taker] if again else [])),
            ):
                raise self.fenced()
            self._token, batch, position, begun, ddl = self.rows(
                f"SELECT token, batch, position, begun, ddl FROM `{SCHEMA}`.`progress` WHERE consumer=%s",
                mine,
            )[0]
            # In the same transaction: from its commit on no lane of an earlier consumer matches its row, so
            # none can commit.
            self.execute(f"UPDATE `{SCHEMA}`.`lanes` SET token=%s WHERE consumer=%s", self._token, mine)
        self.guard.taken(ddl_begun=begun_in(ddl) is not None)
        return Row(batch, position, begun, ddl)

    def holder(self) -> str:
        """See `Guard`."""
        return self.guard.holder()

    def check_lock(self) -> None:
        """Fenced unless our control connection may still run DDL."""
        self.guard.check()

    def lane_connection(self, lane: int) -> Connection:
        """A connection for a lane, which a new consumer can find."""
        connection = self.server.connect()
        try:
            with self.translating():
                self.guard.join(lane, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def scratch(self) -> str:
        """The name of a temporary table of this consumer in the schema `tidegate`."""
        return self.guard.scratch

    # --- statements of the control connection

    def run_ddl(self, statement: str | bytes) -> int:
        """Run a statement without a transaction; only `guard` guards it. Returns how many rows it matched."""
        return self.execute(self.guard.marked(statement))

    def execute(self, statement: str | bytes, *values: Any) -> int:
        """Run a statement. Returns how many rows it matched."""
        with self.translating():
            return self._execute(statement, *values)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self.translating(), self.control.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def rows_with_warnings(self, statement: str, *values: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
        """The rows of a query, and the texts of its warnings."""
        found = self.rows(statement, *values)
        with self.translating():
            result = self.control._result
            noted = self.control.show_warnings() if result is not None and result.warning_count else ()
        return found, [str(one[-1]) for one in noted]

    def batches(self, statement: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query, `size` at a time; no other statement may run meanwhile."""
        with self.translating(), self.control.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute(statement)
            while rows := cursor.fetchmany(size):
                yield list(rows)

    def look(self, schema: str, table: str) -> str | None:
        """See `described.describe`."""
        with self.translating(), self.control.cursor() as cursor:
            return describe(cursor, schema, table)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run one transaction. After an error the connection is closed."""
        with self.translating():
            try:
                self.control.begin()
                yield
                self.control.commit()
            except BaseException:
                # A commit whose answer is lost may have taken effect. Nobody may continue in this connection;
                # the next takeover reads what is stored.
                self.close()
                raise

    def fenced(self) -> Fenced:
        """The error for a target that another consumer has taken over."""
        return Fenced(
            "another consumer has taken the target over",
            where=str(self),
            why=f"token {self._token} is no longer the newest",
            fix="let the other one run, or stop it first",
        )

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Translate the driver's errors to ours."""
        try:
            yield
        except pymysql.err.MySQLError as error:
            raise translated(error, self.server) from error

    def _execute(self, statement: str | bytes, *values: Any) -> int:
        with self.control.cursor() as cursor:
            return int(cursor.execute(statement, values or None))  # None: then a % is no placeholder
