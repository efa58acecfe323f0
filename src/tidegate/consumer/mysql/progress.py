"""What the target keeps of its consumer, and the fence: who may write, and what of a write is in.

    progress     a row for each consumer: token, position, and the batch that was begun
    lanes        a row for each of its lanes: token, the last batch that the lane has committed, the digest
                 of its rows in the batch that was begun; of a lane that writes it in parts (`parts`), how
                 many of them it has committed, and the digest of these
    definitions  what each of its tables looks like; a table belongs to one consumer

    begin   progress: batch n-1 -> n, what it holds; lanes: their digests
    lane    START TRANSACTION; lanes: batch -> n where token and batch < n; rows; COMMIT
    end     progress: position, nothing begun, where token and batch n

Every one of these steps changes a row that has our token, and takes effect only if it has it still. A taker
raises all tokens in one transaction: a transaction of the old consumer that has passed its first UPDATE is
waited for, and what it committed is then seen; one that comes later matches no row. Statements that no
transaction guards (DDL) run only in the connection that holds the consumer's lock, and a taker ends that
connection first.

A batch that was begun is written again after a crash, with the same rows: a lane whose digest differs has
rows that the first attempt did not have, perhaps in a lane that is through. Then nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.consumer.mysql.hold import NAME_MAX, Hold
from tidegate.consumer.mysql.kept_definitions import KeptDefinitions
from tidegate.consumer.mysql.server_checks import check_engine, check_server
from tidegate.consumer.mysql.session import SCHEMA, Connection
from tidegate.errors import Fatal, Fenced

TABLES: Final = (
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
class Held:
    """What a taker finds."""

    position: str | None
    """None: nothing was ever committed."""
    begun: str | None
    """The position that the batch leads to which was begun and did not end."""
    ddl: str | None
    """The DDL that was begun and did not end."""
    definitions: Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a lane is that writes a batch in parts: as `lanes.digest` has it."""

    parts: int
    """So many of its parts are committed."""
    digest: str
    """Of their rows."""

    def __str__(self) -> str:
        return f"{self.parts}/{self.digest}"

    @classmethod
    def from_text(cls, text: str) -> Reached:
        """Read it back."""
        parts, _, digest = text.partition("/")
        return cls(int(parts), digest)


@dataclass(slots=True)
class _Lanes:
    """By lane, as the last taking over has found them and `begin` has left them."""

    batch: dict[int, int] = field(default_factory=dict)
    digest: dict[int, str] = field(default_factory=dict)
    """Empty: the lane has no part in the batch that was begun."""


