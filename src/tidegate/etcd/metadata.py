"""The metadata store of several captures: `control.metadata.MetadataStore` over etcd.

    guards, and each written key's revision as we know it --Txn--> yes: written
                                                          +------> no: all these keys as they are now

The second kind of guard is for attempts that are repeated because no answer came. The first attempt may still
be on its way. If it arrived after later writes, it would store an older value, for example a checkpoint that
goes back. With the key's revision as a guard, it can be carried out only once, and only before later writes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from tidegate.control.metadata import (
    Compare,
    Delete,
    GuardedWrites,
    KeyValue,
    Put,
    WriteResult,
)
from tidegate.errors import Fatal
from tidegate.etcd.client import EtcdClient, Unanswered
from tidegate.proto import etcdserverpb_pb2 as pb

SCHEME: Final = "etcd:"
PAGE: Final = 500
"""The number of keys read at once; a key with its value has a few KiB."""
PROOF_S: Final = 3.0
"""How long a worker waits for etcd; this must be shorter than its transaction lasts at the sink."""
ROUNDS: Final = 16
"""How often a transaction is tried if another program writes the same keys unguarded. No capture does."""
KNOWN_MAX: Final = 100_000
"""The most keys whose revision is remembered. Beyond it all are forgotten, and read before a write."""


class EtcdMetadata:
    """A `control.metadata.MetadataStore`. Thread-safe; calls block until etcd answers, or raise Retryable.

    A write that raised Retryable may have been carried out or not.
    """

    def __init__(self, client: EtcdClient) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}

    def get(self, key: str) -> KeyValue | None:
        """The latest committed value of a key."""
        found = self.client.range(key.encode())
        return _key_value(found.kvs[0]) if found.kvs else None

    def under(self, prefix: str) -> Sequence[KeyValue]:
        """All keys that begin with `prefix`, in key order, as of one revision."""
        at, end = prefix.encode(), _after(prefix.encode())
        found: list[KeyValue] = []
        revision = 0
        while True:
            page = self.client.range(at, end, limit=PAGE, revision=revision)
            found += [_key_value(one) for one in page.kvs]
            if not page.more:
                return found
            # All pages at the revision of the first one: a change in between must not be seen by half.
            revision = revision or int(page.header.revision)
            at = page.kvs[-1].key + b"\0"

    def transact(self, guards: Sequence[Compare], writes: Sequence[Put | Delete]) -> WriteResult:
        """Apply all writes at one new revision if all guards hold, otherwise none."""
        return self._through(
            GuardedWrites(tuple(guards), tuple(writes)), self._request(guards, writes), unsure=False
        )

    def transact_all(self, asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        """Run transactions as if one after the other. If it raises, each may have been applied or not."""
        outcomes: list[WriteResult] = []
        for group in _apart(asked):
            requests = [self._request(one.guards, one.writes) for one in group]
            answers = self.client.try_txns(requests)
            for one, request, answer in zip(group, requests, answers, strict=True):
                if isinstance(answer, Unanswered):
                    # The same request: the revisions with which it compares show whether the first attempt
                    # was carried out.
                    outcomes.append(self._through(one, request, unsure=True))
                    continue
                outcome = self._judge(one, answer, unsure=False)
                if outcome is None:
                    outcome = self._through(one, self._request(one.guards, one.writes), unsure=False)
                outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _through(self, asked: GuardedWrites, request: pb.TxnRequest, *, unsure: bool) -> WriteResult:
        """Repeat a transaction until its outcome is known. `unsure`: an earlier attempt was not answered."""
        state = [unsure]

        def attempt() -> pb.TxnResponse:
            try:
                return self.client.try_txn(request)
            except Unanswered:
                # The attempt may have been carried out, so a guard that fails next may be our own write.
                state[0] = True
                raise

        for _ in range(ROUNDS):
            outcome = self._judge(asked, self.client.until_answered(attempt), unsure=state[0])
            if outcome is not None:
                return outcome
            # An earlier attempt that is still on its way can have no effect any more: its guard fails.
            request, state[0] = self._request(asked.guards, asked.writes), False
        raise Fatal(
            "another program writes the keys of this cluster's captures",
            where=", ".join(write.key for write in asked.writes),
            why=f"they changed between {ROUNDS} attempts, and no owner's key did",
            fix="find the program that writes below /tidegate in this etcd, and stop it",
        )

    def _request(self, guards: Sequence[Compare], writes: Sequence[Put | Delete]) -> pb.TxnRequest:
        keys = [write.key for write in writes]
        with self._lock:
            known = {key: self._known.get(key) for key in keys}
        # Read before the first attempt. Later it could be the revision of this very write, and a repeated
        # attempt would be carried out twice.
        for key in (key for key, revision in known.items() if revision is None):
            found = self.get(key)
            known[key] = found.mod_revision if found is not None else 0
        compares = [one for guard in guards for one in _compares(guard)]
        # A guard with a revision of the same key is enough, and etcd takes few comparisons in a transaction.
        guarded = {guard.key for guard in guards if guard.mod_revision is not None}
        compares += [_mod(key, revision or 0) for key, revision in known.items() if key not in guarded]
        looked_at = dict.fromkeys([*keys, *(guard.key for guard in guards)])
        return pb.TxnRequest(
            compare=compares,
            success=[_operation(write) for write in writes],
            failure=[pb.RequestOp(request_range=pb.RangeRequest(key=key.encode())) for key in looked_at],
        )

    def _judge(self, asked: GuardedWrites, answer: pb.TxnResponse, *, unsure: bool) -> WriteResult | None:
        """The outcome of a transaction; None: a written key had another revision than we knew."""
        revision = int(answer.header.revision)
        if answer.succeeded:
            self._remember((write.key, revision if isinstance(write, Put) else 0) for write in asked.writes)
            return WriteResult(True, revision)
        found = {
            one.key: one
            for part in answer.responses
            for kv in part.response_range.kvs
            for one in [_key_value(kv)]
        }
        # Also after a failure: the next request compares with these revisions.
        self._remember(
            (write.key, found[write.key].mod_revision if write.key in found else 0) for write in asked.writes
        )
        # An earlier attempt may have been applied, and this one has then failed because of it.
        if unsure and (done := _done_at(asked.writes, found, revision)):
            return WriteResult(True, done)
        return None if all(_holds(guard, found) for guard in asked.guards) else WriteResult(False, revision)

    def _remember(self, revisions: Iterable[tuple[str, int]]) -> None:
        with self._lock:
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            self._known.update(revisions)


@lru_cache(maxsize=8)
def shared(place: str) -> EtcdMetadata:
    """The store at `etcd:ENDPOINTS`; all callers in a process share its connections."""
    return EtcdMetadata(EtcdClient(place.removeprefix(SCHEME), patience_s=PROOF_S))


def _apart(asked: Sequence[GuardedWrites]) -> Iterable[list[GuardedWrites]]:
    """Groups of transactions that may run at once: none writes a key that another writes or compares."""
    group: list[GuardedWrites] = []
    written: set[str] = set()
    compared: set[str] = set()
    for one in asked:
        writes, guards = {write.key for write in one.writes}, {guard.key for guard in one.guards}
        if writes & (written | compared) or guards & written:
            yield group
            group, written, compared = [], set(), set()
        group.append(one)
        written |= writes
        compared |= guards
    if group:
        yield group


def _done_at(writes: Sequence[Put | Delete], found: Mapping[str, KeyValue], now: int) -> int:
    """The revision at which these writes were applied; 0: they were not, or were overwritten since."""
    # Deleted keys have no revision, so the present one stands for it.
    if not any(isinstance(write, Put) for write in writes):
        return now if not any(write.key in found for write in writes) else 0
    revisions = set()
    for write in writes:
        held = found.get(write.key)
        if isinstance(write, Delete):
            if held is not None:
                return 0
        elif held is None or held.value != write.value:
            return 0
        else:
            revisions.add(held.mod_revision)
    # A transaction gives all its keys one revision. If they have several, some were written again after it.
    return revisions.pop() if len(revisions) == 1 else 0


def _holds(guard: Compare, found: Mapping[str, KeyValue]) -> bool:
    held = found.get(guard.key)
    created, modified = (held.create_revision, held.mod_revision) if held is not None else (0, 0)
    return guard.create_revision in (None, created) and guard.mod_revision in (None, modified)


def _compares(guard: Compare) -> Iterable[pb.Compare]:
    key = guard.key.encode()
    if guard.mod_revision is not None:
        yield _mod(guard.key, guard.mod_revision)
    if guard.create_revision is not None:
        yield pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=guard.create_revision)


def _mod(key: str, revision: int) -> pb.Compare:
    return pb.Compare(target=pb.Compare.MOD, key=key.encode(), mod_revision=revision)


def _operation(write: Put | Delete) -> pb.RequestOp:
    if isinstance(write, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=write.key.encode()))
    return pb.RequestOp(request_put=pb.PutRequest(key=write.key.encode(), value=write.value))


def _key_value(found: pb.KeyValue) -> KeyValue:
    return KeyValue(
        found.key.decode(), bytes(found.value), int(found.create_revision), int(found.mod_revision)
    )


def _after(prefix: bytes) -> bytes:
    """The least key above all keys with a prefix. The prefix is text, so its last byte is below 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\0"
