"""The keys that a feed without tables follows, as TiKV stores them. Pure.

Under API V2 every key of a keyspace begins with its mode, `r` raw or `x` transactional, and three bytes of
keyspace id. Users and messages show keys without these four bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.config.settings import ReplicaConfig
from tidegate.config.values import RAW_MODE, TXN_MODE
from tidegate.model.span import Span

DEFAULT_KEYSPACE: Final = 0


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A span of TiKV's keys, and how many bytes at the beginning of each key are mode and keyspace."""

    span: Span
    strip: int

    @classmethod
    def of(cls, config: ReplicaConfig) -> KeyRange:
        """The key range of a configuration that was checked."""
        own = config.tidegate
        front = front_of(own.kv_mode, own.keyspace_id)
        start, end = bytes.fromhex(own.start_key), bytes.fromhex(own.end_key)
        if own.key_prefix:
            start = bytes.fromhex(own.key_prefix)
            end = after_all(start)
        return cls(Span(front + start, front + end if end else after_all(front)), len(front))


def front_of(kv_mode: str, keyspace_id: int) -> bytes:
    """Mode and keyspace, with which every key begins; empty for transactional keys of API V1 (-1)."""
    if kv_mode == RAW_MODE:
        return b"r" + max(keyspace_id, DEFAULT_KEYSPACE).to_bytes(3, "big")
    return b"" if keyspace_id < 0 else b"x" + keyspace_id.to_bytes(3, "big")


def keyspace_of(span: Span) -> int:
    """The keyspace of a span's transactional keys under API V2; -1: they can only be keys of API V1."""
    front = span.start[:4]
    whole = len(front) == 4 and front[:1] == b"x" and span.end != b"" and span.end <= after_all(front)
    return int.from_bytes(front[1:], "big") if whole else -1


def scope_of(span: Span, kv_mode: str) -> int:
    """The keyspace whose safepoint protects the history of a span in a kv mode; -1: the whole cluster's."""
    if kv_mode == RAW_MODE:
        return int.from_bytes(span.start[1:4], "big") if span.start[:1] == b"r" else -1
    return keyspace_of(span) if kv_mode == TXN_MODE else -1


def after_all(prefix: bytes) -> bytes:
    """The lowest key above all keys that begin with `prefix`; empty: there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else b""
