"""Decode messages: rows per CPU-second of one core, from message bytes to Arrow columns.

    PYTHONPATH=src python benchmarks/messages.py [--rows 65536] [--passes 5] [--json]

The tables and rows are those of `benchmarks/encode.py`, encoded again for every pass with the protocol that
is then decoded. The decoder knows the table already. Figures are CPU time of this process in the best pass.
`canal-json, mixed` is canal-json with the members of `mysqlType` in another order in each message, as TiCDC
writes them.

The last column compares with the peer, in the same pass over the same bytes: orjson's parse of each text, or
fastavro if it is installed (`benchmarks/peers.py`). It is the factor by which we make columns faster.
"""

from __future__ import annotations

import argparse
import json
import random
import time

import numpy as np
import pyarrow as pa
from benchmarks.encode import TABLES, batch_of, draw, make_table, options_by_label, pool_of
from benchmarks.peers import form_of, parse_seconds

from tidegate.codec.base import Batch
from tidegate.codec.blocks import encode_block
from tidegate.codec.decode import decoder
from tidegate.codec.registry import codec_of

MIXED = "mixed"
BUILD_MS = 1_795_246_227_886


def mixed(batch: Batch, seed: int) -> Batch:
    """Canal-json messages with the members of `mysqlType` in another order in each."""
    dice, values = random.Random(seed), []
    for value in batch.values:
        assert value is not None, "a row has a value"
        text = value.as_py() if isinstance(value, pa.Scalar) else value
        start = text.index(b'"mysqlType":{') + len(b'"mysqlType":{')
        end = text.index(b"}", start)
        members = text[start:end].split(b",")
        dice.shuffle(members)
        values.append(text[:start] + b",".join(members) + text[end:])
    return Batch(batch.keys, pa.array(values, pa.large_binary()), batch.offsets)


def measure(name: str, rows: int, passes: int) -> dict[str, dict[str, float]]:
    """Figures of one table, by protocol."""
    table, rng = make_table(name), np.random.default_rng(11)
    pool, owner = pool_of(table, 4096, random.Random(11))
    found = {}
    labelled = dict(options_by_label())
    for shown in [*labelled, f"canal-json, {MIXED}"]:
        label = shown.partition(",")[0]
        options = labelled[label]
        reader, definitions = decoder(options), codec_of(options).definitions
        if definitions is not None:
            reported = definitions.encode(table, options, BUILD_MS)
            reader.decode(Batch([reported.key], [reported.value], [0]))
        best = {"rows_per_cpu_s": 0.0, "mb_per_cpu_s": 0.0}
        for number in range(passes + 1):  # the first pass learns the table
            zeros = np.zeros(rows, dtype=np.int32)
            block = encode_block(draw(table, pool, owner, rows, rng), zeros, options, BUILD_MS)
            batch = batch_of(block) if shown == label else mixed(batch_of(block), number)
            start = time.process_time()
            decoded = reader.decode(batch)
            spent = time.process_time() - start
            assert sum(len(one) for one in decoded.rows) == rows, "every row comes back"
            if rows / spent > best["rows_per_cpu_s"]:
                size = int(np.maximum(block.value_length, 0).sum() + np.maximum(block.key_length, 0).sum())
                peer = parse_seconds(batch, form_of(options))
                best = {"rows_per_cpu_s": rows / spent, "mb_per_cpu_s": size / spent / 1e6}
                best |= {} if peer is None else {"against_peer": peer / spent}
        found[shown] = best
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {name: measure(name, arguments.rows, arguments.passes) for name in TABLES}
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'table':8} {'protocol':18} {'M rows/CPU-s':>13} {'MB/CPU-s':>9} {'x peer':>7}")
    for name, protocols in found.items():
        for label, figures in protocols.items():
            peer = f"{figures['against_peer']:7.1f}" if "against_peer" in figures else "      -"
            rate, speed = figures["rows_per_cpu_s"] / 1e6, figures["mb_per_cpu_s"]
            print(f"{name:8} {label:18} {rate:13.2f} {speed:9.0f} {peer}")


if __name__ == "__main__":
    main()
