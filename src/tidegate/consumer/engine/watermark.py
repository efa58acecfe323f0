"""How far each partition is resolved, and up to which ts its rows may be applied. Pure.

A partition's *watermark* is the largest Resolved ts read from it: every row of that partition with commit_ts
<= watermark comes before that mark. The *lowest* watermark over all partitions, of all topics, is the ts up
to which everything is complete; it is 0 until every partition has brought a Resolved.

Transaction mode applies all partitions up to one common bound, so the target moves from one consistent state
to the next. Table mode has such a bound for each topic. All rows of a table are in one topic, so each table
moves from one consistent state to the next. Row mode lets each partition advance to its own watermark. None
of them passes a waiting DDL (at F): rows <= F are applied first, then the DDL once all partitions have
reached F, then rows above.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidegate.consumer.engine.places import topic_index


class Mode(StrEnum):
    """Consistency of the target while it moves."""

    ROW = "row"
    TABLE = "table"
    TRANSACTION = "transaction"


class Watermarks:
    """The watermark of each partition; moves forward only."""

    def __init__(self, known: Mapping[int, int]) -> None:
        """`known` names every partition of the topics, with 0 where nothing was read yet."""
        assert known, "a topic has at least one partition"
        self._at = dict(known)
        self.went_back = 0
        """Resolved marks below one already seen: the producer repeated them after an unclean stop."""

    def join(self, partition: int) -> None:
        """Add a new partition; the lowest watermark is 0 until it has brought a Resolved."""
        assert partition not in self._at
        self._at[partition] = 0

    def leave(self, partition: int) -> None:
        """Remove a partition that is not read any more, so that it holds nothing back."""
        del self._at[partition]

    def advance(self, partition: int, ts: int) -> bool:
        """Take a Resolved ts of a partition; False (and counted) when it is below an earlier one."""
        # Rows up to the larger mark have come already. To go back would hold up all partitions for nothing.
        if ts < self._at[partition]:
            self.went_back += 1
            return False
        self._at[partition] = ts
        return True

    def of(self, partition: int) -> int:
        """One partition's watermark."""
        return self._at[partition]

    @property
    def lowest(self) -> int:
        """The ts up to which every partition is complete."""
        return min(self._at.values())

    def laggards(self) -> list[int]:
        """The partitions that are at the lowest watermark."""
        lowest = self.lowest
        return [partition for partition, ts in self._at.items() if ts == lowest]

    def items(self) -> Iterable[tuple[int, int]]:
        """(partition, watermark) of every partition."""
        return self._at.items()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds besides the watermarks."""

    ddl_ts: int | None = None
    """FinishedTS of the first waiting DDL."""
    switch_ts: int | None = None
    """The ts at which the number of partitions changes: above it a row may continue in another partition, so
    no partition passes it until all have reached it."""
    until: int | None = None
    """The last ts that may be applied."""
    ddl_places: tuple[tuple[int, ...], ...] = ()
    """The partitions that carry DDLs: each DDL is on all partitions of one of these groups. No partition is
    applied past the watermark of a group's furthest partition, because DDLs are known only up to there.
    Empty: each DDL is on every partition."""
    align: int | None = None
    """Row and table mode: no partition passes this ts until all have reached it, so that a snapshot can be
    named."""


def bounds(watermarks: Watermarks, mode: Mode, limits: Limits) -> dict[int, int]:
    """The commit_ts (inclusive) up to which each partition's rows may be applied now."""
    caps = [cap for cap in (limits.ddl_ts, limits.switch_ts, limits.until) if cap is not None]
    if mode is Mode.TRANSACTION:
        # The rows of one transaction may be in any partitions, so none may go further than the slowest.
        common = min([watermarks.lowest, *caps])
        return {partition: common for partition, _ in watermarks.items()}
    own = dict(watermarks.items())
    if mode is Mode.TABLE:
        # Likewise a transaction's rows of one table may be in any partitions of its topic.
        # docs/guarantees.md#in-table-mode-a-transaction-is-whole-in-each-table
        own = _lowest_of_topics(own)
    caps += [] if limits.align is None else [limits.align]
    # The furthest of a group: it has read every DDL below its own watermark, and the group's other
    # partitions carry the same DDLs.
    caps += [max(map(watermarks.of, group)) for group in limits.ddl_places]
    return {partition: min([ts, *caps]) for partition, ts in own.items()}


def _lowest_of_topics(watermarks: Mapping[int, int]) -> dict[int, int]:
    lowest: dict[int, int] = {}
    for partition, ts in watermarks.items():
        topic = topic_index(partition)
        lowest[topic] = min(ts, lowest.get(topic, ts))
    return {partition: lowest[topic_index(partition)] for partition in watermarks}
