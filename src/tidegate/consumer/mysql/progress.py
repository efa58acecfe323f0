"""The target's record of its consumer, and the fence: who may write, and which writes are committed.

    progress     a row for each consumer: token, position, and the batch that was begun
    lanes        a row for each of its lanes: token, the last batch that the lane has committed, the digest
                 of its rows in the batch that was begun; for a lane that writes it in parts (`parts`), how
                 many of them are committed, and their digest
    definitions  what each of its tables looks like; a table belongs to one consumer

Each step of a batch (`batch`), each move of the position and each note about a DDL updates a row under our
token, and takes effect only if the row still has it (`fence`). A new consumer raises all tokens in one
transaction. It waits for a transaction of the old consumer that has passed its first UPDATE, and sees what
that commits; a later transaction of the old consumer matches no row.
Statements that no transaction guards (DDL) run only in the control connection. A new consumer ends it, and
waits until none of its statements can take effect any more: by the lock that it holds, or at TiDB, where
there is no lock, by its name and the note before each statement (`guard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.consumer.mysql.batch import Batch
from tidegate.consumer.mysql.fence import guarded
from tidegate.consumer.mysql.hold import NAME_MAX, Hold
from tidegate.consumer.mysql.kept_definitions import KeptDefinitions
from tidegate.consumer.mysql.server_checks import check_engine, check_server
from tidegate.consumer.mysql.session import SCHEMA

TABLES: Final = (
    # A binary collation, because consumers whose names differ only in case are two consumers.
    f"CREATE DATABASE IF NOT EXISTS `{SCHEMA}` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    f"CREATE TABLE IF NOT EXISTS `{SCHEMA}`.`progress` (consumer VARCHAR({NAME_MAX}) NOT NULL PRIMARY KEY,"
    " token BIGINT UNSIGNED NOT NULL, taker VARCHAR(32), batch BIGINT UNSIGNED NOT NULL, position LONGTEXT,"
    " begun LONGTEXT, ddl LONGTEXT) ENGINE=InnoDB",
    f"CREATE TABLE IF NOT EXISTS `{SCHEMA}`.`lanes` (consumer VARCHAR({NAME_MAX}) NOT NULL,"
    " lane INT UNSIGNED NOT NULL, token BIGINT UNSIGNED NOT NULL, batch BIGINT UNSIGNED NOT NULL,"
    " digest VARCHAR(80) NOT NULL, PRIMARY KEY (consumer, lane)) ENGINE=InnoDB",
    f"CREATE TABLE IF NOT EXISTS `{SCHEMA}`.`definitions` (consumer VARCHAR({NAME_MAX}) NOT NULL,"
    " table_schema VARCHAR(64) NOT NULL, table_name VARCHAR(64) NOT NULL, definition LONGTEXT NOT NULL,"
    " PRIMARY KEY (table_schema, table_name), KEY (consumer)) ENGINE=InnoDB",
)


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """The record that a new consumer finds at the target."""

    position: str | None
    """None: nothing was ever committed."""
    begun: str | None
    """The position after the batch that was begun and not ended; None: there is none."""
    ddl: str | None
    """The note about DDLs that are not passed by the position."""
    definitions: Mapping[tuple[str, str], str]


class Progress:
    """How far a consumer is: what it has taken over, its position and its DDLs. `batch` has the rows."""

    def __init__(self, hold: Hold) -> None:
        self.hold, self.definitions = hold, KeptDefinitions(hold)
        self.batch = Batch(hold)

    # --- taking over

    def take_again(self) -> TargetRecord:
        """Take the target over from our own lost connection, and read; Fenced when another consumer has it.

        If we took it over from the other, it would then take it over from us, and so on.
        """
        with self.hold.taking():
            self.hold.take_lock(again=True)
            return self._taken(again=True)

    def take_over(self) -> TargetRecord:
        """End an earlier consumer of this name, or an earlier connection of our own, and read what is stored.

        Retryable when the server does not answer, InvalidInput when the server is not suitable.
        """
        hold, target = self.hold, str(self.hold.server)
        with hold.taking():
            check_server(hold.rows, hold.dialect, target)
            for statement in TABLES:
                hold.execute(statement)
            check_engine(hold.rows, target)
            # Before the record is read: until then an earlier consumer may still write it.
            hold.take_lock()
            return self._taken()

    def _taken(self, *, again: bool = False) -> TargetRecord:
        """While holding the lock: end the lanes, raise the token, read."""
        hold = self.hold
        # Before the token is raised: a lane that is still open has its row locked, and raising the tokens
        # would wait for that row only as long as `innodb_lock_wait_timeout`.
        self._end_lanes()
        row = hold.raise_token(again=again)
        self.batch.read(row.batch, begun=row.begun is not None)
        return TargetRecord(row.position, row.begun, row.ddl, self.definitions.all())

    def _end_lanes(self) -> None:
        found = self.hold.rows(f"SELECT lane FROM `{SCHEMA}`.`lanes` WHERE consumer=%s", self.hold.consumer)
        self.hold.end_lanes(lane for (lane,) in found)

    def look_on(self) -> tuple[TargetRecord, str]:
        """The record without definitions, and which connection has the lock, in words; takes nothing
        over.

        Uses a connection of its own. Empty words: no connection has the lock.
        """
        with self.hold.looking():
            position, begun, ddl = self._kept() or (None, None, None)
            return TargetRecord(position, begun, ddl, {}), self.hold.holder()

    def definitions_kept(self) -> Mapping[tuple[str, str], str]:
        """This consumer's definitions, by schema and name; takes nothing over.

        Uses a connection of its own.
        """
        with self.hold.looking():
            return self.definitions.all() if self._kept() is not None else {}

    def _kept(self) -> tuple[Any, ...] | None:
        """The position, and the write and the DDL that were begun; None: there is no such consumer yet."""
        if not self.hold.rows(
            "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name='progress'", SCHEMA
        ):
            return None
        found = self.hold.rows(
            f"SELECT position, begun, ddl FROM `{SCHEMA}`.`progress` WHERE consumer=%s", self.hold.consumer
        )
        return found[0] if found else None

    # --- tables that are set aside

    def amend(
        self,
        position: str,
        begun: str | None,
        ddl: str,
        lanes: Sequence[int] = (),
        forgotten: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Store other texts about the same progress. Fenced when another consumer has the target.

        `begun`: the position after the batch that was begun. `ddl`: the note about DDLs; empty: none.
        `lanes`: those that get other rows in this batch. `forgotten`: tables whose definitions are removed.
        """
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s, begun=%s, ddl=%s"
                " WHERE consumer=%s AND token=%s AND batch=%s",
                *(position, begun, ddl or None, self.hold.consumer, self.hold.token, self.batch.last),
            )
            self.batch.open(lanes)
            self.definitions.replace({}, forgotten)

    # --- the position, a DDL

    def move(self, position: str, *, ddl_over: bool = False) -> None:
        """Move the position without rows. Fenced when another consumer has the target.

        `ddl_over`: it moves past all DDLs that were noted, so the note is deleted.
        """
        with self.hold.transaction():
            # Not while a batch is begun: lanes of it that have not committed would stay unwritten.
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s{', ddl=NULL' if ddl_over else ''}"
                " WHERE consumer=%s AND token=%s AND begun IS NULL",
                *(position, self.hold.consumer, self.hold.token),
            )

    def record_ddl(
        self,
        noted: str,
        known: Mapping[tuple[str, str], str] | None = None,
        gone: Sequence[tuple[str, str]] = (),
        moved: Iterable[str | bytes] = (),
    ) -> None:
        """Store how far a DDL is, in one transaction with the definitions that it has made and removed, and
        with the rows that the statements `moved` move.

        InvalidInput when one of the tables belongs to another consumer.
        """
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET ddl=%s WHERE consumer=%s AND token=%s",
                *(noted, self.hold.consumer, self.hold.token),
            )
            for statement in moved:
                self.hold.execute(statement)
            self.definitions.replace(known or {}, gone)

    def _guarded(self, statement: str, *values: Any) -> None:
        guarded(self.hold, self.batch.last, statement, *values)
