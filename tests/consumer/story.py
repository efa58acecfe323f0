"""A short history of three tables for any target: each step is done through the verbs of a target alone."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tests.consumer.bank import UNIQUE, unique_index
from tests.consumer.each_target import SCHEMA, Rows
from tests.consumer.test_ddl_at_target import message
from tidegate.consumer.applying.change_rows import logged
from tidegate.consumer.applying.net_effect import BagEffect, Changes, Effect
from tidegate.consumer.applying.target import TableChanges, Target
from tidegate.consumer.ddl import ddl_plan
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.table import partition_spec
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.definition import Definition
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.workload.ddl import Action
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, column_info, table_info

State = Mapping[str, Rows]
"""By table, its rows: a key and values; of `log`, which has no key, any two values."""


def _infos() -> dict[str, dict[str, Any]]:
    key = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
    place = ColumnSpec("place", 15, 40, flag=NOT_NULL | UNIQUE, text=True)
    seats = table_info(81, "seats", [key, place], ["id"])
    # Files divide it by the unique value, which rows pass to each other. A database does not look at it.
    seats |= {partition_spec.MEMBER: ["place"]} | {"index_info": [unique_index(1, "place", 1)]}
    money = table_info(82, "money", [key, ColumnSpec("balance", 8, 20)], ["id"])
    log = table_info(83, "log", [ColumnSpec("id", 8, 20), ColumnSpec("what", 15, 40, text=True)], ["id"])
    return {"seats": seats, "money": money, "log": log | {"pk_is_handle": False}}


@dataclass(frozen=True)
class Step:
    """One step and the state after it; the state before is that of the step before."""

    after: State
    ddl: DdlEvent | None = None
    commits: bool = False


def _ddl(number: int, action: Action, name: str, before: Any, after: Any) -> DdlEvent:
    ts, query = _ts(number), f"alter table {name} ({number})"
    old = before["name"]["O"] if before is not None else name
    return DdlEvent(
        number, 0, ts - 1, ts, int(action), query, SCHEMA, name, SCHEMA, old, number, before, after, (), ()
    )


def _ts(number: int) -> int:
    """When a step happened."""
    return 10 * (number + 1)


def _story() -> list[Step]:
    infos, steps, state = _infos(), list[Step](), dict[str, Rows]()

    def ddl(action: Action, name: str, before: Any, after: Any, gone: str = "", **rows: Rows) -> None:
        nonlocal state
        state = {table: held for table, held in (state | rows).items() if table != gone}
        steps.append(Step(state, _ddl(len(steps), action, name, before, after)))

    def write(**rows: Rows) -> None:
        nonlocal state
        state = state | rows
        steps.append(Step(state))

    def commit() -> None:
        steps.append(Step(state, commits=True))

    ddl(Action.CREATE_TABLE, "log", None, infos["log"], log=[])
    write(log=[(1, "a"), (1, "a"), (2, "b")])
    commit()
    ddl(Action.CREATE_TABLE, "seats", None, infos["seats"], seats=[])
    ddl(Action.CREATE_TABLE, "money", None, infos["money"], money=[])
    write(
        seats=[(1, "x"), (2, "y"), (3, "Ü")], money=[(1, 100), (2, 100)], log=[(1, "a"), (2, "b"), (2, "b")]
    )
    commit()
    write(seats=[(1, "y"), (2, "Ü"), (3, "x")], money=[(1, 30), (2, 170)])
    write(seats=[(1, "Ü"), (3, "x"), (4, "y")], log=[(2, "b"), (3, "c")])
    wide = copy.deepcopy(infos["money"]) | {"max_col_id": 3}
    spec = ColumnSpec("note", 3, 11, default="7")
    wide["cols"].append(column_info(3, 2, spec) | {"origin_default": "7"})
    ddl(Action.ADD_COLUMN, "money", infos["money"], wide, money=[(1, 30, 7), (2, 170, 7)])
    write(money=[(1, 50, 7), (2, 100, 8), (3, 50, 9)], log=[])
    write()
    commit()
    cash, fresh = wide | {"name": {"O": "cash", "L": "cash"}}, infos["seats"] | {"id": 91}
    ddl(Action.RENAME_TABLE, "cash", wide, cash, gone="money", cash=[(1, 50, 7), (2, 100, 8), (3, 50, 9)])
    ddl(Action.TRUNCATE_TABLE, "seats", infos["seats"], fresh, seats=[])
    ddl(Action.DROP_TABLE, "log", infos["log"], None, gone="log")
    write(cash=[(1, 200, 7)], seats=[(1, "y")])
    commit()
    return steps


STORY = _story()


def state_at(done: int) -> State:
    """Return the tables after so many steps."""
    return STORY[done - 1].after if done else {}


def position(done: int) -> Position:
    """That after so many steps; its ts is that of the last commit among them."""
    commits = [number for number in range(done) if STORY[number].commits]
    ts = _ts(done - 1)
    part = PartitionPosition(done, ts, ts)
    return Position(_ts(commits[-1]) if commits else 0, "t", "open-protocol", "transaction", {0: part})


def done_at(held: Position | None) -> int:
    """How many steps a position says are in."""
    return held.partitions[0].offset if held is not None else 0


def do(target: Target, number: int) -> Position | None:
    """One step of the story; of a commit, the position as the target keeps it."""
    step, reached = STORY[number], position(number + 1)
    if step.commits:
        return target.commit(reached)
    if step.ddl is None:
        target.write(_settles(target, state_at(number), step.after, _ts(number)), reached)
        return None
    reported = message(step.ddl)
    if not target.has_done(reported):
        steps = ddl_plan.plan(step.ddl, target.definitions.values(), target.dropped())
        target.intend(reported, steps)
        for one in steps:
            target.execute(one)
    target.advance(reached)
    return None


def resume(target: Target, until: int = len(STORY)) -> None:
    """Recover, and do what is left of the first steps."""
    done = done_at(target.recover())
    assert done_at(target.begun) in (0, done + 1), "what was begun is the next step"
    for number in range(done, until):
        do(target, number)


def _settles(target: Target, before: State, after: State, ts: int) -> list[Any]:
    return [partial(settled, target, name, before.get(name, []), after[name], ts) for name in sorted(after)]


def settled(target: Target, name: str, before: Rows, after: Rows, ts: int = 1) -> TableChanges | None:
    """Return the changes from one state of a table to the other; None if there are none.

    `ts`: when they were committed, for a target that keeps every change.
    """
    if before == after:
        return None
    known = target.definition((SCHEMA, name))
    assert known is not None
    if target.every_change:
        return TableChanges(known, _logged(target, known, before, after, ts))
    return TableChanges(known, (_keyed if known.keys else _bag)(target, known, before, after))


def _keyed(target: Target, known: Definition, before: Rows, after: Rows) -> Effect:
    old = {row[0]: row for row in before}
    upserts = [row for row in after if old.get(row[0]) != row]
    gone = [(one,) for one in old.keys() - {row[0] for row in after}]
    fresh = np.array([row[0] not in old for row in upserts], np.bool_)
    keys = [known.columns[0]]
    return Effect(_table(target, known.columns, upserts), _table(target, keys, gone), fresh)


def _bag(target: Target, known: Definition, before: Rows, after: Rows) -> BagEffect:
    come = list((Counter(after) - Counter(before)).elements())
    gone = list((Counter(before) - Counter(after)).elements())
    names = [f"{len(before)}-{number}-{len(after)}" for number in range(len(come))]
    return BagEffect(_table(target, known.columns, come), names, _table(target, known.columns, gone))


def _logged(target: Target, known: Definition, before: Rows, after: Rows, ts: int) -> BagEffect:
    if known.keys:
        old, new = {row[0]: row for row in before}, {row[0]: row for row in after}
        pairs = [(old.get(key), new.get(key)) for key in old | new if old.get(key) != new.get(key)]
    else:
        come, gone = Counter(after) - Counter(before), Counter(before) - Counter(after)
        pairs = [(None, row) for row in come.elements()] + [(row, None) for row in gone.elements()]
    count, nothing = len(pairs), [None] * len(known.columns)
    ops = [INSERT if old is None else DELETE if new is None else UPDATE for old, new in pairs]
    changes = Changes(
        op=np.array(ops, np.uint8),
        commit_ts=np.full(count, ts, np.uint64),
        partition=np.zeros(count, np.int32),
        offset=np.arange(count, dtype=np.int64),
        seq=np.zeros(count, np.int32),
        new=_table(target, known.columns, [new or nothing for _, new in pairs]),
        old=_table(target, known.columns, [old or nothing for old, _ in pairs]),
    )
    return logged(changes, known.keys, knows_old=True)


def _table(target: Target, columns: Sequence[TargetColumn], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows in the target's types."""
    arrays = [
        target.values.convert(pa.array([row[at] for row in rows], _wire(column.mysql_type)), column, "UTC")
        for at, column in enumerate(columns)
    ]
    return pa.table(dict(zip([column.name for column in columns], arrays, strict=True)))


def _wire(mysql_type: int) -> pa.DataType:
    return pa.string() if mysql_type == 15 else pa.int64()
