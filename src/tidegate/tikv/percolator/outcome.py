"""The result of a command, and the errors with which it refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import mvcc
from tidegate.tikv.mvcc import Change, Lock, Write

Response = TypeVar("Response")


class Announced(Protocol):
    """The resolved ts that CDC has announced in a region."""

    @property
    def highest(self) -> int:
        """The highest resolved ts sent to any downstream."""
        ...

    def __call__(self, key: bytes, /) -> int:
        """The highest resolved ts sent to downstreams that observe the encoded key."""
        ...


_OPS: Final = {
    mvcc.KIND_PUT: pb.Put,
    mvcc.KIND_DELETE: pb.Del,
    mvcc.KIND_LOCK: pb.Lock,
    mvcc.KIND_PESSIMISTIC: pb.PessimisticLock,
    mvcc.KIND_ROLLBACK: pb.Rollback,
}


class Blocked(NamedTuple):
    """Another transaction's lock, which a command may wait for; `key` is encoded, `raw` is not."""

    key: bytes
    raw: bytes
    lock: Lock


class CommandOutcome(NamedTuple, Generic[Response]):
    """The response and the changes of a command.

    `old_values`: encoded key -> value (None: none), filled by a prewrite if requested. `one_pc`: the changes
    are a whole transaction (raft's header flag ONE_PC). `blocked`: the lock to wait for; `response` is the
    answer if the command does not wait. `published`: keys locked in memory until the changes are applied.
    """

    response: Response
    changes: Sequence[Change] = ()
    old_values: Mapping[bytes, bytes | None] = {}
    one_pc: bool = False
    blocked: Blocked | None = None
    published: Collection[bytes] = ()


class RefusedError(Exception):
    """A rule of the protocol forbids the command; carries the error for the client."""

    def __init__(self, error: pb.KeyError) -> None:
        super().__init__(error)
        self.error = error


def op_of(kind: int) -> pb.Op:
    """The kvrpcpb operation of a record's kind."""
    return _OPS[kind]


def lock_info(key: bytes, lock: Lock) -> pb.LockInfo:
    """A lock as kvrpcpb's LockInfo; `key` is raw."""
    return pb.LockInfo(
        primary_lock=lock.primary,
        lock_version=lock.start_ts,
        key=key,
        lock_ttl=lock.ttl,
        txn_size=lock.txn_size,
        lock_type=_OPS[lock.kind],
        lock_for_update_ts=lock.for_update_ts,
        use_async_commit=lock.secondaries is not None,
        min_commit_ts=lock.min_commit_ts,
        secondaries=lock.secondaries or (),
    )


def locked(key: bytes, lock: Lock) -> RefusedError:
    """The error if another transaction has locked the raw key."""
    return RefusedError(pb.KeyError(locked=lock_info(key, lock)))


def conflict(
    request: pb.PrewriteRequest | pb.PessimisticLockRequest,
    key: bytes,
    commit_ts: int,
    write: Write,
    reason: pb.WriteConflict.Reason,
) -> RefusedError:
    """The error if the raw key has a record that is too new for the transaction."""
    found = pb.WriteConflict(
        start_ts=request.start_version,
        conflict_ts=write.start_ts,
        conflict_commit_ts=commit_ts,
        key=key,
        primary=request.primary_lock,
        reason=reason,
    )
    return RefusedError(pb.KeyError(conflict=found))


def abort(text: str) -> RefusedError:
    """The error if the transaction cannot continue."""
    return RefusedError(pb.KeyError(abort=text))
