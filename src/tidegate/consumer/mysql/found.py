"""The definition of a table that SQL of the topic created, or that existed before: read from the server.

Types become the MySQL type codes that the topic's rows have, so that values are rendered as for any table.
The key is the primary key, otherwise TiDB's choice: the unique index without nullable columns that has the
fewest columns, and of two such indexes the earlier one. Virtual columns are left out, because rows on a topic
do not carry them. A stored generated column is kept, because a key may contain it, but the target computes
its values (`Definition.generated`).

A table that was loaded before the consumer had it is *adopted*. Its rows may be newer than the topic's. So
before a row is written, rows that have one of its unique values are deleted. Therefore the topic's rows must
carry the values of all unique indexes, in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from tidegate.consumer.applying.target import Name
from tidegate.consumer.mysql.literals import quoted
from tidegate.consumer.table.convert import TargetColumn, in_key, target_type
from tidegate.consumer.table.definition import Definition, check_keys
from tidegate.errors import Fatal

Ask: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""A query with its values; returns rows."""

CODES: Final = (
    {"tinyint": 1, "smallint": 2, "int": 3, "float": 4, "double": 5, "timestamp": 7, "bigint": 8}
    | {"mediumint": 9, "date": 10, "time": 11, "datetime": 12, "year": 13, "bit": 16, "json": 245}
    | {"decimal": 246, "enum": 247, "set": 248, "varchar": 15, "varbinary": 15, "char": 254, "binary": 254}
    | {"tinytext": 249, "tinyblob": 249, "mediumtext": 250, "mediumblob": 250, "longtext": 251}
    | {"longblob": 251, "text": 252, "blob": 252, "vector": 225}
)
"""Type codes of rows on a topic, by the server's name of the type."""
EXPIRES: Final = "/*T![ttl] TTL_ENABLE='ON' */"
"""In the text of a TiDB table whose old rows TiDB deletes. No comment holds it: quotes in one are doubled."""


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique index; the primary key's name is PRIMARY."""

    name: str
    columns: tuple[str, ...]
    """An expression has an empty name."""
    whole: bool
    """Whether each part is a column with all its characters."""
    nullable: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A table as the server describes it."""

    engine: str
    kind: str
    """BASE TABLE, or the kind of another object with this name."""
    columns: tuple[TargetColumn, ...]
    generated: tuple[str, ...]
    uniques: tuple[Unique, ...]
    """In the server's order."""
    triggers: tuple[str, ...]
    expires: bool = False
    """Whether a TiDB deletes rows by itself (TTL)."""


def there(ask: Ask, name: Name) -> bool:
    """Whether any object has this name."""
    return bool(ask("SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s", *name))


def look(ask: Ask, name: Name) -> Found | None:
    """A table as the server describes it now; None: it does not exist. Fatal for a type that TiDB lacks."""
    heads = ask(
        "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s",
        *name,
    )
    if not heads:
        return None
    described = ask(
        "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, EXTRA, IS_NULLABLE FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s ORDER BY ORDINAL_POSITION",
        *name,
    )
    nullable = {column for column, *_, null in described if null == "YES"}
    computed = {column: extra.upper() for column, _, _, extra, _ in described if "GENERATED" in extra.upper()}
    # MySQL 8 writes DEFAULT_GENERATED for a default that is an expression. Such a column is not a generated
    # one.
    computed = {column: extra for column, extra in computed.items() if "DEFAULT_GENERATED" not in extra}
    columns = tuple(
        _column(name, column, kind, whole)
        for column, kind, whole, *_ in described
        if "VIRTUAL" not in computed.get(column, "")
    )
    # By SHOW, because MySQL's information_schema has indexes in the order of their names.
    shown = ask(f"SHOW INDEX FROM {'.'.join(map(quoted, name))} WHERE Non_unique=0")
    parts = [(index, column, size) for _, _, index, _, column, _, _, size, *_ in shown]
    uniques = []
    for index in dict.fromkeys(index for index, _, _ in parts):
        of = [(column or "", size) for at, column, size in parts if at == index]
        names = tuple(column for column, _ in of)
        whole = all(column and size is None for column, size in of)
        uniques.append(Unique(index, names, whole, not nullable.isdisjoint(names)))
    triggers = ask(
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS"
        " WHERE EVENT_OBJECT_SCHEMA=%s AND EVENT_OBJECT_TABLE=%s",
        *name,
    )
    ((engine, kind),) = heads
    return Found(
        *(engine or "", kind, columns, tuple(computed), tuple(uniques), tuple(one for (one,) in triggers)),
        expires=kind == "BASE TABLE" and _expires(ask, name),
    )


