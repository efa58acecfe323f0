"""A bank drawn from a seed, as the events of its changefeed and as what a reader must see at every ts. Pure.

    accounts, savings, reserves  (id, balance, owner): money moves within and between them; the sum stays
    seats                        (id, place, label): both unique; rows exchange them within a transaction

Accounts open with money of another one and close by giving theirs away. A seat's values pass on to other
rows, to a row that is made in the same transaction, and back. Every `DDL_EVERY` transactions one of the
tables gets a column, or loses its last. Texts are of several scripts, and labels differ by case alone: a
target that compares or converts them its own way shows it.
"""

from __future__ import annotations

import copy
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.consumer.topics import Event, Mark
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema
from tidegate.workload.ddl import Action
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, column_info, table_info

SCHEMA: Final = "bank"
MONEY: Final = ("accounts", "savings", "reserves")
SEATS: Final = "seats"
TABLES: Final = (*MONEY, SEATS)
OPENED: Final = 24
"""Accounts in each table of money, and seats, at the beginning."""
TOTAL: Final = len(MONEY) * OPENED * 1000
GROUP: Final = 4
"""Transactions between two marks."""
DDL_EVERY: Final = 30
"""Transactions between two DDLs."""
MOST_COLUMNS: Final = 9
UNIQUE: Final = 4
"""TiDB's flag of a column that has a unique index of its own."""
OWNERS: Final = ("Ada", "ada", "Ædan", "王芳", "Zoë 🙂", "O'Neil\\", "")

Row = tuple[Any, ...]
Rows = Mapping[int, Row]


