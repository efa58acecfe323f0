"""All filters of a changefeed, from its settings: for tables, DDLs, rows and columns.

It is made once, and checks every rule then. The control process uses it to decide which tables are followed
and which DDLs are sent; the pipeline's tasks use it for rows and columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from tidegate.config.settings import ReplicaConfig
from tidegate.dispatcher.columns import ColumnSelectors
from tidegate.dispatcher.partitions import hashed_columns
from tidegate.dispatcher.router import Router
from tidegate.filter.event_filter import EventFilter
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.mounter import ddl_admission
from tidegate.mounter.ddl_transition import EmittedDdl, Refusal
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb.table_filter import TableFilter


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """The verdicts of one changefeed."""

    tables: TableFilter
    force_replicate: bool
    events: EventFilter
    columns: ColumnSelectors
    router: Router

    @classmethod
    def of(cls, config: ReplicaConfig) -> FeedFilter:
        """From a changefeed's settings. Raises InvalidInput for a rule that cannot be read."""
        case_sensitive, zone = config.case_sensitive, config.tidegate.time_zone
        # Without rules every table is followed, as in TiCDC.
        rules = config.filter.rules or ("*.*",)
        return cls(
            TableFilter(rules, case_sensitive),
            config.force_replicate,
            EventFilter(config.filter, case_sensitive=case_sensitive, time_zone=zone),
            ColumnSelectors(config.sink.column_selectors, case_sensitive=case_sensitive),
            Router.of(config, ""),
        )

    @property
    def table_key(self) -> Hashable:
        """A key that is equal for changefeeds with the same table rules."""
        return self.tables.key, self.force_replicate

    def concerned(self, refusal: Refusal) -> bool:
        """Whether a job that cannot be replicated concerns a table or schema that the changefeed follows."""
        return ddl_admission.concerned(refusal, self.tables)

    def passing(self, tables: Sequence[TableVersion]) -> list[TableVersion]:
        """The tables whose names pass."""
        verdicts = self.tables.matching([(table.schema, table.table) for table in tables])
        return [table for table, passes in zip(tables, verdicts, strict=True) if passes]

    def follows(self, table: TableVersion) -> bool:
        """Whether rows of a table are replicated."""
        return ddl_admission.follows(table, self.tables, force_replicate=self.force_replicate)

    def leaves_out(self, table: TableVersion) -> bool:
        """Whether a table passes the rules but is not replicated, because it has no handle key."""
        lacking = not (table.is_view or table.eligible or self.force_replicate)
        return lacking and self.tables.matches(table.schema, table.table)

    def stopped_by(self, refusal: Refusal) -> bool:
        """Whether the changefeed must stop at a refused job."""
        return not self.events.skips(refusal.start_ts) and self.concerned(refusal)

    def sent(self, emitted: EmittedDdl) -> DdlEvent | None:
        """The event to send, or None. Raises InvalidInput if the changefeed must stop at it.

        `ignore-txn-start-ts` is checked first: with it a user can skip a DDL that stops the changefeed.
        """
        # Before `admit`, which may raise: otherwise no setting could lead past such a DDL.
        if self.events.skips(emitted.event.start_ts):
            return None
        admitted = ddl_admission.admit(emitted, self.tables, force_replicate=self.force_replicate)
        if not admitted or self.events.ignores_ddl(emitted.event):
            return None
        # Last: the rules above judge the DDL as upstream has it.
        return self.columns.of_event(emitted.event)

    def check(self, tables: Iterable[TableVersion]) -> None:
        """Raise InvalidInput if a rule does not fit one of the tables to replicate."""
        for table in tables:
            if not table.is_view and self._names_columns(table):
                schema = table.parsed()
                self.events.check(schema)
                self._check_columns(schema)

    def _names_columns(self, table: TableVersion) -> bool:
        """Whether any rule concerns the table's columns. Only such tables have to be parsed for the check."""
        return bool(self.columns) or self.events.computes(table.schema, table.table)

    def _check_columns(self, table: TableSchema) -> None:
        selected = self.columns.of_table(table)
        if self.columns:
            hashed_columns(selected, self.router.rule(table))
