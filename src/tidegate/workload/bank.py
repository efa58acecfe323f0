"""The bank workload: sets up a schema in an upstream, commits transactions, and runs a DDL now and then.

Everything is written as TiDB would write it (`schema`, `tidegate.tidb.record`). The seed determines
everything except timestamps: one thread draws the transactions, and a few threads commit those that share no
key at the same time. While a DDL runs, no transaction does. If upstream is down, the workload waits. If the
answer to a commit was lost, the workload finds out whether it was committed before it retries, so that
nothing is written twice and the sum stays right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidegate.clock import Clock, SystemClock
from tidegate.errors import InvalidInput, Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import Mutation, Transaction
from tidegate.model.row import Value
from tidegate.model.schema import Kind, TableSchema
from tidegate.tidb import keys, record
from tidegate.workload.bank_model import INITIAL, SCHEMA, Bank, Work, ddl_step, next_step
from tidegate.workload.ddl import Action, Ddl
from tidegate.workload.flight import Flight
from tidegate.workload.schema import Catalog, bootstrap, read_catalog

OPEN_BATCH: Final = 200
"""The number of accounts opened in one transaction."""
PROGRESS_EVERY_S: Final = 0.2
AWAY_S: Final = 120.0
"""How long upstream may be down before the workload fails."""


@dataclass(slots=True)
class BankStats:
    """The counts of the workload so far."""

    transactions: int = 0
    rows: int = 0
    ddls: int = 0
    retries: int = 0
    last_commit_ts: int = 0
    last_ddl: str = ""
    total: str = ""
    """The sum of all balances. It is the same in every committed state since `setup`."""
    seconds: float = 0.0


class BankWorkload:
    """One bank in one upstream. Call `setup`, then `run` (once or several times), then `close`.

    accounts: how many are opened at setup. ddl_every_rows: how many rows are changed between two DDLs; 0: no
    DDL. threads: how many commit. checksum: None, or the version (0, 1, 2) of the row checksums that TiDB
    writes with `tidb_enable_row_level_checksum` on. Raises InvalidInput for another version.
    """

    def __init__(
        self,
        pd_addr: str,
        seed: int,
        *,
        accounts: int = 2_000,
        threads: int = 4,
        ddl_every_rows: int = 20_000,
        checksum: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if accounts < 2:
            raise InvalidInput("a bank needs at least two accounts", fix="give --accounts 2 or more")
        self.stats = BankStats()
        self._pd = PdClient(pd_addr)
        if checksum not in (None, 0, 1, 2):
            raise InvalidInput(f"row checksums of version {checksum} do not exist", fix="choose 0, 1 or 2")
        self._bank = Bank(seed, checksum)
        self._catalog = Catalog(SCHEMA)
        self._accounts = accounts
        self._threads = threads
        self._ddl_every_rows = ddl_every_rows
        self._clock: Clock = clock or SystemClock()
        self._step = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def setup(self) -> None:
        """Create the schema and open the accounts, or continue with those that exist."""
        ts = self._pd.tso()
        if self._pd.tso() <= ts:
            raise InvalidInput(
                "the workload needs a TSO that moves",
                where=self._pd.address,
                fix="start the upstream with --tso system",
            )
        pairs = list(Snapshot(self._pd, ts).scan(keys.meta_span()))
        self._catalog = read_catalog(SCHEMA, pairs)
        if not pairs:
            self._commit(tuple(bootstrap()))
        if not self._catalog.schema_id:
            self._run_ddl(*self._catalog.create_schema())
        for name, query, columns, primary in INITIAL:
            if name not in self._catalog.tables:
                self._run_ddl(*self._catalog.create_table(name, query, columns, primary))
        self._restore()
        self._step = next_step(self._catalog)
        for first in range(len(self._bank.accounts) + 1, self._accounts + 1, OPEN_BATCH):
            work = self._bank.open_accounts(first, min(OPEN_BATCH, self._accounts + 1 - first))
            self.stats.last_commit_ts = self._commit(work.mutations)
        self.stats.total = self._bank.total

    def run(
        self,
        rate_rows_per_s: float | None,
        stop_event: threading.Event,
        on_progress: Callable[[BankStats], None] | None = None,
        *,
        max_rows: int | None = None,
    ) -> BankStats:
        """Commit transactions until `stop_event` is set or `max_rows` rows are changed.

        `rate_rows_per_s`: None: as fast as possible. `on_progress`: called about five times a second. Raises
        Retryable if upstream is down for AWAY_S.
        """
        show = on_progress or (lambda stats: None)
        began = reported = self._clock.monotonic()
        already, drawn, since_ddl = self.stats.seconds, 0, 0
        self._stop = stop_event
        with Flight[Work](self._threads, 4 * self._threads, self._landed) as flight:
            while not stop_event.is_set() and (max_rows is None or drawn < max_rows):
                if self._ddl_every_rows and since_ddl >= self._ddl_every_rows:
                    flight.land(0)
                    self._run_ddl(*ddl_step(self._catalog, self._step))
                    self._step, since_ddl = self._step + 1, 0
                work = self._bank.next()
                drawn, since_ddl = drawn + work.rows, since_ddl + work.rows
                changed = frozenset(m.key for m in work.mutations)
                flight.launch(changed, work, partial(self._commit, work.mutations))
                now = self._clock.monotonic()
                if now - reported >= PROGRESS_EVERY_S:
                    reported, self.stats.seconds = now, already + now - began
                    show(self.stats)
                if rate_rows_per_s:
                    stop_event.wait(max(0.0, began + drawn / rate_rows_per_s - now))
            flight.land(0)
        self.stats.seconds = already + self._clock.monotonic() - began
        show(self.stats)
        return self.stats

    def close(self) -> None:
        """Close the client."""
        self._pd.close()

    def _landed(self, work: Work, commit_ts: int) -> None:
        self.stats.transactions += 1
        self.stats.rows += work.rows
        self.stats.last_commit_ts = max(self.stats.last_commit_ts, commit_ts)

    def _commit(self, mutations: tuple[Mutation, ...]) -> int:
        """Commit exactly once, and wait if upstream is down. Returns the commit_ts."""
        return self._exactly_once(lambda start_ts: mutations)[1]

    def _exactly_once(self, build: Callable[[int], tuple[Mutation, ...]]) -> tuple[int, int]:
        """Commit the mutations of `build(start_ts)` exactly once. Returns start_ts and commit_ts of the
        transaction that was committed.
        """
        deadline = self._clock.monotonic() + AWAY_S
        pending: Transaction | None = None
        while True:
            try:
                if pending is not None and (commit_ts := pending.settle()):
                    return pending.start_ts, commit_ts
                pending = None
                transaction = Transaction(self._pd)
                transaction.write(build(transaction.start_ts))
                pending = transaction
                return transaction.start_ts, transaction.commit()
            except Retryable:
                if self._clock.monotonic() > deadline:
                    raise
                with self._lock:
                    self.stats.retries += 1
                self._pd.pause(0.05)

    def _run_ddl(self, ddl: Ddl, after: Catalog) -> None:
        """Commit the three transactions of a DDL; then the bank continues with the new tables."""
        queued, _ = self._exactly_once(lambda start_ts: tuple(ddl.queue(start_ts)))
        done, commit_ts = self._exactly_once(lambda start_ts: tuple(ddl.done(queued, start_ts)))
        self._exactly_once(lambda start_ts: tuple(ddl.history(queued, done, start_ts)))
        self._catalog = after.written(ddl, queued, done)
        self._bank.use(self._catalog)
        if ddl.action is Action.TRUNCATE_TABLE:
            self._bank.truncated()
        self.stats.ddls += 1
        self.stats.last_ddl = ddl.query
        self.stats.last_commit_ts = max(self.stats.last_commit_ts, commit_ts)

    def _restore(self) -> None:
        """Read the rows of an existing bank."""
        self._bank.use(self._catalog)
        snapshot = Snapshot(self._pd, self._pd.tso())
        for name in self._catalog.tables:
            table = self._catalog.table(name)
            for key, value in snapshot.scan(keys.record_span(table.id)):
                values = record.decode(table, keys.parse_record(key), value)
                self._bank.restore(name, _row(table, values))
        self._bank.use(self._catalog)
        self._bank.restored()


def _row(table: TableSchema, values: tuple[Value, ...]) -> dict[str, Value]:
    """Values by column name. Texts are str, as in the model."""
    return {
        column.name: value.decode() if isinstance(value, bytes) and column.kind is Kind.STRING else value
        for column, value in zip(table.columns, values, strict=True)
    }
