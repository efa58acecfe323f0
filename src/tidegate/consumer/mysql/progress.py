"""The target's record of its consumer, and the fence: who may write, and which writes are committed.

    progress     a row for each consumer: token, position, and the batch that was begun
    lanes        a row for each of its lanes: token, the last batch that the lane has committed, the digest
                 of its rows in the batch that was begun; for a lane that writes it in parts (`parts`), how
                 many of them are committed, and their digest
    definitions  what each of its tables looks like; a table belongs to one consumer

    begin   progress: batch n-1 -> n, its position; lanes: their digests
    lane    START TRANSACTION; lanes: batch -> n where token and batch < n; rows; COMMIT
    end     progress: position, nothing begun, where token and batch n

Each of these steps updates a row under our token, and takes effect only if the row still has it. A new
consumer raises all tokens in one transaction. It waits for a transaction of the old consumer that has passed
its first UPDATE, and sees what that commits; a later transaction of the old consumer matches no row.
Statements that no transaction guards (DDL) run only in the connection that holds the consumer's lock, and a
new consumer ends that connection first.

A batch that was begun is written again after a crash, with the same rows. If a lane's digest differs, it has
other rows than in the first attempt, and lanes that are committed already may have them too. Then nothing is
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.consumer.applying.target import TargetFailed
from tidegate.consumer.mysql.hold import NAME_MAX, Hold
from tidegate.consumer.mysql.kept_definitions import KeptDefinitions
from tidegate.consumer.mysql.server_checks import check_engine, check_server
from tidegate.consumer.mysql.session import SCHEMA, Connection
from tidegate.errors import Fatal, Fenced

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

OPEN: Final = "open"
"""Instead of a lane's digest: it has not committed the batch, and gets other rows than it began with."""


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


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a lane is that writes a batch in parts, in the form of `lanes.digest`."""

    parts: int
    """How many of its parts are committed."""
    digest: str
    """The digest of their rows."""

    def __str__(self) -> str:
        return f"{self.parts}/{self.digest}"

    @classmethod
    def from_text(cls, text: str) -> Reached:
        """Parse what `__str__` returns."""
        parts, _, digest = text.partition("/")
        return cls(int(parts), digest)


@dataclass(slots=True)
class _Lanes:
    """The rows of `lanes`, by lane: as found at the last takeover, and as changed by `begin`."""

    batch: dict[int, int] = field(default_factory=dict)
    digest: dict[int, str] = field(default_factory=dict)
    """Empty: the lane has no rows in the batch that was begun."""


class Progress:
    """How far a consumer is. `lane`, `part_begins` and `part_ends` may be called from several threads."""

    def __init__(self, hold: Hold) -> None:
        self.hold, self.definitions = hold, KeptDefinitions(hold)
        self._batch = 0
        self._lanes = _Lanes()
        self._begun = False

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
            check_server(hold.rows, target)
            for statement in TABLES:
                hold.execute(statement)
            check_engine(hold.rows, target)
            hold.take_lock()
            return self._taken()

    def _taken(self, *, again: bool = False) -> TargetRecord:
        """While holding the lock: end the lanes, raise the token, read."""
        hold = self.hold
        # Before the token is raised: a lane that is still open has its row locked, and raising the tokens
        # would wait for that row only as long as `innodb_lock_wait_timeout`.
        self._end_lanes()
        row = hold.raise_token(again=again)
        # Read after the token is raised: from then on no earlier lane commits, so this is final.
        lanes = hold.rows(
            f"SELECT lane, batch, digest FROM `{SCHEMA}`.`lanes` WHERE consumer=%s", hold.consumer
        )
        self._lanes = _Lanes({n: b for n, b, _ in lanes}, {n: d for n, _, d in lanes})
        self._batch, self._begun = row.batch, row.begun is not None
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

    # --- a batch

    @property
    def number(self) -> int:
        """The number of the batch that was begun, otherwise of the next one."""
        return self._batch if self._begun else self._batch + 1

    def has_ended(self, number: int) -> bool:
        """Whether a batch's position was committed, as seen at the last takeover."""
        return self._batch >= number and not self._begun

    @property
    def begun_digests(self) -> list[str]:
        """The digests that are stored for the batch that was begun; empty if none is begun."""
        return list(self._lanes.digest.values()) if self._begun else []

    def begin(self, reached: str, digests: Mapping[int, str]) -> list[int]:
        """Store durably what the next batch holds, by lane. Returns the lanes that must write.

        `reached`: the position after the batch. After an interruption the batch is the one that was begun:
        Fatal when a lane has other rows than before, and nothing is written. Fenced when another consumer has
        the target.
        """
        if self._begun:
            # All lanes are compared before any of them writes. If a table came to another lane, its rows
            # could otherwise be written twice.
            self._compare(digests)
            self._close_open(digests)
            return [lane for lane in digests if self._lanes.batch.get(lane, 0) < self._batch]
        number = self._batch + 1
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET batch=%s, begun=%s"
                " WHERE consumer=%s AND token=%s AND batch=%s AND begun IS NULL",
                *(number, reached, self.hold.consumer, self.hold.token, number - 1),
            )
            # A lane that is known keeps its batch and token, and gets only the digest. All of it is one
            # transaction with `begun`.
            for lane, digest in digests.items():
                self.hold.execute(
                    f"INSERT INTO `{SCHEMA}`.`lanes` (consumer, lane, token, batch, digest)"
                    " VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE digest=VALUES(digest)",
                    *(self.hold.consumer, lane, self.hold.token, number - 1, digest),
                )
        self._batch, self._begun = number, True
        self._lanes = _Lanes(
            self._lanes.batch | {lane: number - 1 for lane in digests if lane not in self._lanes.batch},
            dict(digests),
        )
        return list(digests)

    def begin_parts(self, reached: str, lanes: Sequence[int]) -> dict[int, Reached]:
        """Like `begin`, for lanes that write in parts. Returns how far each one is, in the order of its
        parts.

        The caller must compare the committed parts with the planned ones, because only it can render them
        again. Fatal when other lanes had rows in the interrupted write.
        """
        fresh = str(Reached(0, ""))
        if not self._begun:
            self.begin(reached, dict.fromkeys(lanes, fresh))
        held = {lane: text for lane, text in self._lanes.digest.items() if text}
        # Then the interrupted write had other lanes, or did not write in parts, and the comparison raises.
        if held.keys() != set(lanes) or not all("/" in text for text in held.values()):
            self._compare(dict.fromkeys(lanes, fresh))
        return {lane: Reached.from_text(held[lane]) for lane in lanes}

    def part_begins(self, lane: int, connection: Connection, at: Reached) -> None:
        """The first statement of a transaction with some of a lane's parts. Fenced when it may not write."""
        # This matches the row although nothing changes in it, because the connection counts found rows
        # (`session`).
        with connection.cursor() as cursor:
            matched = cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s"
                " WHERE consumer=%s AND lane=%s AND token=%s AND batch<%s AND digest=%s",
                (str(at), self.hold.consumer, lane, self.hold.token, self._batch, str(at)),
            )
        if not matched:
            raise self._unmatched(connection)

    def part_ends(self, lane: int, connection: Connection, at: Reached, *, last: bool) -> None:
        """The last statement of that transaction: stores how far the lane is; `last`: it is complete."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s, batch=%s WHERE consumer=%s AND lane=%s",
                (str(at), self._batch if last else self._batch - 1, self.hold.consumer, lane),
            )

    def _compare(self, digests: Mapping[int, str]) -> None:
        held = {lane: digest for lane, digest in self._lanes.digest.items() if digest}
        differ = sorted(
            lane for lane in held.keys() | digests.keys() if held.get(lane) not in (OPEN, digests.get(lane))
        )
        if differ:
            first = differ[0]
            raise self.differs(differ, held.get(first, ""), digests.get(first, ""))

    def differs(self, lanes: Sequence[int], had: str, has: str) -> Fatal:
        """The error when rows changed since an interrupted write; `had`, `has`: the first lane's digests."""
        return Fatal(
            "a write that was interrupted cannot be completed: its rows are others now",
            where=f"{self.hold}, lane {', '.join(map(str, lanes))}",
            why=f"lane {lanes[0]} had {had or 'nothing'}, and has {has or 'nothing'}: a setting or the "
            "release has changed, the topic was compacted, or a row is gone upstream that its message only "
            "names",
            fix="start again as it was, or begin a new target",
        )

    def lane(self, lane: int, connection: Connection) -> None:
        """The first statement of a lane's transaction, in its connection. Fenced when it may not write."""
        with connection.cursor() as cursor:
            # docs/guarantees.md#each-change-is-in-a-target-once: the guard is in the transaction of the rows,
            # so rows of a replaced consumer are rolled back with it.
            matched = cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET batch=%s"
                " WHERE consumer=%s AND lane=%s AND token=%s AND batch<%s",
                (self._batch, self.hold.consumer, lane, self.hold.token, self._batch),
            )
        if not matched:
            raise self._unmatched(connection)

    def end(self, position: str) -> None:
        """All lanes are committed: move the position. Fenced when another consumer has the target."""
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s, begun=NULL"
                " WHERE consumer=%s AND token=%s AND batch=%s",
                *(position, self.hold.consumer, self.hold.token, self._batch),
            )
            # In the same transaction as the position: a digest that stayed would count as a lane of the next
            # batch after a restart.
            self.hold.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest='' WHERE consumer=%s", self.hold.consumer
            )
        self._begun = False

    # --- tables that are set aside

    def through(self, lane: int) -> bool:
        """Whether a lane has committed the batch that was begun, as seen at the last takeover."""
        return self._begun and self._lanes.batch.get(lane, 0) >= self._batch

    def amend(
        self,
        position: str,
        begun: str | None,
        ddl: str,
        lanes: Sequence[int] = (),
        forgotten: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Store other texts about the same progress. Fenced as in `end`.

        `begun`: the position after the batch that was begun. `ddl`: the note about DDLs; empty: none.
        `lanes`: those that get other rows in this batch. `forgotten`: tables whose definitions are removed.
        """
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s, begun=%s, ddl=%s"
                " WHERE consumer=%s AND token=%s AND batch=%s",
                *(position, begun, ddl or None, self.hold.consumer, self.hold.token, self._batch),
            )
            self._store_digests(dict.fromkeys(lanes, OPEN))
            self.definitions.replace({}, forgotten)

    def _close_open(self, digests: Mapping[int, str]) -> None:
        """Store the digests of lanes that are `OPEN`."""
        if found := {n: digests.get(n, "") for n, held in self._lanes.digest.items() if held == OPEN}:
            with self.hold.transaction():
                self._guarded(
                    f"UPDATE `{SCHEMA}`.`progress` SET batch=%s WHERE consumer=%s AND token=%s AND batch=%s",
                    *(self._batch, self.hold.consumer, self.hold.token, self._batch),
                )
                self._store_digests(found)

    def _store_digests(self, digests: Mapping[int, str]) -> None:
        for lane, digest in digests.items():
            self.hold.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s WHERE consumer=%s AND lane=%s",
                *(digest, self.hold.consumer, lane),
            )
            self._lanes.digest[lane] = digest

    # --- the position, a DDL

    def move(self, position: str, *, ddl_over: bool = False) -> None:
        """Move the position without rows. Fenced as in `end`.

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
        if not self.hold.execute(statement, *values):
            raise self._unmatched(self.hold.control)

    def _unmatched(self, connection: Connection) -> Fenced | TargetFailed:
        """Why a guarded statement matched no row: Fenced only if another consumer has raised the token."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT token, batch FROM `{SCHEMA}`.`progress` WHERE consumer=%s", (self.hold.consumer,)
            )
            rows = cursor.fetchall()
        if rows and rows[0][0] != self.hold.token:
            return self.hold.fenced()
        return TargetFailed(
            "the target's record of this consumer is not as it was left",
            where=f"{self.hold.server}, schema {SCHEMA}, consumer {self.hold.consumer}",
            why=f"batch {rows[0][1]}, and not {self._batch}, under our token" if rows else "it is gone",
            fix=f"restore all tables of one moment, those of {SCHEMA} too, or start a new target",
        )
