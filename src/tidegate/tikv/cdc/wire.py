"""Encodes change events by hand, so the bytes of a row are built once and not converted again.

A *row* here is an entry of `Event.Entries` with its tag and length, an *event* an entry of
`ChangeDataEvent.events`, so both only need to be concatenated. Field numbers are cdcpb's; fields that are
zero or empty are omitted, as in protobuf. Protobuf's own encoder is the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.tikv.mvcc import CACHED, var_u64

PREWRITE: Final = int(pb.Event.PREWRITE)
COMMIT: Final = int(pb.Event.COMMIT)
ROLLBACK: Final = int(pb.Event.ROLLBACK)
COMMITTED: Final = int(pb.Event.COMMITTED)
OP_NONE: Final = 0
OP_PUT: Final = int(pb.Event.Row.PUT)
OP_DELETE: Final = int(pb.Event.Row.DELETE)
_KINDS: Final = tuple(
    tuple(b"\x18%c" % kind + (b"\x20%c" % op if op else b"") for op in range(3)) for kind in range(6)
)
_SIZES_END: Final = 1024
_SIZES: Final = tuple(var_u64(size) for size in range(_SIZES_END))
INITIALIZED: Final = b"\x0a\x02\x18%c" % int(pb.Event.INITIALIZED)
"""The row that marks the end of a scan."""


@lru_cache(CACHED)
def _head(kind: int, op: int, start_ts: int, commit_ts: int) -> bytes:
    """The fields that the rows of a transaction have in common."""
    start = b"\x08" + var_u64(start_ts) if start_ts else b""
    commit = b"\x10" + var_u64(commit_ts) if commit_ts else b""
    return start + commit + _KINDS[kind][op]


def row(
    kind: int,
    op: int,
    start_ts: int,
    commit_ts: int,
    key: bytes,
    value: bytes = b"",
    old_value: bytes = b"",
    txn_source: int = 0,
    generation: int = 0,
    expires: int = 0,
) -> bytes:
    """One row; `key` is raw, `expires` in unix seconds."""
    parts = [_head(kind, op, start_ts, commit_ts)]
    if 0 < len(key) < _SIZES_END and 0 < len(value) < _SIZES_END:  # the usual case
        parts += (b"\x2a", _SIZES[len(key)], key, b"\x32", _SIZES[len(value)], value)
    else:
        if key:
            parts += (b"\x2a", _size(len(key)), key)
        if value:
            parts += (b"\x32", _size(len(value)), value)
    if old_value:
        parts += (b"\x3a", _size(len(old_value)), old_value)
    if expires:
        parts += (b"\x40", var_u64(expires))
    if txn_source:
        parts += (b"\x48", var_u64(txn_source))
    if generation:
        parts += (b"\x50", var_u64(generation))
    body = b"".join(parts)
    return b"\x0a" + _size(len(body)) + body


def _size(length: int) -> bytes:
    return _SIZES[length] if length < _SIZES_END else var_u64(length)


def event(region_id: int, request_id: int, rows: Sequence[bytes], index: int = 0) -> bytes:
    """One event with rows; `index` is the raft index, set only for raw writes."""
    entries = b"".join(rows)
    body = b"".join(
        (
            b"\x08" + var_u64(region_id),
            b"\x10" + var_u64(index) if index else b"",
            b"\x1a" + var_u64(len(entries)),
            entries,
            b"\x38" + var_u64(request_id) if request_id else b"",
        )
    )
    return b"\x0a" + var_u64(len(body)) + body


def framed(message: pb.Event) -> bytes:
    """An event encoded by protobuf: errors, and resolved ts in the old form."""
    body: bytes = message.SerializeToString()
    return b"\x0a" + var_u64(len(body)) + body


def resolved(mark: pb.ResolvedTs) -> bytes:
    """A whole message with a resolved ts."""
    message: bytes = pb.ChangeDataEvent(resolved_ts=mark).SerializeToString()
    return message
