"""The statements of a DDL at the target: what each does, and whether it may run twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.consumer.applying.target import Name
from tidegate.consumer.mysql.literals import quoted
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.modify import Change
from tidegate.consumer.table.partitioning import Members


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A statement that may run twice."""

    text: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Creates a table that must not exist yet."""

    name: Name
    text: str


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE; `text` follows the table's name."""

    name: Name
    text: str


@dataclass(frozen=True, slots=True)
class RenameTable:
    """Gives a table another name."""

    old: Name
    new: Name


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Deletes the rows of partitions that upstream has dropped; may run twice, as no row comes in between."""

    name: Name
    members: Members


@dataclass(frozen=True, slots=True)
class SwapRows:
    """Exchanges the rows of partitions with all rows of `other`, in the transaction that notes it."""

    name: Name
    members: Members
    other: Name
    columns: tuple[TargetColumn, ...]
    validated: bool
    """Whether TiDB has checked that each row of `other` belongs to the partitions."""


@dataclass(frozen=True, slots=True)
class ExchangePartition:
    """ALTER TABLE .. EXCHANGE PARTITION, for tables that have their partitions at the target."""

    name: Name
    partition: str
    other: Name


@dataclass(frozen=True, slots=True)
class Recast:
    """Fill the column `new` with the values of `old` as TiDB converts them; may run twice."""

    name: Name
    old: str
    new: str
    change: Change


MAKES_SCHEMA: Final = "CREATE DATABASE IF NOT EXISTS"
Statement = (
    Repeatable | CreateTable | AlterTable | RenameTable | DeleteRows | SwapRows | ExchangePartition | Recast
)


def create_schema(
    name: str, options: str = "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
) -> Repeatable:
    """Creates a schema if it does not exist."""
    return Repeatable(f"{MAKES_SCHEMA} {quoted(name)} {options}")


def text_of(statement: Repeatable | CreateTable | AlterTable | RenameTable | ExchangePartition) -> str:
    """The SQL of a statement."""
    match statement:
        case Repeatable(text) | CreateTable(_, text):
            return text
        case AlterTable(name, text):
            return f"ALTER TABLE {qualified(*name)} {text}"
        case RenameTable(old, new):
            return f"RENAME TABLE {qualified(*old)} TO {qualified(*new)}"
        case ExchangePartition(name, partition, other):
            # Never WITHOUT VALIDATION: the server looks for a row only in the partition of its values, so an
            # UPDATE or DELETE of the topic would not find a row that is in another one.
            exchange = f"EXCHANGE PARTITION {quoted(partition)} WITH TABLE {qualified(*other)}"
            return f"ALTER TABLE {qualified(*name)} {exchange}"
