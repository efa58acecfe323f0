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
| `hold` | seconds that the server keeps the reader without hearing from it; default the server's |
| `after-ddl` | ts of a DDL that moved rows as a whole, when you have done the same at the target |

Typed rows have `_tidegate_op` (insert, update, delete), `_tidegate_commit_ts`, `_tidegate_seq` (grows with
every change of one row) and the table's columns: of a delete the old row, otherwise the new one. Generic rows
are `GENERIC`; how values become texts is said at `text_of`.

The server keeps what the query has not committed, so a batch that is read again has the same rows. The first
batch of a query is empty: its end is the reader's start. A change of a table's columns ends a typed query
behind the last row before it. A trigger `availableNow` reads all that was committed when it began.

Pieces come from `GET /readers/changes` as frames, all numbers big endian:

    8 bytes   n, which grows from frame to frame; 0 ends the answer
    8 bytes   length of the body
    length    an Arrow IPC stream

An answer that ends without the frame 0 is broken: the task asks again for what follows the last n it has.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidegate.access import TOKEN_FILE, Token
from tidegate.config.sink_uri import ROWS
from tidegate.config.values import nearest
from tidegate.errors import Fatal, InvalidInput, Retryable, cut
from tidegate.sink.reader.changes import COMMIT_TS, DDL, KIND, OWN_COLUMNS, SCHEMA_NAME, SEQ, TABLE_NAME
from tidegate.tls import Tls

LOG: Final = logging.getLogger(__name__)

STREAM_OPTIONS: Final = (
    "server",
    "tables",
    "rows",
    "start-ts",
    "reader",
    "token-file",
    "max-bytes",
    "max-kept",
    "hold",
    "after-ddl",
)
TYPED: Final = "typed"
MAX_BYTES: Final = 64 << 20
MERGED_BYTES: Final = 1 << 20
"""Small pieces go to Spark together: each batch costs it about a millisecond."""
NAMESPACE: Final = "default"

PATIENCE_S: Final = 300.0
"""How long a call is tried again while no server answers: a restart and a change of owner fit well within."""
FIRST_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0
TIMEOUT_S: Final = 60.0
"""Of one attempt: the server is silent."""
NEWS_MS: Final = 1000
"""How long the server waits for news. A query that is stopped waits for the call under way."""
WARN_S: Final = 60.0
LOGICAL_BITS: Final = 18
"""Of a ts, behind its milliseconds."""

HEAD: Final = OWN_COLUMNS.names
"""Columns in front of the table's own."""

GENERIC: Final = pa.schema(
    [
        ("_tidegate_schema", pa.string()),
        ("_tidegate_table", pa.string()),
        ("_tidegate_op", pa.string()),
        (COMMIT_TS, pa.int64()),
        ("_tidegate_seq", pa.int64()),
        ("_tidegate_row", pa.map_(pa.string(), pa.string())),
        ("_tidegate_ddl", pa.string()),
    ]
)
"""A row of any table. `_tidegate_op` is `ddl` where `_tidegate_ddl` is a statement and there is no row."""

FRAME: Final = struct.Struct(">QQ")
FRAME_BYTES_MAX: Final = 1 << 30
"""A longer body is no frame: the server makes them of 4 MiB, or of one row."""

