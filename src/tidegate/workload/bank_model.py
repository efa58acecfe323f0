"""The bank: the rows of its tables, and the next transaction, from one seed. Pure.

The sum of all accounts is constant. A transfer moves money between two accounts and adds a row. Orders are
inserted, changed and deleted. After a number of rows there is a DDL. The model is the only writer of its
tables, so it knows every row and need not read. Rows are values by column name; `tidegate.tidb.record`
encodes them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tidegate.kvclient.transaction import DEL, PUT, Mutation
from tidegate.model.row import Value
from tidegate.model.schema import TableSchema
from tidegate.tidb import checksum, record
from tidegate.workload.ddl import Ddl
from tidegate.workload.definitions import AUTO_INCREMENT, BINARY, NO_DEFAULT, NOT_NULL, PRIMARY, ColumnSpec
from tidegate.workload.schema import Catalog

SCHEMA: Final = "bank"
UNIT: Final = 10_000
"""Balances and amounts are integers in units of 1/10,000."""
OPENING: Final = 10_000 * UNIT
KEEP_TRANSFERS: Final = 100_000
KEEP_ORDERS: Final = 20_000
KEEP_AUDIT: Final = 2_000
"""The most rows of each table. Beyond it the oldest are deleted, so that a long run stays bounded."""
REGIONS: Final = ("north", "south", "east", "west", "Zürich", "東京", "São Paulo", "O'Higgins")
WORDS: Final = (
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "naïve",
    "日本",
    "it's",
)
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)

Row = dict[str, Value]
Change = tuple[str, Row | None, Row | None]
"""Table, row before (None: insert), row after (None: delete)."""

ACCOUNTS: Final = [
    ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY | NO_DEFAULT),
    ColumnSpec("owner", 15, 64, flag=NOT_NULL | NO_DEFAULT, text=True),
    ColumnSpec("balance", 246, 20, 4, flag=NOT_NULL | NO_DEFAULT),
    ColumnSpec("note", 15, 255, text=True),
    ColumnSpec("updated", 12, 19, flag=BINARY),
]
TRANSFERS: Final = [
    ColumnSpec("region", 15, 16, flag=NOT_NULL | PRIMARY | NO_DEFAULT, text=True),
    ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY | NO_DEFAULT),
    ColumnSpec("src", 8, 20),
    ColumnSpec("dst", 8, 20),
    ColumnSpec("amount", 246, 20, 4),
    ColumnSpec("memo", 252, 65535, text=True),
]
ORDERS: Final = [
    ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY | AUTO_INCREMENT),
    ColumnSpec("account_id", 8, 20, flag=NOT_NULL | NO_DEFAULT),
    ColumnSpec("placed", 12, 26, 6, flag=BINARY),
    ColumnSpec("body", 245, 4294967295, flag=BINARY),
    ColumnSpec("remark", 252, 65535, text=True),
]
AUDIT: Final = [
    ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY | AUTO_INCREMENT),
    ColumnSpec("what", 15, 40, text=True),
    ColumnSpec("at", 7, 19, flag=BINARY, default="CURRENT_TIMESTAMP"),
]
TIER: Final = ColumnSpec("tier", 3, 11, flag=NOT_NULL, default="3")
FEE: Final = ColumnSpec("fee", 246, 10, 2, default="0.25")
STAMP: Final = ColumnSpec("ts", 7, 23, 3, flag=NOT_NULL | BINARY, default="CURRENT_TIMESTAMP")

INITIAL: Final = (
    (
        "accounts",
        "create table bank.accounts(id bigint primary key clustered, owner varchar(64) not null, "
        "balance decimal(20,4) not null, note varchar(255), updated datetime)",
        ACCOUNTS,
        ["id"],
    ),
    (
        "transfers",
        "create table bank.transfers(region varchar(16) not null, id bigint not null, src bigint, "
        "dst bigint, amount decimal(20,4), memo text, primary key(region,id) clustered)",
        TRANSFERS,
        ["region", "id"],
    ),
    (
        "orders",
        "create table bank.orders(id bigint primary key auto_increment, account_id bigint not null, "
        "placed datetime(6), body json, remark text)",
        ORDERS,
        ["id"],
    ),
)
"""Name, query, columns and primary key of each table of a new bank."""

DDL_STEPS: Final = 10


def ddl_step(catalog: Catalog, step: int) -> tuple[Ddl, Catalog]:
    """DDL number `step` of an endless cycle of DDL_STEPS. After a cycle the tables are as at the
    beginning.
    """
    match step % DDL_STEPS:
        case 0:
            return catalog.add_column(
                "accounts", "alter table bank.accounts add column tier int not null default 3", TIER
            )
        case 1:
            query = (
                "create table bank.audit(id bigint auto_increment primary key, what varchar(40), "
                "at timestamp default current_timestamp)"
            )
            return catalog.create_table("audit", query, AUDIT, ["id"])
        case 2:
            query = "alter table bank.orders add column ts timestamp(3) not null default current_timestamp(3)"
            return catalog.add_column("orders", query, STAMP)
        case 3:
            return catalog.rename_table("audit", "audit_log", "rename table bank.audit to bank.audit_log")
        case 4:
            query = "alter table bank.transfers add column fee decimal(10,2) default '0.25'"
            return catalog.add_column("transfers", query, FEE)
        case 5:
            return catalog.truncate_table("audit_log", "truncate table bank.audit_log")
        case 6:
            return catalog.drop_column("accounts", "alter table bank.accounts drop column tier", "tier")
        case 7:
            return catalog.drop_column("transfers", "alter table bank.transfers drop column fee", "fee")
        case 8:
            return catalog.drop_table("audit_log", "drop table bank.audit_log")
        case _:
            return catalog.drop_column("orders", "alter table bank.orders drop column ts", "ts")


def next_step(catalog: Catalog) -> int:
    """The next DDL of the cycle, found from the tables, for a bank that existed before this run."""
    have = {name: {c["name"]["O"] for c in info["cols"]} for name, info in catalog.tables.items()}
    tier, fee, stamp = "tier" in have["accounts"], "fee" in have["transfers"], "ts" in have["orders"]
    match tier, "audit" in have, stamp, "audit_log" in have, fee:
        case False, False, False, False, False:
            return 0
        case True, False, False, False, False:
            return 1
        case True, True, False, False, False:
            return 2
        case True, True, True, False, False:
            return 3
        case True, False, True, True, False:
            return 4
        case True, False, True, True, True:
            return 5
        case False, False, True, True, True:
            return 7
        case False, False, True, True, False:
            return 8
        case _:
            return 9


@dataclass(frozen=True, slots=True)
class Work:
    """One transaction: its mutations, and the number of rows it changes."""

    mutations: tuple[Mutation, ...]
    rows: int


@dataclass(slots=True)
class Bank:
    """The bank's rows, and the random numbers that choose the next transaction."""

    seed: int
    checksum: int | None = None
    """The version of the row checksums to write. None: write none, as TiDB with its switch off."""
    accounts: dict[int, Row] = field(default_factory=dict)
    transfers: deque[Row] = field(default_factory=deque)
    orders: dict[int, Row] = field(default_factory=dict)
    audit: dict[int, Row] = field(default_factory=dict)
    next_transfer: int = 1
    next_order: int = 1
    next_audit: int = 1
    ticks: int = 0
    _tables: dict[str, TableSchema] = field(default_factory=dict)
    _random: random.Random = field(default_factory=random.Random)
    _regular: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random.seed(self.seed)

    def use(self, catalog: Catalog) -> None:
        """Use the tables of a catalog. Called at the start and after every DDL."""
        self._tables = {name: catalog.table(name) for name in catalog.tables}
        self._align(self.accounts.values(), "accounts")
        self._align(self.orders.values(), "orders")
        self._align(self.transfers, "transfers")
        if self.audit_table is None:
            self.audit.clear()
        self._regular = sorted(self.accounts)

    def truncated(self) -> None:
        """The audit table was emptied."""
        self.audit.clear()

    @property
    def audit_table(self) -> str | None:
        """The audit table's current name, if it exists."""
        return next((name for name in ("audit", "audit_log") if name in self._tables), None)

    @property
    def total(self) -> str:
        """The sum of all balances, as SQL shows it."""
        return _decimal(sum(_units(row["balance"]) for row in self.accounts.values()))

    def restore(self, table: str, row: Row) -> None:
        """Add a row that exists already. Called in key order."""
        number = row["id"]
        assert isinstance(number, int)
        match table:
            case "accounts":
                self.accounts[number] = row
            case "transfers":
                self.transfers.append(row)
                self.next_transfer = max(self.next_transfer, number + 1)
            case "orders":
                self.orders[number] = row
                self.next_order = max(self.next_order, number + 1)
            case "audit" | "audit_log":
                self.audit[number] = row
                self.next_audit = max(self.next_audit, number + 1)

    def restored(self) -> None:
        """All existing rows were added: sort transfers by age."""
        self.transfers = deque(sorted(self.transfers, key=lambda row: _int(row["id"])))
        self.ticks = self.next_transfer + self.next_order

    def open_accounts(self, first: int, count: int) -> Work:
        """One transaction that opens the accounts first..first+count-1, with the balance OPENING each."""
        changes: list[Change] = []
        for number in range(first, first + count):
            row: Row = {
                "id": number,
                "owner": self._words(2),
                "balance": _decimal(OPENING),
                "note": self._words(3) if number % 5 else None,
                "updated": self._now(0),
            }
            self.accounts[number] = self._complete("accounts", row)
            changes.append(("accounts", None, self.accounts[number]))
        self._regular = sorted(self.accounts)
        return self._work(changes)

    def next(self) -> Work:
        """The next transaction."""
        self.ticks += 1
        draw = self._random.random()
        if draw < 0.25:
            changes = self._transfer(1)
        elif draw < 0.55:
            changes = self._transfer(self._random.randint(4, 20))
        elif draw < 0.85:
            changes = self._new_orders(self._random.randint(4, 40))
        else:
            changes = self._change_orders(self._random.randint(1, 10))
        if self.audit_table is not None and draw < 0.1:
            changes += self._audit_row(self.audit_table)
        return self._work(changes + self._prune())

    def _transfer(self, count: int) -> list[Change]:
        count = min(count, len(self._regular) // 2)
        chosen = self._random.sample(self._regular, 2 * count)
        changes: list[Change] = []
        for src, dst in zip(chosen[::2], chosen[1::2], strict=True):
            amount = self._random.randint(1, 100 * UNIT)
            changes += [self._book(src, -amount), self._book(dst, amount)]
            row: Row = {
                "region": self._random.choice(REGIONS),
                "id": self.next_transfer,
                "src": src,
                "dst": dst,
                "amount": _decimal(amount),
                "memo": self._words(3) if amount % 3 else None,
                "fee": _decimal(amount // 1000 // 100 * 100)[:-2],
            }
            self.next_transfer += 1
            self.transfers.append(self._complete("transfers", row))
            changes.append(("transfers", None, self.transfers[-1]))
        return changes

    def _book(self, number: int, amount: int) -> Change:
        before = self.accounts[number]
        balance = _decimal(_units(before["balance"]) + amount)
        after = before | {"balance": balance, "updated": self._now(0)}
        if "tier" in after and self._random.random() < 0.1:
            after["tier"] = self._random.randint(1, 5)
        self.accounts[number] = after
        return "accounts", before, after

    def _new_orders(self, count: int) -> list[Change]:
        changes: list[Change] = []
        for _ in range(count):
            body = (
                f'{{"items": {self._random.randint(1, 9)}, "tags": ["{self._words(1)}", "{self._words(1)}"]}}'
            )
            row: Row = {
                "id": self.next_order,
                "account_id": self._random.choice(self._regular),
                "placed": self._now(6),
                "body": body if self.next_order % 7 else None,
                "remark": self._words(4),
                "ts": self._now(3),
            }
            self.orders[self.next_order] = self._complete("orders", row)
            changes.append(("orders", None, self.orders[self.next_order]))
            self.next_order += 1
        return changes

    def _change_orders(self, count: int) -> list[Change]:
        """Change or delete some of the orders. A bank with few orders gets new ones instead."""
        if len(self.orders) < 100:
            return self._new_orders(count)
        changes: list[Change] = []
        newest = self.next_order - 1
        for number in {newest - int(self._random.random() ** 2 * 2000) for _ in range(count)}:
            before = self.orders.get(number)
            if before is None:
                continue
            if self._random.random() < 0.2:
                changes.append(("orders", self.orders.pop(number), None))
                continue
            after = before | {"remark": self._words(2)}
            self.orders[number] = after
            changes.append(("orders", before, after))
        return changes or self._new_orders(1)

    def _audit_row(self, table: str) -> list[Change]:
        row: Row = {"id": self.next_audit, "what": self._words(2), "at": self._now(0)}
        self.audit[self.next_audit] = row
        self.next_audit += 1
        return [(table, None, row)]

    def _prune(self) -> list[Change]:
        changes: list[Change] = []
        while len(self.transfers) > KEEP_TRANSFERS:
            changes.append(("transfers", self.transfers.popleft(), None))
        while len(self.orders) > KEEP_ORDERS:
            changes.append(("orders", self.orders.pop(next(iter(self.orders))), None))
        while len(self.audit) > KEEP_AUDIT and self.audit_table is not None:
            changes.append((self.audit_table, self.audit.pop(next(iter(self.audit))), None))
        return changes

    def _work(self, changes: list[Change]) -> Work:
        """Encode changes. A row that is changed twice in one transaction gets its last state."""
        mutations: dict[bytes, Mutation] = {}
        for table, before, after in changes:
            kept = after if after is not None else before
            assert kept is not None
            schema = self._tables[table]
            values = [kept[column.name] for column in schema.columns]
            key, value = record.encode(schema, values)
            if self.checksum is not None:
                value = checksum.written(schema, values, key, value, self.checksum)
            mutations[key] = Mutation(PUT, key, value) if after is not None else Mutation(DEL, key)
        return Work(tuple(mutations.values()), len(mutations))

    def _align(self, rows: Iterable[Row], table: str) -> None:
        for row in rows:
            row_after = self._complete(table, row)
            row.clear()
            row.update(row_after)

    def _complete(self, table: str, row: Row) -> Row:
        """The row with exactly the table's columns: defaults for new columns, and no dropped ones."""
        return {
            c.name: row[c.name] if c.name in row else _default(c.origin_default)
            for c in self._tables[table].columns
        }

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))

    def _now(self, fsp: int) -> str:
        """A time that advances with the transactions. It is the same in every run."""
        moment = EPOCH + timedelta(milliseconds=37 * self.ticks)
        text = moment.strftime("%Y-%m-%d %H:%M:%S")
        return f"{text}.{moment.microsecond:06d}"[: 20 + fsp] if fsp else text


def _default(origin: Any) -> Value:
    """A column's origin default as a plain value. The workload only has integers and texts."""
    if isinstance(origin, str) and origin.lstrip("-").isdigit():
        return int(origin)
    assert origin is None or isinstance(origin, str)
    return origin


def _decimal(units: int) -> str:
    sign = "-" if units < 0 else ""
    return f"{sign}{abs(units) // UNIT}.{abs(units) % UNIT:04d}"


def _units(text: Value) -> int:
    assert isinstance(text, str)
    whole, _, part = text.lstrip("-").partition(".")
    units = int(whole) * UNIT + int(part.ljust(4, "0"))
    return -units if text.startswith("-") else units


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value
