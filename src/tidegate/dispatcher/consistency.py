"""The guarantees of the consistency levels, and their limits, for a dispatcher, a protocol and a target.

    row          each partition is applied up to its own watermark; without watermarks, as it is read
    table        each topic, with all rows of its tables, is applied up to its partitions' lowest watermark
    transaction  all partitions are applied up to the lowest watermark

With one topic, `table` is the same as `transaction`. Users see this at `changefeed create`, which does not
know the target, and at `consumer run`, which does not know the dispatch rules. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from tidegate.config.settings import DispatchRule

ROW: Final = "row"
TABLE: Final = "table"
TRANSACTION: Final = "transaction"


class Order(IntEnum):
    """The changes that are in commit order within a partition; a weaker order has a higher number."""

    TABLES = 1
    """Whole tables."""
    ALIGNED = 2
    """As `ROWS`, with alignment marks where a row takes a unique value that another row has freed."""
    ROWS = 3
    """All changes of a row; the rows of a table are on several partitions."""
    VALUES = 4
    """The changes of a row until a hashed column changes; then its changes go to another partition."""
    NOTHING = 5
    """Whole transactions, but the changes of one row are on several partitions."""
    UNKNOWN = 6
    """The reader does not know the dispatch rules."""


class Visibility(StrEnum):
    """The units in which the readers of a target see the changes that a consumer writes."""

    SNAPSHOTS = "named snapshots only"
    TRANSACTIONS = "each step at once"
    TABLES = "each table's part of a step at once"
    ROWS = "rows of a table in any order during a step"
    UNKNOWN = "it is not known who reads the topic"


class Ddls(StrEnum):
    """The partitions on which a topic has its DDL messages."""

    EVERYWHERE = "all partitions"
    FIRST = "partition 0"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances for which the levels are described."""

    order: Order
    pieces: bool
    """Whether a large table may be delivered in pieces, each in commit order on its own."""
    topics: bool
    """Whether tables have topics of their own."""
    marks: bool
    """Whether the protocol carries watermarks."""
    ddls: Ddls
    seen: Visibility
    row_mode: bool = True
    """Whether the target may have applied partitions up to different moments."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the table: the subject, and what each level promises about it."""

    about: str
    row: str
    table: str
    transaction: str


def order_of(rules: Iterable[DispatchRule]) -> Order:
    """The weakest order that any of the rules gives; a table that no rule matches is dispatched by table."""
    # The weakest counts, because the table of levels speaks of the whole changefeed.
    return max((_order(rule) for rule in rules), default=Order.TABLES)


def _order(rule: DispatchRule) -> Order:
    match rule.partition:
        case "default" | "table":
            return Order.TABLES
        case "conflict":
            return Order.ALIGNED
        case "index-value" | "rowid" if not rule.index:
            return Order.ROWS
        case "ts":
            return Order.NOTHING
        case _:
            return Order.VALUES


def refusals(setting: Setting) -> dict[str, str]:
    """By level, why it is not available; levels that are available are missing."""
    if not setting.marks:
        why = "the protocol carries no watermarks, so that no reader knows when a transaction is whole"
        return {TABLE: why, TRANSACTION: why}
    if not setting.row_mode:
        why = "a unique value may be taken in one partition before it is free in another"
        return {ROW: f"{why}, and the target enforces unique keys"}
    return {}


def promises(setting: Setting) -> list[Promise]:
    """The guarantees and limits of the levels, each in a short phrase; empty: the level is not available."""
    if not setting.marks:
        return [Promise(about, row, "", "") for about, row in _without_marks(setting).items()]
    return [
        Promise("changes of one row", _OF_A_ROW[setting.order], *["in commit order"] * 2),
        _unique_keys(setting),
        _one_transaction(setting),
        _slow_partition(setting),
        _ddl(setting),
        _restart(setting),
    ]


def cost_of_pieces(order: Order, *, marks: bool) -> str:
    """The cost of several writers of one table for readers of a topic, compared with one writer."""
    until = "until Resolved" if marks else "and the protocol carries no Resolved after which they are whole"
    apart = f"a transaction's rows of a cut table may come apart, {until}"
    match order:
        case Order.NOTHING:
            return f"{apart}, also on the one partition that the transaction has"
        case Order.ROWS | Order.VALUES | Order.ALIGNED:
            return (
                f"within a partition, too, the changes of two rows may be out of commit order; {apart}, as "
                "they do over several partitions with this dispatcher"
            )
        case Order.TABLES | Order.UNKNOWN:
            return (
                "the changes of one row stay in commit order, those of two rows may not; two rows that "
                f"exchange a unique value may collide if changes are applied as they come; {apart}"
            )


