"""Guards DDL at MariaDB and MySQL: one connection at a time has the consumer's named lock.

GET_LOCK belongs to a connection. A new consumer ends the connection that has the lock, and then waits for the
lock: after that, the old connection's statements have ended or are rolled back. Each lane has a lock in its
own connection, so a transaction of a suspended process can be found and ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Set
from typing import Any

import pymysql

from tidegate.consumer.mysql.guard import TAKE_S, Control
from tidegate.consumer.mysql.server_checks import WHICH_SERVER, check_one_server
from tidegate.consumer.mysql.session import Connection
from tidegate.errors import Retryable


class NamedLocks:
    """The locks of one consumer; see `Guard`."""

    def __init__(self, hold: Control, digest: str) -> None:
        """`digest`: 40 characters that stand for the consumer's name."""
        self._hold, self._digest = hold, digest
        self.name = f"tidegate.{digest}"
        self._which: tuple[Any, ...] = ()
        """The control connection's answer to `WHICH_SERVER`."""
        self._own: set[int] = set()
        """The server's ids of the connections by which we took the lock, or tried to."""

    @property
    def scratch(self) -> str:
        """See `Guard`."""
        return f"scratch_{self._digest}"

    def take(self, *, again: bool) -> None:
        """See `Guard`."""
        # Before the lock is requested: if the answer is lost, the server may still have given this connection
        # the lock.
        self._own.add(self._hold.control.thread_id())
        self._which = self._hold.rows(WHICH_SERVER)[0]
        self._take(self.name, self._own if again else None)

    def end_lanes(self, lanes: Iterable[int]) -> None:
        """See `Guard`. Rolling back a large transaction takes longer than `innodb_lock_wait_timeout`, so wait
        for the lane's lock here.
        """
        for lane in lanes:
            self._take(self._lane_lock(lane))
            # Released again, because the lane's own connection takes it next.
            self._hold.rows("SELECT RELEASE_LOCK(%s)", self._lane_lock(lane))

    def taken(self, *, ddl_begun: bool) -> None:
        """Nothing is left to be done: the connection that had the lock before has ended."""

    def join(self, lane: int, connection: Connection) -> None:
        """See `Guard`. InvalidInput when the connection comes to another server than the control
        connection.
        """
        server, target = self._hold.server, str(self._hold.server)
        with connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 10)", (self._lane_lock(lane),))
            (taken,) = cursor.fetchone()
            cursor.execute(WHICH_SERVER)
            which = cursor.fetchone()
        if not taken:
            raise Retryable(
                "an earlier connection of a lane does not end",
                where=f"{server}, consumer {self._hold.consumer}, lane {lane}",
                why="it holds the lane's lock still; the next takeover ends it",
            )
        check_one_server(self._which, which, target)

    def check(self) -> None:
        """See `Guard`."""
        (mine,) = self._hold.rows("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", self.name)[0]
        if not mine:
            raise self._hold.fenced()

    def marked(self, statement: str | bytes) -> str | bytes:
        """The statement as it is."""
        return statement

    def holder(self) -> str:
        """See `Guard`."""
        ((holder,),) = self._hold.rows("SELECT IS_USED_LOCK(%s)", self.name)
        if holder is None:
            return ""
        hosts = self._hold.rows("SELECT host FROM information_schema.processlist WHERE id=%s", holder)
        return f"connection {holder} of {self._hold.server}" + (f" from {hosts[0][0]}" if hosts else "")

    def _take(self, name: str, ours: Set[int] | None = None) -> None:
        """End the connection that holds a lock, and take the lock: its statements have then ended or are
        undone.

        `ours`: the only connections that may be ended; Fenced when another holds the lock.
        """
        hold, until = self._hold, time.monotonic() + TAKE_S
        # A lock that is free is taken at once. Only after a kill the wait is worth a second.
        patience = 0
        while not hold.rows("SELECT GET_LOCK(%s, %s)", name, patience)[0][0]:
            patience = 1
            (holder,) = hold.rows("SELECT IS_USED_LOCK(%s)", name)[0]
            # None: the holder has ended since the lock was refused.
            if holder is not None:
                if ours is not None and holder not in ours:
                    raise hold.fenced()
                self._kill(holder)
            if time.monotonic() > until:
                raise Retryable(
                    "the earlier consumer's connection does not end",
                    where=f"{hold.server}, connection {holder}",
                    why=f"it was killed {TAKE_S:.0f} s ago; a statement of it may still be rolled back",
                    fix="look at SHOW PROCESSLIST, and try again when it is gone",
                )

    def _kill(self, connection: int) -> None:
        try:
            with self._hold.control.cursor() as cursor:
                cursor.execute(f"KILL CONNECTION {int(connection)}")
        except pymysql.err.OperationalError as error:
            # It has ended by itself meanwhile, which is all that is wanted.
            if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
                raise

    def _lane_lock(self, lane: int) -> str:
        return f"{self.name}.{lane}"
