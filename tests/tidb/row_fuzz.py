"""Rows and keys, recorded and damaged, through the compiled decoder in a child process.

    python -m tests.tidb.row_fuzz [--inputs 1000000] [--seed 1] [--compare 10]

Each input is at the end of readable memory, so that a read beyond it is a crash, and the child may not
grow beyond MEMORY. Every input is decoded and its checksum compared by the kernels; every `--compare`th goes
through the plain decoder too, which must agree or refuse, and say table, column and offset. Exit code 0: no
crash, no disagreement.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tests.guarded import GuardedRoom
from tests.mounter.golden_rows import CASES, GoldenRow, golden_rows
from tidegate.errors import Undecodable
from tidegate.kernel import address, buffer
from tidegate.model.block import OP_DELETE
from tidegate.model.cells import Image
from tidegate.mounter.decode_plan import plan_of
from tidegate.mounter.mounter import mount_row
from tidegate.mounter.rows import stored_of
from tidegate.mounter.tiles import empty_images
from tidegate.tidb import checksum, value
from tidegate.tidb.checksum import Outcome
from tidegate.tidb.kernels import checksum as checksum_kernels
from tidegate.tidb.kernels import record_key, row_context
from tidegate.tidb.kernels import row as row_kernels
from tidegate.tidb.kernels.row_context import Fault

MEMORY = 3 << 30
"""Bytes of address space a fuzzing child may have beyond what it begins with."""
LONGEST = 1 << 20
Images = tuple[str | None, str | None]


class KernelDecoder:
    """The kernels over one row at a time, its strings guarded."""

    def __init__(self) -> None:
        self._rooms = [GuardedRoom(LONGEST) for _ in range(3)]
        self._ends = [np.zeros(2, dtype=np.int32) for _ in range(3)]
        self._numbers = np.zeros(8, dtype=np.int64)
        self._context = np.empty(row_context.CONTEXT_WORDS, dtype=np.int64)
        self._free = buffer(LONGEST)
        self.outcomes = np.zeros((1, 2), dtype=np.uint8)
        self.carried = np.zeros((1, 2, 2), dtype=np.uint32)
        self.versions = np.zeros((1, 2), dtype=np.uint8)

    def decode(self, row: GoldenRow) -> tuple[int, Image, Image]:
        """The fault (0: none) and both images; `outcomes` are its checksums'."""
        entry = row.entry
        plan = plan_of(row.table, False)
        new, old = empty_images(1, plan.stride, buffer)
        strings = (entry.key, entry.value, entry.old_value)
        at = [room.put(part) for room, part in zip(self._rooms, strings, strict=True)]
        for ends, part in zip(self._ends, strings, strict=True):
            ends[1] = len(part)
        self._numbers.fill(0)
        self._numbers[4] = entry.op
        word = address(self._numbers)
        table, handle, length, position, change, op, fault = (word + 8 * i for i in range(7))
        key, new_value, old_value = map(address, self._ends)
        self.outcomes.fill(0)
        record_key.parse_keys(1, key, at[0], table, handle, length)
        block = row_kernels.Block(key, at[0], handle, change, new_value, at[1], old_value, at[2])
        images = address(new.words), address(new.sizes), address(old.words), address(old.sizes)
        sums = address(self.outcomes), address(self.carried), address(self.versions)
        row_kernels.decode_rows(
            1,
            position,
            block,
            row_context.Table(address(plan.lines), len(plan.lines), plan.datums),
            row_kernels.Decoded(plan.stride, op, *images, fault, *sums),
            address(self._free),
            address(self._context),
        )
        return int(self._numbers[6]), new, old

    def shown(self, row: GoldenRow) -> tuple[int, Images]:
        """The fault, and both images as text."""
        fault, new, old = self.decode(row)
        if fault:
            return fault, (None, None)
        entry = row.entry
        return 0, (
            None if entry.op == OP_DELETE else _text(row, new),
            _text(row, old) if entry.old_value else None,
        )


def _text(row: GoldenRow, image: Image) -> str:
    cells = [
        value.present(column, stored_of(image, 0, at, column.kind))
        for at, column in enumerate(row.table.columns)
    ]
    return repr(tuple(cells))


def plain_one(row: GoldenRow) -> Images | Undecodable:
    """The same through the plain mounter, or why it refuses the row."""
    try:
        change = mount_row(row.entry, row.table)
    except Undecodable as error:
        return error
    if change is None:
        return None, None
    return (
        None if change.new is None else repr(change.new),
        None if change.old is None else repr(change.old),
    )


