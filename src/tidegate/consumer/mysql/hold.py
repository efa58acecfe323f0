"""One consumer's hold on a target: the lock of its connection, and its token.

    lock    GET_LOCK in the control connection; each lane has one in its own. A new consumer ends the
            connection that has a lock, and then waits for the lock: after that, the old connection's
            statements have ended or are rolled back
    token   a number in the rows of `progress` and `lanes`; a statement that is guarded by it takes effect
            only while no other consumer has raised it

The lock guards statements without a transaction (DDL), which run only in the control connection; the token
guards transactions. Both are needed: a suspended process may wake up with a connection that could not be
ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from tidegate.consumer.mysql.described import describe
from tidegate.consumer.mysql.dialect import DIALECT, Dialect, dialect_of
from tidegate.consumer.mysql.server_checks import WHICH_SERVER, check_one_server
from tidegate.consumer.mysql.session import SCHEMA, Connection, MySqlServer, translated
from tidegate.errors import Fenced, InvalidInput, Retryable

TAKE_S: Final = 120.0
"""Seconds for which a new consumer waits for the lock of a connection that it has ended: the last statement
there continues until it notices that."""
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
        self._lock_name = f"tidegate.{hashlib.sha256(consumer.encode()).hexdigest()[:40]}"
        self._control: Connection | None = None
        self._which: tuple[Any, ...] = ()
        """The control connection's answer to `WHICH_SERVER`."""
        self._taker = uuid.uuid4().hex
        """Distinguishes our tokens from those of others, even if it is not known what was committed."""
        self._own: set[int] = set()
        """The server's ids of the connections by which we took the lock, or tried to."""
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
        # Before the lock is requested: if the answer is lost, the server may still have given this connection
        # the lock.
        self._own.add(self._control.thread_id())
        try:
            with self.translating():
                self._which = self.rows(WHICH_SERVER)[0]
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

    def take_lock(self, *, again: bool = False) -> None:
        """End the connection that holds the consumer's lock, and take the lock.

        `again`: only our own connections may be ended; Fenced when another consumer holds the lock.
        """
        self._take(self._lock_name, self._own if again else None)

    def end_lanes(self, lanes: Iterable[int]) -> None:
        """End the connections of earlier lanes: a suspended process may have a transaction open in one.

        Rolling back a large one takes longer than `innodb_lock_wait_timeout`, so wait for its lock here.
        """
        for lane in lanes:
            self._take(self._lane_lock(lane))
            # Released again, because the lane's own connection takes it next.
            self.rows("SELECT RELEASE_LOCK(%s)", self._lane_lock(lane))

    def raise_token(self, *, again: bool = False) -> Row:
        """Raise the consumer's tokens; returns its row. `again`: Fenced unless we raised them last."""
        mine = self.consumer
        with self.transaction():
            self.execute(
                f"INSERT IGNORE INTO `{SCHEMA}`.`progress` (consumer, token, batch) VALUES (%s, 0, 0)", mine
            )
            # The row stays locked until the commit, so two consumers never get the same token.
            token, taker, batch, position, begun, ddl = self.rows(
                f"SELECT token, taker, batch, position, begun, ddl FROM `{SCHEMA}`.`progress`"
                " WHERE consumer=%s FOR UPDATE",
                mine,
            )[0]
            if again and taker != self._taker:
                raise self.fenced()
            self._token = token + 1
            self.execute(
                f"UPDATE `{SCHEMA}`.`progress` SET token=%s, taker=%s WHERE consumer=%s",
                *(self._token, self._taker, mine),
            )
            # In the same transaction: from its commit on no lane of an earlier consumer matches its row, so
            # none can commit.
            self.execute(f"UPDATE `{SCHEMA}`.`lanes` SET token=%s WHERE consumer=%s", self._token, mine)
        return Row(batch, position, begun, ddl)

    def holder(self) -> str:
        """Which connection holds the lock, in words; empty: none does."""
        ((holder,),) = self.rows("SELECT IS_USED_LOCK(%s)", self._lock_name)
        if holder is None:
            return ""
        hosts = self.rows("SELECT host FROM information_schema.processlist WHERE id=%s", holder)
        return f"connection {holder} of {self.server}" + (f" from {hosts[0][0]}" if hosts else "")

    def check_lock(self) -> None:
        """Fenced unless our control connection still holds the lock."""
        (mine,) = self.rows("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", self._lock_name)[0]
        if not mine:
            raise self.fenced()

    def lane_connection(self, lane: int) -> Connection:
        """A connection for a lane, with a lock by which a new consumer can find it."""
        connection = self.server.connect()
        with self.translating(), connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 10)", (self._lane_lock(lane),))
            (taken,) = cursor.fetchone()
            cursor.execute(WHICH_SERVER)
            server = cursor.fetchone()
        if not taken:
            connection.close()
            raise Retryable(
                "an earlier connection of a lane does not end",
                where=f"{self}, lane {lane}",
                why="it holds the lane's lock still; the next takeover ends it",
            )
        try:
            check_one_server(self._which, server, str(self.server))
        except InvalidInput:
            connection.close()
            raise
        return connection

    @property
    def scratch(self) -> str:
        """The name of a temporary table of this consumer in the schema `tidegate`."""
        return f"scratch_{self._lock_name[-40:]}"

    def _take(self, name: str, ours: Set[int] | None = None) -> None:
        """End the connection that holds a lock, and take the lock: its statements have then ended or are
        undone.

        `ours`: the only connections that may be ended; Fenced when another holds the lock.
        """
        until = time.monotonic() + TAKE_S
        # A lock that is free is taken at once. Only after a kill the wait is worth a second.
        patience = 0
        while not self.rows("SELECT GET_LOCK(%s, %s)", name, patience)[0][0]:
            patience = 1
            (holder,) = self.rows("SELECT IS_USED_LOCK(%s)", name)[0]
            # None: the holder has ended since the lock was refused.
            if holder is not None:
                if ours is not None and holder not in ours:
                    raise self.fenced()
                self._kill(holder)
            if time.monotonic() > until:
                raise Retryable(
                    "the earlier consumer's connection does not end",
                    where=f"{self.server}, connection {holder}",
                    why=f"it was killed {TAKE_S:.0f} s ago; a statement of it may still be rolled back",
                    fix="look at SHOW PROCESSLIST, and try again when it is gone",
                )

    def _kill(self, connection: int) -> None:
        try:
            self._execute(f"KILL CONNECTION {int(connection)}")
        except pymysql.err.OperationalError as error:
            # It has ended by itself meanwhile, which is all that is wanted.
            if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
                raise

    def _lane_lock(self, lane: int) -> str:
        return f"{self._lock_name}.{lane}"

    # --- statements of the control connection

    def run_ddl(self, statement: str | bytes) -> None:
        """Run a statement without a transaction; only the lock guards it."""
        self.execute(statement)

    def execute(self, statement: str | bytes, *values: Any) -> int:
        """Run a statement. Returns how many rows it matched."""
        with self.translating():
            return self._execute(statement, *values)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self.translating(), self.control.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

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
