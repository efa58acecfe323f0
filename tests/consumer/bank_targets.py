"""The bank (`bank`) as a reader of a target sees it while a consumer writes it, and is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pymysql
from pyiceberg.catalog.sql import SqlCatalog
from pymysql.constants import ER

from tests.consumer.bank import MONEY, SCHEMA, TABLES, Bank, Row, Rows
from tests.consumer.mysql.reading import forget
from tests.consumer.topics import Event
from tidegate.consumer.engine.position import Position
from tidegate.consumer.iceberg.snapshots import open_snapshot as open_iceberg
from tidegate.consumer.mysql.dialect import DIALECT, Dialect, dialect_of
from tidegate.consumer.mysql.lanes import lane_of as hashed_lane
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse.tables import Lakehouse

HISTORY_LOOKS = 60
"""About this many of all earlier snapshots are read again."""
CHANGED_MEANWHILE = 1412
"""MariaDB: a table was altered after this transaction's snapshot."""
WAITING = (
    "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'"
    " UNION ALL SELECT COUNT(*) FROM information_schema.processlist"
    " WHERE state='Waiting for table metadata lock'"
)
WAITING_AT_TIDB = (
    "SELECT COUNT(*) FROM information_schema.tidb_trx WHERE state='LockWaiting'"
    " UNION ALL SELECT COUNT(*) FROM mysql.tidb_mdl_view"
)
"""The statements that wait for another transaction: of rows, and a DDL."""


@dataclass(frozen=True)
class Seen:
    """One look at a target."""

    moments: Mapping[str, int]
    """By table, the ts that the target reports as its own."""
    tables: Mapping[str, Rows]


class Truth:
    """The bank as it was at any ts, drawn as far as it is asked for."""

    def __init__(self, seed: int) -> None:
        self._bank = Bank(seed)
        self._groups: Iterator[list[Event]] = self._bank.groups()

    def at(self, ts: int) -> Mapping[str, Rows]:
        while self._bank.ts < ts:
            next(self._groups)
        return self._bank.at(ts)

    def faults(self, seen: Seen, *, columns: bool = False) -> list[str]:
        """Which tables differ from what they were at their moments. Added columns count if both have them,
        because a reader's moment is that of the rows; with `columns` they must be there."""
        found = []
        for name, rows in seen.tables.items():
            expected = self.at(seen.moments[name])[name]
            if not _equal(rows, expected, columns=columns):
                found.append(f"{name} at {seen.moments[name]}: {_difference(rows, expected)}")
        return found


def _equal(rows: Rows, expected: Rows, *, columns: bool) -> bool:
    if columns:
        return rows == expected
    return rows.keys() == expected.keys() and all(
        all(a == b for a, b in zip(row, expected[one], strict=False)) for one, row in rows.items()
    )


def _difference(rows: Rows, expected: Rows) -> str:
    keys = [one for one in rows.keys() | expected.keys() if rows.get(one) != expected.get(one)]
    return "; ".join(f"{rows.get(one)} and not {expected.get(one)}" for one in sorted(keys)[:4])


def total(seen: Seen) -> int:
    """The sum of all money."""
    return sum(row[1] for name in MONEY for row in seen.tables.get(name, {}).values())


class BankTarget(Protocol):
    """One target, from outside."""

    options: Sequence[str]
    """Options of the consumer's command."""

    def look(self) -> Seen | None:
        """Return the state that a reader sees now; None: nothing yet, or the reader must ask again."""

    def history(self) -> Iterator[Seen]:
        """Yield the earlier states that a reader can still see."""

    def held(self, name: str) -> Any:
        """A context in which a table's rows cannot be written, if the target can be stopped there."""

    def stuck(self) -> bool:
        """Whether the consumer is in the middle of a write, before such rows."""

    def close(self) -> None: ...


