"""EXCHANGE PARTITION at the target, once.

Tables of a topic with headers have no partitions at the target. The rows of the partition, found by their
values, and those of the other table are exchanged by INSERT and DELETE, in the transaction that notes it: a
restart finds both or neither (`swapping`).

Tables of a topic without headers have TiDB's partitions, and the server exchanges them. That is no
transaction, and a second exchange would undo the first one. InnoDB gives each table and each partition an id
that it never gives again, and an EXCHANGE PARTITION exchanges the two ids. They are stored before the
statement runs; TiDB has such ids, too:

| the ids found by a restart | meaning |
|---|---|
| as stored | it has not run, and runs now |
| exchanged | it has run |
| others | somebody has rebuilt, truncated or exchanged one of the tables since: Fatal (`has_run`) |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tidegate.consumer.applying.target import Name
from tidegate.consumer.ddl.ddl_steps import REPEAT
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.found import Ask
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.literals import quoted
from tidegate.consumer.mysql.prune import all_in, conditions
from tidegate.consumer.mysql.session import SCHEMA
from tidegate.consumer.mysql.statements import ExchangePartition, SwapRows
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal

MISPLACED: Final = "misplaced"
"""Evidence of `SwapRows`: rows come that their values place in another partition."""
MOVED: Final = "moved"
"""Evidence of `SwapRows`: the transaction that moves the rows has committed."""
_TRUNCATED: Final = re.compile(r"\s*TRUNCATE\s+PARTITION\s+(.+)", re.IGNORECASE | re.DOTALL)
_NAMES: Final = "SELECT " + ", ".join(["CAST(CONVERT(%s USING filename) AS BINARY)"] * 5)
"""Names as InnoDB writes them: `a-b` is a@002db. MySQL does not offer this charset."""


# --- tables with partitions


def partition_name(ask: Ask, dialect: Dialect, name: Name, partition: str, change: str = "exchanged") -> str:
    """A partition's name as the server has it: MariaDB does not exchange one that is named in another case.

    Fatal when the partition there does not hold the rows that TiDB's holds. `change`: what is to be done with
    it, for the error.
    """
    found = ask(
        "SELECT PARTITION_NAME, PARTITION_METHOD FROM information_schema.PARTITIONS"
        " WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s AND PARTITION_NAME=%s",
        *(*name, partition),
    )
    # A TiDB spreads rows by KEY as the other one does.
    if found and (dialect is Dialect.TIDB or "KEY" not in str(found[0][1])):
        return str(found[0][0])
    raise Fatal(
        f"a partition cannot be {change} at the target",
        where=f"table {'.'.join(name)}, partition {partition}",
        why="rows are spread by KEY, and TiDB computes that in another way: its partition has other rows"
        if found
        else "the table has no such partition at the target",
        fix=f"{REPEAT}; or change the rows at the target by INSERT and DELETE, and start with --skip-ddl",
    )


def table_ids(hold: Hold, statement: ExchangePartition) -> list[str]:
    """The server's id of the partition and of the other table; Fatal when one of them is not found."""
    found = _ids(hold, statement)
    if len(found) != 2:
        raise Fatal(
            "the ids of a partition and a table are not found",
            where=f"table {'.'.join(statement.name)}, partition {statement.partition}, and table "
            f"{'.'.join(statement.other)}",
            why="without them a restart could not find out whether they were exchanged",
            fix=(
                "check that both are tables and the partition is there"
                if hold.dialect is Dialect.TIDB
                else "check that both tables are InnoDB tables without subpartitions"
            )
            + "; then exchange the partition at the target, and start with --skip-ddl",
        )
    return found


def _ids(hold: Hold, statement: ExchangePartition) -> list[str]:
    ask, names = hold.rows, (*statement.name, statement.partition, *statement.other)
    if hold.dialect is Dialect.TIDB:
        return _of_tidb(ask, statement)
    if hold.dialect is Dialect.MYSQL:
        return _of_mysql(ask, names)
    folds = ask("SELECT @@lower_case_table_names")[0][0]
    schema, table, partition, *other = [text.decode() for text in ask(_NAMES, *names)[0]]
    owner, single = f"{schema}/{table}", "/".join(other)
    if folds:
        owner, single = owner.lower(), single.lower()
    rows = ask(
        "SELECT CAST(NAME AS BINARY), TABLE_ID FROM information_schema.INNODB_SYS_TABLES"
        " WHERE SUBSTRING_INDEX(NAME, '#', 1) IN (%s, %s)",
        *(owner, single),
    )
    by_name = {text.decode(): str(number) for text, number in rows}
    found = [number for text, number in by_name.items() if _is_partition(text, owner, partition)]
    return [found[0], by_name[single]] if len(found) == 1 and single in by_name else []


def _of_mysql(ask: Ask, names: Sequence[str]) -> list[str]:
    """The ids at MySQL, which has another name for the view, and no charset for the names in it."""
    folds = ask("SELECT @@lower_case_table_names")[0][0]
    schema, table, partition, other_schema, other = map(in_file_name, names)
    rows = ask("SELECT CAST(NAME AS BINARY), TABLE_ID FROM information_schema.INNODB_TABLES")
    found: list[str] = []
    for text in (f"{schema}/{table}#p#(?i:{partition})", f"{other_schema}/{other}"):
        pattern = re.compile(text, re.IGNORECASE if folds else 0)
        ids = [str(number) for name, number in rows if pattern.fullmatch(name.decode())]
        if len(ids) == 1:  # otherwise two names differ only in letters whose codes are not known
            found += ids
    return found


