"""The Kafka headers of Resolved and Admin messages: docs/formats/contract.md. Pure.

tidegate-align        JSON: id (text), table (`schema.table`), epoch (the commit ts, which rises)
tidegate-epoch        a count: how often the number of partitions has changed
tidegate-partitions   JSON: from which ts on, and the number before and after (`model.layout`)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from tidegate.codec.alignment import ALIGN_HEADER
from tidegate.codec.base import BadMessage, Batch, Decoded, Headers
from tidegate.model.layout import COUNT_MAX, EPOCH, PARTITIONS, Layout, count_of

ALIGN: Final = ALIGN_HEADER


@dataclass(frozen=True, slots=True)
class Alignment:
    """A Resolved that asks readers to meet at a commit ts: `codec.alignment`."""

    id: str
    table: str
    epoch: int
    """The commit ts."""


@dataclass(frozen=True, slots=True)
class MarkHeaders:
    """The headers of Resolved and Admin messages, by offset."""

    alignments: dict[int, Alignment] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    """Only for messages whose headers describe their epoch, not just number it."""
    unsound: dict[int, str] = field(default_factory=dict)
    """Why a header cannot be read."""
    lost: list[int] = field(default_factory=list)
    """Offsets of alignment marks in `unsound`: where they ask readers to meet is not known."""


def mark_headers(batch: Batch, resolved: Sequence[tuple[int, int]]) -> MarkHeaders:
    """Read the headers of a batch's Resolved and Admin messages, given as (ts, offset); no others are read.

    A header that is not sound is recorded in `unsound`. It never raises.
    """
    found = MarkHeaders()
    if batch.headers is None or not resolved:
        return found
    offsets = [offset for _, offset in resolved]
    places = np.searchsorted(np.asarray(batch.offsets, np.int64), offsets).tolist()
    for offset, place in zip(offsets, places, strict=True):
        headers = batch.headers[place] or ()
        for name, value in headers:
            if name in (ALIGN, EPOCH, PARTITIONS):
                _take(found, offset, name, value, headers)
    return found


def _take(found: MarkHeaders, offset: int, name: str, value: Any, headers: Headers) -> None:
    try:
        if name == ALIGN:
            found.alignments[offset] = _alignment(value)
        elif name == EPOCH:
            found.epochs[offset] = count_of(value)
        else:
            found.layouts[offset] = layout_of(headers)
    except ValueError as error:
        found.unsound[offset] = f"its header {name}: {error}"
        if name == ALIGN:
            # Row mode must stop there. It does not know at which ts the partitions had to wait for each
            # other.
            found.lost.append(offset)


def split_resolved(
    resolved: Iterable[tuple[int, int]], headers: MarkHeaders
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Split Resolved messages, given as (ts, offset), into watermarks and alignment marks. An alignment mark
    gets the commit ts of its place instead of its own ts.
    """
    watermarks, aligns = [], []
    for ts, offset in resolved:
        if offset in headers.alignments:
            aligns.append((headers.alignments[offset].epoch, offset))
        # Not a watermark either: it may be an alignment mark whose header cannot be read.
        elif offset not in headers.unsound:
            watermarks.append((ts, offset))
    return watermarks, aligns


def unsound_marks(batch: Batch, headers: MarkHeaders) -> list[BadMessage]:
    """The messages whose headers cannot be read, as bad ones: a reader might not wait where it must."""
    at = {int(offset): number for number, offset in enumerate(batch.offsets)} if headers.unsound else {}
    return [
        BadMessage(offset, _bytes(batch.keys[at[offset]]), _bytes(batch.values[at[offset]]), why)
        for offset, why in headers.unsound.items()
    ]


def _bytes(cell: Any) -> bytes | None:
    found: bytes | None = cell.as_py() if hasattr(cell, "as_py") else cell
    return found


def layout_of(headers: Headers) -> Layout:
    """The layout in a message's headers. Raises ValueError when they are not sound."""
    found = dict(headers or ())
    return Layout.of_headers(found.get(EPOCH), found.get(PARTITIONS))


def layouts(batch: Batch, decoded: Decoded) -> dict[int, Layout]:
    """By offset, the layouts in the batch's Resolved and Admin messages; unsound ones are left out."""
    headers = batch.headers
    if headers is None:
        return {}
    offsets = np.asarray(batch.offsets)
    marks = [offset for _, offset in (*decoded.resolved, *decoded.repartitions)]
    found = {}
    for offset, at in zip(marks, np.searchsorted(offsets, marks).tolist(), strict=True):
        if any(name == PARTITIONS for name, _ in headers[at] or ()):
            # Left out and not raised: `mark_headers` reports those of Resolved, and an Admin message without
            # a layout ends the run (`checks.check_not_repartitioned`).
            with contextlib.suppress(ValueError):
                found[offset] = layout_of(headers[at])
    return found


def _alignment(value: Any) -> Alignment:
    body = orjson.loads(value or b"")
    if not isinstance(body, dict):
        raise ValueError("it is no JSON object")
    id_, table, epoch = (body.get(name) for name in ("id", "table", "epoch"))
    if not isinstance(id_, str) or not isinstance(table, str):
        raise ValueError("id and table are no texts")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < COUNT_MAX:
        raise ValueError("epoch is no count")
    return Alignment(id_, table, epoch)
