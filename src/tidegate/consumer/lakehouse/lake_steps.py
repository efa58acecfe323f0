"""The steps of a DDL on tables as files: what each does to the rows, and to what is known of the tables.

Each step is one commit per table, or none. `LakeTarget.recover` undoes steps that no snapshot names, so a DDL
that was interrupted is executed again from its first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.applying.target import Name
from tidegate.consumer.ddl import ddl_plan, ddl_steps
from tidegate.consumer.ddl.ddl_steps import REPEAT, Dropped
from tidegate.consumer.ddl.rewrite import Rewriter
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.lake import Lake
from tidegate.consumer.table import partition_spec
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partitioning import Members
from tidegate.errors import Fatal


@dataclass(slots=True)
class Table:
    """One table of the target as the writer knows it."""

    definition: Definition
    path: str
    version: int
    number: int = 0
    """The number of its definition's file, stored next to the data; 0 when it is not stored yet."""
    grown: bool = False
    """Whether rows were written since the last check whether to compact it."""


class LakeSteps:
    """Executes the steps of DDLs on the tables of one target."""

    def __init__(self, lake: Lake, tables: dict[Name, Table], files: DefinitionFiles, stats: Stats) -> None:
        """`tables`: the target's own, which steps change."""
        self._lake, self._tables, self._files, self._stats = lake, tables, files, stats

    def execute(self, step: ddl_steps.Step) -> None:
        """Execute one step."""
        match step:
            case ddl_steps.Create(made):
                self._create(made)
            case ddl_steps.Drop(schema, table):
                self._drop((schema, table))
            case ddl_steps.Rename(schema, table, made):
                self._rename((schema, table), made)
            case ddl_steps.Rewrite(made, sources, in_place):
                self._rewrite(made, sources, in_place)
            case ddl_steps.Redefine(made, _):
                self._know(self._tables[made.schema, made.table], made)
            case ddl_steps.Prune(schema, table, members):
                self._prune(self._tables[schema, table], members)
            case ddl_steps.Exchange(schema, table, members, other, validated):
                self._exchange(self._tables[schema, table], members, other, validated=validated)
            case ddl_steps.Restore(made, dropped):
                self._restore(made, dropped)
            case ddl_steps.Nothing(_):
                pass
            case ddl_steps.Replay():
                raise AssertionError("files run no SQL")
            case ddl_steps.Refuse(why):
                raise AssertionError(f"refused before any step: {why}")

    def _create(self, made: Definition) -> Table:
        # TRUNCATE is a create over the old table, and a repeated create must begin empty.
        self._drop((made.schema, made.table))
        path = self._lake.make(made.schema, made.table, made.arrow_schema, made.partition_by)
        table = Table(made, path, self._lake.version(path))
        self._tables[made.schema, made.table] = table
        self._know(table, made)
        return table

    def _drop(self, name: Name) -> None:
        held = self._tables.pop(name, None)
        if held is not None:
            self._lake.vanish(held.path)

    def _rename(self, old: Name, made: Definition) -> None:
        held = self._tables.pop(old)
        # The definition follows only if the columns are the same; otherwise a later step of the DDL
        # rewrites the table and stores it.
        path = self._lake.move(held.path, made.schema, made.table)
        self._tables[made.schema, made.table] = Table(held.definition, path, self._lake.version(path))
        if held.definition.arrow_schema == made.arrow_schema:
            self._know(self._tables[made.schema, made.table], made)

    def _rewrite(self, made: Definition, sources: Sequence[ddl_steps.Source], in_place: bool) -> None:
        table, columns = self._tables[made.schema, made.table], made.arrow_schema
        if in_place:
            self._lake.add_null_columns(table.path, columns)
        elif not self._lake.evolve(table.path, columns, sources):
            rewriter = Rewriter(made, sources, self._stats.losses)
            self._lake.replace(table.path, columns, (rewriter(batch) for batch in self._rows_of(table)))
        table.version = self._lake.version(table.path)
        self._know(table, made)

    def _rows_of(self, table: Table) -> Iterator[pa.RecordBatch]:
        return self._lake.batches(table.path, table.definition.arrow_schema)

    def _prune(self, table: Table, members: Members) -> None:
        schema = table.definition.arrow_schema
        stay = (b.filter(pc.invert(members.mask(b))) for b in self._rows_of(table))
        self._lake.replace(table.path, schema, stay)
        table.version = self._lake.version(table.path)

    def _exchange(self, table: Table, members: Members, made: Definition, *, validated: bool) -> None:
        """Swap the rows of some partitions with those of another table.

        Both tables are read as they were before, whichever is written first.
        """
        other = self._tables[made.schema, made.table]
        if not validated and not self._all_in(other, members):
            self._know(table, ddl_plan.misplaced(table.definition))
        schema = table.definition.arrow_schema
        # `batches` takes the list of a table's files when it is called, so all three readers see the rows
        # from before the exchange, however late they are read.
        old, leaving, come = self._rows_of(table), self._rows_of(table), self._rows_of(other)
        stay = (b.filter(pc.invert(members.mask(b))) for b in old)
        leave = (b.filter(members.mask(b)) for b in leaving)
        self._lake.replace(table.path, schema, chain(stay, (b.select(schema.names) for b in come)))
        # If the process dies between the two commits, some rows are in both tables or in none. No snapshot
        # names that state, and `recover` undoes it.
        self._lake.replace(other.path, made.arrow_schema, (b.select(made.arrow_schema.names) for b in leave))
        for written in (table, other):
            written.version = self._lake.version(written.path)
        self._know(other, made)

    def _all_in(self, table: Table, members: Members) -> bool:
        """Whether each row of a table belongs to one of these partitions."""
        return all(pc.all(members.mask(batch), min_count=0).as_py() for batch in self._rows_of(table))

    def _restore(self, made: Definition, dropped: Dropped) -> None:
        """Bring a dropped table back. Fatal when the kept rows have other columns than the DDL says, or are
        partitioned otherwise than the rules say.
        """
        kept_spec = self._lake.partition_spec(dropped.path, dropped.version)
        if not partition_spec.same(kept_spec, made.partition_by):
            raise Fatal(
                "a table that comes back is not partitioned as the rules say",
                where=f"table {made.name}",
                why=f"it was created with {partition_spec.in_words(kept_spec)}, and is given "
                f"{partition_spec.in_words(made.partition_by)}",
                fix=f"give it the first spec with {partition_spec.OPTION}, and start again",
            )
        # Moved before its columns are compared, because only the restored version shows them. A Fatal below
        # leaves nothing behind: no snapshot names the table, so `recover` undoes the move.
        path = self._lake.move(dropped.path, made.schema, made.table, dropped.version)
        table = Table(made, path, self._lake.version(path))
        if not self._lake.holds(path, made.arrow_schema):
            kept, now = ", ".join(self._lake.columns(path)), ", ".join(made.arrow_schema.names)
            raise Fatal(
                "a table that comes back has other columns than it had at the target",
                where=f"table {made.name}",
                why=f"kept: {kept}; now: {now}",
                fix=REPEAT,
            )
        self._tables[made.schema, made.table] = table
        self._know(table, made)

    def _know(self, table: Table, made: Definition) -> None:
        """Store the definition next to the data, durable before any snapshot that needs it."""
        table.definition = made
        if made.guessed:
            self._stats.guessed[made.name] = made.guessed
        table.number = self._files.keep(table.path, made)