INITIAL: Final = {"tidegate": 1}
"""Spark may ask for the initial offset again after a crash, so it must not depend on anything."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the user has set. Pickled to all executors: it names the token's file, never the token."""

    server: str
    tables: tuple[str, ...]
    rows: str = TYPED
    start_ts: int = 0
    """0: now."""
    reader: str = ""
    token_file: str = ""
    max_bytes: int = MAX_BYTES
    max_kept: int = 0
    """0: as the server has it, like `hold_s`."""
    hold_s: int = 0
    after_ddl: int = 0
    """0: none."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """Options of Spark, whose names are in lower case. Raises InvalidInput."""
        for given in options:
            if given.lower() not in STREAM_OPTIONS:
                raise _refused(f"there is no option '{given}'", nearest(given, STREAM_OPTIONS))
        tables = tuple(sorted({name.strip() for name in options.get("tables", "").split(",")} - {""}))
        rows = options.get("rows", TYPED)
        if not tables:
            raise _refused(
                "format tidegate needs the option 'tables'", 'give .option("tables", "shop.orders")'
            )
        if rows not in ROWS:
            raise _refused(f"option rows cannot be '{rows}'", nearest(rows, ROWS))
        if rows == TYPED and len(tables) > 1:
            raise _refused(
                f"typed rows are of one table, not of {len(tables)}",
                "start a query for each table, or set rows to generic",
            )
        start = options.get("start-ts", "now")
        return cls(
            server=options["server"],
            tables=tables,
            rows=rows,
            start_ts=0 if start == "now" else _number("start-ts", start),
            reader=options.get("reader", ""),
            token_file=options.get("token-file", "") or os.environ.get(TOKEN_FILE, ""),
            max_bytes=_number("max-bytes", options.get("max-bytes", str(MAX_BYTES))),
            max_kept=_number("max-kept", options["max-kept"]) if "max-kept" in options else 0,
            hold_s=_number("hold", options["hold"]) if "hold" in options else 0,
            after_ddl=_number("after-ddl", options["after-ddl"]) if "after-ddl" in options else 0,
        )

    def schema(self) -> StructType:
        """The query's columns; of typed rows the server knows them."""
        if self.rows != TYPED:
            return from_arrow_schema(GENERIC)
        wanted = {
            "name": self.reader,
            "tables": self.tables,
            "rows": self.rows,
            "start_ts": self.start_ts,
        }
        found = Api(self.server, self.token_file).call("/readers/columns", wanted, InvalidInput)
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["columns"])))
        return from_arrow_schema(columns)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query is: an offset of Spark behind the initial one."""

    reader: str
    """NAMESPACE/NAME"""
    instance: str
    ts: int
    tables: str
    rows: str

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position | None:
        """None for the initial offset. Raises Fatal for one that is not ours."""
        if offset == INITIAL:
            return None
        try:
            known = {name: offset[name] for name in ("reader", "instance", "ts", "tables", "rows")}
        except KeyError:
            known = {}
        if offset.get("tidegate") != INITIAL["tidegate"] or not known:
            raise Fatal(
                "the checkpoint holds an offset that this version cannot read",
                where=json.dumps(offset),
                fix="use the version that wrote it, or start with a new checkpoint",
            )
        return cls(**known)

    def offset(self, ts: int) -> dict[str, Any]:
        """The same reader at a ts."""
        return {
            **INITIAL,
            "reader": self.reader,
            "instance": self.instance,
            "ts": ts,
            "tables": self.tables,
            "rows": self.rows,
        }


class Piece(InputPartition):
    """The share of one task: its ticket opens nothing else."""

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
        """Of a trigger `availableNow`: no further; 0: there is no such end."""

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
            return self._created()
        self._check(at)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        until = time.monotonic() + PATIENCE_S
        while True:
            latest = self._latest(at, max_bytes)
            if latest["upto"] > at.ts or at.ts >= self._target:
                break
            if time.monotonic() > until:  # to end here would say that there is nothing up to the target
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
        return [Piece(part["ticket"], first.ts, last.ts) for part in plan["parts"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        api = Api(self._options.server, "")
        ready = self._checked if self._options.rows == TYPED else generic
        bodies = complete(lambda past: api.changes(partition.ticket, past))
        batches = (between(ready(batch), partition.start, partition.end) for batch in unpacked(bodies))
        return merged(batch for batch in batches if batch.num_rows)

    def commit(self, end: dict[str, Any]) -> None:
        at = Position.of(end)
        if at is not None:
            self._call(at, "commit", {"ts": at.ts})

    def _created(self) -> dict[str, Any]:
        """The reader's start. The name stays, so that a second call takes the reader of the first."""
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
        """Refuse options that are not those of the checkpoint: the reader would not follow them."""
        options = self._options
        name = at.reader.partition("/")[2]
        for option, wanted, kept in (
            ("tables", ",".join(options.tables), at.tables),
            ("rows", options.rows, at.rows),
            ("reader", options.reader or name, name),
        ):
            if wanted != kept:
                raise _refused(
                    f"the checkpoint was made with the option {option} '{kept}', not '{wanted}'",
                    "set the option as it was, or start with a new checkpoint",
                )

    def _warn(self, at: Position, waits: str) -> None:
        """Say now and then what a query waits for: nobody sees but that no rows come."""
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
        """The query's columns, for the server to compare with the table's; generic rows fit all tables."""
        if self._options.rows != TYPED:
            return ""
        return base64.b64encode(self._schema.serialize().to_pybytes()).decode()

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, if its columns are the query's. Raises Fatal."""
        if not batch.schema.equals(self._schema):
            raise Fatal(
                f"rows of {self._options.tables[0]} have other columns than the query",
                where=f"query: {_names(self._schema)}",
                why=f"rows: {_names(batch.schema)}",
                fix="load the DataFrame without a schema of your own, and restart the query",
            )
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)


