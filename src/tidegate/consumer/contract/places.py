"""Checks that rows are where their dispatcher puts them, while the number of partitions may change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.codec.base import DecodedTable
from tidegate.consumer.contract.layouts import Layouts, Placements
from tidegate.consumer.contract.partition import Partition
from tidegate.consumer.contract.verdict import Rule, Unjudged, Verdict
from tidegate.dispatcher.router import Router
from tidegate.model.layout import Layout


class Places:
    """Checks `Rule.PLACED` and `Rule.LAYOUT`."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        layouts: Layouts,
        router: Router | None,
        verdict: Verdict,
        *,
        strict_null: bool,
    ) -> None:
        """`layouts`: those known beforehand; others are added as they are learned."""
        self._partitions, self._layouts, self._router = partitions, layouts, router
        self._placements = Placements(layouts, router, strict_null=strict_null)
        self._verdict = verdict
        self.moves = False
        """Whether rows may have moved, because the producer changes the number of partitions."""
        self._compared: Counter[str] = Counter()
        """By topic, how many rows were compared with their dispatcher."""
        self._misplaced: Counter[str] = Counter()
        """By topic, how many of these rows were on another partition."""
        self._epochs: set[int] = set()
        """The counts in Resolved of how often the number of partitions has changed; 0: a Resolved without."""

    def learn(self, state: Partition, layout: Layout) -> None:
        """Learn a change of the number of partitions from a Resolved."""
        before = list(self._layouts.of(state.topic))
        if not self._layouts.learn(state.topic, layout):
            why = f"it says {layout}, and another one said {before[-1]}"
            self._verdict.violated(Rule.LAYOUT, state, -1, layout.ts, why)
        elif not before and layout.old != sum(one.topic == state.topic for one in self._partitions.values()):
            self._unplace(state.topic)

    def _unplace(self, topic: str) -> None:
        """Discard comparisons with the dispatcher: they used a number of partitions that was wrong."""
        found, wrong = self._verdict, self._misplaced.pop(topic, 0)
        # `+` drops the rules whose count has become zero.
        found.counts = +(found.counts - Counter({Rule.PLACED: wrong}))
        found.violations = [one for one in found.violations if (one.rule, one.topic) != (Rule.PLACED, topic)]
        found.unjudged[Unjudged.REPARTITIONED] += self._compared.pop(topic, 0)
        self._placements.forget(topic)

    def repartitioned(self) -> None:
        """The producer has changed the number of partitions, and no message says from which ts on."""
        self.moves = True

    def take_epoch(self, state: Partition, epoch: int) -> None:
        """Take a Resolved's count of how often the number of partitions has changed; 0: it has none.

        A row is on one partition within an epoch. If a second epoch appears, and its layout is not known,
        rows may have moved.
        """
        # A Resolved without the header says nothing if the layouts are known: old messages have none.
        if epoch or not self._layouts.of(state.topic):
            self._epochs.add(epoch)
            self.moves |= len(self._epochs) > 1

    def take(self, state: Partition, tables: Sequence[DecodedTable]) -> None:
        """Compare the partitions of rows with those that their dispatcher computes."""
        if self.moves:
            self._verdict.unjudged[Unjudged.REPARTITIONED] += sum(map(len, tables))
            return
        for table in tables:
            if self._router is not None and self._router.rule_of(table.schema, table.table).topic:
                self._judge_topic(state, table, self._router.topic_of(table.schema, table.table))
            for epoch, rows in self._layouts.parts(state.topic, table):
                self._place_rows(state, rows, epoch)

    def _place_rows(self, state: Partition, table: DecodedTable, epoch: int) -> None:
        """Compare rows of one table and one epoch."""
        partitions = self._layouts.rows_on(state.topic, epoch)
        if not partitions:
            self._verdict.unjudged[Unjudged.REPARTITIONED] += len(table)
            return
        self._compared[state.topic] += len(table)
        if state.partition >= partitions:
            why = f"rows of its time are on the first {partitions} partitions"
            # No placement is computed: no dispatcher puts rows on partitions that did not count at that time.
            for i in range(len(table)):
                self._misplace(state, table, i, why)
            return
        placement = self._placements.of(state.topic, epoch, partitions)
        wrong, unknown, rule = placement.look(table, state.partition)
        if unknown:
            self._verdict.unjudged[Unjudged.PLACE] += unknown
        for i, expected in wrong:
            self._misplace(state, table, i, f"dispatcher '{rule}' puts it on partition {expected}")

    def _misplace(self, state: Partition, table: DecodedTable, i: int, why: str) -> None:
        self._misplaced[state.topic] += 1
        name, ts = f"{table.schema}.{table.table}", int(table.commit_ts[i])
        self._verdict.violated(Rule.PLACED, state, int(table.offset[i]), ts, why, name)

    def _judge_topic(self, state: Partition, table: DecodedTable, expected: str) -> None:
        """Check rows of a table whose rule names a topic."""
        if expected != state.topic:
            why = f"its {len(table)} rows there belong into topic {expected}"
            name, ts = f"{table.schema}.{table.table}", int(table.commit_ts[0])
            self._verdict.violated(Rule.PLACED, state, int(table.offset[0]), ts, why, name)

    def may_move(self, topic: str, table: str, places: tuple[int, int]) -> bool:
        """Whether a row of a table may be on one of two partitions and later on the other."""
        return self.moves or self._placements.may_move(topic, table, places)

    def dispatchers(self) -> dict[str, str]:
        """By table, the dispatcher that fits the places of its rows, in words."""
        return self._placements.words()
