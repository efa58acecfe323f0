"""Runs the kernels over one set of tables: pairs the commits of a portion with their prewrites.

`BlockMatcher` has one for its stream. `playback` makes another one for each pass over a spilled log. Both go
through `_apply`, so spilled rows are matched in the same way as live rows.

The order of a call is `begin`, any number of portions, `take`. In each portion `locate` finds the
registration of each event, `match` pairs and emits, and `keep` copies the prewrites that are still open.
`keep` is last because most prewrites have their commit in the same portion and need no copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidegate.kernel import address
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import bucket_kernels, match_kernels, open_kernels, registration_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.addresses import Addresses
from tidegate.puller.match.matched import Matched, Message, Registration
from tidegate.puller.match.open_rows import OpenRows
from tidegate.puller.match.outcome import MatchOutcome
from tidegate.puller.match.portion import Portion
from tidegate.puller.match.recycler import Recycler
from tidegate.puller.match.registrations import Registrations
from tidegate.puller.match.spill import SpillFolder

NO_MARKS: k.I64 = np.zeros(0, dtype=np.int64)
NO_TS: k.U64 = np.zeros(0, dtype=np.uint64)


class Pairing:
    """All tables of the kernels. Not thread-safe."""

    def __init__(
        self,
        slabs: Recycler,
        spill: SpillFolder | None = None,
        *,
        lag: Timestamp = 0,
        trust_empty: bool = False,
        events: int = 256,
        rows: int = 1024,
        key_share: tuple[int, int] = (0, 0),
    ) -> None:
        """`spill`: receives the rows of spilled registrations. `lag`: see `Portion`.

        `trust_empty`: see `Matcher`. `events`, `rows`: the initial sizes of the tables. `key_share`: (number,
        of) matches only the keys of share `number` of `of` equal shares.
        """
        self.counts = np.zeros(k.COUNT_WORDS, dtype=np.int64)
        self.counts[k.C_TRUST_EMPTY] = int(trust_empty)
        self.counts[k.C_PASS], self.counts[k.C_PASSES] = key_share
        addresses = Addresses()
        self._at, self._spill = addresses.at, spill
        self.registrations = Registrations(addresses)
        self.open_rows = OpenRows(self.registrations, self.counts, addresses)
        self.outcome = MatchOutcome(self.registrations, self.counts, slabs)
        self._portion = Portion(addresses, events=events, rows=rows, lag=lag)

    @property
    def trust_empty(self) -> bool:
        """The constructor's `trust_empty`."""
        return bool(self.counts[k.C_TRUST_EMPTY])

    def begin(self) -> None:
        """Begin a call. The results of the last call must have been taken."""
        self.outcome.clear()
        # The changes of the last call were gathered, so nothing points into the old arenas any more.
        self.open_rows.unpin()
        self.open_rows.reclaim()

    def feed(self, messages: Sequence[Message]) -> int:
        """Match a portion of messages; returns the number of rows. Raises Retryable if one is malformed."""
        events, rows = self._portion.scan(messages)
        self._apply(events, rows, sum(map(len, messages)))
        return rows

    def feed_marks(self, messages: Sequence[Message]) -> tuple[k.I64, k.U64]:
        """Match messages without rows while no registration is spilled; returns the marks as `take` does.

        Batches of resolved ts need neither room in tables nor `locate` nor `keep`. Without these steps they
        take a third of the time.
        """
        self.outcome.clear()
        events, rows = self._portion.scan(messages)
        assert rows == 0, "a batch of resolved ts has none"
        # `locate` is not needed: `resolve_many` finds the registration of each region itself.
        self.counts[k.C_EVENT] = self.counts[k.C_ROW] = 0
        state = self._match(events, 0)
        assert state == k.DONE, "only rows and logs need room"
        return self.outcome.read_moved()

    def feed_log(self, chunk: k.U8, owner: Registration) -> None:
        """Match a chunk of a log as rows of `owner`."""
        for events, rows, size in self._portion.load(chunk, owner):
            self._apply(events, rows, size)

    def take(self, rows: int) -> Matched:
        """The results since `begin`; `rows`: the number of rows fed. Frees the space of matched prewrites."""
        marks, resolved = self.outcome.read_moved()
        return self._taken(marks, resolved, rows)

    def take_changes(self) -> Matched:
        """`take` without marks: the caller has already passed on a log's resolved ts, or holds it back."""
        return self._taken(NO_MARKS, NO_TS, 0)

    def _taken(self, marks: k.I64, resolved: k.U64, rows: int) -> Matched:
        # The order matters: `blocks` copies the changes, and only then may `release` give their space away.
        changes, blocks = self.outcome.changes, self.outcome.blocks()
        self.open_rows.release()
        return Matched(blocks, self.outcome.read_notes(), marks, resolved, rows, changes)

    def take_back(self) -> list[int]:
        """Remove the rows of stopped registrations, and then free their numbers; returns these numbers."""
        # Records first: a number that is free while a record still has it would pass that record to its
        # next owner.
        self.open_rows.forget_stopped()
        return self.registrations.take_back()

    def _apply(self, events: int, rows: int, size: int) -> None:
        """Match the events and rows in the portion's tables, which come from `size` bytes.

        If a table or the log has no room for a row, `match` stops there, and continues at this row when it is
        called again.
        """
        counts, portion, open_rows = self.counts, self._portion, self.open_rows
        # Before `_match` reads the addresses, because these calls may replace the tables. The kernels check
        # no bound of the tables that are made large enough here.
        self.outcome.make_room(events, rows)
        open_rows.make_room(rows, size)
        counts[k.C_KEPT] = counts[k.C_EVENT] = counts[k.C_ROW] = 0
        registration_kernels.locate(
            self._at(portion.events),
            events,
            self._at(portion.rows),
            self._at(self.registrations.table),
            self._at(self.registrations.index, k.index_address),
            self._at(open_rows.table, bucket_kernels.table_address),
        )
        while (state := self._match(events, rows)) != k.DONE:
            if state == k.LOG_FULL:
                assert self._spill is not None, "only registrations with a log fill it"
                # Both branches may replace a table, so `_match` takes all addresses again.
                self._spill.make_room(counts, len(self.registrations.table))
            else:
                open_rows.double_table(portion.rows)
        open_kernels.keep(
            self._at(portion.rows),
            self._at(self.registrations.table),
            self._at(open_rows.table, bucket_kernels.table_address),
            self._at(open_rows.arena),
            self._at(open_rows.dead),
            self._at(portion.kept),
            address(counts),
        )

    def _match(self, events: int, rows: int) -> int:
        portion, open_rows, outcome, spill = self._portion, self.open_rows, self.outcome, self._spill
        tables = k.Tables(
            events=self._at(portion.events),
            rows=self._at(portion.rows),
            registrations=self._at(self.registrations.table),
            registration_index=self._at(self.registrations.index, k.index_address),
            table=self._at(open_rows.table, bucket_kernels.table_address),
            arena=self._at(open_rows.arena),
            waiting=self._at(open_rows.waiting),
            out=self._at(outcome.out),
            notes=self._at(outcome.notes),
            moved=self._at(outcome.moved),
            kept=self._at(portion.kept),
            log=address(spill.memory) if spill is not None else 0,
            log_size=spill.room if spill is not None else 0,
            counts=self._at(self.counts),
        )
        return match_kernels.match(tables, events, rows, bucket_kernels.table_room(open_rows.table))
