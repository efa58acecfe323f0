"""`spark.readStream.format("tidegate")`: the changes of tables as a streaming DataFrame.

    spark.readStream.format("tidegate").options(server="127.0.0.1:8300", tables="shop.orders").load()

| option | meaning |
|---|---|
| `server` | HOST:PORT of a capture's API |
| `tables` | SCHEMA.TABLE, several with commas between |
| `rows` | `typed` (default): one table, its columns in their types. `generic`: any tables, and their DDL |
| `start-ts` | changes after this ts, or `now` (default): from the query's first start |
| `reader` | the name of the reader that the server keeps; default `reader-` and 8 hex digits |
| `token-file` | the file that holds the API's token; default TIDEGATE_TOKEN_FILE |
| `max-bytes` | bytes of changes in one batch, unless the trigger wants all; default 64 MiB |
| `max-kept` | bytes of changes that the server keeps for the query at most; default the server's |
| `hold` | seconds that the server keeps the reader without a call from it; default the server's |
| `after-ddl` | ts of a DDL that moved rows as a whole, when you have done the same at the target |

Typed rows have `_tidegate_op` (insert, update, delete), `_tidegate_commit_ts`, `_tidegate_seq` (grows with
every change of one row) and the table's columns: the old row for a delete, otherwise the new one. Generic
rows are `generic_rows.GENERIC`; `generic_rows.text_of` says how values become texts.

The server keeps changes until the query has committed them, so a batch that is read again has the same rows.
The first batch of a query is empty: its end is the reader's start. A change of a table's columns ends a typed
query after the last row before it. A trigger `availableNow` reads all that was committed when it began.
"""

from __future__ import annotations

import base64
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.tables.capture_api import Api
from tidegate.tables.generic_rows import GENERIC, generic
from tidegate.tables.patience import PATIENCE_S
from tidegate.tables.pieces import between, complete, merged, unpacked
from tidegate.tables.position import INITIAL, Position
from tidegate.tables.stream_options import TYPED, StreamOptions, refused

LOG: Final = logging.getLogger(__name__)

NAMESPACE: Final = "default"
NEWS_MS: Final = 1000
"""Milliseconds for which the server waits for news. Stopping a query waits for the running call."""
WARN_S: Final = 60.0
LOGICAL_BITS: Final = 18
"""Bits of a ts after its milliseconds."""


def columns_of(options: StreamOptions) -> StructType:
    """The query's columns; for typed rows the server returns them. Raises InvalidInput."""
    if options.rows != TYPED:
        return from_arrow_schema(GENERIC)
    wanted = {
        "name": options.reader,
        "tables": options.tables,
        "rows": options.rows,
        "start_ts": options.start_ts,
    }
    found = Api(options.server, options.token_file).call("/readers/columns", wanted, InvalidInput)
    columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["columns"])))
    return from_arrow_schema(columns)


