"""The targets of the demo's consumer: how to start one, read its snapshots, and compare its tables at the
end."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from tidegate.consumer.comparison import Source, differences
from tidegate.consumer.engine.position import Position
from tidegate.consumer.mysql.session import SCHEMA, Connection, MySqlServer
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import InvalidInput, TidegateError
from tidegate.kvclient.pd import PdClient

SERVICES: Final = Path(__file__).parents[1] / "services"
NAME: Final = "demo"
"""The consumer's name in a database."""
SYSTEM: Final = (SCHEMA, "mysql", "sys", "information_schema", "performance_schema")
"""Schemas of a MariaDB without tables from upstream."""
TABLES: Final = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN %s"
POSITION: Final = f"SELECT position FROM `{SCHEMA}`.`progress` WHERE consumer=%s"


@dataclass(frozen=True, slots=True)
class Compared:
    """Source and target at one timestamp."""

    ts: int
    equal: bool
    tables: list[dict[str, Any]]
    """For each table: its name, source_rows, target_rows, equal."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot that a reader has found."""

    ts: int
    at_ms: float
    """When it was found, by the wall clock."""
    total: str
    """The sum of all balances in it."""


class DemoTarget(Protocol):
    """One kind of target. Call `prepare`, then `start`, then the others. `newest` is for one thread."""

    name: str
    """The kind of target in one word."""
    place: str
    """The same in a sentence."""
    lag: str
    """A name for the age of a snapshot."""

    def prepare(self) -> None:
        """Install missing packages, with visible output. Raises CalledProcessError after a visible error."""

    def start(self) -> None:
        """Start the services that the consumer needs."""

    def options(self) -> list[str]:
        """Its options for `tidegate consumer run`."""

    def newest(self, known: Container[int]) -> Seen | None:
        """The newest snapshot. None if there is none, or if its ts is in `known`."""

    def compare(self, pd: str) -> Compared:
        """Compare every table of both sides at the newest snapshot."""

    def __str__(self) -> str:
        """The place of its files."""


def target_of(name: str, folder: Path) -> DemoTarget:
    """The target with a name. Raises InvalidInput for an unknown name."""
    if name not in TARGETS:
        raise InvalidInput(
            f"the demo has no target '{name[:40]}'",
            where="TARGET",
            why=f"it can be {' or '.join(TARGETS)}",
            fix="run `make demo`, or `make demo TARGET=mariadb`",
        )
    return TARGETS[name](folder)


class DeltaTables:
    """Delta tables in a directory."""

    name, place, lag = "tables", "the tables", "commit to Delta snapshot"

    def __init__(self, folder: Path) -> None:
        self._lake = folder / "lake"

    def prepare(self) -> None:
        """Nothing."""

    def start(self) -> None:
        """Nothing."""

    def options(self) -> list[str]:
        """The directory."""
        return ["--target", f"delta://{self._lake}"]

    def newest(self, known: Container[int]) -> Seen | None:
        """Opens the snapshot, and reads one column of it."""
        try:
            snapshot = open_snapshot(self._lake)
            if snapshot.ts in known or "bank.accounts" not in snapshot.tables:
                return None
            at_ms = time.time() * 1000
            balances = snapshot.tables["bank.accounts"].to_arrow(["balance"]).column("balance")
        except (TidegateError, OSError):
            return None  # the lake does not exist yet
        return Seen(snapshot.ts, at_ms, str(pc.sum(balances).as_py()))

    def compare(self, pd: str) -> Compared:
        """Compare with `tidegate compare`."""
        command = [sys.executable, "-m", "tidegate", "compare", "--pd", pd, *self.options()]
        done = subprocess.run(
            [*command, "--at", "latest", "--json"], capture_output=True, text=True, timeout=120
        )
        if done.returncode not in (0, 1) or not done.stdout:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        outcome = json.loads(done.stdout)
        return Compared(outcome["ts"], done.returncode == 0, outcome["tables"])

    def __str__(self) -> str:
        return str(self._lake)


