"""`spark.read.format("tidegate")`: a table of TiDB, as it was at one timestamp, as a typed DataFrame.

    from tidegate.tables.source import TidegateTables

    spark.dataSource.register(TidegateTables)
    spark.read.format("tidegate").options(pd="127.0.0.1:2379", table="shop.orders").load()

| option | meaning |
|---|---|
| `pd` | PD's address |
| `table` | SCHEMA.TABLE |
| `as_of` | a ts, or `latest` (default): now, when the DataFrame is made |
| `hold` | seconds that TiKV is asked to keep the history at `as_of`, from each action on; default 3600 |

A partition is one region's part of the table's keys. Its task reads it directly from TiKV, and the compiled
mounter decodes it; the types are those of Delta targets. All partitions, and all actions on one DataFrame,
have the same ts. A row that cannot be decoded ends the read with an error that names its key, because a
result without that row would be wrong and no one would notice.

With the option `server` instead of `pd` it is a stream of changes, which has its own options: see
`tidegate.tables.stream`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.values import nearest
from tidegate.errors import InvalidInput, Undecodable
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.tables.catalogue import SourceTable, hold, tables_at
from tidegate.tables.reader import SpanReader, schema_of, spans_of
from tidegate.tables.stream import ChangesReader, columns_of
from tidegate.tables.stream_options import STREAM_OPTIONS, StreamOptions

OPTIONS: Final = ("pd", "table", "as_of", "hold")
HOLD_S: Final = 3600


class Region(InputPartition):
    """The part of one task."""

    def __init__(self, span: Span) -> None:
        super().__init__(None)
        self.span = span


class TidegateTables(DataSource):
    """The data source; Spark creates one for each DataFrame."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._found: SourceTable | None = None
        self._hold_s = HOLD_S

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> StructType:
        if self._of_stream():
            return columns_of(StreamOptions.of(self.options))
        return from_arrow_schema(schema_of(self._table().parsed()))

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._of_stream():
            raise InvalidInput(
                "the option 'server' is for streams",
                where="spark.read",
                fix='use spark.readStream, or .options(pd="HOST:PORT", table="SCHEMA.TABLE")',
            )
        return TableReader(self._table(), self._hold_s)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if not self._of_stream():
            raise InvalidInput(
                "a stream needs the option 'server'",
                where="spark.readStream",
                fix='add .options(server="HOST:PORT", tables="SCHEMA.TABLE")',
            )
        return ChangesReader(StreamOptions.of(self.options), schema)

    def _of_stream(self) -> bool:
        """Whether a server is named. Raises InvalidInput for options that cannot be combined."""
        wanted, other = (STREAM_OPTIONS, OPTIONS) if self.options.get("server") else (OPTIONS, STREAM_OPTIONS)
        for given in self.options:
            if given.lower() in set(other) - set(wanted):
                known = self.options.get(wanted[0])
                raise InvalidInput(
                    f"the option '{given}' cannot be used with '{wanted[0]}'"
                    if known
                    else f"the option '{given}' needs the option '{other[0]}'",
                    where="format tidegate",
                    fix=nearest(given, wanted) if known else f'.option("{other[0]}", "HOST:PORT")',
                )
        return wanted is STREAM_OPTIONS

    def _table(self) -> SourceTable:
        """The table at its ts. It is looked up once, so that schema and rows have the same ts."""
        if self._found is None:
            address, name = self._option("pd"), self._option("table")
            for given in self.options:
                if given.lower() not in OPTIONS:
                    raise InvalidInput(
                        f"there is no option '{given}'", where="format tidegate", fix=nearest(given, OPTIONS)
                    )
            self._hold_s = _number("hold", self.options.get("hold", str(HOLD_S)))
            with PdClient(address) as pd:
                given = self.options.get("as_of", "latest")
                ts = pd.tso() if given == "latest" else _number("as_of", given)
                # Before the table is looked up, so that GC cannot remove its definition at `ts` meanwhile.
                hold(pd, ts, self._hold_s)
                self._found = tables_at(pd, ts, [name])[name]
        return self._found

    def _option(self, name: str) -> str:
        if not self.options.get(name):
            raise InvalidInput(
                f"format tidegate needs the option '{name}'",
                where="spark.read",
                fix='add .options(pd="HOST:PORT", table="SCHEMA.TABLE")',
            )
        return str(self.options[name])


class TableReader(DataSourceReader):
    """One partition per region; each is read independently."""

    def __init__(self, table: SourceTable, hold_s: int) -> None:
        self._table, self._hold_s = table, hold_s

    def partitions(self) -> list[InputPartition]:
        with PdClient(self._table.pd) as pd:
            # For each action again, because the hold of an earlier one may have ended.
            hold(pd, self._table.ts, self._hold_s)
            return [Region(span) for span in spans_of(pd, self._table.parsed())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Region)
        with PdClient(self._table.pd) as pd:
            reader = SpanReader(self._table, pd)
            for batch in reader.batches([partition.span]):
                # Before the batch is passed on, because it lacks that row.
                bad = reader.first_undecodable
                if bad is not None:
                    raise Undecodable(
                        f"a row of {self._table.parsed().name} cannot be decoded",
                        where=f"key {bad.key.hex()}, value of {len(bad.value)} bytes",
                        why=bad.why,
                        fix="repair the row in TiDB, or read at a ts before it was written",
                    )
                yield batch


def _number(name: str, text: Any) -> int:
    if not str(text).isdigit() or not int(text):
        raise InvalidInput(
            f"option {name} is not a positive number: '{str(text)[:40]}'",
            where="format tidegate",
            fix="give as_of a ts or 'latest', and hold a number of seconds",
        )
    return int(text)
