"""Pairs each commit with its prewrite, for one region registration: the plain twin and oracle.

`match_kernels` does the same for all regions of a stream at once. TiKV sends PREWRITE (with values) and
COMMIT (without) separately, COMMITTED for versions that an incremental scan found and for one-phase commits,
and ROLLBACK. Until INITIALIZED, rows of the scan and live rows interleave, so a COMMIT may arrive before its
PREWRITE; it then waits. Source: ticdc `logservice/logpuller/region_event_handler.go` and tiflow
`cdc/kv/matcher.go`. Unlike them, this matcher also checks commits that waited for INITIALIZED against the
checkpoint and the resolved ts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.tidb.keys import is_record


class LogType(IntEnum):
    """cdcpb.Event.LogType."""

    UNKNOWN = 0
    PREWRITE = 1
    COMMIT = 2
    ROLLBACK = 3
    COMMITTED = 4
    INITIALIZED = 5


class Violation(IntEnum):
    """The rule of the stream's contract that a row violated; its registration is made again."""

    COMMIT_BELOW_RESOLVED = 1
    PREWRITE_MISSING = 2
    UNKNOWN_KIND = 3
    UNKNOWN_OPERATION = 4


class Row(NamedTuple):
    """cdcpb.Event.Row, with the fields that matching needs."""

    kind: int
    start_ts: Timestamp = 0
    commit_ts: Timestamp = 0
    op: int = 0
    key: bytes = b""
    value: bytes = b""
    old_value: bytes = b""
    generation: int = 0


class Change(NamedTuple):
    """A committed change, in the order of ENTRY_SCHEMA."""

    commit_ts: Timestamp
    start_ts: Timestamp
    op: int
    key: bytes
    value: bytes
    old_value: bytes


@dataclass(slots=True)
class BrokenContractError(Exception):
    """The registration broke its contract; no more rows may be pushed.

    `changes`: those that were completed before the violation.
    """

    violation: Violation
    commit_ts: Timestamp
    changes: list[Change] = field(default_factory=list)


class Matcher:
    """One registration of `span` (a region's part) from `checkpoint` (exclusive)."""

    def __init__(
        self, span: Span, checkpoint: Timestamp, *, trust_empty: bool = False, records: bool = False
    ) -> None:
        """`trust_empty`: a repeated prewrite without a value really writes the empty value.

        Otherwise it counts as a rewritten lock, which looks the same, and is ignored. TiKV 5.0 and later do
        not send rewritten locks. Not for TiDB's rows, which are never empty. `records`: the range holds
        several tables, and only keys of records are taken.
        """
        self._span, self._checkpoint, self._resolved = span, checkpoint, checkpoint
        self._open: dict[tuple[Timestamp, bytes], Row] = {}
        self._waiting: list[Row] = []
        self._trust_empty = trust_empty
        self._records = records
        self.initialized = False

    @property
    def resolved(self) -> Timestamp:
        """The largest resolved ts that was applied; before the first, the checkpoint."""
        return self._resolved

    def resolve(self, ts: Timestamp) -> None:
        """Apply a resolved ts. Ignored before INITIALIZED, and if it is not above the last one."""
        # Before INITIALIZED the scan may still deliver commits below such a ts.
        if self.initialized and ts > self._resolved:
            self._resolved = ts

    def push(self, row: Row) -> list[Change]:
        """Apply one row; returns the changes that it completes. Raises BrokenContractError."""
        # It has no key, so it comes before the check of the span.
        if row.kind == LogType.INITIALIZED:
            return self._initialize()
        if not self._span.contains(row.key) or (self._records and not is_record(row.key)):
            return []
        if row.kind in (LogType.PREWRITE, LogType.COMMIT, LogType.COMMITTED) and row.op not in (
            OP_PUT,
            OP_DELETE,
        ):
            raise BrokenContractError(Violation.UNKNOWN_OPERATION, row.commit_ts)
        if row.kind == LogType.PREWRITE:
            self._prewrite(row)
            return []
        if row.kind == LogType.COMMITTED:
            return self._emit(row, row)
        if row.kind == LogType.COMMIT:
            return self._commit(row)
        if row.kind == LogType.ROLLBACK:
            self._rollback(row)
            return []
        raise BrokenContractError(Violation.UNKNOWN_KIND, row.commit_ts)

    def _prewrite(self, row: Row) -> None:
        known = self._open.get((row.start_ts, row.key))
        if known is not None:
            rewritten = not row.value and not self._trust_empty  # by a heartbeat, a pushed min_commit_ts
            if rewritten or row.generation < known.generation:
                return
        self._open[row.start_ts, row.key] = row

    def _commit(self, row: Row) -> list[Change]:
        known = self._open.get((row.start_ts, row.key))
        if known is not None and not self.initialized and (not known.value or known.generation > 0):
            known = None  # the scan may still deliver the complete prewrite
        if known is None:
            if self.initialized:
                raise BrokenContractError(Violation.PREWRITE_MISSING, row.commit_ts)
            self._waiting.append(row)
            return []
        del self._open[row.start_ts, row.key]
        return self._emit(row, known)

    def _rollback(self, row: Row) -> None:
        if self.initialized:
            self._open.pop((row.start_ts, row.key), None)
        else:
            # The scan may deliver the prewrite after this. If the rollback were forgotten, the prewrite would
            # stay open for ever.
            self._waiting.append(row)

    def _initialize(self) -> list[Change]:
        if self.initialized:
            return []
        self.initialized = True
        waiting, self._waiting = self._waiting, []
        changes: list[Change] = []
        for row in waiting:
            known = self._open.pop((row.start_ts, row.key), None) if row.kind == LogType.COMMIT else None
            # A commit without a prewrite is no violation here: the scan has delivered its change as
            # COMMITTED.
            if known is None:
                continue
            try:
                changes += self._emit(row, known)
            except BrokenContractError as broken:
                # The waiting commits before this one were complete, and their changes come out, as in the
                # kernel.
                broken.changes = changes
                raise
        for row in waiting:
            if row.kind == LogType.ROLLBACK:
                self._open.pop((row.start_ts, row.key), None)
        return changes

    def _emit(self, row: Row, values: Row) -> list[Change]:
        # First, because the checkpoint is also the first resolved ts: a version below it is one that the
        # puller has already, and no violation.
        if row.commit_ts <= self._checkpoint:
            return []
        if row.commit_ts <= self._resolved:
            raise BrokenContractError(Violation.COMMIT_BELOW_RESOLVED, row.commit_ts)
        value = values.value if row.op == OP_PUT else b""
        return [Change(row.commit_ts, row.start_ts, row.op, row.key, value, values.old_value)]
