"""The output for people: a progress line, the table at the end, and the machine's description."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tidegate.java import java_home, java_version

Progress = Callable[[str], None]


class Ticker:
    """Shows the current measurement: one line, replaced in place on a terminal, at most twice a second."""

    def __init__(self) -> None:
        self._shown_at, self._wide = 0.0, sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        pause = 0.5 if self._wide else 5.0
        if text[-4:] == "rows" and time.monotonic() - self._shown_at < pause:
            return
        self._shown_at = time.monotonic()
        end = "\r\033[K" if self._wide else ""
        print(f"{end}  {text}", end="" if self._wide else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if self._wide:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """A description of the machine on which the figures were measured."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = ("pyspark", "pyarrow", "numpy", "numba", "grpcio", "confluent-kafka", "deltalake")
    return {
        "cpu": model.group(1) if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": java_version(java_home()),
        "packages": {name: version(name) for name in names},
        "load_before": os.getloadavg()[0],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def short(number: float) -> str:
    """A figure with thousands separators, or with two decimals if it is small."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.2f}"


def table(lines: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns. The first line is the heading."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def row(line: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()

    return "\n".join([row(lines[0]), "  ".join("-" * w for w in widths), *map(row, lines[1:])])
