"""Checks the keys of a request against the API versions of the store and the request. Pure.

Under API V2 the first byte of a key is its mode: `r` raw, `x` transactional, each followed by three bytes of
keyspace id; `m` and `t` are TiDB's, which older clients (V1) still use. A V1 store does not check keys.
(TiKV: components/api_version, storage/mod.rs `check_api_version`.)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from tidegate.proto import kvrpcpb_pb2 as pb

RAW_PREFIX: Final = b"r"
TXN_PREFIX: Final = b"x"
KEYSPACE_ID_MAX: Final = (1 << 24) - 1


class KeyMode(StrEnum):
    """The mode of a key under API V2."""

    RAW = "RawKV"
    TXN = "TxnKV"
    TIDB = "TiDB"
    UNKNOWN = "unknown"


_MODES: Final = {b"r": KeyMode.RAW, b"x": KeyMode.TXN, b"m": KeyMode.TIDB, b"t": KeyMode.TIDB}


def key_mode(raw: bytes) -> KeyMode:
    """The mode of a key, by its first byte."""
    return _MODES.get(raw[:1], KeyMode.UNKNOWN)


def range_mode(start: bytes, end: bytes) -> KeyMode:
    """The mode of all keys in [start, end); UNKNOWN if the range may hold keys of several modes."""
    mode = key_mode(start)
    after = bytes([start[0] + 1]) if start and start[0] < 0xFF else b""
    return mode if key_mode(end) is mode or (end and end == after) else KeyMode.UNKNOWN


def keyspace_prefix(mode: bytes, keyspace_id: int) -> bytes:
    """The first four bytes of every key of a keyspace."""
    return mode + keyspace_id.to_bytes(3, "big")


def refusal(store: int, context: pb.Context, raw: bool, modes: Iterable[tuple[KeyMode, bytes]]) -> str:
    """The reason why a store of API version `store` refuses a request; empty if it serves it.

    `modes`: the mode of each key or range, with the key for the message.
    """
    asked = context.api_version
    wanted = KeyMode.RAW if raw else KeyMode.TXN
    if store == 1:
        return "" if asked == pb.V1 else _mismatch(store, asked)
    if asked == pb.V1 and not raw:
        wanted = KeyMode.TIDB
    elif asked != pb.V2:
        return _mismatch(store, asked)
    for mode, key in modes:
        if mode is not wanted:
            return (
                f"invalid key mode: a request of API {pb.APIVersion.Name(asked)} may name "
                f"{wanted} keys only, {key.hex()} is {mode}"
            )
    return ""


def _mismatch(store: int, asked: pb.APIVersion) -> str:
    return f"API version not matched: the store has V{store}, the request {pb.APIVersion.Name(asked)}"
