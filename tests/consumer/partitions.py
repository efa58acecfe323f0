"""How scripts of the consumer name partitions: `0`, `1` of a single topic; `a0`, `b1` of topics a and b."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.consumer.engine.places import PARTITION_BITS, topic_index

_TOPICS = "ab"
_IN_TOPIC = (1 << PARTITION_BITS) - 1


def partitions_of(text: str) -> list[int]:
    """The numbers of `a0,b1`; of `2`, a single topic's first two."""
    return list(range(int(text))) if text.isdigit() else [partition_of(one) for one in text.split(",")]


def partition_of(text: str) -> int:
    """The number of one partition (`places`)."""
    if text.isdigit():
        return int(text)
    return _TOPICS.index(text[0]) << PARTITION_BITS | int(text[1:])


class Labels:
    """Writes them back, as the scenario names them."""

    def __init__(self, text: str) -> None:
        self.single = text.isdigit()

    def of(self, number: int) -> str:
        """One partition."""
        return str(number) if self.single else f"{'abcdefgh'[topic_index(number)]}{number & _IN_TOPIC}"

    def bounds(self, bounds: Iterable[tuple[int, int]]) -> str:
        """Up to where partitions go."""
        return " ".join(f"{self.of(number)} to {at}" for number, at in bounds)

    @property
    def topics(self) -> str:
        """The names of the topics, those included that are not there yet."""
        return "t" if self.single else "a,b"
