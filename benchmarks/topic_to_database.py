"""From a topic into MariaDB: rows/s of the consumer, compared with a loader of the same rows.

    python -m benchmarks.topic_to_database [--rows N] [--changes N] [--lanes N] [--rounds N] [--json FILE]

Messages are canal-json of about 440 bytes, written by our encoder, with DDL headers, in a real Kafka. It runs
the real `tidegate consumer run --until` with a real MariaDB. There are as many tables as lanes, one in each.
In turns:

    inserts  the consumer: new rows
    loader   no topic, no Spark: one process renders the same rows and sends INSERTs of many rows through
             the same driver, over as many connections as there are lanes, with a thread for each
    sender   the same with the statements made beforehand: the throughput of the server
    mixed    the consumer: two fifths inserts, two fifths updates and one fifth deletes, of random rows

The consumer is warm when it is measured: first it applies the DDLs and some rows. Then the topic is filled
behind an open transaction, so that a reader of committed messages does not see the messages, and the
transaction is committed. The rate is from the end of the first write to the end of the last one. `from the
first` counts from that commit on, and includes the first fetch, during which nothing is written.

The cores by process and the seconds by stage are of this whole time. Workers and driver work in parallel, and
so do the driver's threads, so the sum of the stages is more than the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pymysql
from benchmarks.accounting import Ledger, busy_seconds, spent
from benchmarks.broker import PARTITIONS, broker_with_pid, delete_topic, new_topic
from benchmarks.consumer_probe import FOLDER
from benchmarks.show import Progress, Ticker, machine, table
from benchmarks.to_database import NoDigest, emptied, info_of, rows_of
from benchmarks.to_delta import READY_S, messages
from confluent_kafka import Producer
from tools.processes import Child

from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import codec_options, marks
from tidegate.config.settings import DispatchRule
from tidegate.consumer.engine.position import Position
from tidegate.consumer.mysql.lanes import LANES, lane_of
from tidegate.consumer.mysql.literals import inserts
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.tables import create_table, qualified
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
PROTOCOL: Final = {"protocol": "canal-json", "enable-tidb-extension": "true"}
SCHEMA: Final = "bench"
CREATE_TABLE: Final = 3
BLOCK: Final = 50_000
"""The number of changes between two marks."""
ROWS_A_TXN: Final = 50
VALUES: Final = 10_000
"""The number of different rows, apart from their keys."""
WARM_UP: Final = 200_000
"""Changes that the consumer has applied before it is measured."""
POLL_S: Final = 0.05
PATIENCE_S: Final = 600.0
GOALS: Final = {"ratio": 0.7, "mixed": 40_000}

Ints = npt.NDArray[np.int64]


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

    def __init__(self, count: int) -> None:
        self.names = _of_each_lane(count)
        self.ids = [100 + at for at in range(count)]
        self.infos = [info_of(name) | {"id": at} for name, at in zip(self.names, self.ids, strict=True)]
        self.made: list[Definition] = [from_info(SCHEMA, info, 1) for info in self.infos]
        self._rows = rows_of(0, VALUES).drop_columns(["id"])
        parsed = table_schema(SCHEMA, self.infos[0], 1)
        columns = [column.to_pylist() for column in rows_of(0, VALUES).columns]
        self._values = pa.array(
            [record.encode(parsed, row)[1] for row in zip(*columns, strict=True)], pa.binary()
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
        found, bad = mount(self.block(number, part, begin_ts), self._store, MountOptions())
        assert not bad, bad[0].why
        return found


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
        rounds = -(-sum(len(part.handles) for part in parts) // BLOCK)
        for at in range(rounds):
            for part in parts:
                cut = np.array_split(part.handles, rounds)[at]
                self.ts += self._rows(Part(part.kind, cut))
            self.mark()
        return self.ts

    def fill_one(self, part: Part) -> int:
        """Write a part in one transaction. Returns the mark after it."""
        for cut in np.array_split(part.handles, -(-len(part.handles) // BLOCK)):
            self._rows(Part(part.kind, cut, rows_a_txn=len(part.handles)))
            self._producer.flush(60)
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

    def _rows(self, part: Part) -> int:
        """Write rows with the next commit timestamps. Returns the number of messages."""
        for number in range(len(self.tables.names)):
            handles = self.tables.of(number, part.handles)
            for rows in self.tables.mounted(number, replace(part, handles=handles), self.ts + 1):
                placed = partition_block(rows, RULE, PARTITIONS, "UTC")
                for partition, key, value in messages(encode_block(rows, placed, self.options, 0)):
                    self._producer.produce(self.name, value, key, partition)
                    self.messages, self.bytes = self.messages + 1, self.bytes + len(value)
        return 2 * (len(part.handles) // part.rows_a_txn + 1)

    def mark(self) -> None:
        """A mark behind all that was written, in every partition."""
        self.ts += 2
        mark = self._marks.encode_resolved(self.ts)
        assert mark is not None
        for partition in range(PARTITIONS):
            self._producer.produce(self.name, mark.value, mark.key, partition)
        assert self._producer.flush(60) == 0


def by_consumer(
    services: Services, tables: Tables, base: Sequence[Part], parts: Sequence[Part]
) -> dict[str, Any]:
    """Apply `base` without measurement, then measure `parts`."""
    lanes, topic, server = len(tables.names), Topic(services.bootstrap, tables), services.server
    topic.create_tables()
    warm = topic.fill(base)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        (folder / "clocks").mkdir()
        os.environ[FOLDER] = str(folder / "clocks")
        # The consumer must know its end ts before the topic contains it.
        until = warm + compose(600_000)
        command = [sys.executable, "-m", "benchmarks.consumer_probe", "run", "--source", topic.uri, "--json"]
        command += ["--target", str(server), "--name", "bench", "--folder", str(folder / "own")]
        command += ["--lanes", str(lanes), "--until", str(until)]
        child = Child("consumer", command, folder / "consumer.log")
        try:
            child.wait_line(lambda line: line.get("event") == "ready", READY_S)
            _wait_position(server, warm, child)
            topic.messages = topic.bytes = 0
            with topic.hidden():
                topic.fill(parts)
                topic.ts = until - 2
                topic.mark()
                time.sleep(1.0)  # until the broker and the page cache are idle
                ledger = Ledger([child.pid, services.broker_pid, services.server_pid])
                before, busy, began = ledger.cpu(), busy_seconds(), time.time()
            # Sample often, because a process's account is lost when the process ends.
            cpu = _wait_position(server, until, child, ledger.cpu)
            ended, busy = time.time(), busy_seconds() - busy
            ledger.close()
            child.wait(60)
        finally:
            child.end()
        calls = read_clocks(folder / "clocks", began, ended)
    topic.delete()
    changes = sum(len(part.handles) for part in parts)
    assert topic.messages == changes, f"{topic.messages} messages for {changes} changes"
    whole = changes / (ended - began)
    return {
        "rate": steady(calls) or whole,
        "rate_from_the_first": whole,
        "wall_s": ended - began,
        "cpu_s": spent(before, cpu) | {"all of the machine": round(busy, 2)},
        "bytes_a_message": topic.bytes / topic.messages,
        "stages": by_stage(calls, changes),
    }


def _wait_position(
    server: MySqlServer, ts: int, child: Child, reading: Callable[[], dict[str, float]] = dict
) -> dict[str, float]:
    """Wait until the consumer's position at the target is at or above `ts`. Returns the last
    reading before.
    """
    connection = server.connect()
    until, found = time.monotonic() + PATIENCE_S, reading()
    while time.monotonic() < until:
        with connection.cursor() as cursor:
            cursor.execute("SELECT position FROM tidegate.progress WHERE consumer='bench'")
            rows = cursor.fetchall()
        if rows and rows[0][0] and Position.from_json(rows[0][0]).ts >= ts:
            connection.close()
            return found
        child.check()
        found = reading()
        time.sleep(POLL_S)
    raise TimeoutError(f"the consumer is not at {ts}.\n{child.tail()}")


def read_clocks(folder: Path, began: float, ended: float) -> list[dict[str, Any]]:
    """The calls that ended within the measured time, in the order of their ends."""
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted((one for one in lines if began <= one["at"] <= ended), key=lambda one: one["at"])


def steady(calls: Sequence[dict[str, Any]]) -> float:
    """Rows per second from the end of the first write to that of the last. 0 if there was only one write."""
    ends = [one["at"] for one in calls if one["stage"] == "write"]
    if len(ends) < 2:
        return 0.0
    rows = sum(one["rows"] for one in calls if one["stage"] == "convert" and one["at"] > ends[0])
    return float(rows / (ends[-1] - ends[0]))


def by_stage(calls: Sequence[dict[str, Any]], changes: int) -> dict[str, dict[str, float]]:
    """Seconds for 100,000 changes, and the number of calls, by stage."""
    total: dict[str, dict[str, float]] = {}
    for one in calls:
        of = total.setdefault(one["stage"], {"wall": 0.0, "cpu": 0.0, "calls": 0})
        of["wall"] += one["wall"] * 100_000 / changes
        of["cpu"] += one["cpu"] * 100_000 / changes
        of["calls"] += 1
    return total


def by_loader(
    server: MySqlServer, tables: Tables, base: Sequence[Part], part: Part, *, ready: bool
) -> dict[str, Any]:
    """Load the same rows by threads that do nothing else. `ready`: make statements before the clock runs."""
    lanes = len(tables.names)
    connections = [server.connect() for _ in range(lanes)]
    for made, connection in zip(tables.made, connections, strict=True):
        connection.query(create_table(made).encode())

    def blocks(handles: Ints, number: int) -> Iterator[list[bytes]]:
        """Statements of one table: a list for each transaction, which has as many rows as a block."""
        mine = tables.of(number, handles)
        for at in range(0, len(mine), BLOCK):
            yield _statements(tables, number, mine[at : at + BLOCK])

    def send(connection: pymysql.connections.Connection[Any], found: Iterator[list[bytes]]) -> None:
        for statements in found:
            connection.begin()
            for text in statements:
                connection.query(text)
            connection.commit()

    for one in base:
        for number, connection in enumerate(connections):
            send(connection, blocks(one.handles, number))
    work: list[Any] = [blocks(part.handles, number) for number in range(lanes)]
    work = [iter(list(found)) for found in work] if ready else work
    threads = [threading.Thread(target=send, args=pair) for pair in zip(connections, work, strict=True)]
    began = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.time() - began
    for connection in connections:
        connection.close()
    return {"rate": len(part.handles) / spent, "wall_s": spent}


def _statements(tables: Tables, number: int, handles: Ints) -> list[bytes]:
    made = tables.made[number]
    name = qualified(made.schema, made.table)
    return list(inserts(made.columns, tables.rows(handles), name, NoDigest()))


def check(server: MySqlServer, tables: Tables, rows: int) -> None:
    """Check that all rows have arrived."""
    connection = server.connect()
    with connection.cursor() as cursor:
        found = 0
        for name in tables.names:
            cursor.execute(f"SELECT COUNT(*) FROM {qualified(SCHEMA, name)}")
            found += cursor.fetchall()[0][0]
    connection.close()
    assert found == rows, f"{found} rows are there, not {rows}"


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


def measure(
    rows: int, changes: int, warm_up: int, lanes: int, rounds: int, progress: Progress
) -> dict[str, list[dict[str, Any]]]:
    """Measure all kinds in turns."""
    tables = Tables(lanes)
    fresh = Part("insert", np.arange(warm_up, warm_up + rows))
    base = [Part("insert", np.arange(warm_up))]
    there, parts = mixed(changes)
    found: dict[str, list[dict[str, Any]]] = {"inserts": [], "loader": [], "sender": [], "mixed": []}
    with broker_with_pid() as broker, running_mariadb() as (server, server_pid):
        services = Services(*broker, server, server_pid)
        for number in range(rounds):
            for name, made in found.items():
                progress(f"round {number + 1} of {rounds}: {name}")
                emptied(server)
                if name == "inserts":
                    made.append(by_consumer(services, tables, base, [fresh]))
                elif name == "mixed":
                    made.append(by_consumer(services, tables, there, parts))
                else:
                    made.append(by_loader(server, tables, base, fresh, ready=name == "sender"))
                end = changes - changes // 5 if name == "mixed" else warm_up + rows
                check(server, tables, end)
    return found


def _processes(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """Cores by process, over the runs."""
    wall = sum(run["wall_s"] for run in runs)
    roles = sorted({role for run in runs for role in run["cpu_s"]}, key=str.lower)
    cores = [(role, sum(run["cpu_s"].get(role, 0.0) for run in runs) / wall) for role in roles]
    return table([(f"{name}: cores", f"of {os.cpu_count()}"), *((role, f"{of:.2f}") for role, of in cores)])


def report(found: Mapping[str, list[dict[str, Any]]]) -> tuple[str, dict[str, float]]:
    """The tables for people, and the figures in them."""
    rates = {name: [run["rate"] for run in runs] for name, runs in found.items()}
    figures = {name: statistics.median(of) for name, of in rates.items()}
    for source in ("loader", "sender"):
        pairs = zip(rates["inserts"], rates[source], strict=True)
        figures[f"inserts / {source}"] = statistics.median(one / other for one, other in pairs)
    for name in ("inserts", "mixed"):
        figures[f"{name}, from the first"] = statistics.median(
            run["rate_from_the_first"] for run in found[name]
        )
    lines = [(name, f"{rate:,.0f} rows/s") for name, rate in figures.items() if "/" not in name]
    lines += [(name, f"{share:.2f}") for name, share in figures.items() if "/" in name]
    size = found["inserts"][0]["bytes_a_message"]
    parts = [table([(f"topic to MariaDB, {size:.0f} bytes a message", "median"), *lines])]
    for name in ("inserts", "mixed"):
        parts.append(_processes(name, found[name]))
        shown = [(f"{name}: ms of 100,000 changes", "wall", "CPU", "calls")]
        stages = sorted({stage for run in found[name] for stage in run["stages"]})
        for stage in stages:
            of = [run["stages"].get(stage, {"wall": 0.0, "cpu": 0.0, "calls": 0}) for run in found[name]]
            wall, cpu, calls = (
                statistics.median(one[kind] for one in of) for kind in ("wall", "cpu", "calls")
            )
            shown.append((stage, f"{1000 * wall:.0f}", f"{1000 * cpu:.0f}", f"{calls:.0f}"))
        parts.append(table(shown))
    return "\n\n".join(parts), figures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the inserts")
    parser.add_argument("--changes", type=int, default=1_000_000, help="of the mixed part")
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="everything small; checks rows, not speed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, changes, rounds, warm_up = options.rows, options.changes, options.rounds, WARM_UP
    if options.smoke:
        rows, changes, rounds, warm_up = 5_000, 2_000, 1, 1_000
    subprocess.run([sys.executable, "-m", "tidegate.kernel"], check=True, stdout=subprocess.DEVNULL)
    facts, ticker = machine(), Ticker()
    found = measure(rows, changes, warm_up, options.lanes, rounds, ticker)
    ticker.close()
    text, figures = report(found)
    print(text)
    if options.json:
        reported = {
            "machine": facts,
            "command": sys.argv[1:],
            "figures": figures,
            "goals": GOALS,
            "runs": found,
        }
        options.json.write_text(json.dumps(reported, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
