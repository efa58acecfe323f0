"""The parts of a stream of changes that need no Spark session: options, frames, generic rows."""

from __future__ import annotations

import datetime
import json
import pickle
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from tidegate.access import TOKEN_FILE
from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.tables import patience, pieces
from tidegate.tables.capture_api import Api
from tidegate.tables.generic_rows import GENERIC, generic, text_of
from tidegate.tables.pieces import FRAME, between, complete, merged
from tidegate.tables.position import INITIAL, Position
from tidegate.tables.source import TidegateTables
from tidegate.tables.stream import ChangesReader, TaskPart
from tidegate.tables.stream_options import StreamOptions

Rows = list[dict[str, Any]]

TOKEN = "a-token-of-32-characters-0123456"
ONE = {"server": "127.0.0.1:8300", "tables": "shop.orders"}
HEAD = [("_tidegate_op", pa.string()), ("_tidegate_commit_ts", pa.int64()), ("_tidegate_seq", pa.int64())]
TYPED = pa.schema([*HEAD, ("id", pa.int64())])
ALL_TYPES = pa.schema(
    [
        *HEAD,
        ("tiny", pa.int8()),
        ("big", pa.decimal128(20, 0)),
        ("price", pa.decimal128(20, 10)),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("stamp", pa.timestamp("us", tz="UTC")),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("vector", pa.list_(pa.float32())),
    ]
)
INFO = {b"tidegate.schema": b"shop", b"tidegate.table": b"orders"}


def changes(*stamps: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [["insert"] * len(stamps), stamps, [2 * ts + 1 for ts in stamps], stamps], schema=TYPED
    )


