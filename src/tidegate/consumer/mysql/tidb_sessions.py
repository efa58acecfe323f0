"""Guards DDL at TiDB, where GET_LOCK is a transaction that ends after an hour.

Each session of a consumer has a name: a digest of the consumer's name, and the token under which it writes.
Each DDL statement is noted under the token before it is sent, and carries the session's name as a comment. So
a taker that has raised the token knows whether a statement of an earlier token may still come, finds the
session and the job, and waits for both (`takeover`).

Rows need none of this. Their transactions are pessimistic and change a row that has the token, whatever
server they run at.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from tidegate.consumer.mysql.guard import TAKE_S, Control
from tidegate.consumer.mysql.literals import quoted
from tidegate.consumer.mysql.session import SCHEMA, Connection
from tidegate.consumer.mysql.takeover import (
    TAKING,
    Look,
    Session,
    Takeover,
    holder_in_words,
    may_end,
    name_of,
    session_of,
)
from tidegate.errors import Retryable

LOOK_S: Final = 0.25
"""Seconds between two looks at the cluster."""
UNFINISHED: Final = (
    *("none", "queueing", "running", "rollingback", "cancelling", "pausing", "paused"),
    "done",
)
"""States of a DDL job that may still change something; after `done` servers have still to learn of it. The
others are synced, cancelled and rollback done. By names and not by NOT IN, for which TiDB would read the
whole history of jobs, which has no such state.
"""
SUBJOB: Final = "%subjob%"
"""The kind of a part of a job, which may stay `done` when the job has ended. The job has a row of its own."""
SETTINGS: Final = (
    "SET SESSION tidb_txn_mode='pessimistic'",
    # Otherwise a duplicate key is found by COMMIT, which does not say whose row it is.
    "SET SESSION tidb_constraint_check_in_place_pessimistic=ON",
    # An adopted table may have an AUTO_RANDOM key, for which the topic's rows have values.
    "SET SESSION allow_auto_random_explicit_insert=ON",
)
"""A transaction that is not pessimistic would take the lane's row as it was when it began."""