class Progress:
    """How far a consumer is. `lane`, `part_begins` and `part_ends` may be called from several threads."""

    def __init__(self, hold: Hold) -> None:
        self.hold, self.definitions = hold, KeptDefinitions(hold)
        self._batch = 0
        self._lanes = _Lanes()
        self._begun = False

    # --- taking over

    def take_again(self) -> Held:
        """Take the target over from our own lost connection, and read; Fenced when another has taken it over.

        Taking it over from the other would end that one, which would then end us, and so on.
        """
        with self.hold.taking():
            self.hold.take_lock(again=True)
            return self._taken(again=True)

    def take_over(self) -> Held:
        """End the consumer that has this name, also an earlier connection of our own, and read.

        Retryable when the server does not answer, InvalidInput when it is none that we can write.
        """
        hold, target = self.hold, str(self.hold.server)
        with hold.taking():
            check_server(hold.rows, target)
            for statement in TABLES:
                hold.execute(statement)
            check_engine(hold.rows, target)
            hold.take_lock()
            return self._taken()

    def _taken(self, *, again: bool = False) -> Held:
        """Behind the lock: end the lanes, raise the token, read."""
        hold = self.hold
        self._end_lanes()
        row = hold.raise_token(again=again)
        lanes = hold.rows(
            f"SELECT lane, batch, digest FROM `{SCHEMA}`.`lanes` WHERE consumer=%s", hold.consumer
        )
        self._lanes = _Lanes({n: b for n, b, _ in lanes}, {n: d for n, _, d in lanes})
        self._batch, self._begun = row.batch, row.begun is not None
        return Held(row.position, row.begun, row.ddl, self.definitions.all())

    def _end_lanes(self) -> None:
        found = self.hold.rows(f"SELECT lane FROM `{SCHEMA}`.`lanes` WHERE consumer=%s", self.hold.consumer)
        self.hold.end_lanes(lane for (lane,) in found)

    def look_on(self) -> tuple[Held, str]:
        """What is kept, without definitions, and in words whose connection has the lock; takes nothing over.

        In a connection for this alone. Empty words: nobody has the lock.
        """
        with self.hold.looking():
            position, begun, ddl = self._kept() or (None, None, None)
            return Held(position, begun, ddl, {}), self.hold.holder()

    def definitions_kept(self) -> Mapping[tuple[str, str], str]:
        """What is kept of this consumer's tables, by schema and name; takes nothing over.

        In a connection for this alone.
        """
        with self.hold.looking():
            return self.definitions.all() if self._kept() is not None else {}

    def _kept(self) -> tuple[Any, ...] | None:
        """The position, the write and the DDL that were begun; None: there was no such consumer yet."""
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
        """Of the batch that was begun, else of the next."""
        return self._batch if self._begun else self._batch + 1

    def has_ended(self, number: int) -> bool:
        """Whether a batch's position was committed, as the last taking over has found."""
        return self._batch >= number and not self._begun

    def begin(self, reached: str, digests: Mapping[int, str]) -> list[int]:
        """Note durably what the next batch holds, by lane; which lanes must write.

        `reached`: the position it leads to. After an interruption the batch is the one that was begun: Fatal
        when a lane holds other rows than it did, and nothing is written. Fenced when another has taken over.
        """
        if self._begun:
            self._compare(digests)
            return [lane for lane in digests if self._lanes.batch.get(lane, 0) < self._batch]
        number = self._batch + 1
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET batch=%s, begun=%s"
                " WHERE consumer=%s AND token=%s AND batch=%s AND begun IS NULL",
                *(number, reached, self.hold.consumer, self.hold.token, number - 1),
            )
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
        """As `begin` where lanes write in parts: how far each one is, in the order of its parts.

        Whether what is written is still what would be written is for the caller to compare: it alone can
        tell, by making it again. Fatal when other lanes had rows in the write that was interrupted.
        """
        fresh = str(Reached(0, ""))
        if not self._begun:
            self.begin(reached, dict.fromkeys(lanes, fresh))
        held = {lane: text for lane, text in self._lanes.digest.items() if text}
        if held.keys() != set(lanes) or not all("/" in text for text in held.values()):
            self._compare(dict.fromkeys(lanes, fresh))
        return {lane: Reached.from_text(held[lane]) for lane in lanes}

    def part_begins(self, lane: int, connection: Connection, at: Reached) -> None:
        """The first statement of a transaction with some of a lane's parts. Fenced when it may not write."""
        with connection.cursor() as cursor:
            matched = cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s"
                " WHERE consumer=%s AND lane=%s AND token=%s AND batch<%s AND digest=%s",
                (str(at), self.hold.consumer, lane, self.hold.token, self._batch, str(at)),
            )
        if not matched:
            raise self._unmatched(connection)

    def part_ends(self, lane: int, connection: Connection, at: Reached, *, last: bool) -> None:
        """The last statement of that transaction: the lane is further, and through if it was its `last`."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s, batch=%s WHERE consumer=%s AND lane=%s",
                (str(at), self._batch if last else self._batch - 1, self.hold.consumer, lane),
            )

    def _compare(self, digests: Mapping[int, str]) -> None:
        held = {lane: digest for lane, digest in self._lanes.digest.items() if digest}
        differ = sorted(lane for lane in held.keys() | digests.keys() if held.get(lane) != digests.get(lane))
        if differ:
            first = differ[0]
            raise self.differs(differ, held.get(first, ""), digests.get(first, ""))

    def differs(self, lanes: Sequence[int], had: str, has: str) -> Fatal:
        """Rows of an interrupted write are not what they were; `had`, `has`: digests of the first lane."""
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
            matched = cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET batch=%s"
                " WHERE consumer=%s AND lane=%s AND token=%s AND batch<%s",
                (self._batch, self.hold.consumer, lane, self.hold.token, self._batch),
            )
        if not matched:
            raise self._unmatched(connection)

    def end(self, position: str) -> None:
        """All lanes are through: move the position. Fenced when another has taken over."""
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s, begun=NULL"
                " WHERE consumer=%s AND token=%s AND batch=%s",
                *(position, self.hold.consumer, self.hold.token, self._batch),
            )
            self.hold.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest='' WHERE consumer=%s", self.hold.consumer
            )
        self._begun = False

    # --- the position, a DDL

    def move(self, position: str, *, ddl_over: bool = False) -> None:
        """Move the position without rows. Fenced as `end`.

        `ddl_over`: it moves past all DDLs that were noted, which are forgotten.
        """
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s{', ddl=NULL' if ddl_over else ''}"
                " WHERE consumer=%s AND token=%s AND begun IS NULL",
                *(position, self.hold.consumer, self.hold.token),
            )

    def note_ddl(
        self,
        noted: str,
        known: Mapping[tuple[str, str], str] | None = None,
        gone: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Note how far a DDL is; in one transaction with the definitions that it has made and taken away.

        InvalidInput when one of the tables is another consumer's.
        """
        with self.hold.transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET ddl=%s WHERE consumer=%s AND token=%s",
                *(noted, self.hold.consumer, self.hold.token),
            )
            self.definitions.replace(known or {}, gone)

    def _guarded(self, statement: str, *values: Any) -> None:
        if not self.hold.execute(statement, *values):
            raise self._unmatched(self.hold.control)

    def _unmatched(self, connection: Connection) -> Fenced | Fatal:
        """Why a guarded statement has found no row: Fenced only if the token is another's."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT token, batch FROM `{SCHEMA}`.`progress` WHERE consumer=%s", (self.hold.consumer,)
            )
            rows = cursor.fetchall()
        if rows and rows[0][0] != self.hold.token:
            return self.hold.fenced()
        return Fatal(
            "the target's record of this consumer is not as it was left",
            where=f"{self.hold.server}, schema {SCHEMA}, consumer {self.hold.consumer}",
            why=f"batch {rows[0][1]}, and not {self._batch}, under our token" if rows else "it is gone",
            fix=f"restore all tables of one moment, those of {SCHEMA} too, or start a new target",
        )
