"""The event filters of one changefeed, read once, and their effect on one table version.

Rules are combined by OR: a change is ignored if any rule that matches the table ignores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.config.settings import EventFilterRule
from tidegate.errors import InvalidInput
from tidegate.filter.events import check_names, ignored_actions, ignored_operations
from tidegate.filter.expression.bind import bind
from tidegate.filter.expression.syntax import Refusal, parse
from tidegate.filter.expression.typed import Typed
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_filter import TableFilter, found

NEW, OLD = "new", "old"
OPERATIONS: Final = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_KEY_FLAGS: Final = 2 | 16
"""TiCDC's flags of a handle key and of a unique key."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One configured expression: it applies to rows with operation `op` and reads their `image`."""

    option: str
    text: str
    op: int
    image: str


@dataclass(frozen=True, slots=True)
class EventRule:
    """One `[[filter.event-filters]]` entry."""

    where: str
    """Its place in the settings, for messages."""
    matcher: TableFilter
    operations: frozenset[int]
    """The operations whose rows are ignored: INSERT, UPDATE, DELETE of `model.cells`."""
    actions: frozenset[int]
    """TiDB's action codes of the DDLs that are ignored."""
    sql: str
    """An RE2 pattern for the statements of DDLs that are ignored. Empty: none."""
    expressions: tuple[Expression, ...]
    only_columns: frozenset[str]
    """An update that changes only columns among these is ignored."""
    case_sensitive: bool

    @property
    def concerns_rows(self) -> bool:
        """Whether any row may be ignored."""
        return bool(self.operations or self.expressions or self.only_columns)

    def ignores_ddl(self, action: int, query: str) -> bool:
        """Whether it ignores a DDL of a table or schema that it matches."""
        return action in self.actions or bool(self.sql and found(self.sql, [query])[0])


@dataclass(slots=True)
class Condition:
    """An expression for the rows of one table version.

    It is bound when a row first needs it. As in TiCDC, an expression that does not fit the table raises an
    error only when there is a row of its operation.
    """

    expression: Expression
    where: str
    _node: Typed | None = None

    def node(self, table: TableSchema) -> Typed:
        """The expression bound to `table`, the same at each call. Raises InvalidInput if it does not fit."""
        if self._node is None:
            try:
                self._node = bind(self.expression.text, table)
            except Refusal as refusal:
                raise refusal.as_input(self.expression.text, self.where, table.name) from None
        return self._node


@dataclass(frozen=True, slots=True)
class TableRules:
    """The effect of all rules on rows of one table version."""

    operations: frozenset[int]
    conditions: tuple[Condition, ...]
    watched: tuple[tuple[int, ...], ...]
    """For each rule with `only_columns`: if none of these columns changes, an update is ignored."""

    def __bool__(self) -> bool:
        return bool(self.operations or self.conditions or self.watched)

    def check(self, table: TableSchema) -> None:
        """Raise InvalidInput for the first expression that does not fit the table."""
        for condition in self.conditions:
            condition.node(table)


def read_rules(rules: Sequence[EventFilterRule], *, case_sensitive: bool) -> tuple[EventRule, ...]:
    """Read the rules and check every name, pattern and expression. Raises InvalidInput."""
    return tuple(_read(rule, f"filter.event-filters[{i}]", case_sensitive) for i, rule in enumerate(rules))


def _read(rule: EventFilterRule, where: str, case_sensitive: bool) -> EventRule:
    if not rule.matcher:
        raise InvalidInput(
            "an event filter matches no table", where=where, fix='add matcher = ["schema.table"], or ["*.*"]'
        )
    check_names(rule.ignore_event, f"{where}.ignore-event")
    return EventRule(
        where=where,
        matcher=_matcher(rule.matcher, where, case_sensitive),
        operations=frozenset(OPERATIONS[name] for name in ignored_operations(rule.ignore_event)),
        actions=ignored_actions(rule.ignore_event),
        sql=_sql(rule.ignore_sql, f"{where}.ignore-sql"),
        expressions=tuple(_expressions(rule, where)),
        only_columns=frozenset(
            name if case_sensitive else name.lower() for name in rule.ignore_update_only_columns
        ),
        case_sensitive=case_sensitive,
    )


def _matcher(patterns: Sequence[str], where: str, case_sensitive: bool) -> TableFilter:
    try:
        return TableFilter(patterns, case_sensitive)
    except InvalidInput as error:
        raise InvalidInput(error.what, where=f"{where}.matcher", why=error.why, fix=error.fix) from None


def _sql(patterns: Sequence[str], where: str) -> str:
    """One pattern for all, ignoring case. Each is also checked alone, so that an error can name it."""
    for i, pattern in enumerate(patterns):
        try:
            found(pattern, [""])
        except InvalidInput as error:
            raise InvalidInput(error.what, where=f"{where}[{i}]", why=error.why, fix=error.fix) from None
    # One pattern, so that a statement is scanned once, however many rules there are.
    return "(?i)" + "|".join(patterns) if patterns else ""


def _expressions(rule: EventFilterRule, where: str) -> list[Expression]:
    options = [
        Expression("ignore-insert-value-expr", rule.ignore_insert_value_expr, INSERT, NEW),
        Expression("ignore-update-old-value-expr", rule.ignore_update_old_value_expr, UPDATE, OLD),
        Expression("ignore-update-new-value-expr", rule.ignore_update_new_value_expr, UPDATE, NEW),
        Expression("ignore-delete-value-expr", rule.ignore_delete_value_expr, DELETE, OLD),
    ]
    given = [expression for expression in options if expression.text.strip()]
    for expression in given:
        try:
            # Only its form can be checked now. Whether it fits a table is known when there is one
            # (`Condition`).
            parse(expression.text)
        except Refusal as refusal:
            raise refusal.as_input(expression.text, f"{where}.{expression.option}") from None
    return given


def table_rules(rules: Sequence[EventRule], table: TableSchema) -> TableRules:
    """The effect of the rules on rows of a table. The result has no reference to the table, so that it can be
    cached by it.
    """
    mine = [rule for rule in rules if rule.concerns_rows and rule.matcher.matches(table.schema, table.table)]
    return TableRules(
        operations=frozenset().union(*(rule.operations for rule in mine)),
        conditions=tuple(
            Condition(expression, f"{rule.where}.{expression.option}")
            for rule in mine
            for expression in rule.expressions
        ),
        watched=tuple(_watched(rule, table) for rule in mine if rule.only_columns),
    )


def _watched(rule: EventRule, table: TableSchema) -> tuple[int, ...]:
    """The columns that the rule does not name, and all key columns."""
    return tuple(
        at
        for at, (column, flag) in enumerate(zip(table.columns, table.ticdc_flags, strict=True))
        # A change of a key always counts: if such an update were ignored, the target would keep the row under
        # its old key.
        if flag & _KEY_FLAGS
        or (column.name if rule.case_sensitive else column.name.lower()) not in rule.only_columns
    )