class TidbSessions:
    """The sessions of one consumer; see `Guard`."""

    def __init__(self, hold: Control, digest: str) -> None:
        """`digest`: 40 characters that stand for the consumer's name."""
        self._hold, self._digest = hold, digest

    @property
    def scratch(self) -> str:
        """See `Guard`. With the token: such tables are made without a note, so an earlier consumer may still
        make one.
        """
        return f"{self._scratches}{self._hold.token}"

    def take(self, *, again: bool) -> None:
        """See `Guard`. Only their transactions matter here: one that a suspended process has left open locks
        the row of its lane, and raising the token would wait for it. So nothing is waited for.
        """
        for statement in SETTINGS:
            self._hold.execute(statement)
        if again:
            self._check_taker()
        sessions, _ = self._listed()
        for one in may_end(sessions, self._hold.token if again else None):
            self._kill(one)
        # If this process is suspended while it raises the token, it has the row of `progress` locked.
        self._call_it(TAKING)

    def end_lanes(self, lanes: Iterable[int]) -> None:
        """Nothing: `take` has ended them with all others."""

    def taken(self, *, ddl_begun: bool) -> None:
        """See `Guard`."""
        hold = self._hold
        # Before anything is noted under the token: from then on a taker must find this session.
        self._call_it(hold.token)
        if ddl_begun:
            self._settle()
        self._drop_scratches()

    def join(self, lane: int, connection: Connection) -> None:
        """See `Guard`. A lane may come to another TiDB server than the control connection."""
        with connection.cursor() as cursor:
            for statement in SETTINGS:
                cursor.execute(statement)
            name = name_of(self._digest, self._hold.token, lane)
            cursor.execute("SET SESSION tidb_session_alias=%s", (name,))

    def check(self) -> None:
        """See `Guard`."""
        rows = self._hold.rows(
            f"SELECT token FROM `{SCHEMA}`.`progress` WHERE consumer=%s", self._hold.consumer
        )
        if not rows or rows[0][0] != self._hold.token:
            raise self._hold.fenced()

    def marked(self, statement: str | bytes) -> str | bytes:
        """The statement with the session's name, by which a taker finds the job that it becomes."""
        comment = f"/* {name_of(self._digest, self._hold.token)} */ "
        return comment + statement if isinstance(statement, str) else comment.encode() + statement

    def holder(self) -> str:
        """See `Guard`."""
        sessions, silent = self._listed()
        return holder_in_words(Look(sessions, silent, ()), str(self._hold.server))

    def _call_it(self, token: int) -> None:
        """Name the control connection's session."""
        self._hold.execute("SET SESSION tidb_session_alias=%s", name_of(self._digest, token))

    def _check_taker(self) -> None:
        """Fenced when another consumer has raised the token since we did."""
        rows = self._hold.rows(
            f"SELECT taker FROM `{SCHEMA}`.`progress` WHERE consumer=%s", self._hold.consumer
        )
        if rows and rows[0][0] != self._hold.taker:
            raise self._hold.fenced()

    # --- the cluster

    def _settle(self) -> None:
        """Return when no statement that was begun under an earlier token can take effect any more."""
        takeover, until, refused = Takeover(self._hold.token), time.monotonic() + TAKE_S, ""
        while True:
            now = time.monotonic()
            step = takeover.after(self._look(), now)
            if step.settled:
                return
            if step.waits_for and now > until:
                raise self._does_not_end(step.waits_for, refused)
            for one in step.kill:
                refused = self._kill(one) or refused
            time.sleep(LOOK_S)

    def _look(self) -> Look:
        sessions, silent = self._listed()
        # After the sessions: `takeover` says why.
        return Look(sessions, silent, self._jobs())

    def _listed(self) -> tuple[list[Session], list[str]]:
        """This consumer's sessions, and the errors of servers that have not answered.

        Our own session is not left out by its id, which another session may have if a server has no global
        ids: before a takeover it has no name yet, and then no lower token than ours.
        """
        rows, silent = self._hold.rows_with_warnings(
            "SELECT id, instance, host, session_alias FROM information_schema.cluster_processlist"
            " WHERE session_alias LIKE %s",
            f"tidegate.{self._digest}.%",
        )
        found = [session_of(self._digest, int(one), *map(str, rest)) for one, *rest in rows]
        return [one for one in found if one is not None], silent

    def _jobs(self) -> list[str]:
        rows = self._hold.rows(
            "SELECT job_id, job_type, state, query FROM information_schema.ddl_jobs"
            f" WHERE state IN {UNFINISHED} AND job_type NOT LIKE %s AND query LIKE %s",
            *(SUBJOB, f"%/* tidegate.{self._digest}.%"),
        )
        return [
            f"DDL job {job} ({kind}, {state}): {' '.join(query.split())[:200]}"
            for job, kind, state, query in rows
        ]

    def _kill(self, session: Session) -> str:
        """End a session, which cancels the DDL job that it waits for. Returns why that was not possible."""
        # A session that is gone is no error at TiDB.
        _, whys = self._hold.rows_with_warnings(f"KILL CONNECTION {session.number}")
        return "; ".join(whys)

    def _does_not_end(self, waits_for: str, refused: str) -> Retryable:
        return Retryable(
            "a DDL of the earlier consumer may still take effect",
            where=str(self._hold),
            why=f"waited {TAKE_S:.0f} s for {waits_for}" + (f"; KILL: {refused}" if refused else ""),
            fix="look at ADMIN SHOW DDL JOBS and information_schema.CLUSTER_PROCESSLIST; try again when it "
            "has ended. TiDB servers ask each other at their status ports, which must be open between them. "
            "One that is gone is waited for until the cluster has removed it, 90 seconds in TiDB 8.4",
        )

    # --- scratch tables

    @property
    def _scratches(self) -> str:
        return f"scratch_{self._digest}_"

    def _drop_scratches(self) -> None:
        """Drop the scratch tables of earlier tokens, which processes that died have left."""
        found = self._hold.rows(
            "SELECT table_name FROM information_schema.tables WHERE table_schema=%s AND table_name LIKE %s",
            *(SCHEMA, self._scratches.replace("_", "\\_") + "%"),
        )
        for (table,) in found:
            # Not those of a later token: another consumer may have taken the target over meanwhile.
            if int(table.removeprefix(self._scratches)) < self._hold.token:
                self._hold.execute(self.marked(f"DROP TABLE IF EXISTS {quoted(SCHEMA)}.{quoted(table)}"))