class MariaDb:
    """The demo's own MariaDB. The consumer has one lane, so that every read sees whole transactions."""

    name, place, lag = "MariaDB", "MariaDB", "commit to MariaDB"

    def __init__(self, folder: Path) -> None:
        self._folder, self._server = folder, MySqlServer("", 0, "", "")
        self._reader: Connection | None = None

    def prepare(self) -> None:
        """Install Debian's package if it is missing."""
        subprocess.run([SERVICES, "fetch", "mariadb"], check=True)

    def start(self) -> None:
        """Start it on a free port. It ends with the demo's other services."""
        command = [str(SERVICES), "start", "mariadb", "--dir", str(self._folder / "services"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        self._server = MySqlServer("127.0.0.1", int(json.loads(done.stdout)["mariadb"]["port"]), "root", "")

    def options(self) -> list[str]:
        """The server, and the consumer's name and folder."""
        folder = str(self._folder / "consumer")
        return ["--target", str(self._server), "--name", NAME, "--folder", folder, "--lanes", "1"]

    def newest(self, known: Container[int]) -> Seen | None:
        """Position and sum, read in one transaction. The rows may already be those of the next step."""
        try:
            self._reader = self._reader or self._connect()
            ts = _begin(self._reader)
            if not ts or ts in known:
                return None
            at_ms = time.time() * 1000
            with self._reader.cursor() as cursor:
                cursor.execute("SELECT SUM(balance) FROM bank.accounts")
                ((total,),) = cursor.fetchall()
            self._reader.rollback()  # otherwise a DDL of the consumer would wait for it
        except (pymysql.err.MySQLError, TidegateError):
            # There is no table yet, or a DDL ran between the begin of the transaction and its read.
            self._release()
            return None
        return Seen(ts, at_ms, str(total))

    def compare(self, pd: str) -> Compared:
        """Compare in one transaction at the target. The source does not change any more."""
        connection = self._connect()
        with contextlib.closing(connection), PdClient(pd) as client:
            ts = _begin(connection)
            source = Source(client, ts)
            known = source.tables()
            with connection.cursor() as cursor:
                cursor.execute(TABLES, (SYSTEM,))
                held = {f"{schema}.{table}": (schema, table) for schema, table in cursor.fetchall()}
            tables = []
            for name in sorted(known.keys() | held.keys()):
                here = source.read(known[name]) if name in known else None
                there = _rows(connection, *held[name]) if name in held else None
                tables.append(verdict(name, here, there))
        equal = all(one["equal"] for one in tables) and not source.undecodable
        return Compared(ts, equal, tables)

    def __str__(self) -> str:
        return str(self._folder / "services" / "mariadb")

    def _connect(self) -> Connection:
        connection = self._server.connect()
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return connection

    def _release(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(pymysql.err.MySQLError):
                self._reader.close()
        self._reader = None


TARGETS: Final[dict[str, type[DeltaTables] | type[MariaDb]]] = {"delta": DeltaTables, "mariadb": MariaDb}


def _begin(connection: Connection) -> int:
    """Begin a consistent read. Returns the ts of the newest snapshot in it; 0 if there is none."""
    connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    with connection.cursor() as cursor:
        cursor.execute(POSITION, (NAME,))
        ((text,),) = cursor.fetchall() or ((None,),)
    return Position.from_json(text).ts if text else 0


def _rows(connection: Connection, schema: str, table: str) -> dict[str, list[Any]]:
    """All rows, by column, as the driver returns them."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {qualified(schema, table)}")
        rows = cursor.fetchall()
        names = [str(column[0]) for column in cursor.description]
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def verdict(name: str, source: pa.Table | None, target: dict[str, list[Any]] | None) -> dict[str, Any]:
    """Compare one table of both sides as multisets of whole rows in the source's types."""
    here = source.num_rows if source is not None else 0
    there = len(next(iter(target.values()), [])) if target is not None else 0
    equal = False
    if source is not None and target is not None and sorted(target) == sorted(source.column_names):
        # The driver returns times without a zone. In these sessions they are UTC.
        held = pa.table([pa.array(target[field.name], field.type) for field in source.schema], source.schema)
        equal = differences(source, held, (), 0)[0] == 0
    return {"table": name, "source_rows": here, "target_rows": there, "equal": equal}