_OF_A_ROW: Final = {
    Order.TABLES: "in commit order",
    Order.ALIGNED: "in commit order",
    Order.ROWS: "in commit order",
    Order.VALUES: "in commit order until a hashed column changes; then the row may end up old, or twice",
    Order.NOTHING: "on several partitions: the row may end up old, or twice",
    Order.UNKNOWN: "in commit order with dispatcher table or index-value; otherwise old, or twice",
}


def _without_marks(setting: Setting) -> dict[str, str]:
    """The guarantees of row mode if the progress is kept as offsets."""
    unique = {
        Visibility.SNAPSHOTS: "not enforced by tables of files",
        Visibility.UNKNOWN: "two rows that exchange a value may collide",
    }
    nowhere = setting.ddls is Ddls.NOWHERE
    return {
        "changes of one row": f"{_OF_A_ROW[setting.order]}; an earlier value may show while the producer "
        "repeats itself",
        "unique keys": unique.get(setting.seen, "a table with another unique key is refused"),
        "one transaction": "its rows may be seen apart, also those of one table",
        "a partition that lags": "delays its own rows, and DDL",
        "a DDL": "not on the topic: columns follow the rows"
        if nowhere
        else "after all rows before it, before all rows after it",
        "a restart, a kill": "nothing is lost; what the producer sends again is applied again",
    }


def _unique_keys(setting: Setting) -> Promise:
    about, kept = "unique keys", "a value is free before another row takes it"
    if setting.seen is Visibility.SNAPSHOTS:
        return Promise(about, *["not enforced by tables of files"] * 3)
    if setting.order is Order.TABLES and not setting.pieces:
        return Promise(about, *[kept] * 3)
    if setting.order is Order.ALIGNED and not setting.pieces:
        return Promise(about, f"{kept}, if readers wait at alignment marks", kept, kept)
    return Promise(about, "two rows that exchange a value may collide", kept, kept)


def _one_transaction(setting: Setting) -> Promise:
    whole = _WHOLE[setting.seen]
    by_table = _WHOLE_BY_TOPIC.get(setting.seen, whole) if setting.topics else whole
    return Promise("one transaction", _in_row_mode(setting), by_table, whole)


_WHOLE: Final = {
    Visibility.SNAPSHOTS: "whole in each snapshot, over all tables",
    Visibility.TRANSACTIONS: "whole for every reader, over all tables",
    Visibility.TABLES: "whole in each table up to --transaction-max-bytes; tables may differ during a step",
    Visibility.ROWS: "whole after each step; during it its rows may be seen apart, also those of one table",
    Visibility.UNKNOWN: "whole, if all partitions are applied up to the lowest Resolved",
}


_WHOLE_BY_TOPIC: Final = {
    Visibility.TRANSACTIONS: "whole for every reader in one topic's tables; other topics' may differ",
    Visibility.TABLES: "whole in each table up to --transaction-max-bytes; tables of other topics may differ",
    Visibility.ROWS: "whole in one topic's tables after each step; during it its rows may be seen apart",
    Visibility.UNKNOWN: "whole in each topic's tables, if applied up to the topic's lowest Resolved",
}
"""Table mode, if there are several topics. Snapshots wait for all of them."""


def _in_row_mode(setting: Setting) -> str:
    if setting.seen is Visibility.SNAPSHOTS and setting.order <= Order.ROWS:
        return "whole in each snapshot, over all tables"
    if setting.seen is Visibility.SNAPSHOTS:
        return "whole in each snapshot, but for rows that end up old, or twice"
    if setting.order is Order.TABLES and not setting.pieces:
        return "its rows of one table together, those of several tables apart"
    if setting.order is Order.NOTHING and not setting.topics and not setting.pieces:
        return "together, but two transactions may come in the wrong order"
    return "its rows may be seen apart, also those of one table"


def _slow_partition(setting: Setting) -> Promise:
    own = "delays its own rows, and DDL"
    if setting.order is Order.ALIGNED:
        own = "delays its own rows, DDL, and messages behind an alignment mark"
    waits = "; every snapshot waits for it" if setting.seen is Visibility.SNAPSHOTS else ""
    table = f"delays the tables of its topic, and DDL{waits}" if setting.topics else "delays everything"
    return Promise("a partition that lags", own + waits, table, "delays everything")


def _ddl(setting: Setting) -> Promise:
    about, kept = "a DDL", "after all rows before it, before all rows after it"
    if setting.ddls is Ddls.NOWHERE:
        return Promise(about, *["not on the topic: columns follow the rows"] * 3)
    if setting.seen is Visibility.UNKNOWN and setting.ddls is Ddls.FIRST:
        return Promise(about, "on partition 0 alone: the others do not say when it took effect", kept, kept)
    return Promise(about, *[kept] * 3)


def _restart(setting: Setting) -> Promise:
    who = "readers of committed messages" if setting.seen is Visibility.UNKNOWN else "the target"
    return Promise("a restart, a kill", *[f"nothing is lost or doubled for {who}"] * 3)
