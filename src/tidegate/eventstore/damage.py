"""Damaged files: readers report them, the writer's process mends them, readers wait meanwhile.

`STORE/damage/<span id>.<file>.json` is one report: `{"where", "why"}`. A reader that meets a damaged segment
leaves it and raises Retryable. The process that owns the store looks at the folder, pulls exactly the damaged
range of commits from TiKV again (`SpanStore.assess`, `mend`) and removes the report. When TiKV cannot give
them any more, it writes `"lost"`, why and what to do, and readers raise that as Fatal. A torn manifest is
reported likewise, and written again from memory.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.eventstore.manifest import MANIFEST
from tidegate.eventstore.records import Torn
from tidegate.eventstore.segment import DamagedSegment

DAMAGE: Final = "damage"


@dataclass(frozen=True, slots=True)
class Report:
    """A file somebody could not read. `lost`: it cannot be mended either."""

    span_id: str
    file: str
    lost: bool


def met(store: Path, span_id: str, damage: DamagedSegment) -> TidegateError:
    """Report a damaged segment; what its reader is to raise."""
    path = _path(store, span_id, damage.file)
    with suppress(OSError, ValueError):
        lost = json.loads(path.read_bytes()).get("lost")
        if lost:
            return Fatal(damage.what, where=damage.where, why=lost["why"], fix=lost["fix"])
    try:
        _write(path, {"where": damage.where, "why": damage.why})
    except OSError:
        return damage
    return Retryable(
        damage.what,
        where=damage.where,
        why=damage.why,
        fix="nothing to do: its changes are pulled from TiKV again; then reading continues",
    )


def torn(store: Path, span_id: str, error: Torn) -> None:
    """Report a torn manifest. When even that fails, it is reported by the next who reads it."""
    with suppress(OSError):
        _write(_path(store, span_id, MANIFEST), {"where": error.where, "why": error.why})


def reports(store: Path) -> Iterator[Report]:
    """What is reported and not mended yet."""
    with suppress(FileNotFoundError):
        for path in sorted((store / DAMAGE).glob("*.json")):
            span_id, _, file = path.name.removesuffix(".json").partition(".")
            with suppress(OSError, ValueError):
                yield Report(span_id, file, "lost" in json.loads(path.read_bytes()))


def settle(store: Path, report: Report) -> None:
    """The segment is whole again, or gone."""
    _path(store, report.span_id, report.file).unlink(missing_ok=True)


def give_up(store: Path, report: Report, *, why: str, fix: str) -> None:
    """Nobody can mend it: readers are to say so."""
    _write(_path(store, report.span_id, report.file), {"lost": {"why": why, "fix": fix}})


def forget(store: Path, span_id: str) -> None:
    """The span's files are gone, and with them all that was said of them."""
    for path in (store / DAMAGE).glob(f"{span_id}.*"):
        path.unlink(missing_ok=True)


def _path(store: Path, span_id: str, file: str) -> Path:
    return store / DAMAGE / f"{span_id}.{file}.json"


def _write(path: Path, body: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
    partial.write_text(json.dumps(body))
    partial.replace(path)
