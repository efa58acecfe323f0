"""Refuses whatever would make a table's partition spec another one than the user asked for. Pure.

A spec applies when a table is created. Later it is only compared: with the rules at each start, and with what
a DDL makes of its columns. A refusal comes before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import pyarrow as pa

from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.table import partition_spec
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import (
    NOT_PARTITIONED,
    OPTION,
    PartitionRule,
    Spec,
    Transform,
    in_words,
)
from tidegate.errors import Fatal, InvalidInput
from tidegate.tidb.table_filter import lower

Name = tuple[str, str]
SpecOf = Callable[[Name], Spec]
"""The spec that the rules give a table, by its name at the target."""


def check_target(rules: Sequence[PartitionRule], transforms: AbstractSet[Transform], target: str) -> None:
    """InvalidInput if a target cannot divide its tables' files as the rules say.

    `transforms`: those that the target can use; none for a target without partition specs.
    """
    if rules and not transforms:
        raise InvalidInput(
            f"{OPTION} is for tables of files",
            where=f"{target}: {rules[0].text}",
            why="a database has partitions of its own, and the files of a change log follow the commits",
            fix="leave it out, or write --target delta:///directory or iceberg:///directory",
        )
    for rule in rules:
        for field in rule.spec:
            if field.transform not in transforms:
                raise InvalidInput(
                    f"this target cannot partition by {field}",
                    where=f"{target}: {OPTION} {rule.text}",
                    why="a Delta table is partitioned by the values of whole columns; a transform would need "
                    "a generated column, and the consumer writes none",
                    fix=f"name the column alone, {rule.text.partition(':')[0]}:{field.column}; or write "
                    "--target iceberg:///directory",
                )


def check_held(tables: Mapping[Name, Definition], spec_of: SpecOf, target: str) -> None:
    """InvalidInput if a table at the target has another spec than the rules give it."""
    for name, table in tables.items():
        given = spec_of(name)
        if not partition_spec.same(table.partition_by, given):
            raise InvalidInput(
                f"a table is not partitioned as {OPTION} says",
                where=f"{target}: table {table.name}",
                why=f"it was created with {in_words(table.partition_by)}, and is given {in_words(given)}: a "
                "spec applies only when a table is created",
                fix=_as_it_is(table) + ", or start a new target",
            )


def check_steps(
    steps: Sequence[ddl_steps.Step], spec_of: SpecOf, held: Mapping[Name, Definition], where: str
) -> None:
    """Fatal if a step needs a spec that its table cannot have, or would change a partition column.

    `held`: the tables before the first step. `where`: the DDL, for the error.
    """
    known = dict(held)
    for step in steps:
        match step:
            case ddl_steps.Create(made) | ddl_steps.Restore(made, _):
                _check_fits(made, where)
            case ddl_steps.Rename(schema, table, made):
                before, name = known.pop((schema, table)), (made.schema, made.table)
                _check_renamed(before, spec_of(name), made, where)
                # A later step may rename it again.
                known[name] = before
            case ddl_steps.Rewrite(made, sources, _):
                _check_columns(made, sources, where)
                _check_fits(made, where)


def _check_fits(made: Definition, where: str) -> None:
    columns: list[tuple[str, pa.DataType]] = [(field.name, field.type) for field in made.arrow_schema]
    if why := partition_spec.misfit(made.partition_by, columns):
        raise Fatal(
            "a table cannot be partitioned as asked for",
            where=where,
            why=f"{OPTION} gives it {in_words(made.partition_by)}, and {why}",
            fix=f"give the table another spec with a rule before that one, for example "
            f"{OPTION} '{made.name}:' for none, and start again",
        )


def _check_renamed(held: Definition, given: Spec, made: Definition, where: str) -> None:
    if not partition_spec.same(held.partition_by, given):
        raise Fatal(
            f"a table gets a name for which {OPTION} says something else",
            where=where,
            why=f"{held.name} was created with {in_words(held.partition_by)}, and the rules give {made.name} "
            f"{in_words(given)}",
            fix="add a rule that gives the new name the spec of the old one, and start again",
        )


def _check_columns(made: Definition, sources: Sequence[ddl_steps.Source], where: str) -> None:
    for field in made.partition_by:
        if why := _changed(field.column, sources):
            raise Fatal(
                "a partition column cannot be changed",
                where=where,
                why=f"the files of {made.name} are divided by {in_words(made.partition_by)}, and {why}",
                fix=f"start a new target with a {OPTION} that does without the column; or start again with "
                "--schema-changes ignore, which keeps the target's columns as they are where it can",
            )


def _changed(column: str, sources: Sequence[ddl_steps.Source]) -> str:
    """How a partition column changes, in words; empty if it stays."""
    wanted = lower(column)
    for source in sources:
        if source.taken is not None and lower(source.taken.name) == wanted:
            now = source.column
            if now.name != source.taken.name:
                return f"{source.taken.name} is renamed to {now.name}"
            # The partition values of the existing files were made from the old type.
            if now.type != source.taken.type:
                return f"{now.name} changes from {source.taken.type} to {now.type}"
            return ""
    return f"{column} is dropped"


def _as_it_is(table: Definition) -> str:
    """The advice to give a table the rule that it has."""
    fields = ",".join(map(str, table.partition_by))
    if not fields:
        return f"leave {OPTION} out for it, or give it '{table.name}:' before other rules ({NOT_PARTITIONED})"
    return f"give {OPTION} '{table.name}:{fields}' before other rules, with its name at the source"