class Api:
    """Calls to a capture's HTTP API, tried again for PATIENCE_S while nobody answers."""

    def __init__(self, server: str, token_file: str) -> None:
        scheme, found, address = server.rpartition("://")
        self._address, self._secure = address.rstrip("/"), scheme == "https"
        self._token_file = token_file
        if (found and scheme not in ("http", "https")) or not self._address:
            raise _refused(f"option server is no address: '{cut(server)}'", "give HOST:PORT")

    def call(
        self, path: str, body: dict[str, Any], refusal: type[InvalidInput] | type[Fatal]
    ) -> dict[str, Any]:
        """The answer to one POST. Raises `refusal` with the server's words, Retryable in the end."""
        token = Token.from_file(Path(self._token_file)) if self._token_file else None
        headers = {"Content-Type": "application/json", **(token.header if token else {})}

        def attempt() -> dict[str, Any]:
            with self._answer("POST", path, json.dumps(body), headers, refusal) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found

        return patiently(attempt)

    def changes(self, ticket: str, past: int) -> Iterator[tuple[int, bytes]]:
        """Frames behind `past`, from one attempt. Raises Retryable when they break off."""
        headers = {"Authorization": f"Ticket {ticket}"}
        with self._answer("GET", f"/readers/changes?past={past}", None, headers, Fatal) as answer:
            yield from frames(answer)

    def _answer(
        self,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
        refusal: type[InvalidInput] | type[Fatal],
    ) -> Answer:
        return Answer(self._address, self._secure, method, f"/api/v2{path}", body, headers, refusal)


def _connection(address: str) -> http.client.HTTPSConnection:
    """With the certificates that the environment names, if it does: `tidegate server --api-tls`."""
    tls = Tls.from_environment()
    context = None if tls is None else tls.http_client()
    return http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=context)


class Answer:
    """One request and the reading of its answer; leaving the block closes the connection."""

    def __init__(
        self,
        address: str,
        secure: bool,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
        refusal: type[InvalidInput] | type[Fatal],
    ) -> None:
        try:
            if secure:
                self._connection: http.client.HTTPConnection = _connection(address)
            else:
                self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        except http.client.InvalidURL as error:
            raise _refused(f"option server is no address: '{cut(address)}'", "give HOST:PORT") from error
        self._where, self._request, self._refusal = address, (method, path, body, headers), refusal

    def __enter__(self) -> Answer:
        try:
            self._connection.request(*self._request)
            self._response = self._connection.getresponse()
            status = self._response.status
            words = "" if status == 200 else _words(self._response.read(1 << 16))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._unavailable(error) from error
        if status == 200:
            return self
        self._connection.close()
        if status in (502, 503, 504):
            raise Retryable(words, where=self._where)
        # What was refused with another status never got as far as the reader.
        kind = self._refusal if status in (400, 500) else InvalidInput
        raise kind(words, where=f"{self._where}, status {status}")

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read(self, count: int | None = None) -> bytes:
        """The next `count` bytes, fewer only at the end. Raises Retryable."""
        try:
            return self._response.read(count)
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Retryable:
        return Retryable(
            "no capture answers",
            where=self._where,
            why=str(error) or type(error).__name__,
            fix="start one with `tidegate server`, or set the option server",
        )


class Patience:
    """Pauses that grow, until PATIENCE_S are over since the last success."""

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        """Begin again."""
        self._until, self._pause = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S

    def failed(self, error: Retryable) -> None:
        """Wait before the next attempt. Raises the error when there shall be none."""
        if time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_MAX_S)


def patiently(attempt: Callable[[], T]) -> T:
    """The result of an attempt that does not raise Retryable."""
    patience = Patience()
    while True:
        try:
            return attempt()
        except Retryable as error:
            patience.failed(error)


class Readable(Protocol):
    """Bytes that come from somewhere."""

    def read(self, count: int, /) -> bytes:
        """The next `count` bytes, fewer only at the end."""


def frames(answer: Readable) -> Iterator[tuple[int, bytes]]:
    """(n, body) of each frame until the one that ends them. Raises Retryable when it is missing."""
    while True:
        n, length = FRAME.unpack(_exactly(answer, FRAME.size))
        if n == 0:
            return
        if length > FRAME_BYTES_MAX:
            raise Fatal("the server's answer cannot be read", why=f"a frame of {length:,} bytes")
        yield n, _exactly(answer, length)


def _exactly(answer: Readable, count: int) -> bytes:
    found = answer.read(count)
    if len(found) < count:
        raise Retryable("the server's answer broke off", why=f"{len(found)} bytes came instead of {count}")
    return found


def complete(ask: Callable[[int], Iterable[tuple[int, bytes]]]) -> Iterator[bytes]:
    """Bodies of all frames, each once: after a break `ask` is called with the last n there was.

    Raises Retryable after PATIENCE_S without one more frame, Fatal for frames out of order.
    """
    past, patience = 0, Patience()
    while True:
        try:
            for n, body in ask(past):
                if n <= past:
                    raise Fatal("the server's answer cannot be read", why=f"frame {n} came after {past}")
                past = n
                yield body
                patience.succeeded()
            return
        except Retryable as error:
            patience.failed(error)


