"""Plants damaged rows among clean rows with checksums: how many are found, and how many without checksums.

    python -m benchmarks.corruption [--rows 10000000] [--plant 10000] [--json FILE]

Half of the rows are from the recorded log `narrow` (5 columns), half from `wide` (44), under new handles.
Their checksums are made with zlib, as a TiDB with row checksums makes them: versions 1 and 2 in turn. Every
third row is an update with an old image. The rows pass `mounter.decode.mount` and `mounter.integrity.verify`
block by block, as in a changefeed with `[integrity]` on. Among them are damaged rows, of three kinds in turn,
in the new or the old image:

    flipped  one to three bits of the stored value, its checksum included
    swapped  the whole value of another row, with its checksum
    lost     one column removed, the value otherwise well formed, its checksum unchanged

A damaged row is *found* if its image does not match its checksum, or if it cannot be decoded. Rows with the
same damage but without checksums are decoded as well: the share that is refused then is what decoding alone
finds. Exit code 1: damage was missed, or a clean row was reported.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
from benchmarks.rows import Source

from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.mounter.decode import Checks, MountOptions, mount
from tidegate.mounter.integrity import Tally, verify
from tidegate.tidb import keys, row

LOGS: Final = ("narrow", "wide")
KINDS: Final = ("flipped", "swapped", "lost")
UPDATE_EVERY: Final = 3
COMMIT_TS: Final = 1 << 62
"""A commit ts after every schema of the logs."""
_OPTIONS: Final = MountOptions(force_replicate=True)
_HANDLE_AT: Final = 11
_APART: Final = 7
"""The distance in the log between the new and the old value of an update."""


@dataclass(slots=True)
class Findings:
    """The result of a run. Counts of damage are by kind."""

    log: str
    rows: int = 0
    images: int = 0
    cpu_seconds: float = 0.0
    """CPU seconds of mounting and comparing only."""
    planted: Counter[str] = field(default_factory=Counter)
    by_checksum: Counter[str] = field(default_factory=Counter)
    by_decoding: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    """Descriptions of damaged images that were not found."""
    false_alarms: int = 0
    without_checksums: Counter[str] = field(default_factory=Counter)
    """The damage that decoding refuses when rows carry no checksum."""

    @property
    def good(self) -> bool:
        """Whether exactly the damaged rows were found."""
        return not self.missed and not self.false_alarms

    def plain(self) -> dict[str, Any]:
        """The form for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(slots=True)
class Plant:
    """One damaged row: its number, the kind of damage, and which image has it (0 new, 1 old)."""

    number: int
    kind: str
    image: int


class Rows:
    """The values of a log under any number of handles. Row i is always the same."""

    def __init__(self, name: str) -> None:
        source = Source.read(name)
        self.store = source.store
        self._table_id = source.table_id
        self._plain: list[bytes] = source.values.to_pylist()
        self._bodies = {version: [_body(value, version) for value in self._plain] for version in (1, 2)}

    def _at(self, number: int, image: int) -> int:
        return (number + _APART * image) % len(self._plain)

    def key(self, number: int) -> bytes:
        """The record key of row `number`."""
        return keys.int_record(self._table_id, number + 1)

    def plain(self, number: int, image: int) -> bytes:
        """The value in the log, without a checksum."""
        return self._plain[self._at(number, image)]

    def sealed(self, number: int, image: int) -> bytes:
        """The value with the checksum that TiDB gives it under the row's key (docs/formats/checksums.md)."""
        version = 1 + number % 2
        body, register = self._bodies[version][self._at(number, image)]
        key = self.key(number)
        return body + crc32(key if version == 1 else key[_HANDLE_AT:], register).to_bytes(4, "little")

    def images(self, number: int) -> list[bytes]:
        """New and old value with checksums. The old one is empty if the row is an insert."""
        return [self.sealed(number, 0), self.sealed(number, 1) if is_update(number) else b""]


def _body(value: bytes, version: int) -> tuple[bytes, int]:
    """A value up to its checksum, and the CRC so far."""
    body = bytes([value[0], value[1] | row.CHECKSUM]) + value[2:] + bytes([version])
    return body, crc32(body)


def is_update(number: int) -> bool:
    """Whether a row has an old image."""
    return number % UPDATE_EVERY == 0


# --- damage ---------------------------------------------------------------------------------------------


def plants(rows: int, number: int, rng: random.Random) -> list[Plant]:
    """`number` different rows of `rows` to damage, in ascending order."""
    chosen = sorted(rng.sample(range(rows), number))
    return [Plant(at, KINDS[i % 3], rng.randrange(2) * is_update(at)) for i, at in enumerate(chosen)]


def damaged(value: bytes, kind: str, another: bytes, rng: random.Random) -> bytes:
    """A value with one kind of damage; `another` is the value of another row."""
    match kind:
        case "flipped":
            return flipped(value, rng)
        case "swapped":
            return another
        case _:
            return without_a_column(value, rng)


def flipped(value: bytes, rng: random.Random) -> bytes:
    """Flip one to three bits."""
    out = bytearray(value)
    for bit in rng.sample(range(8 * len(out)), rng.choice((1, 1, 2, 3))):
        out[bit >> 3] ^= 1 << (bit & 7)
    return bytes(out)


