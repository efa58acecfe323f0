"""The policies for changes of columns upstream: follow, ignore the change, or stop. Pure.

    evolve   the DDL is planned as it is
    stop     `stopped`: the error with which the consumer ends before the DDL
    ignore   `kept`: the event as if the columns had not changed

Under `ignore` the target's table keeps its columns. The TableInfo at the target is then TiDB's with other
columns: first those of the target in their order, then those that are left out, in a state in which they are
not visible. Its member `IGNORED` lists the names whose values are not taken from rows. Both are stored with
the table's definition.

A column of the target continues as the upstream column with its id, if that still has its name. After a
MODIFY that gave it a new id, it continues as the one with its name. A column that was dropped or renamed is
*gone*: it stays at the target and gets NULL. A later column of its name is another column, and is left out.

docs/schema-changes.md is the page for users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from tidegate.codec.base import DdlMessage
from tidegate.consumer.ddl import ddl_plan, ddl_text, sql_parts, sql_replay
from tidegate.consumer.table.definition import IGNORED, Definition, target_column
from tidegate.consumer.table.modify import change_of
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import Column
from tidegate.tidb.definition_limits import ID_MAX
from tidegate.tidb.sql.lexer import TokenKind, tokens
from tidegate.tidb.table_info import NOT_NULL, every_column, is_base_table, table_schema

OPTION: Final = "--schema-changes"
SHOWN: Final = 20
"""How many tables a status lists."""
_ABSENT: Final = 0
"""TiDB's state of a column that is not visible."""
_TYPE_FLAGS: Final = 32 | 64
"""UNSIGNED and ZEROFILL."""
_COLUMN_WORDS: Final = frozenset(
    {("ADD", "COLUMN"), ("DROP", "COLUMN"), ("MODIFY", "COLUMN"), ("CHANGE", "COLUMN"), ("RENAME", "COLUMN")}
)
"""The first words of changes of columns in a text that `sql_replay` has restored."""
_ALTER: Final = re.compile(r"\s*alter\s+table\b", re.IGNORECASE)


class SchemaChanges(StrEnum):
    """The policy for changes of columns."""

    EVOLVE = "evolve"
    IGNORE = "ignore"
    STOP = "stop"