def unpacked(bodies: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """The batches of Arrow IPC streams."""
    for body in bodies:
        with pa.ipc.open_stream(body) as stream:
            yield from stream


def between(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Rows with start < commit ts <= end."""
    ts = batch.column(COMMIT_TS)
    wanted = pc.and_(pc.greater(ts, start), pc.less_equal(ts, end))
    return batch if pc.all(wanted).as_py() else batch.filter(wanted)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least MERGED_BYTES, except the last."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= MERGED_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def generic(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A piece, of rows or of DDL, as rows of GENERIC."""
    named = batch.schema.metadata or {}
    n = batch.num_rows
    if named.get(KIND) == DDL.encode():
        schemas, tables = batch.column("_tidegate_schema"), batch.column("_tidegate_table")
        op, commit_ts, seq = _repeated(DDL, n), batch.column(COMMIT_TS), batch.column(SEQ)
        rows, ddl = pa.nulls(n, GENERIC.field("_tidegate_row").type), batch.column("_tidegate_ddl")
    else:
        schemas, tables = _repeated(named[SCHEMA_NAME].decode(), n), _repeated(named[TABLE_NAME].decode(), n)
        op, commit_ts, seq = (batch.column(name) for name in HEAD)
        rows, ddl = maps_of(batch.drop_columns(HEAD)), pa.nulls(n, pa.string())
    return pa.RecordBatch.from_arrays([schemas, tables, op, commit_ts, seq, rows, ddl], schema=GENERIC)


def maps_of(table: pa.RecordBatch) -> pa.MapArray:
    """A map for each row, from each column's name to its value as text; null stays null."""
    width, n = table.num_columns, table.num_rows
    by_column = pa.concat_arrays([text_of(column) for column in table.columns])
    by_row = np.arange(width * n).reshape(width, n).T.ravel()
    names = pa.array(table.schema.names, pa.string()).take(pa.array(np.tile(np.arange(width), n)))
    ends = pa.array(np.arange(n + 1, dtype=np.int32) * np.int32(width))
    return pa.MapArray.from_arrays(ends, names, by_column.take(pa.array(by_row)))


def text_of(values: pa.Array) -> pa.Array:
    """Values as texts.

    Text, JSON, enum, set and time stay as they are. A decimal has all digits of its scale, a float the fewest
    that give it back (`1`, `0.1`, `1e+20`). A date is `2024-02-29`, a datetime `2024-02-29 23:59:59.000000`,
    a timestamp the same in UTC with a `Z`. Bytes are hex digits in lower case, which Spark's `unhex` takes
    back. A vector is `[1,0.5]`.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_binary(kind):
        return hex_of(values)
    if pa.types.is_decimal(kind):
        return digits_of(values)
    if pa.types.is_list(kind):
        return vectors_of(values)
    return values.cast(pa.string())


def digits_of(values: pa.Array) -> pa.Array:
    """Decimals without an exponent, which Arrow's own cast uses for small ones (0E-10)."""
    scale = values.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(values.type.precision, 0), len(values), values.buffers(), offset=values.offset
    ).cast(pa.string())
    if scale == 0:
        return whole
    minus = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    before, after = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(minus, before, ".", after, "")


_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
"""Two digits for each byte, as they lie in memory."""


def hex_of(values: pa.Array) -> pa.Array:
    """Bytes as hex digits: one look-up for all bytes of the column."""
    n = len(values)
    if n == 0:
        return pa.array([], pa.string())
    _, ends_buffer, data = values.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, n + 1, values.offset * 4)
    raw = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    digits = [None, pa.py_buffer((ends - ends[0]) * np.int32(2)), pa.py_buffer(_HEX[raw])]
    return pc.if_else(values.is_valid(), pa.Array.from_buffers(pa.string(), n, digits), None)


def vectors_of(values: pa.Array) -> pa.Array:
    """Lists of numbers as TiDB prints vectors."""
    items = pc.list_flatten(values).cast(pa.string())
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    ends = np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), items), ",")
    texts = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(values.is_valid(), texts, None)


def _repeated(text: str, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), n)


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _words(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error_msg"])
    except (ValueError, KeyError, TypeError):
        return "the answer is not one of a capture"


def _refused(what: str, fix: str) -> InvalidInput:
    return InvalidInput(what, where="format tidegate", fix=fix)


def _number(name: str, text: str) -> int:
    if not text.isdigit() or not int(text):
        raise _refused(f"option {name} is not a positive number: '{cut(text)}'", "give a number")
    return int(text)
