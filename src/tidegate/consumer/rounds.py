"""Rounds of fetching: what is asked of the broker, and what came.

A round runs beside the driver while that writes, on a thread of its own. It reads the flow and changes
nothing of it. What came is taken by the driver, in `job` and `membership`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tidegate.consumer.checks import check_retained, check_whole
from tidegate.consumer.fetched import Fetched, Range
from tidegate.consumer.fetcher import Fetcher
from tidegate.consumer.flow import Flow
from tidegate.consumer.offset_flow import OffsetFlow
from tidegate.consumer.offsets import Offsets
from tidegate.consumer.source import Topic

PEEK_BYTES: Final = 1
"""Of a partition that is not read: its first message says whether there is one."""


@dataclass(frozen=True, slots=True)
class News:
    """One round of fetching."""

    ends: Mapping[int, int]
    """Where each partition that was asked for ended when the round began."""
    fetched: list[Fetched]
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's ids of the topics, as they were after the fetch."""
    partitions: list[int] = field(default_factory=list)
    """All partitions to read, as the broker had them *after* the fetch: what was written to a new one before
    a watermark that came with this round is not missed. Empty when nothing was fetched."""
    unread: Mapping[int, int] = field(default_factory=dict)
    """Where those of them end that belong to a topic that is read, and are not read."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """Of the partitions that the flow `asked` for: their ends, committed or not, when the round began."""


class Rounds:
    """Asks the broker, and lets a fetcher fetch."""

    def __init__(self, topic: Topic, flow: Flow | OffsetFlow, offsets: Offsets, staging: Path) -> None:
        """`staging`: where fetched rows are kept until they are applied."""
        self._topic, self._flow, self._offsets, self._staging = topic, flow, offsets, staging
        self._hollow: dict[int, int] = {}
        """Where partitions end that are not read, since nothing but aborted transactions is on them."""

    def fetch(self, fetcher: Fetcher, wanted: Mapping[int, int]) -> News:
        """One round: every partition with news, one task each. Runs beside the writing driver."""
        topic, behind = self._topic, self._offsets.ends_written(self._flow.asked())
        ends = self._offsets.ends(list(wanted))
        check_whole(topic, wanted, ends)
        ranges = [Range(p, start, ends[p]) for p, start in wanted.items() if start < ends[p]]
        if not ranges:
            return News(ends, [], behind=behind)
        fetched = fetcher.fetch(topic, ranges, self._staging)
        if any(part.trouble for part in fetched):
            check_retained(topic, wanted, self._offsets.first(list(wanted)))
        for part in fetched:
            for layout in part.layouts:
                name = topic.place(part.partition)[0]
                self._offsets.written[name] = max(layout.all, self._offsets.written.get(name, 0))
        partitions = self._offsets.partitions()
        unread = self._visible(fetcher, self._offsets.ends(unread_of(topic, self._flow, partitions)))
        ids = self._offsets.ids(topic.names_of(partitions))
        return News(ends, fetched, ids, partitions, behind=behind, unread=unread)

    def _visible(self, fetcher: Fetcher, ends: Mapping[int, int]) -> dict[int, int]:
        """Where unread partitions end; 0 if nothing but aborted transactions is on them."""
        ranges = [
            Range(p, 0, end, PEEK_BYTES) for p, end in ends.items() if end > 0 and self._hollow.get(p) != end
        ]
        with TemporaryDirectory(dir=self._staging) as staged:
            found = fetcher.fetch(self._topic, ranges, Path(staged)) if ranges else []
        for part in found:
            if not (part.messages or part.trouble or part.outage):
                self._hollow[part.partition] = ends[part.partition]
        return {p: 0 if self._hollow.get(p) == end else end for p, end in ends.items()}


def unread_of(topic: Topic, flow: Flow | OffsetFlow, partitions: list[int]) -> list[int]:
    """Those of a topic that is read which are not read themselves; by offset, each must be."""
    if topic.by_offset:
        return []
    known = flow.next_offsets()
    names = topic.names_of(known)
    return [p for p in partitions if p not in known and topic.place(p)[0] in names]
