"""The parts of a step that stay together at a database: all of it, a table's part, or only each row. Pure.

    global  one lane: each step of the consumer is one transaction, and a step that is too large is refused
    table   several lanes, each table in one of them: a table's part of a step is one transaction
    none    likewise, but the rows of a table that allows it are spread over all lanes by their keys

A step has one net change for each key, and the next step begins when all lanes have committed it. So the rows
of a key never overtake each other, whichever lanes write them. Two lanes must not touch one unique value, and
which values are equal is known to the server only. Hence a table is spread only if its key is its only unique
index and consists of integers. All other tables stay in one lane.

A DELETE that names many of a table's rows reads the whole table, and waits for rows that another lane has
locked. So a step of such a table is spread only if it removes nothing, or so much that each of its DELETEs
names a small part of the table. If lanes do wait for each other all the same, the server ends one of them,
and they are written again one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow as pa

from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.row_codes import codes_of, parts_of
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.mysql.literals import KEYS
from tidegate.consumer.table.definition import Definition
from tidegate.errors import InvalidInput

LANES: Final = 4
OPTION: Final = "transaction-atomicity"
"""As TiCDC's sink URI has it."""
INTEGERS: Final = frozenset({1, 2, 3, 8, 9})
"""MySQL's codes of TINYINT, SMALLINT, INT, BIGINT and MEDIUMINT."""
MANY: Final = 20 * KEYS
"""If a step removes so many rows of a table, updated ones included, each DELETE names few of the table's."""


class Atomicity(StrEnum):
    """The unit in which readers of a database see a step."""

    NONE = "none"
    TABLE = "table"
    GLOBAL = "global"


def chosen(given: str, lanes: int | None, target: str) -> tuple[Atomicity, int]:
    """The level and the number of lanes. `given`: of --atomicity, `lanes`: of --lanes, if they are given.

    `target`: the address, which may have the level as an option. InvalidInput if these contradict each other,
    or if a level does not exist.
    """
    asked = {"--atomicity": given, f"--target ..?{OPTION}=": _in_address(target)}
    asked = {where: level for where, level in asked.items() if level}
    for where, level in asked.items():
        if level not in set(Atomicity):
            raise _refused(
                f"{where} {level}", "there is no such level", f"give one of {', '.join(Atomicity)}"
            )
    levels = set(asked.values())
    if len(levels) > 1:
        where = ", ".join(f"{where} {level}" for where, level in asked.items())
        raise _refused(where, "the address and the option say different things", "give one of them")
    if not levels:
        return (Atomicity.GLOBAL if lanes == 1 else Atomicity.TABLE), lanes or LANES
    level = Atomicity(levels.pop())
    if lanes is not None and (lanes == 1) is not (level is Atomicity.GLOBAL):
        why = "a step is one transaction only if one lane writes it, and with one lane it always is"
        fix = "leave --lanes out" if level is Atomicity.GLOBAL else "leave --lanes out, or give more of them"
        raise _refused(f"--atomicity {level}, --lanes {lanes}", why, fix)
    return level, lanes or (1 if level is Atomicity.GLOBAL else LANES)


def can_spread(table: Definition) -> bool:
    """Whether the rows of a table may be in several lanes, if its key is its only unique index."""
    key = [column for column in table.columns if column.name in table.keys]
    return bool(key) and all(
        column.mysql_type in INTEGERS and pa.types.is_integer(column.type) for column in key
    )


def is_spread(changes: TableChanges) -> bool:
    """Whether the lanes that write a step of such a table do not wait for each other."""
    effect = changes.effect
    assert isinstance(effect, Effect), "a table without a key stays in one lane"
    removed = effect.deletes.num_rows + int((~effect.fresh).sum())
    return not removed or removed >= MANY


def spread(changes: TableChanges, lanes: int) -> Mapping[int, TableChanges]:
    """The changes of each lane, by a hash of the key: the same in every process and release.

    Lanes without changes are missing.
    """
    effect, keys = changes.effect, list(changes.definition.keys)
    assert isinstance(effect, Effect), "a table without a key stays in one lane"
    put, gone = (parts_of(codes_of(rows.select(keys)), lanes) for rows in (effect.upserts, effect.deletes))
    return {
        lane: replace(
            changes,
            effect=Effect(
                effect.upserts.filter(put == lane),
                effect.deletes.filter(gone == lane),
                effect.fresh[put == lane],
            ),
        )
        for lane in np.union1d(put, gone).tolist()
    }


def _in_address(target: str) -> str:
    return dict(parse_qsl(urlsplit(target).query, keep_blank_values=True)).get(OPTION, "")


def _refused(where: str, why: str, fix: str) -> InvalidInput:
    return InvalidInput("this atomicity cannot be had", where=where, why=why, fix=fix)
