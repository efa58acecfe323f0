"""Damaged files: readers report them, the process that owns the store repairs them, readers retry meanwhile.

`STORE/damage/<span id>.<file>.json` is one report: `{"where", "why"}`. A reader that meets a damaged segment
writes the report and raises Retryable. The process that owns the store looks into the folder at intervals,
pulls exactly the damaged range of commits from TiKV again (`SpanStore.assess`, `repair`) and removes the
report. If TiKV no longer has these commits, it writes `"lost"` with the reason and the remedy, and readers
raise that as Fatal. Readers report a torn manifest in the same way; the owner writes it again from memory.
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
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp

DAMAGE: Final = "damage"


@dataclass(frozen=True, slots=True)
class Report:
    """A file that a reader could not read. `lost`: it cannot be repaired, because TiKV lacks its commits."""

    span_id: str
    file: str
    lost: bool


@dataclass(frozen=True, slots=True)
class Damage:
    """Batches of a segment that cannot be read, and the commits to be pulled again: (after, upto].

    Without `batches` it is the directory that is damaged: nothing is to be pulled.
    """

    span: Span
    file: str
    batches: frozenset[int]
    after: Timestamp
    upto: Timestamp


def met(store: Path, span_id: str, damage: DamagedSegment) -> TidegateError:
    """Report a damaged segment. Returns the error that the reader raises.

    Fatal if the segment was given up, Retryable if the report was written. If the report cannot be written,
    the segment will not be repaired, so this returns `damage` itself, which is Fatal.
    """
    path = _path(store, span_id, damage.file)
    with suppress(OSError, ValueError):
        # First: a segment that was given up must not be reported again, because the owner would try in vain
        # forever.
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
        fix="nothing: its changes are pulled from TiKV again; then reading continues",
    )


def torn(store: Path, span_id: str, error: Torn) -> None:
    """Report a torn manifest. If the report cannot be written, the manifest's next reader tries again."""
    with suppress(OSError):
        _write(_path(store, span_id, MANIFEST), {"where": error.where, "why": error.why})


def reports(store: Path) -> Iterator[Report]:
    """The reports of files that are not repaired yet."""
    with suppress(FileNotFoundError):
        for path in sorted((store / DAMAGE).glob("*.json")):
            span_id, _, file = path.name.removesuffix(".json").partition(".")
            with suppress(OSError, ValueError):
                yield Report(span_id, file, "lost" in json.loads(path.read_bytes()))


def remove_report(store: Path, report: Report) -> None:
    """Remove a report, because the segment was repaired or no longer exists."""
    _path(store, report.span_id, report.file).unlink(missing_ok=True)


def give_up(store: Path, report: Report, *, why: str, fix: str) -> None:
    """Mark a segment as lost; from now on its readers raise Fatal with `why` and `fix`."""
    _write(_path(store, report.span_id, report.file), {"lost": {"why": why, "fix": fix}})


def forget(store: Path, span_id: str) -> None:
    """Remove all reports of a span whose files were deleted."""
    for path in (store / DAMAGE).glob(f"{span_id}.*"):
        path.unlink(missing_ok=True)


def _path(store: Path, span_id: str, file: str) -> Path:
    return store / DAMAGE / f"{span_id}.{file}.json"


def _write(path: Path, body: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    # Many readers may report the same file at once, each under its own temporary name.
    partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
    partial.write_text(json.dumps(body))
    partial.replace(path)
