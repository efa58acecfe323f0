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

import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql

from tidegate.consumer.mysql.described import describe
from tidegate.consumer.mysql.session import SCHEMA, Connection, MySqlServer, translated
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable

TAKE_S: Final = 120.0
"""How long a taker waits for the lock of a consumer whose connection it has ended: its last statement goes on
until it sees that."""
NAME_MAX: Final = 64
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

WHICH_SERVER: Final = "SELECT @@server_id, @@hostname, @@port"


def check_one_server(control: Sequence[Any], lane: Sequence[Any], target: str) -> None:
    """InvalidInput when two connections to one address have come to two servers; both by `WHICH_SERVER`."""
    if tuple(control) != tuple(lane):
        names = (f"{host}:{port} (server_id {number})" for number, host, port in (control, lane))
        raise InvalidInput(
            "connections to the target come to several servers",
            where=target,
            why=f"{' and '.join(names)}: a lock that one of them has keeps nobody from writing to another",
            fix="name the address of the one server that is written, not that of a proxy",
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
    """One consumer's hold on a target. Only `lane` may be called from several threads."""

    def __init__(self, server: MySqlServer, consumer: str) -> None:
        if not 0 < len(consumer) <= NAME_MAX:
            raise InvalidInput(
                "a consumer's name cannot be used",
                where=f"--name {consumer[:80]!r}",
                why=f"it has {len(consumer)} characters, and may have 1 to {NAME_MAX}",
                fix="choose a shorter one, and keep it: it is how the consumer knows its place again",
            )
        self._server, self._consumer = server, consumer
        self._lock_name = f"tidegate.{hashlib.sha256(consumer.encode()).hexdigest()[:40]}"
        self._control: Connection | None = None
        self._which: tuple[Any, ...] = ()
        """What `WHICH_SERVER` said in it."""
        self._taker = uuid.uuid4().hex
        """Tells our tokens from those of others, also where we do not know what was committed."""
        self._own: set[int] = set()
        """The server's numbers of the connections that took the lock, or tried to."""
        self._token = self._batch = 0
        self._lanes = _Lanes()
        self._begun = False

    # --- taking over

    def take_again(self) -> Held:
        """Take the target over from our own lost connection, and read; Fenced when another has taken it over.

        Who would simply take over anew would end the other, which would end us, and so on.
        """
        with self._taking():
            self._take_lock(self._lock_name, self._own)
            self._end_lanes()
            return self._raise_token(again=True)

    def take_over(self) -> Held:
        """End whoever holds this consumer's name, ourselves in an earlier connection too, and read.

        Retryable when the server does not answer, InvalidInput when it is none that we can write.
        """
        with self._taking():
            self._check_server()
            for statement in TABLES:
                self._run(statement)
            self._check_engine()
            self._take_lock(self._lock_name)
            self._end_lanes()
            return self._raise_token()

    def look_on(self) -> tuple[Held, str]:
        """What is kept, without definitions, and in words whose connection has the lock; takes nothing over.

        In a connection for this alone. Empty words: nobody has the lock.
        """
        self._control = self._server.connect()
        try:
            with self._translating():
                position, begun, ddl = self._kept() or (None, None, None)
                return Held(position, begun, ddl, {}), self._holder()
        finally:
            self.close()

    def definitions_kept(self) -> Mapping[tuple[str, str], str]:
        """What is kept of this consumer's tables, by schema and name; takes nothing over.

        In a connection for this alone.
        """
        self._control = self._server.connect()
        try:
            with self._translating():
                return self._definitions() if self._kept() is not None else {}
        finally:
            self.close()

    def _definitions(self) -> Mapping[tuple[str, str], str]:
        found = self._rows(
            f"SELECT table_schema, table_name, definition FROM `{SCHEMA}`.`definitions` WHERE consumer=%s",
            self._consumer,
        )
        return {(schema, table): text for schema, table, text in found}

    def _kept(self) -> tuple[Any, ...] | None:
        """The position, the write and the DDL that were begun; None: there was no such consumer yet."""
        if not self._rows(
            "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name='progress'", SCHEMA
        ):
            return None
        found = self._rows(
            f"SELECT position, begun, ddl FROM `{SCHEMA}`.`progress` WHERE consumer=%s", self._consumer
        )
        return found[0] if found else None

    def _holder(self) -> str:
        ((holder,),) = self._rows("SELECT IS_USED_LOCK(%s)", self._lock_name)
        if holder is None:
            return ""
        hosts = self._rows("SELECT host FROM information_schema.processlist WHERE id=%s", holder)
        return f"connection {holder} of {self._server}" + (f" from {hosts[0][0]}" if hosts else "")

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """In a new control connection, which is closed if anything fails."""
        self.close()
        self._control = self._server.connect()
        self._own.add(self._control.thread_id())
        try:
            with self._translating():
                self._which = self._rows(WHICH_SERVER)[0]
                yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the lock; undoes nothing."""
        if self._control is not None:
            with contextlib.suppress(pymysql.err.MySQLError):
                self._control.close()
        self._control = None

    def _check_server(self) -> None:
        version, format_of_log, explicit = self._rows(
            "SELECT @@version, @@binlog_format, @@explicit_defaults_for_timestamp"
        )[0]
        if "TiDB" in version:
            raise InvalidInput(
                "TiDB cannot be a target yet",
                where=str(self._server),
                why="its locks and its DDL do not end with their connection, so that an earlier consumer "
                "could still write",
                fix="use MySQL or MariaDB, or a Delta target",
            )
        if not explicit:
            raise InvalidInput(
                "the target gives TIMESTAMP columns attributes that nobody asked for",
                where=str(self._server),
                why="@@explicit_defaults_for_timestamp is OFF: such a column would change with its row",
                fix="set it to ON",
            )
        if format_of_log == "STATEMENT":
            raise InvalidInput(
                "the target's binary log does not allow READ COMMITTED",
                where=str(self._server),
                why="@@binlog_format is STATEMENT",
                fix="set it to ROW",
            )

    def _check_engine(self) -> None:
        found = self._rows(
            "SELECT table_name, engine FROM information_schema.tables"
            " WHERE table_schema=%s AND engine<>'InnoDB'",
            SCHEMA,
        )
        if found:
            raise InvalidInput(
                "the consumer's own tables must be InnoDB",
                where=f"{self._server} schema {SCHEMA}",
                why=", ".join(f"{name} is {engine}" for name, engine in found),
                fix="convert them: without transactions no fence holds",
            )

    def _take_lock(self, name: str, ours: Set[int] | None = None) -> None:
        """End the connection that holds a lock, and hold it: what that one did has ended, or is undone.

        `ours`: the only connections that may be ended; Fenced when another holds the lock.
        """
        until = time.monotonic() + TAKE_S
        patience = 0
        while not self._rows("SELECT GET_LOCK(%s, %s)", name, patience)[0][0]:
            patience = 1
            (holder,) = self._rows("SELECT IS_USED_LOCK(%s)", name)[0]
            if holder is not None:
                if ours is not None and holder not in ours:
                    raise self._fenced()
                self._kill(holder)
            if time.monotonic() > until:
                raise Retryable(
                    "the earlier consumer's connection does not end",
                    where=f"{self._server}, connection {holder}",
                    why=f"it was killed {TAKE_S:.0f} s ago; a statement of it may still be rolled back",
                    fix="look at SHOW PROCESSLIST, and try again when it is gone",
                )

    def _end_lanes(self) -> None:
        """End the connections of earlier lanes: a process that stands still may have a transaction open.

        Undoing a large one takes longer than `innodb_lock_wait_timeout`, so the lock is waited for here.
        """
        lanes = self._rows(f"SELECT lane FROM `{SCHEMA}`.`lanes` WHERE consumer=%s", self._consumer)
        for (lane,) in lanes:
            self._take_lock(self._lane_lock(lane))
            self._rows("SELECT RELEASE_LOCK(%s)", self._lane_lock(lane))

    def _kill(self, connection: int) -> None:
        try:
            self._run(f"KILL CONNECTION {int(connection)}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
                raise

    def _raise_token(self, *, again: bool = False) -> Held:
        """`again`: only if we were the last to raise it; else Fenced."""
        mine = self._consumer
        with self._transaction():
            self._run(
                f"INSERT IGNORE INTO `{SCHEMA}`.`progress` (consumer, token, batch) VALUES (%s, 0, 0)", mine
            )
            token, taker, batch, position, begun, ddl = self._rows(
                f"SELECT token, taker, batch, position, begun, ddl FROM `{SCHEMA}`.`progress`"
                " WHERE consumer=%s FOR UPDATE",
                mine,
            )[0]
            if again and taker != self._taker:
                raise self._fenced()
            self._token, self._batch = token + 1, batch
            self._run(
                f"UPDATE `{SCHEMA}`.`progress` SET token=%s, taker=%s WHERE consumer=%s",
                *(self._token, self._taker, mine),
            )
            self._run(f"UPDATE `{SCHEMA}`.`lanes` SET token=%s WHERE consumer=%s", self._token, mine)
        lanes = self._rows(f"SELECT lane, batch, digest FROM `{SCHEMA}`.`lanes` WHERE consumer=%s", mine)
        self._lanes = _Lanes({n: b for n, b, _ in lanes}, {n: d for n, _, d in lanes})
        self._begun = begun is not None
        return Held(position, begun, ddl, self._definitions())

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
        with self._translating(), self._transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET batch=%s, begun=%s"
                " WHERE consumer=%s AND token=%s AND batch=%s AND begun IS NULL",
                *(number, reached, self._consumer, self._token, number - 1),
            )
            for lane, digest in digests.items():
                self._run(
                    f"INSERT INTO `{SCHEMA}`.`lanes` (consumer, lane, token, batch, digest)"
                    " VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE digest=VALUES(digest)",
                    *(self._consumer, lane, self._token, number - 1, digest),
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
                (str(at), self._consumer, lane, self._token, self._batch, str(at)),
            )
        if not matched:
            raise self._unmatched(connection)

    def part_ends(self, lane: int, connection: Connection, at: Reached, *, last: bool) -> None:
        """The last statement of that transaction: the lane is further, and through if it was its `last`."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE `{SCHEMA}`.`lanes` SET digest=%s, batch=%s WHERE consumer=%s AND lane=%s",
                (str(at), self._batch if last else self._batch - 1, self._consumer, lane),
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
            where=f"{self._server}, consumer {self._consumer}, lane {', '.join(map(str, lanes))}",
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
                (self._batch, self._consumer, lane, self._token, self._batch),
            )
        if not matched:
            raise self._unmatched(connection)

    def lane_connection(self, lane: int) -> Connection:
        """A connection for a lane, which a taker can find by its lock."""
        connection = self._server.connect()
        with self._translating(), connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 10)", (self._lane_lock(lane),))
            (taken,) = cursor.fetchone()
            cursor.execute(WHICH_SERVER)
            server = cursor.fetchone()
        if not taken:
            connection.close()
            raise Retryable(
                "an earlier connection of a lane does not end",
                where=f"{self._server}, consumer {self._consumer}, lane {lane}",
                why="it holds the lane's lock still; the next takeover ends it",
            )
        try:
            check_one_server(self._which, server, str(self._server))
        except InvalidInput:
            connection.close()
            raise
        return connection

    def end(self, position: str) -> None:
        """All lanes are through: move the position. Fenced when another has taken over."""
        with self._translating(), self._transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s, begun=NULL"
                " WHERE consumer=%s AND token=%s AND batch=%s",
                *(position, self._consumer, self._token, self._batch),
            )
            self._run(f"UPDATE `{SCHEMA}`.`lanes` SET digest='' WHERE consumer=%s", self._consumer)
        self._begun = False

    # --- the position, a DDL, definitions

    def move(self, position: str, *, ddl_over: bool = False) -> None:
        """Move the position without rows. Fenced as `end`.

        `ddl_over`: it moves past all DDLs that were noted, which are forgotten.
        """
        with self._translating(), self._transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET position=%s{', ddl=NULL' if ddl_over else ''}"
                " WHERE consumer=%s AND token=%s AND begun IS NULL",
                *(position, self._consumer, self._token),
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
        with self._translating(), self._transaction():
            self._guarded(
                f"UPDATE `{SCHEMA}`.`progress` SET ddl=%s WHERE consumer=%s AND token=%s",
                *(noted, self._consumer, self._token),
            )
            for schema, table in gone:
                self._run(
                    f"DELETE FROM `{SCHEMA}`.`definitions`"
                    " WHERE consumer=%s AND table_schema=%s AND table_name=%s",
                    *(self._consumer, schema, table),
                )
            for (schema, table), text in (known or {}).items():
                self._check_owner(schema, table, lock=True)
                self._run(
                    f"REPLACE INTO `{SCHEMA}`.`definitions` (consumer, table_schema, table_name, definition)"
                    " VALUES (%s, %s, %s, %s)",
                    *(self._consumer, schema, table, text),
                )

    def owner(self, schema: str, table: str) -> str:
        """The consumer that has a table; empty: none has it."""
        with self._translating():
            return self._owner(schema, table)

    def tables_of_others(self, schema: str) -> list[str]:
        """The tables of a schema that other consumers have."""
        found = self.rows(
            f"SELECT table_name FROM `{SCHEMA}`.`definitions` WHERE table_schema=%s AND consumer<>%s",
            *(schema, self._consumer),
        )
        return [table for (table,) in found]

    def check_owner(self, schema: str, table: str) -> None:
        """InvalidInput when a table is another consumer's."""
        with self._translating():
            self._check_owner(schema, table)

    def _owner(self, schema: str, table: str, *, lock: bool = False) -> str:
        found = self._rows(
            f"SELECT consumer FROM `{SCHEMA}`.`definitions` WHERE table_schema=%s AND table_name=%s"
            + (" FOR UPDATE" if lock else ""),
            *(schema, table),
        )
        return str(found[0][0]) if found else ""

    def _check_owner(self, schema: str, table: str, *, lock: bool = False) -> None:
        found = self._owner(schema, table, lock=lock)
        if found not in ("", self._consumer):
            raise InvalidInput(
                "two consumers write one table",
                where=f"{self._server}, table {schema}.{table}",
                why=f"consumer {found} has it, and {self._consumer} would",
                fix="leave it out of one of the changefeeds with a [filter] rule",
            )

    @property
    def scratch(self) -> str:
        """The name of a table of this consumer's own in our schema, for a moment."""
        return f"scratch_{self._lock_name[-40:]}"

    @property
    def control(self) -> Connection:
        """The connection that holds the consumer's lock: the one for statements without a transaction."""
        if self._control is None:
            raise Retryable("the target is not taken over", where=str(self._server))
        return self._control

    # --- statements

    def run_ddl(self, statement: str | bytes) -> None:
        """A statement of DDL, in the connection that holds the lock."""
        with self._translating():
            self._run(statement)

    def batches(self, statement: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
        """What a question brings, `size` rows at a time; nothing else may be asked meanwhile."""
        with self._translating(), self.control.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute(statement)
            while rows := cursor.fetchmany(size):
                yield list(rows)

    def look(self, schema: str, table: str) -> str | None:
        """See `described.describe`."""
        with self._translating(), self.control.cursor() as cursor:
            return describe(cursor, schema, table)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a question brings."""
        with self._translating():
            return self._rows(statement, *values)

    def check_lock(self) -> None:
        """Fenced unless the connection that holds the lock is still there, and is ours."""
        with self._translating():
            (mine,) = self._rows("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", self._lock_name)[0]
        if not mine:
            raise self._fenced()

    def _guarded(self, statement: str, *values: Any) -> None:
        if not self._run(statement, *values):
            raise self._unmatched(self.control)

    def _unmatched(self, connection: Connection) -> Fenced | Fatal:
        """Why a guarded statement has found no row: Fenced only if the token is another's."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT token, batch FROM `{SCHEMA}`.`progress` WHERE consumer=%s", (self._consumer,)
            )
            rows = cursor.fetchall()
        if rows and rows[0][0] != self._token:
            return self._fenced()
        return Fatal(
            "the target's record of this consumer is not as it was left",
            where=f"{self._server}, schema {SCHEMA}, consumer {self._consumer}",
            why=f"batch {rows[0][1]}, and not {self._batch}, under our token" if rows else "it is gone",
            fix=f"restore all tables of one moment, those of {SCHEMA} too, or start a new target",
        )

    def _fenced(self) -> Fenced:
        return Fenced(
            "another consumer has taken the target over",
            where=f"{self._server}, consumer {self._consumer}",
            why=f"token {self._token} is no longer the newest",
            fix="let the other one run, or stop it first",
        )

    def _lane_lock(self, lane: int) -> str:
        return f"{self._lock_name}.{lane}"

    def _run(self, statement: str | bytes, *values: Any) -> int:
        with self.control.cursor() as cursor:
            return int(cursor.execute(statement, values or None))  # None: a % is a %

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.control.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One transaction of the control connection. After an error that connection is not used again."""
        try:
            self.control.begin()
            yield
            self.control.commit()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except pymysql.err.MySQLError as error:
            raise translated(error, self._server) from error
