"""The guard ends an earlier consumer of the same name before a new one reads what it has done.

The token (`hold`) guards transactions. Statements without a transaction (DDL) need more than that, and how
they are guarded depends on the kind of the server:

    MariaDB, MySQL   `NamedLocks`: a lock of the one connection that may run them
    TiDB             `TidbSessions`: a note before each of them, and sessions that can be found and ended
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.errors import Fenced

TAKE_S: Final = 120.0
"""Seconds for which a new consumer waits for connections that it has ended: the last statement of such a
connection continues until it notices that."""


class Control(Protocol):
    """The control connection of a consumer, as a guard needs it: see `Hold`."""

    server: MySqlServer
    consumer: str
    taker: str

    @property
    def token(self) -> int: ...

    @property
    def control(self) -> Connection: ...

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...

    def rows_with_warnings(self, statement: str, *values: Any) -> tuple[list[tuple[Any, ...]], list[str]]: ...

    def execute(self, statement: str | bytes, *values: Any) -> int: ...

    def fenced(self) -> Fenced: ...


class Guard(Protocol):
    """One thread calls, except `join`. Errors are those of `session.translated`."""

    @property
    def scratch(self) -> str:
        """The name of a temporary table of this consumer in the schema `tidegate`."""

    def take(self, *, again: bool) -> None:
        """End earlier connections of this consumer, before the token is raised.

        `again`: only our own connections may be ended; Fenced when another consumer has the target.
        """

    def end_lanes(self, lanes: Iterable[int]) -> None:
        """End the connections of earlier lanes: a suspended process may have a transaction open in one."""

    def taken(self, *, ddl_begun: bool) -> None:
        """The token is raised. Returns when no statement of an earlier token can take effect any more.

        `ddl_begun`: whether a statement without a transaction is noted as begun. Retryable if an earlier
        connection or its statement does not end.
        """

    def join(self, lane: int, connection: Connection) -> None:
        """Prepare a new connection of a lane, so that a new consumer can find it."""

    def check(self) -> None:
        """Fenced unless this consumer may still run a statement without a transaction."""

    def marked(self, statement: str | bytes) -> str | bytes:
        """A statement without a transaction, as it is sent."""

    def holder(self) -> str:
        """Which connection has the target, in words; empty: none has."""
