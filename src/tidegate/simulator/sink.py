"""A model of a transactional sink: writers with epochs, transactions, one log of committed records.

Each writer has a transactional id: there is one for each capture, and one for the changefeed's owner. The
initialisation of an id aborts its open transaction and fences the writer that used it before. A reader of
committed records stops at the first open transaction. The rows of a transaction, the progress of their
tables, Resolved and DDL are committed together or not at all, and the writer may never learn which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from tidegate.errors import Fenced, Retryable
from tidegate.model.timestamp import Timestamp
from tidegate.simulator.checks import Checks, Writer
from tidegate.simulator.virtual_time import VirtualTime

OWNER: Final = "owner"
"""The transactional id of the changefeed's owner."""
TIMEOUT_S: Final = 10.0
"""How long a transaction may be open. The sink then aborts it."""


class RecordKind(StrEnum):
    """Kinds of records."""

    ROW = "row"
    RESOLVED = "resolved"
    DDL = "ddl"


class Record(NamedTuple):
    """One message. A row includes its progress record."""

    kind: RecordKind
    table: str
    ts: Timestamp


class Journal(NamedTuple):
    """The last Resolved and DDL that an owner finds when it opens the sink."""

    resolved_ts: Timestamp
    ddl_ts: Timestamp


@dataclass(slots=True)
class WriterTransaction:
    """The records that one writer has produced since its last commit."""

    records: list[Record] = field(default_factory=list)
    is_open: bool = True
    committed: bool = False


class Sink:
    """The sink. Its calls take no virtual time."""

    def __init__(self, time: VirtualTime, checks: Checks, off: frozenset[str] = frozenset()) -> None:
        """`off`: disabled guards, see `simulator.guards`."""
        self._time, self._checks, self._off = time, checks, off
        self.epochs: dict[str, int] = {}
        self._open: dict[str, WriterTransaction] = {}
        self._log: list[WriterTransaction] = []
        """All transactions, in the order in which they were begun."""
        self._stable = 0
        """The number of transactions before the first open one."""
        self._progress: dict[str, Timestamp] = {}
        self._journal = Journal(0, 0)

    def initialise(self, writer: str) -> int:
        """Fence the writers of a transactional id. Returns its new epoch."""
        # An open transaction of the fenced writer would hide all later records from readers until its
        # timeout.
        self._decide(writer, commit=False)
        self.epochs[writer] = self.epochs.get(writer, 0) + 1
        return self.epochs[writer]

    def produce(self, writer: str, epoch: int, records: Sequence[Record]) -> Fenced | None:
        """Add records to the writer's transaction, which is begun if there is none. Returns an
        error or None.
        """
        if not self.accepts(writer, epoch):
            return Fenced("a later writer has this transactional id", where=writer)
        if writer not in self._open:
            self._open[writer] = WriterTransaction()
            self._log.append(self._open[writer])
            # The timeout is for this transaction. It gets the object, because the writer may have another one
            # open when it fires.
            self._time.after(TIMEOUT_S, self._time_out, writer, self._open[writer])
        self._open[writer].records += records
        return None

    def _time_out(self, writer: str, found: WriterTransaction) -> None:
        """Abort a transaction that is still open, and fence its writer."""
        if found.is_open:
            self.initialise(writer)

    def commit(self, writer: str, epoch: int, by: Writer | None) -> Fenced | None:
        """Commit the open transaction, if there is one. Returns an error or None."""
        if not self.accepts(writer, epoch):
            return Fenced("a later writer has this transactional id", where=writer)
        # The checks run at the commit, in the order in which the records were produced. A reader may see them
        # later, if an earlier transaction is open, but from here on they can no longer be taken back.
        if (found := self._open.get(writer)) is not None:
            for record in found.records:
                match record.kind:
                    case RecordKind.ROW:
                        self._checks.row(record.table, record.ts, by)
                    case RecordKind.RESOLVED:
                        self._checks.resolved(record.ts)
                    case RecordKind.DDL:
                        self._checks.ddl(record.ts)
        self._decide(writer, commit=True)
        return None

    def accepts(self, writer: str, epoch: int) -> bool:
        """Whether a writer with this epoch is not fenced."""
        guard = "owner_sink_fence" if writer == OWNER else "sink_fence"
        return epoch == self.epochs.get(writer, 0) or guard in self._off

    def _decide(self, writer: str, *, commit: bool) -> None:
        found = self._open.pop(writer, None)
        if found is None:
            return
        found.is_open, found.committed = False, commit
        # The last stable offset: a committed transaction stays hidden behind any that was begun before it and
        # is open. `progress` and `journal` must not read past it.
        while self._stable < len(self._log) and not self._log[self._stable].is_open:
            if self._log[self._stable].committed:
                self._apply(self._log[self._stable].records)
            self._stable += 1

    def _apply(self, records: Sequence[Record]) -> None:
        for kind, table, ts in records:
            resolved_ts, ddl_ts = self._journal
            match kind:
                case RecordKind.ROW:
                    self._progress[table] = max(ts, self._progress.get(table, 0))
                case RecordKind.RESOLVED:
                    self._journal = Journal(max(ts, resolved_ts), ddl_ts)
                case RecordKind.DDL:
                    self._journal = Journal(resolved_ts, max(ts, ddl_ts))

    def progress(self) -> dict[str, Timestamp]:
        """The commit ts up to which each table's rows are committed, as a reader of committed records sees
        it.
        """
        return dict(self._progress)

    def journal(self) -> Journal | Retryable:
        """The last committed Resolved and DDL, or Retryable while an open transaction may hide
        some of them.
        """
        if self._stable < len(self._log):
            # An owner that continued from the visible part would send the hidden Resolved and DDL a second
            # time.
            return Retryable("a transaction is open at the sink", where="sink")
        return self._journal
