"""CREATE and ALTER TABLE, rendered from TiDB's TableInfo before and after. Pure.

They are rendered and not copied, because TiDB's SQL has words that other servers do not know, and omits the
schema. Parts that do not affect rows are left out: partitions, foreign keys, checks, expression indexes, and
virtual columns, which the topic does not carry. A stored generated column becomes a plain column with the
values that upstream computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any, Final

import pyarrow as pa

from tidegate.consumer.ddl.ddl_steps import Source
from tidegate.consumer.mysql.dialect import Dialect, collation_at, default_of_text
from tidegate.consumer.mysql.literals import MySqlValues, literals, quoted
from tidegate.consumer.table.definition import Definition, target_column
from tidegate.consumer.table.modify import WIRE_TYPES
from tidegate.errors import Fatal
from tidegate.model.schema import Column, Index, Kind, TableSchema
from tidegate.tidb.table_info import every_column, table_schema
from tidegate.tidb.value import fsp, missing, present

AUTO_INCREMENT: Final = 512
ZEROFILL: Final = 64
_WHOLE: Final = (Kind.INT, Kind.UINT)
CONVERSIONS: Final = frozenset(
    {
        *((one, other) for one in _WHOLE for other in _WHOLE),
        *((one, other) for one in _WHOLE for other in (Kind.STRING, Kind.DECIMAL, Kind.DOUBLE, Kind.BIT)),
        *((Kind.INT, Kind.YEAR), (Kind.YEAR, Kind.FLOAT), (Kind.DOUBLE, Kind.DECIMAL)),
        *((Kind.DECIMAL, other) for other in (Kind.DECIMAL, Kind.DOUBLE, Kind.STRING)),
        *((Kind.DATETIME, other) for other in (Kind.DATE, Kind.TIMESTAMP, Kind.STRING)),
        *((Kind.ENUM, other) for other in (Kind.STRING, Kind.SET)),
        *((Kind.INT, Kind.JSON), (Kind.JSON, Kind.STRING)),
        (Kind.STRING, Kind.STRING),
    }
)
"""Conversions by MODIFY COLUMN in which a strict MariaDB returns the same values as TiDB, or refuses them;
all others are converted by `recast`."""
_INTEGERS: Final = {1: "TINYINT", 2: "SMALLINT", 3: "INT", 8: "BIGINT", 9: "MEDIUMINT"}
_TIMES: Final = {7: "TIMESTAMP", 11: "TIME", 12: "DATETIME"}
_PLAIN: Final = {4: "FLOAT", 5: "DOUBLE", 10: "DATE", 13: "YEAR", 14: "DATE"}
_TEXTS: Final = {249: "TINYTEXT", 250: "MEDIUMTEXT", 251: "LONGTEXT", 252: "TEXT"}
_BLOBS: Final = {249: "TINYBLOB", 250: "MEDIUMBLOB", 251: "LONGBLOB", 252: "BLOB"}
_CLUSTERED: Final = " CLUSTERED"
_JSON, _VECTOR, _ENUM, _SET, _CHAR = 245, 225, 247, 248, 254


def qualified(schema: str, table: str) -> str:
    """`schema`.`table`, in backquotes."""
    return f"{quoted(schema)}.{quoted(table)}"


def create_table(made: Definition, dialect: Dialect = Dialect.MARIADB) -> str:
    """CREATE TABLE for an empty table with this definition."""
    described = _described(made)
    parts = [f"{quoted(column.name)} {column_text(column, dialect)}" for column in described.columns]
    names = _names(made)
    end = _primary_key_end(made, dialect)
    parts += [_index_text(index, names, end) for index in _indexes(made, described).values()]
    head = f"CREATE TABLE {qualified(made.schema, made.table)} (\n  "
    return head + ",\n  ".join(parts) + "\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"


def recasts(sources: tuple[Source, ...]) -> dict[str, str]:
    """The columns that the target would convert differently, each with the name of the column to fill
    instead.

    A TIME that only gets more digits keeps its id and its values, and every server converts it alike.
    """
    changes = [one.change for one in sources if one.change and one.change.before.id != one.change.after.id]
    return {
        change.after.name: f"_tidegate_new_{change.after.id}"
        for change in changes
        if not converts(change.before, change.after, change.time_zone)
    }


def added_columns(made: Definition, filled: Mapping[str, str], dialect: Dialect) -> str:
    """The changes for ALTER TABLE that add the columns of `recasts`."""
    columns = {column.name: column for column in _described(made).columns}
    return ", ".join(
        f"ADD COLUMN {quoted(new)} {type_text(columns[name], dialect)} NULL" for name, new in filled.items()
    )


def alterations(
    held: Definition,
    made: Definition,
    sources: tuple[Source, ...] | None,
    filled: Mapping[str, str] | None = None,
    *,
    dialect: Dialect,
) -> list[str]:
    """The changes for ALTER TABLE that turn `held` into `made`, a text for each statement; often none.

    `sources`: where each column's values come from; None: the columns are as before. An added column needs
    two statements if its old rows hold another value than new rows get. At TiDB each change is a statement.
    `filled`: see `recasts`. Fatal for another primary key where TiDB orders the rows by it.
    """
    before, after = _described(held), _described(made)
    was = {column.name: column for column in before.columns}
    if sources is None:
        taken: Mapping[str, str | None] = {name: name for name in was}
    else:
        taken = {one.column.name: one.taken.name if one.taken is not None else None for one in sources}
    for column in after.columns:
        if filled and column.name in filled:
            taken = {**taken, column.name: filled[column.name]}
            was[filled[column.name]] = column
    old, new = _indexes(held, before), _indexes(made, after)
    changed = {name for name in old if not _same_index(old[name], new.get(name), held, made)}
    if "" in changed and _primary_key_end(held, dialect) == _CLUSTERED:
        raise _clustered(held, old[""])
    parts = [
        "DROP PRIMARY KEY" if name == "" else f"DROP INDEX {quoted(name)}" for name in old if name in changed
    ]
    stays = set(taken.values())
    parts += [f"DROP COLUMN {quoted(name)}" for name in was if name not in stays]
    order = [name for name in was if name in stays]
    later = []
    for at, column in enumerate(after.columns):
        source, text = taken[column.name], column_text(column, dialect)
        place = " FIRST" if at == 0 else f" AFTER {quoted(after.columns[at - 1].name)}"
        if source is None:
            first = column_text(column, dialect, fill=True)
            later += [f"MODIFY COLUMN {quoted(column.name)} {text}"] if first != text else []
            parts.append(f"ADD COLUMN {quoted(column.name)} {first}{place}")
            order.insert(at, column.name)
            continue
        # `order` is how the columns are after the changes so far: a column that is in its place needs no
        # move.
        moved = order[at] != source
        if moved:
            order.remove(source)
            order.insert(at, source)
        if moved or source != column.name or column_text(was[source], dialect) != text:
            name = f"CHANGE COLUMN {quoted(source)} {quoted(column.name)}"
            parts.append(f"{name} {text}{place if moved else ''}")
    names, end = _names(made), _primary_key_end(made, dialect)
    parts += [
        f"ADD {_index_text(new[name], names, end)}" for name in new if name in changed or name not in old
    ]
    if dialect is Dialect.TIDB:
        # It refuses several changes of one column, or of a column and its index, in one statement.
        return [*parts, *later]
    return [", ".join(one) for one in (parts, later) if one]


def column_text(column: Column, dialect: Dialect = Dialect.MARIADB, *, fill: bool = False) -> str:
    """Type and attributes of a column. `fill`: the default is the value for rows older than the column."""
    default, nullable = _fill_text(column) if fill else _default_text(column), column.nullable
    if default and column.mysql_type in (*_TEXTS, _JSON, _VECTOR):
        if dialect is Dialect.TIDB and not fill:
            default = ""  # it takes none here, and the topic's rows have all values
        elif dialect is Dialect.TIDB and column.mysql_type == _JSON and default == "'null'":
            # It gives older rows this value. The statement that gives the column its own type follows,
            # because the texts differ.
            return "JSON NOT NULL"
        else:
            # At TiDB such a column gives older rows the empty text. The same statement makes it nullable.
            nullable = nullable and dialect is not Dialect.TIDB
            default = default_of_text(dialect, default, column.name)
    parts = [type_text(column, dialect), "NULL" if nullable else "NOT NULL"]
    parts += [f"DEFAULT {default}"] if default else []
    return " ".join(parts)


def type_text(column: Column, dialect: Dialect = Dialect.MARIADB) -> str:
    """The type of a column, with its charset."""
    kind = column.mysql_type
    if kind in _INTEGERS:
        width = "(1)" if kind == 1 and column.flen == 1 else ""
        signs = " UNSIGNED" if column.unsigned else ""
        return f"{_INTEGERS[kind]}{width}{signs}{' ZEROFILL' if column.flag & ZEROFILL else ''}"
    if kind in _TIMES:
        return f"{_TIMES[kind]}({fsp(column)})" if fsp(column) else _TIMES[kind]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == 246:
        return f"DECIMAL({column.flen},{max(column.decimal, 0)}){' UNSIGNED' if column.unsigned else ''}"
    if kind == 16:
        return f"BIT({max(column.flen, 1)})"
    if kind in (_JSON, _VECTOR):
        return "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    if kind in (_ENUM, _SET):
        names = ",".join("'" + name.replace("\\", "\\\\").replace("'", "''") + "'" for name in column.elems)
        return f"{'ENUM' if kind == _ENUM else 'SET'}({names}){_charset(column, dialect)}"
    if column.kind is Kind.BYTES:
        return _BLOBS.get(kind) or f"{'BINARY' if kind == _CHAR else 'VARBINARY'}({column.flen})"
    text = _TEXTS.get(kind) or f"{'CHAR' if kind == _CHAR else 'VARCHAR'}({column.flen})"
    return text + _charset(column, dialect)


def _charset(column: Column, dialect: Dialect) -> str:
    if column.charset in ("", "binary"):
        return ""
    return f" CHARACTER SET {column.charset} COLLATE {collation_at(dialect, column.collate)}"


def _default_text(column: Column) -> str:
    if column.default is None or column.default_is_expr or column.generated:
        return ""
    if isinstance(column.default, str) and column.default.upper().startswith("CURRENT_TIMESTAMP"):
        return f"CURRENT_TIMESTAMP({fsp(column)})"
    if isinstance(column.default, str) and column.default.upper() == "CURRENT_DATE":
        return "" if column.nullable else "'0000-00-00'"
    return _fill_text(replace(column, origin_default=column.default))


def _fill_text(column: Column) -> str:
    """The value of older rows, as a literal; empty for NULL, which needs no default."""
    value: Any = present(column, missing(column), UTC)
    if value is None:
        return ""
    if column.kind in (Kind.STRING, Kind.BYTES) and isinstance(value, str):
        value = value.encode()
    target, values = target_column(column), MySqlValues()
    wire = pa.array([value], WIRE_TYPES.get(column.kind, pa.string()))
    text: bytes = literals(values.convert(wire, target, "UTC"), target)[0].as_py()
    if column.mysql_type in (_ENUM, _SET):  # DEFAULT does not accept their number
        return _members_text(column, int(value))
    return text.decode("utf-8", "surrogateescape") if column.kind is not Kind.BYTES else f"X'{value.hex()}'"


def _members_text(column: Column, number: int) -> str:
    if column.mysql_type == _ENUM:
        chosen = column.elems[number - 1] if number else ""
    else:
        chosen = ",".join(name for bit, name in enumerate(column.elems) if number >> bit & 1)
    return "'" + chosen.replace("\\", "\\\\").replace("'", "''") + "'"


def _described(made: Definition) -> TableSchema:
    if made.info is None:
        raise Fatal(
            "a table cannot be made from rows alone",
            where=f"table {made.name}",
            why="no DDL message with Tidegate's header defines it, so that lengths, precisions and "
            "indexes are not known: it was made before the changefeed's start, or TiCDC wrote the topic",
            fix="read the topic of a changefeed of Tidegate that began before the table was made, leave the "
            "table out with a [filter] rule, or write to a Delta target",
        )
    return table_schema(made.schema, made.info, made.version)


def _names(made: Definition) -> dict[int, str]:
    """Names of visible columns by their offsets in the TableInfo, to which indexes refer."""
    assert made.info is not None
    return {column.offset: column.name for column in every_column(made.info, made.version) if column.visible}


def _indexes(made: Definition, described: TableSchema) -> dict[str, Index]:
    """The indexes over visible columns, by name; the primary key's name is empty."""
    names = _names(made)
    found: dict[str, Index] = {}
    if described.pk_is_handle:
        offsets = tuple(described.columns[at].offset for at in described.primary_key)
        found[""] = Index(0, "", offsets, (-1,) * len(offsets), unique=True, primary=True)
    for index in described.indexes:
        if all(offset in names for offset in index.columns):
            found["" if index.primary else index.name] = index
    return found