def damaged(row: GoldenRow, rng: random.Random) -> GoldenRow:
    """A row with a few bytes of its value, old value or handle flipped, cut, repeated or replaced."""
    name = rng.choice(["value", "value", "value", "old_value", "key"])
    data = bytearray(getattr(row.entry, name))
    fixed = 11 if name == "key" else 0
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if len(data) <= fixed + 1:
            break
        at = rng.randrange(fixed, len(data))
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice([0, 1, 2, 4, 8, 0x7F, 0x80, 0xFE, 0xFF])
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 4)]
            case 4:
                data[at:at] = data[fixed : fixed + rng.randrange(1, 9)]
            case 5:
                data[min(at, fixed + rng.randrange(8))] = rng.randrange(256)
            case 6:
                data[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80"])
    if name == "key" and len(data) < 19:
        data += bytes(19 - len(data))
    return row._replace(entry=row.entry._replace(**{name: bytes(data)}))


def invented(row: GoldenRow, rng: random.Random) -> GoldenRow:
    """Random bytes after the beginning of a row."""
    head = rng.choice(
        [b"", b"\x80", b"\x80\x00\x01\x00\x00\x00", b"\x80\x01", b"\x80\x02\x01\x00", b"\x08\x02"]
    )
    made = head + rng.randbytes(rng.randrange(80))
    return row._replace(entry=row.entry._replace(value=made or b"\0", old_value=b""))


@dataclass
class Findings:
    """The findings of a run."""

    inputs: int = 0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: int = 0
    """Compared inputs that both refuse."""
    kernel_only: int = 0
    """Compared inputs that only the kernel refuses: the mounter asks the plain decoder then."""
    kinds: Counter[str] = field(default_factory=Counter)
    """All inputs by what the kernel said: `decoded`, or the name of its fault."""
    grown: int = 0
    """Bytes that the child's memory grew by."""


def inputs(rng: random.Random, number: int) -> Iterator[GoldenRow]:
    """Damaged and invented rows; a case at a time, so that its rows are in the cache."""
    while number > 0:
        rows = golden_rows(rng.choice(CASES))
        for _ in range(min(number, 200)):
            row = rng.choice(rows)
            yield invented(row, rng) if rng.randrange(8) == 0 else damaged(row, rng)
        number -= 200


def compare(decoder: KernelDecoder, row: GoldenRow, found: Findings) -> int:
    """One input both ways; the kernel's fault."""
    fault, images = decoder.shown(row)
    plain = plain_one(row)
    found.compared += 1
    if isinstance(plain, Undecodable):
        found.refused += bool(fault)
        if not fault or row.table.name not in plain.where or ("column" not in plain.what and not plain.where):
            found.wrong.append(f"{row.entry} {images} {plain}"[:2000])
    elif fault:
        found.kernel_only += 1
    elif plain != images or not _same_outcomes(decoder, row):
        found.wrong.append(f"{row.entry} {images} {plain}"[:2000])
    return fault


def _same_outcomes(decoder: KernelDecoder, row: GoldenRow) -> bool:
    theirs = decoder.outcomes[0].tolist()
    return all(
        outcome in (Outcome.NO_IMAGE, checksum_kernels.BY_COLUMNS)
        or checksum.check(row.table, row.entry.key, data, old=old).outcome == outcome
        for outcome, data, old in zip(
            theirs, (row.entry.value, row.entry.old_value), (False, True), strict=True
        )
    )


def fuzz(seed: int, number: int, every: int, answer: Connection) -> None:
    """Decode damaged rows; answers the findings."""
    decoder, rng, found = KernelDecoder(), random.Random(seed), Findings()
    golden_rows(CASES[0])
    began = _rss()
    for row in inputs(rng, number):
        found.inputs += 1
        fault = compare(decoder, row, found) if found.inputs % every == 0 else decoder.decode(row)[0]
        found.kinds[Fault(fault & 0xFF).name.lower() if fault else "decoded"] += 1
    found.grown = _rss() - began
    answer.send(found)
    answer.close()


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _child(work: Callable[..., None], numbers: tuple[int, ...], answer: Connection) -> None:
    with open("/proc/self/statm") as status:
        used = int(status.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    work(*numbers, answer)


def in_child(work: Callable[..., None], *numbers: int) -> Any:
    """Return what `work(*numbers, answer)` sends from a child process, which must exit with 0."""
    row_kernels.warm()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_child, args=(work, numbers, there))
    child.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"the kernel crashed with {numbers}: exit code {child.exitcode}") from None
    child.join()
    assert child.exitcode == 0
    return answer


def run(seed: int, number: int, every: int = 1) -> Findings:
    """`fuzz` in a child process."""
    found: Findings = in_child(fuzz, seed, number, every)
    return found


def main() -> int:
    """Fuzz for as many inputs as asked, in runs of 100,000."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--compare", type=int, default=10, help="compare every so many with the plain decoder"
    )
    options = parser.parse_args()
    began, total = time.monotonic(), Findings()
    for at in range(0, options.inputs, 100_000):
        found = run(options.seed + at, min(100_000, options.inputs - at), options.compare)
        total.inputs += found.inputs
        total.compared += found.compared
        total.refused += found.refused
        total.kernel_only += found.kernel_only
        total.wrong += found.wrong
        total.kinds += found.kinds
        total.grown = max(total.grown, found.grown)
        print(
            f"{total.inputs:,} inputs, {total.compared:,} compared, {total.refused:,} refused by both, "
            f"{total.kernel_only:,} by the kernel only, {len(total.wrong)} disagreements, "
            f"memory +{total.grown >> 20} MiB, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(", ".join(f"{kind} {number:,}" for kind, number in total.kinds.most_common()))
    for line in total.wrong[:10]:
        print(line)
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
