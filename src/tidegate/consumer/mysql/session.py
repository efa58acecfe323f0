"""Connections to a MySQL or MariaDB target: where it is, how a session must be, what its errors mean.

A session is strict, so that a value that does not fit is an error and not another value; a warning of a
statement that writes is an error too. Nothing reconnects by itself: a new connection knows nothing of the
transaction, the lock and the guard of the old one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT, CR, ER

from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.log import redact

Connection: TypeAlias = "pymysql.connections.Connection[Any]"
SCHEMES: Final = ("mysql", "mariadb")
SCHEMA: Final = "tidegate"
"""Of our own tables at the target."""
PASSWORD: Final = "TIDEGATE_TARGET_PASSWORD"
"""Environment variable of the target's password."""
CONNECT_S: Final = 10
ANSWER_S: Final = 3600
"""How long a statement may take: an ALTER of a large table is one."""
SQL_MODE: Final = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
"""Strict, or values are clipped. An auto-increment key of 0 stays 0, dates of no calendar what they are."""


@dataclass(frozen=True, slots=True)
class MySqlServer:
    """Where the database is, and as whom to enter it. Never prints its password."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)

    @classmethod
    def from_uri(cls, uri: str) -> MySqlServer:
        """`mysql://user:password@host:port/`; InvalidInput when it says something else.

        A password may also come from the environment variable `TIDEGATE_TARGET_PASSWORD`, or from the file
        that `?password-file=` names.
        """
        try:
            parts = urlsplit(uri)
            port = parts.port or 3306
        except ValueError as error:
            raise _bad(uri, str(error)) from error
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise _bad(uri, "it names no host")
        if parts.path not in ("", "/"):
            raise _bad(uri, "it names a schema; tables keep the schemas that they have upstream")
        password = unquote(parts.password or "")
        if parts.query:
            name, _, file = parts.query.partition("=")
            if name != "password-file":
                raise _bad(uri, f"option {name} is not known; password-file is")
            try:
                password = Path(unquote(file)).read_text().rstrip("\n")
            except OSError as error:
                raise _bad(uri, f"password file {file}: {error.strerror}") from error
        password = password or os.environ.get(PASSWORD, "")
        return cls(parts.hostname, port, unquote(parts.username or "root"), password)

    def __str__(self) -> str:
        return f"mysql://{self.user}@{self.host}:{self.port}/"

    def connect(self) -> Connection:
        """A session as every statement of ours needs it; Retryable, or InvalidInput when it is refused."""
        try:
            connection = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_S,
                read_timeout=ANSWER_S,
                write_timeout=ANSWER_S,
                sql_mode=SQL_MODE,
                client_flag=CLIENT.FOUND_ROWS,  # rows that match count, those it leaves as they are too
                init_command="SET time_zone='+00:00', foreign_key_checks=0",
            )
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except pymysql.err.MySQLError as error:
            raise translated(error, self) from error
        return connection


def _bad(uri: str, why: str) -> InvalidInput:
    return InvalidInput(
        "this target cannot be used",
        where=redact(uri),
        why=why,
        fix="write --target mysql://user@host:port/ and put the password into "
        f"{PASSWORD} or ?password-file=FILE",
    )


REFUSED: Final = frozenset({ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR})
LOST: Final = frozenset(
    {CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, ER.SERVER_SHUTDOWN, 1927}
)
"""The connection is gone, or never was; 1927: it was killed."""
BUSY: Final = frozenset({ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT})
"""The transaction has not taken effect and may later."""


def translated(error: pymysql.err.MySQLError, server: MySqlServer) -> TidegateError:
    """A driver's error as one of ours: Retryable when the connection or a lock was lost."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    why = redact(f"error {code}: {error.args[-1] if error.args else error}")
    if isinstance(error, pymysql.err.InterfaceError) or code in LOST:
        return Retryable("the target database does not answer", where=str(server), why=why)
    if code in BUSY:
        return Retryable("a transaction at the target was ended by another", where=str(server), why=why)
    if code in REFUSED:
        return InvalidInput(
            "the target database refuses this user",
            where=str(server),
            why=why,
            fix="the user needs all rights on the schemas that it writes, on `tidegate`, and PROCESS "
            "and CONNECTION ADMIN (or SUPER) to end an earlier consumer's connections",
        )
    return Fatal("the target database refuses a statement", where=str(server), why=why)
