"""A process that is killed at one of its writes to a database: before it takes effect, or right after."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pymysql

from tidegate.consumer.mysql.session import Connection, MySqlServer


class Killed(BaseException):
    """Simulates kill -9: nothing below the raising call continues, and every connection ends."""


class MortalServer(MySqlServer):
    """Dies at the n-th write of all its connections: before it when n is even, after it when odd."""

    @classmethod
    def at(cls, server: MySqlServer, dies_at: int) -> MortalServer:
        made = cls(server.host, server.port, server.user, server.password)
        object.__setattr__(made, "life", Life(dies_at))
        return made

    __slots__ = ("life",)
    life: Life

    def connect(self) -> Connection:
        connection = MySqlServer.connect(self)
        self.life.watch(connection)
        return connection


class Life:
    def __init__(self, dies_at: int) -> None:
        self.steps, self.dies_at, self.dead = 0, dies_at, False
        self.connections: list[Connection] = []
        self.lock = threading.Lock()

    def watch(self, connection: Connection) -> None:
        with self.lock:
            self.connections.append(connection)
        for name in ("begin", "query", "commit"):
            setattr(connection, name, self._mortal(name, getattr(connection, name)))

    def _mortal(self, name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            try:
                return whole(*arguments, **named)
            except Exception:
                self._die_if(self.dead)  # another thread's death has closed the connection under this one
                raise

        def call(*arguments: Any, **named: Any) -> Any:
            text = arguments[0] if arguments else b""
            text = text.encode() if isinstance(text, str) else text
            if name == "begin" or text.lstrip().startswith((b"SELECT", b"SHOW")):
                self._die_if(self.dead)
                return run(*arguments, **named)
            with self.lock:
                self.steps += 2
                step = self.steps
            self._die_if(self.dead or step == self.dies_at)
            done = run(*arguments, **named)
            self._die_if(step + 1 == self.dies_at)
            return done

        return call

    def _die_if(self, due: bool) -> None:
        if not due:
            return
        self.dead = True
        for connection in self.connections:
            with contextlib.suppress(pymysql.err.MySQLError, OSError):
                connection._force_close()
        raise Killed
