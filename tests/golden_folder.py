"""The folder of golden data: TiDB's and TiCDC's own bytes, `tests/golden` or what `--golden` names.

A test that goes over recorded data is marked `golden`, takes its cases from `names`, reads them with `lines`
and says with `count` what it compared, so that `make golden GOLDEN=DIR` runs it over any folder of that form
and prints how much of each was seen. Such a test names no case and expects no number.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

OURS = Path(__file__).parent / "golden"
PACKED = ".jsonl.gz"
PLAIN = ".jsonl"

SKIPPED = "skipped: "
"""How the name of a count begins that says what was not compared, and why."""
counts: Counter[tuple[str, str]] = Counter()
"""(part, what) -> how many were compared in this session."""

_folder = [OURS]


def use(folder: Path) -> None:
    """Take the data from another folder; before any test is collected."""
    _folder[0] = folder


def folder() -> Path:
    """Where the data is."""
    return _folder[0]


def names(part: str) -> list[str]:
    """The cases of a part (`rows`, `ddl`, `keys`, ...), gzipped or not."""
    return list(_names(folder() / part))


@cache
def _names(part: Path) -> tuple[str, ...]:
    """Its files are listed once, because some tests ask for each record."""
    found = {
        path.name.removesuffix(PACKED).removesuffix(PLAIN)
        for path in part.glob("*.jsonl*")
        if path.name.endswith((PACKED, PLAIN))
    }
    return tuple(sorted(found))


def lines(path: str, *, ours: bool = False) -> Iterator[dict[str, Any]]:
    """The records of one file, such as `keys/json`; none when the folder does not have it.

    ours: from `tests/golden` whatever `--golden` says, for tests about one case.
    """
    base = OURS if ours else folder()
    packed, plain = base / f"{path}{PACKED}", base / f"{path}{PLAIN}"
    if packed.exists():
        with gzip.open(packed, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)
    elif plain.exists():
        with plain.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
    elif base == OURS:
        raise FileNotFoundError(plain)


def plain_name(name: str) -> str:
    """A name as TiDB has it: recordings quote those that are no plain words."""
    for quote in ("`", '"'):
        if len(name) > 2 and name[0] == name[-1] == quote:
            return name[1:-1].replace(quote * 2, quote)
    return name


def count(part: str, what: str, number: int = 1) -> None:
    """Note that so many records were compared with ours."""
    counts[part, what] += number


def compared() -> bool:
    """Whether anything was compared: what was skipped is counted under a name that says so."""
    return any(not what.startswith(SKIPPED) for _, what in counts)


def parts() -> set[str]:
    """The subfolders there are."""
    return {path.name for path in folder().iterdir() if path.is_dir()}