def without_a_column(value: bytes, rng: random.Random) -> bytes:
    """Remove one column from a v2 value. Its checksum, if it has one, stays unchanged."""
    fields = row.split(value)
    filled = [(i, cell) for i, cell in fields.cells.items() if isinstance(cell, bytes)]
    nulls = [i for i, cell in fields.cells.items() if cell is None]
    tail_at = max(fields.starts[i] + len(cell) for i, cell in filled)
    filled.pop(rng.randrange(len(filled)))
    large = value[1] & row.LARGE
    ends = np.cumsum([len(cell) for _, cell in filled], dtype=np.int64).tolist()
    head = struct.pack("<BBHH", value[0], value[1], len(filled), len(nulls))
    ids = [i for i, _ in filled] + nulls
    head += struct.pack(f"<{len(ids)}{'I' if large else 'B'}", *ids)
    head += struct.pack(f"<{len(ends)}{'I' if large else 'H'}", *ends)
    return head + b"".join(cell for _, cell in filled) + value[tail_at:]


# --- the run --------------------------------------------------------------------------------------------


def block_of(entries: Sequence[tuple[bytes, bytes, bytes]]) -> pa.RecordBatch:
    """(key, value, old value) of puts as a block of entries."""
    n = len(entries)
    strings = [pa.array(column, pa.binary()) for column in zip(*entries, strict=True)]
    ts = np.full(n, COMMIT_TS, dtype=np.uint64)
    columns = [pa.array(ts), pa.array(ts - 1), pa.array(np.full(n, OP_PUT, dtype=np.uint8)), *strings]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)


def blocks(
    rows: Rows, number: int, batch: int, damage: Sequence[Plant], rng: random.Random
) -> Iterator[tuple[pa.RecordBatch, dict[int, Plant]]]:
    """Blocks, each with its damaged rows by position."""
    waiting = list(reversed(damage))
    for first in range(0, number, batch):
        size = min(batch, number - first)
        images = {i: list(rows.images(i)) for i in range(first, first + size)}
        here: dict[int, Plant] = {}
        while waiting and waiting[-1].number < first + size:
            plant = waiting.pop()
            here[plant.number - first] = plant
            other = rows.sealed((plant.number + rng.randrange(1, number)) % number, plant.image)
            pair = images[plant.number]
            pair[plant.image] = damaged(pair[plant.image], plant.kind, other, rng)
        yield block_of([(rows.key(i), value, old) for i, (value, old) in images.items()]), here


def run(name: str, number: int, planted: int, batch: int, seed: int) -> Findings:
    """One log: `number` rows, `planted` of them damaged, in blocks of `batch`."""
    rows, rng = Rows(name), random.Random(f"{seed} {name}")
    found = Findings(name)
    damage = plants(number, planted, rng)
    for block, here in blocks(rows, number, batch, damage, rng):
        _judge(rows, block, here, found)
    entries = [_plain_entry(rows, plant, number, rng) for plant in damage]
    if entries:
        refused = mount(block_of(entries), rows.store, _OPTIONS)[1]
        found.without_checksums.update(damage[one.position].kind for one in refused)
    return found


def _plain_entry(rows: Rows, plant: Plant, number: int, rng: random.Random) -> tuple[bytes, bytes, bytes]:
    at = plant.number
    images = [rows.plain(at, 0), rows.plain(at, 1) if is_update(at) else b""]
    other = (at + rng.randrange(1, number)) % number
    images[plant.image] = damaged(images[plant.image], plant.kind, rows.plain(other, plant.image), rng)
    return rows.key(at), images[0], images[1]


def _judge(rows: Rows, block: pa.RecordBatch, here: dict[int, Plant], found: Findings) -> None:
    began = time.process_time()
    checks, tally = Checks.of(block), Tally()
    groups, refused = mount(block, rows.store, _OPTIONS, checks)
    accused = [one for group in groups for one in verify(block, group, checks, tally)]
    found.cpu_seconds += time.process_time() - began
    found.rows += block.num_rows
    found.images += tally.matched + tally.mismatched
    by_checksum = {one.position for one in accused}
    by_decoding = {one.position for one in refused}
    found.false_alarms += len((by_checksum | by_decoding) - here.keys())
    for at, plant in here.items():
        found.planted[plant.kind] += 1
        if at in by_checksum:
            found.by_checksum[plant.kind] += 1
        elif at in by_decoding:
            found.by_decoding[plant.kind] += 1
        else:
            entry = block.slice(at, 1).to_pylist()[0]
            shown_entry = " ".join(entry[name].hex() for name in ("key", "value", "old_value"))
            found.missed.append(f"{plant} {shown_entry}")


def shown(found: Findings) -> str:
    """The result as text for people."""
    planted = found.planted.total()
    lines = [
        f"{found.log}: {found.rows:,} rows, {found.images:,} images compared, "
        f"{found.rows / max(found.cpu_seconds, 1e-9) / 1e6:.2f} M rows/CPU-s; "
        f"{planted:,} damaged, {planted - len(found.missed):,} found, {found.false_alarms} false alarms"
    ]
    for kind in KINDS:
        count = found.planted[kind]
        if count:
            lines.append(
                f"  {kind:8} {count:6,}: {found.by_checksum[kind]:6,} by checksum, "
                f"{found.by_decoding[kind]:6,} by decoding; without checksums decoding refuses "
                f"{found.without_checksums[kind] / count:6.1%}"
            )
    if planted:
        lines.append(f"  without checksums, all kinds: {found.without_checksums.total() / planted:.1%}")
    return "\n".join([*lines, *(f"  MISSED {one}" for one in found.missed[:10])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the result, and write it as JSON if a file is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--plant", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=LOGS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    share = len(options.logs)
    results = []
    for name in options.logs:
        found = run(name, options.rows // share, options.plant // share, options.batch, options.seed)
        print(shown(found), flush=True)
        results.append(found)
    if options.json:
        options.json.write_text(json.dumps([found.plain() for found in results], indent=1) + "\n")
    return 0 if all(found.good for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