class AtFiles:
    """Named snapshots of a directory."""

    scheme: str
    open: Callable[[int | None], Any]
    """The newest snapshot at or before a ts."""
    named: Callable[[], list[int]]
    """The ts of all snapshots."""

    def __init__(self, root: Path) -> None:
        self.options = ["--target", f"{self.scheme}://{root}"]
        self._root = root

    def look(self) -> Seen | None:
        try:
            return self._at(None)
        except InvalidInput:
            return None

    def history(self) -> Iterator[Seen]:
        named = self.named()
        yield from (self._at(ts) for ts in named[:: len(named) // HISTORY_LOOKS + 1])

    def _at(self, ts: int | None) -> Seen:
        snapshot = self.open(ts)
        tables: dict[str, Rows] = {name: {} for name in TABLES}
        for name, table in snapshot.tables.items():
            rows = table.to_arrow().to_pylist()
            tables[name.partition(".")[2]] = {row["id"]: tuple(row.values()) for row in rows}
        return Seen(dict.fromkeys(TABLES, snapshot.ts), tables)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Nobody can stop a writer of files from outside."""
        yield

    def stuck(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


class AtDelta(AtFiles):
    scheme = "delta"

    def open(self, ts: int | None) -> Any:
        return open_snapshot(self._root, at=ts)

    def named(self) -> list[int]:
        return Lakehouse(self._root).snapshots.all_ts()


class AtIceberg(AtFiles):
    """A commit takes about three times as long as in Delta, so each has more rows."""

    scheme = "iceberg"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.options += ["--commit-rows", "400"]

    def open(self, ts: int | None) -> Any:
        return open_iceberg(self._root, at=ts)

    def named(self) -> list[int]:
        catalog = SqlCatalog("tidegate", uri=f"sqlite:///{self._root}/catalog.db")
        table = catalog.load_table(("_tidegate", "snapshots")).scan(selected_fields=("ts",)).to_arrow()
        catalog.close()
        return sorted(set(table["ts"].to_pylist()))


class AtMariaDb:
    """Tables of a database, and what the consumer notes there, read in one transaction."""

    def __init__(self, server: MySqlServer, lanes: int, folder: Path) -> None:
        self._name, self._lanes = f"bank-{lanes}", lanes
        self.options = ["--target", f"mysql://root@127.0.0.1:{server.port}/", "--name", self._name]
        self.options += ["--folder", str(folder), "--lanes", str(lanes)]
        connection = server.connect()
        forget(server, self._name, SCHEMA)
        self._reader, self._holder = connection, server.connect()
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            # An ALTER that waits for the bystander lets no reader pass, and we are both.
            cursor.execute("SET SESSION lock_wait_timeout=0")
            cursor.execute(DIALECT)
            at_tidb = dialect_of(*cursor.fetchone()) is Dialect.TIDB
        self._waiting = WAITING_AT_TIDB if at_tidb else WAITING
        self._asked_at = 0.0
        self._lane_of = {name: lane_of(name, lanes) for name in TABLES}

    def look(self) -> Seen | None:
        try:
            with self._reader.cursor() as cursor:
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                moments = self._moments(cursor)
                tables = {name: _rows(cursor, name) for name in TABLES} if moments else {}
        except pymysql.err.MySQLError as error:
            # MySQL and TiDB name the database if it is missing, MariaDB the table.
            if error.args[0] in (CHANGED_MEANWHILE, ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.LOCK_WAIT_TIMEOUT):
                return None
            raise
        finally:
            self._reader.rollback()
        return Seen(moments, tables) if moments else None

    def _moments(self, cursor: Any) -> dict[str, int]:
        """By table: the position, or what the batch that was begun leads to if the lane is through."""
        cursor.execute(
            "SELECT batch, position, begun FROM tidegate.progress WHERE consumer=%s", (self._name,)
        )
        found = cursor.fetchone()
        if found is None:
            return {}
        batch, position, begun = found
        cursor.execute("SELECT lane, batch FROM tidegate.lanes WHERE consumer=%s", (self._name,))
        through = {lane for lane, last in cursor.fetchall() if last == batch}
        return {
            name: self.moment((begun or position) if lane in through else position, name)
            for name, lane in self._lane_of.items()
        }

    def moment(self, position: str | None, name: str) -> int:
        """The ts at which a table is in this position."""
        return moment(position)

    def history(self) -> Iterator[Seen]:
        """A database has none."""
        return iter(())

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """A bystander's locks on all rows of a table, and on its definition."""
        with self._holder.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"SELECT * FROM `{SCHEMA}`.`{name}` FOR UPDATE")
            try:
                yield
            finally:
                self._holder.rollback()

    def stuck(self) -> bool:
        """Whether a transaction, or a DDL, waits for the bystander. InnoDB looks again only when nobody has
        asked for a tenth of a second."""
        if time.monotonic() - self._asked_at < 0.15:
            return False
        self._asked_at = time.monotonic()
        with self._holder.cursor() as cursor:
            cursor.execute(self._waiting)
            return any(count for (count,) in cursor.fetchall())

    def close(self) -> None:
        self._reader.close()
        self._holder.close()


def _rows(cursor: Any, name: str) -> Rows:
    cursor.execute(f"SELECT * FROM `{SCHEMA}`.`{name}`")
    found: list[Row] = cursor.fetchall()
    return {row[0]: row for row in found}


def lane_of(name: str, lanes: int) -> int:
    """The lane of one of the bank's tables."""
    return hashed_lane(SCHEMA, name, lanes)


def moment(position: str | None) -> int:
    """The one ts at which all partitions of a position stand."""
    if position is None:
        return 0
    applied = {part.applied for part in Position.from_json(position).partitions.values()}
    assert len(applied) == 1, "in transaction mode all partitions stand at one ts"
    return applied.pop()


def wait_until(what: str, true: Callable[[], Any], patience_s: float, meanwhile: Callable[[], None]) -> None:
    """Fails naming `what` when it does not come true."""
    deadline = time.monotonic() + patience_s
    while not true():
        meanwhile()
        assert time.monotonic() < deadline, f"within {patience_s:.0f} s not seen: {what}"
