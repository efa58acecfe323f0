"""The dispatch rules of one changefeed: the first whose matcher fits a table applies to it (facts 7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.config import DispatchRule
from tidegate.dispatcher.partitions import RULES
from tidegate.errors import InvalidInput
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_filter import TableFilter

DEFAULT: Final = DispatchRule()
"""What applies to a table no rule names."""


class Router:
    """Rules in file order, with the implicit last one `*.*` -> by table; immutable."""

    def __init__(
        self, rules: Sequence[DispatchRule], default_topic: str, *, case_sensitive: bool = False
    ) -> None:
        for rule in rules:
            _check(rule)
        self._rules = [(TableFilter(rule.matcher, case_sensitive), rule) for rule in rules]
        self.default_topic = default_topic

    def rule(self, table: TableSchema) -> DispatchRule:
        """The rule of a table."""
        return self.rule_of(table.schema, table.table)

    def rule_of(self, schema: str, table: str) -> DispatchRule:
        """The rule of a table by its name."""
        for matcher, rule in self._rules:
            if matcher.matches(schema, table):
                return rule
        return DEFAULT

    def topic(self, table: TableSchema) -> str:
        """The topic of a table's rows."""
        return self.default_topic


def _check(rule: DispatchRule) -> None:
    where = f"dispatch rule for {', '.join(rule.matcher)}"
    if rule.partition not in RULES:
        raise InvalidInput(
            f"partition rule {rule.partition!r} is not known",
            where=where,
            fix="use one of " + ", ".join(RULES),
        )
    if rule.topic:
        raise InvalidInput(
            "topic expressions are not supported",
            where=where,
            why=f"the rule names topic {rule.topic!r}; all rows go to the sink URI's topic",
            fix="leave topic out, or run one changefeed per topic",
        )
    if rule.partition == "columns" and not rule.columns:
        raise InvalidInput("a rule by columns names no columns", where=where, fix='add columns = ["a", "b"]')
