"""The dispatch rules of one changefeed. The first rule whose matcher fits a table applies to it: it decides
how the table's rows are spread over partitions, and in which topic they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from tidegate.config.settings import DispatchRule, ReplicaConfig
from tidegate.dispatcher.partitions import CONFLICT, RULES
from tidegate.dispatcher.topics import check_expression, topic_name
from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_filter import TableFilter

DEFAULT: Final = DispatchRule()
"""The rule of a table that no rule matches."""


class Router:
    """Rules in file order, with the implicit last one `*.*` -> by table, default topic; immutable."""

    def __init__(
        self,
        rules: Sequence[DispatchRule],
        default_topic: str,
        *,
        case_sensitive: bool = False,
        names_subjects: bool = False,
    ) -> None:
        """`names_subjects`: see `check_expression`. Raises InvalidInput for a rule that is not valid."""
        for rule in rules:
            _check(rule, names_subjects=names_subjects)
        self._rules = [(TableFilter(rule.matcher, case_sensitive), rule) for rule in rules]
        self.default_topic = default_topic

    @classmethod
    def of(cls, config: ReplicaConfig, default_topic: str, *, names_subjects: bool = False) -> Self:
        """The router of a changefeed's settings."""
        rules, case_sensitive = config.sink.dispatchers, config.case_sensitive
        return cls(rules, default_topic, case_sensitive=case_sensitive, names_subjects=names_subjects)

    @property
    def has_topics(self) -> bool:
        """Whether rows may go to other topics than the default one."""
        return any(rule.topic for _, rule in self._rules)

    @property
    def has_conflicts(self) -> bool:
        """Whether any table's rows may need alignment marks."""
        return any(rule.partition == CONFLICT for _, rule in self._rules)

    def rule(self, table: TableSchema) -> DispatchRule:
        """The rule of a table."""
        return self.rule_of(table.schema, table.table)

    def rule_of(self, schema: str, table: str) -> DispatchRule:
        """The rule of a table by its name."""
        for matcher, rule in self._rules:
            if matcher.matches(schema, table):
                return rule
        return DEFAULT

    def topic_of(self, schema: str, table: str) -> str:
        """The topic of a table's rows by its name."""
        return self.topic_by(self.rule_of(schema, table), schema, table)

    def topic_by(self, rule: DispatchRule, schema: str, table: str) -> str:
        """The topic of a table's rows, if the table's rule is known."""
        return topic_name(rule.topic, schema, table) if rule.topic else self.default_topic

    def topic_of_ddl(self, event: DdlEvent) -> str:
        """The topic of a DDL: that of its table, under the old name if it is renamed. The default topic if
        the DDL has no table.

        As TiCDC's `GetTopicForDDL`: if a table existed before the DDL, its old name decides.
        """
        schema, table = event.schema, event.table
        if event.before is not None:
            schema, table = event.old_schema, event.old_table
        return self.topic_of(schema, table) if table else self.default_topic


def _check(rule: DispatchRule, *, names_subjects: bool) -> None:
    where = f"dispatch rule for {', '.join(rule.matcher)}"
    if rule.partition not in RULES:
        raise InvalidInput(
            f"partition rule {rule.partition!r} is not known",
            where=where,
            fix="use one of " + ", ".join(RULES),
        )
    if rule.topic:
        check_expression(rule.topic, where, names_subjects=names_subjects)
    if rule.partition == "columns" and not rule.columns:
        raise InvalidInput("a rule by columns names no columns", where=where, fix='add columns = ["a", "b"]')
