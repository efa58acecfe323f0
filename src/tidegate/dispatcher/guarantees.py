"""The guarantees that a reader loses with a dispatcher, for one table: docs/dispatchers.md. Pure.

Source: the table of guarantees in TiCDC's MQ design (docs/design/2020-02-24-ticdc-mq-protocol-cn.md).
"""

from __future__ import annotations

from typing import Final

from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.partitions import CONFLICT, hashed_columns
from tidegate.dispatcher.unique_keys import tracked_keys, why_by_table
from tidegate.model.schema import TableSchema


def weakness(table: TableSchema, rule: DispatchRule) -> str:
    """In words, which order of a table's rows this rule gives up; empty: none.

    By table, each partition has a table's changes in commit order. By the handle key, it still has all
    changes of a row in order. Raises InvalidInput if the table lacks an index or column that the rule names.
    """
    if rule.partition == "ts":
        return (
            "the changes of one row are on several partitions, in no order between them: "
            "readers must sort by commit ts up to Resolved"
        )
    if rule.partition == CONFLICT:
        return _of_conflict(table)
    hashed, handle = set(hashed_columns(table, rule)), set(table.handle_key)
    if not hashed:
        return ""
    names = ", ".join(table.columns[i].name for i in sorted(hashed))
    if not hashed <= handle:
        return (
            f"a row moves to another partition when {names} changes: "
            "readers must not continue with one partition alone, but all together by Resolved"
        )
    if hashed != handle:
        return ""  # a part of the handle key: all rows with the same part are on the same partition
    unique = [index.name for index in table.indexes if index.unique and not _is_handle(table, index.columns)]
    if unique:
        return (
            f"in addition to its key it has the unique key {', '.join(unique)}: two rows that "
            "exchange a value of it may be on different partitions, and only Resolved shows which came first"
        )
    return ""


def _of_conflict(table: TableSchema) -> str:
    if why := why_by_table(table):
        return f"all its rows go to one partition, as by table, because {why}"
    if not tracked_keys(table):
        return ""
    return (
        "where a row takes a unique value that another one has left, alignment marks are on all partitions: "
        "readers of single partitions must wait there for the others"
    )


UNREADABLE: Final = (
    "TiCDC's own consumer cannot read a topic with alignment marks: it stops at the first one "
    "('partition resolved ts fallback'), because a mark is a Resolved below those before it"
)
"""A limit of dispatch by conflict, for any table."""


APART: Final = (
    "its rows are in a topic of their own: a transaction that changes other tables as well is in several "
    "topics, a DDL is in its table's topic alone, and after a rename the rows are in another one: "
    "readers must not continue with one topic alone, but all together by Resolved"
)
"""A limit of a topic per table, whatever rule spreads its rows over partitions."""


IN_PIECES: Final = (
    "if it has more regions than region-threshold says, it is delivered in pieces, each a range of its keys: "
    "the changes of one row stay in commit order, those of two rows may not, until Resolved"
)
"""A limit of `enable-table-across-nodes` for a table whose changes would otherwise be in commit order."""


def _is_handle(table: TableSchema, offsets: tuple[int, ...]) -> bool:
    positions = {column.offset: i for i, column in enumerate(table.columns)}
    return {positions.get(offset, -1) for offset in offsets} == set(table.handle_key)
