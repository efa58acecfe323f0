"""Checks whether a server is suitable: it refuses at the start what would break exactly-once later."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from tidegate.consumer.mysql.dialect import DIALECT, OLDEST_MYSQL, Dialect, is_too_old
from tidegate.consumer.mysql.found import Ask
from tidegate.consumer.mysql.session import SCHEMA
from tidegate.errors import InvalidInput

WHICH_SERVER: Final = "SELECT @@server_id, @@hostname, @@port"
_SEES_SESSIONS: Final = re.compile(r"GRANT (?:ALL PRIVILEGES|(?:.*[ ,])?PROCESS\b.*) ON \*\.\* TO ")
_VARIABLES: Final = (
    "explicit_defaults_for_timestamp",
    "binlog_format",
    "sql_generate_invisible_primary_key",
)


def check_one_server(control: Sequence[Any], lane: Sequence[Any], target: str) -> None:
    """InvalidInput when connections to one address reach different servers; both by `WHICH_SERVER`."""
    if tuple(control) != tuple(lane):
        names = (f"{host}:{port} (server_id {number})" for number, host, port in (control, lane))
        raise InvalidInput(
            "connections to the target come to several servers",
            where=target,
            why=f"{' and '.join(names)}: a lock on one of them does not keep others from writing to another",
            fix="name the address of the one server that is written, not that of a proxy",
        )


def check_server(ask: Ask, dialect: Dialect, target: str) -> None:
    """InvalidInput when a server cannot be written exactly once, or would change values that are written."""
    if dialect is Dialect.TIDB:
        # Its variables of these names have no effect.
        _check_tidb(ask, target)
        return
    # By SHOW, which leaves out a variable that the server does not have; newer servers drop some of them.
    found: dict[str, str] = dict(
        ask(f"SHOW VARIABLES WHERE Variable_name IN ({', '.join(map(repr, _VARIABLES))})")
    )
    version = str(ask(DIALECT)[0][0])
    if is_too_old(dialect, version):
        oldest = ".".join(map(str, OLDEST_MYSQL))
        raise InvalidInput(
            "the target is too old",
            where=target,
            why=f"it is MySQL {version}, in which a TEXT column cannot have a default",
            fix=f"use MySQL {oldest} or later, or MariaDB",
        )
    if found.get("explicit_defaults_for_timestamp", "ON") != "ON":
        raise InvalidInput(
            "the target gives TIMESTAMP columns attributes that its definition does not have",
            where=target,
            why="@@explicit_defaults_for_timestamp is OFF: such a column would change with its row",
            fix="set explicit_defaults_for_timestamp to ON",
        )
    if found.get("binlog_format") == "STATEMENT":
        raise InvalidInput(
            "the target's binary log does not allow READ COMMITTED",
            where=target,
            why="@@binlog_format is STATEMENT",
            fix="set binlog_format to ROW",
        )
    if found.get("sql_generate_invisible_primary_key") == "ON":
        raise InvalidInput(
            "the target gives tables without a key one that the topic's rows do not have",
            where=target,
            why="@@sql_generate_invisible_primary_key is ON",
            fix="set it to OFF with SET GLOBAL and in the server's configuration",
        )


def _check_tidb(ask: Ask, target: str) -> None:
    """InvalidInput when an earlier consumer's sessions could not be found or ended."""
    named = ask(
        "SELECT 1 FROM information_schema.columns WHERE table_schema='information_schema'"
        " AND table_name='CLUSTER_PROCESSLIST' AND column_name='SESSION_ALIAS'"
    )
    if not named:
        raise InvalidInput(
            "the target is too old",
            where=target,
            why=f"it is {ask(DIALECT)[0][0]}, in which a session has no name, so that those of an earlier "
            "consumer could not be found",
            fix="use TiDB 7.4 or later",
        )
    grants = [str(grant) for (grant,) in ask("SHOW GRANTS")]
    if not any(map(_SEES_SESSIONS.match, grants)):
        raise InvalidInput(
            "the target database does not show this user all sessions",
            where=target,
            why="TiDB leaves out those of other users without saying so, and an earlier consumer may be "
            "another user; SHOW GRANTS has no PROCESS ON *.*",
            fix="GRANT PROCESS, CONNECTION_ADMIN ON *.* to the user",
        )
    # By SHOW, which leaves it out where a security-enhanced mode hides it; KILL then shows whether it works.
    for _, config in ask("SHOW VARIABLES WHERE Variable_name='tidb_config'"):
        if json.loads(config).get("enable-global-kill") is False:
            raise InvalidInput(
                "the target database does not let sessions of other servers be ended",
                where=target,
                why="enable-global-kill is false: a connection id may be given twice in the cluster, and a "
                "consumer that takes over could not end the sessions of an earlier one",
                fix="set enable-global-kill to true in the configuration of each TiDB server; restart them",
            )


def check_engine(ask: Ask, target: str) -> None:
    """InvalidInput when one of the consumer's own tables does not support transactions."""
    found = ask(
        "SELECT table_name, engine FROM information_schema.tables WHERE table_schema=%s AND engine<>'InnoDB'",
        SCHEMA,
    )
    if found:
        raise InvalidInput(
            "the consumer's own tables must be InnoDB",
            where=f"{target} schema {SCHEMA}",
            why=", ".join(f"{name} is {engine}" for name, engine in found),
            fix="convert them: without transactions no fence holds",
        )