def ignored_names(info: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """From a TableInfo at the target: the columns that are left out, and those that get NULL."""
    kept = info.get(IGNORED) or {}
    return tuple(kept.get("left_out", ())), tuple(kept.get("gone", ()))


def check_policy(policy: SchemaChanges, tables: Iterable[Definition], target: str) -> None:
    """InvalidInput when changes of columns were ignored before, and the policy is another now.

    The position records the policy too, but a database may have executed a DDL that its position has not
    passed.
    """
    if policy is not SchemaChanges.IGNORE and (words := ignored_words(tables)):
        raise InvalidInput(
            "the target was filled under other rules",
            where=target,
            why=f"changes of columns were ignored there: {'; '.join(words)}",
            fix=f"give {OPTION} {SchemaChanges.IGNORE}, or start a new target",
        )


def ignored_words(tables: Iterable[Definition]) -> tuple[str, ...]:
    """Which tables have other columns than the source, in words: at most `SHOWN`, then how many more."""
    found = [table for table in tables if table.ignored]
    words = []
    for table in found[:SHOWN]:
        left_out, gone = ignored_names(table.info or {})
        parts = [f"{', '.join(left_out)} left out"] if left_out else []
        parts += [f"{', '.join(gone)} NULL"] if gone else []
        words.append(f"{table.name}: {'; '.join(parts)}")
    return (*words, f"and {len(found) - SHOWN} more tables") if len(found) > SHOWN else tuple(words)


# --- whether a DDL changes columns


def changed_columns(event: DdlEvent) -> tuple[str, ...]:
    """How a DDL changes the columns of an existing table, in words; empty if it does not.

    Creating, dropping or recovering a table is no change.
    """
    before, after = _columns(event.before, event), _columns(event.after, event)
    if not before or not after or event.action in (ddl_plan.EXCHANGE, ddl_plan.RECOVER_TABLE):
        return ()
    was, now = {column.name: column for column in before}, {column.name: column for column in after}
    ids = {column.id: column.name for column in before}
    added = [column for column in after if column.name not in was]
    renamed = {ids[column.id]: column.name for column in added if column.id in ids}
    words = [f"{old} is renamed to {new}" for old, new in renamed.items()]
    words += [f"{column.name} is added" for column in added if column.id not in ids]
    words += [f"{name} is removed" for name in was if name not in now and name not in renamed]
    words += [f"{name} has another type" for name in now if name in was and _retyped(was[name], now[name])]
    order = [renamed.get(name, name) for name in was if renamed.get(name, name) in now]
    if order != [name for name in now if name in order]:
        words.append("the order is another")
    return tuple(words)


def _columns(info: dict[str, Any] | None, event: DdlEvent) -> tuple[Column, ...]:
    if info is None or not is_base_table(info):
        return ()
    return table_schema(event.schema, info, event.finished_ts).columns


def _retyped(was: Column, now: Column) -> bool:
    return _type_of(was) != _type_of(now) or was.nullable != now.nullable


def _type_of(column: Column) -> tuple[Any, ...]:
    flags = column.flag & _TYPE_FLAGS
    return column.mysql_type, column.flen, column.decimal, column.charset, column.collate, column.elems, flags


def changed_in_text(message: DdlMessage) -> bool:
    """Whether a DDL known only by its text changes columns; True if an ALTER TABLE cannot be parsed."""
    match sql_replay.read(message.query, message.schema):
        case sql_replay.AlterTable(_, changes):
            found = tokens(changes)[:-1]
            return any(_first_words(part) in _COLUMN_WORDS for part in sql_parts.parts(found))
        case sql_replay.Unknown(_):
            return _ALTER.match(ddl_text.without_comments(message.query)) is not None
        case _:
            return False


def _first_words(part: Sequence[Any]) -> tuple[str, ...]:
    return tuple("" if token.kind is TokenKind.QUOTED else token.key for token in part[:2])


def stopped(message: DdlMessage, words: Iterable[str]) -> Fatal:
    """The error that ends a consumer under `stop`; `words`: as returned by `changed_columns`."""
    what = "; ".join(words)
    return Fatal(
        f"a DDL changes columns, and {OPTION} is {SchemaChanges.STOP}",
        where=_where(message),
        why=f"column {what}" if what else "its text changes columns",
        fix=f"start again with {OPTION} {SchemaChanges.EVOLVE} to change the target's table, too, or with "
        f"{OPTION} {SchemaChanges.IGNORE} to let it keep its columns",
    )


def undescribed(message: DdlMessage) -> Fatal:
    """The error under `ignore` if a message does not say which columns the table has after it."""
    return _refused(message, "the message has no DDL header, which would say which columns the table has")


# --- the table as it stays


def kept(event: DdlEvent, message: DdlMessage, held: Definition | None, *, typed: bool) -> DdlEvent:
    """The event as if the columns of the target's table had not changed.

    `held`: the table before it; None: the target does not have it, and creates it as in the event. `typed`:
    the target's columns have lengths and may be NOT NULL, as in a database. Fatal if later rows could not be
    written.
    """
    if event.action == ddl_plan.RECOVER_TABLE:
        raise _refused(message, "which columns the table had when it was dropped is not kept")
    if event.after is None or not is_base_table(event.after) or event.before is None or held is None:
        return event
    base = held.info if held.info is not None else event.before
    after = _kept_info(base, event, message, typed=typed)
    if event.action == ddl_plan.EXCHANGE:  # there `before` is the other table
        return replace(event, after=after)
    return replace(event, before=base, after=after)


def _kept_info(base: dict[str, Any], event: DdlEvent, message: DdlMessage, *, typed: bool) -> dict[str, Any]:
    """TiDB's TableInfo after the event with the columns of `base`, the table at the target."""
    assert event.after is not None
    upstream = {entry["id"]: entry for entry in event.after.get("cols") or []}
    key = [column.id for column in _key_of(event.after, event)]
    pairs = _paired(base, event)
    continued = {now.id: was for was, now in pairs if now is not None}
    if lost := [upstream[number]["name"]["O"] for number in key if number not in continued]:
        raise _refused(message, f"column {lost[0]} is in the key, and is not at the target")
    was_key = {column.id for column in _key_of(base, event)}
    _, gone = ignored_names(base)
    held = {entry["id"]: entry for entry in base.get("cols") or []}
    # From the top, because TiDB counts upwards and would reuse a low id soon.
    free = (number for number in range(ID_MAX - 1, 0, -1) if number not in upstream and number not in held)
    places: dict[int, int] = {}
    columns: list[dict[str, Any]] = []
    for was, now in pairs:
        if now is not None:
            _check_type(was, now, message, typed=typed)
            places[now.id] = len(columns)
            # A column of the key must be NOT NULL at a database, whatever it was before.
            columns.append(_entry(held[was.id], upstream[now.id], typed=typed and now.id not in key))
            continue
        # Checked when it was first gone; its entry has had a free id since then.
        if was.name in gone:
            columns.append(held[was.id])
            continue
        _check_gone(was, message, in_key=was.id in was_key, typed=typed)
        gone = (*gone, was.name)
        # Its id may continue upstream as a renamed column, and ids must be unique within a table.
        columns.append(held[was.id] | {"id": next(free)})
    left_out = []
    for column in every_column(event.after, event.finished_ts):
        if column.id not in continued:
            left_out += [column.name] if column.visible else []
            places[column.id] = len(columns)
            columns.append(upstream[column.id] | ({"state": _ABSENT} if column.visible else {}))
    info = _rearranged(event.after, columns, places)
    return info | {IGNORED: {"left_out": left_out, "gone": list(gone)}} if left_out or gone else info


def _paired(base: dict[str, Any], event: DdlEvent) -> list[tuple[Column, Column | None]]:
    """The target's columns, each with the upstream column that continues it; None: it is gone.

    A MODIFY that converts rows gives the column a new id: then it is matched by its name.
    """
    assert event.after is not None
    described = every_column(event.after, event.finished_ts)
    known = {entry["id"] for entry in base.get("cols") or []}
    by_id = {column.id: column for column in described if column.visible}
    # Without columns whose id the target has: such a column continues that one, even if it has a new name.
    by_name = {column.name: column for column in by_id.values() if column.id not in known}
    _, gone = ignored_names(base)
    pairs = []
    for was in every_column(base, event.finished_ts):
        if was.visible:
            now = by_id.get(was.id) or by_name.get(was.name)
            stays = now is not None and now.name == was.name and was.name not in gone
            pairs.append((was, now if stays else None))
    return pairs


def _entry(held: dict[str, Any], now: dict[str, Any], *, typed: bool) -> dict[str, Any]:
    """A continuing column as it is upstream now; `typed`: it stays nullable if it was nullable before."""
    flag = now["type"]["Flag"]
    if typed and not held["type"]["Flag"] & NOT_NULL:
        return now | {"type": now["type"] | {"Flag": flag & ~NOT_NULL}}
    return now


def _rearranged(
    after: dict[str, Any], columns: Sequence[dict[str, Any]], places: Mapping[int, int]
) -> dict[str, Any]:
    """A TableInfo with other columns. Its indexes refer to columns by place; `places`: by column id."""
    ids = {entry["offset"]: entry["id"] for entry in after.get("cols") or []}
    indexes = [
        index | {"idx_cols": [part | {"offset": places[ids[part["offset"]]]} for part in index["idx_cols"]]}
        for index in after.get("index_info") or []
    ]
    return after | {"cols": [one | {"offset": at} for at, one in enumerate(columns)], "index_info": indexes}


def _key_of(info: dict[str, Any], event: DdlEvent) -> list[Column]:
    described = table_schema(event.schema, info, event.finished_ts)
    return [described.columns[at] for at in described.handle_key]


def _check_gone(was: Column, message: DdlMessage, *, in_key: bool, typed: bool) -> None:
    if in_key:
        raise _refused(message, f"column {was.name} is in the key, by which a row is found at the target")
    if typed and not was.nullable:
        raise _refused(message, f"column {was.name} would get NULL from now on, and is NOT NULL there")


def _check_type(was: Column, now: Column, message: DdlMessage, *, typed: bool) -> None:
    """Fatal unless the target's column fits the source's from now on, with no conversion of old rows."""
    if change_of(was, now, None) is not None:
        raise _refused(message, f"column {was.name} gets another type, and its rows were converted upstream")
    if typed and _type_of(was) != _type_of(now):
        raise _refused(message, f"column {was.name} gets another type, and the target's is for the old one")
    if typed and now.nullable and not was.nullable:
        raise _refused(message, f"column {was.name} may be NULL from now on, and is NOT NULL there")
    if target_column(was).type != target_column(now).type:
        raise _refused(message, f"column {was.name} gets another type, and the target's cannot hold it")


def _refused(message: DdlMessage, why: str) -> Fatal:
    return Fatal(
        f"a DDL changes columns in a way that {OPTION} {SchemaChanges.IGNORE} cannot ignore",
        where=_where(message),
        why=why,
        fix=f"start a new target with {OPTION} {SchemaChanges.EVOLVE}, or --exclude the table there",
    )


def _where(message: DdlMessage) -> str:
    name = f"{message.schema}.{message.table}".strip(".")
    return f"table {name} at ts {message.ts}: {message.query[:1000]}"
