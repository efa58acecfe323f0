"""A topic of one table that a test makes by hand: its columns, its key, its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.consumer.memory_topic import MemoryTopic
from tests.consumer.topics import Event, Mark, messages_of
from tidegate.codec.registry import codec_options
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, table_info

KEY_FLAGS = NOT_NULL | PRIMARY
CREATED = 100
Row = tuple[Value, ...]


@dataclass(frozen=True)
class OneTable:
    """shop.items, created at ts CREATED."""

    info: dict[str, Any]

    @classmethod
    def of(cls, columns: Sequence[ColumnSpec], elems: dict[str, Sequence[str]] | None = None) -> OneTable:
        """With a clustered primary key on the columns that carry its flag."""
        primary = [column.name for column in columns if column.flag & PRIMARY]
        info = table_info(70, "items", list(columns), primary)
        for column in info["cols"]:
            column["type"]["Elems"] = list((elems or {}).get(column["name"]["O"], ())) or None
        return cls(info)

    @property
    def schema(self) -> TableSchema:
        return table_schema("shop", self.info, CREATED)

    def created(self) -> DdlEvent:
        return DdlEvent(
            1, 0, CREATED - 1, CREATED, 3, "create table items (...)", "shop", "items", "shop", "items", 1,
            None, self.info, (70,), (),
        )  # fmt: skip

    def ddl(self, ts: int, action: int, query: str, after: dict[str, Any] | None) -> DdlEvent:
        return replace(
            self.created(), finished_ts=ts, action=action, query=query, before=self.info, after=after
        )

    def change(self, ts: int, old: Row | None, new: Row | None) -> RowChange:
        return RowChange(self.schema, ts, ts - 1, 70, 0, old, new)


def topic(
    events: Iterable[Event], protocol: str = "open-protocol", header: bool = True, partitions: int = 1
) -> MemoryTopic:
    """The events as messages; `header`: DDLs carry the header `tidegate-ddl`."""
    settings: dict[str, str | int | bool] = {"protocol": protocol}
    if protocol == "canal-json":
        settings["enable-tidb-extension"] = True
    options = codec_options(settings)
    messages = [
        (partition, message if header else replace(message, headers=()))
        for partition, message in messages_of(events, options, partitions)
    ]
    return MemoryTopic(options, partitions, messages)


__all__ = ["CREATED", "KEY_FLAGS", "Mark", "OneTable", "topic"]
