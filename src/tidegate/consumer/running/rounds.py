"""Rounds of fetching: the requests to the broker, and their results.

A round runs on a thread of its own while the driver writes. It reads the flow but never changes it. The
driver applies the results, in `job` and `membership`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.engine.flow import Flow
from tidegate.consumer.engine.offset_flow import OffsetFlow
from tidegate.consumer.reading.fetcher import Fetcher
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_retained, check_whole

PEEK_BYTES: Final = 1
"""The size of a fetch from a partition that is not read: its first message shows whether it has any."""


@dataclass(frozen=True, slots=True)
class News:
    """The result of one round of fetching."""

    ends: Mapping[int, int]
    """The end of each requested partition when the round began."""
    fetched: list[Fetched]
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's ids of the topics after the fetch."""
    partitions: list[int] = field(default_factory=list)
    """All partitions to read, as the broker had them *after* the fetch. So a new partition is not missed if
    its rows were written before a watermark of this round. Empty when nothing was fetched."""
    unread: Mapping[int, int] = field(default_factory=dict)
    """The ends of partitions that are not read, though their topic is."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """The ends, committed or not, of the partitions that the flow `asked` for, when the round began."""


class FetchRounds:
    """Asks the broker for ends, and has a fetcher fetch the ranges."""

    def __init__(self, topic: Topic, flow: Flow | OffsetFlow, offsets: Offsets, staging: Path) -> None:
        """`staging`: the directory of fetched rows until they are applied."""
        self._topic, self._flow, self._offsets, self._staging = topic, flow, offsets, staging
        self._without_rows: dict[int, int] = {}
        """The ends of partitions that are not read because they hold only aborted transactions."""

    def fetch(self, fetcher: Fetcher, wanted: Mapping[int, int]) -> News:
        """One round: a task for each partition with news. Runs while the driver writes."""
        # Asked before the fetch, because `OffsetFlow.take` compares it with the rows of earlier rounds.
        topic, behind = self._topic, self._offsets.ends_written(self._flow.asked())
        ends = self._offsets.ends(list(wanted))
        check_whole(topic, wanted, ends)
        # Up to an end that was asked for before, so that a task stops although the producer continues.
        ranges = [Range(p, start, ends[p]) for p, start in wanted.items() if start < ends[p]]
        if not ranges:
            return News(ends, [], behind=behind)
        fetched = fetcher.fetch(topic, ranges, self._staging)
        # Only now: the request for oldest offsets costs a round trip, and a range that the broker has deleted
        # shows as trouble.
        if any(part.trouble for part in fetched):
            check_retained(topic, wanted, self._offsets.first(list(wanted)))
        for part in fetched:
            for layout in part.layouts:
                name = topic.place(part.partition)[0]
                self._offsets.written[name] = max(layout.all, self._offsets.written.get(name, 0))
        # After the fetch, so that a partition is seen that was created before a watermark of this round.
        partitions = self._offsets.partitions()
        unread = self._visible(fetcher, self._offsets.ends(unread_of(topic, self._flow, partitions)))
        ids = self._offsets.ids(topic.names_of(partitions))
        return News(ends, fetched, ids, partitions, behind=behind, unread=unread)

    def _visible(self, fetcher: Fetcher, ends: Mapping[int, int]) -> dict[int, int]:
        """The ends of unread partitions; 0 for those that hold only aborted transactions."""
        ranges = [
            Range(p, 0, end, PEEK_BYTES)
            for p, end in ends.items()
            if end > 0 and self._without_rows.get(p) != end
        ]
        found: Sequence[Fetched] = []
        if ranges:  # a folder that nobody needs could not be made on a full disk
            with TemporaryDirectory(dir=self._staging) as staged:
                found = fetcher.fetch(self._topic, ranges, Path(staged))
        for part in found:
            # A fetch that failed proves nothing. A partition without rows is looked at again only when its
            # end has moved.
            if not (part.messages or part.trouble or part.outage):
                self._without_rows[part.partition] = ends[part.partition]
        return {p: 0 if self._without_rows.get(p) == end else end for p, end in ends.items()}


def unread_of(topic: Topic, flow: Flow | OffsetFlow, partitions: list[int]) -> list[int]:
    """Partitions that are not read though their topic is; none by offset, where each must be read."""
    # Without watermarks, nothing that is announced tells which partitions are written.
    if topic.by_offset:
        return []
    known = flow.next_offsets()
    names = topic.names_of(known)
    return [p for p in partitions if p not in known and topic.place(p)[0] in names]
