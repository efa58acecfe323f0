"""TSO timestamps: 64 bits, physical milliseconds << 18 | logical.

A *resolved ts* R: every commit <= R has been received. A *checkpoint ts* C: every commit <= C is durable
downstream. C <= R always.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

Timestamp = int
"""A TSO timestamp. An alias, not a NewType: most timestamps are in numpy and Arrow columns."""

LOGICAL_BITS: Final = 18
MAX: Final = (1 << 64) - 1


def compose(physical_ms: int, logical: int = 0) -> Timestamp:
    """The timestamp of a physical time in ms since 1970 and a logical counter below 2**18."""
    return (physical_ms << LOGICAL_BITS) | logical


def physical_ms(ts: Timestamp) -> int:
    """Milliseconds since 1970."""
    return ts >> LOGICAL_BITS


def logical(ts: Timestamp) -> int:
    """The counter within the millisecond."""
    return ts & ((1 << LOGICAL_BITS) - 1)


def readable(ts: Timestamp) -> str:
    """UTC time with milliseconds, for people."""
    return datetime.fromtimestamp(physical_ms(ts) / 1000, UTC).isoformat(timespec="milliseconds")
