"""A topic of canal-json messages that goes into MariaDB: the tables, the messages, the servers, the consumer.

`topic_to_database`, `visibility` and `giant_at_targets` measure with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
from benchmarks.broker import PARTITIONS, delete_topic, new_topic
from benchmarks.consumer_probe import FOLDER
from benchmarks.to_database import info_of, rows_of
from benchmarks.to_delta import READY_S, messages
from confluent_kafka import Producer
from tools.processes import Child

from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import codec_options, marks
from tidegate.config.settings import DispatchRule
from tidegate.consumer.engine.position import Position
from tidegate.consumer.mysql.lanes import lane_of
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.table.definition import Definition, from_info
from tidegate.dispatcher.kernels import partition_block
from tidegate.model.block import ENTRY_SCHEMA, OP_DELETE, OP_PUT
from tidegate.model.ddl import DdlEvent
from tidegate.model.timestamp import compose
from tidegate.mounter.decode import MountOptions, mount
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys, record
from tidegate.tidb.table_info import table_schema

SERVICES: Final = Path(__file__).parents[1] / "tools" / "services"
RULE: Final = DispatchRule(partition="index-value")
BAG_RULE: Final = DispatchRule(partition="table")
"""For tables without a key."""
PROTOCOL: Final = {"protocol": "canal-json", "enable-tidb-extension": "true"}
SCHEMA: Final = "bench"
CREATE_TABLE: Final = 3
BLOCK: Final = 50_000
"""The number of changes between two marks."""
ROWS_A_TXN: Final = 50
VALUES: Final = 10_000
"""The number of different rows, apart from their keys."""
POLL_S: Final = 0.05
READING_S: Final = 0.25
PATIENCE_S: Final = 600.0

Ints = npt.NDArray[np.int64]
Placed = tuple[int, bytes | None, bytes]
"""Partition, key and value of a message."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services that the consumer reads from and writes to."""

    bootstrap: str
    broker_pid: int
    server: MySqlServer
    server_pid: int


@dataclass(frozen=True, slots=True)
class Part:
    """Changes of one kind, over all tables."""

    kind: str
    """insert, update or delete."""
    handles: Ints
    rows_a_txn: int = ROWS_A_TXN


