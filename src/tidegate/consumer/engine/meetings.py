"""Row mode: all partitions of a topic pass its alignment marks together. Pure.

A mark at ts T is on every partition of its topic (docs/formats/contract.md#alignment-marks): rows at T may
take a unique value that a row of another partition has below T. If a partition passed T alone, the value
would be taken at the target before it is free. So the marks lower the bounds that the watermarks allow.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.consumer.engine.assembler import Assembler
from tidegate.consumer.engine.places import topic_index


class Meetings:
    """The marks that not all partitions have passed. The caller bounds their number (`flow.MAX_MEETINGS`)."""

    def __init__(self, assembler: Assembler, partitions: Iterable[int]) -> None:
        """`assembler`: knows how far each partition is applied."""
        self._assembler = assembler
        self._members: dict[int, list[int]] = {}
        """The partitions of each topic."""
        self._marks: dict[int, dict[int, dict[int, int]]] = {}
        """By topic and commit ts, the offset of the first copy in each partition. A topic without marks has
        no entry."""
        for number in partitions:
            self.join(number)

    @property
    def count(self) -> int:
        """The number of marks that are kept."""
        return sum(map(len, self._marks.values()))

    def join(self, partition: int) -> None:
        """Add a partition, which meets the others of its topic from now on."""
        self._members.setdefault(topic_index(partition), []).append(partition)

    def leave(self, partition: int) -> None:
        """Remove a partition of which nothing was read."""
        self._members[topic_index(partition)].remove(partition)

    def take(self, partition: int, marks: Iterable[tuple[int, int]]) -> None:
        """Take the marks that were read from a partition, as (ts, offset)."""
        for ts, offset in marks:
            copies = self._marks.setdefault(topic_index(partition), {}).setdefault(ts, {})
            copies.setdefault(partition, offset)

    def lowered(self, allowed: dict[int, int]) -> dict[int, int]:
        """Lower the bounds so that each topic's partitions pass its marks together.

        `low` is the ts that all its partitions may reach now. Marks at or below `low` need no stop, because
        all partitions advance to `low` in one step, and a step is written as its net effect, deletes first,
        so the order within it does not matter. Above `low`, no partition reaches the first mark before all
        can. A partition whose watermark covers a mark has read that mark, so none can pass it unnoticed.
        """
        for topic in list(self._marks):
            members = self._members[topic]
            if not self._are_left(topic, min(map(self._assembler.applied, members))):
                continue
            first = min(self._marks[topic])
            # docs/guarantees.md#with-the-dispatcher-conflict-no-unique-value-is-taken-before-it-is-free
            low = min(allowed[number] for number in members)
            cap = low if first <= low else first - 1
            allowed |= {number: min(allowed[number], cap) for number in members}
        return allowed

    def offsets_ahead(self, partition: int) -> list[int]:
        """Offsets of the marks that a partition has read and not reached: a restart must read them again."""
        applied, marks = self._assembler.applied(partition), self._marks.get(topic_index(partition), {})
        return [copies[partition] for ts, copies in marks.items() if ts > applied and partition in copies]

    def _are_left(self, topic: int, applied: int) -> bool:
        """Forget a topic's marks that all its partitions have passed. Returns whether any are left."""
        marks = self._marks[topic]
        for ts in [ts for ts in marks if ts <= applied]:
            del marks[ts]
        if not marks:
            del self._marks[topic]
        return bool(marks)
