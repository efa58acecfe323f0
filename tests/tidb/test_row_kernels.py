"""Row kernels against the plain record decoder, on good rows and on damaged ones.

Kernels check no bounds but their own, so a mistake is a crash: damaged rows are decoded in a child process,
from buffers that end right before a page that nobody may touch.
"""

from __future__ import annotations

import multiprocessing
import random
from multiprocessing.connection import Connection

import numpy as np

from tests.guarded import Guarded
from tests.mounter.golden_rows import CASES, GoldenRow, golden_rows
from tidegate.errors import Undecodable
from tidegate.kernel import address, buffer
from tidegate.model.block import DELETE
from tidegate.model.slots import Image
from tidegate.mounter.decode import empty_image, plan_of
from tidegate.mounter.mounter import mount_row
from tidegate.mounter.rows import stored_of
from tidegate.tidb import row_kernels, value

Images = tuple[str | None, str | None]


def decode_one(row: GoldenRow) -> tuple[int, Images]:
    """One row through the kernel, each of its byte strings guarded: the fault, and both images as text."""
    entry = row.entry
    plan = plan_of(row.table, False)
    new, old = empty_image(1, plan.stride), empty_image(1, plan.stride)
    strings = (entry.key, entry.value, entry.old_value)
    parts = [Guarded(part) for part in strings]
    key, new_value, old_value = (np.array([0, len(part)], dtype=np.int32) for part in strings)
    table, handle, length = (np.zeros(1, dtype=np.int64) for _ in range(3))
    row_kernels.parse_keys(
        1, address(key), parts[0].address, address(table), address(handle), address(length)
    )
    position, change = np.zeros(1, dtype=np.int64), np.array([entry.op], dtype=np.uint8)
    op, fault = np.zeros(1, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    free, context = buffer(len(entry.key)), np.empty(row_kernels.CONTEXT_WORDS, dtype=np.int64)
    row_kernels.decode_rows(
        *(1, address(position), address(key), parts[0].address, address(handle), address(change)),
        *(address(new_value), parts[1].address, address(old_value), parts[2].address),
        *(address(plan.lines), len(plan.lines), plan.datums, plan.stride, address(op)),
        *(address(new.a), address(new.l), address(old.a), address(old.l)),
        *(address(fault), address(free), address(context), 0, 0),
    )
    images: Images = (None, None)
    if not fault[0]:
        images = (
            None if entry.op == DELETE else _text(row, new),
            _text(row, old) if entry.old_value else None,
        )
    for part in parts:
        part.close()
    return int(fault[0]), images


def _text(row: GoldenRow, image: Image) -> str:
    cells = [
        value.present(column, stored_of(image, 0, at, column.kind))
        for at, column in enumerate(row.table.columns)
    ]
    return repr(tuple(cells))


def plain_one(row: GoldenRow) -> Images | None:
    """The same through the plain mounter; None when it refuses the row."""
    try:
        change = mount_row(row.entry, row.table)
    except Undecodable:
        return None
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
        match rng.randrange(6):
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
    if name == "key" and len(data) < 19:
        data += bytes(19 - len(data))
    return row._replace(entry=row.entry._replace(**{name: bytes(data)}))


def fuzz(seed: int, rounds: int, answer: Connection) -> None:
    """Decode damaged rows both ways; answers (disagreements, refused by both, only by the kernel)."""
    rng = random.Random(seed)
    wrong: list[str] = []
    both, kernel_only = 0, 0
    for _ in range(rounds):
        row = damaged(rng.choice(golden_rows(rng.choice(CASES))), rng)
        fault, images = decode_one(row)
        plain = plain_one(row)
        both += bool(fault) and plain is None
        kernel_only += bool(fault) and plain is not None
        if not fault and plain != images:
            wrong.append(f"{row.entry} {images} {plain}"[:2000])
    answer.send((wrong, both, kernel_only))
    answer.close()


def run_fuzz(seed: int, rounds: int) -> tuple[list[str], int, int]:
    """`fuzz` in a child process, which must end well."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=fuzz, args=(seed, rounds, there))
    child.start()
    there.close()
    try:
        answer: tuple[list[str], int, int] = here.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"the kernel crashed with seed {seed}: exit code {child.exitcode}") from None
    child.join()
    assert child.exitcode == 0
    return answer


def test_golden_rows_decode_to_the_plain_values_without_any_fault() -> None:
    rng = random.Random(1)
    for case in CASES:
        rows = golden_rows(case)
        for row in rng.sample(rows, min(8, len(rows))):
            assert decode_one(row) == (0, plain_one(row)), row.entry


def test_damaged_rows_are_refused_or_read_as_the_plain_decoder_reads_them() -> None:
    row_kernels.warm()
    wrong, both, kernel_only = run_fuzz(seed=20261121, rounds=3000)
    assert wrong == []
    assert both > 500
    assert kernel_only < both / 20
