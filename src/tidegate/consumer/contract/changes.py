"""Checks the changes of rows: on which partition, and in which order, each has appeared."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from tidegate.consumer.contract.layouts import Layouts
from tidegate.consumer.contract.partition import Partition
from tidegate.consumer.contract.places import Places
from tidegate.consumer.contract.rows import Rows
from tidegate.consumer.contract.verdict import Rule, Unjudged, Verdict

PLACE_BITS: Final = 32
"""A ts and a partition's number are stored in one integer, the number in the lower bits."""
PLACE_MASK: Final = (1 << PLACE_BITS) - 1


class Changes:
    """Checks the promises about each change of a row. Remembers about `remember` changes."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        layouts: Layouts,
        places: Places,
        verdict: Verdict,
        remember: int,
        *,
        strict: bool,
    ) -> None:
        """`strict`: check the promises of `Producer.TIDEGATE`."""
        self._partitions, self._layouts, self._places = partitions, layouts, places
        self._verdict, self._remember, self._strict = verdict, remember, strict
        self._has_topics = len({one.topic for one in partitions.values()}) > 1
        self._first_places: dict[int, int] = {}
        """By change (row, ts, operation): its ts, and the partition where it appeared."""
        self._newest: dict[int, int] = {}
        """By row: the greatest ts that has appeared, and its partition."""
        self._forgotten = 0
        """Changes at or below this ts may be forgotten."""

    @property
    def pressed(self) -> bool:
        """Whether more than half of the changes that may be remembered are."""
        return len(self._first_places) > self._remember // 2

    def take(self, state: Partition, rows: Rows, first: int, end: int) -> None:
        """Check rows between two marks of a partition.

        A change that is known already is a repetition, and only its partition is checked: a producer that
        restarts repeats whole stretches, so they keep neither the order nor the promise of Resolved. TiCDC
        may send a row of exactly R after Resolved R, so its limit is one less.
        """
        first_places, newest, found = self._first_places, self._newest, self._verdict
        here, began, forgotten = state.number, state.began, self._forgotten
        limit = state.resolved if self._strict else state.resolved - 1
        unsure = max(forgotten, began)
        found.rows += end - first
        for i in range(first, end):
            ts, row = rows.ts[i], rows.row[i]
            if row is None or not ts:
                found.unjudged[Unjudged.KEYLESS if ts else Unjudged.UNTIMED] += 1
                continue
            # 64 bits in place of the row's key, which may be long. Two changes that collide would count as a
            # repetition.
            change = hash((row, ts, rows.op[i]))
            first_place = first_places.get(change)
            if first_place is not None:
                found.again += 1
                if first_place & PLACE_MASK != here and not self._places.moves:
                    why = f"it appeared on {self._at(first_place & PLACE_MASK)} before"
                    self._verdict.violated(Rule.MOVED, state, rows.offset[i], ts, why, rows.table[i])
                continue
            place = first_places[change] = ts << PLACE_BITS | here
            epoch = self._layouts.epoch(state.topic, ts)
            row = hash((row, epoch)) if epoch else row  # place and order are promised within an epoch only
            known = newest.get(row, 0)
            if ts >= known >> PLACE_BITS:
                newest[row] = place
            if known and known & PLACE_MASK != here:
                self._judge_move(state, rows, i, known)
            # Up to this ts a change that seems new may have appeared before, so it proves nothing.
            if ts <= unsure:
                if ts <= limit or ts < known >> PLACE_BITS:
                    why_not = Unjudged.FORGOTTEN if ts <= forgotten else Unjudged.BEGINNING
                    found.unjudged[why_not] += 1
            else:
                self._judge_order(state, rows, i, known >> PLACE_BITS, limit)
            state.highest = max(state.highest, ts)
            if not self._strict:
                table = rows.table[i]
                state.table_highest[table] = max(state.table_highest.get(table, 0), ts)

    def _judge_move(self, state: Partition, rows: Rows, i: int, known: int) -> None:
        """Check a row that was on another partition before."""
        places = state.partition, self._partitions[known & PLACE_MASK].partition
        if not self._places.may_move(state.topic, rows.table[i], places):
            why = f"the row's change of {known >> PLACE_BITS} is on {self._at(known & PLACE_MASK)}"
            self._verdict.violated(Rule.MOVED, state, rows.offset[i], rows.ts[i], why, rows.table[i])

    def _at(self, number: int) -> str:
        """A partition in words; with its topic if there are several topics."""
        one = self._partitions[number]
        return f"partition {one.partition}" + (f" of {one.topic}" if self._has_topics else "")

    def _judge_order(self, state: Partition, rows: Rows, i: int, known: int, limit: int) -> None:
        """Check a change that appears for the first time; `known`: the greatest ts of its row so far."""
        ts, offset, table = rows.ts[i], rows.offset[i], rows.table[i]
        if ts <= limit:
            why = f"Resolved {state.resolved} came before it"
            self._verdict.violated(Rule.AFTER_RESOLVED, state, offset, ts, why, table)
        if ts < known:
            why = f"the row's change of {known} appeared before it"
            self._verdict.violated(Rule.ORDER, state, offset, ts, why, table)
        if ts < state.epochs.get(table, 0):
            why = f"the table's alignment mark of {state.epochs[table]} came before it"
            self._verdict.violated(Rule.ALIGNED, state, offset, ts, why, table)
        ddl = state.ddl if self._strict else state.table_ddl.get(table, 0)
        if ts < ddl or (self._strict and ts == ddl):
            why = f"a DDL of {ddl} came before it"
            self._verdict.violated(Rule.AFTER_DDL, state, offset, ts, why, table)

    def forget(self, low: int) -> None:
        """Forget changes if too many are remembered. `low`: the lowest Resolved of all partitions.

        At least a quarter is forgotten: those up to `low` if they are that many, otherwise the oldest half.
        Changes above the lowest Resolved may still appear for the first time, so what is remembered there
        distinguishes a violation from a repetition. Below it only repetitions may come. Changes are ordered
        by ts across all partitions, so that one number says what is forgotten.
        """
        if len(self._first_places) <= self._remember:
            return
        ordered = sorted(self._first_places.values())
        upto = ordered[len(ordered) // 2] >> PLACE_BITS
        below = bisect_left(ordered, (low + 1) << PLACE_BITS)
        if below > len(ordered) // 4:
            upto = min(upto, low)
        self._forgotten = max(self._forgotten, upto)
        end = (upto + 1) << PLACE_BITS
        self._first_places = {
            change: first_place for change, first_place in self._first_places.items() if first_place >= end
        }
        # The order of later changes is still judged: above `upto` they come after all forgotten ones.
        self._newest = {row: known for row, known in self._newest.items() if known >= end}
