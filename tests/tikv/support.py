"""Shared by tests of the embedded upstream: an ordered view in memory, and short ways to make requests."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import Any

from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.cdc.channel import Channel
from tidegate.tikv.mvcc import Change, Lock, Write
from tidegate.tikv.reader import MvccReader


class MemoryView:
    """The engine's contract over sorted lists: the plain twin for pure tests."""

    def __init__(self) -> None:
        self.families: list[dict[bytes, bytes]] = [{}, {}, {}, {}]

    def get(self, cf: int, key: bytes) -> bytes | None:
        return self.families[cf].get(key)

    def getter(self, cf: int) -> Callable[[bytes], bytes | None]:
        return self.families[cf].get

    def cursor(self, cf: int, upper: bytes = b"") -> MemoryCursor:
        return MemoryCursor({k: v for k, v in self.families[cf].items() if not upper or k < upper})

    def apply(self, changes: Iterable[Change]) -> None:
        for cf, key, value in changes:
            if value is None:
                self.families[cf].pop(key, None)
            else:
                self.families[cf][key] = value

    def put_write(self, raw: bytes, commit_ts: int, write: Write) -> None:
        self.families[mvcc.WRITE][keys.versioned(keys.encode(raw), commit_ts)] = mvcc.encode_write(write)

    def delete_write(self, raw: bytes, commit_ts: int) -> None:
        del self.families[mvcc.WRITE][keys.versioned(keys.encode(raw), commit_ts)]

    def put_lock(self, raw: bytes, lock: Lock) -> None:
        self.families[mvcc.LOCK][keys.encode(raw)] = mvcc.encode_lock(lock)

    def lock(self, raw: bytes) -> Lock | None:
        stored = self.families[mvcc.LOCK].get(keys.encode(raw))
        return None if stored is None else mvcc.decode_lock(stored)

    def writes(self, raw: bytes) -> list[tuple[int, Write]]:
        return list(MvccReader(self).writes(keys.encode(raw)))


class MemoryCursor:
    """A fixed copy of one family."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self._keys = sorted(entries)
        self._entries = entries
        self._at = -1

    def seek(self, key: bytes, /) -> None:
        self._at = bisect.bisect_left(self._keys, key)

    def seek_for_prev(self, key: bytes, /) -> None:
        self._at = bisect.bisect_right(self._keys, key) - 1

    def seek_to_last(self) -> None:
        self._at = len(self._keys) - 1

    def valid(self) -> bool:
        return 0 <= self._at < len(self._keys)

    def key(self) -> bytes:
        return self._keys[self._at]

    def value(self) -> bytes:
        return self._entries[self.key()]

    def next(self) -> None:
        self._at += 1

    def prev(self) -> None:
        self._at -= 1


def put(key: bytes, value: bytes = b"v", **more: Any) -> pb.Mutation:
    return pb.Mutation(op=pb.Put, key=key, value=value, **more)


def delete(key: bytes, **more: Any) -> pb.Mutation:
    return pb.Mutation(op=pb.Del, key=key, **more)


def prewrite(start_ts: int, *mutations: pb.Mutation, primary: bytes = b"", **more: Any) -> pb.PrewriteRequest:
    return pb.PrewriteRequest(
        mutations=mutations,
        primary_lock=primary or mutations[0].key,
        start_version=start_ts,
        lock_ttl=more.pop("lock_ttl", 3000),
        **more,
    )


def commit(start_ts: int, commit_ts: int, *raw: bytes) -> pb.CommitRequest:
    return pb.CommitRequest(start_version=start_ts, commit_version=commit_ts, keys=raw)


def rollback(start_ts: int, *raw: bytes) -> pb.BatchRollbackRequest:
    return pb.BatchRollbackRequest(start_version=start_ts, keys=raw)


def pessimistic_lock(
    start_ts: int, for_update_ts: int, *raw: bytes, primary: bytes = b"", **more: Any
) -> pb.PessimisticLockRequest:
    return pb.PessimisticLockRequest(
        mutations=[pb.Mutation(op=pb.PessimisticLock, key=key) for key in raw],
        primary_lock=primary or raw[0],
        start_version=start_ts,
        for_update_ts=for_update_ts,
        lock_ttl=more.pop("lock_ttl", 3000),
        **more,
    )


def taken(channel: Channel) -> list[cdc.ChangeDataEvent] | None:
    """Return what a client gets from a channel now."""
    messages = channel.take()
    return None if messages is None else [cdc.ChangeDataEvent.FromString(each) for each in messages]
