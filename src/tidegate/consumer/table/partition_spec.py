"""The partition spec of a lakehouse table: by which of its columns the table's files are divided. Pure.

    shop.orders:region                     a partition for each value of a column
    shop.*:day(created_at),bucket(16, id)  transforms, as Iceberg names them; `bucket(id, 16)` is the same
    shop.tmp_*:                            not partitioned, although a later rule matches

The tables are named as at the source, with the wildcards of a table filter rule. The first rule that matches
a table gives its spec, which applies when the table is created and never changes. A spec is stored in the
table's own metadata, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tidegate.errors import InvalidInput
from tidegate.tidb.table_filter import TableFilter, lower

OPTION: Final = "--partition-by"
MEMBER: Final = "tidegate_partition_by"
"""The member of a TableInfo at the target that has the fields of its spec as text."""
WIDTH_MAX: Final = (1 << 31) - 1
"""The largest number of buckets, and the largest width: Iceberg stores both as an int."""
NOT_PARTITIONED: Final = "not partitioned"
_NAME: Final = r"(?:`(?:[^`]|``)+`|[^\W\d][\w$]*)"
_FIELD: Final = rf"(?:{_NAME}\s*\([^()`]*(?:`(?:[^`]|``)+`)?[^()`]*\)|{_NAME})"
_RULE: Final = re.compile(rf"\s*(.+?)\s*:\s*((?:{_FIELD}(?:\s*,\s*{_FIELD})*)?)\s*", re.DOTALL)
_ONE_FIELD: Final = re.compile(_FIELD)
_CALL: Final = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_NUMBER_FIRST: Final = re.compile(rf"\s*(\d+)\s*,\s*({_NAME})\s*")
_NUMBER_LAST: Final = re.compile(rf"\s*({_NAME})\s*,\s*(\d+)\s*")
_COLUMN: Final = re.compile(rf"\s*({_NAME})\s*")
_PLAIN: Final = re.compile(r"[^\W\d][\w$]*")


class Transform(StrEnum):
    """How a partition value comes from a column's value."""

    IDENTITY = "identity"
    BUCKET = "bucket"
    TRUNCATE = "truncate"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"


EVERY_TRANSFORM: Final = frozenset(Transform)
_WITH_NUMBER: Final = (Transform.BUCKET, Transform.TRUNCATE)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a spec: a column, and how its values are grouped."""

    column: str
    transform: Transform = Transform.IDENTITY
    width: int = 0
    """The number of buckets, or the width; 0 for the other transforms."""

    def __str__(self) -> str:
        name = self.column if _PLAIN.fullmatch(self.column) else f"`{self.column.replace('`', '``')}`"
        if self.transform is Transform.IDENTITY:
            return name
        return f"{self.transform}({self.width}, {name})" if self.width else f"{self.transform}({name})"


Spec: TypeAlias = tuple[PartitionField, ...]
"""The fields of a table in their order; empty: the table is not partitioned."""


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """One rule: tables of the source, and their spec at the target."""

    text: str
    tables: TableFilter
    spec: Spec

    @classmethod
    def of(cls, text: str) -> PartitionRule:
        """Parse `SCHEMA.TABLE:FIELD[,FIELD...]`; InvalidInput if it is malformed."""
        found = _RULE.fullmatch(text)
        if found is None or "." not in found[1] or text.lstrip().startswith("!"):
            raise _unreadable(text, "it is not the name of a table and columns, with ':' between them")
        spec = tuple(_field(text, one) for one in _ONE_FIELD.findall(found[2]))
        columns = [lower(field.column) for field in spec]
        if twice := next((name for at, name in enumerate(columns) if name in columns[:at]), ""):
            raise _unreadable(text, f"the column {twice} is in it twice")
        return cls(text, TableFilter([found[1]]), spec)


def spec_for(schema: str, table: str, rules: Iterable[PartitionRule]) -> Spec:
    """The spec of a source table, by the first rule that matches; empty: none."""
    return next((rule.spec for rule in rules if rule.tables.matches(schema, table)), ())


def in_words(spec: Spec) -> str:
    """A spec as the option has it, for people."""
    return ", ".join(map(str, spec)) or NOT_PARTITIONED


def without_specs(given: Iterable[str]) -> tuple[str, ...]:
    """The rules of a position (`Rules.given`) without those of this option."""
    return tuple(rule for rule in given if not rule.startswith(f"{OPTION} "))


def in_info(info: dict[str, Any], spec: Spec) -> dict[str, Any]:
    """A base table's TableInfo with the spec of its table at the target."""
    return info | {MEMBER: [str(field) for field in spec]}


