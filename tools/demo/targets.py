"""Where the demo's consumer writes: how to start it, what its reader sees, and what it holds at the end."""

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
from tidegate.consumer.mysql.session import SCHEMA, Connection, MySqlServer
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.position import Position
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import InvalidInput, TidegateError
from tidegate.kvclient.pd import PdClient

SERVICES: Final = Path(__file__).parents[1] / "services"
NAME: Final = "demo"
"""The consumer's, at a database."""
SYSTEM: Final = (SCHEMA, "mysql", "sys", "information_schema", "performance_schema")
"""Schemas of a MariaDB that hold no table from upstream."""
TABLES: Final = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN %s"
POSITION: Final = f"SELECT position FROM `{SCHEMA}`.`progress` WHERE consumer=%s"


@dataclass(frozen=True, slots=True)
class Compared:
    """Source and target at one timestamp."""

    ts: int
    equal: bool
    tables: list[dict[str, Any]]
    """Of each table: its name, source_rows, target_rows, equal."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot as a reader has found it."""

    ts: int
    at_ms: float
    """When it was there, by the wall clock."""
    total: str
    """The sum of all balances in it."""


class DemoTarget(Protocol):
    """One kind of target. `prepare`, then `start`, then the others; `newest` is for one thread."""

    name: str
    """What the rows end up in, in one word."""
    place: str
    """The same in a sentence."""
    lag: str
    """What the age of a snapshot is called."""

    def prepare(self) -> None:
        """Install what is missing, in plain sight; CalledProcessError when it cannot, and has said why."""

    def start(self) -> None:
        """Start what must run before the consumer does."""

    def options(self) -> list[str]:
        """What `tidegate consumer run` needs to know of it."""

    def newest(self, known: Container[int]) -> Seen | None:
        """The newest snapshot; None when there is none, or its ts is known."""

    def compare(self, pd: str) -> Compared:
        """Every table of either side at the newest snapshot."""

    def __str__(self) -> str:
        """Where its files are."""


def target_of(name: str, folder: Path) -> DemoTarget:
    """The target that is called `name`; InvalidInput when none is."""
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
        """By `tidegate compare`."""
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
    """A MariaDB of the demo's own. The consumer has one lane, so that every read sees whole transactions."""

    name, place, lag = "MariaDB", "MariaDB", "commit to MariaDB"

    def __init__(self, folder: Path) -> None:
        self._folder, self._server = folder, MySqlServer("", 0, "", "")
        self._reader: Connection | None = None

    def prepare(self) -> None:
        """Debian's package, if it is not there."""
        subprocess.run([SERVICES, "fetch", "mariadb"], check=True)

    def start(self) -> None:
        """On a free port; it ends with the demo's other services."""
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
        """Position and sum in one transaction; the rows may be those of the next step already."""
        try:
            self._reader = self._reader or self._connect()
            ts = _begin(self._reader)
            if not ts or ts in known:
                return None
            at_ms = time.time() * 1000
            with self._reader.cursor() as cursor:
                cursor.execute("SELECT SUM(balance) FROM bank.accounts")
                ((total,),) = cursor.fetchall()
            self._reader.rollback()  # or a DDL of the consumer waits for it
        except (pymysql.err.MySQLError, TidegateError):
            # There is no table yet, or a DDL came between the transaction's beginning and its read.
            self._let_go()
            return None
        return Seen(ts, at_ms, str(total))

    def compare(self, pd: str) -> Compared:
        """In one transaction at the target. Nothing is committed at the source any more."""
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

    def _let_go(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(pymysql.err.MySQLError):
                self._reader.close()
        self._reader = None


TARGETS: Final[dict[str, type[DeltaTables] | type[MariaDb]]] = {"delta": DeltaTables, "mariadb": MariaDb}


def _begin(connection: Connection) -> int:
    """Begin a transaction that sees one moment; the ts of the newest snapshot then, 0 when there is none."""
    connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    with connection.cursor() as cursor:
        cursor.execute(POSITION, (NAME,))
        ((text,),) = cursor.fetchall() or ((None,),)
    return Position.from_json(text).ts if text else 0


def _rows(connection: Connection, schema: str, table: str) -> dict[str, list[Any]]:
    """All rows, by column, as the driver has them."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {qualified(schema, table)}")
        rows = cursor.fetchall()
        names = [str(column[0]) for column in cursor.description]
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def verdict(name: str, source: pa.Table | None, target: dict[str, list[Any]] | None) -> dict[str, Any]:
    """One table of either side, compared as bags of whole rows in the source's types."""
    here = source.num_rows if source is not None else 0
    there = len(next(iter(target.values()), [])) if target is not None else 0
    equal = False
    if source is not None and target is not None and sorted(target) == sorted(source.column_names):
        # The driver has moments without a zone: in these sessions it is UTC.
        held = pa.table([pa.array(target[field.name], field.type) for field in source.schema], source.schema)
        equal = differences(source, held, (), 0)[0] == 0
    return {"table": name, "source_rows": here, "target_rows": there, "equal": equal}
