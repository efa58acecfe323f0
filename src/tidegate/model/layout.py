"""Over how many partitions of a topic a changefeed spreads rows, and since when: docs/repartition.md. Pure.

The number changes at a ts T, in one transaction. Every Resolved from T on, in every partition, carries the
change in two headers, so that a reader needs no other message to learn of it:

    tidegate-epoch        digits: how often the number has changed
    tidegate-partitions   JSON: ts (T), old, new, all
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

EPOCH: Final = "tidegate-epoch"
PARTITIONS: Final = "tidegate-partitions"
PARTITIONS_MAX: Final = 1 << 16
"""The highest number of partitions of one topic that a reader can number (`consumer.engine.places`)."""
COUNT_MAX: Final = 1 << 63
DIGITS_MAX: Final = 19


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions of one topic since the last change of their number."""

    epoch: int
    """How often the number has changed, from 1 on."""
    ts: int
    """Rows with a commit ts up to this are spread over `old` partitions, rows above it over `new`."""
    old: int
    new: int
    all: int
    """How many partitions were ever written. All of them get Resolved and DDL, also those without rows
    now."""

    def __post_init__(self) -> None:
        """Raises ValueError for values that no changefeed writes."""
        counts = self.old, self.new, self.all
        if not all(isinstance(one, int) and 0 < one <= PARTITIONS_MAX for one in counts):
            raise ValueError("a number of partitions is none")
        if not all(isinstance(one, int) and 0 < one < 2 * COUNT_MAX for one in (self.epoch, self.ts)):
            raise ValueError("epoch or ts is no count")
        if self.all < max(self.old, self.new):
            raise ValueError("not all partitions have Resolved")

    def changed(self, ts: int, partitions: int) -> Layout:
        """The next layout: above `ts`, rows are spread over `partitions` partitions."""
        assert ts >= self.ts, f"a change at {ts} after one at {self.ts}"
        return Layout(self.epoch + 1, ts, self.new, partitions, max(self.all, partitions))

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The headers of a Resolved."""
        body = {"ts": self.ts, "old": self.old, "new": self.new, "all": self.all}
        return (
            (EPOCH, str(self.epoch).encode()),
            (PARTITIONS, json.dumps(body, separators=(",", ":")).encode()),
        )

    @classmethod
    def of_headers(cls, epoch: Any, partitions: Any) -> Layout:
        """The inverse of `headers`. Raises ValueError if the headers are not valid."""
        body = json.loads(bytes(partitions or b""))
        if not isinstance(body, dict):
            raise ValueError("it is no JSON object")
        try:
            return cls(count_of(epoch), *(body[name] for name in ("ts", "old", "new", "all")))
        except KeyError as error:
            raise ValueError(f"it has no {error}") from error

    def to_json(self) -> dict[str, int]:
        """The form stored with the changefeed's progress."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, int]) -> Layout:
        """The inverse of `to_json`."""
        return cls(found["epoch"], found["ts"], found["old"], found["new"], found["all"])


def count_of(value: Any) -> int:
    """A count below 2**63, parsed from digits. Raises ValueError."""
    text = bytes(value or b"")
    if not text.isdigit() or len(text) > DIGITS_MAX:
        raise ValueError("it is no count")
    return int(text)


def first_change(ts: int, before: int, partitions: int) -> Layout:
    """The first layout of a topic that has had `before` partitions since its creation."""
    return Layout(1, ts, before, partitions, max(before, partitions))
