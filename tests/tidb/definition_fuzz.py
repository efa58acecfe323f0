"""Damaged table definitions, in a child process: refused where they enter, or harmless to compiled code.

    python -m tests.tidb.definition_fuzz [--inputs 1000000] [--seed 1]

A recorded definition with a few numbers, names or lists of its JSON changed is read as any other, and a
recorded row is decoded by what it says, at the end of readable memory. Each refusal must be Undecodable.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

from tests.mounter.golden_rows import CASES, golden_rows
from tests.tidb.row_fuzz import KernelDecoder, in_child
from tidegate.errors import Undecodable
from tidegate.tidb.kernels.row_context import Fault
from tidegate.tidb.table_info import table_schema

NUMBERS = (
    -(1 << 63),
    -(1 << 31),
    -65,
    -2,
    -1,
    0,
    1,
    2,
    31,
    63,
    64,
    65,
    255,
    256,
    65_536,
    (1 << 31) - 1,
    1 << 32,
)
OTHERS: tuple[Any, ...] = (None, "", "x", 1.5, True, [], {}, (1 << 63) - 1, 1 << 64)


def places(part: Any) -> list[tuple[Any, Any]]:
    """Every member and element of a JSON value, as (its container, its name or index)."""
    pairs = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    found = []
    for at, inner in pairs:
        found += [(part, at), *places(inner)]
    return found


def redefined(info: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The definition with one to three places changed."""
    made = copy.deepcopy(info)
    for _ in range(rng.choice([1, 1, 2, 3])):
        container, at = rng.choice(places(made))
        match rng.randrange(6):
            case 0 | 1 | 2:
                container[at] = rng.choice(NUMBERS)
            case 3:
                container[at] = rng.choice(OTHERS)
            case 4 if isinstance(container[at], list) and container[at]:
                container[at] = container[at] * rng.choice([2, 9, 70])
            case _:
                other, there = rng.choice(places(made))
                container[at] = copy.deepcopy(other[there])
    return made


def fuzz(seed: int, number: int, answer: Connection) -> None:
    """Read damaged definitions and rows by them; answers how often what came of it."""
    decoder, rng, kinds = KernelDecoder(), random.Random(seed), Counter[str]()
    for _ in range(number):
        row = rng.choice(golden_rows(rng.choice(CASES)))
        try:
            table = table_schema("s", redefined(dict(row.table.info), rng), row.table.version)
        except Undecodable:
            kinds["definition refused"] += 1
            continue
        fault = decoder.decode(row._replace(table=table))[0]
        kinds[Fault(fault & 0xFF).name.lower() if fault else "decoded"] += 1
    answer.send(kinds)
    answer.close()


def run(seed: int, number: int) -> Counter[str]:
    """`fuzz` in a child process, which must end well."""
    found: Counter[str] = in_child(fuzz, seed, number)
    return found


def main() -> int:
    """Fuzz for as many inputs as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    total = Counter[str]()
    for at in range(0, options.inputs, 50_000):
        total += run(options.seed + at, min(50_000, options.inputs - at))
        print(
            f"{total.total():,} definitions: " + ", ".join(f"{k} {n:,}" for k, n in total.most_common()),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
