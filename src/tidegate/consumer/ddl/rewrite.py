"""Converts the rows of a table to its new columns, batch by batch, for the step `Rewrite`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.ddl.ddl_steps import REPEAT
from tidegate.consumer.table.convert import MOMENTS, Losses, to_target
from tidegate.consumer.table.definition import ROWID, Definition
from tidegate.consumer.table.modify import converted
from tidegate.errors import Fatal


class Rewriter:
    """Converts batches of a table's rows to its new columns."""

    def __init__(self, made: Definition, sources: Sequence[ddl_steps.Source], losses: Losses) -> None:
        self._made, self._sources, self._losses = made, sources, losses
        self._rows = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._made.arrow_schema
        arrays = [self._column(batch, source) for source in self._sources]
        if not self._made.keys:
            # A table that loses its key needs an id for each row from now on, otherwise equal rows would be
            # one.
            arrays.append(self._row_ids(batch))
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, batch: pa.RecordBatch, source: ddl_steps.Source) -> pa.Array:
        if source.taken is None:
            return (
                pa.nulls(batch.num_rows, source.column.type)
                if source.fill is None
                else pa.array([source.fill.as_py()], source.column.type).take(
                    pa.array(np.zeros(batch.num_rows, np.int64))
                )
            )
        held = batch.column(source.taken.name)
        if source.column.mysql_type in MOMENTS and pa.types.is_string(source.column.type) and held.null_count:
            raise Fatal(
                "a column with lost values becomes part of a key",
                where=f"table {self._made.name}, column {source.column.name}",
                why=f"{held.null_count} rows or more hold NULL there, for a date that no calendar knows",
                fix=REPEAT,
            )
        if source.change is not None:
            return converted(held, source.change, source.column, self._losses)
        if not source.taken.elems and source.column.elems:
            held = held.cast(pa.uint64())  # a guessed enum or set was stored as its number in text
        return to_target(held, source.column, "UTC", self._losses)

    def _row_ids(self, batch: pa.RecordBatch) -> pa.Array:
        if ROWID in batch.schema.names:
            return batch.column(ROWID).cast(pa.string())
        # Unique in the table: other ids begin with a partition's number, and no other DDL has this version.
        return pa.array(
            [f"ddl{self._made.version}-{self._rows + at}" for at in range(batch.num_rows)], pa.string()
        )
