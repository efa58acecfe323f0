"""One number for each partition of a source, which may have several topics. Pure.

Topics are sorted by name, and a topic's index is stored above `PARTITION_BITS`. So the partitions of a single
topic keep their own numbers, but adding a topic may change the numbers of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PARTITION_BITS: Final = 16


def number_of(names: Sequence[str], name: str, partition: int) -> int:
    """The number of a partition of one of the topics `names`, which are sorted."""
    return names.index(name) << PARTITION_BITS | partition


def topic_index(number: int) -> int:
    """The index of the topic to which a partition belongs."""
    return number >> PARTITION_BITS


def place_of(names: Sequence[str], number: int) -> tuple[str, int]:
    """The topic and partition of a number: the inverse of `number_of`."""
    return names[number >> PARTITION_BITS], number & ((1 << PARTITION_BITS) - 1)