def _expires(ask: Ask, name: Name) -> bool:
    return EXPIRES in str(ask(f"SHOW CREATE TABLE {'.'.join(map(quoted, name))}")[0][1])


def made(found: Found, name: Name, version: int, keys: tuple[str, ...] = ()) -> Definition:
    """The definition of a table whose rows all come from the topic.

    `keys`: the columns that identify the topic's rows, if its messages name them; Fatal when no unique index
    of the table has exactly these.
    """
    key = _key(found, name, keys)
    columns = tuple(in_key(one) if one.name in key else one for one in found.columns)
    return Definition(*name, 0, version, columns, key, None, generated=found.generated)


def adopted(found: Found, name: Name, version: int, keys: tuple[str, ...] = ()) -> Definition:
    """The definition of a table that already has rows; Fatal also when its rows cannot be corrected."""
    if why := _obstacle(found):
        raise _unfit(name, why)
    definition = made(found, name, version, keys)
    if not definition.keys:
        raise _unfit(
            name,
            "no unique index without NULLs, so it is not known whether a row of the topic exists already",
        )
    return replace(definition, uniques=tuple(one.columns for one in found.uniques))


def check_columns(definition: Definition, asked: Definition) -> None:
    """Fatal when rows of the topic have a column that the table lacks, or lack one of the table's key."""
    check_keys(definition, {column.name for column in asked.columns})
    known = {column.name for column in definition.columns} | set(definition.generated)
    unknown = [column.name for column in asked.columns if column.name not in known]
    if unknown:
        raise Fatal(
            "rows carry a column that the table at the target does not have",
            where=f"table {definition.name}, column {', '.join(unknown)}",
            why="the table was there already, and is older or newer than the topic's rows",
            fix="add the column there, and start again",
        )


def _key(found: Found, name: Name, keys: tuple[str, ...]) -> tuple[str, ...]:
    if not keys:
        return _choice(found)
    for one in found.uniques:
        if _identifies(one) and set(one.columns) == set(keys):
            return one.columns
    raise _unfit(name, f"the topic identifies its rows by {', '.join(keys)}, which no unique index here does")


def _unfit(name: Name, why: str) -> Fatal:
    return Fatal(
        "a table at the target cannot be written with the topic's rows",
        where=f"table {'.'.join(name)}",
        why=why,
        fix="change the table accordingly, or leave it out with a [filter] rule of a new changefeed",
    )


def _identifies(unique: Unique) -> bool:
    """Whether an index identifies rows. A primary key over parts of columns does so with whole columns."""
    return not unique.nullable and all(unique.columns) and (unique.whole or unique.name == "PRIMARY")


def _choice(found: Found) -> tuple[str, ...]:
    """TiDB's handle key; if several indexes have the fewest columns, the first in the server's order."""
    known = {column.name for column in found.columns}
    sound = [one for one in found.uniques if _identifies(one) and known.issuperset(one.columns)]
    primary = [one for one in sound if one.name == "PRIMARY"]
    return min(primary or sound, key=lambda one: len(one.columns)).columns if sound else ()


def _obstacle(found: Found) -> str:
    """Why a table that already has rows cannot be written; empty when it can."""
    if found.kind != "BASE TABLE" or found.engine != "InnoDB":
        return f"it is {found.kind.lower()} {found.engine}".strip() + ", and must be an InnoDB table"
    if found.expires:
        return (
            "TiDB deletes its old rows by itself (TTL), and the topic deletes them, too: first run "
            "ALTER TABLE ... TTL_ENABLE='OFF'"
        )
    if found.triggers:
        return f"trigger {', '.join(found.triggers)} would change other rows"
    known = {column.name for column in found.columns}
    partial = [one.name for one in found.uniques if not one.whole or not known.issuperset(one.columns)]
    if partial:
        return (
            f"unique index {', '.join(partial)} is on a part of a column, an expression or a virtual column: "
            "their columns do not show which row conflicts with another"
        )
    return ""


def _column(table: Name, name: str, kind: str, whole: str) -> TargetColumn:
    code = CODES.get(kind.lower())
    if code is None:
        raise Fatal(
            "a table at the target has a column of a type that TiDB does not have",
            where=f"table {'.'.join(table)}, column {name}: {whole}",
            fix="give the column a type that TiDB has",
        )
    of_type = target_type(
        code,
        unsigned="unsigned" in whole.lower(),
        binary="blob" in kind.lower() or "binary" in kind.lower(),
        # The widest BIT: its type holds the values of narrower ones too.
        flen=64 if code == 16 else -1,
        decimal=-1,
    )
    return TargetColumn(name, code, of_type)
