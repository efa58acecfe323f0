"""Key spans: half-open ranges of raw (not memcomparable) user keys; an empty end is plus infinity."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """`[start, end)` of raw keys. `end == b""` means no upper bound (never a run of 0xFF)."""

    start: bytes
    end: bytes

    def __post_init__(self) -> None:
        assert self.end == b"" or self.start < self.end, f"empty span {self.start!r}..{self.end!r}"

    def contains(self, key: bytes) -> bool:
        """Whether `key` is inside the span."""
        return self.start <= key and (self.end == b"" or key < self.end)

    def covers(self, other: Span) -> bool:
        """Whether all of `other` is inside the span."""
        if self.end != b"" and (other.end == b"" or other.end > self.end):
            return False
        return self.start <= other.start

    def intersect(self, other: Span) -> Span | None:
        """The common part, or None."""
        start = max(self.start, other.start)
        ends = [e for e in (self.end, other.end) if e != b""]
        end = min(ends) if ends else b""
        if end != b"" and start >= end:
            return None
        return Span(start, end)

    def cut_at(self, keys: Sequence[bytes]) -> list[Span]:
        """The pieces of the span, cut at those of the ascending `keys` that are inside it."""
        inside = (key for key in keys if self.start < key and self.contains(key))
        return [Span(low, end) for low, end in pairwise([self.start, *inside, self.end])]


def span_id(span: Span, kv_mode: str = "tidb", keyspace: str = "") -> str:
    """16 hex digits that identify the span permanently: SHA-256 over the length-prefixed parts.

    Parts: kv mode, keyspace, start key, end key; each as u32 BE length and bytes.
    """
    digest = hashlib.sha256()
    for part in (kv_mode.encode(), keyspace.encode(), span.start, span.end):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]
