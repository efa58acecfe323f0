"""Prewrite: locks for all keys of a request, or for none; with async commit, one-phase commit, and flush.

Async commit: the locks have a min_commit_ts chosen under in-memory locks (`concurrency`), and the primary's
lock names all other keys; the transaction is committed as soon as all locks exist. One-phase commit: the
chosen ts is the commit ts itself, and write records are written instead of locks. If the chosen ts would be
above the client's max_commit_ts, both fall back to two-phase commit, and the ts in the response is 0. Flush
(pipelined DML) is a prewrite of a part; a later generation of a key replaces an earlier one.
(TiKV: storage/txn/actions/prewrite.rs, storage/txn/commands/{prewrite,flush}.rs.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Change, Lock, Write
from tidegate.tikv.percolator.concurrency import Choice, ConcurrencyManager
from tidegate.tikv.percolator.outcome import CommandOutcome, RefusedError, abort, conflict, locked
from tidegate.tikv.reader import MvccReader

Newest = tuple[int, Write]
"""commit_ts and record."""
_KINDS: Final = {
    pb.Put: mvcc.KIND_PUT,
    pb.Insert: mvcc.KIND_PUT,
    pb.Del: mvcc.KIND_DELETE,
    pb.Lock: mvcc.KIND_LOCK,
}
_KINDS_PLAIN: Final = {pb.Put: mvcc.KIND_PUT, pb.Del: mvcc.KIND_DELETE, pb.Lock: mvcc.KIND_LOCK}
_MUST_BE_NEW: Final = (pb.Insert, pb.CheckNotExists)
_NO_ASSERTION: Final = pb.Assertion.Value("None")
_SKIP: Final = pb.PrewriteRequest.SKIP_PESSIMISTIC_CHECK
_HELD: Final = pb.PrewriteRequest.DO_PESSIMISTIC_CHECK
_LAZY: Final = pb.PrewriteRequest.DO_CONSTRAINT_CHECK
Action = int
"""A pb.PrewriteRequest.PessimisticAction."""


def prewrite(
    reader: MvccReader,
    request: pb.PrewriteRequest,
    want_old_values: bool = False,
    concurrency: ConcurrencyManager | None = None,
    encoded: Sequence[bytes] | None = None,
    generation: int = 0,
) -> CommandOutcome[pb.PrewriteResponse]:
    """Lock all keys of the request; if that is not possible, lock none and return the blocking locks.

    `want_old_values`: a downstream observes the region; return the value that a reader at max(start_ts,
    for_update_ts) sees for each key, which the check usually reads anyway. Without `concurrency` every
    transaction is two-phase. `encoded`: the mutations' keys, if the caller has already encoded them.
    """
    if encoded is None:
        encoded = [keys.encode(mutation.key) for mutation in request.mutations]
    writer = _Prewriter(reader, request, want_old_values, concurrency, generation)
    blocked = []
    try:
        for index, mutation in enumerate(request.mutations):
            try:
                writer.check(index, mutation, encoded[index])
            except RefusedError as refused:
                # Locks of all keys are collected, so that the client resolves them in one round. Any other
                # refusal ends the request, so the first one suffices.
                if not refused.error.HasField("locked"):
                    raise
                blocked.append(refused.error)
    except CommittedBeforeError as done:
        return CommandOutcome(done.response)
    except RefusedError as refused:
        return CommandOutcome(pb.PrewriteResponse(errors=[refused.error]))
    if blocked:
        return CommandOutcome(pb.PrewriteResponse(errors=blocked))
    return writer.outcome()


def flush(
    reader: MvccReader,
    request: pb.FlushRequest,
    want_old_values: bool = False,
    encoded: Sequence[bytes] | None = None,
) -> CommandOutcome[pb.FlushResponse]:
    """Prewrite a part of a pipelined transaction under its generation."""
    part = pb.PrewriteRequest(
        context=request.context,
        mutations=request.mutations,
        primary_lock=request.primary_key,
        start_version=request.start_ts,
        lock_ttl=request.lock_ttl,
        min_commit_ts=request.min_commit_ts,
        assertion_level=request.assertion_level,
    )
    if not request.generation:
        return CommandOutcome(
            pb.FlushResponse(errors=[pb.KeyError(abort="a flush needs a generation above 0")])
        )
    done = prewrite(reader, part, want_old_values, None, encoded, request.generation)
    return CommandOutcome(pb.FlushResponse(errors=done.response.errors), done.changes, done.old_values)


class CommittedBeforeError(Exception):
    """A repeated async-commit or one-phase prewrite found its own commit record."""

    def __init__(self, response: pb.PrewriteResponse) -> None:
        super().__init__(response)
        self.response = response


_Entry = tuple[bytes, bytes, int, bytes, Lock | None]
"""A key that passed the checks: encoded key, raw key, kind and value to write, and the lock it replaces."""


class _Prewriter:
    """One prewrite request. Heads and tails of its locks are the same for all keys, and encoded once."""

    def __init__(
        self,
        reader: MvccReader,
        request: pb.PrewriteRequest,
        want_old_values: bool,
        concurrency: ConcurrencyManager | None,
        generation: int,
    ) -> None:
        self._reader = reader
        self._request = request
        self._want_old_values = want_old_values
        self._concurrency = concurrency
        self._generation = generation
        self._start_ts: int = request.start_version
        self._for_update_ts: int = request.for_update_ts
        self._actions = list(request.pessimistic_actions)
        self._is_retry: bool = request.context.is_retry_request
        self._strict: bool = request.assertion_level != pb.Off
        self._expected = {
            each.index: each.expected_for_update_ts for each in request.for_update_ts_constraints
        }
        self._one_pc: bool = request.try_one_pc and concurrency is not None
        self._async: bool = request.use_async_commit and concurrency is not None
        self._plain = not (self._for_update_ts or request.skip_constraint_check)
        self._entries: list[_Entry] = []
        self._old_values: dict[bytes, bytes | None] = {}
        self._changes: list[Change] = []
        self._repeated: list[Lock] = []

    # --- checks ---

    def check(self, index: int, mutation: pb.Mutation, key: bytes) -> None:
        """Check one key and note what to write; raises `RefusedError`."""
        stored = self._reader.stored_lock(key)
        # Nothing below could refuse such a key: it has no lock, no constraint, and no record from start_ts
        # on. Its old value is known without a look only if it has no record at all.
        if (
            stored is None
            and self._plain
            and mutation.op in _KINDS_PLAIN
            and not mutation.assertion
            and (newest := self._reader.newest_ts(key)) < self._start_ts
            and not (newest and self._want_old_values)
        ):  # the usual case
            if self._want_old_values:
                self._old_values[key] = None
            self._entries.append((key, mutation.key, _KINDS_PLAIN[mutation.op], mutation.value, None))
            return
        raw: bytes = mutation.key
        action = self._actions[index] if index < len(self._actions) else _SKIP
        held = None if stored is None else mvcc.decode_lock(stored)
        if held is not None:
            if held.start_ts != self._start_ts:
                if action == _HELD:
                    raise abort(f"pessimistic lock not found: {raw.hex()} is locked by {held.start_ts}")
                raise locked(raw, held)
            if held.kind != mvcc.KIND_PESSIMISTIC:
                if not self._replaces(raw, held):
                    self._repeated.append(held)
                    return  # a retry of a prewrite that was applied
            elif self._expected.get(index, held.for_update_ts) != held.for_update_ts:
                raise abort(f"pessimistic lock not found: {raw.hex()} was locked at {held.for_update_ts}")
        elif action == _HELD:
            self._amend(raw, key)
        op = mutation.op
        if op not in _KINDS and op != pb.CheckNotExists:
            raise abort(f"a prewrite cannot have a mutation of kind {op}")
        asserted = self._strict and mutation.assertion != _NO_ASSERTION
        checked = held is None and not self._skips_constraints(action)
        if checked or asserted or self._want_old_values:
            self._check_versions(raw, key, mutation, action, checked, asserted)
        if op != pb.CheckNotExists:
            self._entries.append((key, raw, _KINDS[op], mutation.value, held))
        elif self._concurrency is not None:
            # The check leaves no lock behind. With a higher max_ts, no async commit can add the key at or
            # below start_ts later.
            self._concurrency.update_max_ts(self._start_ts)

    def _replaces(self, raw: bytes, held: Lock) -> bool:
        """Whether a flush overwrites this transaction's own lock."""
        if held.generation > self._generation > 0:
            raise abort(
                f"generation out of order: {raw.hex()} has {held.generation}, flushed {self._generation}"
            )
        return self._generation > held.generation > 0

    def _amend(self, raw: bytes, key: bytes) -> None:
        """Check that a lost pessimistic lock can be replaced: no transaction has written the key since."""
        newest = self._reader.newest_write(key)
        if newest is None or newest[0] < self._start_ts:
            return
        if self._one_pc or self._async:
            self._check_committed_before(key)
        raise abort(f"pessimistic lock not found: {raw.hex()} was written at {newest[0]}")

    def _check_versions(
        self, raw: bytes, key: bytes, mutation: pb.Mutation, action: Action, checked: bool, asserted: bool
    ) -> None:
        """Check conflicts, constraints and assertions; pessimistically locked keys have passed them."""
        newest = self._reader.newest_write(key)
        # `>=`: a record at start_ts itself may be this transaction's rollback.
        if checked and newest is not None and newest[0] >= self._start_ts:
            self._check_newer(raw, key, newest, action)
        must_be_new = checked and mutation.op in _MUST_BE_NEW
        if not (must_be_new or asserted or self._want_old_values):
            return
        found = self._seen(key, newest)
        exists = found is not None and found[1].kind == mvcc.KIND_PUT
        if must_be_new and exists:
            raise RefusedError(pb.KeyError(already_exist=pb.AlreadyExist(key=raw)))
        if asserted and exists != (mutation.assertion == pb.Exist):
            raise self._assertion_failed(raw, mutation, found)
        if self._want_old_values:
            self._old_values[key] = None if found is None else self._reader.value_of(key, found[1])

    def _seen(self, key: bytes, newest: Newest | None) -> Newest | None:
        """The version that this transaction sees, usually the newest record."""
        # A one-phase commit gets its ts only below, above all records, so it replaces the newest version.
        at = keys.TS_MAX if self._one_pc else max(self._start_ts, self._for_update_ts)
        if newest is None or (newest[0] <= at and newest[1].is_data() and not newest[1].gc_fence):
            return newest
        return self._reader.newest_data(key, at)

    def _skips_constraints(self, action: Action) -> bool:
        if not self._for_update_ts:
            return bool(self._request.skip_constraint_check)
        # A repeated request may come after its transaction was committed and its locks are gone. Without the
        # check it would lock the key again.
        return action == _SKIP and not self._is_retry

    def _check_newer(self, raw: bytes, key: bytes, newest: Newest, action: Action) -> None:
        commit_ts, write = newest
        reasons = pb.WriteConflict
        # Another transaction may have committed at exactly this ts. Then only the flag says that ours is
        # rolled back.
        if commit_ts == self._start_ts and (write.kind == mvcc.KIND_ROLLBACK or write.overlapped_rollback):
            raise conflict(self._request, raw, commit_ts, write, reasons.SelfRolledBack)
        reason = None
        if not self._for_update_ts:
            if commit_ts > self._start_ts:
                reason = reasons.Optimistic
        elif action == _LAZY and commit_ts > self._start_ts:
            reason = reasons.LazyUniquenessCheck
        elif commit_ts > self._for_update_ts and write.kind != mvcc.KIND_ROLLBACK:
            reason = reasons.NotLockedKeyConflict
        if reason is not None:
            if self._one_pc or self._async:
                self._check_committed_before(key)
            raise conflict(self._request, raw, commit_ts, write, reason)

    def _check_committed_before(self, key: bytes) -> None:
        """Raise CommittedBeforeError if the conflicting record is this transaction's own commit, made by an
        earlier attempt of the same request.
        """
        record = self._reader.record_of(key, self._start_ts)
        if record.is_committed():
            if self._one_pc:
                raise CommittedBeforeError(pb.PrewriteResponse(one_pc_commit_ts=record.commit_ts))
            raise CommittedBeforeError(pb.PrewriteResponse(min_commit_ts=record.commit_ts))

    def _assertion_failed(self, raw: bytes, mutation: pb.Mutation, found: Newest | None) -> RefusedError:
        failed = pb.AssertionFailed(
            start_ts=self._start_ts,
            key=raw,
            assertion=mutation.assertion,
            existing_start_ts=found[1].start_ts if found else 0,
            existing_commit_ts=found[0] if found else 0,
        )
        return RefusedError(pb.KeyError(assertion_failed=failed))

    # --- what is written ---

    def outcome(self) -> CommandOutcome[pb.PrewriteResponse]:
        """The changes for all checked keys. If a commit ts is chosen here, in-memory locks are published."""
        request = self._request
        # Only after all checks: choosing a ts publishes in-memory locks, and a request that is refused must
        # leave none.
        choice = self._choose() if self._one_pc or self._async else None
        common = Lock(
            mvcc.KIND_PUT,
            request.primary_lock,
            self._start_ts,
            request.lock_ttl,
            for_update_ts=self._for_update_ts,
            txn_size=request.txn_size,
            min_commit_ts=0 if self._one_pc or self._async else request.min_commit_ts,
            txn_source=request.context.txn_source,
            generation=self._generation,
        )
        if choice is None:
            self._put_locks(common)
            return CommandOutcome(pb.PrewriteResponse(), self._changes, self._old_values)
        if self._one_pc and not self._repeated:
            self._put_writes(common, choice.ts)
            response = pb.PrewriteResponse(one_pc_commit_ts=choice.ts)
            return CommandOutcome(response, self._changes, self._old_values, True, published=choice.keys)
        self._put_locks(common._replace(min_commit_ts=choice.ts, secondaries=()))
        # Keys that an earlier attempt has locked have a min_commit_ts of their own. The client must not
        # commit below any.
        least = max([choice.ts, *(lock.min_commit_ts for lock in self._repeated)])
        response = pb.PrewriteResponse(min_commit_ts=least)
        return CommandOutcome(response, self._changes, self._old_values, published=choice.keys)

    def _choose(self) -> Choice | None:
        """Choose the ts of an async or one-phase commit; None: fall back to two-phase commit."""
        if any(lock.secondaries is None for lock in self._repeated) or (self._one_pc and self._repeated):
            return None  # an earlier attempt of this request has fallen back
        request = self._request
        assert self._concurrency is not None
        # Above for_update_ts as well: the locked keys may have versions up to that ts, which this commit must
        # follow.
        floor = max(self._start_ts + 1, self._for_update_ts + 1, request.min_commit_ts)
        secondaries = None if self._one_pc else ()
        shown = Lock(
            mvcc.KIND_PUT,
            request.primary_lock,
            self._start_ts,
            request.lock_ttl,
            for_update_ts=self._for_update_ts,
            txn_size=request.txn_size,
            secondaries=secondaries,
        )
        by_kind = {
            kind: shown._replace(kind=kind) for kind in (mvcc.KIND_PUT, mvcc.KIND_DELETE, mvcc.KIND_LOCK)
        }
        # A reader may have pushed the min_commit_ts of a lock that is replaced.
        floor = max([floor, *(held.min_commit_ts for *_, held in self._entries if held is not None)])
        return self._concurrency.publish(
            ((key, by_kind[kind]) for key, _, kind, *_ in self._entries), floor, request.max_commit_ts
        )

    def _put_locks(self, common: Lock) -> None:
        tail = mvcc.lock_tail(common)
        heads: dict[int, bytes] = {}
        changes = self._changes
        for key, raw, kind, value, held in self._entries:
            if held is not None:
                own = mvcc.lock_tail(self._merged(common, raw, held))
                head = mvcc.lock_head(kind, common.primary, self._start_ts, max(common.ttl, held.ttl))
                # Before the new value, which has the same key if it is long as well.
                if held.kind == mvcc.KIND_PUT and held.short_value is None:
                    changes.append((mvcc.DEFAULT, keys.versioned(key, self._start_ts), None))
            else:
                own = tail
                if common.secondaries is not None and raw == common.primary:
                    own = mvcc.lock_tail(self._merged(common, raw, None))
                found = heads.get(kind)
                if found is None:
                    found = mvcc.lock_head(kind, common.primary, self._start_ts, common.ttl)
                    heads[kind] = found
                head = found
            if kind == mvcc.KIND_PUT:
                if len(value) <= mvcc.SHORT_VALUE_MAX:
                    changes.append((mvcc.LOCK, key, b"%bv%c%b%b" % (head, len(value), value, own)))
                    continue
                # Before the lock: CDC's delegate reads a command in order, and needs the value when it comes
                # to the lock.
                changes.append((mvcc.DEFAULT, keys.versioned(key, self._start_ts), value))
            changes.append((mvcc.LOCK, key, head + own))

    def _merged(self, common: Lock, raw: bytes, held: Lock | None) -> Lock:
        """The lock of one key. The primary of an async commit names the other keys; the timestamps of a
        replaced lock are never lowered.
        """
        if common.secondaries is not None and raw == common.primary:
            common = common._replace(secondaries=tuple(self._request.secondaries))
        if held is None:
            return common
        return common._replace(
            min_commit_ts=max(common.min_commit_ts, held.min_commit_ts),
            for_update_ts=max(common.for_update_ts, held.for_update_ts) if self._for_update_ts else 0,
        )

    def _put_writes(self, common: Lock, commit_ts: int) -> None:
        changes = self._changes
        tail = mvcc.write_tail(Write(mvcc.KIND_PUT, self._start_ts, txn_source=common.txn_source))
        heads = {kind: mvcc.write_head(kind, self._start_ts) for kind in _KINDS.values()}
        for key, _, kind, value, held in self._entries:
            record = heads[kind] + tail
            if kind == mvcc.KIND_PUT and len(value) <= mvcc.SHORT_VALUE_MAX:
                record = b"%bv%c%b%b" % (heads[kind], len(value), value, tail)
            elif kind == mvcc.KIND_PUT:
                # Before the record, for the same reason as in `_put_locks`.
                changes.append((mvcc.DEFAULT, keys.versioned(key, self._start_ts), value))
            changes.append((mvcc.WRITE, keys.versioned(key, commit_ts), record))
            if held is not None:
                changes.append((mvcc.LOCK, key, None))


def buffer_batch_get(reader: MvccReader, request: pb.BufferBatchGetRequest) -> pb.BufferBatchGetResponse:
    """The values that the transaction has flushed to these keys. An empty value is a deletion; keys without a
    flushed value have no pair.
    """
    response = pb.BufferBatchGetResponse()
    for raw in request.keys:
        key = keys.encode(raw)
        lock = reader.lock(key)
        if lock is None or lock.start_ts != request.version or not lock.is_data():
            continue
        value = b""
        if lock.kind == mvcc.KIND_PUT:
            short = lock.short_value
            value = reader.long_value(key, lock.start_ts) if short is None else short
        response.pairs.add(key=raw, value=value)
    return response
