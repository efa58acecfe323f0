"""Connections to a MySQL, MariaDB or TiDB target: its address, the settings of a session, the meaning of its
errors.

A session is strict, so that a value that does not fit is an error and not another value; a warning of a
writing statement is an error too. Nothing reconnects automatically: a new connection has neither the
transaction, nor the lock, nor the guard of the old one.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT, CR, ER

from tidegate.config.values import Secret, revealed
from tidegate.consumer.applying.target import TargetFailed
from tidegate.consumer.mysql.atomicity import OPTION
from tidegate.consumer.mysql.ticdc_options import replaced
from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.log import redact
from tidegate.tls import Tls

Connection: TypeAlias = "pymysql.connections.Connection[Any]"
SCHEMES: Final = ("mysql", "mariadb")
SCHEMA: Final = "tidegate"
"""The schema of our own tables at the target."""
PASSWORD: Final = "TIDEGATE_TARGET_PASSWORD"
"""The environment variable for the target's password."""
OPTIONS: Final = ("password-file", "ssl-ca", "ssl-cert", "ssl-key", OPTION)
"""Options of a target's address. `atomicity` reads the last one; each other is the path of a file."""
CONNECT_S: Final = 10
SQL_MODE: Final = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
"""Strict, because otherwise values are clipped. An auto-increment key of 0 stays 0, and dates that no
calendar knows stay as they are."""


USUAL: Final = "SET time_zone='+00:00', timestamp=DEFAULT"
"""Resets a session after a statement that needed another moment and zone."""


@dataclass(frozen=True, slots=True)
class MySqlServer:
    """The address of the database, and the user. Never prints its password."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: Tls | None = None
    """None: encrypted if the server offers it, which an attacker on the network can prevent."""

    @classmethod
    def from_uri(cls, uri: str) -> MySqlServer:
        """Parse `mysql://user:password@host:port/`; InvalidInput for anything else.

        A password may also come from the environment variable `TIDEGATE_TARGET_PASSWORD`, or from the file
        that `?password-file=` names. With `ssl-ca=` the server must have a certificate of this CA for its
        host; `ssl-cert=` and `ssl-key=` are our own.
        """
        try:
            parts = urlsplit(uri)
            port = parts.port or 3306
        except ValueError:
            # The port may be a part of a password with a / or ? in it, and the cause's message may quote it.
            raise _bad(
                "its host or port cannot be read; in a password, / ? # [ ] @ : % are to be %-encoded"
            ) from None
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise _bad("it names no host")
        if parts.path not in ("", "/"):
            raise _bad("it names a schema; tables keep the schemas that they have upstream")
        options = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))
        if found := replaced(options):
            raise _of_ticdc(found)
        # Another name is not shown, because it may be a part of a password with a ? in it.
        if parts.fragment or any(name not in OPTIONS for name in options):
            raise _bad(f"what follows the host is none of {', '.join(OPTIONS)}")
        password = unquote(parts.password or "")
        if file := options.get("password-file"):
            try:
                password = Path(file).read_text().rstrip("\n")
            except OSError as error:
                raise _bad(f"password file {file}: {error.strerror}") from error
        password = password or os.environ.get(PASSWORD, "")
        user = unquote(parts.username or "root")
        return cls(parts.hostname, port, user, Secret(password), _tls(options))

    def __str__(self) -> str:
        return f"mysql://{self.user}@{self.host}:{self.port}/"

    def connect(self) -> Connection:
        """A session with the settings that every statement needs; Retryable, or InvalidInput when refused."""
        tls = self.tls
        try:
            connection = _Session(
                host=self.host,
                port=self.port,
                user=self.user,
                password=revealed(self.password).encode(),  # the driver would encode a str as Latin-1
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_S,
                # No other timeout, because an ALTER of a large table takes hours. TCP keepalive finds a
                # server that is gone.
                sql_mode=SQL_MODE,
                client_flag=CLIENT.FOUND_ROWS,  # count matching rows, even those that do not change
                ssl_ca=tls and str(tls.ca),
                ssl_cert=tls and tls.cert and str(tls.cert),
                ssl_key=tls and tls.key and str(tls.key),
                ssl_verify_cert=tls and True,
                ssl_verify_identity=tls and True,
                # Lanes write tables in no common order, so the row of a child may come before that of its
                # parent.
                init_command="SET time_zone='+00:00', foreign_key_checks=0",
            )
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except pymysql.err.MySQLError as error:
            raise translated(error, self) from error
        except RuntimeError as error:  # an authentication method that needs a package which is missing
            raise InvalidInput(
                "this target cannot be used",
                where=str(self),
                why=str(error),
                fix="install `cryptography`, or use TLS (?ssl-ca=FILE)",
            ) from error
        except OSError as error:  # from the TLS files; the driver translates errors of the network
            raise InvalidInput(
                "the files for TLS cannot be used",
                where=str(self),
                why=str(error),
                fix="check the ssl- options",
            ) from error
        return connection


class _Session(pymysql.connections.Connection):
    """The driver's connection, without its work for certificates that nobody checks.

    If TLS is only preferred, the driver checks no certificate, but loads all CAs of this machine for every
    connection, which takes 20 ms of CPU. So these connections share what the driver made for the first one.
    """

    _unchecked: ClassVar[ssl.SSLContext | None] = None

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if not sslp and _Session._unchecked is not None:
            return _Session._unchecked
        made: ssl.SSLContext = super()._create_ssl_ctx(sslp)
        if not sslp:
            _Session._unchecked = made
        return made


def _tls(options: Mapping[str, str]) -> Tls | None:
    if "ssl-ca" not in options:
        if "ssl-cert" in options or "ssl-key" in options:
            raise _bad("a certificate is given without the CA's: ssl-ca")
        return None
    cert, key = (Path(options[name]) if name in options else None for name in ("ssl-cert", "ssl-key"))
    return Tls(Path(options["ssl-ca"]), cert, key)


def _of_ticdc(found: Sequence[tuple[str, str]]) -> InvalidInput:
    """The error for options of TiCDC's sink URI; `found`: each with what takes its place."""
    return InvalidInput(
        "this target has options of TiCDC's sink URI",
        where=f"--target, {', '.join(name for name, _ in found)}",
        why="; ".join(f"{name}: {instead}" for name, instead in found),
        fix=f"leave them out; an address may have {', '.join(OPTIONS)}",
    )


