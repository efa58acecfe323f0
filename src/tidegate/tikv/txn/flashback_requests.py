"""Flashback of a region in two requests, as TiKV serves them; `percolator.flashback` decides the records.

prepare: admin command (from now on nothing else is served, and no resolved ts exceeds start_ts) -> the locks
of the range are rolled back -> its first key is locked. flash back: every other key that differs from
`version` is rewritten, in commands that are whole transactions -> the first key is committed -> admin command
(everything is served again). Each step may be repeated, because a client repeats an interrupted request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.mvcc import Change
from tidegate.tikv.percolator import commit
from tidegate.tikv.percolator import flashback as decisions
from tidegate.tikv.percolator.outcome import Announced
from tidegate.tikv.raft import region_change
from tidegate.tikv.raft.raftstore import Command, Decide, Raftstore
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import RegionChange
from tidegate.tikv.raft.region_table import (
    RegionError,
    RegionTable,
    flashback_in_progress,
    flashback_not_prepared,
)
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.txn import snapshot
from tidegate.tikv.txn.call import RefusalError
from tidegate.tikv.txn.scheduler import Answer

Step = Callable[[], None]


class Range(NamedTuple):
    """The range of a flashback, in encoded keys."""

    region: Region
    start: bytes
    end: bytes


class Flashback:
    """The flashback requests of one store. Thread-safe; a request's steps run in turn on the pool."""

    def __init__(
        self,
        raftstore: Raftstore,
        announced: Callable[[int], Announced],
        later: Callable[[Step], None],
    ) -> None:
        self._raftstore = raftstore
        self._engine = raftstore.engine
        self._announced = announced
        self._later = later

    def prepare(self, what: Range, request: pb.PrepareFlashbackToVersionRequest, answer: Answer) -> None:
        """Serve the first phase, `prepare`."""
        region, start_ts = what.region, request.start_ts
        if start_ts <= request.version:
            raise RefusalError(f"invalid flashback version {request.version}: not below start_ts {start_ts}")
        if region.flashback not in (0, start_ts):
            raise RegionError(flashback_in_progress(region))

        def freeze(table: RegionTable) -> RegionChange:
            refusal = table.refusal(region)
            if refusal is not None:
                raise RegionError(refusal)
            return region_change.flashback(region, start_ts)

        def then(now: Region) -> None:
            self._roll_back(what._replace(region=now), request, answer)

        if region.flashback:
            self._continue(lambda: then(region), answer)
        else:
            self._administer(region, freeze, then, answer)

    def _roll_back(self, what: Range, request: pb.PrepareFlashbackToVersionRequest, answer: Answer) -> None:
        found = (
            (key, lock)
            for key, lock in snapshot.locks_in(self._engine, what.start, what.end)
            if lock.start_ts != request.start_ts
        )
        # From the start of the range each time: the locks of the last batch are gone.
        batch = list(islice(found, decisions.BATCH_KEYS))
        if not batch:
            self._lock(what, request, answer)
            return
        txn_statuses = {lock.start_ts: 0 for _, lock in batch}
        outcome = commit.resolve_locks(MvccReader(self._engine), [key for key, _ in batch], txn_statuses)
        self._write(what.region, outcome.changes, lambda: self._roll_back(what, request, answer), answer)

    def _lock(self, what: Range, request: pb.PrepareFlashbackToVersionRequest, answer: Answer) -> None:
        def done() -> None:
            answer(pb.PrepareFlashbackToVersionResponse(), None)

        first = self._first(what, request.start_ts)
        reader = MvccReader(self._engine)
        # No other lock is left in the range (`_roll_back`), so this is the lock of an earlier attempt.
        if first is None or reader.lock(first) is not None:
            done()
            return
        changes = decisions.lock_first(reader, first, request.version, request.start_ts)
        self._write(what.region, changes, done, answer)

    def flash_back(self, what: Range, request: pb.FlashbackToVersionRequest, answer: Answer) -> None:
        """Serve the second phase, `flash back`."""
        region, commit_ts = what.region, request.commit_ts
        first = self._first(what, request.start_ts)
        if region.flashback != request.start_ts:
            # A repeated request, whose first attempt has finished, gets the answer that was lost.
            if not region.flashback and first is not None and self._is_done(first, request):
                answer(pb.FlashbackToVersionResponse(), None)
                return
            raise RegionError(flashback_not_prepared(region))
        least = max(request.start_ts, self._announced(region.id).highest)
        if commit_ts <= least:
            raise RefusalError(f"invalid flashback commit_ts {commit_ts}: not above {least}")
        if first is None:
            self._finish(what, answer)
        else:
            self._continue(lambda: self._rewrite(what, request, first, what.start, answer), answer)

    def _first(self, what: Range, start_ts: int) -> bytes | None:
        """The key that is or will be locked for the whole range; None if the range is empty."""
        for key, lock in snapshot.locks_in(self._engine, what.start, what.end):
            if lock.start_ts == start_ts:
                return key
        return next(decisions.written_keys(self._engine, what.start, what.end), None)

    def _is_done(self, first: bytes, request: pb.FlashbackToVersionRequest) -> bool:
        record = MvccReader(self._engine).record_of(first, request.start_ts)
        return record.is_committed() and record.commit_ts == request.commit_ts

    def _rewrite(
        self, what: Range, request: pb.FlashbackToVersionRequest, first: bytes, at: bytes, answer: Answer
    ) -> None:
        batch = list(islice(decisions.written_keys(self._engine, at, what.end), decisions.BATCH_KEYS))
        if not batch:
            self._commit(what, request, first, answer)
            return
        reader = MvccReader(self._engine)
        changes = [
            change
            for key in batch
            # The first key is committed last, by its lock. Until then a repeated request finds that the
            # flashback is not done.
            if key != first
            for change in decisions.rewrite(reader, key, request.version, request.start_ts, request.commit_ts)
        ]
        after = decisions.after(batch[-1])
        self._write(
            what.region, changes, lambda: self._rewrite(what, request, first, after, answer), answer, True
        )

    def _commit(
        self, what: Range, request: pb.FlashbackToVersionRequest, first: bytes, answer: Answer
    ) -> None:
        committed = pb.CommitRequest(
            start_version=request.start_ts, commit_version=request.commit_ts, keys=[keys.decode(first)]
        )
        outcome = commit.commit(MvccReader(self._engine), committed)
        if outcome.response.HasField("error"):
            answer(None, RegionError(flashback_not_prepared(what.region)))
            return
        self._write(what.region, outcome.changes, lambda: self._finish(what, answer), answer)

    def _finish(self, what: Range, answer: Answer) -> None:
        region = what.region
        self._administer(
            region,
            lambda table: region_change.flashback(region_change.present(table, region.id), 0),
            lambda now: answer(pb.FlashbackToVersionResponse(), None),
            answer,
        )

    # --- parts ---

    def _administer(
        self, region: Region, decide: Decide, then: Callable[[Region], Any], answer: Answer
    ) -> None:
        def applied(error: Exception | None) -> None:
            if error is not None:
                answer(None, error)
                return
            assert command.change is not None
            (now,) = command.change.now
            self._continue(lambda: then(now), answer)

        command = Command(region.id, (), on_applied=applied, admin=decide)
        self._raftstore.propose(command)

    def _write(
        self,
        region: Region,
        changes: Sequence[Change],
        then: Step,
        answer: Answer,
        whole: bool = False,
    ) -> None:
        """Apply changes, then call `then`. `whole`: the changes of this command are whole transactions."""

        def applied(error: Exception | None) -> None:
            if error is not None:
                answer(None, error)
            else:
                self._continue(then, answer)

        if not changes:
            self._continue(then, answer)
            return
        command = Command(region.id, changes, on_applied=applied, one_pc=whole, region=region)
        self._raftstore.propose(command)

    def _continue(self, step: Step, answer: Answer) -> None:
        def run() -> None:
            try:
                step()
            except Exception as error:
                answer(None, error)

        self._later(run)
