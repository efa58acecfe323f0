"""Encode and dispatch: rows per CPU-second, from cells to messages. For decoding: `benchmarks/messages.py`.

    PYTHONPATH=src python benchmarks/encode.py [--rows 65536] [--passes 5] [--json] [--verify]

There are three tables: `narrow` (5 columns, short strings), `sbtest` (5 columns, 180 characters) and `wide`
(44 columns of many types). A third of the rows are updates or deletes with old values. New rows are drawn for
every pass, so that the branch predictor does not learn them. Figures are CPU time of the best pass. The last
column compares with the peer, over the messages of the same pass: orjson's `dumps` of the same texts from
existing objects, or fastavro if it is installed (`benchmarks/peers.py`). `--verify` measures the cost of
`integrity.verify-encoded` instead.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.peers import Form, dump_seconds, form_of

from tidegate.codec.base import Batch, CodecOptions
from tidegate.codec.blocks import encode_block
from tidegate.codec.readback import ReadBack
from tidegate.codec.registry import CODECS, codec_options, row_protocols
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.kernels import partition_block
from tidegate.kernel import PAD, address
from tidegate.model.cells import DELETE, INSERT, NULL, UPDATE, Image, RowBlock, stride_for
from tidegate.model.message import MessageBlock
from tidegate.model.schema import Kind, TableSchema
from tidegate.pipeline.worker.buffers import Buffers
from tidegate.tidb import value as values
from tidegate.tidb.table_info import table_schema

BUILD_MS = 1_795_246_227_886
WORDS = ["alfa", "bravo", "naïve", "数据", "it's", 'quote"q', "delta", "echo", "foxtrot", "golf-1234", "<b>"]
TEXT, INT, BIGINT = (15, 0, "utf8mb4"), (3, 0, "binary"), (8, 0, "binary")
WIDE = {
    **{f"{p}{i}": t for i in range(8) for p, t in (("i", INT), ("v", TEXT), ("d", (246, 0, "binary")))},
    **{f"{p}{i}": t for i in range(5) for p, t in (("t", (12, 0, "binary")), ("b", (8, 32, "binary")))},
    "f0": (5, 0, "binary"), "e0": (247, 0, "utf8mb4"), "s0": (248, 0, "utf8mb4"), "j0": (245, 0, "binary"),
    "x0": (252, 0, "utf8mb4"), "bl0": (15, 128, "binary"), "ts0": (7, 0, "binary"), "y0": (13, 0, "binary"),
    "tm0": (11, 0, "binary"),
}  # fmt: skip
TABLES = {
    "narrow": {"k": INT, "c": TEXT, "pad": TEXT, "ver": BIGINT},
    "sbtest": {"k": INT, "c": (254, 0, "utf8mb4"), "pad": (254, 0, "utf8mb4"), "ver": BIGINT},
    "wide": WIDE,
}


def options_by_label() -> Iterator[tuple[str, CodecOptions]]:
    """Every protocol with the options for reading rows back. `simple` occurs with both of its encodings."""
    for label in row_protocols():
        unmarked = CODECS[label].unmarked
        given = dict(one.split("=") for one in unmarked.option.split("&")) if unmarked is not None else {}
        yield label, codec_options({"protocol": label, **given})
    yield "simple (avro)", codec_options({"protocol": "simple", "encoding-format": "avro"})


def make_table(name: str) -> TableSchema:
    """A table with an integer primary key and the named columns."""
    columns = {"id": (8, 3, "binary"), **TABLES[name]}
    cols = [
        {
            "id": i + 1, "name": {"O": column}, "offset": i, "state": 5,
            "type": {"Tp": code, "Flag": flag, "Flen": 15, "Decimal": 2 if code == 246 else 0,
                     "Charset": charset,
                     "Elems": ["red", "green", "blue"] if code in (247, 248) else None},
        }
        for i, (column, (code, flag, charset)) in enumerate(columns.items())
    ]  # fmt: skip
    return table_schema("bench", {"id": 100, "name": {"O": name}, "pk_is_handle": True, "cols": cols}, 1)


def random_cell(rng: random.Random, table: TableSchema, position: int) -> Any:
    """A plain value of one column. In the wide table a seventh of the values are NULL."""
    column = table.columns[position]
    if table.table == "wide" and position and rng.random() < 0.14:
        return None
    match column.kind:
        case Kind.STRING | Kind.BYTES:
            if table.table == "sbtest":
                groups = 10 if column.name == "c" else 5
                return "-".join(f"{rng.randrange(10**11):011d}" for _ in range(groups)).encode()
            if table.table == "narrow":
                return f"{rng.randrange(10**11):011d}-{rng.choice(WORDS[:2])}".encode()
            if column.kind is Kind.BYTES:
                return rng.randbytes(rng.randrange(1, 16))
            return " ".join(
                f"{rng.choice(WORDS)}-{rng.randrange(1000)}" for _ in range(rng.randrange(1, 4))
            ).encode()
        case Kind.DECIMAL:
            return f"{rng.randrange(-(10**9), 10**9)}.{rng.randrange(100):02d}"
        case Kind.DATETIME | Kind.TIMESTAMP:
            return f"20{rng.randrange(10, 38)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d} 12:34:56"
        case Kind.TIME:
            return f"{rng.randrange(24):02d}:30:15"
        case Kind.DOUBLE:
            return rng.random() * 10 ** rng.randrange(8)
        case Kind.JSON:
            return json.dumps({"k": rng.randrange(100), "s": rng.choice(WORDS)}, ensure_ascii=False)
        case Kind.ENUM | Kind.SET:
            return rng.randrange(1, 4)
        case Kind.YEAR:
            return rng.randrange(1970, 2100)
    return rng.randrange(10**6)


def pool_of(table: TableSchema, count: int, rng: random.Random) -> tuple[Image, np.ndarray]:
    """`count` images of random rows, and the bytes they point to."""
    shape = (count, stride_for(len(table.columns)))
    a, sizes, data = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int32), bytearray()
    pointers = np.zeros(shape, dtype=bool)
    for i in range(count):
        for c, column in enumerate(table.columns):
            stored = values.parse(column, random_cell(rng, table, c))
            if stored is None:
                sizes[i, c] = NULL
            elif isinstance(stored, bytes):
                a[i, c], sizes[i, c], pointers[i, c] = len(data), len(stored), True
                data += stored
            else:
                bits = (
                    stored if isinstance(stored, int) else struct.unpack("<q", struct.pack("<d", stored))[0]
                )
                a[i, c] = np.uint64(bits & (1 << 64) - 1).view(np.int64)
    owner = np.frombuffer(bytes(data) + bytes(PAD), dtype=np.uint8).copy()
    a[pointers] += address(owner)
    return Image(a, sizes), owner


def draw(table: TableSchema, pool: Image, owner: np.ndarray, rows: int, rng: np.random.Generator) -> RowBlock:
    """A block of `rows` rows drawn from the pool."""
    new, old = rng.integers(0, len(pool.words), (2, rows))
    op = rng.choice(np.array([INSERT, INSERT, INSERT, INSERT, UPDATE, DELETE], dtype=np.uint8), rows)
    commit_ts = np.uint64(470613015516676096) + np.sort(rng.integers(0, 1 << 36, rows)).astype(np.uint64)
    handle = np.where(op == DELETE, pool.words[old, 0], pool.words[new, 0])
    return RowBlock(
        table, op, commit_ts, commit_ts - np.uint64(1), np.full(rows, table.id), handle, np.arange(rows),
        Image(pool.words[new], pool.sizes[new]), Image(pool.words[old], pool.sizes[old]), (owner,),
    )  # fmt: skip


def measure(name: str, rows: int, passes: int) -> dict[str, dict[str, float]]:
    """Figures of one table."""
    table, rng = make_table(name), np.random.default_rng(11)
    pool, owner = pool_of(table, 4096, random.Random(11))
    by_key = DispatchRule(matcher=("*.*",), partition="index-value")
    steps: dict[str, Any] = {"index-value": lambda block, zeros, taken: partition_block(block, by_key, 16)}
    forms = {}
    for label, options in options_by_label():
        forms[label] = form_of(options)
        steps[label] = lambda block, zeros, taken, options=options: encode_block(
            block, zeros, options, BUILD_MS, taken
        )
    return {
        label: best(step, table, pool, owner, rows, passes, rng, forms.get(label, Form.JSON))
        for label, step in steps.items()
    }


def batch_of(block: MessageBlock) -> Batch:
    """The messages in the form for a reader."""
    data = block.data.tobytes()

    def texts(starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
        pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
        return pa.array([None if n < 0 else data[a : a + n] for a, n in pairs], pa.large_binary())

    keys = texts(block.key_start, block.key_length)
    values = texts(block.value_start, block.value_length)
    return Batch(keys, values, np.arange(len(block), dtype=np.int64))


def best(
    step: Any,
    table: TableSchema,
    pool: Image,
    owner: np.ndarray,
    rows: int,
    passes: int,
    rng: Any,
    form: Form,
) -> dict[str, float]:
    """The fastest of several passes, each with new rows."""
    zeros, figures = np.zeros(rows, dtype=np.int32), {"rows_per_cpu_s": 0.0, "mb_per_cpu_s": 0.0}
    buffers = Buffers()
    for _ in range(passes):
        block = draw(table, pool, owner, rows, rng)
        start = time.process_time()
        done = step(block, zeros, buffers.take)
        spent = time.process_time() - start
        size = int(np.maximum(done.value_length, 0).sum()) if isinstance(done, MessageBlock) else 0
        if rows / spent > figures["rows_per_cpu_s"]:
            figures = {"rows_per_cpu_s": rows / spent, "mb_per_cpu_s": size / spent / 1e6}
            peer = dump_seconds(batch_of(done), form) if isinstance(done, MessageBlock) else None
            if peer is not None:
                figures["against_peer"] = peer / spent
        buffers.next_piece()
    return figures


def verified(name: str, rows: int, passes: int) -> dict[str, dict[str, float]]:
    """Encoding with `integrity.verify-encoded`, in turns with encoding alone."""
    table, rng, found = make_table(name), np.random.default_rng(11), {}
    pool, owner = pool_of(table, 4096, random.Random(11))
    zeros = np.zeros(rows, dtype=np.int32)
    for label, options in options_by_label():
        reader, alone, whole = ReadBack(options), [float("inf")], [float("inf")]
        for number in range(passes + 1):
            block = draw(table, pool, owner, rows, rng)
            start = time.process_time()
            done = encode_block(block, zeros, options, BUILD_MS)
            middle = time.process_time()
            if reader.compare(block, done, zeros):
                raise SystemExit(f"{name}, {label}: a message does not say what its row is")
            if number:  # in the first pass the decoder learns the table
                alone.append(middle - start)
                whole.append(time.process_time() - start)
        found[label] = {"rows_per_cpu_s": rows / min(whole), "times_alone": min(whole) / min(alone)}
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verify", action="store_true", help="what verify-encoded costs, instead")
    arguments = parser.parse_args()
    if arguments.verify:
        costs = {name: verified(name, arguments.rows, arguments.passes) for name in TABLES}
        if arguments.json:
            print(json.dumps(costs))
            return
        print(f"{'table':8} {'protocol':18} {'M rows/CPU-s':>13} {'x encoding alone':>17}")
        for name, labels in costs.items():
            for label, figures in labels.items():
                rate, times = figures["rows_per_cpu_s"] / 1e6, figures["times_alone"]
                print(f"{name:8} {label:18} {rate:13.2f} {times:17.1f}")
        return
    found = {name: measure(name, arguments.rows, arguments.passes) for name in TABLES}
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'table':8} {'step':18} {'M rows/CPU-s':>13} {'MB/CPU-s':>9} {'x peer':>7}")
    for name, steps in found.items():
        for label, figures in steps.items():
            peer = f"{figures['against_peer']:7.1f}" if "against_peer" in figures else "      -"
            rate, speed = figures["rows_per_cpu_s"] / 1e6, figures["mb_per_cpu_s"]
            print(f"{name:8} {label:18} {rate:13.2f} {speed:9.0f} {peer}")


if __name__ == "__main__":
    main()
