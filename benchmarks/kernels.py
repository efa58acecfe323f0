"""The speed of every kernel, in turns with another source tree: ns of CPU a row, and the ratio.

    python -m benchmarks.kernels [--src OTHER/src] [--rounds 3] [--only WORD]... [--json FILE]

`benchmarks.kernel_work` says what work is done. A round runs it once in this tree and once in the other, each
in a process of its own. In it, each piece of work runs once unmeasured and then PASSES times. The figure is
that of the fastest pass: CPU time of the thread while a kernel ran, and, as `all`, of the whole pass, Python
included. A kernel that is called by another kernel counts as part of that one.

A ratio is this tree's figure divided by the other's in the same round: below 1 it is faster now. The table
has the median of the rounds, with the least and the greatest, the slowest first. `slower` marks a kernel
whose ratio is above LIMIT in every round, `slower?` one whose median is. Kernels are compared by name within
a piece of work (`RENAMED` has the older names). A kernel that only one tree has, because work is divided in
another way there, has no ratio; then look at `all`. Kernels that take less than SMALL_US a pass are only in
the JSON, because most of their time is that of the call.

`pages` are new pages of memory that the kernel touched in that pass (minor faults), in this tree and in the
other. The system fills each with zeros in the time of the kernel. Two trees that allocate in another order
may differ in pages, and so in time, although the kernel is the same.

It compiles the kernels of both trees first, which may take some minutes each.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.show import Ticker, machine, table

ROOT: Final = Path(__file__).parents[1]
PASSES: Final = 15
LIMIT: Final = 1.03
SMALL_US: Final = 100.0
ALL: Final = "all"
RENAMED: Final = {
    "encode_framed": "encode_rows",
    "encode_single": "encode_rows",
    "index_slot": "index_registration",
    "group_by_slot": "group_by_registration",
    "sizes_by_slot": "sizes_by_registration",
}
"""Kernels of older trees that have another name now."""

Figures = dict[str, dict[str, Any]]
"""By piece of work: its unit, and by kernel ns a unit, us a pass and new pages a pass."""


class Meter:
    """The time in which each kernel runs when Python calls it, and its new pages. Use it as a context."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = defaultdict(int)
        self.pages: dict[str, int] = defaultdict(int)
        self.called: set[str] = set()
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Meter:
        made: dict[int, Any] = {}
        for module in [one for name, one in sys.modules.items() if name.startswith("tidegate.")]:
            for name, value in list(vars(module).items()):
                if is_kernel(value):
                    self._replaced.append((module, name, value))
                    setattr(module, name, made.setdefault(id(value), self._timed(value)))
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, value in self._replaced:
            setattr(module, name, value)
        self._replaced.clear()

    def _timed(self, entry: Any) -> Callable[..., Any]:
        name = RENAMED.get(entry.__name__, entry.__name__)
        full = full_name(entry)

        @functools.wraps(entry.py_func)
        def run(*arguments: Any) -> Any:
            self.called.add(full)
            before = new_pages()
            began = time.thread_time_ns()
            try:
                return entry(*arguments)
            finally:
                self.spent[name] += time.thread_time_ns() - began
                self.pages[name] += new_pages() - before

        return run


def new_pages() -> int:
    """How many pages this thread has touched first."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def is_kernel(value: object) -> bool:
    """Whether a value is a function compiled with `@kernel`, which Python may call."""
    options = getattr(value, "targetoptions", None)
    return isinstance(options, dict) and bool(options.get("nogil")) and hasattr(value, "py_func")


def full_name(entry: Any) -> str:
    """Module and name of a kernel."""
    return f"{entry.py_func.__module__.removeprefix('tidegate.')}.{entry.__name__}"


def measure(only: list[str], progress: Callable[[str], None]) -> dict[str, Any]:
    """The figures of this process's tree, and the kernels that no work called."""
    # After the tree is on the path.
    from benchmarks.kernel_work import works

    from tidegate import kernel

    for name in kernel.KERNEL_MODULES:
        import_module(name).warm()
    found: Figures = {}
    # From before the work is made, because plans of protocols keep the kernel that they call.
    with Meter() as meter:
        for name, unit, units, prepare in works():
            if only and not any(word in name for word in only):
                continue
            progress(name)
            prepare()()  # fills caches
            least: dict[str, tuple[int, int]] = {}
            for _ in range(PASSES):
                run = prepare()
                meter.spent.clear()
                meter.pages.clear()
                before, began = new_pages(), time.thread_time_ns()
                run()
                meter.spent[ALL] = time.thread_time_ns() - began
                meter.pages[ALL] = new_pages() - before
                for one, spent in meter.spent.items():
                    figure = spent, meter.pages[one]
                    least[one] = min(figure, least.get(one, figure))
            kernels = {
                one: {"ns": ns / units, "us": ns / 1000, "pages": pages} for one, (ns, pages) in least.items()
            }
            found[name] = {"unit": unit, "kernels": kernels}
    modules = [one for name, one in sys.modules.items() if name.startswith("tidegate.")]
    every = {full_name(v) for module in modules for v in vars(module).values() if is_kernel(v)}
    return {"works": found, "not_called": sorted(every - meter.called)}