def _bad(why: str) -> InvalidInput:
    return InvalidInput(
        "this target cannot be used",
        where="--target",
        why=why,
        fix="write --target mysql://user@host:port/ and put the password into "
        f"{PASSWORD} or ?password-file=FILE",
    )


REFUSED: Final = frozenset(
    {
        *(
            ER.ACCESS_DENIED_ERROR,
            ER.DBACCESS_DENIED_ERROR,
            ER.TABLEACCESS_DENIED_ERROR,
            ER.HOST_NOT_PRIVILEGED,
        ),
        *(
            ER.COLUMNACCESS_DENIED_ERROR,
            ER.SPECIFIC_ACCESS_DENIED_ERROR,
            ER.KILL_DENIED_ERROR,
            1698,
            3118,
            4151,
        ),
    }
)
"""1698: no password given; 3118, 4151: the account is locked."""
LOST: Final = frozenset(
    {
        *(CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, ER.SERVER_SHUTDOWN, 1927),
        *(ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED, ER.HOST_IS_BLOCKED),
    }
)
"""The connection is lost, or refused because there are too many. 1927: it was killed."""
BUSY: Final = frozenset(
    {
        *(ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.QUERY_INTERRUPTED, ER.LOCK_TABLE_FULL),
        *(8002, 8005, 8022, 8027, 8028, 8214, 8229, 9001, 9002, 9003, 9004, 9005, 9007),
    }
)
"""The transaction did not take effect and can be retried. 1317: the statement was ended (KILL QUERY). From
8000 on, TiDB: write conflicts, a schema that has changed meanwhile, a DDL job that was cancelled (8214),
locks that were not renewed (8229), PD and TiKV that do not answer."""

WHOLE_SERVER: Final = frozenset(
    {
        *(ER.DISK_FULL, ER.OUTOFMEMORY, ER.OUT_OF_SORTMEMORY, ER.OUT_OF_RESOURCES, ER.RECORD_FILE_FULL),
        *(ER.OPTION_PREVENTS_STATEMENT, ER.ERROR_ON_WRITE, ER.ERROR_ON_READ, ER.CANT_CREATE_FILE, 1836),
        *(8004, 8175, 8176),
    }
)
"""The server has no space or memory left, or writes nothing (1290, 1836): no table's rows are the cause.

8004, 8175, 8176: a limit of TiDB for a transaction, a session or the server. One statement exceeds it because
of what its transaction has written before, which may be other tables' rows.
"""


def translated(error: pymysql.err.MySQLError, server: MySqlServer) -> TidegateError:
    """A driver's error as one of ours: Retryable when the connection or a lock was lost."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    why = redact(f"error {code}: {error.args[-1] if error.args else error}")
    if isinstance(error, pymysql.err.InterfaceError) or code in LOST:
        return Retryable(
            "the target database does not answer",
            where=str(server),
            why=why,
            fix="check that it runs and the address is right; the consumer resumes from its stored position",
        )
    if code == CR.CR_SSL_CONNECTION_ERROR:
        return InvalidInput(
            "the target database does not offer TLS",
            where=str(server),
            why=why,
            fix="set up TLS there, or leave out ?ssl-ca=",
        )
    if code in BUSY:
        return Retryable(
            "another transaction ended one of the consumer at the target",
            where=str(server),
            why=why,
            fix="stop other programs that write these tables; the consumer resumes from its stored position",
        )
    if code in REFUSED:
        return InvalidInput(
            "the target database refuses this user",
            where=str(server),
            why=why,
            fix="give the user all rights on the schemas that it writes, on `tidegate`, and PROCESS "
            "and CONNECTION ADMIN (or SUPER) to end an earlier consumer's connections",
        )
    return (TargetFailed if code in WHOLE_SERVER else Fatal)(
        "the target database refuses a statement",
        where=str(server),
        why=why,
        fix="remove the cause that the database names, and restart the consumer",
    )
