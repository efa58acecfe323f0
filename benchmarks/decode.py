"""Rows per CPU-second of the decoder: kernels and their plain twins, on rows that a real TiDB wrote.

    python -m benchmarks.decode LOG.jsonl.gz... [--rows N] [--json]

LOG is a recorded change log (`narrow`: 5 columns, `wide`: 44). A third of the rows are updates with both
images, the others inserts, as in a loaded table. They are shuffled again in every pass, because the branch
predictor would learn a repeated order. Each figure is the best of the passes, in CPU time of this process.

    decode   row_kernels.decode_rows alone: bytes in, slots out
    texts    the same, and JSON columns of both images converted to text: arrow_kernels.fill of these only
    verify   decode with the checksums of both images compared; rows have checksums of version 2
    mount    mounter.decode.mount: with grouping and allocation, Python included
    checked  mount with checksums compared, and mounter.integrity.verify
    sums     the comparison alone, checksum_kernels.check_image of every image: bytes of values per CPU-second
    columns  mounter.integrity.column_sums of the new image: what version 0 compares and messages carry
    arrow    mount and to_arrow of both images: from bytes to typed Arrow columns, JSON as text
    binary   the same with JSON columns taken as bytes, neither checked nor converted to text
    plain    mounter.mounter.mount_row, row by row
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.recorded import OneTable, blocks_of, read_log, sealed, with_updates

from tidegate.kernel import address, buffer, kernel, load_i32
from tidegate.model import cells
from tidegate.model.schema import Kind, TableSchema
from tidegate.mounter import decode
from tidegate.mounter.batch_layout import Layout
from tidegate.mounter.columns import fill_of, target_type, to_arrow
from tidegate.mounter.decode_plan import plan_of
from tidegate.mounter.integrity import Tally, column_sums, verify
from tidegate.mounter.mounter import Entry, mount_row
from tidegate.mounter.tiles import empty_images
from tidegate.tidb.kernels import arrow as arrow_kernels
from tidegate.tidb.kernels import row as row_kernels
from tidegate.tidb.kernels import row_context
from tidegate.tidb.kernels.checksum import MATCHED, check_image
from tidegate.tidb.kernels.json import STACK_WORDS
from tidegate.tidb.kernels.text import I64, CellWords
from tidegate.tidb.kernels.zone import month_lines

BATCHES = (64, 1_000, 10_000)
VALUES = ("value", "old_value")
SUMS = "sums"


@kernel
def check_images(n: int, ends: int, data: int, key_ends: int, keys: int, spare: int) -> int:
    """How many of a column's values match their checksums under the keys. Offsets are int32[n + 1].

    spare: 16 bytes for what `check_image` writes besides.
    """
    matched = 0
    for i in range(n):
        at, end = I64(load_i32(ends + 4 * i)), I64(load_i32(ends + 4 * i + 4))
        key, key_end = I64(load_i32(key_ends + 4 * i)), I64(load_i32(key_ends + 4 * i + 4))
        if end > at:
            found = check_image(data + at, end - at, keys + key, key_end - key, spare, spare + 8)
            matched += found == MATCHED
    return matched


def best(prepare: Callable[[], tuple[Callable[[], object], int]], passes: int) -> float:
    """Rows per CPU-second, the best of several passes. Preparation is not counted."""
    rates = []
    for _ in range(passes):
        run, rows = prepare()
        start = time.process_time()
        run()
        rates.append(rows / (time.process_time() - start))
    return max(rates)


def json_as_bytes(table: TableSchema) -> TableSchema:
    """The table with its JSON columns declared as binary ones."""
    columns = (
        replace(column, kind=Kind.BYTES) if column.kind is Kind.JSON else column for column in table.columns
    )
    return replace(table, columns=tuple(columns))


def measure(table: TableSchema, entries: list[Entry], passes: int) -> dict[str, float]:
    """All figures for one table."""
    store: Any = OneTable(table)
    options = decode.MountOptions(force_replicate=True)
    figures: dict[str, float] = {}

    def kernel_pass(
        batch: int, call_of: Callable[[TableSchema, pa.RecordBatch], Callable[[], int]] = _decode_call
    ) -> Callable[[], tuple[Callable[[], object], int]]:
        def prepare() -> tuple[Callable[[], object], int]:
            calls = [call_of(table, block) for block in blocks_of(entries, batch)]
            return lambda: [call() for call in calls], len(calls) * batch

        return prepare

    def mount_pass(batch: int) -> Callable[[], tuple[Callable[[], object], int]]:
        def prepare() -> tuple[Callable[[], object], int]:
            blocks = blocks_of(entries, batch)
            return lambda: [decode.mount(b, store, options) for b in blocks], len(blocks) * batch

        return prepare

    def arrow_pass(batch: int) -> Callable[[], tuple[Callable[[], object], int]]:
        def run(blocks: list[pa.RecordBatch]) -> None:
            for block in blocks:
                for group in decode.mount(block, store, options)[0]:
                    to_arrow(group, "new")
                    to_arrow(group, "old")

        def prepare() -> tuple[Callable[[], object], int]:
            blocks = blocks_of(entries, batch)
            return lambda: run(blocks), len(blocks) * batch

        return prepare

    def plain_pass() -> tuple[Callable[[], object], int]:
        some = random.sample(entries, min(2_000, len(entries)))
        return lambda: [mount_row(entry, table) for entry in some], len(some)

    for batch in BATCHES:
        figures[f"decode, {batch} a batch"] = best(kernel_pass(batch), passes)
    for batch in BATCHES:
        figures[f"mount, {batch} a batch"] = best(mount_pass(batch), passes)
    figures |= measure_checksums(table, entries, passes)
    for batch in BATCHES:
        figures[f"arrow, {batch} a batch"] = best(arrow_pass(batch), passes)
    if any(column.kind is Kind.JSON for column in table.columns):
        for batch in BATCHES:
            figures[f"texts, {batch} a batch"] = best(kernel_pass(batch, _texts_call), passes)
        store = OneTable(json_as_bytes(table))
        for batch in BATCHES:
            figures[f"binary, {batch} a batch"] = best(arrow_pass(batch), passes)
    figures["plain"] = best(plain_pass, 2)
    return figures


def measure_checksums(table: TableSchema, entries: list[Entry], passes: int) -> dict[str, float]:
    """The figures with checksums. A figure without a number in its name is for batches of 10,000."""
    store: Any = OneTable(table)
    options = decode.MountOptions(force_replicate=True)
    rows = sealed(entries)
    batch = min(10_000, len(rows))

    def kernel_pass(size: int, checked: bool) -> Callable[[], tuple[Callable[[], object], int]]:
        def prepare() -> tuple[Callable[[], object], int]:
            calls = [_decode_call(table, block, checked) for block in blocks_of(rows, size)]
            return lambda: [call() for call in calls], len(calls) * size

        return prepare

    def checked_pass() -> tuple[Callable[[], object], int]:
        blocks = blocks_of(rows, batch)

        def run() -> None:
            for block in blocks:
                checks = decode.Checks.of(block)
                for group in decode.mount(block, store, options, checks)[0]:
                    assert not verify(block, group, checks, Tally())

        return run, len(blocks) * batch

    def columns_pass() -> tuple[Callable[[], object], int]:
        groups = [g for block in blocks_of(rows, batch) for g in decode.mount(block, store, options)[0]]
        every = [np.flatnonzero(group.op != 3) for group in groups]

        def run() -> None:
            for group, at in zip(groups, every, strict=True):
                column_sums(table, group.new, at)

        return run, sum(map(len, every))

    def sums_pass() -> tuple[Callable[[], object], int]:
        blocks = blocks_of(rows, batch)
        held = [(b, decode.binary_of(b, name)) for b in blocks for name in VALUES]
        images = sum(b.num_rows - b.column(n).to_pylist().count(b"") for b in blocks for n in VALUES)

        def run() -> None:
            found, spare = 0, np.empty(2, dtype=np.int64)
            for block, value in held:
                keys = decode.binary_of(block, "key")
                found += check_images(block.num_rows, *value, *keys, address(spare))
            assert found == images, (found, images)

        return run, sum(
            block.column(name).nbytes - 4 * (block.num_rows + 1) for block in blocks for name in VALUES
        )

    figures = {f"verify, {size} a batch": best(kernel_pass(size, True), passes) for size in BATCHES}
    return figures | {
        "checked: mount and compare": best(checked_pass, passes),
        "columns": best(columns_pass, passes),
        SUMS: best(sums_pass, passes),
    }


def _decode_call(table: TableSchema, block: pa.RecordBatch, checked: bool = False) -> Callable[[], int]:
    """The kernel call for a block, with its buffers allocated and touched before."""
    return _decoding(table, block, checked)[0]


def _texts_call(table: TableSchema, block: pa.RecordBatch) -> Callable[[], int]:
    """The same, plus the JSON columns of both images as text into existing buffers. For one call."""
    call, images, ops = _decoding(table, block)
    assert call() >= 0
    schema = pa.schema([(column.name, target_type(column)) for column in table.columns])
    lines = Layout(schema, table.columns, [fill_of(column) for column in table.columns]).lines
    lines = lines[[column.kind is Kind.JSON for column in table.columns]]
    n, stack, months = len(ops), np.empty(STACK_WORDS, np.int64), month_lines()
    filled: list[tuple[Any, ...]] = []
    held: list[Any] = [images, ops, stack, months]
    for image, lacking in zip(images, (cells.DELETE, cells.INSERT), strict=True):
        own = lines.copy()
        head, tail = (
            (n, address(own), len(own)),
            (address(image.sizes), image.words.shape[1], address(ops), lacking),
        )
        body = np.zeros(arrow_kernels.measure(*head, *tail), np.uint8)
        own_words = CellWords(address(image.words), address(image.sizes), image.words.shape[1])
        memory = arrow_kernels.Memory(address(body), address(stack), address(months), 1, 0)
        filled.append((*head, arrow_kernels.Source(own_words, address(ops), lacking), memory))
        held += [own, body]

    def run() -> int:
        done = call()
        for arguments in filled:
            arrow_kernels.fill(*arguments)
        return done + 0 * len(held)

    return run


def _decoding(
    table: TableSchema, block: pa.RecordBatch, checked: bool = False
) -> tuple[Callable[[], int], list[cells.Image], Any]:
    """The call, and its outputs: the images and each row's operation."""
    n, plan = block.num_rows, plan_of(table, False)
    columns = decode.columns_of(block)
    rows = np.arange(n)
    images = list(empty_images(n, plan.stride, buffer))
    ops, faults = np.zeros(n, dtype=np.uint8), np.zeros(n, dtype=np.int64)
    context = np.zeros(row_context.CONTEXT_WORDS, dtype=np.int64)
    for image in images:
        image.words.fill(0)
        image.sizes.fill(0)
    checks = decode.Checks.of(block) if checked else None
    if checks is not None:
        checks.carried.fill(0)
    arguments = decode.arguments(
        columns, plan, rows, images[0], images[1], ops, faults, context, context, checks
    )
    held = (checks, columns, images, ops, faults, context, rows, plan)
    return lambda: row_kernels.decode_rows(*arguments) + 0 * len(held), images, ops


def main() -> int:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    row_kernels.warm()
    found = {}
    for path in options.logs:
        table, entries = read_log(path, options.rows)
        entries = with_updates(entries)
        size = sum(len(e.key) + len(e.value) + len(e.old_value) for e in entries) / len(entries)
        figures = measure(table, entries, options.passes)
        found[path.name] = figures
        if not options.json:
            print(
                f"{path.name}: {len(table.columns)} columns, {size:.0f} bytes a change, {len(entries)} rows"
            )
            for name, rate in figures.items():
                unit = "MB/CPU-s" if name == SUMS else "M rows/CPU-s"
                print(f"  {name:28} {rate / 1e6:9.3f} {unit}")
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