def of_info(info: dict[str, Any], columns: Iterable[str]) -> Spec:
    """The spec that `in_info` has added."""
    return resolved(tuple(_field(text, text) for text in info.get(MEMBER, ())), columns)


def resolved(spec: Spec, columns: Iterable[str]) -> Spec:
    """The spec with the names of columns as the table spells them; unknown names stay as they are."""
    if not spec:
        return spec
    names = {lower(name): name for name in columns}
    return tuple(replace(field, column=names.get(lower(field.column), field.column)) for field in spec)


def same(one: Spec, other: Spec) -> bool:
    """Whether two specs are equal but for the case of names."""
    return [str(replace(f, column=lower(f.column))) for f in one] == [
        str(replace(f, column=lower(f.column))) for f in other
    ]


def misfit(spec: Spec, columns: Sequence[tuple[str, pa.DataType]]) -> str:
    """Why a table of these columns cannot have the spec, in words; empty if it can.

    `columns`: names and types at the target, including columns of the consumer's own.
    """
    types, taken = dict(columns), {lower(name) for name, _ in columns}
    for field in spec:
        if field.column not in types:
            return f"it has no column {field.column}: {', '.join(name for name, _ in columns)}"
        if why := _unsuited(field.transform, types[field.column]):
            return f"column {field.column} is {types[field.column]} at the target, and {why}"
        if field.transform is not Transform.IDENTITY and lower(field_name(field)) in taken:
            return f"the partition field {field_name(field)} has the name of a column"
    # Delta keeps these columns out of the data files, and readers expect at least one column there.
    if spec and types.keys() <= {one.column for one in spec if one.transform is Transform.IDENTITY}:
        return "each of its columns is a partition column, so that its files would have no columns"
    return ""


def field_name(field: PartitionField) -> str:
    """The name of a partition field in Iceberg, as Iceberg itself would give it."""
    if field.transform is Transform.IDENTITY:
        return field.column
    return f"{field.column}_{'trunc' if field.transform is Transform.TRUNCATE else field.transform}"


def _unsuited(transform: Transform, of_type: pa.DataType) -> str:
    """Why the values of a type cannot be grouped so; empty if they can."""
    numbers, texts = pa.types.is_integer(of_type) or pa.types.is_decimal(of_type), pa.types.is_string(of_type)
    moments = pa.types.is_timestamp(of_type)
    match transform:
        case Transform.IDENTITY:
            if moments and of_type.tz is not None:
                return "readers of a Delta table would take its text in their own time zones"
            fits = numbers or texts or moments or pa.types.is_date(of_type)
        case Transform.BUCKET:
            fits = numbers or texts or moments or pa.types.is_date(of_type) or pa.types.is_binary(of_type)
        case Transform.TRUNCATE:
            fits = numbers or texts or pa.types.is_binary(of_type)
        case Transform.HOUR:
            fits = moments
        case _:
            fits = moments or pa.types.is_date(of_type)
    return "" if fits else f"{transform} does not work with that type"


def _field(rule: str, text: str) -> PartitionField:
    found = _CALL.fullmatch(text.strip())
    if found is None:
        return PartitionField(_unquoted(text.strip()))
    name, inside = found[1].lower(), found[2]
    # Spark's and Iceberg's SQL also write `years`, `days` and so on.
    transform = next((one for one in Transform if name in (one, f"{one}s")), None)
    # The line above would accept `identitys`, which no SQL has.
    if transform is None or name == "identitys":
        raise _unreadable(rule, f"there is no transform {found[1]}")
    if transform in _WITH_NUMBER:
        if (first := _NUMBER_FIRST.fullmatch(inside)) is not None:
            width, column = int(first[1]), first[2]
        elif (last := _NUMBER_LAST.fullmatch(inside)) is not None:
            width, column = int(last[2]), last[1]
        else:
            raise _unreadable(rule, f"{transform} takes a number and a column")
        if not 1 <= width <= WIDTH_MAX:
            raise _unreadable(rule, f"the number of {transform} must be from 1 to {WIDTH_MAX}")
        return PartitionField(_unquoted(column), transform, width)
    if (one := _COLUMN.fullmatch(inside)) is None:
        raise _unreadable(rule, f"{transform} takes one column")
    return PartitionField(_unquoted(one[1]), transform)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _unreadable(text: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"the rule {text!r} of {OPTION} cannot be read",
        why=why,
        fix="write SCHEMA.TABLE:COLUMN[,COLUMN...], for example 'shop.orders:region'; columns of an Iceberg "
        "target may be bucket(16, id), truncate(4, name), year(at), month(at), day(at) or hour(at)",
    )