class TaskPart(InputPartition):
    """The part of one task; its ticket gives access to nothing else."""

    def __init__(self, ticket: str, start: int, end: int) -> None:
        super().__init__(None)
        self.ticket, self.start, self.end = ticket, start, end


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's view of its reader. Tasks have a copy of it, made before the query has begun."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._name = options.reader
        self._readable: dict[str, Any] | None = None
        self._warned_at = float("-inf")
        self._target = 0
        """The last ts to read for a trigger `availableNow`; 0: there is none."""

    def initialOffset(self) -> dict[str, Any]:
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        now = Api(self._options.server, self._options.token_file).call("/tso", {}, InvalidInput)
        self._target = (int(now["timestamp"]) << LOGICAL_BITS) + int(now["logic_time"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = Position.of(start)
        if at is None:
            # Here and not in `initialOffset`: Spark writes this offset into the checkpoint before it reads
            # rows, so a restart finds the reader that was created.
            return self._created()
        self._check(at)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        until = time.monotonic() + PATIENCE_S
        while True:
            latest = self._latest(at, max_bytes)
            # Without a target nothing new is an answer: Spark asks again.
            if latest["upto"] > at.ts or at.ts >= self._target:
                break
            if time.monotonic() > until:  # returning now would claim that there is nothing up to the target
                raise Retryable(
                    f"the changes up to ts {self._target} have not come",
                    where=f"reader {at.reader}, which has them up to {latest['readable']}",
                    why=latest["waits"] or "its changefeed is behind",
                    fix="see `tidegate changefeed query`, and start the query again",
                )
        self._warn(at, latest["waits"])
        self._readable = at.offset(latest["readable"])
        return at.offset(latest["upto"])

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._readable

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Position.of(start), Position.of(end)
        if first is None or last is None or first == last:
            return []
        plan = self._call(last, "plan", {"start": first.ts, "end": last.ts, "columns": self._columns()})
        return [TaskPart(part["ticket"], first.ts, last.ts) for part in plan["parts"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPart)
        # Without the token: executors get a ticket, which opens nothing but this part.
        api = Api(self._options.server, "")
        ready = self._checked if self._options.rows == TYPED else generic
        bodies = complete(lambda past: api.changes(partition.ticket, past))
        # A piece may reach beyond the batch at both ends, because pieces are cut by size and not by ts.
        batches = (between(ready(batch), partition.start, partition.end) for batch in unpacked(bodies))
        return merged(batch for batch in batches if batch.num_rows)

    def commit(self, end: dict[str, Any]) -> None:
        at = Position.of(end)
        if at is not None:
            # The server may delete the changes from now on: Spark asks only for later ones once its log has
            # the batch.
            self._call(at, "commit", {"ts": at.ts})

    def _created(self) -> dict[str, Any]:
        """Create the reader, and return its start. The name stays, so a second call gets the same reader."""
        options = self._options
        self._name = self._name or f"reader-{secrets.token_hex(4)}"
        wanted: dict[str, Any] = {
            "name": self._name,
            "namespace": NAMESPACE,
            "tables": options.tables,
            "rows": options.rows,
            "start_ts": options.start_ts,
        }
        wanted |= {"hold_s": options.hold_s} if options.hold_s else {}
        wanted |= {"max_kept": options.max_kept} if options.max_kept else {}
        made = Api(options.server, options.token_file).call("/readers", wanted, InvalidInput)
        name = made["reader"] if "/" in made["reader"] else f"{NAMESPACE}/{made['reader']}"
        at = Position(name, made["instance"], made["ts"], ",".join(options.tables), options.rows)
        return at.offset(at.ts)

    def _check(self, at: Position) -> None:
        """Refuse options that differ from those of the checkpoint, because the reader would ignore them."""
        options = self._options
        name = at.reader.partition("/")[2]
        for option, wanted, kept in (
            ("tables", ",".join(options.tables), at.tables),
            ("rows", options.rows, at.rows),
            ("reader", options.reader or name, name),
        ):
            if wanted != kept:
                raise refused(
                    f"the checkpoint was made with the option {option} '{kept}', not '{wanted}'",
                    "set the option as it was, or start with a new checkpoint",
                )

    def _warn(self, at: Position, waits: str) -> None:
        """Log every `WARN_S` why a query waits: otherwise the user sees only that no rows come."""
        if waits and time.monotonic() - self._warned_at >= WARN_S:
            self._warned_at = time.monotonic()
            LOG.warning("reader %s waits: %s", at.reader, waits)

    def _latest(self, at: Position, max_bytes: int) -> dict[str, Any]:
        wanted = {
            "start": at.ts,
            "max_bytes": max_bytes,
            "target": self._target,
            "columns": self._columns(),
            "wait_ms": NEWS_MS,
        }
        return self._call(at, "latest", wanted)

    def _call(self, at: Position, verb: str, wanted: dict[str, Any]) -> dict[str, Any]:
        namespace, _, name = at.reader.partition("/")
        known = {"namespace": namespace, "instance": at.instance, "after_ddl": self._options.after_ddl}
        api = Api(self._options.server, self._options.token_file)
        return api.call(f"/readers/{quote(name, safe='')}/{verb}", known | wanted, Fatal)

    def _columns(self) -> str:
        """The query's columns, for the server to compare with the table's; empty for generic rows."""
        if self._options.rows != TYPED:
            return ""
        return base64.b64encode(self._schema.serialize().to_pybytes()).decode()

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, if its columns are the query's. Raises Fatal otherwise."""
        if not batch.schema.equals(self._schema):
            raise Fatal(
                f"rows of {self._options.tables[0]} have other columns than the query",
                where=f"query: {_names(self._schema)}",
                why=f"rows: {_names(batch.schema)}",
                fix="load the DataFrame without a schema of your own, and restart the query",
            )
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
