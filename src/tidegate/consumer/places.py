"""One number for each partition of a source, which may be several topics. Pure.

Topics are in the order of their names, and a topic's index stands above `PARTITION_BITS`: so the partitions
of a single topic have their own numbers, and with a topic more those of others may have new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PARTITION_BITS: Final = 16


def number_of(names: Sequence[str], name: str, partition: int) -> int:
    """The number of a partition of one of these topics, which are sorted."""
    return names.index(name) << PARTITION_BITS | partition


def topic_index(number: int) -> int:
    """Which of the topics a partition is of."""
    return number >> PARTITION_BITS


def place_of(names: Sequence[str], number: int) -> tuple[str, int]:
    """The inverse of `number_of`."""
    return names[number >> PARTITION_BITS], number & ((1 << PARTITION_BITS) - 1)