def _same_index(old: Index, new: Index | None, held: Definition, made: Definition) -> bool:
    """Whether two indexes are equal. Columns are compared by id: a renamed column stays in its indexes."""
    if new is None or (old.unique, old.lengths) != (new.unique, new.lengths):
        return False
    return _ids(held, old) == _ids(made, new)


def _ids(made: Definition, index: Index) -> list[int]:
    assert made.info is not None
    ids = {column.offset: column.id for column in every_column(made.info, made.version)}
    return [ids[offset] for offset in index.columns]


def _primary_key_end(made: Definition, dialect: Dialect) -> str:
    """At TiDB, whether the key orders the rows, as upstream: such a key is neither dropped nor changed."""
    if dialect is not Dialect.TIDB:
        return ""
    assert made.info is not None
    clustered = made.info.get("pk_is_handle") or made.info.get("is_common_handle")
    return _CLUSTERED if clustered else " NONCLUSTERED"


def _clustered(held: Definition, key: Index) -> Fatal:
    names = _names(held)
    return Fatal(
        "a primary key cannot be changed at the target",
        where=f"table {held.name}, primary key {', '.join(names[at] for at in key.columns)}",
        why="it is clustered, and TiDB neither drops such a key nor changes the types of its columns "
        "(error 8200)",
        fix="make a table as it is upstream now, copy the rows into it, and give it the name of the old one; "
        "then start again with --skip-ddl and the ts of the DDL",
    )


def _index_text(index: Index, names: Mapping[int, str], end: str) -> str:
    parts = zip(index.columns, index.lengths, strict=True)
    columns = ", ".join(quoted(names[at]) + (f"({size})" if size > 0 else "") for at, size in parts)
    if index.primary:
        return f"PRIMARY KEY ({columns}){end}"
    return f"{'UNIQUE ' if index.unique else ''}INDEX {quoted(index.name)} ({columns})"


def converts(before: Column, after: Column, time_zone: tzinfo | None) -> bool:
    """Whether the target's ALTER converts the values of a column as TiDB does, or refuses them.

    `time_zone`: that of the session upstream; None: not known. The target's session is in UTC.
    """
    zoned = Kind.TIMESTAMP in (before.kind, after.kind) and time_zone is not UTC
    recoded = before.kind is after.kind is Kind.STRING and before.charset != after.charset
    cut = after.kind is Kind.TIMESTAMP and fsp(before) > fsp(after)  # TiDB rounds
    # MySQL rounds the last moments of a day to the next day.
    dated = (before.kind, after.kind) == (Kind.DATETIME, Kind.DATE) and fsp(before) > 0
    return (before.kind, after.kind) in CONVERSIONS and not (zoned or recoded or cut or dated)
