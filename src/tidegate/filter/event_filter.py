"""`ignore-txn-start-ts` and the event filters of one changefeed: verdicts on DDLs and on rows."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from tidegate.config.settings import FilterConfig
from tidegate.errors import InvalidInput
from tidegate.filter.events import EVENT_OF_ACTION
from tidegate.filter.rows import ignored
from tidegate.filter.rules import EventRule, TableRules, read_rules, table_rules
from tidegate.model.cells import RowBlock, take
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema


class EventFilter:
    """The event filters of a changefeed. The constructor raises InvalidInput for settings that it cannot
    read.
    """

    def __init__(self, config: FilterConfig, *, case_sensitive: bool = False, time_zone: str = "UTC") -> None:
        self._start_ts = frozenset(config.ignore_txn_start_ts)
        self._rules: tuple[EventRule, ...] = read_rules(config.event_filters, case_sensitive=case_sensitive)
        self._zone = time_zone
        invalid = [ts for ts in self._start_ts if not 0 <= ts < 1 << 64]
        if invalid:
            raise InvalidInput(
                f"{str(invalid[0])[:40]} is not the start-ts of a transaction",
                where="filter.ignore-txn-start-ts",
                fix="give numbers of 64 bits",
            )
        stamps = np.array(sorted(self._start_ts), np.uint64)
        self._stamps = stamps.view(np.int64) if len(stamps) else None
        self._known: WeakKeyDictionary[TableSchema, TableRules] = WeakKeyDictionary()

    @property
    def concerns_rows(self) -> bool:
        """Whether any row may be left out. If not, callers need not call `remaining`."""
        return bool(self._start_ts) or any(rule.concerns_rows for rule in self._rules)

    def skips(self, start_ts: int) -> bool:
        """Whether a transaction, or a DDL job, is left out as a whole."""
        return start_ts in self._start_ts

    def ignores_ddl(self, event: DdlEvent) -> bool:
        """Whether a DDL is not sent. The catalogue applies it in any case. A rename is matched by the old
        name.
        """
        return self.ignores_statement(event.action, event.query, event.old_schema, event.old_table)

    def ignores_statement(self, action: int, query: str, schema: str, table: str) -> bool:
        """Whether a statement about a table, or about a schema (no table), is not sent."""
        return action in EVENT_OF_ACTION and any(
            rule.ignores_ddl(action, query)
            for rule in self._rules
            if (rule.matcher.matches(schema, table) if table else rule.matcher.matches_schema(schema))
        )

    def computes(self, schema: str, table: str) -> bool:
        """Whether a rule has an expression over rows of a table."""
        return any(rule.expressions and rule.matcher.matches(schema, table) for rule in self._rules)

    def check(self, table: TableSchema) -> None:
        """Raise InvalidInput for the first expression that does not fit the table."""
        table_rules(self._rules, table).check(table)

    def rules_of(self, table: TableSchema) -> TableRules:
        """The effect of the rules on rows of a table version. Cached."""
        known = self._known.get(table)
        if known is None:
            known = self._known[table] = table_rules(self._rules, table)
        return known

    def remaining(self, block: RowBlock) -> RowBlock:
        """The rows that are sent. It is the block itself if all rows are sent.

        Raises Fatal if an expression does not fit the table any more, or cannot be computed for a row.
        """
        rules = self.rules_of(block.table)
        if not rules and self._stamps is None:
            return block
        out = ignored(block, rules, self._stamps, self._zone)
        return take(block, np.flatnonzero(~out)) if out.any() else block