def _of_tidb(ask: Ask, statement: ExchangePartition) -> list[str]:
    """TiDB's ids, by which it stores the rows: they change places, too."""
    found = ask(
        "SELECT TIDB_PARTITION_ID FROM information_schema.PARTITIONS"
        " WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s AND PARTITION_NAME=%s",
        *(*statement.name, statement.partition),
    )
    found += ask(
        "SELECT TIDB_TABLE_ID FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s",
        *statement.other,
    )
    return [str(number) for (number,) in found]


def in_file_name(name: str) -> str:
    """A pattern for a name as InnoDB writes it; letters outside of ASCII have codes that we do not know."""
    known = (one if one.isalnum() or one == "_" else f"@{ord(one):04x}" for one in name if one.isascii())
    return "".join(next(known) if one.isascii() else "@(?:[0-9A-Za-z]{2}|[0-9a-f]{4})" for one in name)


def _is_partition(text: str, owner: str, partition: str) -> bool:
    """Whether InnoDB's name is that of a partition; partitions' names have no case."""
    return text.startswith(owner) and text[len(owner) :].lower() == f"#p#{partition}".lower()


def has_run(hold: Hold, statement: ExchangePartition, stored: Sequence[str], ts: int) -> bool:
    """Whether the ids are exchanged since they were stored; Fatal when they are others."""
    now = table_ids(hold, statement)
    if now not in (list(stored), list(reversed(stored))):
        raise Fatal(
            "it is not known whether a partition was exchanged",
            where=f"table {'.'.join(statement.name)}, partition {statement.partition}, and table "
            f"{'.'.join(statement.other)}",
            why=f"EXCHANGE PARTITION was begun with the table ids {' and '.join(stored)}, and now they "
            f"are {' and '.join(now)}: another program has rebuilt, truncated or exchanged one of them",
            fix="look where the rows are, exchange the partition at the target if they have not moved, and "
            f"start again with --skip-ddl {ts}",
        )
    return now != list(stored)


def truncated(changes: str) -> list[str]:
    """The partitions that an ALTER TABLE of this text empties."""
    found = _TRUNCATED.fullmatch(changes)
    names = [] if found is None else [one.strip().strip("`") for one in found[1].split(",")]
    return [one for one in names if one.upper() != "ALL"]


def check_movable(held: Definition, other: Definition) -> None:
    """Fatal for adopted tables: nothing shows on which side of the exchange their copy was taken. Also for
    tables that keep deleted rows, which would move or be in the way.
    """
    if held.soft_delete or other.soft_delete:
        raise Fatal(
            "a partition of a table that keeps deleted rows cannot be exchanged",
            where=f"table {held.name}, with table {other.name}",
            why="deleted rows are at the target alone: they could have the key of a row that moves",
            fix="exchange the rows at the target; then start again with --skip-ddl and the ts of the DDL",
        )
    if held.uniques or other.uniques:
        raise Fatal(
            "a partition of an adopted table cannot be exchanged",
            where=f"table {held.name}, with table {other.name}",
            why="the tables were loaded from a copy, and it is not known whether it was taken before the "
            "exchange or after it",
            fix="if it was taken before, exchange the rows at the target; then start again with --skip-ddl "
            "and the ts of the DDL",
        )


# --- tables without partitions


def found_before(hold: Hold, statement: SwapRows) -> list[str]:
    """The evidence before the rows move: whether some come to a partition that their values do not name."""
    if statement.validated or all_in(hold, statement.other, statement.members):
        return []
    return [MISPLACED]


@contextmanager
def swapping(hold: Hold, statement: SwapRows) -> Iterator[list[str | bytes]]:
    """The statements that exchange the rows, for one transaction; the table that they need is there then.

    The rows that leave the partition wait in a table of ours: until the others have left, they may not be in
    the same table with them, as both may have the same unique values.
    """
    leaving = conditions(hold, statement.name, statement.members)
    clear(hold)
    here, there = qualified(*statement.name), qualified(*statement.other)
    between = qualified(SCHEMA, hold.scratch)
    # A DDL ends MySQL's transaction, so the table is made before it begins. An earlier attempt may have left
    # one, hence `clear`.
    if leaving:
        hold.run_ddl(f"CREATE TABLE {between} LIKE {there}")
    columns = ", ".join(quoted(column.name) for column in statement.columns)

    def copy(source: str, target: str) -> bytes:
        return f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {source}".encode()

    yield [
        *(copy(here, between) + b" WHERE " + condition for condition in leaving),
        *(f"DELETE FROM {here} WHERE ".encode() + condition for condition in leaving),
        copy(there, here),
        f"DELETE FROM {there}",
        *([copy(between, there)] if leaving else []),
    ]
    clear(hold)


def clear(hold: Hold) -> None:
    """Drop the table of `swapping`, which a process that died may have left."""
    hold.run_ddl(f"DROP TABLE IF EXISTS {qualified(SCHEMA, hold.scratch)}")