class Tables:
    """The tables and their rows: as entries of a change log, as messages, and as Arrow."""

    def __init__(self, count: int, *, keyed: bool = True) -> None:
        """`keyed`: False for tables without a key, which have each row many times."""
        self.names = _of_each_lane(count)
        self.ids = [100 + at for at in range(count)]
        self.keyed, of = keyed, info_of if keyed else _bag_of
        self.infos = [of(name) | {"id": at} for name, at in zip(self.names, self.ids, strict=True)]
        self.made: list[Definition] = [from_info(SCHEMA, info, 1) for info in self.infos]
        self._rows = rows_of(0, VALUES).drop_columns(["id"])
        parsed = table_schema(SCHEMA, self.infos[0], 1)
        stored = rows_of(0, VALUES) if keyed else self._rows
        columns = [column.to_pylist() for column in stored.columns]
        self._values = pa.array(
            [record.encode(parsed, row, row_id=1)[1] for row in zip(*columns, strict=True)], pa.binary()
        )
        self._store = SchemaStore.from_meta(self._meta(), 1)

    def _meta(self) -> Iterator[tuple[bytes, bytes]]:
        for table_id, info in zip(self.ids, self.infos, strict=True):
            yield keys.meta_hash(b"DB:1", b"Table:%d" % table_id), orjson.dumps(info)
        names = {"O": SCHEMA, "L": SCHEMA}
        yield keys.meta_hash(b"DBs", b"DB:1"), orjson.dumps({"id": 1, "db_name": names, "state": 5})

    def of(self, number: int, handles: Ints) -> Ints:
        """The handles of the rows that are in this table."""
        mine: Ints = handles[handles % len(self.names) == number]
        return mine

    def rows(self, handles: Ints) -> pa.Table:
        """The rows as they are inserted, in the types of the target."""
        found = self._rows.take(pa.array(handles % VALUES))
        return found.add_column(0, "id", pa.array(handles))

    def block(self, number: int, part: Part, begin_ts: int) -> pa.RecordBatch:
        """A block of entries of one table, with commit timestamps from `begin_ts` on."""
        handles, count = part.handles, len(part.handles)
        ts = begin_ts + 2 * (np.arange(count) // part.rows_a_txn).astype(np.uint64)
        at, nothing = handles % VALUES, pa.array([b""] * count, pa.binary())
        old = nothing if part.kind == "insert" else self._values.take(pa.array(at))
        new = (at + 1) % VALUES if part.kind == "update" else at
        columns = [
            pa.array(ts, pa.uint64()),
            pa.array(ts - np.uint64(1), pa.uint64()),
            pa.array(np.full(count, OP_DELETE if part.kind == "delete" else OP_PUT, dtype=np.uint8)),
            pa.array([keys.int_record(self.ids[number], handle) for handle in handles.tolist()], pa.binary()),
            nothing if part.kind == "delete" else self._values.take(pa.array(new)),
            old,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)

    def ddl(self, number: int, ts: int) -> DdlEvent:
        """The CREATE TABLE of one of the tables."""
        name, info, table_id = self.names[number], self.infos[number], self.ids[number]
        return DdlEvent(
            job_id=table_id,
            seq=0,
            start_ts=ts - 1,
            finished_ts=ts,
            action=CREATE_TABLE,
            query=f"CREATE TABLE {SCHEMA}.{name} (...)",
            schema=SCHEMA,
            table=name,
            old_schema=SCHEMA,
            old_table=name,
            schema_version=table_id,
            before=None,
            after=info,
            added_ids=(table_id,),
            removed_ids=(),
        )

    def mounted(self, number: int, part: Part, begin_ts: int) -> list[Any]:
        """The block, mounted as in a changefeed."""
        options = MountOptions(force_replicate=not self.keyed)
        found, bad = mount(self.block(number, part, begin_ts), self._store, options)
        assert not bad, bad[0].why
        return found


def _bag_of(name: str) -> dict[str, Any]:
    """TiDB's description of a table without a key: the other columns."""
    made = info_of(name)
    columns = [column | {"offset": at} for at, column in enumerate(made["cols"][1:])]
    return made | {"cols": columns, "pk_is_handle": False}


def _of_each_lane(lanes: int) -> list[str]:
    """Names of tables, one for each lane."""
    found: dict[int, str] = {}
    for at in range(10_000):
        name = f"t{at}"
        found.setdefault(lane_of(SCHEMA, name, lanes), name)
        if len(found) == lanes:
            break
    return [found[lane] for lane in range(lanes)]


class Topic:
    """A topic that is filled while a reader waits."""

    def __init__(self, bootstrap: str, tables: Tables) -> None:
        self.bootstrap, self.name, self.tables = bootstrap, new_topic(bootstrap), tables
        self.options = codec_options(PROTOCOL)
        self.ts = compose(int(time.time() * 1000) - 3_600_000)
        self.messages = self.bytes = 0
        self._marks = marks(self.options)
        self._producer = self._new_producer()

    @property
    def uri(self) -> str:
        """The URI for `--source`."""
        settings = "&".join(f"{name}={value}" for name, value in PROTOCOL.items())
        return f"kafka://{self.bootstrap}/{self.name}?{settings}"

    def create_tables(self) -> None:
        """Write the tables' DDLs, and a mark after them."""
        for number in range(len(self.tables.names)):
            self.ts += 2
            message = self._marks.encode_ddl(self.tables.ddl(number, self.ts))
            assert message is not None
            for partition in range(PARTITIONS if self._marks.ddl_to_all_partitions() else 1):
                headers = list(message.headers)
                self._producer.produce(self.name, message.value, message.key, partition, headers=headers)
        self.mark()

    def fill(self, parts: Sequence[Part]) -> int:
        """Write the parts in blocks, one kind after another, with a mark after each round. Returns the last
        mark's ts.
        """
        for made in self.rounds(parts, -(-sum(len(part.handles) for part in parts) // BLOCK)):
            self.send(made)
        return self.ts

    def rounds(self, parts: Sequence[Part], count: int) -> Iterator[list[Placed]]:
        """The messages of the parts, cut into `count` rounds: one kind after another, with a mark after each
        round. `ts` is that of the mark.
        """
        cuts = [np.array_split(part.handles, count) for part in parts]
        for at in range(count):
            made: list[Placed] = []
            for part, cut in zip(parts, cuts, strict=True):
                made += self._rows(replace(part, handles=cut[at]))
            yield [*made, *self._mark()]

    def fill_one(self, part: Part) -> int:
        """Write a part in one transaction. Returns the mark after it."""
        for cut in np.array_split(part.handles, -(-len(part.handles) // BLOCK)):
            begin = self.ts
            self.send(self._rows(Part(part.kind, cut, rows_a_txn=len(part.handles))))
            self.ts = begin  # all rows have the same
        self.ts += 2
        self.mark()
        return self.ts

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide messages written in the `with` block from readers of committed messages until the
        block ends.
        """
        gate = self._new_producer(**{"transactional.id": f"gate-{self.name}"})
        gate.init_transactions(30)
        gate.begin_transaction()
        mark = self._marks.encode_resolved(self.ts)
        assert mark is not None
        for partition in range(PARTITIONS):
            gate.produce(self.name, mark.value, mark.key, partition)
        assert gate.flush(30) == 0
        yield
        gate.commit_transaction(30)

    def delete(self) -> None:
        """Delete the topic, to free its disk space."""
        delete_topic(self.bootstrap, self.name)

    def _new_producer(self, **more: Any) -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 20}
        return Producer(settings | {"queue.buffering.max.messages": 1_000_000} | more)

    def _rows(self, part: Part) -> list[Placed]:
        """The messages of rows, with the next commit timestamps."""
        made: list[Placed] = []
        for number in range(len(self.tables.names)):
            handles = self.tables.of(number, part.handles)
            for rows in self.tables.mounted(number, replace(part, handles=handles), self.ts + 1):
                rule = RULE if self.tables.keyed else BAG_RULE
                placed = partition_block(rows, rule, PARTITIONS, "UTC")
                made += messages(encode_block(rows, placed, self.options, 0))
        self.messages += len(made)
        self.bytes += sum(len(value) for _, _, value in made)
        self.ts += 2 * (len(part.handles) // part.rows_a_txn + 1)
        return made

    def send(self, made: Sequence[Placed]) -> None:
        """Write messages, and wait until the broker has them."""
        for partition, key, value in made:
            self._producer.produce(self.name, value, key, partition)
        assert self._producer.flush(60) == 0

    def mark(self) -> None:
        """A mark behind all that was written, in every partition."""
        self.send(self._mark())

    def _mark(self) -> list[Placed]:
        self.ts += 2
        mark = self._marks.encode_resolved(self.ts)
        assert mark is not None
        assert mark.value is not None
        return [(partition, mark.key, mark.value) for partition in range(PARTITIONS)]


def clocks_of(folder: Path) -> Path:
    """Where the processes of a consumer in this folder write what their clocks show."""
    return folder / "clocks"


@contextmanager
def consumer(services: Services, topic: Topic, folder: Path, more: Sequence[str]) -> Iterator[Child]:
    """`tidegate consumer run` into MariaDB, with a clock around its stages, once it is ready."""
    clocks_of(folder).mkdir()
    os.environ[FOLDER] = str(clocks_of(folder))
    command = [sys.executable, "-m", "benchmarks.consumer_probe", "run", "--source", topic.uri, "--json"]
    command += ["--target", str(services.server), "--name", "bench", "--folder", str(folder / "own")]
    command += ["--lanes", str(len(topic.tables.names)), *more]
    child = Child("consumer", command, folder / "consumer.log")
    try:
        child.wait_line(lambda line: line.get("event") == "ready", READY_S)
        yield child
    finally:
        child.end()


def position_of(cursor: Any) -> int:
    """The ts up to which the consumer has written everything into the target; 0: nothing yet."""
    cursor.execute("SELECT position FROM tidegate.progress WHERE consumer='bench'")
    rows = cursor.fetchall()
    return Position.from_json(rows[0][0]).ts if rows and rows[0][0] else 0


def wait_position(
    server: MySqlServer, ts: int, child: Child, reading: Callable[[], dict[str, float]] = dict
) -> dict[str, float]:
    """Wait until the consumer's position at the target is at or above `ts`. Returns the last
    reading before, which is at most about `READING_S` old.
    """
    connection = server.connect()
    until, found, read = time.monotonic() + PATIENCE_S, reading(), time.monotonic()
    while time.monotonic() < until:
        with connection.cursor() as cursor:
            if position_of(cursor) >= ts:
                connection.close()
                return found
        child.check()
        # Not each time: a reading of all processes takes milliseconds, which the consumer would lack.
        if time.monotonic() - read >= READING_S:
            found, read = reading(), time.monotonic()
        time.sleep(POLL_S)
    raise TimeoutError(f"the consumer is not at {ts}.\n{child.tail()}")


def mixed(changes: int) -> tuple[list[Part], list[Part]]:
    """The rows that must exist before, and the changes: two fifths inserts, two fifths updates, one fifth
    deletes.
    """
    fifth = changes // 5
    there = np.random.default_rng(7).permutation(3 * fifth)
    parts = [
        Part("insert", np.arange(3 * fifth, changes)),
        Part("update", there[: 2 * fifth]),
    ]
    return [Part("insert", np.arange(3 * fifth))], [*parts, Part("delete", there[2 * fifth :])]


@contextmanager
def running_mariadb() -> Iterator[tuple[MySqlServer, int]]:
    """A new MariaDB server, and its process id."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        command = [str(SERVICES), "start", "mariadb", "--dir", folder, "--owner", str(os.getpid()), "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)["mariadb"]
        yield MySqlServer("127.0.0.1", int(found["port"]), "root", ""), int(found["pid"])
        subprocess.run([str(SERVICES), "stop", "--dir", folder], check=True)