def body(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def frame(n: int, batch: pa.RecordBatch) -> bytes:
    return FRAME.pack(n, len(body(batch))) + body(batch)


END = FRAME.pack(0, 0)


@contextmanager
def answering(*answers: bytes, status: str = "200 OK") -> Iterator[tuple[str, list[str]]]:
    """A server that gives each connection the next answer and closes it; its address and the requests."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection, connection.makefile("rb") as request:
                    head = b"".join(iter(request.readline, b"\r\n"))
                    length = re.search(rb"(?i)content-length: (\d+)", head)
                    asked.append((head + request.read(int(length[1]) if length else 0)).decode())
                    connection.sendall(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode() + answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        thread.join(10)


def reader(server: str = "127.0.0.1:8300", columns: pa.Schema = TYPED, **options: str) -> ChangesReader:
    given = StreamOptions.of({**ONE, "server": server, **options})
    return ChangesReader(given, from_arrow_schema(columns, prefer_timestamp_ntz=True))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_FILE, raising=False)
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.001)


def test_options_have_defaults_and_tables_an_order_of_their_own() -> None:
    found = StreamOptions.of({**ONE, "tables": " shop.b, shop.a,", "rows": "generic", "hold": "60"})
    assert found == StreamOptions(
        "127.0.0.1:8300", ("shop.a", "shop.b"), rows="generic", max_bytes=64 << 20, hold_s=60
    )
    assert StreamOptions.of(ONE | {"start-ts": "now"}).start_ts == 0
    assert StreamOptions.of(ONE | {"start-ts": "77"}).start_ts == 77


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start_ts": "5"}, "did you mean 'start-ts'"),
        ({"start-ts": "yesterday"}, "option start-ts is not a positive number"),
        ({"max-bytes": "0"}, "option max-bytes is not a positive number"),
        ({"rows": "type"}, "did you mean 'typed'"),
        ({"tables": " ,"}, "needs the option 'tables'"),
        ({"tables": "shop.a,shop.b"}, "typed rows are of one table, not of 2"),
    ],
)
def test_options_that_will_not_do_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        StreamOptions.of(ONE | options)


def test_options_of_reads_and_of_streams_do_not_mix() -> None:
    with pytest.raises(InvalidInput, match="'as_of' cannot be used with 'server'"):
        TidegateTables(ONE | {"as_of": "5"}).schema()
    with pytest.raises(InvalidInput, match="'tables' cannot be used with 'pd'"):
        TidegateTables({"pd": "127.0.0.1:2379", "tables": "shop.orders"}).schema()
    generic_rows = TidegateTables(ONE | {"rows": "generic"})
    assert generic_rows.schema().names == GENERIC.names
    with pytest.raises(InvalidInput, match="'server' is for streams"):
        generic_rows.reader(generic_rows.schema())
    with pytest.raises(InvalidInput, match="a stream needs the option 'server'"):
        TidegateTables({"pd": "127.0.0.1:2379", "table": "shop.orders"}).streamReader(generic_rows.schema())


def test_what_is_pickled_names_the_tokens_file_and_holds_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    monkeypatch.setenv(TOKEN_FILE, str(file))
    made = reader()
    with answering(b'{"reader": "r", "instance": "ab", "ts": 5}') as (server, asked):
        made = reader(server)
        assert made.latestOffset(INITIAL, ReadMaxBytes(1))["ts"] == 5
    assert f"Authorization: Bearer {TOKEN}" in asked[0]
    pickled = pickle.dumps(made)
    assert TOKEN.encode() not in pickled
    assert str(file).encode() in pickled
    again = pickle.loads(pickled)
    assert vars(again) == vars(made)


def test_the_first_batch_is_empty_and_makes_the_reader_once() -> None:
    made = b'{"reader": "default/nightly", "instance": "ab", "ts": 5}'
    with answering(made, made) as (server, asked):
        source = reader(server, **{"start-ts": "5", "max-kept": "1000"})
        ends = [source.latestOffset(INITIAL, ReadMaxBytes(1)) for _ in range(2)]
    assert ends[0] == ends[1]
    assert Position.of(ends[0]) == Position("default/nightly", "ab", 5, "shop.orders", "typed")
    bodies = [request.rpartition("\r\n")[2] for request in asked]
    assert bodies[0] == bodies[1]
    assert '"start_ts": 5' in bodies[0]
    assert '"max_kept": 1000' in bodies[0]
    assert source.initialOffset() == INITIAL
    assert source.partitions(INITIAL, ends[0]) == []
    assert source.partitions(ends[0], ends[0]) == []
    source.commit(INITIAL)


def test_a_trigger_of_what_is_available_keeps_its_first_target() -> None:
    at = Position("default/nightly", "ab", 5, "shop.orders", "typed")
    answers = [
        b'{"timestamp": 0, "logic_time": 9}',
        b'{"upto": 5, "readable": 5, "waits": ""}',
        b'{"upto": 8, "readable": 9, "waits": ""}',
        b'{"upto": 9, "readable": 20, "waits": ""}',
        b'{"upto": 9, "readable": 21, "waits": "paused"}',
    ]
    with answering(*answers) as (server, asked):
        source = reader(server, **{"after-ddl": "5"})
        source.prepareForTriggerAvailableNow()
        assert source.latestOffset(at.offset(5), ReadMaxBytes(7)) == at.offset(8)
        assert source.latestOffset(at.offset(8), ReadAllAvailable()) == at.offset(9)
        assert source.latestOffset(at.offset(9), ReadAllAvailable()) == at.offset(9)
    assert source.reportLatestOffset() == at.offset(21)
    _, *bodies = (json.loads(request.rpartition("\r\n")[2]) for request in asked)
    assert [body["target"] for body in bodies] == [9, 9, 9, 9]
    assert [body["max_bytes"] for body in bodies] == [7, 7, 0, 0]
    assert {(body["namespace"], body["instance"], body["after_ddl"]) for body in bodies} == {
        ("default", "ab", 5)
    }
    assert {request.split(" ")[1] for request in asked[1:]} == {"/api/v2/readers/nightly/latest"}


@pytest.mark.parametrize(
    ("options", "words"),
    [({"tables": "shop.other"}, "option tables"), ({"reader": "other"}, "option reader")],
)
def test_options_other_than_those_of_the_checkpoint_are_refused(options: dict[str, str], words: str) -> None:
    kept = Position("default/nightly", "ab", 5, "shop.orders", "typed").offset(7)
    with pytest.raises(InvalidInput, match=words):
        reader(**options).latestOffset(kept, ReadMaxBytes(1))


def test_an_offset_of_another_form_is_refused() -> None:
    for offset in ({"tidegate": 2, "ts": 5}, {"tidegate": 1, "ts": 5}, {}):
        with pytest.raises(Fatal, match="cannot read"):
            Position.of(offset)


def test_an_answer_that_breaks_off_is_asked_for_again_behind_what_was_read() -> None:
    first, second, third = frame(3, changes(5, 6)), frame(7, changes(8)), frame(9, changes(10, 12))
    with answering(first + second[:40], b"", second[:16], second + third + END[:15], END) as (server, asked):
        found = list(reader(server).read(TaskPart("T", 5, 10)))
    assert [row["id"] for batch in found for row in batch.to_pylist()] == [6, 8, 10]
    assert [request.split(" ")[1].rpartition("=")[2] for request in asked] == ["0", "3", "3", "3", "9"]
    assert all("Authorization: Ticket T\r\n" in request for request in asked)


def test_an_answer_that_never_comes_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(Retryable, match="no capture answers"):
        list(reader(address).read(TaskPart("T", 5, 10)))


def test_frames_out_of_order_are_no_answer() -> None:
    with pytest.raises(Fatal, match="frame 3 came after 3"):
        list(complete(lambda past: iter([(3, b""), (3, b"")])))


def test_a_frame_of_absurd_length_is_no_answer() -> None:
    with answering(struct.pack(">QQ", 1, 1 << 40)) as (server, _), pytest.raises(Fatal, match="a frame of"):
        list(reader(server).read(TaskPart("T", 5, 10)))


def test_a_refusal_has_the_servers_words() -> None:
    words = b'{"error_msg": "ALTER TABLE orders ADD x int", "error_code": "CDC:ErrAny"}'
    for refusal in (InvalidInput, Fatal):
        with (
            answering(words, status="400 Bad Request") as (server, _),
            pytest.raises(refusal, match="ALTER TABLE orders ADD x int"),
        ):
            Api(server, "").call("/readers", {}, refusal)
    with (
        answering(words, status="401 Unauthorized") as (server, _),
        pytest.raises(InvalidInput, match="ALTER"),
    ):
        Api(server, "").call("/readers", {}, Fatal)


def test_an_address_that_is_none_is_refused() -> None:
    for address in ("ftp://host:1", "host:port", "http://"):
        with pytest.raises(InvalidInput, match="option server is no address"):
            Api(address, "").call("/readers", {}, Fatal)


def test_rows_with_other_columns_than_the_query_end_it() -> None:
    other = changes(6).append_column("extra", pa.array([1]))
    with (
        answering(frame(1, other) + END) as (server, _),
        pytest.raises(Fatal, match=r"(?s)other columns than the query.*extra int64"),
    ):
        list(reader(server).read(TaskPart("T", 5, 10)))


def test_types_come_back_from_spark_as_they_were() -> None:
    assert reader(columns=ALL_TYPES)._schema.equals(ALL_TYPES)


def test_rows_outside_of_the_batch_are_dropped() -> None:
    batch = changes(4, 5, 6, 9, 10)
    assert between(batch, 4, 9).column("id").to_pylist() == [5, 6, 9]
    assert between(batch, 3, 10) is batch
    assert between(changes(), 3, 10).num_rows == 0


def test_small_pieces_are_merged_and_large_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MERGED_BYTES", 3 * changes(1).nbytes)
    small = [changes(n) for n in range(4)] + [changes(*range(10, 20)), changes(30)]
    assert [batch.num_rows for batch in merged(iter(small))] == [3, 11, 1]
    assert list(merged(iter([]))) == []


def _plain(value: Any, kind: pa.DataType) -> str | None:
    """One value as text, the slow way."""
    match value:
        case None:
            return None
        case bytes():
            return value.hex()
        case Decimal():
            return f"{value:f}"
        case list():
            return f"[{','.join(str(pa.scalar(item, kind.value_type).cast(pa.string())) for item in value)}]"
        case datetime.datetime():
            return f"{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}{'Z' if kind.tz else ''}"
        case datetime.date():
            return value.isoformat()
        case float():
            return str(pa.scalar(value, kind).cast(pa.string()))
        case _:
            return str(value)


def _generic_rows(batch: pa.RecordBatch) -> Rows:
    """A piece as generic rows, the slow way."""
    found = []
    kinds = {field.name: field.type for field in batch.schema}
    for row in batch.to_pylist():
        op, commit_ts, seq = (row.pop(name) for name, _ in HEAD)
        found.append(
            {
                "_tidegate_schema": "shop",
                "_tidegate_table": "orders",
                "_tidegate_op": op,
                "_tidegate_commit_ts": commit_ts,
                "_tidegate_seq": seq,
                "_tidegate_row": [(name, _plain(value, kinds[name])) for name, value in row.items()],
                "_tidegate_ddl": None,
            }
        )
    return found


singles = st.floats(width=32, allow_nan=False, allow_infinity=False)
moments = st.datetimes(datetime.datetime(1000, 1, 1), datetime.datetime(9999, 12, 31))
VALUES = {
    "_tidegate_op": st.sampled_from(["insert", "update", "delete"]),
    "_tidegate_commit_ts": st.integers(1, 1 << 61),
    "_tidegate_seq": st.integers(1, 1 << 62),
    "tiny": st.integers(-128, 127),
    "big": st.integers(0, 2**64 - 1).map(Decimal),
    "price": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-10)),
    "single": singles,
    "double": st.floats(allow_nan=False),
    "day": st.dates(datetime.date(1000, 1, 1)),
    "at": moments,
    "stamp": moments.map(lambda at: at.replace(tzinfo=datetime.UTC)),
    "name": st.text(max_size=8),
    "raw": st.binary(max_size=8),
    "vector": st.lists(singles, max_size=3),
}
rows = st.lists(
    st.fixed_dictionaries(
        {name: value if name.startswith("_") else st.none() | value for name, value in VALUES.items()}
    ),
    max_size=5,
)


@given(rows, st.integers(0, 3), st.integers(0, 3))
def test_generic_rows_are_those_of_the_slow_way(found: Rows, skip: int, width: int) -> None:
    whole = pa.RecordBatch.from_pylist(found, schema=ALL_TYPES.with_metadata(INFO))
    for batch in (whole, whole.slice(skip), whole.slice(skip, width)):
        made = generic(batch)
        made.validate(full=True)
        assert made.schema.equals(GENERIC)
        assert made.to_pylist() == _generic_rows(batch)


def test_values_have_the_texts_that_the_documentation_names() -> None:
    def text(value: Any, kind: pa.DataType) -> Any:
        return text_of(pa.array([value], kind)).to_pylist()[0]

    assert text(Decimal(0), pa.decimal128(20, 10)) == "0.0000000000"
    assert text(Decimal("-0.05"), pa.decimal128(4, 2)) == "-0.05"
    assert [text(value, pa.float64()) for value in (1.0, 0.1, 1e20)] == ["1", "0.1", "1e+20"]
    assert text(b"\x00\xff", pa.binary()) == "00ff"
    assert text([1.0, 0.5], pa.list_(pa.float32())) == "[1,0.5]"
    assert text(1709251199000000, pa.timestamp("us")) == "2024-02-29 23:59:59.000000"
    assert text(1709251199000000, pa.timestamp("us", tz="UTC")) == "2024-02-29 23:59:59.000000Z"


def test_a_statement_is_a_row_without_values() -> None:
    columns = {
        "_tidegate_schema": ["shop"],
        "_tidegate_table": ["orders"],
        "_tidegate_commit_ts": [7],
        "_tidegate_seq": [30],
        "_tidegate_ddl": ["ALTER TABLE orders ADD x int"],
    }
    statements = pa.RecordBatch.from_pydict(columns).replace_schema_metadata({b"tidegate.kind": b"ddl"})
    with answering(frame(1, changes(6).replace_schema_metadata(INFO)) + frame(2, statements) + END) as (
        server,
        _,
    ):
        [batch] = reader(server, GENERIC, rows="generic").read(TaskPart("T", 5, 10))
    assert batch.schema.equals(GENERIC)
    assert batch.to_pylist()[1] == {
        "_tidegate_schema": "shop",
        "_tidegate_table": "orders",
        "_tidegate_op": "ddl",
        "_tidegate_commit_ts": 7,
        "_tidegate_seq": 30,
        "_tidegate_row": None,
        "_tidegate_ddl": "ALTER TABLE orders ADD x int",
    }
