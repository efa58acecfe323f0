"""Replays a recorded change log into an embedded upstream, with exactly the recorded timestamps.

`tidegate upstream load` and tests call it. Transactions use ordinary KvPrewrite and KvCommit. Transactions
that share no key run at the same time, at most WINDOW of them. The manual TSO is set to a commit_ts only when
that transaction and all before it are committed, so the resolved ts never passes a transaction that is not
committed yet. A second run skips transactions that are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.clock import Clock, SystemClock
from tidegate.errors import Fatal, InvalidInput
from tidegate.kvclient import transaction
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Mutation, TwoPhase, is_loaded, load_transaction
from tidegate.workload.changelog import Ddl, Header, Line, LogMutation, Rollback, SnapshotLine, Txn
from tidegate.workload.flight import Flight

WINDOW: Final = 64
"""The most transactions in flight."""
THREADS: Final = 6
TSO_EVERY_S: Final = 0.01
"""The shortest time between two advances of the TSO while transactions follow each other closely."""

_Sent = tuple[Txn, bool]

_OPS: Final = {
    "put": transaction.PUT,
    "insert": transaction.INSERT,
    "delete": transaction.DEL,
    "lock": transaction.LOCK,
    "check_not_exists": transaction.CHECK_NOT_EXISTS,
}


@dataclass(slots=True)
class LoadStats:
    """The counts of a load so far. `rows`: committed mutations; `reached`: the greatest ts that was set."""

    transactions: int = 0
    skipped: int = 0
    rows: int = 0
    pessimistic: int = 0
    rollbacks: int = 0
    snapshots: int = 0
    ddls: int = 0
    reached: int = 0
    seconds: float = 0.0


class KeyHistory:
    """The history of each key in the log so far. It decides how the next transaction must be written. Pure.

    Memory: one entry for each distinct key of the log.
    """

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._alive: set[bytes] = set()

    def plan(self, txn: Txn) -> tuple[tuple[Mutation, ...], bool]:
        """The mutations to send, and whether the transaction must be pessimistic. Adds it to the history.

        TiKV refuses an optimistic transaction if one of its keys has a newer record (commit or rollback). If
        a mutation asserts that a key is absent (insert, check_not_exists), but the key exists by the log, it
        is sent without the assertion: such keys are of system tables, whose deletions a log may leave out.
        """
        pessimistic = any(self._newest.get(m.key, 0) >= txn.start_ts for m in txn.mutations)
        mutations = tuple(Mutation(_OPS[op], m.key, m.value) for m in txn.mutations if (op := self._op(m)))
        for m in txn.mutations:
            self._take(m, txn.commit_ts)
        return mutations, pessimistic

    def rolled_back(self, rollback: Rollback) -> None:
        """Add a rollback to the history. Its record in TiKV is at start_ts."""
        for key in rollback.keys:
            self._newest[key] = max(self._newest.get(key, 0), rollback.start_ts)

    def _op(self, mutation: LogMutation) -> str | None:
        if mutation.key not in self._alive:
            return mutation.op
        return {"insert": "put", "check_not_exists": None}.get(mutation.op, mutation.op)

    def _take(self, mutation: LogMutation, commit_ts: int) -> None:
        match mutation.op:
            case "put" | "insert":
                self._alive.add(mutation.key)
            case "delete":
                self._alive.discard(mutation.key)
            case "check_not_exists":
                return
        self._newest[mutation.key] = commit_ts


class Loader:
    """Loads logs into one upstream, one after another."""

    def __init__(
        self,
        pd: PdClient,
        *,
        rows_per_s: float | None = None,
        threads: int = THREADS,
        on_progress: Callable[[LoadStats], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.stats = LoadStats()
        self._pd = pd
        self._rows_per_s = rows_per_s
        self._on_progress = on_progress or (lambda stats: None)
        self._clock: Clock = clock or SystemClock()
        self._history = KeyHistory()
        self._flight: Flight[_Sent] = Flight(threads, WINDOW, self._landed)
        self._start_tso = 0
        self._moved_at = 0.0
        self._launched = 0
        self._began = 0.0

    def load(self, lines: Iterable[Line]) -> LoadStats:
        """Replay the lines. Returns when all is committed and the TSO has reached the last ts.

        Raises InvalidInput if the upstream's TSO is not manual, or if it is beyond a transaction that
        upstream does not have: a commit now could be below a resolved ts that was already emitted.
        """
        self._start_tso = self._manual_tso()
        self.stats.reached = self._start_tso
        self._began = self._clock.monotonic()
        with self._flight:
            for line in lines:
                self._take(line)
            self._flight.land(0)
        self._move_tso(self.stats.reached, at_once=True)
        self._report_progress()
        return self.stats

    def _take(self, line: Line) -> None:
        match line:
            case Txn():
                self._launch(line)
            case Rollback():
                self._flight.land(0)
                self._roll_back(line)
            case SnapshotLine(ts=ts):
                self._flight.land(0)
                self._move_tso(ts, at_once=True)
                self.stats.snapshots += 1
            case Ddl():
                self.stats.ddls += 1
            case Header():
                pass

    def _launch(self, txn: Txn) -> None:
        mutations, pessimistic = self._history.plan(txn)
        if not mutations:
            raise InvalidInput(
                "a transaction has no mutations",
                where=f"commit_ts {txn.commit_ts}",
                fix="remove it from the log",
            )
        self._keep_rate()
        self._launched += len(mutations) if txn.commit_ts > self._start_tso else 0
        keys = frozenset(m.key for m in mutations)
        self._flight.launch(keys, (txn, pessimistic), lambda: self._write(txn, mutations, pessimistic))

    def _write(self, txn: Txn, mutations: tuple[Mutation, ...], pessimistic: bool) -> bool:
        """Write a transaction; called in a pool thread. True: committed now; False: it was there already."""
        if txn.commit_ts > self._start_tso:
            return load_transaction(
                self._pd,
                start_ts=txn.start_ts,
                commit_ts=txn.commit_ts,
                primary=txn.primary,
                mutations=mutations,
                pessimistic=pessimistic,
            )
        if not is_loaded(self._pd, start_ts=txn.start_ts, commit_ts=txn.commit_ts, primary=txn.primary):
            raise InvalidInput(
                "the upstream's TSO is beyond a transaction that it does not hold",
                where=f"commit_ts {txn.commit_ts}, TSO {self._start_tso}",
                why="committing it now would break resolved timestamps already given out",
                fix="load into a fresh upstream, and logs in the order of their timestamps",
            )
        return False

    def _landed(self, sent: _Sent, committed: bool) -> None:
        """A transaction and all before it are committed."""
        txn, pessimistic = sent
        if committed:
            self.stats.transactions += 1
            self.stats.rows += sum(m.op != "check_not_exists" for m in txn.mutations)
            self.stats.pessimistic += pessimistic
        else:
            self.stats.skipped += 1
        self._move_tso(txn.commit_ts)

    def _move_tso(self, ts: int, *, at_once: bool = False) -> None:
        """Everything up to `ts` is committed: advance the TSO, at once or with the next call."""
        self.stats.reached = max(self.stats.reached, ts)
        now = self._clock.monotonic()
        if not at_once and now - self._moved_at < TSO_EVERY_S:
            return
        self._moved_at = now
        if self.stats.reached > self._start_tso:
            reached = self._pd.advance_tso(self.stats.reached)
            if reached > self.stats.reached:
                raise Fatal(
                    "the TSO moved beyond the log while it was loaded",
                    where=f"TSO {reached}, log {self.stats.reached}",
                    fix="do not use `tso --advance-to` or allocate timestamps while a log is loaded",
                )
        self._report_progress()

    def _roll_back(self, rollback: Rollback) -> None:
        self._history.rolled_back(rollback)
        TwoPhase(self._pd, rollback.start_ts, rollback.keys[0]).rollback(rollback.keys, Backoff())
        self.stats.rollbacks += 1

    def _keep_rate(self) -> None:
        if self._rows_per_s is None:
            return
        due = self._began + self._launched / self._rows_per_s
        wait = due - self._clock.monotonic()
        if wait > 0:
            self._flight.land(0)
            self._move_tso(self.stats.reached, at_once=True)
            self._pd.pause(wait)

    def _manual_tso(self) -> int:
        info = self._pd.upstream_info()
        if not info.manual_tso:
            raise InvalidInput(
                "this upstream's TSO follows the system's clock; recorded timestamps are in the past",
                where=self._pd.address,
                fix="start it with `tidegate upstream run --tso manual`",
            )
        return info.tso

    def _report_progress(self) -> None:
        self.stats.seconds = self._clock.monotonic() - self._began
        self._on_progress(self.stats)
