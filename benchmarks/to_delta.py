"""(d) A topic to Delta or Iceberg tables or a change log: rows/s of the consumer, for inserts, then updates.

    python -m benchmarks.to_delta [--rows N] [--updates N] [--target delta|iceberg|parquet]
        [--write-mode MODE] [--master M] [--json FILE]

`--updates` updates fewer rows than were inserted, at equal distances over the whole table.

The topic is filled beforehand with the messages of a changefeed (open-protocol, index-value dispatch, a
Resolved after each block), made by the mounter and the encoder from the rows of the recorded log. The clock
runs from the consumer's ready line to its end, so it includes the last snapshot but not Spark's start.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.accounting import Ledger, spent
from benchmarks.broker import PARTITIONS, delete_topic, new_topic, running_broker
from benchmarks.product import tidegate
from benchmarks.rows import BLOCK, ROWS_A_TXN, Source
from benchmarks.show import Progress, Ticker, machine, short
from benchmarks.show import table as shown
from confluent_kafka import Producer
from tools.processes import Child

from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import codec_options, encoder
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.kernels import partition_block
from tidegate.model.message import MessageBlock
from tidegate.model.timestamp import compose
from tidegate.mounter.decode import MountOptions, mount

RULE: Final = DispatchRule(partition="index-value")
READY_S: Final = 120.0


def measure(
    bootstrap: str,
    rows: int,
    progress: Progress,
    target: str = "delta",
    master: str = "local[2]",
    write_mode: str = "",
    updates: int = 0,
) -> list[dict[str, Any]]:
    """Insert `rows` rows into one target, then update `updates` of them; 0: all."""
    step = rows // updates if updates else 1
    topic = new_topic(bootstrap)
    uri = f"kafka://{bootstrap}/{topic}?protocol=open-protocol"
    source, begin = Source.read(), compose(int(time.time() * 1000) - 3_600_000)
    found = []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for name, count, apart in (("inserts", rows, 1), ("updates", updates or rows, step)):
            progress(f"consumer: filling the topic with {count:,} {name}")
            end = fill(bootstrap, topic, source, count, begin, name == "updates", apart)
            progress(f"consumer: {name}, {count:,} rows")
            lake = f"{target}://{folder}/lake"
            ran = consume(uri, Path(folder), end, count, lake, master, write_mode)
            found.append({"kind": name, **ran})
            begin = end + compose(1)
    delete_topic(bootstrap, topic)
    return found


def consume(
    uri: str,
    folder: Path,
    until: int,
    rows: int,
    target: str = "",
    master: str = "local[2]",
    write_mode: str = "",
) -> dict[str, Any]:
    """One run of the consumer up to `until`, by default into Delta tables in folder/lake."""
    where = ["--target", target or f"delta://{folder / 'lake'}", "--master", master]
    where += ["--write-mode", write_mode] if write_mode else []
    command = tidegate("consumer", "run", "--source", uri, *where)
    child = Child("consumer", [*command, "--until", str(until), "--json"], folder / "consumer.log")
    try:
        child.wait_line(lambda line: line.get("event") == "ready", READY_S)
        ledger = Ledger([child.pid])
        before, began = ledger.cpu(), time.monotonic()
        # Sample often, because a process's account is lost when the process ends.
        cpu = before
        while not (stopped := [line for line in child.lines if line.get("event") == "stopped"]):
            child.check()
            cpu = ledger.cpu()
            time.sleep(0.02)
        wall = time.monotonic() - began
        peaks = ledger.peaks()
        ledger.close()
        child.wait(60)
    finally:
        child.end()
    roles = spent(before, cpu)
    used = sum(roles.values())
    return {
        "rows": stopped[0]["rows"],
        "rows_expected": rows,
        "snapshots": stopped[0]["snapshots"],
        "wall_s": round(wall, 2),
        "rows_per_s": round(rows / wall),
        "cpu_s": round(used, 2),
        "rows_per_cpu_s": round(rows / max(used, 0.01)),
        "cpu_s_by_process": roles,
        "peak_mb": peaks,
    }


def fill(
    bootstrap: str, topic: str, source: Source, rows: int, begin: int, updates: bool, step: int = 1
) -> int:
    """Write `rows` rows to the topic, each `step`-th handle. Returns the last Resolved."""
    options = codec_options({"protocol": "open-protocol"})
    encode = encoder(options)
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
    producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
    ts = begin
    for first in range(0, rows, BLOCK):
        count = min(BLOCK, rows - first)
        tables, bad = mount(
            source.block(first * step, count, ts + 1, updates, step), source.store, MountOptions()
        )
        assert not bad, bad[0].why
        for table in tables:
            partition = partition_block(table, RULE, PARTITIONS, "UTC")
            for number, key, value in messages(encode_block(table, partition, options, 0)):
                producer.produce(topic, value, key, partition=number)
        ts += 2 * (count // ROWS_A_TXN + 1)
        resolved = encode.encode_resolved(ts)
        assert resolved is not None
        for number in range(PARTITIONS):
            producer.produce(topic, resolved.value, resolved.key, partition=number)
        assert producer.flush(60) == 0
    return ts


def messages(block: MessageBlock) -> Iterator[tuple[int, bytes | None, bytes]]:
    """(partition, key, value) of each message."""
    data = block.data.data
    for i in range(len(block)):
        start, size = int(block.key_start[i]), int(block.key_length[i])
        key = None if size < 0 else data[start : start + size].tobytes()
        start, size = int(block.value_start[i]), int(block.value_length[i])
        yield int(block.partition[i]), key, data[start : start + size].tobytes()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=0, help="0: as many as rows")
    parser.add_argument("--target", choices=("delta", "iceberg", "parquet"), default="delta")
    parser.add_argument("--write-mode", default="", help="as for `consumer run`")
    parser.add_argument("--master", default="local[2]", help="as for `consumer run`")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not 0 <= options.updates <= options.rows:
        parser.error("--updates must be between 0 and --rows")
    subprocess.run([sys.executable, "-m", "tidegate.kernel"], check=True, stdout=subprocess.DEVNULL)
    facts, ticker = machine(), Ticker()
    with running_broker() as bootstrap:
        how = options.target, options.master, options.write_mode, options.updates
        found = measure(bootstrap, options.rows, ticker, *how)
    ticker.close()
    lines = [["", "rows/s", "rows per CPU-second", "snapshots"]]
    for run in found:
        speeds = [short(run["rows_per_s"]), short(run["rows_per_cpu_s"])]
        lines.append([run["kind"], *speeds, str(run["snapshots"])])
    print(shown(lines))
    if options.json:
        reported = {"machine": facts, "command": sys.argv[1:], "runs": found}
        options.json.write_text(json.dumps(reported, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