class Bank:
    """Draws transactions; `at` knows all that were drawn."""

    def __init__(self, seed: int) -> None:
        self.ts, self._chance, self._made = 1000, random.Random(seed), 0
        self._infos = {name: _info(number, name) for number, name in enumerate(TABLES, 71)}
        self._rows: dict[str, dict[int, Row]] = {name: {} for name in TABLES}
        self._history: dict[str, list[tuple[int, Rows]]] = {name: [(0, {})] for name in TABLES}
        self._next = dict.fromkeys(TABLES, OPENED + 1)
        self._labels = 0
        self.ddls: list[int] = []
        """Their ts."""

    def groups(self) -> Iterator[list[Event]]:
        """Without end; each ends with a mark, and none has half a transaction."""
        yield from self._beginning()
        while True:
            events: list[Event] = []
            for _ in range(GROUP):
                events += self._transaction()
                self._made += 1
                if self._made % DDL_EVERY == 0:
                    events += self._alter()
            yield [*events, Mark(self.ts)]

    def at(self, ts: int) -> dict[str, Rows]:
        """Return each table's rows at ts, which must have been drawn. A missing table is empty."""
        assert ts <= self.ts
        return {name: kept[bisect_right(kept, ts, key=lambda one: one[0]) - 1][1]
                for name, kept in self._history.items()}  # fmt: skip

    # --- what happens

    def _beginning(self) -> Iterator[list[Event]]:
        for name in TABLES:
            self._tick()
            yield [self._ddl(Action.CREATE_TABLE, name, f"create table {name} (...)", None), Mark(self.ts)]
        for name in TABLES:
            fresh = [(one, self._seat(one) if name == SEATS else (one, 1000, self._owner()))
                     for one in range(1, OPENED + 1)]  # fmt: skip
            yield [*self._commit({name: dict(fresh)}), Mark(self.ts)]

    def _transaction(self) -> list[Event]:
        kind = self._chance.choices(("transfer", "swap", "reseat", "open", "close"), (50, 25, 10, 8, 7))[0]
        changes: dict[str, dict[int, Row | None]] = {}
        match kind:
            case "transfer":
                self._move(changes, *self._two_accounts())
            case "swap":
                self._swap(changes)
            case "reseat":
                self._reseat(changes)
            case "open":
                name = self._chance.choice(MONEY)
                one, self._next[name] = self._next[name], self._next[name] + 1
                self._put(changes, name, one, (one, 0, self._owner()))
                self._move(changes, self._account(changes), (name, one))
            case "close":
                (name, one), other = self._two_accounts()
                if len(self._rows[name]) > OPENED // 2:
                    self._move(changes, (name, one), other, self._rows[name][one][1])
                    changes[name][one] = None
        return self._commit(changes)

    def _move(
        self,
        changes: dict[str, dict[int, Row | None]],
        source: tuple[str, int],
        sink: tuple[str, int],
        amount: int | None = None,
    ) -> None:
        amount = self._chance.randint(1, 300) if amount is None else amount
        for (name, one), change in ((source, -amount), (sink, amount)):
            row = changes.get(name, {}).get(one) or self._rows[name][one]
            self._put(changes, name, one, (one, row[1] + change, *row[2:]))

    def _swap(self, changes: dict[str, dict[int, Row | None]]) -> None:
        """Up to five seats pass their unique values around in a ring."""
        ring = self._chance.sample(sorted(self._rows[SEATS]), self._chance.randint(2, 5))
        for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
            self._put(changes, SEATS, one, (one, *self._rows[SEATS][other][1:3]))

    def _reseat(self, changes: dict[str, dict[int, Row | None]]) -> None:
        """A new row takes a removed one's values; a third one takes values that nobody had."""
        gone, renamed = self._chance.sample(sorted(self._rows[SEATS]), 2)
        fresh, self._next[SEATS] = self._next[SEATS], self._next[SEATS] + 1
        self._put(changes, SEATS, fresh, (fresh, *self._rows[SEATS][gone][1:3]))
        changes[SEATS][gone] = None
        self._put(changes, SEATS, renamed, (renamed, *self._seat(fresh)[1:]))

    def _put(self, changes: dict[str, dict[int, Row | None]], name: str, one: int, row: Row) -> None:
        """A row, with a value for each column that a DDL has added."""
        added = len(self._infos[name]["cols"]) - 3
        values = [self._chance.randint(0, 99) for _ in range(added)]
        changes.setdefault(name, {})[one] = (*row[:3], *values)

    def _commit(self, changes: Mapping[str, Mapping[int, Row | None]]) -> list[Event]:
        self._tick()
        events: list[Event] = []
        for name, rows in changes.items():
            events += [self._change(name, self._rows[name].get(one), row) for one, row in rows.items()]
            left = self._rows[name] | {one: row for one, row in rows.items() if row is not None}
            self._keep(name, {one: row for one, row in left.items() if rows.get(one, row) is not None})
        # As TiDB's mounter sends them: what makes room comes first.
        return sorted(events, key=lambda event: isinstance(event, RowChange) and event.new is not None)

    def _alter(self) -> list[Event]:
        """A table gets a column; one that has many loses its last."""
        self._tick()
        name = self._chance.choice(TABLES)
        before = self._infos[name]
        number = len(before["cols"])
        info = self._infos[name] = copy.deepcopy(before)
        if number == MOST_COLUMNS:
            dropped = info["cols"].pop()["name"]["O"]
            event = self._ddl(Action.DROP_COLUMN, name, f"alter table {name} drop column {dropped}", before)
            self._keep(name, {one: row[:-1] for one, row in self._rows[name].items()})
            return [event]
        spec = ColumnSpec(f"added_{number}", 3, 11, default=str(number))
        info["max_col_id"] += 1
        added = column_info(info["max_col_id"], number, spec) | {"origin_default": spec.default}
        info["cols"].append(added)
        query = f"alter table {name} add column {spec.name} int default {number}"
        event = self._ddl(Action.ADD_COLUMN, name, query, before)
        self._keep(name, {one: (*row, number) for one, row in self._rows[name].items()})
        return [event]

    # --- parts

    def _tick(self) -> None:
        self.ts += self._chance.randint(1, 3)

    def _keep(self, name: str, rows: dict[int, Row]) -> None:
        self._rows[name] = rows
        self._history[name].append((self.ts, rows))

    def _account(self, changes: Mapping[str, Mapping[int, Row | None]]) -> tuple[str, int]:
        name = self._chance.choice(MONEY)
        return name, self._chance.choice(sorted(self._rows[name].keys() - changes.get(name, {}).keys()))

    def _two_accounts(self) -> tuple[tuple[str, int], tuple[str, int]]:
        first = self._account({})
        return first, self._account({first[0]: {first[1]: None}})

    def _owner(self) -> str:
        return self._chance.choice(OWNERS)

    def _seat(self, one: int) -> Row:
        """Values that no seat has had: of two neighbours the labels differ by case alone."""
        self._labels += 1
        case = "row" if self._labels % 2 else "ROW"
        return (one, self._labels, f"{case} {self._labels // 2} ä")

    def _change(self, name: str, old: Row | None, new: Row | None) -> RowChange:
        images = [_stored(row) if row is not None else None for row in (old, new)]
        return RowChange(self._schema(name), self.ts, self.ts - 1, self._infos[name]["id"], 0, *images)

    def _schema(self, name: str) -> TableSchema:
        return table_schema(SCHEMA, self._infos[name], self._infos[name]["update_timestamp"])

    def _ddl(self, action: Action, name: str, query: str, before: dict[str, Any] | None) -> DdlEvent:
        self.ddls.append(self.ts)
        self._infos[name]["update_timestamp"] = self.ts
        number, of_table = len(self.ddls), (self._infos[name]["id"],)
        return DdlEvent(
            number, 0, self.ts - 1, self.ts, int(action), query, SCHEMA, name, SCHEMA, name, number,
            before, self._infos[name], of_table if before is None else (), (),
        )  # fmt: skip


def _stored(row: Row) -> tuple[Value, ...]:
    return tuple(value.encode() if isinstance(value, str) else value for value in row)


def _info(number: int, name: str) -> dict[str, Any]:
    key = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
    if name != SEATS:
        columns = [key, ColumnSpec("balance", 8, 20, flag=NOT_NULL), ColumnSpec("owner", 15, 40, text=True)]
        return table_info(number, name, columns, ["id"])
    columns = [
        key,
        ColumnSpec("place", 8, 20, flag=NOT_NULL | UNIQUE),
        ColumnSpec("label", 15, 40, flag=NOT_NULL | UNIQUE, text=True),
    ]
    info = table_info(number, name, columns, ["id"])
    info["index_info"] = [unique_index(1, "place", 1), unique_index(2, "label", 2)]
    info["max_idx_id"] = 2
    return info


def unique_index(number: int, column: str, offset: int) -> dict[str, Any]:
    """A unique index over one column, as TiDB describes it."""
    return {
        "id": number,
        "idx_name": {"O": column, "L": column},
        "tbl_name": {"O": "", "L": ""},
        "idx_cols": [{"name": {"O": column, "L": column}, "offset": offset, "length": -1}],
        "state": 5,
        "comment": "",
        "index_type": 1,
        "is_unique": True,
        "is_primary": False,
        "is_invisible": False,
        "is_global": False,
        "mv_index": False,
    }