def child(source: Path, only: list[str]) -> dict[str, Any]:
    """The figures of a tree, measured in a separate process."""
    command = [sys.executable, "-m", "benchmarks.kernels", "--child", *(f"--only={word}" for word in only)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment(source))
    found: dict[str, Any] = json.loads(done.stdout)
    assert Path(found["source"]) == source, f"{found['source']} was measured in the place of {source}"
    return found


def environment(source: Path) -> dict[str, str]:
    """The environment in which a process imports a tree's package, and these benchmarks."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}


def lines(rounds: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """One line for each kernel. `rounds`: in each this tree, and the other one if there is one."""
    places = {
        (work, name) for tree in rounds[0] for work, one in tree["works"].items() for name in one["kernels"]
    }
    for work, name in places:
        sides = [[tree["works"].get(work, {}).get("kernels", {}).get(name) for tree in one] for one in rounds]
        trees = [[side[at] for side in sides] for at in range(len(sides[0]))]
        seen = [None if None in tree else median(one["ns"] for one in tree) for tree in trees]
        us = max(one["us"] for tree in trees for one in tree if one is not None)
        pages = [None if None in tree else median(one["pages"] for one in tree) for tree in trees]
        ratios = (
            [mine["ns"] / other["ns"] for mine, other in sides if mine and other] if len(trees) > 1 else []
        )
        unit = next(tree["works"][work]["unit"] for tree in rounds[0] if work in tree["works"])
        yield {
            "work": work,
            "kernel": name,
            "unit": unit,
            "ns": seen,
            "us_a_pass": us,
            "pages": pages,
            "ratios": ratios,
        }


def shown(found: list[dict[str, Any]], others: bool) -> str:
    """The table for people, the slowest first."""
    heading = [
        "work",
        "kernel",
        "ns a",
        "this",
        *(["other", "ratio", "least to greatest", ""] if others else []),
        "pages",
    ]
    rows = [heading]
    for one in found:
        if one["us_a_pass"] < SMALL_US:
            continue
        figures = [f"{ns:,.2f}" if ns is not None else "-" for ns in one["ns"]]
        ratios = one["ratios"]
        compared = ["", "", ""]
        if ratios:
            verdict = "slower" if min(ratios) > LIMIT else "slower?" if median(ratios) > LIMIT else ""
            compared = [f"{median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}", verdict]
        pages = " / ".join("-" if n is None else f"{n:,.0f}" for n in one["pages"])
        rows.append([one["work"], one["kernel"], one["unit"], *figures, *(compared if others else []), pages])
    return table(rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", type=Path, help="the source of another tree, in turns with this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only work with such a word in its name",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    ticker = Ticker()
    if options.child:
        import tidegate

        source = Path(tidegate.__file__).parents[1]
        print(json.dumps(measure(options.only, ticker) | {"source": str(source)}))
        return
    sources = [ROOT / "src", *([options.src.resolve()] if options.src else [])]
    for source in sources:
        ticker(f"compiling {source}")
        compile_all = [sys.executable, "-m", "tidegate.kernel"]
        subprocess.run(compile_all, check=True, stdout=subprocess.DEVNULL, env=environment(source))
    described = machine()
    rounds = []
    for number in range(options.rounds):
        ticker(f"round {number + 1} of {options.rounds}")
        order = sources if number % 2 == 0 else sources[::-1]
        by_source = {source: child(source, options.only) for source in order}
        rounds.append([by_source[source] for source in sources])
    ticker.close()
    found = sorted(lines(rounds), key=lambda one: (-median(one["ratios"] or [0]), one["work"], one["kernel"]))
    print(shown(found, len(sources) > 1))
    for source, tree in zip(sources, rounds[-1], strict=True):
        print(
            f"called only by other kernels, or by nothing here, in {source}: {', '.join(tree['not_called'])}"
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": described, "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
